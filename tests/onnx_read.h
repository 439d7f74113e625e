/* An ONNX file read back, for tests: a second statement of the format, that shares nothing with the
 * writer. Anything that is not as it must be fails the test. */
#ifndef SLUICE_TESTS_ONNX_READ_H
#define SLUICE_TESTS_ONNX_READ_H

#include <stddef.h>
#include <stdint.h>

enum { READ_NAME = 160, READ_DIMS = 6, READ_ATTRS = 8, READ_PORTS = 16 };

typedef struct {
    char name[READ_NAME];
    int64_t type, i; /* AttributeProto.AttributeType; i of INT */
    char s[64];
    int64_t ints[READ_DIMS];
    int n_ints;
} read_attr_t;

typedef struct {
    char op[32], name[READ_NAME];
    char in[READ_PORTS][READ_NAME], out[READ_PORTS][READ_NAME];
    int n_in, n_out, n_attrs;
    read_attr_t attrs[READ_ATTRS];
} read_node_t;

typedef struct {
    char name[READ_NAME];
    int64_t type; /* TensorProto.DataType */
    int64_t dims[READ_DIMS];
    char open[READ_DIMS][32]; /* dim_param */
    int n_dims;
    const uint8_t *raw; /* initialisers */
    size_t bytes;
} read_tensor_t;

typedef struct {
    char key[64], value[4096];
} read_entry_t;

typedef struct {
    int64_t ir, opset;
    char producer[32], graph[64];
    read_node_t *nodes;
    read_tensor_t *constants, inputs[2], outputs[2];
    read_entry_t entries[32];
    int n_nodes, n_constants, n_inputs, n_outputs, n_entries;
} read_model_t;

/* Points into the image. */
void onnx_read(const uint8_t *image, size_t bytes, read_model_t *m);
void onnx_read_free(read_model_t *m);
/* NULL where there is none. */
const read_tensor_t *onnx_read_constant(const read_model_t *m, const char *name);
const read_attr_t *onnx_read_attr(const read_node_t *node, const char *name);
const char *onnx_read_entry(const read_model_t *m, const char *key);

#endif
