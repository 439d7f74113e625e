/* JPEG: header and whole decode. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/image.h"

#include <stdlib.h>
#include <string.h>

void fuzz_jpeg(const uint8_t *data, size_t bytes)
{
    /* A copy of its own size, so that a read behind the end is seen. */
    uint8_t *file = malloc(bytes + 1);
    fuzz_require(file != NULL, "no memory");
    memcpy(file, data, bytes);
    if (bytes >= 2) { /* nothing but JPEG belongs here */
        file[0] = 0xFF;
        file[1] = 0xD8;
    }
    fuzz_decode(file, bytes);
    free(file);
}
