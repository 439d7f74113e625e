/* An RGB picture as the bytes of a JPEG. One thread per call. */
#ifndef SLUICE_LOADER_JPEG_ENCODE_H
#define SLUICE_LOADER_JPEG_ENCODE_H

#include "loader/draw.h"

/* 4:2:0 at the given quality. *bytes is the caller's to free. ERR_ENV with the reason. */
int jpeg_encode(const draw_canvas_t *picture, int quality, unsigned char **bytes,
                unsigned long *size);

#endif
