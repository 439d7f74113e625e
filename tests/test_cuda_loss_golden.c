/* The loss and its assigner on the GPU against the golden files, which test_loss.c has for the CPU:
 * the same limits. Who owns which anchor shows in the gradients. float32. */
#include "tests/golden.h"
#include "tests/twin.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ARENA = 8 << 20 };
#define LIMIT 1e-4

static const int32_t strides[K_LEVELS] = {8, 16, 32};

static k_detect_loss_t golden_problem(golden_dev_t *d, const safetensors_t *f)
{
    k_detect_loss_t p = {
        .gain_box = 7.5f, .gain_cls = 0.5f, .gain_dfl = 1.5f, .scaling = K_NONE, .sum = K_NONE};
    char name[16];
    for (int l = 0; l < K_LEVELS; l++) {
        snprintf(name, sizeof name, "box%d", l);
        p.box[l] = golden_tensor(d, golden_entry(f, name), 1);
        p.dbox[l] = golden_tensor(d, golden_entry(f, name), 0);
        snprintf(name, sizeof name, "cls%d", l);
        p.cls[l] = golden_tensor(d, golden_entry(f, name), 1);
        p.dcls[l] = golden_tensor(d, golden_entry(f, name), 0);
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

static uint64_t values_of(const k_tensor_t *x)
{
    return (uint64_t)x->n * (uint64_t)x->h * (uint64_t)x->w * (uint64_t)x->c;
}

/* One scale for the three levels: the largest gradient anywhere. */
static double golden_levels(twin_t *t, const safetensors_t *f, const char *prefix,
                            const k_tensor_t *x)
{
    double most = 0, scale = 1e-30;
    for (int l = 0; l < K_LEVELS; l++) {
        char name[16];
        snprintf(name, sizeof name, "%s%d", prefix, l);
        const float *want = golden_f32(f, name, NULL);
        float *got = twin_bytes_gpu(t, x[l].at, values_of(&x[l]) * sizeof *got);
        for (uint64_t i = 0; i < values_of(&x[l]); i++) {
            const double off = fabs((double)got[i] - (double)want[i]);
            scale = fmax(scale, fabs((double)want[i]));
            most = off <= most ? most : off == off ? off : INFINITY;
        }
        free(got);
    }
    return most / scale;
}

static void said(const char *what, const char *name, double difference)
{
    golden_worst_t w = {0};
    golden_note(&w, difference, name);
    golden_say(what, &w, LIMIT);
}

static double golden_items(twin_t *t, const safetensors_t *f, const k_detect_loss_t *p)
{
    const float *want = golden_f32(f, "items", NULL);
    float *items = twin_bytes_gpu(t, p->items, 4 * sizeof *items);
    double worst = 0;
    for (int i = 0; i < 4; i++) {
        const double off =
            fabs((double)items[i] - (double)want[i]) / fmax(1e-6, fabs((double)want[i]));
        worst = off <= worst ? worst : off == off ? off : INFINITY;
    }
    free(items);
    return worst;
}

static void golden_case(const char *name)
{
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    safetensors_t *f = golden_open(name);
    golden_dev_t d = {.dev = t.gpu, .ops = t.gpu->ops, .bytes = t.bytes};
    k_detect_loss_t p = golden_problem(&d, f);
    twin_ok(&t, t.gpu->ops->detect_loss(t.gpu, &p), 0);
    said("GPU: loss items", name, golden_items(&t, f, &p));
    said("GPU: gradients of box logits", name, golden_levels(&t, f, "dbox", p.dbox));
    said("GPU: gradients of class logits", name, golden_levels(&t, f, "dcls", p.dcls));
    safetensors_free(&f);
    twin_close(&t);
}

static void test_golden(void **state)
{
    (void)state;
    golden_case("loss_random");
    golden_case("loss_wide");
    golden_case("loss_crafted");
    golden_case("loss_empty");
    golden_case("loss_single");
}

/* Whichever of equal anchors is taken, items and the number of anchors with a box are the same. */
static void test_golden_ties(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    safetensors_t *f = golden_open("loss_ties");
    golden_dev_t d = {.dev = t.gpu, .ops = t.gpu->ops, .bytes = t.bytes};
    k_detect_loss_t p = golden_problem(&d, f);
    int64_t weights, found = 0;
    golden_f32(f, "weights", &weights);
    twin_ok(&t, t.gpu->ops->detect_loss(t.gpu, &p), 0);
    said("GPU: ties: loss items", "loss_ties", golden_items(&t, f, &p));
    for (int l = 0; l < K_LEVELS; l++) {
        const uint64_t count = values_of(&p.dbox[l]);
        float *g = twin_bytes_gpu(&t, p.dbox[l].at, count * sizeof *g);
        for (uint64_t i = 0; i < count; i += 4 * K_REG_MAX) {
            int some = 0;
            for (uint64_t k = 0; k < 4 * K_REG_MAX; k++)
                some |= g[i + k] != 0.0f;
            found += some;
        }
        free(g);
    }
    assert_int_equal(found, weights);
    safetensors_free(&f);
    twin_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_golden_ties),
    };
    return cmocka_run_group_tests_name("cuda_loss_golden", tests, NULL, NULL);
}
