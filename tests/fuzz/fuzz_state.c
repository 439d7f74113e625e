/* The header of a state file, in front of tensors that are all zero: read by the trainer, and by the
 * scribe, who must not understand it differently. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/model.h"

#include "shm/err.h"
#include "tools/statefile.h"
#include "trainer/checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_MOST = 1 << 16, SEED_RANKS = 2 };
static const checkpoint_expect_t expect = {
    .seed = 7, .list_digest = 99, .sgd = 1, .epochs = 20, .first_epoch = 3, .patience = 10};

static void fill_state(const graph_t *g, const float *zeros, uint32_t pending,
                       checkpoint_state_t *s)
{
    memset(s, 0, sizeof *s);
    s->weights = s->m = s->ema_weights = s->ema_buffers = s->rank_buffers = zeros;
    s->grads = pending ? zeros : NULL;
    s->ranks = SEED_RANKS;
    s->batch = 4;
    s->epoch = expect.first_epoch;
    s->pending = pending;
    s->sgd = 1;
    s->seed = expect.seed;
    s->list_digest = expect.list_digest;
    s->progress.point.accumulate = 1;
    (void)g;
}

/* A whole image of a state whose regions are zero; its header's length in *header. */
static uint8_t *make_image(uint32_t pending, uint64_t *header, uint64_t *bytes)
{
    const graph_t *g = fuzz_small_model();
    const graph_sizes_t *sizes = graph_sizes(g);
    uint64_t most =
        sizes->weights > SEED_RANKS * sizes->buffers ? sizes->weights : SEED_RANKS * sizes->buffers;
    float *zeros = calloc(most, sizeof *zeros);
    safetensors_writer_t *w = NULL;
    checkpoint_state_t s;
    fuzz_require(zeros && safetensors_writer_new(&w) == 0, "no memory");
    fill_state(g, zeros, pending, &s);
    fuzz_require(checkpoint_state_image(g, &s, w) == 0, "no image");
    *bytes = safetensors_writer_bytes(w);
    uint8_t *image = malloc(*bytes);
    fuzz_require(image && safetensors_writer_image(w, image, *bytes) == 0, "no image");
    *header = 0;
    for (int i = 7; i >= 0; i--)
        *header = *header << 8 | image[i];
    safetensors_writer_free(&w);
    free(zeros);
    return image;
}

void fuzz_state_seeds(fuzz_seed_fn give, void *user)
{
    uint64_t header, bytes;
    for (uint32_t pending = 0; pending < 2; pending++) {
        uint8_t *image = make_image(pending, &header, &bytes);
        give(user, pending ? "pending" : "plain", image + 8, header);
        free(image);
    }
}

/* The bytes of data that the seed's tensors have: an input without another is refused by its
 * offsets. */
static uint64_t data_bytes(void)
{
    uint64_t header, bytes;
    free(make_image(0, &header, &bytes));
    return bytes - 8 - header;
}

void fuzz_state(const uint8_t *data, size_t bytes)
{
    static uint8_t *file; /* [8 + HEADER_MOST][zeros] */
    static uint64_t zeros;
    if (!file) {
        zeros = data_bytes();
        file = calloc(1, 8 + HEADER_MOST + zeros);
        fuzz_require(file != NULL, "no memory");
    }
    if (bytes > HEADER_MOST)
        return;
    uint8_t *at = file + HEADER_MOST - bytes;
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)((uint64_t)bytes >> 8 * i);
    memcpy(at + 8, data, bytes);
    const graph_t *g = fuzz_small_model();
    safetensors_t *f;
    checkpoint_state_t s;
    statefile_t brief;
    int scribe = statefile_parse((const char *)data, bytes, "fuzz.state", &brief);
    int rc = safetensors_load_memory(at, 8 + bytes + zeros, "fuzz.state", &f);
    if (rc == 0)
        rc = checkpoint_state_read(g, f, "fuzz.state", &expect, &s);
    if (rc == 0) {
        fuzz_touch(s.weights, graph_sizes(g)->weights * sizeof(float));
        fuzz_touch(s.rank_buffers, s.ranks * graph_sizes(g)->buffers * sizeof(float));
        /* The scribe reads names as they stand: an escape in one makes it refuse the file. */
        fuzz_require(scribe == 0 || memchr(data, '\\', bytes),
                     "the trainer reads a state that the scribe refuses");
        fuzz_require(scribe < 0 || (brief.next_epoch == s.epoch && brief.position == s.position),
                     "scribe and trainer read different places in the run");
    }
    safetensors_free(&f);
}
