/* Convolution on the GPU beside the CPU's: every direction, kernels, strides, odd sizes, channel
 * slices, few and odd numbers of channels; each form in which the library is asked (conv_run.h);
 * what is chosen, measured, written down and taken up by another device; recorded steps. */
#include "tests/twin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef SLUICE_CUDA
#include "kernels/cuda/conv_run.h"

enum { ARENA = 64 << 20, WORK = 16 << 20, CHOICES = 1 << 16 };

static k_dtype_t format;

typedef struct {
    k_conv_t p; /* k, s, c1, c2 */
    int n, h, w, before, after, bias;
} conv_case_t;

static const conv_case_t conv_cases[] = {
    {{3, 1, 16, 24}, 2, 9, 7, 0, 0, 0},     {{3, 1, 16, 24}, 2, 9, 7, 16, 8, 1},
    {{3, 2, 32, 64}, 3, 11, 13, 0, 0, 0},   {{3, 2, 32, 64}, 2, 12, 10, 32, 0, 0},
    {{1, 1, 64, 64}, 2, 20, 20, 0, 0, 1},   {{1, 1, 48, 80}, 2, 13, 9, 0, 80, 1},
    {{1, 2, 16, 16}, 2, 7, 9, 0, 0, 0},     {{3, 1, 64, 6}, 2, 8, 8, 0, 0, 1},
    {{1, 1, 80, 6}, 2, 16, 12, 0, 0, 1},    {{1, 1, 64, 1}, 3, 9, 9, 0, 0, 1},
    {{1, 1, 64, 3}, 1, 10, 10, 3, 2, 1},    {{3, 1, 20, 33}, 1, 9, 8, 1, 0, 0},
    {{5, 1, 8, 16}, 2, 9, 11, 0, 0, 0},     {{3, 1, 8, 8}, 1, 1, 1, 0, 0, 0},
    {{1, 1, 512, 256}, 2, 20, 20, 0, 0, 0}, {{3, 1, 128, 128}, 2, 20, 20, 128, 128, 0},
    {{3, 1, 6, 8}, 2, 9, 9, 0, 2, 0},    /* a slice whose pitch is its padded width */
    {{3, 1, 8, 12}, 2, 40, 33, 0, 4, 0}, /* pixels enough for plain.cu to cut dw into parts */
};

/* stem.cu: the first layer and its relatives. */
static const conv_case_t stem_cases[] = {
    {{3, 2, 3, 16}, 2, 64, 64, 0, 0, 0},  {{3, 2, 3, 64}, 2, 37, 75, 0, 0, 0},
    {{3, 2, 3, 96}, 1, 21, 300, 0, 0, 0}, {{3, 2, 3, 32}, 3, 16, 20, 1, 8, 1},
    {{3, 2, 3, 6}, 1, 9, 9, 0, 1, 1},     {{3, 1, 4, 80}, 2, 10, 11, 0, 0, 0},
    {{1, 1, 1, 8}, 1, 5, 7, 0, 0, 1},     {{5, 1, 2, 24}, 2, 17, 13, 0, 0, 0},
    {{3, 2, 3, 64}, 1, 1, 1, 0, 0, 0},
};

typedef struct {
    twin_t *t;
    const conv_case_t *c;
    twin_tensor_t x, y, dx, dy;
    k_at w, bias, dw, dbias, work;
    int64_t weights;
} run_t;

static void run_init(run_t *r, twin_t *t, const conv_case_t *c, k_at work)
{
    const k_conv_t *p = &c->p;
    const int oh = (c->h + p->k / 2 * 2 - p->k) / p->s + 1;
    const int ow = (c->w + p->k / 2 * 2 - p->k) / p->s + 1;
    *r = (run_t){.t = t, .c = c, .work = work, .bias = K_NONE, .dbias = K_NONE};
    r->x = twin_tensor(t, c->n, c->h, c->w, p->c1, c->before, c->after);
    r->dx = twin_tensor(t, c->n, c->h, c->w, p->c1, c->after, c->before);
    r->y = twin_tensor(t, c->n, oh, ow, p->c2, c->before, c->after);
    r->dy = twin_tensor(t, c->n, oh, ow, p->c2, c->after, c->before);
    r->weights = (int64_t)p->c2 * p->k * p->k * p->c1;
    r->w = twin_place(t, (uint64_t)r->weights * sizeof(float));
    r->dw = twin_place(t, (uint64_t)r->weights * sizeof(float));
    twin_fill(t, &r->x, -1.0, 1.0);
    twin_fill(t, &r->dy, -1.0, 1.0);
    twin_fill_half(t, r->w, r->weights, -0.5, 0.5);
    if (c->bias) {
        r->bias = twin_place(t, (uint64_t)p->c2 * sizeof(float));
        r->dbias = twin_place(t, (uint64_t)p->c2 * sizeof(float));
        twin_fill_floats(t, r->bias, p->c2, -1.0, 1.0);
    }
    assert_true(t->gpu->ops->conv_work(t->gpu, p, &r->x.gpu) <= WORK);
    assert_true(t->cpu->ops->conv_work(t->cpu, p, &r->x.cpu) <= WORK);
}

/* The gradients begin with values: dw and dbias always add. */
static void fill_gradients(run_t *r)
{
    twin_fill_floats(r->t, r->dw, r->weights, -1.0, 1.0);
    if (r->dbias != K_NONE)
        twin_fill_floats(r->t, r->dbias, r->c->p.c2, -1.0, 1.0);
}

static int gpu_forward(const run_t *r)
{
    k_dev_t *dev = r->t->gpu;
    return dev->ops->conv(dev, &r->c->p, &r->x.gpu, r->w, r->bias, &r->y.gpu, r->work);
}

static int gpu_dx(const run_t *r, int acc)
{
    k_dev_t *dev = r->t->gpu;
    return dev->ops->conv_dx(dev, &r->c->p, &r->dy.gpu, r->w, &r->dx.gpu, acc, r->work);
}

static int gpu_dw(const run_t *r)
{
    k_dev_t *dev = r->t->gpu;
    return dev->ops->conv_dw(dev, &r->c->p, &r->x.gpu, &r->dy.gpu, r->dw, r->dbias, r->work);
}

/* float32 1e-4; half formats: each value is a rounding away, so the cosine is closer to 1 than what
 * twin.h asks of a sum. */
static double limit_of(const twin_t *t)
{
    return t->dtype == K_F32 ? 1e-4 : 0.9999;
}

static void check_forward(run_t *r)
{
    k_dev_t *cpu = r->t->cpu;
    int on_gpu = gpu_forward(r);
    twin_ok(r->t, on_gpu,
            cpu->ops->conv(cpu, &r->c->p, &r->x.cpu, r->w, r->bias, &r->y.cpu, r->work));
    twin_same(r->t, "y", &r->y, limit_of(r->t));
    twin_gaps_untouched(r->t, &r->y);
}

static void check_dx(run_t *r, int acc)
{
    k_dev_t *cpu = r->t->cpu;
    if (acc)
        twin_fill(r->t, &r->dx, -4.0, 4.0);
    int on_gpu = gpu_dx(r, acc);
    twin_ok(r->t, on_gpu,
            cpu->ops->conv_dx(cpu, &r->c->p, &r->dy.cpu, r->w, &r->dx.cpu, acc, r->work));
    twin_same(r->t, acc ? "dx added" : "dx", &r->dx, limit_of(r->t));
    twin_gaps_untouched(r->t, &r->dx);
}

static void check_dw(run_t *r)
{
    k_dev_t *cpu = r->t->cpu;
    fill_gradients(r);
    int on_gpu = gpu_dw(r);
    twin_ok(r->t, on_gpu,
            cpu->ops->conv_dw(cpu, &r->c->p, &r->x.cpu, &r->dy.cpu, r->dw, r->dbias, r->work));
    twin_same_floats(r->t, "dw", r->dw, r->weights, limit_of(r->t));
    if (r->dbias != K_NONE)
        twin_same_floats(r->t, "dbias", r->dbias, r->c->p.c2, limit_of(r->t));
}

static void check_all(run_t *r)
{
    const conv_case_t *c = r->c;
    const char *verbose = getenv("SLUICE_TEST_VERBOSE");
    if (verbose && *verbose)
        print_message("kernel %d, stride %d, %d to %d channels, %d x %d x %d, slice %d %d\n",
                      c->p.k, c->p.s, c->p.c1, c->p.c2, c->n, c->h, c->w, c->before, c->after);
    check_forward(r);
    check_dx(r, 0);
    check_dx(r, 1);
    check_dw(r);
}

static void print_sums(twin_t *t)
{
    static char text[CHOICES];
    assert_in_range(t->gpu->ops->choices(t->gpu, text, sizeof text), 1, sizeof text - 1);
    const char *sums = strstr(text, "sums:");
    assert_non_null(sums);
    print_message("%s", sums);
}

static void check_cases(const conv_case_t *cases, size_t count)
{
    twin_t t;
    twin_open(&t, format, ARENA);
    k_at work = twin_place(&t, WORK);
    for (size_t i = 0; i < count; i++) {
        run_t r;
        run_init(&r, &t, &cases[i], work);
        check_all(&r);
    }
    print_sums(&t);
    twin_close(&t);
}

static void test_cases(void **state)
{
    (void)state;
    check_cases(conv_cases, sizeof conv_cases / sizeof *conv_cases);
}

static void test_stem(void **state)
{
    (void)state;
    check_cases(stem_cases, sizeof stem_cases / sizeof *stem_cases);
}

/* Weights and their gradient that begin where no 16 bytes can be read: as they are, and padded. */
static void test_offset(void **state)
{
    (void)state;
    static const int which[] = {0, 7, 11};
    twin_t t;
    twin_open(&t, format, ARENA);
    k_at work = twin_place(&t, WORK);
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        run_t r;
        run_init(&r, &t, &conv_cases[which[i]], work);
        r.w = twin_place(&t, (uint64_t)(r.weights + 1) * sizeof(float)) + 4;
        r.dw = twin_place(&t, (uint64_t)(r.weights + 1) * sizeof(float)) + 4;
        twin_fill_half(&t, r.w, r.weights, -0.5, 0.5);
        check_all(&r);
    }
    twin_close(&t);
}

/* Remembers a form for a call before it is made; 0 if the library has no engine for it. */
static int force(run_t *r, conv_direction_t direction, int acc, conv_form_t form)
{
    cuda_dev_t *dev = cuda_dev(r->t->gpu);
    const int forward = direction == CONV_FORWARD, dx = direction == CONV_DX;
    const conv_call_t call = {.direction = direction,
                              .p = &r->c->p,
                              .x = dx ? &r->dx.gpu : &r->x.gpu,
                              .y = forward ? &r->y.gpu : &r->dy.gpu,
                              .w = direction == CONV_DW ? K_NONE : r->w,
                              .acc = acc,
                              .work = r->work};
    conv_choice_t c = {.shape = conv_shape_of(dev, &call), .form = form};
    if (form == CONV_PLAIN)
        return conv_choices_put(&dev->conv->choices, &c) != NULL;
    conv_engine_t engines[16];
    const conv_shape_t asked = conv_form_shape(&dev->conv->limits, &c.shape, form);
    const conv_layout_t l = conv_layout(&dev->conv->limits, &c.shape);
    int count = conv_graph_engines(&dev->conv->graph, &asked, 0, engines, 16);
    for (int i = 0; i < count && !c.plan; i++) {
        c.engine = engines[i];
        c.plan = conv_plan_new(&dev->conv->graph, &asked, &c.engine, l.space_bytes);
    }
    return c.plan && conv_choices_put(&dev->conv->choices, &c) != NULL;
}

static void check_form(conv_form_t form, const conv_limits_t *limits, int needs_engine)
{
    twin_t t;
    twin_open(&t, format, ARENA);
    if (limits)
        cuda_dev(t.gpu)->conv->limits = *limits;
    k_at work = twin_place(&t, WORK);
    int forced = 0, asked = 0;
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        run_t r;
        run_init(&r, &t, &conv_cases[i], work);
        forced += force(&r, CONV_FORWARD, 0, form) + force(&r, CONV_DX, 0, form) +
                  force(&r, CONV_DX, 1, form) + force(&r, CONV_DW, 0, form);
        asked += 4;
        check_all(&r);
    }
    print_message("%d of %d calls have an engine in this form\n", forced, asked);
    if (needs_engine)
        assert_int_equal(forced, asked);
    print_sums(&t);
    twin_close(&t);
}

static void test_direct(void **state)
{
    (void)state;
    check_form(CONV_DIRECT, NULL, 0);
}

static void test_packed(void **state)
{
    (void)state;
    check_form(CONV_PACKED, NULL, 1);
}

static void test_plain(void **state)
{
    (void)state;
    check_form(CONV_PLAIN, NULL, 1);
}

/* A group an image. */
static void test_groups(void **state)
{
    (void)state;
    const conv_limits_t limits = {
        .copies = 1, .elements = 1, .space_least = 4 << 20, .space_most = 32 << 20};
    check_form(CONV_PACKED, &limits, 1);
    check_form(CONV_DIRECT, &limits, 0);
}

static uint64_t bytes_of(const run_t *r, const k_tensor_t *x)
{
    return (uint64_t)x->n * (uint64_t)x->h * (uint64_t)x->w * (uint64_t)x->ld *
           cuda_size(r->t->dtype);
}

/* What lies in y, dx and dw, one behind the other; the caller frees. */
static uint8_t *collect(run_t *r, uint64_t *bytes)
{
    const k_at at[3] = {r->y.gpu.at, r->dx.gpu.at, r->dw};
    const uint64_t size[3] = {bytes_of(r, &r->y.gpu), bytes_of(r, &r->dx.gpu),
                              (uint64_t)r->weights * sizeof(float)};
    *bytes = size[0] + size[1] + size[2];
    uint8_t *all = malloc(*bytes), *to = all;
    assert_non_null(all);
    for (int i = 0; i < 3; to += size[i++]) {
        void *part = twin_bytes_gpu(r->t, at[i], size[i]);
        memcpy(to, part, size[i]);
        free(part);
    }
    return all;
}

static void run_all(run_t *r)
{
    twin_ok(r->t, gpu_forward(r), 0);
    twin_ok(r->t, gpu_dx(r, 0), 0);
    twin_ok(r->t, gpu_dw(r), 0);
}

/* Bits of a run whose gradients begin as `seed` says. */
static uint8_t *bits_of(run_t *r, uint64_t seed, uint64_t *bytes)
{
    r->t->random = seed;
    fill_gradients(r);
    run_all(r);
    return collect(r, bytes);
}

/* Without slices, so that all of it is written. */
static const conv_case_t bit_cases[] = {{{3, 1, 64, 64}, 2, 40, 40, 0, 0, 0},
                                        {{3, 2, 32, 64}, 2, 33, 31, 0, 0, 0},
                                        {{1, 1, 128, 6}, 2, 20, 20, 0, 0, 0},
                                        {{3, 2, 3, 16}, 2, 64, 96, 0, 0, 0}};
enum { BIT_CASES = sizeof bit_cases / sizeof *bit_cases };

/* One device's turn: the first measures, the second takes up what the first chose. Both give the
 * same bits in every run. */
static void choose_and_run(int device, const char *chosen, char *text, uint8_t *first[BIT_CASES])
{
    twin_t t;
    twin_open(&t, format, ARENA);
    k_at work = twin_place(&t, WORK);
    if (device == 1)
        twin_ok(&t, t.gpu->ops->choose(t.gpu, chosen), 0);
    for (int i = 0; i < BIT_CASES; i++) {
        run_t r;
        uint64_t bytes;
        t.random = 1000 + (uint64_t)i;
        run_init(&r, &t, &bit_cases[i], work);
        if (device == 0) {
            twin_ok(&t, t.gpu->ops->measure(t.gpu, 1), 0);
            run_all(&r);
            twin_ok(&t, t.gpu->ops->measure(t.gpu, 0), 0);
            first[i] = bits_of(&r, 2000, &bytes);
        }
        for (int run = 0; run < 3; run++) {
            uint8_t *bits = bits_of(&r, 2000, &bytes);
            assert_memory_equal(bits, first[i], bytes);
            free(bits);
        }
        check_forward(&r);
        check_dx(&r, 0);
        check_dw(&r);
    }
    const int64_t length = t.gpu->ops->choices(t.gpu, text, CHOICES);
    assert_in_range(length, 1, CHOICES - 1);
    assert_int_equal(t.gpu->ops->choices(t.gpu, NULL, 0), length);
    const conv_choices_t *choices = &cuda_dev(t.gpu)->conv->choices;
    for (int32_t i = 0; i < choices->count; i++)
        assert_true(choices->all[i]->us > 0.0 || choices->all[i]->form == CONV_PLAIN);
    twin_close(&t);
}

/* Measures, writes the choices down, and takes them up in a second device: the same lines, the same
 * bits. */
static void test_choices(void **state)
{
    (void)state;
    static char text[CHOICES], again[CHOICES];
    uint8_t *first[BIT_CASES];
    choose_and_run(0, NULL, text, first);
    choose_and_run(1, text, again, first);
    assert_string_equal(text, again);
    for (int i = 0; i < BIT_CASES; i++)
        free(first[i]);
}

/* A choice that this library cannot build is an error, not another engine. */
static void test_foreign_choice(void **state)
{
    (void)state;
    twin_t t;
    run_t r;
    twin_open(&t, format, ARENA);
    run_init(&r, &t, &conv_cases[0], twin_place(&t, WORK));
    check_forward(&r);
    conv_choices_t *choices = &cuda_dev(t.gpu)->conv->choices;
    assert_int_equal(choices->count, 1);
    conv_choice_t c = *choices->all[0];
    c.plan = NULL;
    c.engine = (conv_engine_t){.index = 1 << 20};
    conv_plan_free(&choices->all[0]->plan);
    assert_ptr_equal(conv_choices_put(choices, &c), choices->all[0]);
    twin_refused(&t, gpu_forward(&r), "16 to 24 channels");
    twin_refused(&t, gpu_forward(&r), "engine 1048576");
    twin_close(&t);
}

static void test_recorded(void **state)
{
    (void)state;
    twin_t t;
    run_t r;
    twin_open(&t, format, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    run_init(&r, &t, &conv_cases[0], twin_place(&t, WORK));
    twin_ok(&t, ops->capture(t.gpu, 0), 0);
    twin_refused(&t, gpu_forward(&r), "before the step was recorded");
    twin_ok(&t, ops->captured(t.gpu), 0);

    uint64_t bytes;
    uint8_t *want = bits_of(&r, 5, &bytes);
    twin_ok(&t, ops->capture(t.gpu, 0), 0);
    run_all(&r);
    twin_ok(&t, ops->captured(t.gpu), 0);
    t.random = 5;
    fill_gradients(&r);
    twin_fill(&t, &r.y, 0.0, 1.0);
    twin_fill(&t, &r.dx, 0.0, 1.0);
    twin_ok(&t, ops->replay(t.gpu, 0), 0);
    uint8_t *replayed = collect(&r, &bytes);
    assert_memory_equal(replayed, want, bytes);
    free(replayed);
    free(want);
    twin_ok(&t, ops->forget(t.gpu, K_GRAPHS), 0);
    twin_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    twin_t t;
    run_t r;
    twin_open(&t, format, ARENA);
    run_init(&r, &t, &conv_cases[0], twin_place(&t, WORK));
    k_dev_t *dev = t.gpu;
    k_conv_t p = r.c->p;
    p.k = 4;
    twin_refused(&t, dev->ops->conv(dev, &p, &r.x.gpu, r.w, K_NONE, &r.y.gpu, r.work),
                 "odd kernels");
    p = r.c->p;
    p.c1++;
    twin_refused(&t, dev->ops->conv(dev, &p, &r.x.gpu, r.w, K_NONE, &r.y.gpu, r.work),
                 "does not fit");
    twin_refused(&t, dev->ops->conv(dev, &r.c->p, &r.x.gpu, K_NONE, K_NONE, &r.y.gpu, r.work),
                 "weights");
    twin_refused(&t, dev->ops->conv(dev, &r.c->p, &r.x.gpu, r.w, t.bytes, &r.y.gpu, r.work),
                 "bias");
    twin_refused(&t, dev->ops->conv(dev, &r.c->p, &r.x.gpu, r.w, K_NONE, &r.y.gpu, t.bytes - 256),
                 "work");
    twin_close(&t);
}

/* The same tests for each format. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),          cmocka_unit_test(test_stem),
        cmocka_unit_test(test_offset),         cmocka_unit_test(test_direct),
        cmocka_unit_test(test_packed),         cmocka_unit_test(test_plain),
        cmocka_unit_test(test_groups),         cmocka_unit_test(test_choices),
        cmocka_unit_test(test_foreign_choice), cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_refusals),
    };
    static const char *const names[] = {"cuda_conv float32", "cuda_conv bfloat16",
                                        "cuda_conv float16"};
    int failed = 0;
    for (format = K_F32; format <= K_F16; format++)
        failed += cmocka_run_group_tests_name(names[format], tests, NULL, NULL);
    return failed;
}

#else

static void test_cases(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, 1 << 20);
    twin_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests_name("cuda_conv", tests, NULL, NULL);
}
#endif
