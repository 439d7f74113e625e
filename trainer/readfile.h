/* A whole file in memory. Any thread. */
#ifndef SLUICE_TRAINER_READFILE_H
#define SLUICE_TRAINER_READFILE_H

#include <stdint.h>

/* More is refused before a byte is asked for: the state of a run of the largest model has about 2 GB,
 * and a sparse file can claim anything. */
#define READFILE_MOST ((uint64_t)8 << 30)

/* The file's bytes in memory of the caller's to free: unlike a mapping they cannot change or vanish
 * under a reader. ERR_CONFIG where there is no such file, or it is no regular one, or too long; ERR_ENV where it
 * cannot be read. A FIFO in its place does not hold the caller; a file system that does not answer
 * does. */
int readfile_all(const char *path, void **bytes, uint64_t *total);

#endif
