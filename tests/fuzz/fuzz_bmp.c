/* BMP: header and whole decode. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/image.h"

#include <stdlib.h>
#include <string.h>

void fuzz_bmp(const uint8_t *data, size_t bytes)
{
    uint8_t *file = malloc(bytes + 1);
    fuzz_require(file != NULL, "no memory");
    memcpy(file, data, bytes);
    if (bytes >= 2)
        memcpy(file, "BM", 2);
    fuzz_decode(file, bytes);
    free(file);
}

static void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put32(uint8_t *p, uint32_t v)
{
    put16(p, v);
    put16(p + 2, v >> 16);
}

typedef struct {
    const char *name;
    uint32_t header, bits, compression, palette;
    int32_t height;
} bmp_seed_t;

/* Every header and pixel form once, 13 pixels wide: rows of an odd number of bytes. */
void fuzz_bmp_seeds(fuzz_seed_fn give, void *user)
{
    static const bmp_seed_t kinds[] = {
        {"core24.bmp", 12, 24, 0, 0, 11},   {"core8.bmp", 12, 8, 0, 256, 11},
        {"bits1.bmp", 40, 1, 0, 2, 11},     {"bits4.bmp", 40, 4, 0, 16, -11},
        {"bits8.bmp", 40, 8, 0, 256, 11},   {"bits16.bmp", 40, 16, 0, 0, 11},
        {"masks16.bmp", 40, 16, 3, 0, -11}, {"bits24.bmp", 40, 24, 0, 0, -11},
        {"bits32.bmp", 40, 32, 0, 0, 11},   {"v5.bmp", 124, 32, 3, 0, 11},
        {"rle8.bmp", 40, 8, 1, 256, 11},    {"rle4.bmp", 40, 4, 2, 16, 11},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const bmp_seed_t *k = &kinds[i];
        uint8_t file[4096];
        uint32_t masks = k->compression == 3 && k->header == 40 ? 12 : 0;
        uint32_t pixels = 14 + k->header + masks + k->palette * (k->header == 12 ? 3 : 4);
        uint32_t bytes = pixels + (13 * k->bits + 31) / 32 * 4 * 11;
        for (size_t n = 0; n < sizeof file; n++)
            file[n] = (uint8_t)(n * 37);
        memset(file, 0, 14 + k->header);
        memcpy(file, "BM", 2);
        put32(file + 2, bytes);
        put32(file + 10, pixels);
        put32(file + 14, k->header);
        if (k->header == 12) {
            put16(file + 18, 13);
            put16(file + 20, 11);
            put16(file + 22, 1);
            put16(file + 24, k->bits);
        } else {
            put32(file + 18, 13);
            put32(file + 22, (uint32_t)k->height);
            put16(file + 26, 1);
            put16(file + 28, k->bits);
            put32(file + 30, k->compression);
            put32(file + 46, k->palette);
        }
        if (k->compression == 3) {
            put32(file + 54, k->bits == 16 ? 0xF800 : 0x00FF0000);
            put32(file + 58, k->bits == 16 ? 0x07E0 : 0x0000FF00);
            put32(file + 62, k->bits == 16 ? 0x001F : 0x000000FF);
        }
        give(user, k->name, file, bytes);
    }
}
