/* An ONNX model while it is put together: tensors known by number, nodes in order of execution,
 * constants, metadata; at the end one file image.
 *
 * The messages are those of onnx.proto (IR versions 8 to 10), written by hand. Builders pass failure
 * on, as those of the graph do: a tensor below zero goes in, one below zero comes out, and the error
 * text stays that of the first failure. Names are made unique here. Any thread.
 */
#ifndef SLUICE_TRAINER_ONNX_MODEL_H
#define SLUICE_TRAINER_ONNX_MODEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* TensorProto.DataType */
typedef enum { ONNX_FLOAT = 1, ONNX_INT64 = 7, ONNX_FLOAT16 = 10 } onnx_type_t;
enum { ONNX_OPSET_MIN = 17, ONNX_OPSET_MAX = 22, ONNX_DIMS = 4, ONNX_ABSENT = -2 };

typedef struct onnx_model onnx_model_t;

/* Producer: name and version for the file's head. */
int onnx_model_new(int opset, const char *producer, const char *version, onnx_model_t **model);
void onnx_model_free(onnx_model_t **model);
/* The IR version that goes with an opset, as the release of both had it. */
int onnx_ir_version(int opset);

/* A dimension by its size, or by a name where it is left open. */
typedef struct {
    int64_t size;
    const char *open; /* NULL: size */
} onnx_dim_t;

typedef enum { ONNX_A_INT = 2, ONNX_A_STRING = 3, ONNX_A_INTS = 7 } onnx_attr_kind_t;
typedef struct {
    const char *name;
    onnx_attr_kind_t kind;
    int64_t i;
    const char *s;
    int64_t ints[4];
    int n;
} onnx_attr_t;

enum { ONNX_IN = 64, ONNX_ATTRS = 5 };
typedef struct {
    const char *op;
    int32_t in[ONNX_IN]; /* tensors; ONNX_ABSENT: left out */
    int n_in;
    onnx_attr_t attr[ONNX_ATTRS]; /* ends with a NULL name, or full */
    const char *output;           /* name of the first output; NULL: made from the node's */
} onnx_node_t;

/* First part of the names of what is added from now on: "/model.0/conv". */
void onnx_scope(onnx_model_t *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int32_t onnx_fail(onnx_model_t *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int32_t onnx_input(onnx_model_t *m, const char *name, onnx_type_t type, const onnx_dim_t *dims,
                   int n_dims);
/* Says that a tensor is an output of the model, under the name that it has. */
void onnx_output(onnx_model_t *m, int32_t tensor, onnx_type_t type, const onnx_dim_t *dims,
                 int n_dims);
/* A node with one output, and with several. */
int32_t onnx_add(onnx_model_t *m, const onnx_node_t *node);
int onnx_add_many(onnx_model_t *m, const onnx_node_t *node, int32_t *out, int n_out);
/* Data is the model's from now on, also when this fails: malloc'ed, freed with it. */
int32_t onnx_take(onnx_model_t *m, const char *name, onnx_type_t type, const int64_t *shape,
                  int n_dims, void *data);
/* Small constants; equal ones are stored once. A scalar has n < 0: one value, no dimension. */
int32_t onnx_ints(onnx_model_t *m, const int64_t *values, int n);
int32_t onnx_floats(onnx_model_t *m, const float *values, int n, onnx_type_t type);
/* Nearest half, ties to even; beyond 65504 infinite. */
uint16_t onnx_half(float value);
void onnx_metadata(onnx_model_t *m, const char *key, const char *value);

/* Shorthands for operators with tensors alone: one, two inputs. */
int32_t onnx_unary(onnx_model_t *m, const char *op, int32_t x);
int32_t onnx_binary(onnx_model_t *m, const char *op, int32_t a, int32_t b);
/* Joins along an axis; n of at most ONNX_IN. */
int32_t onnx_concat(onnx_model_t *m, const int32_t *parts, int n, int64_t axis);
/* Reshape to a constant shape, with 0 for a dimension that stays and -1 for one that follows. */
int32_t onnx_reshape(onnx_model_t *m, int32_t x, const int64_t *shape, int n);
int32_t onnx_cast(onnx_model_t *m, int32_t x, onnx_type_t type);

/* Puts the file together; ERR with the first failure. Its bytes are in *n stretches, which belong to
 * the model. */
int onnx_finish(onnx_model_t *m, const char *graph_name, const struct iovec **parts, size_t *n,
                uint64_t *bytes);
int32_t onnx_nodes(const onnx_model_t *m);

#endif
