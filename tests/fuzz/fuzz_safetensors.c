/* Safetensors files: opened, and every entry read. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/model.h"

#include "shm/err.h"
#include "trainer/safetensors.h"

#include <stdlib.h>
#include <string.h>

static void check(const safetensors_t *f, const char *end)
{
    for (int32_t i = 0; i < safetensors_count(f); i++) {
        const safetensors_entry_t *e = safetensors_at(f, i);
        fuzz_require(safetensors_dtype_bytes(e->dtype) > 0, "a tensor of unknown kind");
        fuzz_require(e->ndim >= 0 && e->ndim <= 8, "a tensor of impossible rank");
        fuzz_require((const char *)e->data + e->bytes <= end, "a tensor beyond the file");
        fuzz_touch(e->data, e->bytes);
        fuzz_require(safetensors_find(f, e->name) == e, "a name is not found again");
    }
    safetensors_metadata(f, "format");
}

void fuzz_safetensors(const uint8_t *data, size_t bytes)
{
    safetensors_t *f;
    char *file = malloc(bytes ? bytes : 1);
    fuzz_require(file != NULL, "no memory");
    memcpy(file, data, bytes);
    int rc = safetensors_load_memory(file, bytes, "fuzz.safetensors", &f);
    fuzz_require((rc == 0) == (f != NULL), "a file and an error");
    fuzz_require(rc == 0 || rc == ERR_CONFIG, "bytes of a file failed as something else");
    if (rc == 0)
        check(f, file + bytes);
    safetensors_free(&f);
    free(file);
}

/* A few tensors that the small model knows, of each kind that it takes, and some that it does not. */
void fuzz_safetensors_seeds(fuzz_seed_fn give, void *user)
{
    static const char *const kinds[] = {"F32", "F16", "BF16", "I64"};
    const graph_t *g = fuzz_small_model();
    static const float zeros[64 * 64 * 9];
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        safetensors_writer_t *w;
        uint64_t each = safetensors_dtype_bytes(kinds[k]);
        fuzz_require(safetensors_writer_new(&w) == 0, "no writer");
        int rc = safetensors_writer_metadata(w, "format", "pt");
        for (int32_t i = 0, n = 0; rc == 0 && i < graph_params(g) && n < 8; i++) {
            const graph_param_t *p = graph_param(g, i);
            if (p->count > 64 || p->place == GRAPH_CONSTANT)
                continue;
            uint64_t values = p->ndim ? p->count : 1;
            rc = safetensors_writer_add(w, p->name, kinds[k], p->shape, p->ndim, zeros,
                                        values * each);
            n++;
        }
        uint64_t bytes = safetensors_writer_bytes(w);
        uint8_t *image = malloc(bytes);
        fuzz_require(rc == 0 && image && safetensors_writer_image(w, image, bytes) == 0, "no seed");
        give(user, kinds[k], image, bytes);
        free(image);
        safetensors_writer_free(&w);
    }
}
