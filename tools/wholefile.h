/* A file written whole or not at all: without a name, to the disk, then named (where a file system
 * knows no such files, under a temporary name beside it). It never takes the place of another. Any
 * thread. */
#ifndef SLUICE_TOOLS_WHOLEFILE_H
#define SLUICE_TOOLS_WHOLEFILE_H

#include <stddef.h>
#include <sys/uio.h>

/* ERR_CONFIG when path is there already: asked before minutes of work, and again by the next one. */
int wholefile_is_free(const char *path);
/* The parts one behind the other. ERR_ENV with the reason, and nothing is left behind. */
int wholefile_write(const char *path, const struct iovec *parts, size_t n);

#endif
