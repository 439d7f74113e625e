/* cuDNN's backend interface is descriptors with attributes: create, set, finalize. A plan is made
 * through
 *
 *   tensors x, w, y + convolution -> operation -> operation graph -> engine (index)
 *   -> engine configuration (knobs) -> execution plan
 *
 * and run with a variant pack of addresses. All of a plan's descriptors are kept as long as the
 * plan: the interface does not say which of them a later one still refers to.
 */
#include "kernels/cuda/conv_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names of the tensors in a variant pack. */
enum { UID_X = 1, UID_W, UID_Y };
enum { RESULTS = 64 }; /* most configurations that are looked at, of one heuristic */

typedef struct {
    cudnnBackendDescriptor_t x, w, y, conv, op, graph;
} problem_t;

struct conv_plan {
    problem_t problem;
    cudnnBackendDescriptor_t engine, knob[CONV_KNOBS], config, plan;
    int64_t workspace;
};

typedef cudnnBackendDescriptor_t desc_t;

int32_t conv_out(int32_t in, int32_t k, int32_t s)
{
    return (in + k / 2 * 2 - k) / s + 1;
}

/* 0, or -1 with the library's words kept. */
static int checked(conv_graph_t *g, cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return 0;
    char last[CONV_WHY_BYTES / 2] = "";
    cudnnGetLastErrorString(last, sizeof last);
    last[strcspn(last, "\n")] = '\0';
    snprintf(g->why, sizeof g->why, "%s: %s%s%s", what, cudnnGetErrorString(status),
             last[0] ? ": " : "", last);
    return -1;
}

static int make(conv_graph_t *g, cudnnBackendDescriptorType_t type, desc_t *d)
{
    *d = NULL;
    return checked(g, cudnnBackendCreateDescriptor(type, d), "creating a descriptor");
}

static void drop(desc_t *d)
{
    if (*d)
        cudnnBackendDestroyDescriptor(*d);
    *d = NULL;
}

static int set(conv_graph_t *g, desc_t d, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t count, const void *value)
{
    char what[48];
    snprintf(what, sizeof what, "setting attribute %d", (int)name);
    return checked(g, cudnnBackendSetAttribute(d, name, type, count, value), what);
}

static int set_ints(conv_graph_t *g, desc_t d, cudnnBackendAttributeName_t name, int64_t count,
                    const int64_t *value)
{
    return set(g, d, name, CUDNN_TYPE_INT64, count, value);
}

static int set_desc(conv_graph_t *g, desc_t d, cudnnBackendAttributeName_t name, desc_t value)
{
    return set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static int finalize(conv_graph_t *g, desc_t d, const char *what)
{
    return checked(g, cudnnBackendFinalize(d), what);
}

static cudnnDataType_t data_type(int32_t dtype)
{
    return dtype == K_F32    ? CUDNN_DATA_FLOAT
           : dtype == K_BF16 ? CUDNN_DATA_BFLOAT16
                             : CUDNN_DATA_HALF;
}

/* [n][h][w][c] with pitch ld, or weights [c2][k][k][c1]: dimensions in the library's order n, c, h,
 * w. */
static int make_tensor(conv_graph_t *g, desc_t *d, int64_t uid, const conv_shape_t *s, int64_t n,
                       int64_t c, int64_t h, int64_t w, int64_t ld, int64_t align)
{
    const int64_t dims[4] = {n, c, h, w}, strides[4] = {h * w * ld, 1, w * ld, ld};
    const cudnnDataType_t type = data_type(s->dtype);
    if (make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, d) < 0 ||
        set(g, *d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type) < 0 ||
        set_ints(g, *d, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, dims) < 0 ||
        set_ints(g, *d, CUDNN_ATTR_TENSOR_STRIDES, 4, strides) < 0 ||
        set_ints(g, *d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &uid) < 0 ||
        set_ints(g, *d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1, &align) < 0)
        return -1;
    return finalize(g, *d, "a tensor");
}

static int make_conv(conv_graph_t *g, desc_t *d, const conv_shape_t *s)
{
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t dims = 2, pad[2] = {s->k / 2, s->k / 2}, step[2] = {s->s, s->s}, one[2] = {1, 1};
    if (make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, d) < 0 ||
        set(g, *d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute) < 0 ||
        set(g, *d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode) < 0 ||
        set_ints(g, *d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 1, &dims) < 0 ||
        set_ints(g, *d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 2, pad) < 0 ||
        set_ints(g, *d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 2, pad) < 0 ||
        set_ints(g, *d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 2, step) < 0 ||
        set_ints(g, *d, CUDNN_ATTR_CONVOLUTION_DILATIONS, 2, one) < 0)
        return -1;
    return finalize(g, *d, "a convolution");
}

/* How a direction's operation names its parts. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, conv, alpha, beta;
} direction_names[CONV_DIRECTIONS] = {
    [CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [CONV_DX] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [CONV_DW] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

static void problem_fini(problem_t *p)
{
    drop(&p->graph);
    drop(&p->op);
    drop(&p->conv);
    drop(&p->y);
    drop(&p->w);
    drop(&p->x);
}

/* The operation graph of a shape; on failure nothing is left. */
static int problem_init(conv_graph_t *g, const conv_shape_t *s, problem_t *p)
{
    const int32_t oh = conv_out(s->h, s->k, s->s), ow = conv_out(s->w, s->k, s->s),
                  d = s->direction;
    const float alpha = 1.0f, beta = s->acc ? 1.0f : 0.0f;
    *p = (problem_t){0};
    if (make_tensor(g, &p->x, UID_X, s, s->n, s->c1, s->h, s->w, s->xld, s->xalign) < 0 ||
        make_tensor(g, &p->w, UID_W, s, s->c2, s->c1, s->k, s->k, s->c1, s->walign) < 0 ||
        make_tensor(g, &p->y, UID_Y, s, s->n, s->c2, oh, ow, s->yld, s->yalign) < 0 ||
        make_conv(g, &p->conv, s) < 0 || make(g, direction_names[d].type, &p->op) < 0 ||
        set_desc(g, p->op, direction_names[d].x, p->x) < 0 ||
        set_desc(g, p->op, direction_names[d].w, p->w) < 0 ||
        set_desc(g, p->op, direction_names[d].y, p->y) < 0 ||
        set_desc(g, p->op, direction_names[d].conv, p->conv) < 0 ||
        set(g, p->op, direction_names[d].alpha, CUDNN_TYPE_FLOAT, 1, &alpha) < 0 ||
        set(g, p->op, direction_names[d].beta, CUDNN_TYPE_FLOAT, 1, &beta) < 0 ||
        finalize(g, p->op, "the operation") < 0)
        goto fail;
    if (make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &p->graph) < 0 ||
        set(g, p->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle) < 0 ||
        set_desc(g, p->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, p->op) < 0 ||
        finalize(g, p->graph, "the operation graph") < 0)
        goto fail;
    return 0;
fail:
    problem_fini(p);
    return -1;
}

static int make_engine(conv_graph_t *g, const problem_t *p, int64_t index, desc_t *engine)
{
    if (make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, engine) < 0)
        return -1;
    if (set_desc(g, *engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, p->graph) < 0 ||
        set_ints(g, *engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 1, &index) < 0 ||
        finalize(g, *engine, "an engine") < 0) {
        drop(engine);
        return -1;
    }
    return 0;
}

/* 1 if the engine is compiled when its plan is built, which takes up to a second. */
static int compiles(desc_t engine)
{
    cudnnBackendBehaviorNote_t note[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    int64_t count = 0;
    if (cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                 CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &count,
                                 note) != CUDNN_STATUS_SUCCESS)
        return 0;
    for (int64_t i = 0; i < count && i < CUDNN_BEHAVIOR_NOTE_TYPE_COUNT; i++)
        if (note[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION)
            return 1;
    return 0;
}

/* 1 if the engine keeps to the promises of conv_graph_engines, by what it says of itself. quick: half
 * formats on the tensor cores only; the others take up to a hundred times as long. */
static int acceptable(const conv_graph_t *g, const conv_shape_t *s, int quick, desc_t engine)
{
    int tensor_core = 0;
    cudnnBackendNumericalNote_t note[2 * CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0;
    if (cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, 2 * CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                 &count, note) != CUDNN_STATUS_SUCCESS)
        return 0;
    for (int64_t i = 0; i < count && i < 2 * CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) {
        switch (note[i]) {
        case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
            if (g->deterministic)
                return 0;
            break;
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: /* with float32 inputs: TF32 */
            if (s->dtype == K_F32)
                return 0;
            tensor_core = 1;
            break;
        case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        case CUDNN_NUMERICAL_NOTE_FFT:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: return 0;
        default: break;
        }
    }
    return tensor_core || !quick || s->dtype == K_F32;
}

/* The knobs of a configuration, or -1. */
static int read_knobs(desc_t config, conv_engine_t *e)
{
    desc_t choice[CONV_KNOBS] = {0};
    int64_t count = 0, one = 0;
    int rc = -1;
    for (int i = 0; i < CONV_KNOBS; i++)
        if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &choice[i]) !=
            CUDNN_STATUS_SUCCESS)
            goto fail;
    if (cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, CONV_KNOBS, &count,
                                 choice) != CUDNN_STATUS_SUCCESS ||
        count > CONV_KNOBS)
        goto fail;
    e->knobs = (int32_t)count;
    for (int i = 0; i < e->knobs; i++) {
        cudnnBackendKnobType_t type;
        if (cudnnBackendGetAttribute(choice[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                     CUDNN_TYPE_KNOB_TYPE, 1, &one,
                                     &type) != CUDNN_STATUS_SUCCESS ||
            cudnnBackendGetAttribute(choice[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64,
                                     1, &one, &e->value[i]) != CUDNN_STATUS_SUCCESS)
            goto fail;
        e->type[i] = (int32_t)type;
    }
    rc = 0;
fail:
    for (int i = 0; i < CONV_KNOBS; i++)
        drop(&choice[i]);
    return rc;
}

/* An acceptable engine out of a proposed configuration, or -1. */
static int read_config(conv_graph_t *g, const conv_shape_t *s, int quick, desc_t config,
                       conv_engine_t *e)
{
    desc_t engine = NULL;
    int64_t count = 0;
    int rc = -1;
    *e = (conv_engine_t){0};
    if (make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) < 0)
        return -1;
    if (cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 1, &count, &engine) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                 &count, &e->index) == CUDNN_STATUS_SUCCESS &&
        acceptable(g, s, quick, engine) && !(quick && compiles(engine)))
        rc = read_knobs(config, e);
    drop(&engine);
    return rc;
}

static int same_engine(const conv_engine_t *a, const conv_engine_t *b)
{
    return a->index == b->index && a->knobs == b->knobs &&
           memcmp(a->type, b->type, (size_t)a->knobs * sizeof *a->type) == 0 &&
           memcmp(a->value, b->value, (size_t)a->knobs * sizeof *a->value) == 0;
}

/* Adds an engine if it is new; the number of engines then. */
static int add(conv_engine_t *out, int count, int most, const conv_engine_t *e)
{
    for (int i = 0; i < count; i++)
        if (same_engine(&out[i], e))
            return count;
    if (count < most)
        out[count++] = *e;
    return count;
}

/* Adds what one heuristic proposes. A heuristic that knows nothing adds nothing. */
static int add_proposed(conv_graph_t *g, const conv_shape_t *s, const problem_t *p,
                        cudnnBackendHeurMode_t mode, int quick, conv_engine_t *out, int count,
                        int most)
{
    desc_t heuristic = NULL, config[RESULTS] = {0};
    int64_t found = 0;
    if (make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristic) < 0 ||
        set_desc(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, p->graph) < 0 ||
        set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode) < 0 ||
        finalize(g, heuristic, "a heuristic") < 0)
        goto done;
    for (int i = 0; i < RESULTS; i++)
        if (make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]) < 0)
            goto done;
    if (checked(g,
                cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, RESULTS, &found, config),
                "a heuristic's results") < 0)
        goto done;
    for (int i = 0; i < RESULTS && i < found && count < most; i++) {
        conv_engine_t e;
        if (read_config(g, s, quick, config[i], &e) == 0)
            count = add(out, count, most, &e);
    }
done:
    for (int i = 0; i < RESULTS; i++)
        drop(&config[i]);
    drop(&heuristic);
    return count;
}

/* Every engine of the operation as it comes, without knobs. */
static int add_all(conv_graph_t *g, const conv_shape_t *s, const problem_t *p, conv_engine_t *out,
                   int count, int most)
{
    int64_t engines = 0, one = 0;
    if (cudnnBackendGetAttribute(p->graph, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
                                 CUDNN_TYPE_INT64, 1, &one, &engines) != CUDNN_STATUS_SUCCESS)
        return count;
    for (int64_t i = 0; i < engines && count < most; i++) {
        const conv_engine_t e = {.index = i};
        desc_t engine = NULL;
        if (make_engine(g, p, i, &engine) < 0)
            continue;
        if (acceptable(g, s, 0, engine))
            count = add(out, count, most, &e);
        drop(&engine);
    }
    return count;
}

int conv_graph_engines(conv_graph_t *g, const conv_shape_t *s, int quick, conv_engine_t *out,
                       int most)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK,
                                                   CUDNN_HEUR_MODE_B};
    const size_t asked = quick ? 1 : sizeof modes / sizeof *modes;
    problem_t p;
    int count = 0;
    if (problem_init(g, s, &p) < 0)
        return 0;
    for (size_t i = 0; i < asked && count < most; i++)
        count = add_proposed(g, s, &p, modes[i], quick, out, count, most);
    if (count == 0 && !quick)
        count = add_all(g, s, &p, out, count, most);
    if (count == 0 && !g->why[0])
        snprintf(g->why, sizeof g->why, "the library has no engine of the asked precision");
    problem_fini(&p);
    return count;
}

static int make_config(conv_graph_t *g, conv_plan_t *plan, const conv_engine_t *e)
{
    for (int i = 0; i < e->knobs; i++) {
        const cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)e->type[i];
        if (make(g, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &plan->knob[i]) < 0 ||
            set(g, plan->knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                &type) < 0 ||
            set_ints(g, plan->knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 1, &e->value[i]) < 0 ||
            finalize(g, plan->knob[i], "a knob") < 0)
            return -1;
    }
    if (make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &plan->config) < 0 ||
        set_desc(g, plan->config, CUDNN_ATTR_ENGINECFG_ENGINE, plan->engine) < 0)
        return -1;
    if (e->knobs > 0 && set(g, plan->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                            CUDNN_TYPE_BACKEND_DESCRIPTOR, e->knobs, plan->knob) < 0)
        return -1;
    return finalize(g, plan->config, "an engine's configuration");
}

conv_plan_t *conv_plan_new(conv_graph_t *g, const conv_shape_t *s, const conv_engine_t *engine,
                           uint64_t workspace)
{
    int64_t one = 0;
    conv_plan_t *plan = calloc(1, sizeof *plan);
    if (!plan) {
        snprintf(g->why, sizeof g->why, "no memory for a plan");
        return NULL;
    }
    if (problem_init(g, s, &plan->problem) < 0 ||
        make_engine(g, &plan->problem, engine->index, &plan->engine) < 0 ||
        make_config(g, plan, engine) < 0 ||
        make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan->plan) < 0 ||
        set(g, plan->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle) <
            0 ||
        set_desc(g, plan->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, plan->config) < 0 ||
        finalize(g, plan->plan, "a plan") < 0 ||
        checked(g,
                cudnnBackendGetAttribute(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                         CUDNN_TYPE_INT64, 1, &one, &plan->workspace),
                "a plan's workspace") < 0)
        goto fail;
    if (plan->workspace < 0 || (uint64_t)plan->workspace > workspace) {
        snprintf(g->why, sizeof g->why, "an engine wants %lld bytes of workspace, %llu are there",
                 (long long)plan->workspace, (unsigned long long)workspace);
        goto fail;
    }
    return plan;
fail:
    conv_plan_free(&plan);
    return NULL;
}

void conv_plan_free(conv_plan_t **plan)
{
    conv_plan_t *p = *plan;
    if (!p)
        return;
    drop(&p->plan);
    drop(&p->config);
    for (int i = 0; i < CONV_KNOBS; i++)
        drop(&p->knob[i]);
    drop(&p->engine);
    problem_fini(&p->problem);
    free(p);
    *plan = NULL;
}

uint64_t conv_plan_workspace(const conv_plan_t *plan)
{
    return (uint64_t)plan->workspace;
}

int conv_plan_run(conv_graph_t *g, const conv_plan_t *plan, void *x, void *w, void *y,
                  void *workspace)
{
    const int64_t uid[3] = {UID_X, UID_W, UID_Y};
    void *const at[3] = {x, w, y};
    desc_t pack = NULL;
    int rc = -1;
    if (make(g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack) == 0 &&
        set_ints(g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 3, uid) == 0 &&
        set(g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, at) == 0 &&
        set(g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace) == 0 &&
        finalize(g, pack, "a variant pack") == 0)
        rc = checked(g, cudnnBackendExecute(g->handle, plan->plan, pack), "running a plan");
    drop(&pack);
    return rc;
}
