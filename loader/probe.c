#include "loader/probe.h"

#include "control/philox.h"
#include "shm/futex.h"

#include <string.h>

/* Files of an earlier trial that never answered still belong to the kernel. */
static int probe_hangs(const probe_t *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (reader_state(&p->files[i]) == READER_OPENING ||
            reader_state(&p->files[i]) == READER_READING)
            return 1;
    return 0;
}

/* Files that came after their trial had been judged without them. */
static void probe_forget(probe_t *p)
{
    for (uint32_t i = 0; i < PROBE_FILES; i++)
        if (reader_state(&p->files[i]) == READER_DONE)
            reader_forget(&p->files[i]);
}

static int probe_begin(probe_t *p, reader_t *reader, const catalog_t *catalog,
                       catalog_split_t split)
{
    uint32_t n = catalog_count(catalog, split);
    probe_forget(p);
    p->split = split;
    p->n = 0;
    p->at_ns = clock_ns();
    p->under_way = 1;
    /* Which ones is of no consequence for any cell: the clock is as good a key as another. */
    philox_t draw = philox_stream(p->at_ns, p->draws++, 0, PHILOX_SAMPLE);
    for (uint32_t i = 0; i < PROBE_FILES; i++) {
        const catalog_sample_t *s = catalog_sample(catalog, split, philox_below(&draw, n));
        uint64_t bytes = s->file_bytes < PROBE_BYTES ? s->file_bytes : PROBE_BYTES;
        int rc = reader_submit(reader, &p->files[i], catalog_path(catalog, s), bytes);
        if (rc < 0)
            return rc;
        p->n++;
    }
    return 0;
}

static void probe_judge(probe_t *p)
{
    p->probed = (uint16_t)p->n;
    p->unread = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        reader_file_t *f = &p->files[i];
        if (reader_state(f) != READER_DONE) {
            p->unread++;
            continue;
        }
        /* Only the beginning was asked for: its length is no matter here. */
        p->unread += f->error != 0;
        reader_forget(f);
    }
    p->under_way = 0;
    p->at_ns = clock_ns();
}

int probe_ask(probe_t *p, reader_t *reader, const catalog_t *catalog, catalog_split_t split)
{
    uint64_t now = clock_ns();
    if (catalog_count(catalog, split) < PROBE_LEAST) {
        p->probed = p->unread = 0;
        return 1;
    }
    if (p->under_way) {
        if (probe_hangs(p) && now - p->at_ns < PROBE_PATIENCE_MS * 1000000ull)
            return 0;
        probe_judge(p);
    }
    int fresh = p->at_ns && p->at_ns + PROBE_FRESH_MS * 1000000ull > now && p->split == split;
    /* While some hang there is no better verdict to be had. */
    if (fresh || probe_hangs(p))
        return 1;
    int rc = probe_begin(p, reader, catalog, split);
    return rc < 0 ? rc : 0;
}

void probe_fini(probe_t *p)
{
    probe_forget(p);
    for (uint32_t i = 0; i < PROBE_FILES; i++)
        reader_file_fini(&p->files[i]);
    memset(p, 0, sizeof *p);
}
