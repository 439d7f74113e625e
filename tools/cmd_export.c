/* `sluice export model=NAME format=onnx`: a model as a file that other programs run. */
#include "control/text.h"
#include "shm/err.h"
#include "tools/commands.h"
#include "tools/run_options.h"
#include "tools/wholefile.h"
#include "tools/words.h"
#include "trainer/import.h"
#include "trainer/onnx.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_SIZE = 640, SIZE_MIN = 32, SIZE_MOST = 16384, SIZE_STEP = 32 };

typedef struct {
    const char *model, *out, *format;
    const char *imgsz; /* as written, NULL: the file's, else DEFAULT_SIZE */
    long long batch, opset, max_det, seed;
    double conf, iou;
    int dynamic, half, nms;
    char weights[PATH_MAX]; /* of a run that was named by its folder */
    char path[PATH_MAX];    /* of the file to write */
} request_t;

/* The model's file or name with another ending, unless out= says something else. */
static int name_out(request_t *r)
{
    const char *slash = strrchr(r->model, '/'), *dot = strrchr(r->model, '.');
    const int stem =
        dot && dot > (slash ? slash : r->model) ? (int)(dot - r->model) : (int)strlen(r->model);
    const int n = r->out ? snprintf(r->path, sizeof r->path, "%s", r->out)
                         : snprintf(r->path, sizeof r->path, "%.*s.onnx", stem, r->model);
    if (n < 0 || (size_t)n >= sizeof r->path)
        return err_set(ERR_CONFIG, "out=: the path is too long");
    if (n <= 5 || strcmp(r->path + n - 5, ".onnx") != 0)
        return err_set(ERR_CONFIG, "out=%s: a name that ends with .onnx is needed", r->path);
    return wholefile_is_free(r->path);
}

static int check(request_t *r, const word_t *words, int n)
{
    if (!r->model)
        return err_set(ERR_CONFIG, "export: model= is missing: a file of weights, or a name as in "
                                   "yolo11n for fresh ones");
    if (strcasecmp(r->format, "onnx") != 0)
        return err_set(ERR_CONFIG, "export: format=%s: onnx is the format that is written",
                       r->format);
    /* Without a slash it is a model's name, also where a folder is called so. */
    int folder = strchr(r->model, '/') ? run_weights(r->model, r->weights, sizeof r->weights) : 0;
    if (folder < 0)
        return err_add(folder, "export");
    if (folder > 0)
        r->model = r->weights;
    for (int i = 0; i < n; i++) {
        const char *key = words[i].key;
        if (!words[i].given)
            continue;
        if (!r->nms && (words[i].share || words[i].number == &r->max_det))
            return err_set(ERR_CONFIG, "export: %s= is about suppression: it needs nms=True", key);
        if (words[i].number == &r->seed && modelfile_is(r->model))
            return err_set(ERR_CONFIG, "export: seed= is about fresh weights; %s has its own",
                           r->model);
    }
    return name_out(r);
}

static int parse(int argc, char **argv, request_t *r)
{
    word_t words[] = {
        {"model", .text = &r->model},
        {"format", .text = &r->format},
        {"out", .text = &r->out},
        {"imgsz", .text = &r->imgsz},
        {"batch", .number = &r->batch, .least = 1, .most = 1024},
        {"dynamic", .truth = &r->dynamic},
        {"half", .truth = &r->half},
        {"nms", .truth = &r->nms},
        {"conf", .share = &r->conf},
        {"iou", .share = &r->iou},
        {"max_det", .number = &r->max_det, .least = 1, .most = 10000},
        {"opset", .number = &r->opset, .least = ONNX_OPSET_MIN, .most = ONNX_OPSET_MAX},
        {"seed", .number = &r->seed, .least = 0, .most = LLONG_MAX},
    };
    enum { WORDS = sizeof words / sizeof words[0] };
    int rc = words_read("export", argc, argv, words, WORDS);
    return rc < 0 ? rc : check(r, words, WORDS);
}

/* One side, or height and width; each rounded up to a whole cell of the coarsest map
 * (facts/yolo.md 2), which is said. */
static int read_size(const request_t *r, int32_t of_file, onnx_config_t *c)
{
    char *end = NULL;
    long h = of_file ? of_file : DEFAULT_SIZE, w = h;
    if (r->imgsz) {
        h = w = strtol(r->imgsz, &end, 10);
        if (end != r->imgsz && *end == ',') {
            const char *second = end + 1;
            w = strtol(second, &end, 10);
            end = end == second ? (char *)r->imgsz : end;
        }
        if (end == r->imgsz || *end || h < SIZE_MIN || h > SIZE_MOST || w < SIZE_MIN ||
            w > SIZE_MOST)
            return err_set(
                ERR_CONFIG,
                "export: imgsz=%s: one side from %d to %d, or two as in 480,640 (height, "
                "width)",
                r->imgsz, SIZE_MIN, SIZE_MOST);
    }
    c->h = (int32_t)((h + SIZE_STEP - 1) / SIZE_STEP * SIZE_STEP);
    c->w = (int32_t)((w + SIZE_STEP - 1) / SIZE_STEP * SIZE_STEP);
    if (c->h != h || c->w != w)
        printf("imgsz: %ld x %ld is rounded up to %d x %d, multiples of %d\n", h, w, c->h, c->w,
               SIZE_STEP);
    return 0;
}

/* ---- the model ---- */

static int fresh(const request_t *r, import_model_t *m)
{
    memset(m, 0, sizeof *m);
    int rc = graph_build(r->model, 0, &m->g);
    if (rc < 0)
        return rc;
    m->weights = calloc(graph_sizes(m->g)->weights, sizeof *m->weights);
    m->buffers = calloc(graph_sizes(m->g)->buffers, sizeof *m->buffers);
    if (!m->weights || !m->buffers) {
        import_fini(m);
        return err_set(ERR_ENV, "%s: out of memory for its weights", r->model);
    }
    weights_init(m->g, (uint64_t)r->seed, m->weights, m->buffers);
    return 0;
}

static void print_file(const request_t *r, const import_model_t *m, const onnx_config_t *c,
                       const onnx_file_t *f)
{
    const char *type = c->half ? "float16" : "float32";
    char batch[16];
    snprintf(batch, sizeof batch, "%d", c->batch);
    printf("%s: ONNX opset %d, IR %d, %d nodes, %.2f M numbers in %s, %.1f MB\n", r->path, c->opset,
           onnx_ir_version(c->opset), f->nodes, (double)f->parameters / 1e6, type,
           (double)f->bytes / 1e6);
    if (c->dynamic)
        printf("  images   %s [batch, 3, height, width], RGB / 255; all three are open, height and "
               "width in multiples of %d\n",
               type, SIZE_STEP);
    else
        printf("  images   %s [%d, 3, %d, %d], RGB / 255\n", type, c->batch, c->h, c->w);
    if (c->nms)
        printf("  output0  float32 [%s, %d, 6]: x1, y1, x2, y2 in pixels, score, class; best "
               "first, zeros behind (conf %g, iou %g)\n",
               c->dynamic ? "batch" : batch, c->max_det, (double)c->conf, (double)c->iou);
    else if (c->dynamic)
        printf("  output0  float32 [batch, %d, anchors]: cx, cy, w, h in pixels, %d scores\n",
               4 + graph_classes(m->g), graph_classes(m->g));
    else
        printf("  output0  float32 [%d, %d, %d]: cx, cy, w, h in pixels, %d scores\n", c->batch,
               4 + graph_classes(m->g), f->anchors, graph_classes(m->g));
}

/* The model's name behind its folders. */
static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int write_model(const request_t *r, const modelfile_t *file, const import_model_t *m)
{
    onnx_config_t c = {.batch = (int32_t)r->batch,
                       .dynamic = r->dynamic,
                       .half = r->half,
                       .opset = (int)r->opset,
                       .nms = r->nms,
                       .conf = (float)r->conf,
                       .iou = (float)r->iou,
                       .max_det = (int32_t)r->max_det,
                       .origin = base_of(r->model),
                       .version = SLUICE_VERSION};
    onnx_model_t *model = NULL;
    onnx_file_t onnx;
    int32_t n = 0;
    int rc;
    const char *const *names = file ? modelfile_classes(file, &n) : NULL;
    c.names = n == graph_classes(m->g) ? names : NULL;
    CHECK_GOTO(read_size(r, file ? modelfile_info(file)->imgsz : 0, &c), rc, done);
    CHECK_GOTO(onnx_export(m->g, m->weights, m->buffers, &c, &model, &onnx), rc, done);
    CHECK_GOTO(wholefile_write(r->path, onnx.parts, onnx.n_parts), rc, done);
    print_file(r, m, &c, &onnx);
done:
    onnx_model_free(&model);
    return rc;
}

int cmd_export(int argc, char **argv)
{
    request_t r = {.format = "onnx",
                   .batch = 1,
                   .opset = ONNX_OPSET_MIN,
                   .conf = 0.25,
                   .iou = 0.7,
                   .max_det = 300};
    char text[512];
    modelfile_t *file = NULL;
    import_model_t m = {0};
    int rc;
    CHECK_GOTO(parse(argc, argv, &r), rc, done);
    if (modelfile_is(r.model)) {
        CHECK_GOTO(modelfile_open(r.model, &file), rc, done);
        CHECK_GOTO(import_load(file, &m), rc, done);
        modelfile_describe(file, text, sizeof text);
    } else {
        CHECK_GOTO(fresh(&r, &m), rc, done);
        snprintf(text, sizeof text, "%s, %d classes, fresh weights (seed %lld)", graph_name(m.g),
                 graph_classes(m.g), r.seed);
    }
    text_printable(text);
    printf("%s: %s\n", r.model, text);
    if (m.report.not_finite || m.report.bare_sppf) {
        weights_say(&m.report, r.model, text, sizeof text);
        text_printable(text);
        printf("%s\n", text);
    }
    CHECK_GOTO(write_model(&r, file, &m), rc, done);
done:
    import_fini(&m);
    modelfile_free(&file);
    return rc;
}
