/* Rows of a label file. The first byte chooses the number of classes and single_cls. */
#include "tests/fuzz/fuzz.h"

#include "loader/labels.h"
#include "shm/err.h"

#include <math.h>

static void check(const labels_t *l, uint32_t classes)
{
    for (uint32_t i = 0; i < l->n; i++) {
        const catalog_label_t *r = &l->rows[i];
        fuzz_require(r->cls >= 0 && r->cls < (float)classes && r->cls == floorf(r->cls),
                     "a class that is none");
        fuzz_require(isfinite(r->cx) && isfinite(r->cy) && isfinite(r->w) && isfinite(r->h),
                     "a box that is no number");
        fuzz_require(r->w <= 1.02f && r->h <= 1.02f && r->w >= -0.02f && r->h >= -0.02f,
                     "a box larger than its image");
        fuzz_require((uint64_t)r->first_point + r->n_points <= l->n_points,
                     "a polygon beyond the points");
        for (uint32_t k = 0; k < 2 * r->n_points; k++)
            fuzz_require(isfinite(l->points[2 * r->first_point + k]), "a point that is no number");
    }
}

void fuzz_labels(const uint8_t *data, size_t bytes)
{
    /* Kept from input to input, as the scan keeps it. */
    static labels_t l;
    if (bytes == 0)
        return;
    uint32_t classes = (data[0] >> 1 & 15) + 1u;
    int single = data[0] & 1;
    int rc = labels_parse((const char *)data + 1, bytes - 1, "fuzz.txt", classes, single, &l);
    fuzz_require(rc == 0 || rc == ERR_DATA, "bytes of a label file failed as something else");
    if (rc == 0)
        check(&l, single ? 1 : classes);
    else
        fuzz_require(l.n == 0 && l.n_points == 0, "rows of a refused file");
}
