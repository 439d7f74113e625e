/* Messages of the control plane: the check, and everybody who acts on what passes it: the
 * coordinator, a worker, the ledger on both sides, the scribe's images.
 *
 * An input is taken twice: as a frame as it stands, and as a type (its first byte) and a body, which
 * get the header that wire_check wants, because hardly a changed byte would get past it. */
#include "tests/fuzz/fuzz.h"

#include "control/coordinator_state.h"
#include "control/worker.h"
#include "loader/substitutes.h"
#include "shm/err.h"
#include "tools/scribe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SAMPLES = 40 };
static const char token[] = "0123456789abcdef0123456789abcdef";

/* ---- a coordinator in the middle of training, whose processes are not there ---- */

static catalog_t *make_catalog(int *fd)
{
    catalog_builder_t *b = NULL;
    catalog_t *c = NULL;
    char path[32];
    catalog_sample_t facts = {.file_bytes = 1, .width = 64, .height = 64, .orientation = 1};
    *fd = memfd_create("fuzz-catalog", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int rc = *fd < 0 ? ERR_ENV : catalog_builder_new(&b);
    if (rc == 0)
        rc = catalog_builder_class(b, "pit");
    for (int i = 0; rc == 0 && i < 2 * SAMPLES; i++) {
        snprintf(path, sizeof path, "/%d.png", i);
        rc = catalog_builder_sample(b, i < SAMPLES ? CATALOG_TRAIN : CATALOG_VAL, path, &facts,
                                    NULL, 0, NULL, 0);
    }
    if (rc == 0)
        rc = catalog_builder_write(b, *fd);
    if (rc == 0)
        rc = catalog_open(*fd, &c);
    fuzz_require(rc == 0, "no sample list");
    catalog_builder_free(&b);
    return c;
}

static void set_joined(proc_t *p, uint32_t incarnation)
{
    p->state = PROC_JOINED;
    p->incarnation = incarnation;
    snprintf(p->identity, sizeof p->identity, "%s.%u", p->name, incarnation);
}

static coordinator_t *make_coordinator(void)
{
    static coordinator_config_t config;
    static const ring_config_t ring = {.depth = 2, .cells = 4, .label_cap = 8, .image_bytes = 4096};
    const uint32_t cells[2] = {4, 4};
    coordinator_t *c = calloc(1, sizeof *c);
    fuzz_require(c != NULL, "no memory");
    options_default(&config.options);
    config.bin_dir = "/nowhere";
    c->config = &config;
    c->view = &config.view;
    c->options = config.options;
    c->ranks = c->workers = c->threads = 1;
    memcpy(c->token, token, sizeof token);
    snprintf(c->endpoint, sizeof c->endpoint, "ipc://@sluice-fuzz-%d", (int)getpid());
    int rc = bus_listen(c->endpoint, &c->bus);
    if (rc == 0)
        rc = outbox_new(1 << 16, 1 << 18, &c->outbox);
    if (rc == 0)
        rc = board_create(RUN_PROCESSES, &c->board, &c->board_fd);
    if (rc == 0)
        rc = ring_create(&ring, "fuzz-ring", &c->rings[0], &c->ring_fd[0]);
    c->procs = calloc(RUN_PROCESSES, sizeof *c->procs);
    fuzz_require(rc == 0 && c->procs, "no coordinator");
    c->hub = board_hub(c->board);
    c->ring_config = ring;
    ring_arm(c->rings[0], cells);
    c->catalog = make_catalog(&c->catalog_fd);
    c->list_digest = catalog_digest(c->catalog);
    c->plan = (plan_t){.n_train = SAMPLES,
                       .n_val = SAMPLES,
                       .ranks = 1,
                       .batch = 4,
                       .val_batch = 8,
                       .imgsz = 64,
                       .epochs = 3,
                       .val_every_epoch = 1};
    proc_init(c);
    return c;
}

/* As it was before the last message: a run that a message has ended would take no other. */
static void reset_coordinator(coordinator_t *c)
{
    c->state = RUN_TRAINING;
    c->code = c->user_stop = c->interrupts = 0;
    c->deadline_ns = 0;
    outbox_free(&c->outbox);
    ledger_free(&c->ledger);
    fuzz_require(outbox_new(1 << 16, 1 << 18, &c->outbox) == 0 &&
                     ledger_new(SAMPLES, SAMPLES, &c->ledger) == 0,
                 "no memory");
    for (int i = 0; i < RUN_PROCESSES; i++)
        c->procs[i].state = PROC_NONE;
    set_joined(proc_scribe(c), 1);
    set_joined(proc_trainer(c, 0), 2);
    set_joined(proc_loader(c, 0), 3);
    proc_loader(c, 1)->state = PROC_STARTED;
    proc_trainer(c, 0)->ready = 0;
}

static void to_coordinator(bus_message_t *m)
{
    static coordinator_t *c;
    if (!c)
        c = make_coordinator();
    wire_command_t command;
    /* More loaders would be started, programs that are not there. */
    if (m->type == WIRE_COMMAND) {
        memcpy(&command, m->frame, sizeof command);
        if (command.command == WIRE_CMD_SCALE)
            return;
    }
    const char *const senders[] = {proc_scribe(c)->identity, proc_trainer(c, 0)->identity,
                                   proc_loader(c, 0)->identity, "loader-1.9", "command-1.0"};
    for (size_t i = 0; i < sizeof senders / sizeof senders[0]; i++) {
        reset_coordinator(c);
        snprintf(m->from, sizeof m->from, "%s", senders[i]);
        message_handle(c, m);
        for (uint32_t k = 0; k < ledger_count(c->ledger); k++) {
            const wire_ledger_t *e = ledger_at(c->ledger, k);
            fuzz_require(e->split < CATALOG_SPLITS && e->sample < SAMPLES &&
                             e->substitute < SAMPLES,
                         "a ledger entry of a sample that is not there");
        }
    }
}

/* ---- a worker ---- */

static int on_message(void *user, const bus_message_t *m)
{
    substitutes_t *s = user;
    wire_ledger_t entry;
    if (m->type != WIRE_LEDGER)
        return 0;
    memcpy(&entry, m->frame, sizeof entry);
    int rc = substitutes_add(s, &entry);
    substitutes_resolve(s, entry.split, entry.sample, entry.from_epoch, entry.from_position);
    substitutes_resolve(s, entry.split, entry.sample, UINT32_MAX, UINT64_MAX);
    return rc;
}

static void use_plan(const plan_t *p)
{
    uint64_t all = plan_batches(p);
    const uint64_t seqs[] = {0, 1, all / 2, all - 1, all, all + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof seqs / sizeof seqs[0]; i++) {
        plan_batch_t b = plan_locate(p, seqs[i]);
        fuzz_require((b.phase == PLAN_END) == (seqs[i] >= all),
                     "a plan ends elsewhere than it says");
        for (uint32_t rank = 0; rank < 2 && rank < p->ranks; rank++) {
            uint32_t n = plan_cells(p, &b, rank);
            if (b.phase == PLAN_VAL && n > 0)
                fuzz_require(plan_position(p, &b, rank, n - 1) < p->n_val,
                             "a cell behind the list");
        }
    }
}

static void to_worker(const bus_message_t *m)
{
    static worker_t w;
    static substitutes_t s;
    if (!w.bus) {
        char endpoint[64];
        snprintf(endpoint, sizeof endpoint, "ipc://@sluice-nobody-%d", (int)getpid());
        fuzz_require(bus_connect(endpoint, "loader-0.1", &w.bus) == 0, "no socket");
        w.kind = BOARD_LOADER;
    }
    w.plan = (plan_t){
        .n_train = SAMPLES, .ranks = 1, .batch = 4, .val_batch = 8, .imgsz = 64, .epochs = 3};
    w.stop = 0;
    worker_handle(&w, m, on_message, &s);
    if (s.count > 64)
        substitutes_fini(&s);
    if (m->type == WIRE_WELCOME && worker_welcome(&w, m) == 0)
        use_plan(&w.plan);
}

/* ---- the scribe: a folder that is not open refuses whatever gets past the checks ---- */

static void to_scribe(const bus_message_t *m)
{
    static scribe_t s;
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("fuzz-snapshot", MFD_CLOEXEC);
        fuzz_require(fd >= 0 && ftruncate(fd, 65536) == 0, "no snapshot memory");
        s.dir.fd = s.dir.lock = s.events = s.csv = -1;
        s.snapshot_fd = fd;
    }
    size_t bytes;
    const char *text = wire_text(m->frame, &bytes);
    if (m->type == WIRE_SNAPSHOT) {
        wire_saved_t saved;
        wire_snapshot_t image;
        memcpy(&image, m->frame, sizeof image);
        scribe_snapshot(&s, &image, &saved);
        fuzz_require(saved.status < 0, "an image was written without a folder");
    } else if (m->type == WIRE_LOG) {
        wire_log_t log;
        memcpy(&log, m->frame, sizeof log);
        fuzz_require(scribe_log(&s, log.process, text, bytes) < 0, "a log without a folder");
    }
}

/* ---- the target ---- */

static void take(void *frame, size_t bytes)
{
    bus_message_t m = {.bytes = bytes, .frame = frame};
    if (wire_check(frame, bytes) < 0)
        return;
    wire_header_t head;
    memcpy(&head, frame, sizeof head);
    m.type = head.type;
    fuzz_require(head.bytes == bytes && bytes >= wire_body_bytes(head.type),
                 "a frame of another length");
    size_t text;
    const char *at = wire_text(frame, &text);
    fuzz_require(at + text == (const char *)frame + bytes,
                 "a text that does not end with its frame");
    fuzz_touch(at, text);
    wire_type_name(m.type);
    to_worker(&m);
    to_scribe(&m);
    to_coordinator(&m);
}

void fuzz_wire(const uint8_t *data, size_t bytes)
{
    /* As bus_receive hands it out: aligned, with a NUL behind it. */
    size_t room = sizeof(wire_header_t) + sizeof(wire_welcome_t) + bytes + 1;
    char *frame = calloc(1, room);
    fuzz_require(frame != NULL, "no memory");
    memcpy(frame, data, bytes);
    take(frame, bytes);
    if (bytes > 0) {
        uint32_t type = data[0] % WIRE_TYPES;
        size_t body = wire_body_bytes(type), whole = sizeof(wire_header_t) + bytes - 1;
        memset(frame, 0, room);
        memcpy(frame + sizeof(wire_header_t), data + 1, bytes - 1);
        whole = whole < body ? body : whole;
        /* Types without text have one length. */
        wire_begin(frame, (wire_type_t)type, whole);
        if (wire_check(frame, whole) < 0 && body > 0) {
            whole = body;
            memset(frame + whole, 0, room - whole);
            wire_begin(frame, (wire_type_t)type, whole);
        }
        if (type == WIRE_WELCOME) {
            uint32_t yaml = (uint32_t)(whole - body);
            memcpy(frame + offsetof(wire_welcome_t, yaml_bytes), &yaml, sizeof yaml);
        }
        frame[whole] = '\0';
        take(frame, whole);
    }
    free(frame);
}

/* One frame of each type, as whole frames; the fields that decide are set. */
void fuzz_wire_seeds(fuzz_seed_fn give, void *user)
{
    static char frame[sizeof(wire_welcome_t) + 256];
    static const char text[] = "{\"event\":\"x\"}", yaml[] = "epochs: 3\nbatch: 4\n";
    for (uint32_t type = 1; type < WIRE_TYPES; type++) {
        size_t bytes = wire_body_bytes(type);
        memset(frame, 0, sizeof frame);
        const char *tail = type == WIRE_WELCOME ? yaml : text;
        memcpy(frame + bytes, tail, strlen(tail));
        if (type == WIRE_WELCOME) {
            wire_welcome_t *w = (wire_welcome_t *)(void *)frame;
            w->plan = (plan_t){.n_train = 40,
                               .n_val = 10,
                               .ranks = 2,
                               .batch = 4,
                               .val_batch = 4,
                               .imgsz = 64,
                               .epochs = 3,
                               .val_every_epoch = 1};
            w->yaml_bytes = sizeof yaml - 1;
        } else if (type == WIRE_SNAPSHOT) {
            wire_snapshot_t *s = (wire_snapshot_t *)(void *)frame;
            s->length = 4096;
            snprintf(s->path, sizeof s->path, "weights/last.safetensors");
        } else if (type == WIRE_COMMAND) {
            wire_command_t *c = (wire_command_t *)(void *)frame;
            c->command = WIRE_CMD_STATUS;
            memcpy(c->token, token, sizeof token);
        } else if (type == WIRE_HELLO) {
            wire_hello_t *h = (wire_hello_t *)(void *)frame;
            memcpy(h->token, token, sizeof token);
            snprintf(h->build, sizeof h->build, "%s", wire_build());
            h->kind = BOARD_LOADER;
            h->index = 1;
        } else if (type == WIRE_LOG) {
            snprintf(((wire_log_t *)(void *)frame)->process, 48, "loader-0");
        }
        wire_begin(frame, (wire_type_t)type, bytes + strlen(tail));
        if (wire_check(frame, bytes + strlen(tail)) == 0) {
            give(user, wire_type_name(type), frame, bytes + strlen(tail));
            continue;
        }
        wire_begin(frame, (wire_type_t)type, bytes);
        give(user, wire_type_name(type), frame, bytes);
    }
}
