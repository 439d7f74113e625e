#include "trainer/evaluate.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/batch.h"
#include "trainer/confusion.h"
#include "trainer/report.h"
#include "trainer/validate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* facts/yolo.md 6.5; conf= takes the place of the first where it was given. */
#define EVALUATE_CONF 0.25
#define EVALUATE_IOU  0.45
enum {
    FOUND_AHEAD = 16,     /* messages that the coordinator has not taken yet */
    MEASURED_ROWS = 8192, /* of a message, at most */
};
/* Places in the sums behind the boxes and the images of each class. */
enum { SUM_IMAGES = 0, SUM_INFER, SUM_POST, SUMS };

typedef struct {
    trainer_t *t;
    int measures, tells; /* metrics are wanted; detections are */
    confusion_t confusion;
    double *class_images; /* [classes] images with a box of the class */
    uint64_t times[2], images;
    unsigned char *frame; /* of the largest WIRE_FOUND */
} evaluate_t;

/* ---- classes ---- */

/* The data set's class of that name, or -1. */
static int32_t class_named(const catalog_t *catalog, const char *name)
{
    int32_t n = (int32_t)catalog_classes(catalog);
    for (int32_t c = 0; c < n; c++)
        if (strcmp(catalog_class_name(catalog, (uint32_t)c), name) == 0)
            return c;
    for (int32_t c = 0; c < n; c++)
        if (strcasecmp(catalog_class_name(catalog, (uint32_t)c), name) == 0)
            return c;
    return -1;
}

static int unknown_classes(const trainer_t *t, const modelfile_t *file)
{
    char text[512] = "";
    size_t used = 0;
    int32_t missing = 0;
    for (int32_t c = 0; c < t->n_classes; c++) {
        int known = 0;
        for (int32_t k = 0; k < graph_classes(t->graph); k++)
            known |= t->class_of[k] == c;
        if (known)
            continue;
        if (missing++ < 5 && used < sizeof text - 1)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%.60s", used ? ", " : "",
                                     catalog_class_name(t->w->catalog, (uint32_t)c));
    }
    if (missing == 0)
        return 0;
    return err_set(
        ERR_CONFIG,
        "%s does not know %d of the data set's %d classes (%s%s): validate it on the data "
        "that it was trained for",
        modelfile_origin(file), missing, t->n_classes, text, missing > 5 ? ", ..." : "");
}

int evaluate_classes(trainer_t *t, const modelfile_t *file)
{
    int32_t nc = graph_classes(t->graph), n = 0;
    const char *const *names = modelfile_classes(file, &n);
    t->n_classes = t->o->mode == OPT_MODE_VAL ? (int32_t)catalog_classes(t->w->catalog) : nc;
    t->class_of = malloc((size_t)nc * sizeof *t->class_of);
    if (!t->class_of)
        return err_set(ERR_ENV, "rank %u: out of memory for %d classes", t->rank, nc);
    for (int32_t k = 0; k < nc; k++)
        t->class_of[k] = t->o->mode != OPT_MODE_VAL ? k
                         : t->o->single_cls         ? 0
                         : names && k < n           ? class_named(t->w->catalog, names[k])
                                                    : k;
    if (t->o->mode != OPT_MODE_VAL || t->o->single_cls)
        return 0;
    if (!names && nc != t->n_classes)
        return err_set(
            ERR_CONFIG,
            "%s has %d classes without names, the data set has %d: which is which cannot "
            "be told",
            modelfile_origin(file), nc, t->n_classes);
    return unknown_classes(t, file);
}

/* Detections in the data set's classes; those of classes that it does not have are left out. */
static void rename_classes(trainer_t *t, int32_t i)
{
    k_det_t *dets = t->val.dets + (size_t)i * (size_t)t->mem.max_det;
    int32_t kept = 0;
    for (int32_t k = 0; k < t->val.counts[i]; k++) {
        int32_t cls = t->class_of[(int32_t)dets[k].cls];
        if (cls < 0)
            continue;
        dets[kept] = dets[k];
        dets[kept++].cls = (float)cls;
    }
    t->val.counts[i] = kept;
}

/* ---- detections on their way ---- */

static float within(double x, double low, double high)
{
    return (float)(x < low ? low : x > high ? high : x);
}

void evaluate_place(const k_det_t *d, const batch_place_t *p, const part_t *part, wire_box_t *box)
{
    double r = (double)p->ratio, left = (double)p->pad_left, top = (double)p->pad_top;
    double x = part->x, y = part->y, x_end = x + part->width, y_end = y + part->height;
    *box = (wire_box_t){
        .x1 = within(((double)d->x1 - left) / r + x, x, x_end),
        .y1 = within(((double)d->y1 - top) / r + y, y, y_end),
        .x2 = within(((double)d->x2 - left) / r + x, x, x_end),
        .y2 = within(((double)d->y2 - top) / r + y, y, y_end),
        .score = d->score,
        .cls = (uint32_t)d->cls,
    };
}

void evaluate_taken(trainer_t *t)
{
    if (t->found_open > 0)
        t->found_open--;
}

/* As long as the coordinator, or the storage behind it, has not taken what was sent. It says so itself
 * when that takes long. */
static int wait_taken(trainer_t *t)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    int rc = 0;
    while (rc == 0 && t->found_open >= FOUND_AHEAD) {
        nanosleep(&pause, NULL);
        atomic_store_explicit(&t->w->page->beat_ns, clock_ns(), memory_order_relaxed);
        rc = t->poll(t);
    }
    return rc;
}

static int tell_found(evaluate_t *e, int32_t i)
{
    trainer_t *t = e->t;
    const batch_place_t *place = &t->batch.places[i];
    const k_det_t *dets = t->val.dets + (size_t)i * (size_t)t->mem.max_det;
    const part_t part = parts_at(t->parts, t->w->catalog, place->position);
    /* A stand-in's detections are none of the image's. */
    int usable = place->ratio > 0 && t->batch.samples[i] == part.sample;
    uint32_t n = usable ? (uint32_t)t->val.counts[i] : 0;
    wire_found_t m;
    const size_t bytes = sizeof m + n * sizeof(wire_box_t);
    memset(&m, 0, sizeof m);
    wire_begin(&m, WIRE_FOUND, bytes);
    m.position = place->position;
    m.count = n;
    m.unusable = !usable;
    memcpy(e->frame, &m, sizeof m);
    for (uint32_t k = 0; k < n; k++) {
        wire_box_t box;
        evaluate_place(&dets[k], place, &part, &box);
        memcpy(e->frame + sizeof m + k * sizeof box, &box, sizeof box);
    }
    int rc = wait_taken(t);
    if (rc == 0)
        rc = report_send(t, e->frame, bytes);
    if (rc == 0)
        t->found_open++;
    return rc;
}

/* ---- batches ---- */

static int measure(evaluate_t *e, int32_t i)
{
    trainer_t *t = e->t;
    const batch_t *b = &t->batch;
    const k_gt_t *gts = b->gts + (size_t)i * (size_t)b->max_gt;
    const k_det_t *dets = t->val.dets + (size_t)i * (size_t)t->mem.max_det;
    int rc = validate_match(t, i);
    if (rc == 0 && e->confusion.counts)
        rc = confusion_add(&e->confusion, dets, t->val.counts[i], gts, b->counts[i]);
    for (int32_t k = 0; k < b->counts[i]; k++) {
        int32_t before = 0;
        while (before < k && gts[before].cls != gts[k].cls)
            before++;
        e->class_images[(int32_t)gts[k].cls] += before == k;
    }
    return rc;
}

static int run_batch(evaluate_t *e, const plan_batch_t *b)
{
    trainer_t *t = e->t;
    board_page_t *page = t->w->page;
    int rc = batch_take(t, b);
    board_set_phase(page, BOARD_VALIDATE);
    board_progress(page, b->step, b->steps);
    atomic_store_explicit(&page->step, b->step, memory_order_relaxed);
    if (rc == 0 && t->batch.n > 0)
        rc = validate_infer(t, NULL, e->times);
    for (int32_t i = 0; rc == 0 && i < t->batch.n; i++) {
        if (t->val.counts[i] < 0 || t->val.counts[i] > t->mem.max_det)
            return err_set(ERR_FAILED, "suppression returned %d detections of at most %d",
                           t->val.counts[i], t->mem.max_det);
        rename_classes(t, i);
        if (e->measures)
            rc = measure(e, i);
        if (rc == 0 && e->tells)
            rc = tell_found(e, i);
    }
    if (rc < 0)
        return err_add(rc, "batch %u of %u", b->step + 1, b->steps);
    e->images += (uint64_t)t->batch.n;
    atomic_fetch_add_explicit(&page->images_done, (uint64_t)t->batch.n, memory_order_relaxed);
    board_progress(page, b->step + 1, b->steps);
    report_progress(t, b);
    return t->poll(t);
}

/* ---- the result ---- */

/* Rows of one kind to the coordinator, in as many messages as they need. */
static int send_rows(evaluate_t *e, wire_measured_t *m, wire_measured_kind_t kind, const void *rows,
                     uint32_t n, size_t size)
{
    uint32_t sent = 0;
    do {
        uint32_t some = n - sent < MEASURED_ROWS ? n - sent : MEASURED_ROWS;
        size_t bytes = sizeof *m + some * size;
        unsigned char *frame = malloc(bytes);
        if (!frame)
            return err_set(ERR_ENV, "validation: no memory for its result");
        wire_begin(m, WIRE_MEASURED, bytes);
        m->kind = kind;
        m->count = some;
        memcpy(frame, m, sizeof *m);
        if (some)
            memcpy(frame + sizeof *m, (const char *)rows + sent * size, some * size);
        int rc = report_send(e->t, frame, bytes);
        free(frame);
        if (rc < 0)
            return rc;
        sent += some;
    } while (sent < n);
    return 0;
}

static int send_classes(evaluate_t *e, const ap_row_t *rows, uint64_t n_rows, const double *sums,
                        wire_measured_t *m)
{
    trainer_t *t = e->t;
    int32_t nc = t->n_classes, rc;
    const double *rest = sums + 2 * nc;
    ap_result_t all;
    uint64_t *labels = malloc((size_t)nc * sizeof *labels);
    ap_class_t *each = malloc((size_t)nc * sizeof *each);
    wire_class_t *out = calloc((size_t)nc + 1, sizeof *out);
    if (!labels || !each || !out) {
        rc = err_set(ERR_ENV, "validation: out of memory for %d classes", nc);
        goto done;
    }
    for (int32_t c = 0; c < nc; c++)
        labels[c] = (uint64_t)sums[c];
    CHECK_GOTO(ap_compute_classes(rows, n_rows, labels, nc, &all, each), rc, done);
    out[0] = (wire_class_t){(uint32_t)rest[SUM_IMAGES],
                            (uint32_t)all.labels,
                            all.precision,
                            all.recall,
                            all.map50,
                            all.map};
    for (int32_t c = 0; c < nc; c++)
        out[c + 1] = (wire_class_t){(uint32_t)sums[nc + c], (uint32_t)labels[c], each[c].precision,
                                    each[c].recall,         each[c].map50,       each[c].map};
    m->infer_ns = rest[SUM_INFER];
    m->post_ns = rest[SUM_POST];
    m->images = rest[SUM_IMAGES];
    rc = send_rows(e, m, WIRE_MEASURED_CLASSES, out, (uint32_t)nc + 1, sizeof *out);
done:
    free(labels);
    free(each);
    free(out);
    return rc;
}

/* Counts of all ranks, added up on rank 0. */
static int gather_confusion(evaluate_t *e)
{
    trainer_t *t = e->t;
    confusion_t *m = &e->confusion;
    uint64_t bytes[WIRE_RANKS];
    wire_confused_t *own = NULL;
    void *all = NULL;
    uint32_t n = 0;
    size_t side = (size_t)m->classes + 1;
    int rc = confusion_rows(m, &own, &n);
    if (rc == 0)
        rc = collective_gather(t->coll, own, n * sizeof *own, &all, bytes);
    const wire_confused_t *row = all;
    for (uint32_t r = 0; rc == 0 && t->rank == 0 && r < t->ranks; r++)
        for (uint64_t i = 0; i < bytes[r] / sizeof *row; i++, row++)
            if (r > 0)
                m->counts[row->predicted * side + row->actual] += row->count;
    free(own);
    free(all);
    return rc;
}

static int finish(evaluate_t *e)
{
    trainer_t *t = e->t;
    int32_t nc = t->n_classes;
    uint64_t bytes[WIRE_RANKS], total = 0;
    wire_confused_t *confused = NULL;
    uint32_t n = 0;
    void *all = NULL;
    wire_measured_t m;
    int rc;
    double *sums = calloc(2 * (size_t)nc + SUMS, sizeof *sums);
    if (!sums)
        return err_set(ERR_ENV, "rank %u: out of memory for %d classes", t->rank, nc);
    memset(&m, 0, sizeof m);
    memcpy(sums, t->val.sums, (size_t)nc * sizeof *sums);
    memcpy(sums + nc, e->class_images, (size_t)nc * sizeof *sums);
    sums[2 * nc + SUM_IMAGES] = (double)e->images;
    sums[2 * nc + SUM_INFER] = (double)e->times[0];
    sums[2 * nc + SUM_POST] = (double)e->times[1];
    CHECK_GOTO(collective_sum(t->coll, sums, 2 * (uint32_t)nc + SUMS), rc, done);
    CHECK_GOTO(
        collective_gather(t->coll, t->val.rows, t->val.n_rows * sizeof(ap_row_t), &all, bytes), rc,
        done);
    CHECK_GOTO(gather_confusion(e), rc, done);
    if (t->rank != 0)
        goto done;
    for (uint32_t r = 0; r < t->ranks; r++)
        total += bytes[r];
    CHECK_GOTO(send_classes(e, all, total / sizeof(ap_row_t), sums, &m), rc, done);
    CHECK_GOTO(confusion_rows(&e->confusion, &confused, &n), rc, done);
    CHECK_GOTO(send_rows(e, &m, WIRE_MEASURED_CONFUSED, confused, n, sizeof *confused), rc, done);
    rc = send_rows(e, &m, WIRE_MEASURED_END, NULL, 0, 1);
done:
    free(confused);
    free(all);
    free(sums);
    return rc;
}

static int begin(evaluate_t *e)
{
    trainer_t *t = e->t;
    const options_t *o = t->o;
    e->measures = o->mode == OPT_MODE_VAL;
    e->tells = o->mode == OPT_MODE_PREDICT || o->save_json;
    e->frame = malloc(sizeof(wire_found_t) + (size_t)t->mem.max_det * sizeof(wire_box_t));
    e->class_images = calloc((size_t)t->n_classes, sizeof *e->class_images);
    if (!e->frame || !e->class_images)
        return err_set(ERR_ENV, "rank %u: out of memory for its results", t->rank);
    double conf = options_was_set(o, "conf") ? o->conf : EVALUATE_CONF;
    e->confusion.classes = t->n_classes;
    if (!e->measures)
        return 0;
    int rc = confusion_init(&e->confusion, t->n_classes, conf, EVALUATE_IOU);
    if (rc == ERR_FAILED && t->rank == 0)
        log_line(LOG_WARN, "%s", err_text());
    return rc == ERR_FAILED ? 0 : rc;
}

int evaluate_run(trainer_t *t)
{
    evaluate_t e = {.t = t};
    int rc = begin(&e);
    t->start_ns = clock_ns();
    for (t->seq = 0; rc == 0; t->seq++) {
        plan_batch_t b = plan_locate(t->plan, t->seq);
        if (b.phase == PLAN_END)
            break;
        rc = run_batch(&e, &b);
    }
    if (rc == 0)
        rc = finish(&e);
    confusion_fini(&e.confusion);
    free(e.class_images);
    free(e.frame);
    return rc;
}
