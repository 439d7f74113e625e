#include "control/wire.h"

#include "shm/board.h"
#include "shm/err.h"
#include "shm/ring.h"

#include <stdio.h>
#include <string.h>

/* A layout change must be met with a new WIRE_VERSION: both ends compile these sizes in. */
_Static_assert(sizeof(wire_header_t) == 16, "header");
_Static_assert(sizeof(plan_t) == 64, "plan");
_Static_assert(sizeof(wire_hello_t) == 128, "hello");
_Static_assert(sizeof(wire_welcome_t) == 4488, "welcome");
_Static_assert(sizeof(wire_epoch_t) == 72, "epoch");
_Static_assert(sizeof(wire_epoch_ack_t) == 32, "epoch-ack");
_Static_assert(sizeof(wire_progress_t) == 88, "progress");
_Static_assert(sizeof(wire_epoch_end_t) == 128, "epoch-end");
_Static_assert(sizeof(wire_snapshot_t) == 568, "snapshot");
_Static_assert(sizeof(wire_saved_t) == 800, "saved");
_Static_assert(sizeof(wire_bad_sample_t) == 560, "bad-sample");
_Static_assert(sizeof(wire_ledger_t) == 48, "ledger");
_Static_assert(sizeof(wire_checkpoint_t) == 536, "checkpoint");
_Static_assert(sizeof(wire_stop_t) == 24, "stop");
_Static_assert(sizeof(wire_bye_t) == 544, "bye");
_Static_assert(sizeof(wire_command_t) == 88, "command");
_Static_assert(sizeof(wire_run_info_t) == 4168, "run-info");
_Static_assert(sizeof(wire_log_t) == 64, "log");
_Static_assert(sizeof(wire_end_t) == 536, "end");
_Static_assert(sizeof(wire_warned_t) == 544, "warned");
_Static_assert(sizeof(wire_reply_t) == 24, "reply");

_Static_assert(sizeof(wire_found_t) == 32 && sizeof(wire_box_t) == 24, "found");
_Static_assert(sizeof(wire_measured_t) == 48 && sizeof(wire_class_t) == 40, "measured");
_Static_assert(sizeof(wire_confused_t) == 12, "confused");
_Static_assert(sizeof(wire_part_t) == 280, "part");

/* One row a type: its fixed body, whether text follows, and where its fixed text fields lie. */
typedef struct {
    const char *name;
    uint32_t body;
    int text;
    struct {
        uint32_t at, bytes;
    } field[2];
} wire_row_t;

#define FIELD(type, member)                                                                        \
    {                                                                                              \
        offsetof(type, member), sizeof(((type *)0)->member)                                        \
    }

static const wire_row_t wire_rows[WIRE_TYPES] = {
    [WIRE_HELLO] = {"hello",
                    sizeof(wire_hello_t),
                    0,
                    {FIELD(wire_hello_t, token), FIELD(wire_hello_t, build)}},
    [WIRE_WELCOME] = {"welcome", sizeof(wire_welcome_t), 1, {FIELD(wire_welcome_t, run_dir)}},
    [WIRE_EPOCH] = {"epoch", sizeof(wire_epoch_t), 0, {{0, 0}}},
    [WIRE_EPOCH_ACK] = {"epoch-ack", sizeof(wire_epoch_ack_t), 0, {{0, 0}}},
    [WIRE_READY] = {"ready", sizeof(wire_plain_t), 1, {{0, 0}}},
    [WIRE_PROGRESS] = {"progress", sizeof(wire_progress_t), 0, {{0, 0}}},
    [WIRE_EPOCH_END] = {"epoch-end", sizeof(wire_epoch_end_t), 0, {{0, 0}}},
    [WIRE_SNAPSHOT] = {"snapshot",
                       sizeof(wire_snapshot_t),
                       0,
                       {FIELD(wire_snapshot_t, path), FIELD(wire_snapshot_t, copy_to)}},
    [WIRE_SAVED] = {"saved",
                    sizeof(wire_saved_t),
                    0,
                    {FIELD(wire_saved_t, path), FIELD(wire_saved_t, text)}},
    [WIRE_BAD_SAMPLE] = {"bad-sample",
                         sizeof(wire_bad_sample_t),
                         0,
                         {FIELD(wire_bad_sample_t, reason)}},
    [WIRE_LEDGER] = {"ledger", sizeof(wire_ledger_t), 0, {{0, 0}}},
    [WIRE_EVENT] = {"event", sizeof(wire_plain_t), 1, {{0, 0}}},
    [WIRE_CHECKPOINT] = {"checkpoint",
                         sizeof(wire_checkpoint_t),
                         0,
                         {FIELD(wire_checkpoint_t, text)}},
    [WIRE_STOP] = {"stop", sizeof(wire_stop_t), 0, {{0, 0}}},
    [WIRE_BYE] = {"bye", sizeof(wire_bye_t), 0, {FIELD(wire_bye_t, text)}},
    [WIRE_COMMAND] = {"command", sizeof(wire_command_t), 0, {FIELD(wire_command_t, token)}},
    [WIRE_REPLY] = {"reply", sizeof(wire_reply_t), 1, {{0, 0}}},
    [WIRE_CSV] = {"csv", sizeof(wire_plain_t), 1, {{0, 0}}},
    [WIRE_RUN_INFO] = {"run-info", sizeof(wire_run_info_t), 1, {FIELD(wire_run_info_t, run_dir)}},
    [WIRE_ARGS] = {"args", sizeof(wire_plain_t), 1, {{0, 0}}},
    [WIRE_LOG] = {"log", sizeof(wire_log_t), 1, {FIELD(wire_log_t, process)}},
    [WIRE_END] = {"end", sizeof(wire_end_t), 0, {FIELD(wire_end_t, text)}},
    [WIRE_FOUND] = {"found", sizeof(wire_found_t), 1, {{0, 0}}},
    [WIRE_MEASURED] = {"measured", sizeof(wire_measured_t), 1, {{0, 0}}},
    [WIRE_PART] = {"part", sizeof(wire_part_t), 1, {FIELD(wire_part_t, path)}},
    [WIRE_WARNED] = {"warned", sizeof(wire_warned_t), 0, {FIELD(wire_warned_t, text)}},
};

void wire_begin(void *frame, wire_type_t type, size_t bytes)
{
    wire_header_t h = {.magic = WIRE_MAGIC,
                       .version = WIRE_VERSION,
                       .type = (uint16_t)type,
                       .bytes = (uint32_t)bytes};
    memcpy(frame, &h, sizeof h);
}

size_t wire_body_bytes(uint32_t type)
{
    return type < WIRE_TYPES ? wire_rows[type].body : 0;
}

const char *wire_type_name(uint32_t type)
{
    return type < WIRE_TYPES && wire_rows[type].name ? wire_rows[type].name : "unknown";
}

static int check_length(const wire_header_t *h, const void *frame, size_t bytes)
{
    const wire_row_t *row = &wire_rows[h->type];
    if (h->bytes != bytes || bytes > WIRE_MAX_BYTES)
        return err_set(ERR_FAILED, "%s frame of %zu bytes says that it has %u", row->name, bytes,
                       h->bytes);
    if (row->text ? bytes < row->body : bytes != row->body)
        return err_set(ERR_FAILED, "%s frame of %zu bytes, expected %s%u", row->name, bytes,
                       row->text ? "at least " : "", row->body);
    if (h->type == WIRE_WELCOME) {
        uint32_t yaml;
        memcpy(&yaml, (const char *)frame + offsetof(wire_welcome_t, yaml_bytes), sizeof yaml);
        if (yaml != bytes - row->body)
            return err_set(ERR_FAILED, "welcome frame with %zu bytes of YAML says that it has %u",
                           bytes - row->body, yaml);
    }
    return 0;
}

int wire_check(void *frame, size_t bytes)
{
    wire_header_t h;
    if (bytes < sizeof h)
        return err_set(ERR_FAILED, "frame of %zu bytes has no header", bytes);
    memcpy(&h, frame, sizeof h);
    if (h.magic != WIRE_MAGIC)
        return err_set(ERR_FAILED, "frame with magic %08x instead of %08x", h.magic, WIRE_MAGIC);
    if (h.version != WIRE_VERSION)
        return err_set(ERR_FAILED, "frame of protocol version %u instead of %d", h.version,
                       WIRE_VERSION);
    if (wire_body_bytes(h.type) == 0)
        return err_set(ERR_FAILED, "frame of unknown type %u", h.type);
    int rc = check_length(&h, frame, bytes);
    if (rc < 0)
        return rc;
    for (int i = 0; i < 2; i++) {
        const wire_row_t *row = &wire_rows[h.type];
        if (row->field[i].bytes)
            ((char *)frame)[row->field[i].at + row->field[i].bytes - 1] = '\0';
    }
    return 0;
}

const char *wire_text(const void *frame, size_t *bytes)
{
    wire_header_t h;
    memcpy(&h, frame, sizeof h);
    size_t body = wire_body_bytes(h.type);
    if (bytes)
        *bytes = h.bytes > body ? h.bytes - body : 0;
    return (const char *)frame + body;
}

const char *wire_build(void)
{
    static char text[63];
    if (!text[0])
        snprintf(text, sizeof text, "sluice 0.1 wire %d layout %zu.%zu.%zu", WIRE_VERSION,
                 sizeof(wire_welcome_t), sizeof(board_page_t), sizeof(ring_cell_meta_t));
    return text;
}

uint64_t wire_mix(uint64_t hash, uint64_t value)
{
    /* The finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
     * generators", 2014) over the sum: every bit of either argument reaches every bit of the
     * result. */
    uint64_t z = hash + value + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t wire_checksum(const void *data, uint64_t bytes)
{
    /* Four lanes keep four multiplications under way: some gigabytes a second, for images of 300
     * MB. */
    const unsigned char *p = data;
    uint64_t lane[4] = {1, 2, 3, 4}, left = bytes;
    for (; left >= 32; left -= 32, p += 32) {
        for (int i = 0; i < 4; i++) {
            uint64_t v;
            memcpy(&v, p + 8 * i, sizeof v);
            lane[i] = (lane[i] ^ v) * 0x9E3779B97F4A7C15u;
            lane[i] ^= lane[i] >> 29;
        }
    }
    unsigned char tail[32] = {0};
    memcpy(tail, p, left);
    uint64_t hash = wire_mix(0, bytes);
    for (int i = 0; i < 4; i++) {
        uint64_t v;
        memcpy(&v, tail + 8 * i, sizeof v);
        hash = wire_mix(wire_mix(hash, lane[i]), v);
    }
    return hash;
}

uint64_t wire_agreement(const plan_t *plan, uint32_t epoch, uint64_t list_digest)
{
    uint64_t h = wire_mix(0, epoch);
    h = wire_mix(h, plan->seed);
    h = wire_mix(h, list_digest);
    h = wire_mix(h, plan->ranks);
    h = wire_mix(h, plan->batch);
    h = wire_mix(h, plan->imgsz);
    h = wire_mix(wire_mix(h, plan->first_epoch), plan->first_position);
    return wire_mix(h, (uint64_t)plan_mosaic(plan, epoch));
}
