/* What tests about files share: a scratch folder that removes itself, files written in one call,
 * and where the shared test data is (SLUICE_TEST_DATA, else ../shared/data).
 */
#ifndef SLUICE_TESTS_SCRATCH_H
#define SLUICE_TESTS_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

enum { SCRATCH_PATH = 4096 };

/* Makes a folder under TMPDIR or /tmp. */
void scratch_begin(char folder[SCRATCH_PATH]);
/* Removes it with all that is in it. */
void scratch_end(const char *folder);
/* Writes folder/name, making the folders on the way; the path in a static buffer. */
const char *scratch_write(const char *folder, const char *name, const void *data, size_t bytes);
const char *scratch_text(const char *folder, const char *name, const char *text);
/* folder/name, made with its parents, in a static buffer. */
const char *scratch_folder(const char *folder, const char *name);
/* A whole file; freed by the caller; NULL if it cannot be read. */
uint8_t *scratch_read(const char *path, size_t *bytes);
/* A baseline JPEG of the size, gray level `level` with a gradient; freed by the caller. */
uint8_t *scratch_jpeg(int width, int height, int level, size_t *bytes);
/* Writes it as folder/name. */
void scratch_write_jpeg(const char *folder, const char *name, int width, int height);
/* The path of shared data, in a static buffer, or NULL where there is none. */
const char *scratch_data(const char *name);
/* Ways of a file to go bad after a scan: 0 gone, 1 cut to 50 bytes, 2 longer, 3 other bytes and as
 * long, 4 a folder, 5 a pipe, 6 a link that leads back to itself. */
enum { SCRATCH_WAYS = 7 };
void scratch_spoil(const char *path, int way);
/* Descriptors of this process that lead below `folder`; "": all of them. */
int scratch_descriptors(const char *folder);

#endif
