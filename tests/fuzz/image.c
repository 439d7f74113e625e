#include "tests/fuzz/image.h"

#include "shm/err.h"
#include "tests/fuzz/fuzz.h"

const picture_limits_t fuzz_limits = {.max_pixels = 1 << 18, .max_scans = 10, .max_bytes = 4 << 20};

void fuzz_decode(const uint8_t *file, size_t bytes)
{
    static decode_t *d;
    decode_header_t h;
    const picture_t *p = NULL;
    if (!d)
        fuzz_require(decode_new(&d) == 0, "no decoder");
    int probed = decode_probe(d, file, bytes, &fuzz_limits, &h);
    int decoded = decode_image(d, 0, file, bytes, &fuzz_limits, &p);
    fuzz_require(probed == 0 || probed == ERR_DATA, "a header failed as something else");
    fuzz_require(decoded == 0 || decoded == ERR_DATA, "an image failed as something else");
    fuzz_require((probed == 0 && decoded == 0) || err_text()[0], "an error without a sentence");
    /* What the scan refuses never reaches a loader. */
    if (decoded < 0)
        return;
    fuzz_require(probed == 0, "an image decodes whose header was refused");
    fuzz_require(p->width == h.width && p->height == h.height, "scan and loader differ in size");
    fuzz_require(p->orientation == h.orientation, "scan and loader differ in orientation");
    fuzz_require((uint64_t)p->width * p->height <= fuzz_limits.max_pixels,
                 "more pixels than allowed");
    fuzz_touch(p->pixels, p->stride * p->height + PICTURE_SLACK);
}
