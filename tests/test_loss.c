/* The assigner and the loss: golden numbers of facts/yolo.md 9, agreement with the PyTorch
 * statement (tests/reference/loss.py), central differences with the targets held fixed, and the
 * rules that are easy to get wrong. */
#include "kernels/cpu/loss.h"
#include "tests/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ARENA = 4 << 20 };
static const int32_t strides[K_LEVELS] = {8, 16, 32};

static k_detect_loss_t problem(golden_dev_t *d, const safetensors_t *f, int gradients)
{
    k_detect_loss_t p = {.gain_box = 7.5f, .gain_cls = 0.5f, .gain_dfl = 1.5f};
    char name[16];
    for (int l = 0; l < K_LEVELS; l++) {
        snprintf(name, sizeof name, "box%d", l);
        p.box[l] = golden_tensor(d, golden_entry(f, name), 1);
        p.dbox[l] = golden_tensor(d, golden_entry(f, name), 0);
        snprintf(name, sizeof name, "cls%d", l);
        p.cls[l] = golden_tensor(d, golden_entry(f, name), 1);
        p.dcls[l] = golden_tensor(d, golden_entry(f, name), 0);
        if (!gradients)
            p.dbox[l].at = p.dcls[l].at = K_NONE;
        p.stride[l] = strides[l];
    }
    const safetensors_entry_t *gt = golden_entry(f, "gt"), *count = golden_entry(f, "gt_count");
    p.nc = p.cls[0].c;
    p.max_gt = (int32_t)gt->shape[1];
    p.gt = golden_put(d, gt->data, gt->bytes);
    p.gt_count = golden_put(d, count->data, count->bytes);
    p.scale = (float)p.box[0].n;
    p.items = golden_take(d, 4 * sizeof(float));
    p.work_bytes = d->ops->detect_loss_work(d->dev, &p);
    p.work = golden_take(d, p.work_bytes);
    return p;
}

static void run(golden_dev_t *d, const k_detect_loss_t *p, float items[4])
{
    if (d->ops->detect_loss(d->dev, p) < 0)
        fail_msg("%s", d->ops->error(d->dev));
    golden_get(d, items, p->items, 4 * sizeof(float));
}

/* ---- golden numbers ---- */

static void test_ciou_numbers(void **state)
{
    (void)state;
    box_t a = {10, 10, 50, 60}, b = {12, 15, 55, 58};
    assert_float_equal(boxes_iou(a, b), 0.7376975, 1e-6);
    assert_float_equal(boxes_ciou(a, b), 0.7344009, 1e-6);
    assert_float_equal(boxes_ciou((box_t){0, 0, 10, 10}, (box_t){20, 20, 30, 40}), -0.4116895,
                       1e-6);
}

static void test_ciou_reference(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_ciou");
    int64_t n;
    const float *a = golden_f32(f, "a", &n), *b = golden_f32(f, "b", NULL);
    const float *want = golden_f32(f, "ciou", NULL), *grad = golden_f32(f, "grad", NULL);
    float value[256], g[1024];
    assert_true(n / 4 <= 256 && n >= 4);
    for (int64_t i = 0; i < n / 4; i++) {
        box_t x, y, d;
        memcpy(&x, a + 4 * i, sizeof x);
        memcpy(&y, b + 4 * i, sizeof y);
        value[i] = boxes_ciou_grad(x, y, &d);
        assert_float_equal(value[i], boxes_ciou(x, y), 0);
        memcpy(g + 4 * i, &d, sizeof d);
    }
    double dv = golden_difference(value, want, n / 4), dg = golden_difference(g, grad, n);
    golden_say("CIoU", &(golden_worst_t){dv, "value"}, 1e-5);
    golden_say("CIoU, gradient", &(golden_worst_t){dg, "gradient"}, 1e-4);
    safetensors_free(&f);
}

/* One 32 x 32 image (16 + 4 + 1 anchors), one class, one box: the DFL term from its definition. The
 * box is the only thing that varies by side; all logits equal means the term is log 16 whatever the
 * target. */
static void dfl_problem(golden_dev_t *d, k_detect_loss_t *p, float slope, const k_gt_t *gt)
{
    memset(p, 0, sizeof *p);
    float bins[16 * ANCHORS_BINS], zero[16] = {0};
    for (int i = 0; i < 16 * ANCHORS_BINS; i++)
        bins[i] = slope * (float)(i % K_REG_MAX);
    int32_t one = 1;
    for (int l = 0; l < K_LEVELS; l++) {
        int32_t side = 4 >> l;
        p->box[l] = (k_tensor_t){0, 1, side, side, ANCHORS_BINS, ANCHORS_BINS, K_F32};
        p->cls[l] = (k_tensor_t){0, 1, side, side, 1, 1, K_F32};
        p->box[l].at = golden_put(d, bins, (uint64_t)(side * side) * ANCHORS_BINS * sizeof(float));
        p->cls[l].at = golden_put(d, zero, (uint64_t)(side * side) * sizeof(float));
        p->dbox[l].at = p->dcls[l].at = K_NONE;
        p->stride[l] = strides[l];
    }
    p->nc = p->max_gt = 1;
    p->gain_box = p->gain_cls = p->gain_dfl = p->scale = 1;
    p->gt = golden_put(d, gt, sizeof *gt);
    p->gt_count = golden_put(d, &one, sizeof one);
    p->items = golden_take(d, 4 * sizeof(float));
    p->work_bytes = d->ops->detect_loss_work(d->dev, p);
    p->work = golden_take(d, p->work_bytes);
}

/* With the one foreground anchor chosen by hand: weight 1, so S = 1 and the item is the DFL itself.
 */
static double dfl_of(float slope, float distance)
{
    golden_dev_t d;
    golden_dev_open(&d, 1, ARENA);
    k_detect_loss_t p;
    /* Anchor 5 of level 0 is at (1.5, 1.5) in grid units: every side `distance` away. */
    float lo = (1.5f - distance) * 8, hi = (1.5f + distance) * 8;
    k_gt_t gt = {0, lo, lo, hi, hi};
    dfl_problem(&d, &p, slope, &gt);
    cpu_dev_t *dev = cpu_dev(d.dev);
    assign_t a;
    loss_items_t items;
    double partial[64 * 3];
    assert_int_equal(assign_open(dev, &p, cpu_ptr(dev, p.work), &a), 0);
    assign_decode(dev, &a);
    for (int i = 0; i < a.head.anchors; i++) {
        a.owner[i] = i == 5 ? 0 : -1;
        a.weight[i] = i == 5 ? 1 : 0;
    }
    loss_terms(dev, &p, &a, loss_scores(&a), partial, &items);
    golden_dev_close(&d);
    assert_float_equal(items.scores, 1, 0);
    return items.dfl;
}

static void test_dfl_numbers(void **state)
{
    (void)state;
    assert_float_equal(dfl_of(0, 3.3f), 2.7725887, 1e-6);
    assert_float_equal(dfl_of(0.1f, 3.3f), 3.2966514, 1e-6);
    assert_float_equal(dfl_of(0.1f, 20), 2.1276515, 1e-6);
}

static void test_expectation(void **state)
{
    (void)state;
    float bins[ANCHORS_BINS];
    for (int i = 0; i < ANCHORS_BINS; i++)
        bins[i] = (float)(i % K_REG_MAX) / 10;
    box_t b;
    anchors_decode(bins, ANCHORS_BINS, 1, 2, 3, &b);
    assert_float_equal(b.x1, 2.5 - 9.5391937, 2e-6);
    assert_float_equal(b.y1, 3.5 - 9.5391937, 2e-6);
    assert_float_equal(b.x2, 2.5 + 9.5391937, 2e-6);
    assert_float_equal(b.y2, 3.5 + 9.5391937, 2e-6);
}

/* ---- against the reference ---- */

static double compare_levels(golden_dev_t *d, const safetensors_t *f, const char *prefix,
                             const k_tensor_t *t)
{
    /* One scale for the three levels: of the largest gradient anywhere. */
    double most = 0, scale = 1e-30;
    for (int l = 0; l < K_LEVELS; l++) {
        char name[16];
        int64_t n;
        snprintf(name, sizeof name, "%s%d", prefix, l);
        const float *want = golden_f32(f, name, &n);
        float *got = malloc((size_t)n * sizeof *got);
        golden_get(d, got, t[l].at, (uint64_t)n * sizeof *got);
        for (int64_t i = 0; i < n; i++) {
            scale = fmax(scale, fabs((double)want[i]));
            assert_false(isnan(got[i]));
            most = fmax(most, fabs((double)got[i] - (double)want[i]));
        }
        free(got);
    }
    return most / scale;
}

static golden_worst_t one(const char *name, double difference)
{
    golden_worst_t w = {0};
    golden_note(&w, difference, name);
    return w;
}

static void check_case(const char *name, int threads)
{
    safetensors_t *f = golden_open(name);
    golden_dev_t d;
    golden_dev_open(&d, threads, ARENA);
    k_detect_loss_t p = problem(&d, f, 1);
    float items[4];
    run(&d, &p, items);

    assign_t a;
    cpu_dev_t *dev = cpu_dev(d.dev);
    assert_int_equal(assign_open(dev, &p, cpu_ptr(dev, p.work), &a), 0);
    int64_t n;
    const int32_t *owner = golden_i32(f, "owner", &n);
    const float *weight = golden_f32(f, "weight", NULL), *want = golden_f32(f, "items", NULL);
    for (int64_t i = 0; i < n; i++)
        if (weight[i] > 0 || a.weight[i] > 0)
            assert_int_equal(a.owner[i], owner[i]);
    double dw = golden_difference(a.weight, weight, n);
    double di = 0;
    for (int i = 0; i < 4; i++)
        di = fmax(di, fabs((double)items[i] - (double)want[i]) / fmax(1e-6, fabs((double)want[i])));
    double db = compare_levels(&d, f, "dbox", p.dbox), dc = compare_levels(&d, f, "dcls", p.dcls);
    golden_say("loss items", (golden_worst_t[]){one(name, di)}, 1e-4);
    golden_say("target scores", (golden_worst_t[]){one(name, dw)}, 1e-4);
    golden_say("gradients of box logits", (golden_worst_t[]){one(name, db)}, 1e-4);
    golden_say("gradients of class logits", (golden_worst_t[]){one(name, dc)}, 1e-4);
    golden_dev_close(&d);
    safetensors_free(&f);
}

static void test_reference(void **state)
{
    (void)state;
    check_case("loss_random", 1);
    check_case("loss_wide", 1);
    check_case("loss_wide", 4);
    check_case("loss_crafted", 1);
    check_case("loss_crafted", 3);
    check_case("loss_empty", 2);
    check_case("loss_single", 1);
}

static int by_size(const void *a, const void *b)
{
    float x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* Equal anchors on both sides of the top ten's border, and two equal boxes: whichever is taken, the
 * loss, the number of anchors and their weights are the same (tests/reference/loss_golden.py). */
static void test_ties(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_ties");
    golden_dev_t d;
    golden_dev_open(&d, 2, ARENA);
    k_detect_loss_t p = problem(&d, f, 0);
    float items[4], *weights;
    int64_t n, found = 0;
    run(&d, &p, items);
    assign_t a;
    cpu_dev_t *dev = cpu_dev(d.dev);
    assert_int_equal(assign_open(dev, &p, cpu_ptr(dev, p.work), &a), 0);
    const float *want = golden_f32(f, "weights", &n), *sums = golden_f32(f, "items", NULL);
    weights = malloc((size_t)a.head.anchors * sizeof *weights);
    for (int32_t i = 0; i < a.head.anchors; i++)
        if (a.owner[i] >= 0)
            weights[found++] = a.weight[i];
    assert_int_equal(found, n);
    assert_true(n == 10 && want[0] > 1e-3f); /* the top ten of both boxes are the same ten */
    qsort(weights, (size_t)n, sizeof *weights, by_size);
    golden_say("ties: target scores",
               (golden_worst_t[]){one("loss_ties", golden_difference(weights, want, n))}, 1e-4);
    golden_say("ties: loss items",
               (golden_worst_t[]){one("loss_ties", golden_difference(items, sums, 4))}, 1e-4);
    free(weights);
    golden_dev_close(&d);
    safetensors_free(&f);
}

/* ---- central differences ---- */

/* Owners and weights are held fixed, and so is the CIoU's alpha, which the gradient takes for a
 * constant (facts/yolo.md 3.4): the box term is summed here in double, the others by loss_terms. */
typedef struct {
    golden_dev_t d;
    k_detect_loss_t p; /* without gradients and with gain_box = 0 */
    assign_t a;
    double *partial, *alpha; /* alpha [n][anchors] */
} frozen_t;

static double ciou_double(const box_t *p, const box_t *t, double *alpha, int keep_alpha)
{
    const double eps = 1e-7;
    double w = (double)p->x2 - p->x1, h = (double)p->y2 - p->y1 + eps;
    double tw = (double)t->x2 - t->x1, th = (double)t->y2 - t->y1 + eps;
    double iw = fmax(0, fmin(p->x2, t->x2) - fmax(p->x1, t->x1));
    double ih = fmax(0, fmin(p->y2, t->y2) - fmax(p->y1, t->y1));
    double iou = iw * ih / (w * h + tw * th - iw * ih + eps);
    double cw = fmax(p->x2, t->x2) - fmin(p->x1, t->x1),
           ch = fmax(p->y2, t->y2) - fmin(p->y1, t->y1);
    double dx = (double)t->x1 + t->x2 - p->x1 - p->x2, dy = (double)t->y1 + t->y2 - p->y1 - p->y2;
    double angle = atan(tw / th) - atan(w / h), v = 4 / (M_PI * M_PI) * angle * angle;
    if (!keep_alpha)
        *alpha = v / (v - iou + 1 + eps);
    return iou - ((dx * dx + dy * dy) / 4 / (cw * cw + ch * ch + eps) + v * *alpha);
}

/* Sum of weight * (1 - CIoU) over the foreground. */
static double box_sum(frozen_t *z, int keep_alpha)
{
    double sum = 0;
    const anchors_t *h = &z->a.head;
    for (int32_t i = 0; i < h->n; i++) {
        for (int32_t k = 0; k < h->anchors; k++) {
            int64_t at = (int64_t)i * h->anchors + k;
            if (z->a.owner[at] < 0)
                continue;
            int32_t l, y, x;
            anchors_locate(h, k, &l, &y, &x);
            const k_gt_t *g = &z->a.gt[(int64_t)i * z->a.max_gt + z->a.owner[at]];
            float s = (float)h->stride[l];
            box_t t = {g->x1 / s, g->y1 / s, g->x2 / s, g->y2 / s};
            double c = ciou_double(&z->a.boxes[at], &t, &z->alpha[at], keep_alpha);
            sum += (double)z->a.weight[at] * (1 - c);
        }
    }
    return sum;
}

static double frozen_total(frozen_t *z)
{
    cpu_dev_t *dev = cpu_dev(z->d.dev);
    loss_items_t i;
    assign_decode(dev, &z->a);
    loss_terms(dev, &z->p, &z->a, loss_scores(&z->a), z->partial, &i);
    return (7.5 * box_sum(z, 1) / i.scores + i.cls + i.dfl) * (double)z->p.scale;
}

/* Every seventh logit of a level: the largest difference, and in *most the largest gradient. */
static double frozen_check(frozen_t *z, const k_tensor_t *x, const k_tensor_t *dx, double *most)
{
    float *v = cpu_f32(cpu_dev(z->d.dev), x->at);
    const float *g = cpu_f32(cpu_dev(z->d.dev), dx->at);
    double worst = 0;
    int64_t n = cpu_pixels(x) * x->c;
    for (int64_t i = 0; i < n; i += 7) {
        float keep = v[i], up = keep + 0.01f, down = keep - 0.01f;
        double analytic = (double)g[i];
        v[i] = up;
        double high = frozen_total(z);
        v[i] = down;
        double low = frozen_total(z);
        v[i] = keep;
        double numeric = (high - low) / ((double)up - (double)down);
        worst = fmax(worst, fabs(numeric - analytic));
        *most = fmax(*most, fabs(analytic));
    }
    return worst;
}

static void test_differences(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_random");
    frozen_t z;
    float items[4];
    golden_dev_open(&z.d, 1, ARENA);
    k_detect_loss_t with = problem(&z.d, f, 1);
    run(&z.d, &with, items);
    z.p = with;
    z.p.gain_box = 0;
    for (int l = 0; l < K_LEVELS; l++)
        z.p.dbox[l].at = z.p.dcls[l].at = K_NONE;
    cpu_dev_t *dev = cpu_dev(z.d.dev);
    assert_int_equal(assign_open(dev, &z.p, cpu_ptr(dev, z.p.work), &z.a), 0);
    z.partial = malloc((size_t)z.a.head.n * (size_t)z.a.head.rows * 3 * sizeof *z.partial);
    z.alpha = calloc((size_t)z.a.head.n * (size_t)z.a.head.anchors, sizeof *z.alpha);
    double mine = 7.5 * box_sum(&z, 0) / (double)items[3];
    assert_float_equal(mine / (double)items[0], 1, 1e-5);
    double most[2] = {0, 0}, worst[2] = {0, 0};
    for (int l = 0; l < K_LEVELS; l++) {
        worst[0] = fmax(worst[0], frozen_check(&z, &with.box[l], &with.dbox[l], &most[0]));
        worst[1] = fmax(worst[1], frozen_check(&z, &with.cls[l], &with.dcls[l], &most[1]));
    }
    print_message("differences: box %.1e, cls %.1e of the largest gradient\n", worst[0] / most[0],
                  worst[1] / most[1]);
    assert_true(most[0] > 0 && most[1] > 0);
    assert_true(worst[0] <= 1e-3 * most[0]);
    assert_true(worst[1] <= 1e-3 * most[1]);
    free(z.alpha);
    free(z.partial);
    golden_dev_close(&z.d);
    safetensors_free(&f);
}

/* ---- rules ---- */

/* No boxes: only the class term, and no gradient at all in the boxes. */
static void test_no_boxes(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_random");
    golden_dev_t d;
    golden_dev_open(&d, 2, ARENA);
    k_detect_loss_t p = problem(&d, f, 1);
    int32_t none[2] = {0, 0};
    p.gt_count = golden_put(&d, none, sizeof none);
    float items[4];
    run(&d, &p, items);
    assert_float_equal(items[0], 0, 0);
    assert_float_equal(items[2], 0, 0);
    assert_float_equal(items[3], 1, 0);
    double want = 0;
    for (int l = 0; l < K_LEVELS; l++) {
        int64_t n = cpu_pixels(&p.box[l]) * p.box[l].c, m = cpu_pixels(&p.cls[l]) * p.nc;
        const float *g = cpu_f32(cpu_dev(d.dev), p.dbox[l].at);
        const float *x = cpu_f32(cpu_dev(d.dev), p.cls[l].at);
        for (int64_t i = 0; i < n; i++)
            assert_float_equal(g[i], 0, 0);
        for (int64_t i = 0; i < m; i++)
            want += log1p(exp((double)x[i]));
    }
    assert_float_equal(items[1] / (0.5 * want), 1, 1e-5);
    golden_dev_close(&d);
    safetensors_free(&f);
}

/* A bias as after initialisation (-11.5): log(1 + e^x) must keep its relative accuracy. */
static void test_far_background(void **state)
{
    (void)state;
    golden_dev_t d;
    golden_dev_open(&d, 1, ARENA);
    k_detect_loss_t p;
    k_gt_t none = {0, 0, 0, 0, 0};
    dfl_problem(&d, &p, 0, &none);
    float items[4];
    double want = 0;
    for (int l = 0; l < K_LEVELS; l++) {
        float *x = cpu_f32(cpu_dev(d.dev), p.cls[l].at);
        for (int64_t i = 0; i < cpu_pixels(&p.cls[l]); i++) {
            x[i] = -11.5366f - 0.01f * (float)i;
            want += log1p(exp((double)x[i]));
        }
    }
    run(&d, &p, items);
    assert_float_equal(items[1] / want, 1, 1e-5);
    golden_dev_close(&d);
}

/* The sums are over images: a batch's unnormalised items are those of its images. */
static void test_sum_over_images(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_crafted");
    golden_dev_t d;
    golden_dev_open(&d, 2, ARENA);
    k_detect_loss_t p = problem(&d, f, 0);
    float all[4], one[4];
    double sum[4] = {0, 0, 0, 0};
    run(&d, &p, all);
    int32_t n = p.box[0].n;
    for (int32_t i = 0; i < n; i++) {
        k_detect_loss_t q = p;
        for (int l = 0; l < K_LEVELS; l++) {
            uint64_t pixels = (uint64_t)i * (uint64_t)(p.box[l].h * p.box[l].w);
            q.box[l].n = q.cls[l].n = 1;
            q.box[l].at += pixels * ANCHORS_BINS * sizeof(float);
            q.cls[l].at += pixels * (uint64_t)p.nc * sizeof(float);
        }
        q.gt += (uint64_t)i * (uint64_t)p.max_gt * sizeof(k_gt_t);
        q.gt_count += (uint64_t)i * sizeof(int32_t);
        run(&d, &q, one);
        for (int j = 0; j < 3; j++)
            sum[j] += (double)one[j] * (double)one[3];
        sum[3] += (double)one[3];
    }
    for (int j = 0; j < 3; j++)
        assert_float_equal(sum[j] / ((double)all[j] * (double)all[3]), 1, 1e-5);
    assert_float_equal(sum[3] / (double)all[3], 1, 1e-5); /* each image's S is above 1 here */
    golden_dev_close(&d);
    safetensors_free(&f);
}

/* 1, 2 and 5 threads give the same bits, and so does a second run in the same memory. */
static void test_threads(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_crafted");
    float first[4];
    unsigned char *bits = NULL;
    const int threads[] = {1, 2, 5};
    for (int t = 0; t < 3; t++) {
        golden_dev_t d;
        golden_dev_open(&d, threads[t], ARENA);
        k_detect_loss_t p = problem(&d, f, 1);
        float items[4];
        run(&d, &p, items);
        run(&d, &p, items);
        uint64_t bytes = (uint64_t)cpu_pixels(&p.dbox[0]) * ANCHORS_BINS * sizeof(float);
        unsigned char *now = malloc(bytes);
        golden_get(&d, now, p.dbox[0].at, bytes);
        if (t == 0) {
            memcpy(first, items, sizeof first);
            bits = now;
        } else {
            assert_memory_equal(items, first, sizeof first);
            assert_memory_equal(now, bits, bytes);
            free(now);
        }
        golden_dev_close(&d);
    }
    free(bits);
    safetensors_free(&f);
}

/* Bins whose expectation is `distance`, in [0, 1]: two of them share the weight. */
static void fill_side(float *bins, double distance)
{
    double d = fmin(fmax(distance, 1e-6), 1 - 1e-6);
    for (int i = 0; i < K_REG_MAX; i++)
        bins[i] = -60;
    bins[0] = (float)log(1 - d);
    bins[1] = (float)log(d);
}

/* A box under 8 px reaches anchors less than 8 px from its centre (facts/yolo.md 3.3 step 1). Every
 * anchor's prediction spans from itself to the box, so that its metric is above 0 wherever it is a
 * candidate. */
static void test_tiny_box(void **state)
{
    (void)state;
    golden_dev_t d;
    golden_dev_open(&d, 1, ARENA);
    k_detect_loss_t p;
    k_gt_t gt = {0, 12.5f, 12.5f, 19.5f, 19.5f};
    dfl_problem(&d, &p, 0, &gt);
    cpu_dev_t *dev = cpu_dev(d.dev);
    for (int l = 0; l < K_LEVELS; l++) {
        float *bins = cpu_f32(dev, p.box[l].at);
        for (int i = 0; i < p.box[l].h * p.box[l].w; i++, bins += ANCHORS_BINS) {
            double s = strides[l], x = (i % p.box[l].w + 0.5) * s, y = (i / p.box[l].w + 0.5) * s;
            fill_side(bins, (x - 12.5) / s);
            fill_side(bins + 16, (y - 12.5) / s);
            fill_side(bins + 32, (19.5 - x) / s);
            fill_side(bins + 48, (19.5 - y) / s);
        }
    }
    float items[4];
    run(&d, &p, items);
    assign_t a;
    assert_int_equal(assign_open(dev, &p, cpu_ptr(dev, p.work), &a), 0);
    /* 16 +- 8, ends excluded: level 0's 12 and 20; level 1's 8 and 24 lie on the edge; level
     * 2's 16. */
    for (int i = 0; i < 16; i++) {
        int x = i % 4, y = i / 4;
        int in = (x == 1 || x == 2) && (y == 1 || y == 2);
        assert_int_equal(a.owner[i], in ? 0 : -1);
    }
    for (int i = 16; i < 20; i++)
        assert_int_equal(a.owner[i], -1);
    assert_int_equal(a.owner[20], 0);
    golden_dev_close(&d);
}

static void test_refused(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_random");
    golden_dev_t d;
    golden_dev_open(&d, 1, ARENA);
    k_detect_loss_t p = problem(&d, f, 1);
    k_detect_loss_t bad = p;
    bad.work_bytes--;
    assert_int_equal(d.ops->detect_loss(d.dev, &bad), -1);
    assert_non_null(strstr(d.ops->error(d.dev), "work"));
    ((k_gt_t *)cpu_ptr(cpu_dev(d.dev), p.gt))[0].cls = (float)p.nc;
    assert_int_equal(d.ops->detect_loss(d.dev, &p), -1);
    assert_non_null(strstr(d.ops->error(d.dev), "class"));
    ((int32_t *)cpu_ptr(cpu_dev(d.dev), p.gt_count))[1] = p.max_gt + 1;
    ((k_gt_t *)cpu_ptr(cpu_dev(d.dev), p.gt))[0].cls = 0;
    assert_int_equal(d.ops->detect_loss(d.dev, &p), -1);
    assert_non_null(strstr(d.ops->error(d.dev), "room"));
    golden_dev_close(&d);
    safetensors_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ciou_numbers),   cmocka_unit_test(test_ciou_reference),
        cmocka_unit_test(test_dfl_numbers),    cmocka_unit_test(test_expectation),
        cmocka_unit_test(test_reference),      cmocka_unit_test(test_ties),
        cmocka_unit_test(test_differences),    cmocka_unit_test(test_no_boxes),
        cmocka_unit_test(test_far_background), cmocka_unit_test(test_sum_over_images),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_tiny_box),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
