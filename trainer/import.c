#include "trainer/import.h"

#include "control/json.h"
#include "shm/err.h"
#include "trainer/graph_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* {"0": "scratch", ...}, as a checkpoint has it. */
static int put_names(const modelfile_t *file, safetensors_writer_t *out)
{
    int32_t n;
    const char *const *names = modelfile_classes(file, &n);
    size_t room = 64;
    for (int32_t i = 0; i < n; i++)
        room += 6 * strlen(names[i]) + 32;
    char *text = malloc(room), key[16];
    if (!text)
        return err_set(ERR_ENV, "out of memory for %d class names", n);
    json_t j;
    json_begin(&j, text, room);
    json_object_begin(&j);
    for (int32_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%d", i);
        json_key_string(&j, key, names[i]);
    }
    json_object_end(&j);
    int rc = json_finish(&j);
    if (rc >= 0)
        rc = safetensors_writer_metadata(out, "names", text);
    free(text);
    return rc;
}

static int put_metadata(const modelfile_t *file, const graph_t *g, safetensors_writer_t *out)
{
    const modelfile_info_t *info = modelfile_info(file);
    const char *slash = strrchr(modelfile_origin(file), '/');
    char nc[16], strides[64], epoch[32], args[96], source[512];
    int32_t n;
    snprintf(nc, sizeof nc, "%d", graph_classes(g));
    snprintf(epoch, sizeof epoch, "%" PRId64, info->epoch);
    snprintf(strides, sizeof strides, "[%d, %d, %d]", g->values[g->box[0]].shrink,
             g->values[g->box[1]].shrink, g->values[g->box[2]].shrink);
    snprintf(args, sizeof args, "model: %s\n", info->model);
    if (info->imgsz)
        snprintf(args, sizeof args, "model: %s\nimgsz: %d\n", info->model, info->imgsz);
    snprintf(source, sizeof source, "%s", slash ? slash + 1 : modelfile_origin(file));
    const struct {
        const char *key, *value;
        int wanted;
    } rows[] = {
        {"model", graph_name(g), 1}, {"task", "detect", 1}, {"nc", nc, 1},
        {"strides", strides, 1},     {"args", args, 1},     {"epoch", epoch, info->epoch >= 0},
        {"source", source, 1},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && rc == 0; i++) {
        if (rows[i].wanted)
            rc = safetensors_writer_metadata(out, rows[i].key, rows[i].value);
    }
    modelfile_classes(file, &n);
    return rc < 0 || n != graph_classes(g) ? rc : put_names(file, out);
}

/* Every tensor that holds numbers of the model's own. */
static int check_whole(const modelfile_t *file, const graph_t *g)
{
    for (int32_t i = 0; i < graph_params(g); i++) {
        const graph_param_t *p = graph_param(g, i);
        if (p->place != GRAPH_COUNTER && p->place != GRAPH_CONSTANT &&
            !modelfile_find(file, p->name))
            return err_set(ERR_CONFIG, "%s: tensor %s of %s is not there", modelfile_origin(file),
                           p->name, graph_name(g));
    }
    return 0;
}

static int64_t batches_of(const modelfile_t *file)
{
    const tensorview_t *v = modelfile_find(file, "model.0.bn.num_batches_tracked");
    return v ? tensorview_integer(v, 0) : 0;
}

void import_fini(import_model_t *model)
{
    free(model->weights);
    free(model->buffers);
    graph_free(&model->g);
    model->weights = model->buffers = NULL;
}

int import_load(const modelfile_t *file, import_model_t *model)
{
    const modelfile_info_t *info = modelfile_info(file);
    int rc;
    memset(model, 0, sizeof *model);
    if (!info->model[0])
        return err_set(ERR_CONFIG, "%s", info->why);
    if (info->nc == 0)
        return err_set(ERR_CONFIG, "%s: no class branch was found", modelfile_origin(file));
    CHECK_GOTO(graph_build(info->model, info->nc, &model->g), rc, fail);
    CHECK_GOTO(check_whole(file, model->g), rc, fail);
    model->weights = calloc(graph_sizes(model->g)->weights, sizeof *model->weights);
    model->buffers = calloc(graph_sizes(model->g)->buffers, sizeof *model->buffers);
    if (!model->weights || !model->buffers) {
        rc = err_set(ERR_ENV, "%s: out of memory for its weights", modelfile_origin(file));
        goto fail;
    }
    /* A second channel of two leaves the third as a new model has it. */
    weights_init(model->g, 0, model->weights, model->buffers);
    CHECK_GOTO(
        weights_transfer(model->g, file, NULL, 0, model->weights, model->buffers, &model->report),
        rc, fail);
    return 0;
fail:
    import_fini(model);
    return rc;
}

int import_image(const modelfile_t *file, safetensors_writer_t *out, import_t *what)
{
    import_model_t m;
    int rc;
    CHECK_GOTO(import_load(file, &m), rc, done);
    what->report = m.report;
    what->tensors = graph_params(m.g);
    what->parameters = graph_sizes(m.g)->parameters;
    CHECK_GOTO(put_metadata(file, m.g, out), rc, done);
    CHECK_GOTO(weights_store(m.g, m.weights, m.buffers, batches_of(file), "", out), rc, done);
done:
    import_fini(&m);
    return rc;
}
