/* `sluice import X.pt [out=Y.safetensors]`: another program's weights as a file of ours. */
#include "control/text.h"
#include "shm/err.h"
#include "tools/commands.h"
#include "tools/wholefile.h"
#include "trainer/import.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse(int argc, char **argv, const char **in, char *out, size_t room)
{
    const char *named = NULL;
    *in = NULL;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "out=", 4) == 0) {
            named = argv[i] + 4;
        } else if (*in) {
            return err_set(ERR_CONFIG, "%s: one file at a time; %s was named before", argv[i], *in);
        } else {
            *in = argv[i];
        }
    }
    if (!*in)
        return err_set(ERR_CONFIG, "usage: sluice import X.pt [out=Y.safetensors]");
    const char *slash = strrchr(*in, '/'), *dot = strrchr(*in, '.');
    const int stem = dot && dot > (slash ? slash : *in) ? (int)(dot - *in) : (int)strlen(*in);
    const int n = named ? snprintf(out, room, "%s", named)
                        : snprintf(out, room, "%.*s.safetensors", stem, *in);
    if (n < 0 || (size_t)n >= room)
        return err_set(ERR_CONFIG, "out=: the path is too long");
    if (n <= 12 || strcmp(out + n - 12, ".safetensors") != 0)
        return err_set(ERR_CONFIG, "out=%s: a name that ends with .safetensors is needed", out);
    return wholefile_is_free(out);
}

static void print_line(const char *name, char *text)
{
    text_printable(text);
    printf("  %-13s %s\n", name, text);
}

/* "80: person, bicycle, car, ..." */
static void class_text(const modelfile_t *f, char *text, size_t room)
{
    int32_t n;
    const char *const *names = modelfile_classes(f, &n);
    size_t at = (size_t)snprintf(text, room, "%d%s", modelfile_info(f)->nc,
                                 names ? ": " : ", without names");
    for (int32_t i = 0; i < n && at < room; i++) {
        if (at > 90) {
            snprintf(text + at, room - at, ", ...");
            return;
        }
        at += (size_t)snprintf(text + at, room - at, "%s%.40s", i ? ", " : "", names[i]);
    }
}

static void print_found(const modelfile_t *f)
{
    const modelfile_info_t *i = modelfile_info(f);
    char text[1024], who[128] = "";
    if (i->version[0] || i->date[0])
        snprintf(who, sizeof who, " (by version %s%s%s)", i->version[0] ? i->version : "?",
                 i->date[0] ? " of " : "", i->date);
    snprintf(text, sizeof text, "%s%s", modelfile_origin(f), who);
    text_printable(text);
    puts(text);
    snprintf(text, sizeof text, "%s%s%s%s%s", i->averaged ? "averaged weights (EMA)" : "weights",
             i->part[0] ? " under " : "", i->part, i->class_name[0] ? " of a whole " : "",
             i->class_name);
    print_line("what", text);
    snprintf(text, sizeof text, "%s%s%s%s%s%s",
             i->model[0] ? i->model : "not one of yolo11 and yolov8, n to x",
             i->model[0] ? ", as its tensors are" : "", i->table[0] ? "; it says " : "", i->table,
             i->prefix[0] ? "; names began with " : "", i->prefix);
    print_line("architecture", text);
    class_text(f, text, sizeof text);
    print_line("classes", text);
    snprintf(text, sizeof text, "%d, %.2f M numbers, %s", modelfile_count(f),
             (double)i->elements / 1e6, i->dtype);
    if (i->extra)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "; %d of them have no place in the model, as %s", i->extra, i->first_extra);
    print_line("tensors", text);
}

int cmd_import(int argc, char **argv)
{
    char out[PATH_MAX], text[PATH_MAX + 512];
    const char *in;
    modelfile_t *file = NULL;
    safetensors_writer_t *writer = NULL;
    void *image = NULL;
    import_t what;
    int rc;
    CHECK_GOTO(parse(argc, argv, &in, out, sizeof out), rc, done);
    CHECK_GOTO(modelfile_open(in, &file), rc, done);
    print_found(file);
    CHECK_GOTO(safetensors_writer_new(&writer), rc, done);
    CHECK_GOTO(import_image(file, writer, &what), rc, done);
    const uint64_t bytes = safetensors_writer_bytes(writer);
    image = malloc(bytes);
    if (!image) {
        rc = err_set(ERR_ENV, "out of memory for a file of %llu bytes", (unsigned long long)bytes);
        goto done;
    }
    CHECK_GOTO(safetensors_writer_image(writer, image, bytes), rc, done);
    CHECK_GOTO(wholefile_write(out, &(struct iovec){.iov_base = image, .iov_len = bytes}, 1), rc,
               done);
    weights_say(&what.report, in, text, sizeof text);
    text_printable(text);
    printf("%s\n%s: %d tensors, %.2f M parameters, F32, %.1f MB\n", text, out, what.tensors,
           (double)what.parameters / 1e6, (double)bytes / 1e6);
done:
    free(image);
    safetensors_writer_free(&writer);
    modelfile_free(&file);
    return rc;
}
