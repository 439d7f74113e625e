/* Names for the files that a prediction makes: an image's own without folder and extension, with -2, -3
 * ... where several images of the list have the same. One name for each image, the same for the same
 * list. Plain memory of the one who makes it.
 */
#ifndef SLUICE_CONTROL_OUTNAMES_H
#define SLUICE_CONTROL_OUTNAMES_H

#include "control/catalog.h"

#include <stddef.h>

typedef struct {
    const catalog_t *catalog;
    uint32_t *suffix; /* [images] 0: none */
} outnames_t;

/* Over the list's validation split; the catalogue is borrowed. */
int outnames_init(outnames_t *names, const catalog_t *catalog);
void outnames_fini(outnames_t *names);
/* The i-th image's, at most `room` bytes with its end. */
void outnames_get(const outnames_t *names, uint32_t i, char *text, size_t room);

#endif
