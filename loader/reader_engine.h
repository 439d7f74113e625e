/* What an engine of the reader provides; private to reader*.c. */
#ifndef SLUICE_LOADER_READER_ENGINE_H
#define SLUICE_LOADER_READER_ENGINE_H

#include "loader/reader.h"

typedef struct {
    const char *name;
    /* depth: files under way at once. ERR_ENV with the reason when the engine cannot run here. */
    int (*open)(uint32_t depth, void **engine);
    /* Must not wait for files still under way; `left` says how many there are. */
    void (*close)(void *engine, uint32_t left);
    int (*submit)(void *engine, reader_file_t *file);
    /* Returns how many files became DONE, or a negative code. */
    int (*poll)(void *engine, int timeout_ms);
} reader_engine_t;

extern const reader_engine_t reader_uring, reader_threads;

/* The file's reading has failed with `error` (errno). Whether it begins anew, and after how many
 * milliseconds: 0 at once, -1 not at all. Counts the tries; the engine has closed the descriptor, and
 * bytes and error are reset here where it begins anew. */
int reader_again(reader_file_t *file, int error);

/* Bytes to ask for next: what is expected and one more, which shows a file that has grown. */
static inline size_t reader_rest(const reader_file_t *file)
{
    return (size_t)(file->expected + 1 - file->bytes);
}

#endif
