/* EXIF blocks, as a JPEG's APP1 payload and as a PNG's chunk. */
#include "tests/fuzz/fuzz.h"

#include "loader/exif.h"

#include <stdlib.h>
#include <string.h>

static void check(int orientation, const char *why)
{
    fuzz_require(orientation >= -1 && orientation <= 8, "an impossible orientation");
    fuzz_require(orientation != -1 || why, "a malformed block without a reason");
    if (why)
        fuzz_touch(why, strlen(why) + 1);
}

static void look_at(int (*read)(const uint8_t *, size_t, const char **), const uint8_t *data,
                    size_t bytes)
{
    const char *why = NULL;
    int orientation = read(data, bytes, &why);
    check(orientation, why);
}

void fuzz_exif(const uint8_t *data, size_t bytes)
{
    /* Blocks of their own sizes, so that a read behind the end is seen. */
    uint8_t *app1 = malloc(bytes + 6), *tiff = malloc(bytes ? bytes : 1);
    fuzz_require(app1 && tiff, "no memory");
    memcpy(tiff, data, bytes);
    memcpy(app1, "Exif\0\0", 6);
    memcpy(app1 + 6, data, bytes);
    look_at(exif_tiff, tiff, bytes);
    look_at(exif_app1, app1, bytes + 6);
    look_at(exif_app1, tiff, bytes);
    free(app1);
    free(tiff);
}

void fuzz_exif_seeds(fuzz_seed_fn give, void *user)
{
    static const uint8_t big[] = {'M', 'M', 0, 42, 0, 0,   0,   8, 0, 2, 1,  0x0F, 0,
                                  2,   0,   0, 0,  3, 'a', 'b', 0, 0, 1, 18, 0,    3,
                                  0,   0,   0, 1,  0, 6,   0,   0, 0, 0, 0,  0};
    static const uint8_t little[] = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 18, 1,
                                     3,   0,   1,  0, 0, 0, 8, 0, 0, 0, 0,  0};
    give(user, "big-endian", big, sizeof big);
    give(user, "little-endian", little, sizeof little);
}
