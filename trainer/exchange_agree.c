/* Do all ranks mean the same training? Compared before anything is added up: sums of different things
 * would be numbers like any others. */
#include "trainer/exchange_agree.h"

#include "shm/err.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef enum {
    AGREE_MODEL = 0,
    AGREE_LAYOUT,
    AGREE_BUCKETS,
    AGREE_RANKS,
    AGREE_BATCH,
    AGREE_IMGSZ,
    AGREE_FORMAT,
    AGREE_SYNC_BN,
    AGREE_NCCL,
    AGREE_FIELDS
} agree_t;

static const struct {
    const char *name;
    int number; /* a value to show; else a hash, of which only the difference counts */
} fields[AGREE_FIELDS] = {
    [AGREE_MODEL] = {"the model", 0},
    [AGREE_LAYOUT] = {"its parameters", 0},
    [AGREE_BUCKETS] = {"the buckets of its gradients", 0},
    [AGREE_RANKS] = {"the number of ranks", 1},
    [AGREE_BATCH] = {"batch", 1},
    [AGREE_IMGSZ] = {"imgsz", 1},
    [AGREE_FORMAT] = {"amp", 1},
    [AGREE_SYNC_BN] = {"sync_bn", 1},
    [AGREE_NCCL] = {"the version of NCCL", 1},
};

/* FNV-1a, 64 bits: public domain constants of Fowler, Noll and Vo. */
static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 1099511628211ull;
    return h;
}

static uint64_t hash_layout(const graph_t *g)
{
    uint64_t h = 14695981039346656037ull;
    for (int32_t i = 0; i < graph_params(g); i++) {
        const graph_param_t *p = graph_param(g, i);
        const uint64_t words[3] = {p->place, p->first, p->count};
        h = hash(hash(h, p->name, strlen(p->name)), words, sizeof words);
    }
    return h;
}

static uint64_t hash_buckets(const struct exchange *x)
{
    uint64_t h = 14695981039346656037ull;
    for (int32_t i = 0; i < x->buckets; i++) {
        const uint64_t words[3] = {x->bucket[i].first, x->bucket[i].count,
                                   (uint64_t)(int64_t)x->bucket[i].ready};
        h = hash(h, words, sizeof words);
    }
    return h;
}

/* Of the library that this process has loaded; the trainer itself is built without its header. */
static uint64_t nccl_version(void)
{
    int version = 0;
    int (*ask)(int *) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "ncclGetVersion");
    memcpy(&ask, &found, sizeof ask);
    return ask && ask(&version) == 0 ? (uint64_t)version : 0;
}

static void collect(const struct exchange *x, uint64_t v[AGREE_FIELDS])
{
    const trainer_t *t = x->t;
    const int32_t nc = graph_classes(t->graph);
    const char *name = graph_name(t->graph);
    v[AGREE_MODEL] = hash(hash(14695981039346656037ull, name, strlen(name)), &nc, sizeof nc);
    v[AGREE_LAYOUT] = hash_layout(t->graph);
    v[AGREE_BUCKETS] = hash_buckets(x);
    v[AGREE_RANKS] = t->ranks;
    v[AGREE_BATCH] = t->plan->batch;
    v[AGREE_IMGSZ] = t->plan->imgsz;
    v[AGREE_FORMAT] = t->train_plan.input.dtype;
    v[AGREE_SYNC_BN] = (uint64_t)(t->o->sync_bn != 0);
    v[AGREE_NCCL] = t->ops->async ? nccl_version() : 0;
}

/* "batch (8, there 16), imgsz": own and first are NULL where only the names are known. */
static void put_fields(unsigned mask, const uint64_t *own, const uint64_t *first, char *text,
                       size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < AGREE_FIELDS; i++) {
        if (!(mask & 1u << i) || used + 1 >= bytes)
            continue;
        int n = own && fields[i].number
                    ? snprintf(text + used, bytes - used, "%s%s (%" PRIu64 ", there %" PRIu64 ")",
                               used ? ", " : "", fields[i].name, own[i], first[i])
                    : snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", fields[i].name);
        used += n > 0 ? (size_t)n : 0;
    }
}

int exchange_agree(struct exchange *x)
{
    trainer_t *t = x->t;
    uint64_t own[AGREE_FIELDS], first[AGREE_FIELDS];
    double masks[WIRE_RANKS] = {0};
    char what[512];
    unsigned differs = 0;
    collect(x, own);
    memcpy(first, own, sizeof first);
    int rc = collective_broadcast(t->coll, first, sizeof first, 0);
    for (int i = 0; i < AGREE_FIELDS; i++)
        differs |= own[i] != first[i] ? 1u << i : 0;
    masks[t->rank] = differs;
    if (rc == 0)
        rc = collective_sum(t->coll, masks, t->ranks);
    if (rc < 0)
        return rc;
    for (uint32_t r = 0; r < t->ranks; r++) {
        unsigned mask = (unsigned)masks[r];
        if (mask == 0)
            continue;
        /* A rank that differs itself knows the values. */
        int known = differs != 0;
        put_fields(known ? differs : mask, known ? own : NULL, first, what, sizeof what);
        return err_set(
            ERR_FAILED,
            "ranks disagree: rank %u differs from rank 0 in %s: all ranks must be of one "
            "run and one build",
            known ? t->rank : r, what);
    }
    return 0;
}
