/* mkdir -p. Any thread. */
#ifndef SLUICE_TOOLS_MKPATH_H
#define SLUICE_TOOLS_MKPATH_H

enum { MKPATH_BYTES = 4096 };

/* Makes a folder and those above it; what is there already is fine. 0, or -1 with errno, and the
 * folder that could not be made in part. */
int mkpath(const char *path, char part[MKPATH_BYTES]);

#endif
