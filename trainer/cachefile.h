/* Small texts kept between runs, in $XDG_CACHE_HOME/sluice (else ~/.cache/sluice). Only a help: who
 * cannot read or write one goes on without. Any thread. */
#ifndef SLUICE_TRAINER_CACHEFILE_H
#define SLUICE_TRAINER_CACHEFILE_H

#include <stddef.h>

enum { CACHEFILE_PATH = 4096, CACHEFILE_MOST = 1 << 20 /* bytes of a text */ };

/* The folder's file for `name`, whose letters, digits and dots stay and whose other bytes become '-'.
 * ERR_ENV where neither XDG_CACHE_HOME nor HOME is an absolute path, or it would be too long. */
int cachefile_path(const char *name, char path[CACHEFILE_PATH]);
/* *text is the caller's to free, NULL where there is no such file. ERR_ENV where it cannot be read, is
 * not a regular file or is longer than CACHEFILE_MOST. */
int cachefile_read(const char *path, char **text);
/* Whole or not at all: under a name of its own in the same folder, which is made, then renamed. */
int cachefile_write(const char *path, const char *text);

#endif
