/* Which images are used although their decoder warned (on_warning=use): each counted once, whichever
 * loaders meet it and however often, at the scan or in training.
 *
 * The coordinator's, one thread. A byte a sample.
 */
#ifndef SLUICE_CONTROL_WARNED_H
#define SLUICE_CONTROL_WARNED_H

#include "control/catalog.h"

typedef struct {
    uint8_t *seen[CATALOG_SPLITS]; /* owned */
    uint32_t samples[CATALOG_SPLITS], count[CATALOG_SPLITS];
} warned_t;

/* Empty, for the list's samples; those that the scan decoded with a warning are counted. ERR_ENV. */
int warned_init(warned_t *w, const catalog_t *catalog);
void warned_fini(warned_t *w);
/* 1: it was not known; 0: it was; ERR_FAILED: there is no such sample. */
int warned_add(warned_t *w, uint32_t split, uint32_t sample);
uint32_t warned_count(const warned_t *w);

/* Of a series of like things that a person is told of, `count` so far: the first few by name, then
 * the count alone as it grows tenfold. */
typedef enum { TELL_NOTHING = 0, TELL_NAME, TELL_NAME_LAST, TELL_COUNT } tell_t;
tell_t tell_how(uint32_t count);

#endif
