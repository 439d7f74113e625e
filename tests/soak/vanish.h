/* Files that were there for the scan, are gone when the loaders come, and come back later (private
 * to tests/soak). One thread.
 *
 * A program of the loader's name, in a folder beside a copy of the command, moves the files away
 * before it becomes the loader; so every loader meets the same files missing, whenever it starts,
 * and the stream is the same as where they never come back: once the ledger names a file, it is not
 * looked for again. They come back only when all have been named and what was claimed before that
 * is used up (design 4). */
#ifndef SLUICE_TESTS_SOAK_VANISH_H
#define SLUICE_TESTS_SOAK_VANISH_H

#include "tests/soak/run.h"

typedef struct {
    uint64_t named_at; /* progress when the ledger had all of them; 0: not yet */
    int back;
    int returns;
} vanish_t;

/* Makes the folder and chooses the files. 0, or a violation. */
int vanish_prepare(const soak_t *soak);
/* Before each start of a run: the files are there, for the scan. */
int vanish_begin(const soak_t *soak, vanish_t *v);
/* Puts them back when it is time. */
int vanish_look(const run_t *r, const seen_t *seen, vanish_t *v);
/* They are there again. */
int vanish_end(const soak_t *soak);

#endif
