/* Files of torch.save by themselves: where each tensor lies, and every element read. What a model takes
 * of them is fuzz_modelfile's. */
#include "tests/fuzz/fuzz.h"

#include "shm/err.h"
#include "trainer/torchfile.h"

#include <stdlib.h>
#include <string.h>

static void check(const torchfile_t *f, const char *first, const char *end)
{
    for (int32_t i = 0; i < torchfile_count(f); i++) {
        const tensorview_t *v = torchfile_at(f, i);
        fuzz_require(v->ndim >= 0 && v->ndim <= TENSORVIEW_DIMS, "a tensor of impossible rank");
        fuzz_require(v->count == 0 ||
                         ((const char *)v->data >= first && (const char *)v->data < end),
                     "a tensor outside of the file");
        fuzz_require(v->count <= (uint64_t)(end - first), "more elements than bytes");
        float *values = malloc((v->count + 1) * sizeof *values);
        fuzz_require(values != NULL, "no memory");
        tensorview_floats(v, values);
        if (tensorview_is_float(v))
            fuzz_touch(values, v->count * sizeof *values);
        tensorview_integer(v, 0);
        free(values);
    }
    for (int32_t i = 0; i < torchfile_classes(f); i++)
        fuzz_touch(torchfile_class(f, i), strlen(torchfile_class(f, i)));
}

void fuzz_torchfile(const uint8_t *data, size_t bytes)
{
    torchfile_t *f;
    char *file = malloc(bytes ? bytes : 1);
    fuzz_require(file != NULL, "no memory");
    memcpy(file, data, bytes);
    int rc = torchfile_open(file, bytes, "fuzz.pt", &f);
    fuzz_require((rc == 0) == (f != NULL), "a file and an error");
    fuzz_require(rc == 0 || rc == ERR_CONFIG, "bytes of a file failed as something else");
    if (rc == 0)
        check(f, file, file + bytes);
    torchfile_free(&f);
    free(file);
}
