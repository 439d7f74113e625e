/* Bilinear resize of an RGB picture, equal to the bit to OpenCV's 8-bit INTER_LINEAR
 * (facts/yolo.md 5.2).
 *
 * Half-pixel centres, no antialiasing, 11-bit weights. A resize_t holds row buffers that are kept;
 * one thread per object.
 */
#ifndef SLUICE_LOADER_RESIZE_H
#define SLUICE_LOADER_RESIZE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int32_t *index;   /* destination column -> byte offset of its left source pixel */
    int16_t *weight;  /* and its two weights */
    uint32_t *row[2]; /* two source rows, resized horizontally */
    uint32_t columns; /* that the arrays have room for */
} resize_t;

void resize_init(resize_t *r);
void resize_fini(resize_t *r);
/* src: rows of 3 * sw bytes `sstride` apart; dst likewise. All sides >= 1. ERR_ENV without memory.
 */
int resize_rgb(resize_t *r, const uint8_t *src, uint32_t sw, uint32_t sh, size_t sstride,
               uint8_t *dst, uint32_t dw, uint32_t dh, size_t dstride);

/* The size that the peer loads a file at: its long side becomes imgsz (facts/yolo.md 5.2). */
void resize_load_size(uint32_t width, uint32_t height, uint32_t imgsz, uint32_t *w, uint32_t *h);

#endif
