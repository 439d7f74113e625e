#include "control/spool.h"

#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

enum { SPOOL_MAGIC = 0x31505344 /* "DSP1" */, SPOOL_ITEM = 0x4d475344 };

typedef struct {
    uint32_t magic, width, height, n, path_bytes, name_bytes;
} head_t;

void spool_begin(FILE *out, const char *const *classes, uint32_t n)
{
    const uint32_t head[2] = {SPOOL_MAGIC, n};
    fwrite(head, sizeof head, 1, out);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bytes = (uint32_t)strnlen(classes[i], SPOOL_NAME_BYTES - 1);
        fwrite(&bytes, sizeof bytes, 1, out);
        fwrite(classes[i], 1, bytes, out);
    }
}

void spool_image(FILE *out, const spool_image_t *image)
{
    const head_t head = {SPOOL_ITEM,
                         image->width,
                         image->height,
                         image->n,
                         (uint32_t)strlen(image->path),
                         (uint32_t)strlen(image->name)};
    fwrite(&head, sizeof head, 1, out);
    fwrite(image->path, 1, head.path_bytes, out);
    fwrite(image->name, 1, head.name_bytes, out);
    if (image->n)
        fwrite(image->boxes, sizeof *image->boxes, image->n, out);
}

static int damaged(void)
{
    return err_set(ERR_FAILED, "%s is damaged: what was found cannot be drawn", SPOOL_NAME);
}

void spool_classes_free(char ***classes, uint32_t n)
{
    for (uint32_t i = 0; *classes && i < n; i++)
        free((*classes)[i]);
    free(*classes);
    *classes = NULL;
}

int spool_open(FILE *in, char ***classes, uint32_t *n)
{
    uint32_t head[2], bytes;
    *classes = NULL;
    *n = 0;
    if (fread(head, sizeof head, 1, in) != 1 || head[0] != SPOOL_MAGIC || head[1] > SPOOL_CLASSES)
        return damaged();
    *classes = calloc((size_t)head[1] + 1, sizeof **classes);
    if (!*classes)
        return err_set(ERR_ENV, "no memory for the names of %u classes", head[1]);
    for (; *n < head[1]; (*n)++) {
        int whole = fread(&bytes, sizeof bytes, 1, in) == 1 && bytes < SPOOL_NAME_BYTES;
        char *name = whole ? calloc((size_t)bytes + 1, 1) : NULL;
        (*classes)[*n] = name;
        if (!name || fread(name, 1, bytes, in) != bytes) {
            spool_classes_free(classes, *n + 1);
            *n = 0;
            return damaged();
        }
    }
    return 0;
}

int spool_next(FILE *in, spool_image_t *image)
{
    head_t head;
    size_t got = fread(&head, 1, sizeof head, in);
    if (got == 0 && !ferror(in))
        return 0;
    if (got != sizeof head || head.magic != SPOOL_ITEM || head.path_bytes >= SPOOL_PATH_BYTES ||
        head.name_bytes >= SPOOL_NAME_BYTES || head.n > SPOOL_BOXES)
        return damaged();
    if (head.n > image->room) {
        wire_box_t *grown = realloc(image->boxes, head.n * sizeof *grown);
        if (!grown)
            return err_set(ERR_ENV, "no memory for %u boxes", head.n);
        image->boxes = grown;
        image->room = head.n;
    }
    if (fread(image->path, 1, head.path_bytes, in) != head.path_bytes ||
        fread(image->name, 1, head.name_bytes, in) != head.name_bytes ||
        fread(image->boxes, sizeof *image->boxes, head.n, in) != head.n)
        return damaged();
    image->path[head.path_bytes] = '\0';
    image->name[head.name_bytes] = '\0';
    image->width = head.width;
    image->height = head.height;
    image->n = head.n;
    return 1;
}
