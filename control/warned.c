#include "control/warned.h"

#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

enum { TELL_NAMES = 10 };

int warned_init(warned_t *w, const catalog_t *catalog)
{
    memset(w, 0, sizeof *w);
    for (int split = 0; split < CATALOG_SPLITS; split++) {
        uint32_t n = catalog_count(catalog, (catalog_split_t)split);
        w->samples[split] = n;
        w->seen[split] = calloc((size_t)n + 1, 1);
        if (!w->seen[split]) {
            warned_fini(w);
            return err_set(ERR_ENV, "no memory for a byte an image");
        }
        for (uint32_t i = 0; i < n; i++)
            if (catalog_sample(catalog, (catalog_split_t)split, i)->warned)
                warned_add(w, (uint32_t)split, i);
    }
    return 0;
}

void warned_fini(warned_t *w)
{
    for (int split = 0; split < CATALOG_SPLITS; split++)
        free(w->seen[split]);
    memset(w, 0, sizeof *w);
}

int warned_add(warned_t *w, uint32_t split, uint32_t sample)
{
    if (split >= CATALOG_SPLITS || sample >= w->samples[split])
        return err_set(ERR_FAILED, "a warning names sample %u of split %u, which is not there",
                       sample, split);
    if (w->seen[split][sample])
        return 0;
    w->seen[split][sample] = 1;
    w->count[split]++;
    return 1;
}

uint32_t warned_count(const warned_t *w)
{
    return w->count[CATALOG_TRAIN] + w->count[CATALOG_VAL];
}

tell_t tell_how(uint32_t count)
{
    if (count <= TELL_NAMES)
        return count < TELL_NAMES ? TELL_NAME : TELL_NAME_LAST;
    while (count % 10 == 0)
        count /= 10;
    return count == 1 ? TELL_COUNT : TELL_NOTHING;
}
