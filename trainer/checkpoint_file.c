/* The pure half of checkpoint.h: file images from host memory, and back. */
#include "trainer/checkpoint.h"

#include "control/json.h"
#include "control/wire.h"
#include "shm/err.h"
#include "trainer/weights.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- metadata values ---- */

static int put_uint(safetensors_writer_t *w, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return safetensors_writer_metadata(w, key, text);
}

static int put_int(safetensors_writer_t *w, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return safetensors_writer_metadata(w, key, text);
}

/* 17 digits read back to the same double. */
static int put_double(safetensors_writer_t *w, const char *key, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return safetensors_writer_metadata(w, key, text);
}

static int get_text(const safetensors_t *f, const char *origin, const char *key, const char **text)
{
    *text = safetensors_metadata(f, key);
    return *text ? 0
                 : err_set(ERR_CONFIG, "%s has no \"%s\": it is not a state file of sluice", origin,
                           key);
}

/* Whether a number was read from all of text, up to end, and is one of those that are written: strto*
 * also take blanks in front, and the largest value for what is beyond it. */
static int check_number(const char *origin, const char *key, const char *text, const char *end,
                        int beyond)
{
    if (*end || end == text || beyond || isspace((unsigned char)text[0]) || text[0] == '+')
        return err_set(ERR_CONFIG, "%s: \"%s\" is '%s', not a number", origin, key, text);
    return 0;
}

static int get_int(const safetensors_t *f, const char *origin, const char *key, int64_t *value)
{
    const char *text;
    char *end;
    int rc = get_text(f, origin, key, &text);
    if (rc < 0)
        return rc;
    errno = 0;
    *value = strtoll(text, &end, 10);
    return check_number(origin, key, text, end, errno == ERANGE);
}

static int get_uint(const safetensors_t *f, const char *origin, const char *key, uint64_t *value)
{
    const char *text;
    char *end;
    int rc = get_text(f, origin, key, &text);
    if (rc < 0)
        return rc;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return check_number(origin, key, text, end, errno == ERANGE || text[0] == '-');
}

static int get_double(const safetensors_t *f, const char *origin, const char *key, double *value)
{
    const char *text;
    char *end;
    int rc = get_text(f, origin, key, &text);
    if (rc < 0)
        return rc;
    *value = strtod(text, &end);
    return check_number(origin, key, text, end, 0);
}

/* ---- the state file ---- */

static uint64_t layout_hash(const graph_t *g)
{
    const graph_sizes_t *sizes = graph_sizes(g);
    uint64_t h = wire_mix(wire_mix(0, sizes->weights), sizes->buffers);
    for (int32_t i = 0; i < graph_params(g); i++) {
        const graph_param_t *p = graph_param(g, i);
        h = wire_mix(h, wire_checksum(p->name, strlen(p->name)));
        for (int32_t d = 0; d < p->ndim; d++)
            h = wire_mix(h, (uint64_t)p->shape[d]);
        h = wire_mix(wire_mix(wire_mix(h, (uint64_t)p->place), (uint64_t)p->layout), p->first);
    }
    return h;
}

/* Adds floats to the file, and to *sum, which is over all of them in this order. */
static int put_region(safetensors_writer_t *w, const char *name, const void *data, uint64_t count,
                      uint64_t *sum)
{
    int64_t shape[1] = {(int64_t)count};
    if (!data)
        return 0;
    *sum = wire_mix(*sum, wire_checksum(data, count * sizeof(float)));
    return safetensors_writer_add(w, name, "F32", shape, 1, data, count * sizeof(float));
}

static int put_ledger(const checkpoint_state_t *s, safetensors_writer_t *w, uint64_t *sum)
{
    int64_t shape[2] = {s->ledger_count, CHECKPOINT_LEDGER};
    uint64_t bytes = (uint64_t)s->ledger_count * CHECKPOINT_LEDGER * sizeof(int64_t);
    if (bytes == 0)
        return 0;
    *sum = wire_mix(*sum, wire_checksum(s->ledger, bytes));
    return safetensors_writer_add(w, "ledger", "I64", shape, 2, s->ledger, bytes);
}

static int put_regions(const graph_t *g, const checkpoint_state_t *s, safetensors_writer_t *w)
{
    const graph_sizes_t *sizes = graph_sizes(g);
    /* The metadata too: a wrong digit there would lead to other batches. */
    uint64_t sum = safetensors_writer_sum(w);
    int rc = put_region(w, "weights", s->weights, sizes->weights, &sum);
    if (rc == 0)
        rc = put_region(w, "momentum", s->m, sizes->weights, &sum);
    if (rc == 0)
        rc = put_region(w, "variance", s->v, sizes->weights, &sum);
    if (rc == 0)
        rc = put_region(w, "ema.weights", s->ema_weights, sizes->weights, &sum);
    if (rc == 0)
        rc = put_region(w, "ema.buffers", s->ema_buffers, sizes->buffers, &sum);
    if (rc == 0 && s->pending > 0)
        rc = put_region(w, "gradients", s->grads, sizes->weights, &sum);
    if (rc == 0)
        rc = put_region(w, "buffers", s->rank_buffers, s->ranks * sizes->buffers, &sum);
    if (rc == 0)
        rc = put_ledger(s, w, &sum);
    return rc < 0 ? rc : put_uint(w, "checksum", sum);
}

static int put_doubles(const checkpoint_state_t *s, safetensors_writer_t *out)
{
    const trainer_progress_t *p = &s->progress;
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"best_fitness", p->best_fitness},
        {"early_stop_best", p->early.best},
        {"seconds", p->seconds},
        {"lr0", p->point.lr[0]},
        {"lr1", p->point.lr[1]},
        {"lr2", p->point.lr[2]},
        {"point_momentum", p->point.momentum},
        {"box_loss", s->items.mean[0]},
        {"cls_loss", s->items.mean[1]},
        {"dfl_loss", s->items.mean[2]},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof numbers / sizeof numbers[0]; i++)
        rc = put_double(out, numbers[i].key, numbers[i].value);
    return rc;
}

/* What only a GPU's run has. */
static int put_device(const checkpoint_state_t *s, safetensors_writer_t *out)
{
    int rc = 0;
    if (s->choices && strlen(s->choices) <= CHECKPOINT_CHOICES_MOST)
        rc = safetensors_writer_metadata(out, CHECKPOINT_CHOICES, s->choices);
    if (rc == 0 && s->scaled)
        rc = put_double(out, "loss_scale", s->scaling.scale);
    if (rc == 0 && s->scaled)
        rc = put_double(out, "loss_scale_good", s->scaling.good);
    if (rc == 0 && s->scaling.skipped > 0)
        rc = put_double(out, "updates_left_out", s->scaling.skipped);
    return rc;
}

int checkpoint_state_image(const graph_t *g, const checkpoint_state_t *s, safetensors_writer_t *out)
{
    const trainer_progress_t *p = &s->progress;
    int rc = safetensors_writer_metadata(out, "kind", CHECKPOINT_KIND);
    if (rc == 0)
        rc = safetensors_writer_metadata(out, "model", graph_name(g));
    if (rc == 0)
        rc = safetensors_writer_metadata(out, "optimizer", s->sgd ? "SGD" : "AdamW");
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"nc", (uint64_t)graph_classes(g)},
        {"layout", layout_hash(g)},
        {"epoch", s->epoch},
        {"position", s->position},
        {"finished", s->finished},
        {"ranks", s->ranks},
        {"batch", s->batch},
        {"threads", s->threads},
        {"ledger_entries", s->ledger_count},
        {"loss_steps", s->items.steps},
        {"stream_sum", p->stream.sum},
        {"stream_count", p->stream.count},
        {"seed", s->seed},
        {"list_digest", s->list_digest},
        {"pending", s->pending},
        {"accumulate", p->point.accumulate},
        {"updates", p->updates},
        {"opt_steps", p->opt_steps},
        {"batches", p->batches},
    };
    for (size_t i = 0; rc == 0 && i < sizeof numbers / sizeof numbers[0]; i++)
        rc = put_uint(out, numbers[i].key, numbers[i].value);
    if (rc == 0)
        rc = put_int(out, "best_epoch", p->best_epoch);
    if (rc == 0)
        rc = put_int(out, "early_stop_epoch", p->early.best_epoch);
    if (rc == 0)
        rc = put_doubles(s, out);
    if (rc == 0)
        rc = put_device(s, out);
    return rc < 0 ? rc : put_regions(g, s, out);
}

static int check_kind(const safetensors_t *f, const char *origin)
{
    const char *kind;
    int rc = get_text(f, origin, "kind", &kind);
    if (rc == 0 && strcmp(kind, CHECKPOINT_KIND) != 0)
        rc = err_set(
            ERR_CONFIG,
            "%s was written by another version of sluice ('%s', this one reads '%s'): resume "
            "with that version, or start a new run from weights/last.safetensors",
            origin, kind, CHECKPOINT_KIND);
    return rc;
}

static int check_model(const graph_t *g, const safetensors_t *f, const char *origin)
{
    const char *model;
    uint64_t nc, layout;
    int rc = get_text(f, origin, "model", &model);
    if (rc < 0)
        return rc;
    if (strcmp(model, graph_name(g)) != 0)
        return err_set(ERR_CONFIG, "%s is of model %s, this run has model %s: resume with model=%s",
                       origin, model, graph_name(g), model);
    if ((rc = get_uint(f, origin, "nc", &nc)) < 0)
        return rc;
    if (nc != (uint64_t)graph_classes(g))
        return err_set(ERR_CONFIG,
                       "%s is of %" PRIu64
                       " classes, the data set has %d: resume with the data set "
                       "that the run began with, or start a new run from weights/last.safetensors",
                       origin, nc, graph_classes(g));
    if ((rc = get_uint(f, origin, "layout", &layout)) < 0)
        return rc;
    if (layout != layout_hash(g))
        return err_set(ERR_CONFIG,
                       "%s was written by a build that lays %s out differently: resume with that "
                       "build, or start a new run from weights/last.safetensors",
                       origin, model);
    return 0;
}

static int check_run(const checkpoint_state_t *s, const char *origin, const char *optimizer,
                     const checkpoint_expect_t *e)
{
    if (s->list_digest != e->list_digest)
        return err_set(ERR_CONFIG,
                       "%s was trained on sample list %016" PRIx64
                       ", the data set now has %016" PRIx64
                       ": images or labels have changed; put them back, or start a new run from "
                       "weights/last.safetensors",
                       origin, s->list_digest, e->list_digest);
    if (s->seed != e->seed)
        return err_set(ERR_CONFIG,
                       "%s was trained with seed=%" PRIu64 ", not %" PRIu64
                       ": resume with that seed",
                       origin, s->seed, e->seed);
    if (s->sgd != e->sgd)
        return err_set(ERR_CONFIG,
                       "%s was trained with optimizer=%s, this run chose %s: resume with "
                       "optimizer=%s and its lr0",
                       origin, optimizer, e->sgd ? "SGD" : "AdamW", optimizer);
    if (s->finished || s->epoch >= e->epochs)
        return err_set(ERR_CONFIG,
                       "%s is of a finished run (%u epochs done): nothing to resume; to train on, "
                       "start a new run from weights/last.safetensors",
                       origin, s->epoch);
    if (s->epoch != e->first_epoch || s->position != e->first_position)
        return err_set(ERR_FAILED,
                       "%s goes on with epoch %u at image %" PRIu64
                       ", the run was planned from epoch %u at image %" PRIu64,
                       origin, s->epoch + 1, s->position, e->first_epoch + 1, e->first_position);
    return 0;
}

static int read_doubles(const safetensors_t *f, const char *origin, checkpoint_state_t *s)
{
    trainer_progress_t *p = &s->progress;
    const struct {
        const char *key;
        double *value;
    } numbers[] = {
        {"best_fitness", &p->best_fitness},
        {"early_stop_best", &p->early.best},
        {"seconds", &p->seconds},
        {"lr0", &p->point.lr[0]},
        {"lr1", &p->point.lr[1]},
        {"lr2", &p->point.lr[2]},
        {"point_momentum", &p->point.momentum},
        {"box_loss", &s->items.mean[0]},
        {"cls_loss", &s->items.mean[1]},
        {"dfl_loss", &s->items.mean[2]},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof numbers / sizeof numbers[0]; i++)
        rc = get_double(f, origin, numbers[i].key, numbers[i].value);
    return rc;
}

static int read_numbers(const safetensors_t *f, const char *origin, checkpoint_state_t *s)
{
    trainer_progress_t *p = &s->progress;
    uint64_t epoch = 0, finished = 0, ranks = 0, batch = 0, pending = 0, accumulate = 0;
    uint64_t threads = 0, entries = 0, steps = 0;
    const struct {
        const char *key;
        uint64_t *value;
    } numbers[] = {
        {"epoch", &epoch},
        {"finished", &finished},
        {"ranks", &ranks},
        {"batch", &batch},
        {"seed", &s->seed},
        {"list_digest", &s->list_digest},
        {"pending", &pending},
        {"accumulate", &accumulate},
        {"updates", &p->updates},
        {"opt_steps", &p->opt_steps},
        {"batches", &p->batches},
        {"position", &s->position},
        {"threads", &threads},
        {"ledger_entries", &entries},
        {"loss_steps", &steps},
        {"stream_sum", &p->stream.sum},
        {"stream_count", &p->stream.count},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof numbers / sizeof numbers[0]; i++)
        rc = get_uint(f, origin, numbers[i].key, numbers[i].value);
    /* The same bounds as the scribe's (tools/statefile.c): both read the file of a resume. */
    if (rc == 0 &&
        (epoch > 1u << 30 || ranks < 1 || ranks > WIRE_RANKS || batch < 1 || batch > 1u << 30 ||
         pending > UINT32_MAX || accumulate < 1 || accumulate > UINT32_MAX ||
         threads > UINT32_MAX || entries > CHECKPOINT_LEDGER_MOST || steps > UINT32_MAX ||
         s->position > UINT32_MAX))
        rc = err_set(ERR_CONFIG, "%s has impossible numbers in its metadata: the file is damaged",
                     origin);
    s->epoch = (uint32_t)epoch;
    s->finished = finished != 0;
    s->ranks = (uint32_t)ranks;
    s->batch = (uint32_t)batch;
    s->pending = (uint32_t)pending;
    p->point.accumulate = (uint32_t)accumulate;
    s->threads = (uint32_t)threads;
    s->ledger_count = (uint32_t)entries;
    s->items.steps = (uint32_t)steps;
    int64_t best = -1, stop = 0;
    if (rc == 0)
        rc = get_int(f, origin, "best_epoch", &best);
    if (rc == 0)
        rc = get_int(f, origin, "early_stop_epoch", &stop);
    if (rc == 0)
        rc = read_doubles(f, origin, s);
    if (rc == 0 && (best < -1 || best > INT32_MAX || stop < -1 || stop > INT32_MAX))
        rc = err_set(ERR_CONFIG, "%s says that epoch %" PRId64 " was its best: the file is damaged",
                     origin, best < -1 || best > INT32_MAX ? best : stop);
    p->best_epoch = (int32_t)best;
    p->early.best_epoch = (int32_t)stop;
    return rc;
}

static int read_device(const safetensors_t *f, const char *origin, checkpoint_state_t *s)
{
    double scale = 1, good = 0, skipped = 0;
    s->choices = safetensors_metadata(f, CHECKPOINT_CHOICES);
    s->scaled = safetensors_metadata(f, "loss_scale") != NULL;
    int rc = s->scaled ? get_double(f, origin, "loss_scale", &scale) : 0;
    if (rc == 0 && s->scaled)
        rc = get_double(f, origin, "loss_scale_good", &good);
    if (rc == 0 && safetensors_metadata(f, "updates_left_out"))
        rc = get_double(f, origin, "updates_left_out", &skipped);
    if (rc == 0 && !(scale > 0 && scale <= (double)FLT_MAX && good >= 0 && good <= 1e9 &&
                     skipped >= 0 && skipped <= 1e9))
        rc = err_set(ERR_CONFIG, "%s has an impossible loss scale: the file is damaged", origin);
    s->scaling =
        (k_scaling_t){.scale = (float)scale, .good = (float)good, .skipped = (float)skipped};
    return rc;
}

static int get_region(const safetensors_t *f, const char *origin, const char *name, uint64_t count,
                      const void **data, uint64_t *sum)
{
    const safetensors_entry_t *e = safetensors_find(f, name);
    if (!e || strcmp(e->dtype, "F32") != 0 || e->bytes != count * sizeof(float))
        return err_set(ERR_CONFIG, "%s: \"%s\" is %s: the file is damaged", origin, name,
                       e ? "of the wrong size" : "missing");
    *data = e->data;
    *sum = wire_mix(*sum, wire_checksum(e->data, e->bytes));
    return 0;
}

static int get_ledger(const safetensors_t *f, const char *origin, checkpoint_state_t *s,
                      uint64_t *sum)
{
    const safetensors_entry_t *e = safetensors_find(f, "ledger");
    uint64_t bytes = (uint64_t)s->ledger_count * CHECKPOINT_LEDGER * sizeof(int64_t);
    if (!e && bytes == 0)
        return 0;
    if (!e || strcmp(e->dtype, "I64") != 0 || e->bytes != bytes)
        return err_set(ERR_CONFIG, "%s: \"ledger\" is %s: the file is damaged", origin,
                       e ? "of the wrong size" : "missing");
    s->ledger = e->data;
    *sum = wire_mix(*sum, wire_checksum(e->data, e->bytes));
    return 0;
}

static int read_regions(const graph_t *g, const safetensors_t *f, const char *origin,
                        checkpoint_state_t *s)
{
    const graph_sizes_t *sizes = graph_sizes(g);
    uint64_t sum = safetensors_metadata_sum(f, "checksum"), expected = 0;
    int rc = get_region(f, origin, "weights", sizes->weights, &s->weights, &sum);
    if (rc == 0)
        rc = get_region(f, origin, "momentum", sizes->weights, &s->m, &sum);
    if (rc == 0 && !s->sgd)
        rc = get_region(f, origin, "variance", sizes->weights, &s->v, &sum);
    if (rc == 0)
        rc = get_region(f, origin, "ema.weights", sizes->weights, &s->ema_weights, &sum);
    if (rc == 0)
        rc = get_region(f, origin, "ema.buffers", sizes->buffers, &s->ema_buffers, &sum);
    if (rc == 0 && s->pending > 0)
        rc = get_region(f, origin, "gradients", sizes->weights, &s->grads, &sum);
    if (rc == 0)
        rc = get_region(f, origin, "buffers", s->ranks * sizes->buffers, &s->rank_buffers, &sum);
    if (rc == 0)
        rc = get_ledger(f, origin, s, &sum);
    if (rc == 0)
        rc = get_uint(f, origin, "checksum", &expected);
    if (rc == 0 && sum != expected)
        rc = err_set(ERR_CONFIG,
                     "%s does not match its checksum: the file is damaged; start a new run from "
                     "weights/last.safetensors",
                     origin);
    return rc;
}

int checkpoint_state_read(const graph_t *g, const safetensors_t *file, const char *origin,
                          const checkpoint_expect_t *expect, checkpoint_state_t *s)
{
    const char *optimizer = "";
    memset(s, 0, sizeof *s);
    int rc = check_kind(file, origin);
    if (rc == 0)
        rc = check_model(g, file, origin);
    if (rc == 0)
        rc = get_text(file, origin, "optimizer", &optimizer);
    if (rc == 0)
        rc = read_numbers(file, origin, s);
    if (rc == 0)
        rc = read_device(file, origin, s);
    if (rc < 0)
        return rc;
    s->sgd = strcmp(optimizer, "SGD") == 0;
    s->progress.early.patience = expect->patience;
    rc = check_run(s, origin, optimizer, expect);
    return rc < 0 ? rc : read_regions(g, file, origin, s);
}

/* ---- weights files ---- */

/* {"0": "scratch", ...} */
static int put_names(const catalog_t *catalog, safetensors_writer_t *w)
{
    uint32_t n = catalog ? catalog_classes(catalog) : 0;
    size_t room = 64;
    for (uint32_t i = 0; i < n; i++)
        room += 6 * strlen(catalog_class_name(catalog, i)) + 32;
    char *text = malloc(room), key[16];
    if (!text)
        return err_set(ERR_ENV, "out of memory for %u class names", n);
    json_t j;
    json_begin(&j, text, room);
    json_object_begin(&j);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%u", i);
        json_key_string(&j, key, catalog_class_name(catalog, i));
    }
    json_object_end(&j);
    int rc = json_finish(&j);
    if (rc >= 0)
        rc = safetensors_writer_metadata(w, "names", text);
    free(text);
    return rc;
}

int checkpoint_weights_image(const graph_t *g, const float *ema_weights, const float *ema_buffers,
                             uint64_t batches, uint32_t epoch, const int32_t stride[K_LEVELS],
                             const catalog_t *catalog, const char *args, safetensors_writer_t *out)
{
    char strides[64];
    snprintf(strides, sizeof strides, "[%d, %d, %d]", stride[0], stride[1], stride[2]);
    int rc = safetensors_writer_metadata(out, "model", graph_name(g));
    if (rc == 0)
        rc = safetensors_writer_metadata(out, "task", "detect");
    if (rc == 0)
        rc = put_int(out, "nc", graph_classes(g));
    if (rc == 0)
        rc = put_uint(out, "epoch", epoch);
    if (rc == 0)
        rc = safetensors_writer_metadata(out, "strides", strides);
    if (rc == 0)
        rc = safetensors_writer_metadata(out, "args", args);
    if (rc == 0)
        rc = put_names(catalog, out);
    if (rc == 0)
        rc = weights_store(g, ema_weights, ema_buffers, (int64_t)batches, "", out);
    return rc;
}

uint64_t checkpoint_bytes(const graph_t *g, uint32_t ranks, size_t args_bytes, size_t names_bytes,
                          uint64_t samples)
{
    const graph_sizes_t *s = graph_sizes(g);
    /* A header entry: name, dtype, shape, offsets. JSON writes a byte with at most six. */
    uint64_t header = (uint64_t)graph_params(g) * (sizeof(graph_param_t) + 192) +
                      6 * (args_bytes + names_bytes) + 65536;
    uint64_t weights = (s->weights + s->buffers) * sizeof(float) + header;
    uint64_t state = (5 * s->weights + (ranks + 1) * s->buffers) * sizeof(float) + 65536;
    /* A tenth of a split may go bad (control/ledger.h), with an entry for all that follows and some
     * for cells by name. */
    uint64_t entries = 1024 + samples / 2;
    /* JSON writes the ends of its lines with two bytes. */
    uint64_t choices = 2 * CHECKPOINT_CHOICES_MOST;
    return weights + state + choices + entries * CHECKPOINT_LEDGER * sizeof(int64_t);
}
