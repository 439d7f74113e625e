/* The folder that `sluice sample` writes into: told by a mark, emptied of our own files, never of
 * others'.
 */
#ifndef SLUICE_TOOLS_SAMPLE_FOLDER_H
#define SLUICE_TOOLS_SAMPLE_FOLDER_H

#include <stddef.h>

enum { SAMPLE_NAME_BYTES = 64 };

/* Makes and marks the folder with images/ and labels/, each with train/ and val/. One that is there
 * must be empty or bear the mark: then what an earlier run wrote is removed, data.yaml first.
 * ERR_CONFIG when it is not ours or holds files that we did not write, which are left alone. */
int sample_folder_open(const char *path, int *fd);
void sample_folder_close(int *fd);
/* "images/train/plate_00012.jpg" */
void sample_name(char name[SAMPLE_NAME_BYTES], const char *what, int val, int index,
                 const char *extension);
/* Writes a file under the folder, replacing it. Any thread. */
int sample_put(int fd, const char *name, const void *data, size_t bytes);

#endif
