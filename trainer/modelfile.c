#include "trainer/modelfile_internal.h"

#include "shm/err.h"
#include "trainer/models.h"
#include "trainer/readfile.h"
#include "trainer/safetensors_json.h"
#include "trainer/zipfile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CLASSES_MAX = 10000, /* as the graph has them */
    CLASS_BYTES = 1024,
    DTYPES_MAX = 16,   /* there are fifteen */
    IMGSZ_MAX = 16384, /* as the options have it */
};

static int no_memory(const modelfile_t *f)
{
    return err_set(ERR_ENV, "%s: out of memory", f->origin);
}

static int ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n > k && strcasecmp(text + n - k, end) == 0;
}

int modelfile_is(const char *name)
{
    return ends_with(name, ".pt") || ends_with(name, ".safetensors");
}

/* ---- tensors ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const tensorview_t *)a)->name, ((const tensorview_t *)b)->name);
}

static int sort(modelfile_t *f)
{
    if (f->count > 0)
        qsort(f->tensors, (size_t)f->count, sizeof *f->tensors, compare_names);
    for (int32_t i = 1; i < f->count; i++) {
        if (strcmp(f->tensors[i].name, f->tensors[i - 1].name) == 0)
            return err_set(ERR_CONFIG, "%s: tensor %s is there twice", f->origin,
                           f->tensors[i].name);
    }
    return 0;
}

static int room_for(modelfile_t *f, int32_t n)
{
    f->tensors = calloc((size_t)n + 1, sizeof *f->tensors);
    f->count = n;
    return f->tensors ? 0 : no_memory(f);
}

/* The dtype that most elements have, and how many elements there are. */
static void count_elements(modelfile_t *f)
{
    const char *names[DTYPES_MAX];
    uint64_t sums[DTYPES_MAX] = {0};
    int n = 0, best = 0;
    for (int32_t i = 0; i < f->count; i++) {
        int k = 0;
        while (k < n && strcmp(names[k], f->tensors[i].dtype) != 0)
            k++;
        if (k == DTYPES_MAX)
            continue;
        if (k == n)
            names[n++] = f->tensors[i].dtype;
        sums[k] += f->tensors[i].count;
        f->info.elements += f->tensors[i].count;
        if (sums[k] > sums[best])
            best = k;
    }
    if (n > 0)
        snprintf(f->info.dtype, sizeof f->info.dtype, "%s", names[best]);
}

/* ---- .pt ---- */

static int take_torch(modelfile_t *f, const void *bytes, uint64_t total)
{
    int rc = torchfile_open(bytes, total, f->origin, &f->torch);
    if (rc < 0 || (rc = room_for(f, torchfile_count(f->torch))) < 0)
        return rc;
    for (int32_t i = 0; i < f->count; i++)
        f->tensors[i] = *torchfile_at(f->torch, i);
    const torchfile_info_t *t = torchfile_info(f->torch);
    modelfile_info_t *info = &f->info;
    snprintf(info->format, sizeof info->format, "pt");
    memcpy(info->part, t->part, sizeof info->part);
    memcpy(info->class_name, t->class_name, sizeof info->class_name);
    memcpy(info->table, t->table, sizeof info->table);
    memcpy(info->version, t->version, sizeof info->version);
    memcpy(info->date, t->date, sizeof info->date);
    info->averaged = t->averaged;
    info->epoch = t->epoch;
    info->imgsz = t->imgsz;
    info->bare_sppf = t->bare_sppf;
    f->n_classes = torchfile_classes(f->torch);
    f->classes = calloc((size_t)f->n_classes + 1, sizeof *f->classes);
    if (!f->classes) {
        f->n_classes = 0;
        return no_memory(f);
    }
    for (int32_t i = 0; i < f->n_classes; i++) {
        f->classes[i] = strdup(torchfile_class(f->torch, i));
        if (!f->classes[i])
            return no_memory(f);
    }
    return 0;
}

/* ---- .safetensors ---- */

/* {"0": "scratch", "1": "pit"}, as a checkpoint of ours has it. What is something else, or has a
 * hole, is as good as none. */
static int parse_classes(modelfile_t *f, const char *text)
{
    stjson_t j = {.text = text, .end = strlen(text)};
    char key[16], name[CLASS_BYTES], *end;
    size_t length;
    if (stjson_expect(&j, '{'))
        return 0;
    do {
        if (f->n_classes == CLASSES_MAX || stjson_string(&j, key, sizeof key, &length) ||
            stjson_expect(&j, ':') || stjson_string(&j, name, sizeof name, &length) ||
            strtol(key, &end, 10) != f->n_classes || *end)
            break;
        if (!(f->classes[f->n_classes] = strdup(name)))
            return no_memory(f);
        f->n_classes++;
    } while (stjson_accept(&j, ',') == 1);
    if (stjson_expect(&j, '}') || stjson_finish(&j)) {
        while (f->n_classes > 0)
            free(f->classes[--f->n_classes]);
    }
    return 0;
}

/* The image size among the options of the run that wrote the file, a YAML line each. */
static int32_t parse_imgsz(const char *args)
{
    static const char key[] = "imgsz: ";
    const char *line = args ? strstr(args, key) : NULL;
    while (line && line != args && line[-1] != '\n')
        line = strstr(line + 1, key);
    const long size = line ? strtol(line + sizeof key - 1, NULL, 10) : 0;
    return size > 0 && size <= IMGSZ_MAX ? (int32_t)size : 0;
}

static int take_safetensors(modelfile_t *f, const void *bytes, uint64_t total)
{
    int rc = safetensors_load_memory(bytes, total, f->origin, &f->safetensors);
    if (rc < 0 || (rc = room_for(f, safetensors_count(f->safetensors))) < 0)
        return rc;
    for (int32_t i = 0; i < f->count; i++) {
        const safetensors_entry_t *e = safetensors_at(f->safetensors, i);
        tensorview_t *v = &f->tensors[i];
        v->name = e->name;
        v->ndim = e->ndim;
        v->data = e->data;
        v->count = e->bytes / safetensors_dtype_bytes(e->dtype);
        memcpy(v->dtype, e->dtype, sizeof v->dtype);
        int64_t stride = 1;
        /* Products of the shape fit: the reader has compared them with the file's bytes. An empty
         * tensor's may not, and have no element to be found by. */
        for (int32_t d = e->ndim - 1; d >= 0; d--) {
            v->shape[d] = e->shape[d];
            v->stride[d] = v->count ? stride : 0;
            stride = v->count ? stride * e->shape[d] : 0;
        }
    }
    const char *names = safetensors_metadata(f->safetensors, "names");
    const char *epoch = safetensors_metadata(f->safetensors, "epoch");
    snprintf(f->info.format, sizeof f->info.format, "safetensors");
    f->info.epoch = epoch ? strtoll(epoch, NULL, 10) : -1;
    f->info.imgsz = parse_imgsz(safetensors_metadata(f->safetensors, "args"));
    f->info.averaged = epoch != NULL; /* ours are the averaged weights (design 9) */
    f->classes = calloc(CLASSES_MAX, sizeof *f->classes);
    if (!f->classes)
        return no_memory(f);
    return names ? parse_classes(f, names) : 0;
}

/* ---- opening ---- */

/* Names that only number the classes say nothing about what they are: as good as none. */
static void drop_placeholders(modelfile_t *f)
{
    char plain[32], worded[32];
    for (int32_t i = 0; i < f->n_classes; i++) {
        snprintf(plain, sizeof plain, "%d", i);
        snprintf(worded, sizeof worded, "class%d", i);
        if (strcmp(f->classes[i], plain) != 0 && strcmp(f->classes[i], worded) != 0)
            return;
    }
    while (f->n_classes > 0)
        free(f->classes[--f->n_classes]);
}

static int take(modelfile_t *f, const void *bytes, uint64_t total)
{
    /* A name that says .pt decides about the sentence for what is neither. */
    const int torch = zipfile_is(bytes, total) || ends_with(f->origin, ".pt");
    int rc = torch ? take_torch(f, bytes, total) : take_safetensors(f, bytes, total);
    if (rc == 0)
        rc = sort(f);
    if (rc == 0)
        rc = modelfile_rename(f);
    if (rc < 0)
        return rc;
    /* One prefix is gone from all names, so their order is as it was. */
    count_elements(f);
    drop_placeholders(f);
    return modelfile_find_model(f, torch ? NULL : safetensors_metadata(f->safetensors, "model"));
}

int modelfile_open_memory(const void *bytes, uint64_t total, const char *origin, modelfile_t **file)
{
    int rc;
    modelfile_t *f = calloc(1, sizeof *f);
    *file = NULL;
    if (!f || !(f->origin = strdup(origin))) {
        free(f);
        return err_set(ERR_ENV, "%s: out of memory", origin);
    }
    CHECK_GOTO(take(f, bytes, total), rc, fail);
    *file = f;
    return 0;
fail:
    modelfile_free(&f);
    return rc;
}

/* 1 for yolo11n.pt and the like: stem receives "yolo11n". */
static int is_of_a_model(const char *base, char stem[16])
{
    char family[16];
    size_t bytes;
    const char *dot = strrchr(base, '.');
    const int n = dot ? (int)(dot - base) : 0;
    if (n < 2 || n > 15 || !strchr("nslmx", base[n - 1]))
        return 0;
    snprintf(stem, 16, "%.*s", n, base);
    snprintf(family, sizeof family, "%.*s", n - 1, base);
    return models_text(family, &bytes) != NULL;
}

/* "no such file", with where a name without a folder was looked for. */
static int missing(const char *path)
{
    char here[2048], stem[16], hint[96] = "";
    const char *slash = strrchr(path, '/');
    if (is_of_a_model(slash ? slash + 1 : path, stem))
        snprintf(hint, sizeof hint, " (model=%s, without %s, begins with random weights)", stem,
                 strrchr(path, '.'));
    const int n = slash ? (int)(slash - path) : 0;
    if (!slash && !getcwd(here, sizeof here))
        snprintf(here, sizeof here, "the working folder");
    if (slash)
        snprintf(here, sizeof here, "%.*s", n ? n : 1, path);
    return err_set(ERR_CONFIG,
                   "%s is not in %s, and nothing is downloaded: put the file there, or give its "
                   "path%s",
                   slash ? slash + 1 : path, here, hint);
}

int modelfile_open(const char *path, modelfile_t **file)
{
    void *bytes = NULL;
    uint64_t total = 0;
    *file = NULL;
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return missing(path);
    int rc = readfile_all(path, &bytes, &total);
    if (rc == 0)
        rc = modelfile_open_memory(bytes, total, path, file);
    if (rc < 0) {
        free(bytes);
        return rc;
    }
    (*file)->owned = bytes;
    return 0;
}

void modelfile_free(modelfile_t **file)
{
    modelfile_t *f = *file;
    if (!f)
        return;
    for (int32_t i = 0; i < f->n_names; i++)
        free(f->names[i]);
    for (int32_t i = 0; f->classes && i < f->n_classes; i++)
        free(f->classes[i]);
    free(f->names);
    free(f->classes);
    free(f->tensors);
    torchfile_free(&f->torch);
    safetensors_free(&f->safetensors);
    free(f->owned);
    free(f->origin);
    free(f);
    *file = NULL;
}

const char *modelfile_origin(const modelfile_t *file)
{
    return file->origin;
}

const modelfile_info_t *modelfile_info(const modelfile_t *file)
{
    return &file->info;
}

int32_t modelfile_count(const modelfile_t *file)
{
    return file->count;
}

const tensorview_t *modelfile_at(const modelfile_t *file, int32_t i)
{
    return i >= 0 && i < file->count ? &file->tensors[i] : NULL;
}

const tensorview_t *modelfile_find(const modelfile_t *file, const char *name)
{
    const tensorview_t key = {.name = name};
    return file->count
               ? bsearch(&key, file->tensors, (size_t)file->count, sizeof key, compare_names)
               : NULL;
}

const char *const *modelfile_classes(const modelfile_t *file, int32_t *n)
{
    *n = file->n_classes;
    return file->n_classes ? (const char *const *)file->classes : NULL;
}

void modelfile_describe(const modelfile_t *file, char *text, size_t room)
{
    const modelfile_info_t *i = &file->info;
    snprintf(text, room, "%s, %d classes%s, %s%s, %d tensors", i->model[0] ? i->model : "a model",
             i->nc, file->n_classes ? " with names" : "", i->averaged ? "averaged (EMA), " : "",
             i->dtype[0] ? i->dtype : "no numbers", file->count);
}
