/* `sluice sample`: writes the synthetic inspection data set (images, labels, data.yaml).
 *
 * The same configuration gives the same bytes, whatever the number of threads. data.yaml is written
 * last, so a run cut short leaves nothing that looks finished. The folder is marked; a folder that
 * is not empty and has no mark, or has files of others among ours, is refused.
 */
#ifndef SLUICE_TOOLS_SAMPLE_H
#define SLUICE_TOOLS_SAMPLE_H

#include <stdint.h>

enum {
    SAMPLE_SIZE_MIN = 128,
    SAMPLE_SIZE_MAX = 8192,
    SAMPLE_IMAGES_MIN = 2,
    SAMPLE_IMAGES_MAX = 99999
};

typedef struct {
    const char *out;
    int images, imgsz;
    uint64_t seed;
    int threads; /* 0: from the machine */
} sample_config_t;

typedef struct {
    int train, val, labels, without; /* images, images, boxes, images without any */
} sample_counts_t;

/* ERR_CONFIG for a folder that must not be touched, ERR_ENV when writing fails. progress may be
 * NULL; it is called on the calling thread. */
int sample_write(const sample_config_t *config, void (*progress)(int done, int of),
                 sample_counts_t *counts);

#endif
