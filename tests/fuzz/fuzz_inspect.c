/* The scan's look at one file: header from as little as it takes, end, decode where in doubt. The
 * first byte chooses the rules. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/image.h"

#include "loader/inspect.h"
#include "shm/err.h"

#include <string.h>

void fuzz_inspect(const uint8_t *data, size_t bytes)
{
    static inspector_t *kept[4];
    finding_t f;
    if (bytes == 0)
        return;
    int rules = data[bytes - 1] & 3; /* the last byte, so that the seeds are files as they are */
    if (!kept[rules]) {
        inspect_rules_t r = {.limits = fuzz_limits,
                             .classes = 3,
                             .max_labels = 100,
                             .skip_warned = rules & 1,
                             .decode_all = rules >> 1};
        fuzz_require(inspector_new(&r, &kept[rules]) == 0, "no inspector");
    }
    memset(&f, 0, sizeof f);
    int rc = inspect_image(kept[rules], fuzz_file(data, bytes), &f);
    fuzz_require(rc == 0, "a file that ends the scan");
    if (!f.dropped) {
        fuzz_require(f.facts.width >= INSPECT_SIDE_MIN && f.facts.height >= INSPECT_SIDE_MIN &&
                         (uint64_t)f.facts.width * f.facts.height <= fuzz_limits.max_pixels,
                     "an image of a size that is not allowed");
        fuzz_require(f.facts.orientation >= 1 && f.facts.orientation <= 8, "an impossible turn");
        fuzz_require(f.facts.file_bytes == bytes, "a file of another length");
    }
    finding_fini(&f);
}
