/* What is to be drawn: a file that the scribe writes while a prediction runs and drawers read behind it.
 *
 * Written and read on one machine by one build: numbers as they lie in memory. A reader trusts no length
 * that it has not compared. spool_* write into the writer's FILE; a reader owns what it reads into.
 */
#ifndef SLUICE_CONTROL_SPOOL_H
#define SLUICE_CONTROL_SPOOL_H

#include "control/wire.h"

#include <stdio.h>

#define SPOOL_NAME "drawing.spool" /* in the run directory until it is drawn, nameless */
enum {
    SPOOL_NAME_BYTES = 256,
    SPOOL_PATH_BYTES = 4096,
    SPOOL_BOXES = 1 << 20,
    SPOOL_CLASSES = 1 << 20
};

/* One image. */
typedef struct {
    uint32_t width, height, n; /* upright pixels, boxes */
    char path[SPOOL_PATH_BYTES], name[SPOOL_NAME_BYTES];
    wire_box_t *boxes; /* a reader's: owned, room for `room` */
    uint32_t room;
} spool_image_t;

void spool_begin(FILE *out, const char *const *classes, uint32_t n);
void spool_image(FILE *out, const spool_image_t *image);
/* Reads the class names: n strings and the array that holds them, the caller's to free together by
 * spool_classes_free. ERR_FAILED for a file that is none. */
int spool_open(FILE *in, char ***classes, uint32_t *n);
void spool_classes_free(char ***classes, uint32_t n);
/* 1 an image, 0 the end, negative. boxes NULL and skip: they are passed over. */
int spool_next(FILE *in, spool_image_t *image);

#endif
