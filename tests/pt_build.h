/* Archives and pickles made by hand, sound ones and others, for the tests of what reads files of
 * torch.save. Anything that fails aborts. Not thread-safe.
 */
#ifndef SLUICE_TESTS_PT_BUILD_H
#define SLUICE_TESTS_PT_BUILD_H

#include "trainer/graph.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes that grow. */
typedef struct {
    unsigned char *at;
    size_t bytes, room;
} blob_t;
void blob_add(blob_t *b, const void *data, size_t bytes);
void blob_byte(blob_t *b, int byte);
void blob_number(blob_t *b, uint64_t value, int bytes); /* little-endian */
void blob_set(blob_t *b, size_t at, uint64_t value, int bytes);
void blob_free(blob_t *b);

/* An archive. Members are stored, sizes in the local header. */
enum { ZIP_MEMBERS = 2048 };
typedef struct {
    const char *name;
    size_t header, data, bytes, central;
    uint32_t crc;
} zip_member_t;
typedef struct {
    blob_t out;
    zip_member_t members[ZIP_MEMBERS];
    int n;
    size_t directory, end; /* offsets, after zip_end */
} zip_t;
/* name must stay until zip_end. */
void zip_add(zip_t *z, const char *name, const void *data, size_t bytes);
void zip_end(zip_t *z);
/* The same with 64-bit end records. */
void zip_end64(zip_t *z);
void zip_free(zip_t *z);

/* A pickle: opcodes behind one another. */
void pk_begin(blob_t *b); /* protocol 2 */
void pk_text(blob_t *b, const char *text);
void pk_int(blob_t *b, int64_t value);
void pk_global(blob_t *b, const char *module, const char *name);
/* A call of _rebuild_tensor_v2 as torch.save writes it. storage: "FloatStorage". */
typedef struct {
    const char *storage, *key;
    int64_t elements, offset, shape[9], stride[9];
    int ndim;
} pk_tensor_t;
void pk_tensor(blob_t *b, const pk_tensor_t *t);

/* A whole file of one pickle and one storage "0" of floats 0, 1, 2, ...; the pickle is freed. */
void pt_file(zip_t *z, blob_t *pickle, int floats);
/* A checkpoint {"model": state dict, "names": [...]} of a graph with its weights; names NULL: none.
 * Every tensor's name begins with the prefix. */
void pt_checkpoint(zip_t *z, const graph_t *g, const float *weights, const float *buffers,
                   const char *prefix, const char *const *names);

#endif
