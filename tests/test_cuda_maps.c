/* The operations that keep, halve or double the map, on the GPU beside the CPU's: depthwise
 * convolution, pooling, enlargement, copy, image, cast; in each format. */
#include "tests/twin_near.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ARENA = 128 << 20, SANITIZED = 1 << 17 }; /* values of a case where a sanitizer looks on */

static k_dtype_t format;

typedef struct {
    int n, h, w, c, before, after;
} map_case_t;

/* Sizes that do and do not end with a strip, channels that are and are not a whole number of 16
 * bytes, in slices that begin at 16 bytes and elsewhere. */
static const map_case_t map_cases[] = {
    {2, 7, 9, 16, 0, 0},    {1, 1, 1, 8, 0, 0},       {3, 2, 5, 24, 8, 16},  {1, 5, 2, 3, 1, 0},
    {5, 6, 3, 5, 0, 2},     {1, 12, 11, 80, 0, 0},    {2, 1, 6, 300, 0, 0},  {2, 8, 8, 32, 4, 4},
    {4, 40, 37, 64, 64, 0}, {2, 20, 20, 512, 0, 512}, {1, 9, 10, 129, 0, 0},
};

typedef struct {
    map_case_t c;
    twin_t *t; /* the test's, with this case's places behind those of the cases before */
    twin_tensor_t x, y, dy, dx;
} map_run_t;

/* enlarge: y and dy are twice as large. */
static void map_run_init(map_run_t *r, const map_case_t *c, twin_t *t, int enlarge)
{
    *r = (map_run_t){.c = *c, .t = t};
    const int oh = c->h * (enlarge ? 2 : 1), ow = c->w * (enlarge ? 2 : 1);
    r->x = twin_tensor(t, c->n, c->h, c->w, c->c, c->before, c->after);
    r->dx = twin_tensor(t, c->n, c->h, c->w, c->c, c->after, c->before);
    r->y = twin_tensor(t, c->n, oh, ow, c->c, c->before, c->after);
    r->dy = twin_tensor(t, c->n, oh, ow, c->c, c->after, c->before);
    twin_fill(t, &r->x, -1.0, 1.0);
    twin_fill(t, &r->dy, -1.0, 1.0);
}

/* The gradient overwrites poison, then adds to values. */
static void gradient(map_run_t *r, const char *what, k_at place,
                     int (*op)(map_run_t *r, k_dev_t *dev, int gpu, k_at place, int acc))
{
    twin_t *t = r->t;
    for (int acc = 0; acc < 2; acc++) {
        if (acc)
            twin_fill(t, &r->dx, -1.0, 1.0);
        int on_gpu = op(r, t->gpu, 1, place, acc);
        twin_ok(t, on_gpu, op(r, t->cpu, 0, place, acc));
        twin_near(t, what, &r->dx, 2e-6);
    }
}

static const k_tensor_t *side(const twin_tensor_t *x, int gpu)
{
    return gpu ? &x->gpu : &x->cpu;
}

static int dwconv_dx(map_run_t *r, k_dev_t *dev, int gpu, k_at w, int acc)
{
    return dev->ops->dwconv_dx(dev, side(&r->dy, gpu), w, side(&r->dx, gpu), acc);
}

static int maxpool5_dx(map_run_t *r, k_dev_t *dev, int gpu, k_at index, int acc)
{
    return dev->ops->maxpool_dx(dev, 5, side(&r->dy, gpu), index, side(&r->dx, gpu), acc);
}

static int maxpool3_dx(map_run_t *r, k_dev_t *dev, int gpu, k_at index, int acc)
{
    return dev->ops->maxpool_dx(dev, 3, side(&r->dy, gpu), index, side(&r->dx, gpu), acc);
}

static int upsample_dx(map_run_t *r, k_dev_t *dev, int gpu, k_at none, int acc)
{
    (void)none;
    return dev->ops->upsample_dx(dev, side(&r->dy, gpu), side(&r->dx, gpu), acc);
}

static int copy(map_run_t *r, k_dev_t *dev, int gpu, k_at none, int acc)
{
    (void)none;
    return dev->ops->copy(dev, side(&r->x, gpu), side(&r->dx, gpu), acc);
}

static void depthwise(map_run_t *r)
{
    twin_t *t = r->t;
    const k_ops_t *gpu = t->gpu->ops, *cpu = t->cpu->ops;
    const int64_t weights = 9 * (int64_t)r->c.c;
    k_at w = twin_place(t, (uint64_t)weights * sizeof(float));
    k_at dw = twin_place(t, (uint64_t)weights * sizeof(float));
    twin_fill_half(t, w, weights, -1.0, 1.0);
    int on_gpu = gpu->dwconv(t->gpu, &r->x.gpu, w, &r->y.gpu);
    twin_ok(t, on_gpu, cpu->dwconv(t->cpu, &r->x.cpu, w, &r->y.cpu));
    twin_near(t, "dwconv", &r->y, 2e-6);
    gradient(r, "dwconv dx", w, dwconv_dx);
    twin_fill_floats(t, dw, weights, -1.0, 1.0);
    float *start = twin_bytes_gpu(t, dw, (uint64_t)weights * sizeof(float));
    for (int i = 0; i < 2; i++) {
        on_gpu = gpu->dwconv_dw(t->gpu, &r->x.gpu, &r->dy.gpu, dw);
        twin_ok(t, on_gpu, cpu->dwconv_dw(t->cpu, &r->x.cpu, &r->dy.cpu, dw));
        twin_near_floats(t, "dwconv dw", dw, weights, 2e-5);
    }
    /* The same in every run. */
    void *twice = twin_bytes_gpu(t, dw, (uint64_t)weights * sizeof(float));
    twin_put(t, dw, start, (uint64_t)weights * sizeof(float));
    for (int i = 0; i < 2; i++)
        twin_ok(t, gpu->dwconv_dw(t->gpu, &r->x.gpu, &r->dy.gpu, dw), 0);
    void *again = twin_bytes_gpu(t, dw, (uint64_t)weights * sizeof(float));
    assert_memory_equal(twice, again, (size_t)weights * sizeof(float));
    free(start);
    free(twice);
    free(again);
}

/* Weights that begin where no 16 bytes can be read. */
static void test_depthwise_offset(void **state)
{
    (void)state;
    const map_case_t c = {1, 6, 7, 16, 0, 0};
    twin_t twin, *t = &twin;
    map_run_t r;
    twin_open(t, format, ARENA);
    map_run_init(&r, &c, t, 0);
    k_at w = twin_place(t, 10 * 16 * sizeof(float)) + 4;
    twin_fill_half(t, w, 9 * 16, -1.0, 1.0);
    int on_gpu = t->gpu->ops->dwconv(t->gpu, &r.x.gpu, w, &r.y.gpu);
    twin_ok(t, on_gpu, t->cpu->ops->dwconv(t->cpu, &r.x.cpu, w, &r.y.cpu));
    twin_near(t, "dwconv", &r.y, 2e-6);
    twin_close(t);
}

/* The same comparisons and so the same indices, to the bit. */
static void pool_once(map_run_t *r, int k, k_at index, uint64_t count)
{
    twin_t *t = r->t;
    int on_gpu = t->gpu->ops->maxpool(t->gpu, k, &r->x.gpu, &r->y.gpu, index);
    twin_ok(t, on_gpu, t->cpu->ops->maxpool(t->cpu, k, &r->x.cpu, &r->y.cpu, index));
    twin_same_bytes(t, "index", index, count);
    twin_gaps_untouched(t, &r->y);
}

static void pool(map_run_t *r)
{
    twin_t *t = r->t;
    const map_case_t *c = &r->c;
    const uint64_t count = (uint64_t)(c->n * c->h * c->w * c->c);
    k_at index = twin_place(t, count);
    pool_once(r, 5, index, count);
    twin_near(t, "maxpool", &r->y, 0.0);
    gradient(r, "maxpool dx", index, maxpool5_dx);
    pool_once(r, 3, index, count);
    twin_near(t, "maxpool of 3", &r->y, 0.0);
    gradient(r, "maxpool dx of 3", index, maxpool3_dx);
    /* All equal: the first in row order. All poison: a NaN is the maximum. */
    twin_fill(t, &r->x, 0.5, 0.5);
    pool_once(r, 5, index, count);
    twin_tensor_t poison = twin_tensor(t, c->n, c->h, c->w, c->c, c->before, c->after);
    r->x = poison;
    pool_once(r, 5, index, count);
}

static void enlarge(map_run_t *r)
{
    twin_t *t = r->t;
    int on_gpu = t->gpu->ops->upsample(t->gpu, &r->x.gpu, &r->y.gpu);
    twin_ok(t, on_gpu, t->cpu->ops->upsample(t->cpu, &r->x.cpu, &r->y.cpu));
    twin_near(t, "upsample", &r->y, 0.0);
    gradient(r, "upsample dx", K_NONE, upsample_dx);
}

static void copies(map_run_t *r)
{
    gradient(r, "copy", K_NONE, copy);
}

static void each_case(void (*test)(map_run_t *), int larger)
{
    const int sanitized = getenv("SLUICE_TEST_SANITIZE") != NULL;
    twin_t t;
    twin_open(&t, format, ARENA);
    for (size_t i = 0; i < sizeof map_cases / sizeof *map_cases; i++) {
        const map_case_t *c = &map_cases[i];
        if (sanitized && c->n * c->h * c->w * c->c > SANITIZED)
            continue;
        map_run_t r;
        map_run_init(&r, c, &t, larger);
        test(&r);
    }
    twin_close(&t);
}

static void test_depthwise(void **state)
{
    (void)state;
    each_case(depthwise, 0);
}

static void test_pool(void **state)
{
    (void)state;
    each_case(pool, 0);
}

static void test_upsample(void **state)
{
    (void)state;
    each_case(enlarge, 1);
}

static void test_copy(void **state)
{
    (void)state;
    each_case(copies, 0);
}

/* Every byte value; without gaps and with; from bytes of which 16, or even 8, cannot be read at once.
 */
static void test_image(void **state)
{
    (void)state;
    static const struct {
        int n, h, w, after, skip;
    } cases[] = {{2, 33, 47, 0, 0}, {1, 8, 8, 0, 0},  {2, 5, 7, 0, 4},
                 {1, 6, 5, 0, 12},  {2, 9, 11, 5, 0}, {1, 1, 1, 1, 8}};
    twin_t t;
    twin_open(&t, format, ARENA);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int n = cases[i].n, h = cases[i].h, w = cases[i].w;
        const size_t count = (size_t)(n * h * w * 3);
        uint8_t *bytes = malloc(count);
        assert_non_null(bytes);
        for (size_t k = 0; k < count; k++)
            bytes[k] = (uint8_t)(k < 256 ? k : (size_t)twin_random(&t, 0.0, 256.0));
        k_at at = twin_place(&t, count + 16) + (k_at)cases[i].skip;
        twin_put(&t, at, bytes, count);
        twin_tensor_t y = twin_tensor(&t, n, h, w, 3, 0, cases[i].after);
        int on_gpu = t.gpu->ops->image(t.gpu, at, &y.gpu);
        twin_ok(&t, on_gpu, t.cpu->ops->image(t.cpu, at, &y.cpu));
        twin_near(&t, "image", &y, 0.0);
        free(bytes);
    }
    twin_close(&t);
}

/* The CPU's twin copies: its values are what the format rounds. */
static void test_cast(void **state)
{
    (void)state;
    static const struct {
        int count, skip;
    } cases[] = {{1, 0}, {7, 0}, {4096, 0}, {100003, 0}, {1001, 1}};
    twin_t t;
    twin_open(&t, format, ARENA);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int count = cases[i].count;
        k_at src = twin_place(&t, (uint64_t)(count + 4) * sizeof(float)) +
                   (k_at)cases[i].skip * sizeof(float);
        twin_fill_floats(&t, src, count, -3.0, 3.0);
        twin_tensor_t y = twin_tensor(&t, 1, 1, 1, count, 0, 8);
        int on_gpu = t.gpu->ops->cast(t.gpu, src, y.gpu.at, t.dtype, (uint64_t)count);
        twin_ok(&t, on_gpu, t.cpu->ops->cast(t.cpu, src, y.cpu.at, K_F32, (uint64_t)count));
        twin_near(&t, "cast", &y, 0.0);
    }
    twin_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    twin_t twin, *t = &twin;
    map_run_t r;
    twin_open(t, format, ARENA);
    map_run_init(&r, &map_cases[0], t, 0);
    k_dev_t *dev = t->gpu;
    k_tensor_t y = r.y.gpu;
    y.w--;
    twin_refused(t, dev->ops->copy(dev, &r.x.gpu, &y, 0), "copy");
    twin_refused(t, dev->ops->dwconv(dev, &r.x.gpu, r.x.gpu.at, &y), "dwconv");
    twin_refused(t, dev->ops->dwconv(dev, &r.x.gpu, K_NONE, &r.y.gpu), "weights");
    twin_refused(t, dev->ops->dwconv_dw(dev, &r.x.gpu, &r.dy.gpu, t->bytes), "dw");
    twin_refused(t, dev->ops->upsample(dev, &r.x.gpu, &r.y.gpu), "twice as large");
    twin_refused(t, dev->ops->maxpool(dev, 4, &r.x.gpu, &r.y.gpu, 0), "odd windows");
    twin_refused(t, dev->ops->maxpool(dev, 5, &r.x.gpu, &r.y.gpu, t->bytes - 4), "index");
    twin_refused(t, dev->ops->image(dev, 0, &r.y.gpu), "channels");
    twin_refused(t, dev->ops->cast(dev, 0, 256, t->dtype, 0), "impossible");
    twin_refused(t, dev->ops->cast(dev, 0, 256, t->dtype, UINT64_MAX / 4 + 2), "impossible");
    twin_close(t);
}

/* The same tests for each format. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_depthwise), cmocka_unit_test(test_depthwise_offset),
        cmocka_unit_test(test_pool),      cmocka_unit_test(test_upsample),
        cmocka_unit_test(test_copy),      cmocka_unit_test(test_image),
        cmocka_unit_test(test_cast),      cmocka_unit_test(test_refusals),
    };
    static const char *const names[] = {"cuda_maps float32", "cuda_maps bfloat16",
                                        "cuda_maps float16"};
    int failed = 0;
    for (format = K_F32; format <= K_F16; format++)
        failed += cmocka_run_group_tests_name(names[format], tests, NULL, NULL);
    return failed;
}
