/* The GPUs of this machine, as `sluice-trainer --devices` tells of them: its JSON line read, a device
 * chosen, devices held against what a run asks of them.
 *
 * The coordinator and the command touch no GPU: a driver may hang, and a process that has touched one
 * holds memory on it. So a child looks, and has GPUS_DEADLINE_S for it. Bytes from the child are checked
 * before anything believes them. gpus_t is a plain value (about 100 KB). Functions but gpus_ask are
 * pure; any thread.
 */
#ifndef SLUICE_CONTROL_GPUS_H
#define SLUICE_CONTROL_GPUS_H

#include "control/options.h"
#include "control/supervise.h"

#include <stddef.h>
#include <stdint.h>

enum {
    GPUS_MOST = 64,
    GPUS_HOLDERS = 16,
    GPUS_DEADLINE_S = 10,
    GPUS_ANSWER_BYTES = 1 << 18, /* of what a child answers */
    GPUS_CAPABILITY = 75,        /* the least that the kernels are compiled for: 7.5 */
    GPUS_BF16 = 80,              /* the least that computes in bf16: 8.0 */
    GPUS_LEAST = 600 << 20,      /* bytes of a rank before its first tensor: context, libraries */
};

/* Of activations; the numbers are k_dtype_t's (trainer/plan_batch.c asserts it). */
typedef enum { GPU_FP32 = 0, GPU_BF16, GPU_FP16 } gpu_format_t;

/* A process that holds memory of a GPU. */
typedef struct {
    uint32_t pid;
    uint64_t bytes; /* 0: the driver does not say */
    char name[64];  /* "": the driver does not say, as in a container */
} gpu_holder_t;

typedef struct {
    int ordinal; /* CUDA's, among those that CUDA_VISIBLE_DEVICES leaves */
    char name[96], bus[32];
    int capability; /* 90: compute capability 9.0 */
    uint64_t total, free;
    gpu_holder_t holders[GPUS_HOLDERS];
    int n_holders;
} gpu_t;

typedef struct {
    gpu_t at[GPUS_MOST]; /* ordinals 0, 1, ... in order */
    int n;
    char why[512]; /* n = 0: why there is none */
} gpus_t;

/* What to ask: words and env (NAME=VALUE, NULL where there is nothing to add) end with NULL; the
 * descriptors are inherited. */
typedef struct {
    const char *program;
    const char *const *words, *const *env;
    const int *fds;
    int n_fds;
} gpus_question_t;

/* Starts a child with a memory file that it answers into (--to FD is added). *fd is the caller's, to be
 * read when the child has ended. Never waits. */
int gpus_ask(const gpus_question_t *q, supervise_child_t *child, int *fd);
/* What such a child has answered, or was told in another memory file, NUL-terminated; freed by the
 * caller. ERR_ENV when there is nothing, or too much: `what` is the sentence's subject. */
int gpus_answer(int fd, const char *what, char **text, size_t *bytes);
/* The list of a --devices line. ERR_ENV when it is none. */
int gpus_parse(const char *text, size_t bytes, gpus_t *g);
/* NULL where there is no such GPU. */
const gpu_t *gpus_find(const gpus_t *g, int ordinal);
/* The GPU with the most free memory of those that can be used, or -1. */
int gpus_best(const gpus_t *g);
/* Replaces auto and all, and holds every device against the options: capability, format, memory that
 * others hold. What a person should know goes to notes, a line each. ERR_ENV or ERR_CONFIG. */
int gpus_resolve(options_t *o, const gpus_t *g, char *notes, size_t bytes);
/* Format of activations of a run on the options' devices: one for all ranks. */
gpu_format_t gpus_format(const options_t *o, const gpus_t *g);
const char *gpus_format_name(gpu_format_t format);
/* "pid 4711 (python) 30210 MB, pid 12 8 MB", "" when nobody is known. */
void gpus_holders(const gpu_t *gpu, char *text, size_t bytes);
/* Ranks of the options on that device. */
int gpus_ranks_on(const options_t *o, int ordinal);
/* The device of the options with the least free memory for each of its ranks; NULL on a CPU. */
const gpu_t *gpus_tightest(const options_t *o, const gpus_t *g);

#endif
