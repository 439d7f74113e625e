/* The defects of the synthetic data set and the one image they are painted into.
 *
 * Sizes are 3 to 20 hundredths of the image's side; defects overlap neither each other nor good
 * holes. An image is a pure function of (seed, index, size). One thread per canvas.
 */
#ifndef SLUICE_TOOLS_SAMPLE_DEFECTS_H
#define SLUICE_TOOLS_SAMPLE_DEFECTS_H

#include "tools/sample_canvas.h"

typedef enum {
    DEFECT_SCRATCH = 0,
    DEFECT_PIT,
    DEFECT_STAIN,
    DEFECT_MISSING_HOLE,
    DEFECTS
} defect_t;
enum {
    SAMPLE_DEFECTS_MAX = 5,
    SAMPLE_GOOD_EVERY = 8 /* of so many images one is without a defect */
};

typedef struct {
    defect_t kind;
    box_t box; /* of the pixels drawn */
} sample_label_t;

const char *defect_name(defect_t kind);
/* Paints image `index` of the data set of `seed` into the canvas; returns how many labels, or
 * ERR_ENV. */
int sample_image(canvas_t *c, uint64_t seed, uint64_t index,
                 sample_label_t labels[SAMPLE_DEFECTS_MAX]);

#endif
