/* Colour jitter of training: hue, saturation and value on 8-bit HSV (facts/yolo.md 5.7).
 *
 * Forward conversion equal to the bit to OpenCV's 8-bit BGR2HSV (H in 0..179); the way back in its
 * float formula, truncated, which differs from OpenCV by at most 1 (it fuses multiply and add on
 * some machines). Any thread.
 */
#ifndef SLUICE_LOADER_HSV_H
#define SLUICE_LOADER_HSV_H

#include <stdint.h>

/* The three tables of the peer, and their arithmetic twins. Where the twins give the same values,
 * which is checked when the tables are made, pixels are done without any look-up: vector gathers
 * cost most of the time otherwise. Both ways give the same bytes. */
typedef struct {
    int32_t h[256], s[256], v[256]; /* new value of each old one; 32 bits for vector gathers */
    int32_t s_of[256], h_of[256];   /* 255 / value and 30 / range, 12 fraction bits */
    int active;                     /* 0: leave the pixels alone */
    int plain;                      /* 1: the twins hold */
    int32_t turn;                   /* new hue = old + turn, modulo 180 */
    float s_gain, v_gain;           /* new value = min(old * gain, 255), truncated */
} hsv_lut_t;

/* r: the three draws in (-1, 1) times their gains. active tells whether any gain is not zero: the
 * peer's round trip through HSV happens even where the draw changes nothing. */
void hsv_lut(hsv_lut_t *lut, const double r[3], int active);
/* n pixels R G B in place. */
void hsv_apply(const hsv_lut_t *lut, uint8_t *rgb, uint32_t n);

#endif
