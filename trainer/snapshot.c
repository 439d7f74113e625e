/* DESIGN
 *
 *   offset 0          snapshot_head_t of slot 0, then of slot 1, a page each
 *   2 pages           bytes of slot 0, then of slot 1
 *
 * A slot's state (in this process) and its sequence (in the memory, for whoever comes after a
 * death):
 *
 *   FREE    --snapshot_begin-->      FILLING  sequence 0: not valid
 *   FILLING --snapshot_commit-->     PENDING  sequence n, stored last with release
 *   PENDING --last snapshot_saved--> FREE     sequence stays: whole until the next begin
 */
#include "trainer/snapshot.h"

#include "shm/arena.h"
#include "shm/err.h"
#include "shm/killpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SNAPSHOT_MAGIC 0x31504e53434c53ull /* "SLCSNP1" */
enum { SNAPSHOT_PAGE = 4096, SNAPSHOT_ALIGN = 64 };

typedef struct {
    uint64_t offset, length, checksum; /* as in wire_snapshot_t */
    char path[256], copy_to[256];
} snapshot_file_t;

typedef struct {
    uint64_t magic;
    /* 0 while the slot is being filled. Stored with release when it is whole; partner: the acquire
     * of a process that looks for the newest whole snapshot. */
    _Atomic uint64_t sequence;
    uint32_t epoch, files;
    snapshot_file_t file[SNAPSHOT_FILES];
} snapshot_head_t;
_Static_assert(sizeof(snapshot_head_t) <= SNAPSHOT_PAGE, "a slot's header has one page");

typedef enum { SLOT_FREE = 0, SLOT_FILLING, SLOT_PENDING } slot_state_t;

struct snapshot {
    uint8_t *base;
    uint64_t bytes, slot_bytes, sequence;
    slot_state_t state[SNAPSHOT_SLOTS];
    uint32_t pending[SNAPSHOT_SLOTS]; /* bit i: file i is unanswered */
    uint64_t used;                    /* of the slot being filled */
    int filling;
    char failure[WIRE_TEXT];
};

static snapshot_head_t *head_of(const snapshot_t *s, int slot)
{
    return (snapshot_head_t *)(void *)(s->base + (size_t)slot * SNAPSHOT_PAGE);
}

static uint64_t slot_at(const snapshot_t *s, int slot)
{
    return SNAPSHOT_SLOTS * SNAPSHOT_PAGE + (uint64_t)slot * s->slot_bytes;
}

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

uint64_t snapshot_bytes(uint64_t slot_bytes)
{
    return SNAPSHOT_SLOTS * (SNAPSHOT_PAGE + round_up(slot_bytes, SNAPSHOT_PAGE));
}

/* The memory arrives empty, or from an earlier trainer of this run with the same sizes. */
static int size_memory(int fd, uint64_t bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(ERR_ENV, "snapshot memory, descriptor %d", fd);
    if ((uint64_t)st.st_size >= bytes)
        return 0;
    if (ftruncate(fd, (off_t)bytes) < 0)
        return err_sys(ERR_ENV, "sizing %.0f MB of snapshot memory", (double)bytes / 1e6);
    while (fallocate(fd, 0, 0, (off_t)bytes) < 0)
        if (errno != EINTR)
            return err_sys(ERR_ENV, "reserving %.0f MB of snapshot memory", (double)bytes / 1e6);
    return 0;
}

int snapshot_open(int fd, uint64_t slot_bytes, snapshot_t **s)
{
    void *base;
    snapshot_t *n = calloc(1, sizeof *n);
    if (!n)
        return err_set(ERR_ENV, "snapshot: out of memory");
    int rc = size_memory(fd, snapshot_bytes(slot_bytes));
    if (rc == 0)
        rc = arena_map(fd, 1, &base, &n->bytes);
    if (rc < 0) {
        free(n);
        return rc;
    }
    n->base = base;
    n->slot_bytes = round_up(slot_bytes, SNAPSHOT_PAGE);
    n->filling = -1;
    for (int i = 0; i < SNAPSHOT_SLOTS; i++) {
        snapshot_head_t *h = head_of(n, i);
        uint64_t sequence = h->magic == SNAPSHOT_MAGIC
                                ? atomic_load_explicit(&h->sequence, memory_order_acquire)
                                : 0;
        n->sequence = sequence > n->sequence ? sequence : n->sequence;
    }
    *s = n;
    return 0;
}

void snapshot_close(snapshot_t **s)
{
    if (!*s)
        return;
    arena_unmap((*s)->base, (*s)->bytes);
    free(*s);
    *s = NULL;
}

static int free_slot(const snapshot_t *s)
{
    for (int i = 0; i < SNAPSHOT_SLOTS; i++)
        if (s->state[i] == SLOT_FREE)
            return i;
    return -1;
}

int snapshot_has_room(const snapshot_t *s)
{
    return free_slot(s) >= 0;
}

int snapshot_begin(snapshot_t *s, uint32_t epoch)
{
    int slot = free_slot(s);
    if (slot < 0 || s->filling >= 0)
        return err_set(ERR_FAILED, "snapshot of epoch %u: no slot is free", epoch + 1);
    snapshot_head_t *h = head_of(s, slot);
    /* Not valid from here on. The fence keeps the bytes that follow behind it. */
    atomic_store_explicit(&h->sequence, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    h->magic = SNAPSHOT_MAGIC;
    h->epoch = epoch;
    h->files = 0;
    s->state[slot] = SLOT_FILLING;
    s->filling = slot;
    s->used = 0;
    KILL_POINT(CHECKPOINT_BEGUN);
    return 0;
}

static int name_file(snapshot_file_t *f, const char *path, const char *copy_to)
{
    int a = snprintf(f->path, sizeof f->path, "%s", path);
    int b = snprintf(f->copy_to, sizeof f->copy_to, "%s", copy_to ? copy_to : "");
    if (a < 0 || (size_t)a >= sizeof f->path || b < 0 || (size_t)b >= sizeof f->copy_to)
        return err_set(ERR_FAILED, "snapshot: the name %s is too long", path);
    return 0;
}

/* The header's next entry, or NULL when all are taken. */
static snapshot_file_t *next_file(snapshot_t *s)
{
    if (s->filling < 0 || head_of(s, s->filling)->files == SNAPSHOT_FILES)
        return NULL;
    return &head_of(s, s->filling)->file[head_of(s, s->filling)->files];
}

int snapshot_add(snapshot_t *s, const safetensors_writer_t *file, const char *path,
                 const char *copy_to)
{
    snapshot_file_t *f = next_file(s);
    uint64_t bytes = safetensors_writer_bytes(file);
    if (!f || bytes > s->slot_bytes - s->used)
        return err_set(ERR_FAILED, "snapshot: %s of %.1f MB does not fit its slot of %.1f MB", path,
                       (double)bytes / 1e6, (double)s->slot_bytes / 1e6);
    int rc = name_file(f, path, copy_to);
    f->offset = slot_at(s, s->filling) + s->used;
    f->length = bytes;
    if (rc == 0)
        rc = safetensors_writer_image(file, s->base + f->offset, bytes);
    if (rc < 0)
        return err_add(rc, "snapshot of %s", path);
    f->checksum = wire_checksum(s->base + f->offset, bytes);
    s->used = round_up(s->used + bytes, SNAPSHOT_ALIGN);
    if (s->used > s->slot_bytes)
        s->used = s->slot_bytes;
    head_of(s, s->filling)->files++;
    return 0;
}

int snapshot_again(snapshot_t *s, const char *path)
{
    snapshot_file_t *f = next_file(s);
    if (!f || head_of(s, s->filling)->files == 0)
        return err_set(ERR_FAILED, "snapshot: no file to name %s too", path);
    f->offset = f[-1].offset;
    f->length = f[-1].length;
    f->checksum = f[-1].checksum;
    int rc = name_file(f, path, NULL);
    if (rc == 0)
        head_of(s, s->filling)->files++;
    return rc;
}

static void answer(snapshot_t *s, int slot, uint32_t file, int32_t status, const char *path,
                   const char *text)
{
    s->pending[slot] &= ~(1u << file);
    if (s->pending[slot] == 0 && s->state[slot] == SLOT_PENDING)
        s->state[slot] = SLOT_FREE;
    if (status < 0)
        snprintf(s->failure, sizeof s->failure, "%.200s was not written: %.280s", path, text);
}

int snapshot_commit(snapshot_t *s, int (*send)(void *user, const wire_snapshot_t *m), void *user)
{
    int slot = s->filling, rc = 0;
    if (slot < 0)
        return err_set(ERR_FAILED, "snapshot: nothing was begun");
    snapshot_head_t *h = head_of(s, slot);
    /* Release: the files and the header before the number that makes them valid. */
    atomic_store_explicit(&h->sequence, ++s->sequence, memory_order_release);
    s->filling = -1;
    s->state[slot] = SLOT_PENDING;
    s->pending[slot] = (1u << h->files) - 1;
    s->failure[0] = '\0'; /* this snapshot replaces what was not written before */
    KILL_POINT(CHECKPOINT_COMMITTED);
    for (uint32_t i = 0; i < h->files; i++) {
        const snapshot_file_t *f = &h->file[i];
        wire_snapshot_t m;
        memset(&m, 0, sizeof m);
        wire_begin(&m, WIRE_SNAPSHOT, sizeof m);
        m.epoch = h->epoch;
        m.slot = (uint32_t)slot;
        m.number = (uint32_t)s->sequence;
        m.offset = f->offset;
        m.length = f->length;
        m.checksum = f->checksum;
        memcpy(m.path, f->path, sizeof m.path);
        memcpy(m.copy_to, f->copy_to, sizeof m.copy_to);
        int sent = send(user, &m);
        if (sent < 0) {
            answer(s, slot, i, sent, f->path, err_text());
            rc = sent;
        }
    }
    KILL_POINT(CHECKPOINT_SENT);
    return rc;
}

int snapshot_find(const snapshot_t *s, const char *path, const void **data, uint64_t *bytes)
{
    uint64_t newest = 0;
    for (int slot = 0; slot < SNAPSHOT_SLOTS; slot++) {
        const snapshot_head_t *h = head_of(s, slot);
        uint64_t sequence = atomic_load_explicit(&h->sequence, memory_order_acquire);
        if (h->magic != SNAPSHOT_MAGIC || sequence <= newest)
            continue;
        for (uint32_t i = 0; i < h->files; i++)
            if (strcmp(h->file[i].path, path) == 0) {
                *data = s->base + h->file[i].offset;
                *bytes = h->file[i].length;
                newest = sequence;
            }
    }
    return newest ? 0 : err_set(ERR_FAILED, "snapshot memory holds no %s", path);
}

void snapshot_saved(snapshot_t *s, const wire_saved_t *m)
{
    if (m->slot >= SNAPSHOT_SLOTS)
        return;
    const snapshot_head_t *h = head_of(s, (int)m->slot);
    for (uint32_t i = 0; i < h->files; i++)
        if ((s->pending[m->slot] >> i & 1) && strcmp(h->file[i].path, m->path) == 0) {
            answer(s, (int)m->slot, i, m->status, m->path, m->text);
            return;
        }
}

uint32_t snapshot_pending(const snapshot_t *s)
{
    uint32_t n = 0;
    for (int i = 0; i < SNAPSHOT_SLOTS; i++)
        n += (uint32_t)__builtin_popcount(s->pending[i]);
    return n;
}

const char *snapshot_failure(const snapshot_t *s)
{
    return s->failure[0] ? s->failure : NULL;
}
