/* A canvas as a JPEG in memory: quality 90, 4:2:0, as cameras of inspection lines write. One thread
 * each.
 */
#ifndef SLUICE_TOOLS_SAMPLE_JPEG_H
#define SLUICE_TOOLS_SAMPLE_JPEG_H

#include "tools/sample_canvas.h"

#include <stddef.h>

/* Zero it before the first use. */
typedef struct {
    unsigned char *bytes; /* owned; valid until the next encode */
    unsigned long size;
} sample_jpeg_t;

int sample_jpeg_encode(sample_jpeg_t *j, const canvas_t *canvas);
void sample_jpeg_fini(sample_jpeg_t *j);

#endif
