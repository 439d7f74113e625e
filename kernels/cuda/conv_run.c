/* Which engine runs a convolution: the remembered one, or the best of a measurement, or the first
 * that runs (conv_run.h). */
#include "kernels/cuda/conv_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    ENGINES_DIRECT = 8, /* candidates of a shape; CONV_PACKED is tried besides where it differs */
    ENGINES_BESIDE = 4,
    ENGINES_ASKED = 48, /* looked at to find them: many want too much workspace, or do not build */
    MEASURE_RUNS = 2,
    MEASURE_SLOWER = 2,         /* times the best so far: not worth more runs */
    MEASURE_HOPELESS = 8,       /* the same already for the run that loads its kernels .. */
    MEASURE_LOADS_US = 20000,   /* .. which may take so long */
    MEASURE_TIMEOUT_MS = 10000, /* of one candidate's run */
    MEASURE_ALL_MS = 20000      /* of all: shapes that come later take what the library prefers */
};

static int32_t alignment(const void *at)
{
    const uintptr_t a = (uintptr_t)at;
    return a % 16 == 0 ? 16 : a % 8 == 0 ? 8 : a % 4 == 0 ? 4 : 2;
}

conv_shape_t conv_shape_of(const cuda_dev_t *dev, const conv_call_t *c)
{
    const k_conv_t *p = c->p;
    return (conv_shape_t){.direction = c->direction,
                          .dtype = (int32_t)c->x->dtype,
                          .n = c->x->n,
                          .h = c->x->h,
                          .w = c->x->w,
                          .c1 = p->c1,
                          .c2 = p->c2,
                          .k = p->k,
                          .s = p->s,
                          .acc = c->acc,
                          .xld = c->x->ld,
                          .yld = c->y->ld,
                          .xalign = alignment(cuda_ptr(dev, c->x->at)),
                          .yalign = alignment(cuda_ptr(dev, c->y->at)),
                          .walign = c->direction == CONV_DW ? 16 : alignment(cuda_ptr(dev, c->w))};
}

static int fail_shape(cuda_dev_t *dev, const conv_shape_t *s, const char *why)
{
    char words[160];
    conv_shape_words(s, words, sizeof words);
    return cuda_fail(dev, "%s: %s", words, why);
}

/* The plan of a choice; 0, or -1 with the library's words in graph.why. */
static int build(cuda_dev_t *dev, conv_choice_t *c)
{
    const conv_shape_t *s = &c->shape, asked = conv_form_shape(&dev->conv->limits, s, c->form);
    const conv_layout_t l = conv_layout(&dev->conv->limits, s);
    c->plan = conv_plan_new(&dev->conv->graph, &asked, &c->engine, l.space_bytes);
    if (!c->plan) {
        cudaGetLastError(); /* a kernel that did not load is the library's to report */
        return -1;
    }
    c->workspace = conv_plan_workspace(c->plan);
    return 0;
}

static int remember(cuda_dev_t *dev, conv_choice_t *c, conv_choice_t **kept)
{
    *kept = conv_choices_put(&dev->conv->choices, c);
    if (*kept)
        return 0;
    conv_plan_free(&c->plan);
    return fail_shape(dev, &c->shape, "no memory to remember a choice");
}

/* One timed run; 0, CONV_REFUSED or -1. */
static int time_run(cuda_dev_t *dev, const conv_call_t *call, const conv_choice_t *c, double *us)
{
    float ms = 0.0f;
    cuda_conv_t *v = dev->conv;
    cudaError_t e = cudaEventRecord(v->from, cuda_main(dev));
    int rc = e == cudaSuccess ? conv_form_run(dev, call, c) : 0;
    if (rc != 0)
        return rc;
    if (e == cudaSuccess)
        e = cudaEventRecord(v->to, cuda_main(dev));
    if (e != cudaSuccess)
        return cuda_error_of(dev, e, "measuring a convolution");
    rc = cuda_wait(&dev->base, K_STREAM_MAIN, MEASURE_TIMEOUT_MS);
    if (rc > 0)
        return fail_shape(dev, &c->shape, "an engine that is measured does not end");
    if (rc < 0)
        return rc;
    e = cudaEventElapsedTime(&ms, v->from, v->to);
    if (e != cudaSuccess)
        return cuda_error_of(dev, e, "measuring a convolution");
    *us = 1000.0 * (double)ms;
    return 0;
}

/* c->us: the least of a few runs behind one that loads the kernels. */
static int time_choice(cuda_dev_t *dev, const conv_call_t *call, conv_choice_t *c, double best)
{
    int rc = time_run(dev, call, c, &c->us);
    if (rc == 0 && best > 0.0 && c->us > MEASURE_HOPELESS * best + MEASURE_LOADS_US)
        return rc;
    if (rc == 0)
        rc = time_run(dev, call, c, &c->us);
    if (best > 0.0 && c->us > MEASURE_SLOWER * best)
        return rc;
    for (int i = 0; rc == 0 && i < MEASURE_RUNS; i++) {
        double us;
        rc = time_run(dev, call, c, &us);
        if (rc == 0 && us < c->us)
            c->us = us;
    }
    return rc;
}

/* Times up to `most` candidates of one form; *best takes the fastest, with its plan. quick: see
 * conv_graph_engines. Returns how many ran, or -1. */
static int measure_engines(cuda_dev_t *dev, const conv_call_t *call, const conv_shape_t *s,
                           conv_form_t form, int quick, int most, conv_choice_t *best, int *found)
{
    conv_engine_t engines[ENGINES_ASKED];
    const conv_shape_t asked = conv_form_shape(&dev->conv->limits, s, form);
    int ran = 0, slower = 0;
    int count = conv_graph_engines(&dev->conv->graph, &asked, quick, engines, ENGINES_ASKED);
    /* They come in the order that the library expects: after two that are much slower than the best
     * the rest is too, and at large sizes some take seconds. */
    for (int i = 0; i < count && ran < most && slower < 2; i++) {
        conv_choice_t c = {.shape = *s, .form = form, .engine = engines[i]};
        if (build(dev, &c) < 0)
            continue;
        int rc = time_choice(dev, call, &c, *found ? best->us : 0.0);
        if (rc < 0) {
            conv_plan_free(&c.plan);
            return -1;
        }
        ran += rc == 0;
        if (rc == 0)
            slower = *found && c.us > MEASURE_SLOWER * best->us ? slower + 1 : 0;
        if (rc == 0 && (!*found || c.us < best->us)) {
            if (*found)
                conv_plan_free(&best->plan);
            *best = c;
            *found = 1;
        } else {
            conv_plan_free(&c.plan);
        }
    }
    return ran;
}

static int plain(cuda_dev_t *dev, const conv_call_t *call, const conv_shape_t *s)
{
    conv_choice_t c = {.shape = *s, .form = CONV_PLAIN}, *kept;
    return remember(dev, &c, &kept) < 0 ? -1 : cuda_conv_plain(dev, call);
}

/* Measures and remembers. The call's own result means nothing then, though it is written. */
static int measure_shape(cuda_dev_t *dev, const conv_call_t *call, const conv_shape_t *s)
{
    conv_choice_t best = {0}, *kept;
    const int packs = conv_form_packs(&dev->conv->limits, s);
    const int most = packs ? ENGINES_BESIDE : ENGINES_DIRECT;
    int found = 0, rc = 0;
    /* What the library proposes at once, in both forms; all that it has, some of it a hundred times
     * slower, only where none of those runs. */
    for (int quick = 1; rc >= 0 && !found && quick >= 0; quick--) {
        rc = measure_engines(dev, call, s, CONV_DIRECT, quick, most, &best, &found);
        if (rc >= 0 && packs)
            rc = measure_engines(dev, call, s, CONV_PACKED, quick, most, &best, &found);
    }
    if (rc < 0) {
        conv_plan_free(&best.plan);
        return -1;
    }
    return found ? remember(dev, &best, &kept) : plain(dev, call, s);
}

/* Runs the first candidate of a form that does, and remembers it; CONV_REFUSED if there is none. */
static int first_engine(cuda_dev_t *dev, const conv_call_t *call, const conv_shape_t *s,
                        conv_form_t form, int quick)
{
    conv_engine_t engines[ENGINES_ASKED];
    const conv_shape_t asked = conv_form_shape(&dev->conv->limits, s, form);
    int count = conv_graph_engines(&dev->conv->graph, &asked, quick, engines, ENGINES_ASKED);
    for (int i = 0; i < count; i++) {
        conv_choice_t c = {.shape = *s, .form = form, .engine = engines[i]}, *kept;
        if (build(dev, &c) < 0)
            continue;
        int rc = conv_form_run(dev, call, &c);
        if (rc == 0)
            return remember(dev, &c, &kept);
        conv_plan_free(&c.plan);
        if (rc < 0)
            return -1;
    }
    return CONV_REFUSED;
}

static int first(cuda_dev_t *dev, const conv_call_t *call, const conv_shape_t *s)
{
    const int packs = conv_form_packs(&dev->conv->limits, s);
    int rc = CONV_REFUSED;
    for (int quick = 1; rc == CONV_REFUSED && quick >= 0; quick--) {
        rc = first_engine(dev, call, s, CONV_DIRECT, quick);
        if (rc == CONV_REFUSED && packs)
            rc = first_engine(dev, call, s, CONV_PACKED, quick);
    }
    return rc == CONV_REFUSED ? plain(dev, call, s) : rc;
}

/* With a choice: its plan is built where that was not done yet. A choice of a text that does not
 * build here, or that the library refuses to run, is an error: the bits of a resume rest on it. */
static int chosen(cuda_dev_t *dev, const conv_call_t *call, conv_choice_t *c)
{
    if (c->form == CONV_PLAIN)
        return cuda_conv_plain(dev, call);
    int rc = !c->plan && build(dev, c) < 0 ? CONV_REFUSED : conv_form_run(dev, call, c);
    if (rc != CONV_REFUSED)
        return rc;
    char words[160];
    conv_shape_words(&c->shape, words, sizeof words);
    return cuda_fail(
        dev,
        "%s: engine %" PRId64
        ", which was chosen for it, cannot be used: %s; a resume wants the GPU and the "
        "libraries that the run began with; else remove the file of choices in "
        "~/.cache/sluice (or $XDG_CACHE_HOME/sluice), and they are measured again",
        words, c->engine.index, dev->conv->graph.why);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A start should not take minutes: after MEASURE_ALL_MS the rest is not measured. */
static int measure(cuda_dev_t *dev, const conv_call_t *call, const conv_shape_t *s)
{
    cuda_conv_t *v = dev->conv;
    if (v->measured_ns > MEASURE_ALL_MS * 1000000ull) {
        v->unmeasured++;
        return first(dev, call, s);
    }
    const uint64_t began = now_ns();
    int rc = measure_shape(dev, call, s);
    v->measured_ns += now_ns() - began;
    return rc;
}

int conv_run(cuda_dev_t *dev, const conv_call_t *call)
{
    const conv_shape_t s = conv_shape_of(dev, call);
    conv_choice_t *c = conv_choices_find(&dev->conv->choices, &s);
    if (c)
        return chosen(dev, call, c);
    if (dev->capturing)
        return fail_shape(dev, &s, "no engine was chosen before the step was recorded");
    dev->conv->graph.why[0] = '\0';
    return dev->measuring ? measure(dev, call, &s) : first(dev, call, &s);
}

uint64_t conv_run_work(const cuda_dev_t *dev, const k_conv_t *p, const k_tensor_t *x)
{
    const conv_shape_t s = {.dtype = (int32_t)x->dtype,
                            .n = x->n,
                            .h = x->h,
                            .w = x->w,
                            .c1 = p->c1,
                            .c2 = p->c2,
                            .k = p->k,
                            .s = p->s};
    return conv_layout(&dev->conv->limits, &s).total;
}

cuda_conv_t *cuda_conv_new(cuda_dev_t *dev)
{
    struct cudaDeviceProp prop;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    cudaError_t e = cudaSuccess;
    cuda_conv_t *v = calloc(1, sizeof *v);
    if (!v) {
        cuda_fail(dev, "no memory for the convolutions' plans");
        return NULL;
    }
    conv_choices_init(&v->choices);
    v->limits = (conv_limits_t){.copies = 512 << 20,
                                .elements = INT32_MAX,
                                .space_least = 4 << 20,
                                .space_most = 256 << 20};
    v->graph.deterministic = dev->deterministic;
    if ((e = cudaGetDeviceProperties(&prop, dev->ordinal)) != cudaSuccess ||
        (e = cudaEventCreate(&v->from)) != cudaSuccess ||
        (e = cudaEventCreate(&v->to)) != cudaSuccess) {
        cuda_error_of(dev, e, "preparing convolutions");
        goto fail;
    }
    if ((status = cudnnCreate(&v->graph.handle)) != CUDNN_STATUS_SUCCESS ||
        (status = cudnnSetStream(v->graph.handle, cuda_main(dev))) != CUDNN_STATUS_SUCCESS) {
        cuda_fail(dev, "cuDNN %zu does not open on GPU %d: %s", cudnnGetVersion(), dev->ordinal,
                  cudnnGetErrorString(status));
        goto fail;
    }
    snprintf(v->header, sizeof v->header, "cudnn %zu deterministic %d gpu %s", cudnnGetVersion(),
             dev->deterministic, prop.name);
    return v;
fail:
    dev->conv = v;
    cuda_conv_free(dev);
    return NULL;
}

void cuda_conv_free(cuda_dev_t *dev)
{
    cuda_conv_t *v = dev->conv;
    if (!v)
        return;
    conv_choices_fini(&v->choices);
    if (v->graph.handle)
        cudnnDestroy(v->graph.handle);
    if (v->from)
        cudaEventDestroy(v->from);
    if (v->to)
        cudaEventDestroy(v->to);
    free(v);
    dev->conv = NULL;
}

int cuda_measure(k_dev_t *device, int on)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (on && !dev->measuring) {
        dev->conv->measured_ns = 0;
        dev->conv->unmeasured = 0;
    }
    dev->measuring = on != 0;
    return on ? 0 : dev->conv->unmeasured;
}

int64_t cuda_choices(k_dev_t *device, char *text, uint64_t bytes)
{
    const cuda_conv_t *v = cuda_dev(device)->conv;
    return conv_choices_text(&v->choices, v->header, text, bytes);
}

int cuda_choose(k_dev_t *device, const char *text)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (conv_choices_read(&dev->conv->choices, dev->conv->header, text) < 0)
        return cuda_fail(dev, "no memory for the choices of convolutions");
    return 0;
}
