/* The CPU device: life, copies, refusals, the pool of threads under stress, products from many
 * threads. */
#include "kernels/cpu/cpu.h"
#include "tests/kernel_rig.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_life(void **state)
{
    (void)state;
    const k_ops_t *ops = k_cpu_ops();
    assert_string_equal(ops->name, "cpu");
    char why[512];
    k_dev_t *dev = NULL;
    k_open_t args = {.threads = 0};
    assert_true(ops->open(&args, &dev, why, sizeof why) < 0);
    assert_non_null(strstr(why, "threads"));
    args.threads = 1000000;
    assert_true(ops->open(&args, &dev, why, sizeof why) < 0);
    args.threads = 2;
    assert_int_equal(ops->open(&args, &dev, why, sizeof why), 0);
    uint64_t free_bytes, total;
    assert_int_equal(ops->memory(dev, &free_bytes, &total), 0);
    assert_true(total > (64u << 20) && free_bytes <= total);
    float x = 1.0f;
    assert_true(ops->upload(dev, K_STREAM_MAIN, 0, &x, sizeof x) < 0); /* no arena yet */
    assert_int_equal(ops->reserve(dev, 1 << 20), 0);
    assert_true(ops->reserve(dev, 1 << 20) < 0);
    assert_non_null(strstr(ops->error(dev), "once"));
    ops->close(&dev);
    assert_null(dev);
    ops->close(&dev);
    assert_int_equal(ops->open(&args, &dev, why, sizeof why), 0);
    assert_true(ops->reserve(dev, (uint64_t)1 << 60) < 0);
    assert_non_null(strstr(ops->error(dev), "refused"));
    ops->close(&dev);
}

static void test_copies(void **state)
{
    (void)state;
    rig_t g;
    rig_open(&g, 1, 1 << 16);
    char in[100], out[100];
    for (int i = 0; i < 100; i++)
        in[i] = (char)i;
    rig_ok(&g, g.ops->upload(g.dev, K_STREAM_COPY, 256, in, sizeof in));
    rig_ok(&g, g.ops->move(g.dev, 300, 256, sizeof in)); /* overlapping */
    rig_ok(&g, g.ops->wait(g.dev, K_STREAM_COPY, 10));
    rig_ok(&g, g.ops->download(g.dev, K_STREAM_MAIN, out, 300, sizeof out));
    assert_memory_equal(in, out, sizeof in);
    rig_ok(&g, g.ops->zero(g.dev, 310, 20));
    rig_ok(&g, g.ops->download(g.dev, K_STREAM_MAIN, out, 300, sizeof out));
    for (int i = 0; i < 100; i++)
        assert_int_equal(out[i], i >= 10 && i < 30 ? 0 : in[i]);
    rig_refused(&g, g.ops->upload(g.dev, K_STREAM_MAIN, (1 << 16) - 50, in, sizeof in), "upload");
    rig_refused(&g, g.ops->download(g.dev, K_STREAM_MAIN, out, K_NONE, 1), "download");
    rig_refused(&g, g.ops->zero(g.dev, 1 << 16, 1), "zero");
    rig_refused(&g, g.ops->move(g.dev, 0, UINT64_MAX - 5, 10), "move");
    rig_close(&g);
}

/* Every item exactly once, by the thread that the partition says. */
typedef struct {
    int64_t items;
    int threads;
    uint8_t *seen;
} stress_t;

static void stress_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    stress_t *s = ctx;
    uint8_t *mine = cpu_scratch(dev, thread);
    assert(first == s->items * thread / s->threads && last == s->items * (thread + 1) / s->threads);
    for (int64_t i = first; i < last; i++) {
        mine[i % 100] = (uint8_t)thread;
        s->seen[i]++;
    }
}

static void test_pool(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 9; threads += 2) {
        rig_t g;
        rig_open(&g, threads, 4096);
        uint8_t seen[257];
        for (int round = 0; round < 3000; round++) {
            stress_t s = {round % 257, threads, seen};
            memset(seen, 0, sizeof seen);
            cpu_parallel(cpu_dev(g.dev), stress_range, &s, s.items);
            for (int64_t i = 0; i < 257; i++)
                assert_int_equal(seen[i], i < s.items);
        }
        rig_close(&g);
    }
}

/* Every item exactly once, whoever takes it. */
static void share_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    stress_t *s = ctx;
    uint8_t *mine = cpu_scratch(dev, thread);
    for (int64_t i = first; i < last; i++) {
        mine[i % 100] = (uint8_t)thread;
        s->seen[i]++;
    }
}

static void test_share(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 9; threads += 2) {
        rig_t g;
        rig_open(&g, threads, 4096);
        uint8_t seen[257];
        for (int round = 0; round < 3000; round++) {
            stress_t s = {round % 257, threads, seen};
            memset(seen, 0, sizeof seen);
            cpu_share(cpu_dev(g.dev), share_range, &s, s.items, 1 + round % 13);
            for (int64_t i = 0; i < 257; i++)
                assert_int_equal(seen[i], i < s.items);
        }
        rig_close(&g);
    }
}

/* Subnormal values count as zero inside an operation and as themselves outside. */
static void test_subnormals(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        rig_t g;
        rig_open(&g, threads, 4096);
        volatile float tiny = 1e-39f, before = tiny * 0.5f;
        double values[64];
        for (int i = 0; i < 64; i++)
            values[i] = 1e-39;
        k_tensor_t x = rig_tensor(&g, 1, 1, 16, 4, 0, 0), y = rig_tensor(&g, 1, 1, 16, 4, 0, 0);
        rig_put(&g, &x, values);
        rig_put(&g, &y, values);
        rig_ok(&g, g.ops->copy(g.dev, &x, &y, 1));
        double *sum = rig_get(&g, &y);
        for (int i = 0; i < 64; i++)
            assert_true(sum[i] == 0.0);
        assert_true(before > 0.0f && tiny * 0.5f == before);
        free(sum);
        rig_close(&g);
    }
}

/* Products from several threads at once equal those of one thread, to the bit. */
enum { GEMM_M = 61, GEMM_N = 47, GEMM_K = 131, GEMM_ITEMS = 64 };

typedef struct {
    const float *a, *b;
    float *c; /* [GEMM_ITEMS][GEMM_M * GEMM_N] */
} gemm_job_t;

static void gemm_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)dev, (void)thread;
    const gemm_job_t *j = ctx;
    for (int64_t i = first; i < last; i++)
        cpu_gemm((int)(i & 1), (int)(i >> 1 & 1), GEMM_M, GEMM_N, GEMM_K, 1.0f, j->a + i,
                 i & 1 ? GEMM_M : GEMM_K, j->b, i & 2 ? GEMM_K : GEMM_N, 0.0f,
                 j->c + i * GEMM_M * GEMM_N, GEMM_N);
}

static void test_products_in_parallel(void **state)
{
    (void)state;
    size_t bytes = sizeof(float) * GEMM_ITEMS * GEMM_M * GEMM_N;
    float *a = malloc(sizeof(float) * (GEMM_M * GEMM_K + GEMM_ITEMS)), *want = malloc(bytes);
    float *b = malloc(sizeof(float) * GEMM_K * GEMM_N), *got = malloc(bytes);
    for (int threads = 1; threads <= 8; threads++) {
        rig_t g;
        rig_open(&g, threads, 4096);
        for (int i = 0; i < GEMM_M * GEMM_K + GEMM_ITEMS; i++)
            a[i] = (float)rig_random(&g, -1.0, 1.0);
        for (int i = 0; i < GEMM_K * GEMM_N; i++)
            b[i] = (float)rig_random(&g, -1.0, 1.0);
        for (int round = 0; round < 20; round++) {
            gemm_job_t j = {a, b, threads == 1 ? want : got};
            memset(j.c, 0xff, bytes);
            cpu_parallel(cpu_dev(g.dev), gemm_range, &j, GEMM_ITEMS);
            if (threads > 1)
                assert_memory_equal(got, want, bytes);
        }
        rig_close(&g);
    }
    free(a);
    free(b);
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),       cmocka_unit_test(test_copies),
        cmocka_unit_test(test_pool),       cmocka_unit_test(test_share),
        cmocka_unit_test(test_subnormals), cmocka_unit_test(test_products_in_parallel),
    };
    return cmocka_run_group_tests_name("kernels_device", tests, NULL, NULL);
}
