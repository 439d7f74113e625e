#include "control/stream.h"

#include "control/wire.h"

void stream_fold(stream_digest_t *s, uint64_t position, uint64_t n_train, uint64_t cell_digest)
{
    if (position >= n_train)
        return;
    /* Mixed before it is added: a sum of bare digests would not notice two cells that changed
     * places. */
    s->sum += wire_mix(wire_mix(0, position), cell_digest);
    s->count++;
}

void stream_add(stream_digest_t *s, const stream_digest_t *other)
{
    s->sum += other->sum;
    s->count += other->count;
}

uint64_t stream_value(const stream_digest_t *s)
{
    return wire_mix(wire_mix(0, s->sum), s->count);
}

uint64_t stream_chain(uint64_t before, const stream_digest_t *epoch)
{
    return wire_mix(before, stream_value(epoch));
}

/* A double holds integers up to 2^53: sums of 32-bit parts over 2^21 ranks. */
void stream_split(const stream_digest_t *s, double parts[STREAM_PARTS])
{
    parts[0] = (double)(uint32_t)s->sum;
    parts[1] = (double)(s->sum >> 32);
    parts[2] = (double)(uint32_t)s->count;
    parts[3] = (double)(s->count >> 32);
}

stream_digest_t stream_join(const double parts[STREAM_PARTS])
{
    return (stream_digest_t){(uint64_t)parts[0] + ((uint64_t)parts[1] << 32),
                             (uint64_t)parts[2] + ((uint64_t)parts[3] << 32)};
}
