/* `sluice val` and `sluice predict`: what trainers find and measure, on its way to files and the person.
 *
 * Detections come cell by cell (WIRE_FOUND); an image's tiles are put together here as soon as the last
 * has come, so that no more is held than what is under way. Files grow at the scribe, part by part
 * (WIRE_PART). A trainer is a bounded number of cells ahead of what the scribe has been given: while the
 * outbox is full, what was taken is not acknowledged.
 */
#include "control/coordinator_state.h"
#include "control/found.h"
#include "control/outnames.h"
#include "control/spool.h"

#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PART_BYTES = 512 << 10,    /* of a message */
    RESULTS_WAITING = 4 << 20, /* bytes for the scribe beyond which nothing is acknowledged */
    RESULTS_BOXES = 30000,     /* of one image, at most: max_det's own limit */
    RESULTS_ROWS = 1 << 24,    /* of the confusion matrix */
};

/* An image of which not all tiles have come. */
typedef struct {
    uint32_t tiles, n, room;
    int unusable;
    found_t *found;
} open_image_t;

struct results {
    uint8_t *seen; /* a bit a cell */
    uint8_t *bad;  /* a bit an image: told */
    uint32_t cells, images, unusable;
    open_image_t **open; /* [images], NULL where nothing is under way */
    outnames_t names;
    uint32_t owed[WIRE_RANKS]; /* acknowledgements that wait */
    int json_begun, json_first, spool_begun;
    int measured, done;
    wire_measured_t times;
    wire_class_t *classes;
    wire_confused_t *confused;
    uint32_t n_classes, n_confused;
};

static int predicts(const coordinator_t *c)
{
    return c->options.mode == OPT_MODE_PREDICT;
}

int results_plan(coordinator_t *c)
{
    const options_t *o = &c->options;
    plan_t *p = &c->plan;
    int rc = parts_open(c->catalog, o, &c->parts);
    if (rc < 0)
        return rc;
    memset(p, 0, sizeof *p);
    p->seed = (uint64_t)o->seed;
    /* A training that is done: its validation is all that is left of the one epoch. */
    p->n_train = 1;
    p->first_position = 1;
    p->n_val = parts_count(c->parts);
    p->ranks = c->ranks;
    p->batch = c->ranks;
    p->val_batch = (uint32_t)o->batch;
    p->imgsz = (uint32_t)o->imgsz;
    p->epochs = 1;
    p->val_every_epoch = 1;
    uint32_t images = catalog_count(c->catalog, CATALOG_VAL);
    struct results *r = c->results = calloc(1, sizeof *r);
    if (!r)
        return err_set(ERR_ENV, "no memory for the results");
    r->json_first = 1;
    r->seen = calloc(p->n_val / 8 + 1, 1);
    r->bad = calloc(images / 8 + 1, 1);
    r->open = calloc((size_t)images + 1, sizeof(open_image_t *));
    if (!r->seen || !r->bad || !r->open)
        return err_set(ERR_ENV, "no memory for the results of %u images", images);
    return outnames_init(&r->names, c->catalog);
}

static void image_free(open_image_t **image)
{
    if (*image)
        free((*image)->found);
    free(*image);
    *image = NULL;
}

void results_free(coordinator_t *c)
{
    struct results *r = c->results;
    parts_close(&c->parts);
    c->results = NULL;
    if (!r)
        return;
    for (uint32_t i = 0; r->open && i < catalog_count(c->catalog, CATALOG_VAL); i++)
        image_free(&r->open[i]);
    outnames_fini(&r->names);
    free(r->seen);
    free(r->bad);
    free(r->open);
    free(r->classes);
    free(r->confused);
    free(r);
}

/* ---- files ---- */

static void put_part(coordinator_t *c, const char *path, const char *text, size_t bytes, int last)
{
    wire_part_t m;
    char *frame = malloc(sizeof m + bytes);
    memset(&m, 0, sizeof m);
    wire_begin(&m, WIRE_PART, sizeof m + bytes);
    snprintf(m.path, sizeof m.path, "%s", path);
    m.last = (uint32_t)last;
    if (frame) {
        memcpy(frame, &m, sizeof m);
        memcpy(frame + sizeof m, text, bytes);
    }
    if (!frame || outbox_push(c->outbox, frame, sizeof m + bytes, 0) < 0)
        run_fail(c, ERR_ENV, "%s cannot be written: %s", path,
                 frame ? err_text() : "no memory for a part of it");
    free(frame);
}

/* A piece of a file; its end where last. */
static void put(coordinator_t *c, const char *path, const char *text, size_t bytes, int last)
{
    while (bytes > PART_BYTES) {
        put_part(c, path, text, PART_BYTES, 0);
        text += PART_BYTES;
        bytes -= PART_BYTES;
    }
    put_part(c, path, text, bytes, last);
}

/* Text that is put together before it goes. */
typedef struct {
    FILE *out;
    char *text;
    size_t bytes;
} draft_t;

static int draft_open(coordinator_t *c, draft_t *d)
{
    *d = (draft_t){0};
    d->out = open_memstream(&d->text, &d->bytes);
    if (!d->out)
        run_fail(c, ERR_ENV, "no memory for what was found");
    return d->out ? 0 : -1;
}

static void draft_put(coordinator_t *c, draft_t *d, const char *path, int last)
{
    int whole = !ferror(d->out) && fclose(d->out) == 0;
    if (!whole)
        run_fail(c, ERR_ENV, "no memory for %s", path);
    else if (d->bytes || last)
        put(c, path, d->text, d->bytes, last);
    free(d->text);
}

static const char json_name[] = "predictions.json";

static void put_json(coordinator_t *c, uint32_t sample, const wire_box_t *boxes, uint32_t n)
{
    struct results *r = c->results;
    const catalog_sample_t *s = catalog_sample(c->catalog, CATALOG_VAL, sample);
    const char *path = catalog_path(c->catalog, s);
    draft_t d;
    if (draft_open(c, &d) < 0)
        return;
    if (!r->json_begun)
        fputc('[', d.out);
    r->json_begun = 1;
    if (predicts(c)) {
        found_json(d.out, path, s->width, s->height, boxes, n, c->config->classes,
                   c->config->n_classes, r->json_first);
        r->json_first = 0;
    } else {
        r->json_first = found_coco(d.out, path, boxes, n, r->json_first);
    }
    draft_put(c, &d, json_name, 0);
}

static void put_text(coordinator_t *c, uint32_t sample, const wire_box_t *boxes, uint32_t n)
{
    const catalog_sample_t *s = catalog_sample(c->catalog, CATALOG_VAL, sample);
    char name[SPOOL_NAME_BYTES - 16], path[SPOOL_NAME_BYTES];
    draft_t d;
    if (n == 0 || draft_open(c, &d) < 0)
        return;
    outnames_get(&c->results->names, sample, name, sizeof name);
    snprintf(path, sizeof path, "labels/%s.txt", name);
    found_text(d.out, boxes, n, s->width, s->height);
    draft_put(c, &d, path, 1);
}

static void put_spool(coordinator_t *c, uint32_t sample, const wire_box_t *boxes, uint32_t n)
{
    struct results *r = c->results;
    const catalog_sample_t *s = catalog_sample(c->catalog, CATALOG_VAL, sample);
    spool_image_t image = {
        .width = s->width, .height = s->height, .n = n, .boxes = (wire_box_t *)(uintptr_t)boxes};
    draft_t d;
    if (draft_open(c, &d) < 0)
        return;
    if (!r->spool_begun)
        spool_begin(d.out, c->config->classes, c->config->n_classes);
    r->spool_begun = 1;
    snprintf(image.path, sizeof image.path, "%s", catalog_path(c->catalog, s));
    outnames_get(&r->names, sample, image.name, sizeof image.name - 16);
    spool_image(d.out, &image);
    draft_put(c, &d, SPOOL_NAME, 0);
}

/* ---- images ---- */

static void image_done(coordinator_t *c, uint32_t sample, const wire_box_t *boxes, uint32_t n,
                       int unusable)
{
    struct results *r = c->results;
    const catalog_sample_t *s = catalog_sample(c->catalog, CATALOG_VAL, sample);
    coordinator_found_t out = {.image = ++r->images,
                               .images = catalog_count(c->catalog, CATALOG_VAL),
                               .path = catalog_path(c->catalog, s),
                               .width = s->width,
                               .height = s->height,
                               .n = n,
                               .boxes = boxes,
                               .unusable = unusable};
    r->unusable += unusable != 0;
    if (!unusable && c->options.save_json)
        put_json(c, sample, boxes, n);
    if (!unusable && predicts(c) && c->options.save_txt)
        put_text(c, sample, boxes, n);
    if (!unusable && predicts(c) && c->options.save)
        put_spool(c, sample, boxes, n);
    if (predicts(c) && c->view->found)
        c->view->found(c->view->user, &out);
}

static int image_add(open_image_t *image, const wire_box_t *boxes, uint32_t n, const part_t *part,
                     const catalog_sample_t *s)
{
    if (image->n + n > image->room) {
        uint32_t room = 2 * (image->n + n) + 64;
        found_t *grown = realloc(image->found, room * sizeof *grown);
        if (!grown)
            return err_set(ERR_ENV, "no memory for what was found in %u tiles", image->tiles);
        image->found = grown;
        image->room = room;
    }
    for (uint32_t i = 0; i < n; i++)
        image->found[image->n++] = (found_t){
            .box = boxes[i],
            .tile = part->index,
            .cut = found_is_cut(&boxes[i], part, s->width, s->height),
        };
    return 0;
}

/* One tile of several. */
static int take_tile(coordinator_t *c, const part_t *part, const wire_box_t *boxes, uint32_t n,
                     int unusable)
{
    struct results *r = c->results;
    const catalog_sample_t *s = catalog_sample(c->catalog, CATALOG_VAL, part->sample);
    open_image_t **place = &r->open[part->sample], *image = *place;
    if (!image)
        image = *place = calloc(1, sizeof *image);
    if (!image)
        return err_set(ERR_ENV, "no memory for an image of %u tiles", part->of);
    int rc = image_add(image, boxes, n, part, s);
    if (rc < 0)
        return rc;
    image->unusable |= unusable;
    if (++image->tiles < part->of)
        return 0;
    n = found_merge(image->found, image->n, c->options.iou, c->options.agnostic_nms, RESULTS_BOXES);
    wire_box_t *merged = malloc(((size_t)n + 1) * sizeof *merged);
    for (uint32_t i = 0; merged && i < n; i++)
        merged[i] = image->found[i].box;
    if (merged)
        image_done(c, part->sample, merged, n, image->unusable);
    else
        rc = err_set(ERR_ENV, "no memory for what was found in %u tiles", part->of);
    free(merged);
    image_free(place);
    return rc;
}

static int check_found(const coordinator_t *c, const wire_found_t *m, size_t bytes)
{
    const struct results *r = c->results;
    if (!r || m->position >= c->plan.n_val || bytes != m->count * sizeof(wire_box_t) ||
        (uint64_t)m->count * sizeof(wire_box_t) > WIRE_MAX_BYTES)
        return err_set(ERR_FAILED, "detections of cell %u (%u, %zu bytes) fit nothing", m->position,
                       m->count, bytes);
    if (r->seen[m->position / 8] >> m->position % 8 & 1)
        return err_set(ERR_FAILED, "detections of cell %u have come before", m->position);
    return 0;
}

static int check_boxes(const coordinator_t *c, const wire_box_t *boxes, uint32_t n)
{
    uint32_t classes = predicts(c) ? c->config->n_classes : catalog_classes(c->catalog);
    for (uint32_t i = 0; i < n; i++)
        if (boxes[i].cls >= classes)
            return err_set(ERR_FAILED, "a detection of class %u of %u", boxes[i].cls, classes);
    return 0;
}

/* All that was to come has come: the files get their names. */
static void finish(coordinator_t *c)
{
    struct results *r = c->results;
    int tells = predicts(c) || c->options.save_json;
    if (r->done || !r->measured || (tells && r->cells < c->plan.n_val))
        return;
    r->done = 1;
    c->epochs_done = 1;
    if (c->options.save_json)
        put(c, json_name, r->json_begun ? "\n]\n" : "[]\n", 3, 1);
    if (r->spool_begun)
        put(c, SPOOL_NAME, "", 0, 1);
    if (predicts(c) && r->images == r->unusable)
        run_fail(c, ERR_DATA, "none of the %u images could be used", r->images);
}

static void acknowledge(coordinator_t *c, uint32_t rank)
{
    wire_found_t m;
    memset(&m, 0, sizeof m);
    wire_begin(&m, WIRE_FOUND, sizeof m);
    if (proc_send(c, proc_trainer(c, rank), &m, sizeof m) == 0)
        c->results->owed[rank]--;
}

void results_tick(coordinator_t *c)
{
    for (uint32_t rank = 0; c->results && rank < c->ranks; rank++)
        for (uint32_t n = c->results->owed[rank];
             n > 0 && outbox_bytes(c->outbox) < RESULTS_WAITING; n--)
            acknowledge(c, rank);
}

void results_found(coordinator_t *c, const proc_t *p, const bus_message_t *message)
{
    wire_found_t m;
    size_t bytes;
    const char *rows = wire_text(message->frame, &bytes);
    wire_box_t *boxes = NULL;
    memcpy(&m, message->frame, sizeof m);
    int rc = check_found(c, &m, bytes);
    if (rc == 0) {
        boxes = malloc(bytes + 1); /* aligned */
        rc = boxes ? 0 : err_set(ERR_ENV, "no memory for %u detections", m.count);
    }
    if (rc == 0) {
        memcpy(boxes, rows, bytes);
        rc = check_boxes(c, boxes, m.count);
    }
    if (rc < 0) {
        run_fail(c, rc, "%s: %s", p->name, err_text());
        free(boxes);
        return;
    }
    struct results *r = c->results;
    part_t part = parts_at(c->parts, c->catalog, m.position);
    r->seen[m.position / 8] |= (uint8_t)(1 << m.position % 8);
    r->cells++;
    r->owed[p->index]++;
    if (part.of == 1)
        image_done(c, part.sample, boxes, m.count, m.unusable != 0);
    else if (take_tile(c, &part, boxes, m.count, m.unusable != 0) < 0)
        run_fail(c, ERR_ENV, "%s", err_text());
    free(boxes);
    finish(c);
    results_tick(c);
}

/* ---- measures ---- */

static int append(void **rows, uint32_t *n, const void *more, uint32_t count, size_t size)
{
    if (count > RESULTS_ROWS - *n)
        return err_set(ERR_FAILED, "more rows than a result can have");
    void *grown = realloc(*rows, ((size_t)*n + count + 1) * size);
    if (!grown)
        return err_set(ERR_ENV, "no memory for the result");
    memcpy((char *)grown + *n * size, more, count * size);
    *rows = grown;
    *n += count;
    return 0;
}

/* Milliseconds of loaders' work an image. */
static double loading_ms(coordinator_t *c)
{
    uint64_t ns = 0, cells = 0;
    for (uint32_t i = 0; i < RUN_LOADERS_MAX; i++) {
        const board_page_t *page = board_page(c->board, proc_loader(c, i)->page);
        ns += atomic_load_explicit(&page->decode_ns, memory_order_relaxed) +
              atomic_load_explicit(&page->augment_ns, memory_order_relaxed);
        cells += atomic_load_explicit(&page->cells_done, memory_order_relaxed);
    }
    return cells ? (double)ns / 1e6 / (double)cells : 0;
}

static void put_numbers(FILE *out, const wire_class_t *k)
{
    fprintf(out,
            "\"images\":%u,\"instances\":%u,\"precision\":%.8g,\"recall\":%.8g,\"map50\":%.8g,"
            "\"map\":%.8g",
            k->images, k->instances, k->precision, k->recall, k->map50, k->map);
}

static void put_results(coordinator_t *c, const coordinator_measured_t *m)
{
    draft_t d;
    if (draft_open(c, &d) < 0)
        return;
    fputs("{\"model\":", d.out);
    found_string(d.out, c->options.model);
    fputs(",\"data\":", d.out);
    found_string(d.out, c->options.data);
    fprintf(d.out, ",\"imgsz\":%u,\"batch\":%u,\n\"all\":{", c->plan.imgsz, c->plan.val_batch);
    put_numbers(d.out, &m->classes[0]);
    fputs("},\n\"classes\":[", d.out);
    for (uint32_t i = 1; i < m->n_classes; i++) {
        fprintf(d.out, "%s\n{\"class\":%u,\"name\":", i > 1 ? "," : "", i - 1);
        found_string(d.out, catalog_class_name(c->catalog, i - 1));
        fputc(',', d.out);
        put_numbers(d.out, &m->classes[i]);
        fputc('}', d.out);
    }
    fprintf(d.out,
            "],\n\"speed_ms\":{\"preprocess\":%.4g,\"inference\":%.4g,\"postprocess\":%.4g},\n"
            "\"confusion\":[",
            m->load_ms, m->infer_ms, m->post_ms);
    for (uint32_t i = 0; i < m->n_confused; i++)
        fprintf(d.out, "%s{\"predicted\":%u,\"actual\":%u,\"count\":%u}", i ? "," : "",
                m->confused[i].predicted, m->confused[i].actual, m->confused[i].count);
    fputs("]}\n", d.out);
    draft_put(c, &d, "results.json", 1);
}

static void csv_name(FILE *out, const coordinator_t *c, uint32_t cls)
{
    const char *name =
        cls < catalog_classes(c->catalog) ? catalog_class_name(c->catalog, cls) : "background";
    fputc('"', out);
    for (; *name; name++) {
        if (*name == '"')
            fputc('"', out);
        fputc(*name, out);
    }
    fputc('"', out);
}

/* A row a predicted class, a column an actual one. */
static void put_confusion(coordinator_t *c, const coordinator_measured_t *m)
{
    uint32_t side = catalog_classes(c->catalog) + 1, at = 0;
    draft_t d;
    if (m->n_confused == 0 || draft_open(c, &d) < 0)
        return;
    fputs("predicted\\actual", d.out);
    for (uint32_t i = 0; i < side; i++) {
        fputc(',', d.out);
        csv_name(d.out, c, i);
    }
    for (uint32_t i = 0; i < side; i++) {
        fputc('\n', d.out);
        csv_name(d.out, c, i);
        for (uint32_t k = 0; k < side; k++) {
            int here =
                at < m->n_confused && m->confused[at].predicted == i && m->confused[at].actual == k;
            fprintf(d.out, ",%u", here ? m->confused[at].count : 0);
            at += (uint32_t)here;
        }
    }
    fputc('\n', d.out);
    draft_put(c, &d, "confusion_matrix.csv", 1);
}

static void measured(coordinator_t *c)
{
    struct results *r = c->results;
    double images = r->times.images > 0 ? r->times.images : 1;
    coordinator_measured_t out = {.catalog = c->catalog,
                                  .classes = r->classes,
                                  .n_classes = r->n_classes,
                                  .confused = r->confused,
                                  .n_confused = r->n_confused,
                                  .load_ms = loading_ms(c),
                                  .infer_ms = r->times.infer_ns / 1e6 / images,
                                  .post_ms = r->times.post_ns / 1e6 / images};
    r->measured = 1;
    if (!predicts(c)) {
        c->has_map = 1;
        c->best_map = r->classes[0].map;
        c->best_map50 = r->classes[0].map50;
        put_results(c, &out);
        put_confusion(c, &out);
    }
    if (c->view->measured)
        c->view->measured(c->view->user, &out);
    finish(c);
}

void results_measured(coordinator_t *c, const bus_message_t *message)
{
    struct results *r = c->results;
    wire_measured_t m;
    size_t bytes;
    const char *rows = wire_text(message->frame, &bytes);
    int rc = 0;
    memcpy(&m, message->frame, sizeof m);
    size_t size = m.kind == WIRE_MEASURED_CLASSES    ? sizeof(wire_class_t)
                  : m.kind == WIRE_MEASURED_CONFUSED ? sizeof(wire_confused_t)
                                                     : 1;
    uint32_t classes = predicts(c) ? c->config->n_classes : r ? catalog_classes(c->catalog) : 0;
    if (!r || r->measured || m.count > WIRE_MAX_BYTES || bytes != m.count * size)
        rc = err_set(ERR_FAILED, "a result of %u rows in %zu bytes fits nothing", m.count, bytes);
    else if (m.kind == WIRE_MEASURED_CLASSES)
        rc = append((void **)&r->classes, &r->n_classes, rows, m.count, size);
    else if (m.kind == WIRE_MEASURED_CONFUSED)
        rc = append((void **)&r->confused, &r->n_confused, rows, m.count, size);
    else if (r->n_classes != classes + 1)
        rc = err_set(ERR_FAILED, "a result of %u classes, not %u", r->n_classes, classes + 1);
    if (rc < 0) {
        run_fail(c, rc, "%s", err_text());
        return;
    }
    r->times = m;
    if (m.kind == WIRE_MEASURED_END)
        measured(c);
}

/* ---- images that cannot be used, in a prediction ---- */

int results_bad(coordinator_t *c, const wire_bad_sample_t *m)
{
    struct results *r = c->results;
    if (!r || !predicts(c))
        return 0;
    const catalog_sample_t *s =
        m->split == CATALOG_VAL ? catalog_sample(c->catalog, CATALOG_VAL, m->sample) : NULL;
    if (!s || r->bad[m->sample / 8] >> m->sample % 8 & 1)
        return 1;
    r->bad[m->sample / 8] |= (uint8_t)(1 << m->sample % 8);
    c->bad_images++;
    event_t e;
    event_begin(&e, "bad-sample");
    json_key_string(&e.json, "path", catalog_path(c->catalog, s));
    json_key_string(&e.json, "reason", m->reason);
    json_key_string(&e.json, "split", "source");
    event_end(c, &e);
    tell_t how = tell_how(c->bad_images);
    if (how == TELL_NAME || how == TELL_NAME_LAST)
        run_note(c, LOG_WARN, "%s cannot be used: %s%s", catalog_path(c->catalog, s), m->reason,
                 how == TELL_NAME_LAST ? "; from here on such images are counted" : "");
    else if (how == TELL_COUNT)
        run_note(c, LOG_WARN, "%u images cannot be used so far, the last: %s: %s", c->bad_images,
                 catalog_path(c->catalog, s), m->reason);
    return 1;
}
