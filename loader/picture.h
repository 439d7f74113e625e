/* An upright RGB picture in a buffer that grows and is never given back until the end.
 *
 * Fresh pages cost as much as decoding (facts/loader.md 0.3), so a buffer is kept for the next
 * image. Also what every decoder shares: the limits on hostile headers and the EXIF orientations.
 * A picture belongs to one thread.
 */
#ifndef SLUICE_LOADER_PICTURE_H
#define SLUICE_LOADER_PICTURE_H

#include <stddef.h>
#include <stdint.h>

enum {
    PICTURE_TEXT = 200,  /* bytes of a warning's text */
    PICTURE_SLACK = 64,  /* readable bytes behind the last pixel: wide loads need no edge case */
    PICTURE_SIDE = 65500 /* longest side of a JPEG, and for us of any format */
};

/* What a header may claim, checked before anything is allocated for it. */
typedef struct {
    uint64_t max_pixels; /* width * height */
    uint32_t max_scans;  /* of a multi-scan JPEG */
    uint64_t max_bytes;  /* memory that decoding one image takes, the picture included; 0: any */
} picture_limits_t;

/* EXIF orientation 1..8: how the stored picture becomes the upright one. 5 to 8 swap width and
 * height. */
typedef struct {
    uint8_t *pixels; /* owned; rows of 3 * width bytes, R G B, upright, top row first */
    size_t capacity;
    uint32_t width, height;     /* upright */
    size_t stride;              /* bytes from row to row: 3 * width */
    int orientation;            /* that was applied */
    uint32_t warnings;          /* what the decoder complained about while going on */
    char warning[PICTURE_TEXT]; /* its first complaint, or "" */
} picture_t;

void picture_init(picture_t *p);
void picture_fini(picture_t *p);
/* Sizes the picture for a stored image of width x height; ERR_ENV when there is no memory. Clears
 * the warnings. The pixels are not cleared. */
int picture_begin(picture_t *p, uint32_t width, uint32_t height, int orientation);
/* Where stored row y may be decoded to directly, or NULL if the orientation moves pixels within
 * rows. */
uint8_t *picture_row(picture_t *p, uint32_t y);
/* Puts stored rows [y, y + n) (3 * stored width bytes each, `stride` apart) at their upright place.
 */
void picture_place(picture_t *p, uint32_t y, uint32_t n, const uint8_t *rows, size_t stride);
/* Counts a warning and keeps the first one's text. */
void picture_warn(picture_t *p, const char *text);
/* ERR_DATA with a sentence if the sides are 0, above PICTURE_SIDE or more pixels than allowed, or if
 * the picture and `working` bytes beside it (what the decoder keeps of the whole image) are more
 * memory than allowed. */
int picture_check(uint64_t width, uint64_t height, uint64_t working,
                  const picture_limits_t *limits);

#endif
