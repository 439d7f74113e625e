/* The safetensors format: 8 bytes length, a JSON header, then tensor data. Read from and written to
 * memory.
 *
 * Reading checks everything before use: header length, JSON, dtype, shapes against offsets,
 * overlaps, holes. Writing is in two passes so that an image can be laid straight into snapshot
 * memory. Any thread.
 */
#ifndef SLUICE_TRAINER_SAFETENSORS_H
#define SLUICE_TRAINER_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name;
    char dtype[8]; /* "F32", "F16", "BF16", "I64", "U8", ... */
    int32_t ndim;
    int64_t shape[8];
    const void *data;
    uint64_t bytes;
} safetensors_entry_t;

/* Bytes of one element, 0 for an unknown dtype. */
uint32_t safetensors_dtype_bytes(const char *dtype);

typedef struct safetensors safetensors_t;
int safetensors_load_file(const char *path, safetensors_t **file);
int safetensors_load_memory(const void *data, uint64_t bytes, const char *origin,
                            safetensors_t **file); /* keeps pointing into data */
void safetensors_free(safetensors_t **file);
int32_t safetensors_count(const safetensors_t *file);
const safetensors_entry_t *safetensors_at(const safetensors_t *file, int32_t i);
const safetensors_entry_t *safetensors_find(const safetensors_t *file, const char *name);
const char *safetensors_metadata(const safetensors_t *file, const char *key); /* NULL if absent */
/* Over all metadata but the value of `except`, in whatever order; as safetensors_writer_sum gives it
 * before `except` is added. */
uint64_t safetensors_metadata_sum(const safetensors_t *file, const char *except);

typedef struct safetensors_writer safetensors_writer_t;
int safetensors_writer_new(safetensors_writer_t **w);
void safetensors_writer_free(safetensors_writer_t **w);
int safetensors_writer_metadata(safetensors_writer_t *w, const char *key, const char *value);
/* Over the metadata so far. */
uint64_t safetensors_writer_sum(const safetensors_writer_t *w);
/* Of one pair: both sums add these. */
uint64_t safetensors_pair_sum(const char *key, const char *value);
/* data is copied now. */
int safetensors_writer_add(safetensors_writer_t *w, const char *name, const char *dtype,
                           const int64_t *shape, int32_t ndim, const void *data, uint64_t bytes);
uint64_t safetensors_writer_bytes(const safetensors_writer_t *w);
/* Lays the whole file image into out (bytes as above). */
int safetensors_writer_image(const safetensors_writer_t *w, void *out, uint64_t bytes);

#endif
