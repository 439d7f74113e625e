/* Convolutions by the library: forms, choices, measuring. The state behind cuda_conv_t.
 *
 * A call is computed in one of three forms (conv_form_t). CONV_DIRECT hands the tensors over as they
 * are. CONV_PACKED copies those that the library may not take, or take only slowly, to work: channel
 * slices, places that are not aligned to 16 bytes, channel numbers that are no multiple of 8 in a
 * half format (padded with zeros), and the result of conv_dx with acc. CONV_PLAIN is our own kernel,
 * when the library has no engine at all. What is measured is the form with its copies.
 *
 * Both of the first run over groups of images where a whole batch would need too much memory for
 * copies, or more elements than 32 bits count.
 *
 * work: copies of x, y and w, the weight gradient in the format of x, then the engine's workspace.
 * Its size depends on the shape alone, so that it is known before pitches are.
 */
#ifndef SLUICE_KERNELS_CUDA_CONV_RUN_H
#define SLUICE_KERNELS_CUDA_CONV_RUN_H

#include "kernels/cuda/conv.h"
#include "kernels/cuda/conv_choice.h"

/* Bounds that cut a batch into groups and workspaces down; tests make them small. */
typedef struct {
    uint64_t copies;                  /* bytes of the copies of x and y of one group */
    uint64_t elements;                /* of x or y of one group in CONV_DIRECT */
    uint64_t space_least, space_most; /* bytes of workspace; between, what the tensors take */
} conv_limits_t;

struct cuda_conv {
    conv_limits_t limits;
    conv_graph_t graph;
    conv_choices_t choices;
    cudaEvent_t from, to;              /* of what is measured */
    uint64_t measured_ns;              /* host time spent on it since measure(1) */
    int unmeasured;                    /* shapes since then for which none was left */
    char header[CUDA_ERROR_BYTES / 2]; /* first line of the choices' text */
};

/* Offsets in work, sizes in bytes. */
typedef struct {
    int32_t c1, c2; /* padded */
    int32_t images; /* of a group in CONV_PACKED; a divisor of n */
    uint64_t x, y, w, dw, space, space_bytes, total;
} conv_layout_t;

/* The key of a call. */
conv_shape_t conv_shape_of(const cuda_dev_t *dev, const conv_call_t *call);
conv_layout_t conv_layout(const conv_limits_t *limits, const conv_shape_t *s);

/* conv_form.c, with conv_layout, which looks at n, h, w, c1, c2, k, s and the format alone.
 * conv_form_shape: what the library is asked to compute in a form, for one group of images. */
conv_shape_t conv_form_shape(const conv_limits_t *limits, const conv_shape_t *s, conv_form_t form);
/* 1 if CONV_PACKED differs from CONV_DIRECT. */
int conv_form_packs(const conv_limits_t *limits, const conv_shape_t *s);
/* Runs a choice whose plan is built. 0; CONV_REFUSED if the library refused before anything was
 * written outside work, its words in graph.why; -1 with the sentence. */
enum { CONV_REFUSED = 1 };
int conv_form_run(cuda_dev_t *dev, const conv_call_t *call, const conv_choice_t *choice);

#endif
