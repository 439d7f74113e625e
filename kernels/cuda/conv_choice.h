/* Which engine computes a convolution, remembered by shape, and as text that another process of the
 * same library and GPU turns into the same engines: what a resume's equal bits rest on.
 *
 *   cudnn 91900 deterministic 1 gpu NVIDIA H200
 *   forward bf16 8 256 256 64 128 3 1 0 64 128 16 16 16 -> direct 57 1048576 131.2 2=1 14=3
 *   sums: direct 1 packed 0 plain 0
 *
 * A line is conv_shape_t in its order, the form, the engine's index, bytes of workspace,
 * microseconds (0: never measured), and knobs as type=value. The last line says how many
 * convolutions go through copies (packed) or through our own kernel because the library has none
 * (plain). Belongs to the thread of its device.
 */
#ifndef SLUICE_KERNELS_CUDA_CONV_CHOICE_H
#define SLUICE_KERNELS_CUDA_CONV_CHOICE_H

#include "kernels/cuda/conv_graph.h"

typedef enum {
    CONV_DIRECT = 0, /* the library reads and writes the tensors where they are */
    CONV_PACKED,     /* through copies without gaps, aligned, channels padded (conv_run.h) */
    CONV_PLAIN,      /* plain.cu */
    CONV_FORMS
} conv_form_t;

typedef struct {
    conv_shape_t shape;
    conv_form_t form;
    conv_engine_t engine;
    uint64_t workspace;
    double us;         /* measured time; 0: not measured */
    conv_plan_t *plan; /* NULL: not built yet; always NULL for CONV_PLAIN */
} conv_choice_t;

enum { CONV_BUCKETS = 1024 };
typedef struct {
    conv_choice_t **all; /* in order of arrival */
    int32_t *next;       /* of the same bucket, -1 ends */
    int32_t count, room;
    int32_t bucket[CONV_BUCKETS];
} conv_choices_t;

void conv_choices_init(conv_choices_t *t);
void conv_choices_fini(conv_choices_t *t); /* plans too */
/* NULL if there is none. Valid until the table's end. */
conv_choice_t *conv_choices_find(const conv_choices_t *t, const conv_shape_t *shape);
/* Takes the choice and its plan; one of the same shape that has no plan is replaced, one that has
 * stays as it is (recorded steps may use it) and `c` is dropped. NULL: no memory. */
conv_choice_t *conv_choices_put(conv_choices_t *t, const conv_choice_t *c);

/* As snprintf: the length of the whole text. header: the first line, without its end. */
int64_t conv_choices_text(const conv_choices_t *t, const char *header, char *text, uint64_t bytes);
/* Takes the lines behind a line equal to `header`; others, and malformed ones, are left out.
 * -1: no memory. */
int conv_choices_read(conv_choices_t *t, const char *header, const char *text);

/* "conv_dx bf16 8 x 256 x 256, 64 to 128 channels, kernel 3, stride 1", for messages. */
void conv_shape_words(const conv_shape_t *s, char *text, size_t bytes);

#endif
