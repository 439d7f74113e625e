#include "tools/scribe.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "shm/killpoint.h"
#include "tools/listfile.h"
#include "tools/statefile.h"
#include "tools/trim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCRIBE_MENDED_NS 30000000000ull /* between two words that a disk can be written again */

/* facts/yolo.md 6.7. */
static const char csv_header[] = "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/"
                                 "precision(B),metrics/recall(B),"
                                 "metrics/mAP50(B),metrics/mAP50-95(B),val/box_loss,val/"
                                 "cls_loss,val/dfl_loss,lr/pg0,lr/pg1,lr/pg2\n";

static void tell_state(const statefile_t *state, wire_run_info_t *info)
{
    info->resumed = 1;
    info->next_epoch = state->next_epoch;
    info->finished = (uint32_t)state->finished;
    info->ledger = state->ledger;
    info->position = state->position;
    info->list_digest = state->list_digest;
    info->ranks = state->ranks;
    info->batch = state->batch;
    info->threads = state->threads;
    info->pending = state->pending;
}

static int resume_state(scribe_t *s, wire_run_info_t *info, char **yaml, size_t *yaml_bytes)
{
    static const char name[] = WIRE_STATE_PATH;
    statefile_t state;
    int fd = openat(s->dir.fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set(ERR_CONFIG,
                       "%s has no %s: the run stopped before its first checkpoint; start it anew",
                       s->dir.path, name);
    int rc = statefile_read(fd, name, &state);
    if (rc == 0)
        rc = statefile_ledger(fd, name, &state, &s->ledger);
    close(fd);
    if (rc < 0)
        return err_add(rc, "resume=%s", s->dir.path);
    s->resumed = 1;
    tell_state(&state, info);
    rc = rundir_read(&s->dir, "args.yaml", SCRIBE_YAML_MOST, yaml, yaml_bytes);
    if (rc < 0 || state.finished)
        return rc;
    /* An epoch that is done again, or goes on, gets its row then. */
    rc = trim_csv(&s->dir, state.next_epoch);
    return rc < 0 ? rc : trim_events(&s->dir, state.next_epoch);
}

int scribe_open(scribe_t *s, const options_t *o, wire_run_info_t *info, char **yaml,
                size_t *yaml_bytes)
{
    int rc;
    memset(s, 0, sizeof *s);
    memset(info, 0, sizeof *info);
    s->trains = o->mode == OPT_MODE_TRAIN;
    partfiles_init(&s->parts);
    s->events = s->csv = s->snapshot_fd = s->list_fd = s->dir.fd = s->dir.lock = -1;
    *yaml = NULL;
    *yaml_bytes = 0;
    if (o->resume[0]) {
        CHECK_GOTO(rundir_resume(o->resume, &s->dir), rc, fail);
        CHECK_GOTO(resume_state(s, info, yaml, yaml_bytes), rc, fail);
    } else {
        CHECK_GOTO(rundir_make(o, &s->dir), rc, fail);
    }
    if (!info->finished)
        CHECK_GOTO(rundir_append(&s->dir, "events.jsonl", &s->events), rc, fail);
    memcpy(info->run_dir, s->dir.path, sizeof info->run_dir);
    info->free_bytes = rundir_free_bytes(&s->dir);
    return 0;
fail:
    free(*yaml);
    *yaml = NULL;
    scribe_close(s);
    return rc;
}

void scribe_close(scribe_t *s)
{
    partfiles_fini(&s->parts);
    free(s->ledger);
    s->ledger = NULL;
    if (s->events >= 0)
        close(s->events);
    if (s->csv >= 0)
        close(s->csv);
    s->events = s->csv = -1;
    if (s->begun)
        rundir_close(&s->dir);
    else
        rundir_discard(&s->dir);
}

/* One write of whole lines. A disk that is full loses lines, not the run; that is said once. */
static int append(scribe_t *s, int fd, const char *name, const char *text, size_t bytes)
{
    struct stat st;
    if (fd < 0)
        return 0; /* a finished run is left as it is */
    off_t end = fstat(fd, &st) == 0 ? st.st_size : -1;
    ssize_t n;
    do {
        n = write(fd, text, bytes);
    } while (n < 0 && errno == EINTR);
    if (n == (ssize_t)bytes) {
        /* A disk with room for a short line and not for a long one is full and not full by turns, and
         * each word about it is a line more: it is said once in a while. */
        uint64_t now = clock_ns();
        if (s->lost == 0 || (s->mended_ns && now - s->mended_ns < SCRIBE_MENDED_NS))
            return 0;
        log_line(LOG_WARN, "%s can be written again; %llu lines were lost", s->dir.path,
                 (unsigned long long)s->lost);
        s->lost = 0;
        s->mended_ns = now;
        return 0;
    }
    if (n >= 0)
        errno = ENOSPC;
    int full = errno == ENOSPC || errno == EDQUOT;
    int rc = err_sys(ERR_ENV, "cannot append to %s/%s", s->dir.path, name);
    if (n > 0 && end >= 0 && ftruncate(fd, end) != 0)
        err_add(rc, "half a line stays");
    if (s->lost++ == 0 && full)
        log_line(LOG_WARN,
                 "%s, %.1f MB are free: free some; until then lines are left out, and the run "
                 "goes on",
                 err_text(), (double)rundir_free_bytes(&s->dir) / 1e6);
    else if (s->lost == 1)
        log_line(LOG_WARN, "%s; lines are left out, and the run goes on", err_text());
    return rc;
}

/* The line with a newline behind it, unless it has one. */
static int append_line(scribe_t *s, int fd, const char *name, const char *text, size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (text[bytes - 1] == '\n')
        return append(s, fd, name, text, bytes);
    char *line = malloc(bytes + 1);
    if (!line)
        return err_set(ERR_ENV, "no memory for a line of %zu bytes", bytes);
    memcpy(line, text, bytes);
    line[bytes] = '\n';
    int rc = append(s, fd, name, line, bytes + 1);
    free(line);
    return rc;
}

int scribe_event(scribe_t *s, const char *line, size_t bytes)
{
    /* A line of JSON has no newline inside: one would break every reader of the file. */
    if (memchr(line, '\n', bytes ? bytes - 1 : 0))
        return err_set(ERR_FAILED, "an event of %zu bytes has a newline in it", bytes);
    return append_line(s, s->events, "events.jsonl", line, bytes);
}

int scribe_csv(scribe_t *s, const char *row, size_t bytes)
{
    struct stat st;
    int rc = s->csv < 0 ? rundir_append(&s->dir, "results.csv", &s->csv) : 0;
    if (rc == 0 && fstat(s->csv, &st) == 0 && st.st_size == 0)
        rc = append(s, s->csv, "results.csv", csv_header, sizeof csv_header - 1);
    if (rc < 0)
        return rc;
    return append_line(s, s->csv, "results.csv", row, bytes);
}

static int valid_process(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return n > 0 && name[n] == '\0';
}

int scribe_log(scribe_t *s, const char *process, const char *lines, size_t bytes)
{
    char path[80];
    if (!valid_process(process))
        return err_set(ERR_FAILED, "'%s' is not a process's name", process);
    snprintf(path, sizeof path, "logs/%s.log", process);
    /* Opened for these lines alone: a run may have a thousand processes, and they rarely speak. */
    int fd, rc = rundir_append(&s->dir, path, &fd);
    if (rc < 0)
        return rc;
    rc = append_line(s, fd, path, lines, bytes);
    close(fd);
    return rc;
}

/* A new run in an old one's folder (exist_ok): its rows and what it could be resumed from are not
 * ours. Its weights stay until they are replaced, its events before ours. */
static void replace_run(const scribe_t *s)
{
    const char *const gone[] = {WIRE_STATE_PATH, "results.csv", listfile_name};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        if (unlinkat(s->dir.fd, gone[i], 0) == 0)
            log_line(LOG_INFO, "exist_ok: %s of an earlier run removed", gone[i]);
}

int scribe_args(scribe_t *s, const char *yaml, size_t bytes)
{
    if (!s->begun && !s->resumed && !s->dir.created && s->trains)
        replace_run(s);
    int rc = rundir_write(&s->dir, "args.yaml", yaml, bytes, NULL, NULL);
    s->begun |= rc == 0;
    return rc;
}

void scribe_list(scribe_t *s)
{
    if (s->has_list || s->list_fd < 0 || !s->trains)
        return;
    if (listfile_save(&s->dir, s->list_fd) < 0)
        log_line(LOG_WARN,
                 "%s; training goes on, but a resume will need every image and label as it is now",
                 err_text());
    else
        s->has_list = 1;
}

/* An image in snapshot memory, mapped read-only for as long as it is written. */
typedef struct {
    const unsigned char *data;
    uint64_t length, checksum;
    void *base;
    size_t mapped;
} image_t;

static int image_map(const scribe_t *s, const wire_snapshot_t *m, image_t *image)
{
    struct stat st;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), start = m->offset / page * page;
    if (s->snapshot_fd < 0 || fstat(s->snapshot_fd, &st) != 0)
        return err_set(ERR_FAILED, "there is no snapshot memory to read %s from", m->path);
    if (m->length == 0 || m->offset > (uint64_t)st.st_size ||
        m->length > (uint64_t)st.st_size - m->offset)
        return err_set(ERR_FAILED, "the image of %s lies outside the snapshot memory", m->path);
    image->mapped = (size_t)(m->offset - start + m->length);
    image->base = mmap(NULL, image->mapped, PROT_READ, MAP_SHARED, s->snapshot_fd, (off_t)start);
    if (image->base == MAP_FAILED)
        return err_sys(ERR_ENV, "cannot map the image of %s", m->path);
    image->data = (const unsigned char *)image->base + (m->offset - start);
    image->length = m->length;
    image->checksum = m->checksum;
    return 0;
}

/* After the write: what is on its way to the disk is what the trainer took the sum of. */
static int image_check(void *user)
{
    const image_t *image = user;
    KILL_POINT(CHECKPOINT_SYNCED);
    uint64_t sum = wire_checksum(image->data, image->length);
    if (sum == image->checksum)
        return 0;
    return err_set(ERR_FAILED,
                   "the image has checksum %016llx instead of %016llx: it changed while it "
                   "was written; it is not kept",
                   (unsigned long long)sum, (unsigned long long)image->checksum);
}

void scribe_snapshot(scribe_t *s, const wire_snapshot_t *m, wire_saved_t *saved)
{
    image_t image;
    memset(saved, 0, sizeof *saved);
    wire_begin(saved, WIRE_SAVED, sizeof *saved);
    saved->epoch = m->epoch;
    saved->slot = m->slot;
    saved->number = m->number;
    memcpy(saved->path, m->path, sizeof saved->path);
    if (s->page) {
        board_set_phase(s->page, BOARD_CHECKPOINT);
        board_progress(s->page, 0, m->length);
    }
    int rc = image_map(s, m, &image);
    if (rc == 0) {
        rc = rundir_write(&s->dir, m->path, image.data, image.length, image_check, &image);
        if (rc == 0 && m->copy_to[0])
            rc = rundir_copy(&s->dir, m->path, m->copy_to, image.data, image.length);
        munmap(image.base, image.mapped);
    }
    KILL_POINT(CHECKPOINT_NAMED);
    saved->status = rc;
    if (rc < 0) {
        snprintf(saved->text, sizeof saved->text, "%s", err_text());
        log_line(LOG_ERROR, "checkpoint of epoch %u: %s", m->epoch + 1, err_text());
    }
    if (s->page) {
        board_progress(s->page, m->length, m->length);
        board_set_phase(s->page, BOARD_IDLE);
    }
}
