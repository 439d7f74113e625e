#include "loader/order.h"

#include <assert.h>

/* Six rounds of a keyed function of 32 bits are more than the four that make a Feistel network a
 * pseudo-random permutation (Luby and Rackoff, 1988). */
enum { ORDER_ROUNDS = 6 };

static uint32_t order_round(uint64_t seed, uint32_t epoch, uint32_t round, uint32_t half)
{
    /* The counter layout of philox_stream, with the half block as position and the round above it.
     */
    const uint32_t counter[4] = {(uint32_t)PHILOX_ORDER << 24, epoch, half, round};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    philox_block(counter, key, out);
    return out[0];
}

/* One pass of the network over `bits` bits, halves of (bits + 1) / 2 low and bits / 2 high; the
 * widths change places from round to round, and ORDER_ROUNDS is even, so they end where they began.
 */
static uint32_t order_pass(uint64_t seed, uint32_t epoch, uint32_t bits, uint32_t value)
{
    uint32_t low_bits = (bits + 1) / 2, high_bits = bits / 2;
    for (uint32_t round = 0; round < ORDER_ROUNDS; round++) {
        uint32_t low = value & ((1u << low_bits) - 1), high = value >> low_bits;
        uint32_t mixed = (high ^ order_round(seed, epoch, round, low)) & ((1u << high_bits) - 1);
        /* The untouched half becomes the high one. */
        value = low << high_bits | mixed;
        uint32_t swap = low_bits;
        low_bits = high_bits;
        high_bits = swap;
    }
    return value;
}

uint32_t order_sample(uint64_t seed, uint32_t epoch, uint64_t position, uint32_t n)
{
    assert(n >= 1);
    if (n == 1)
        return 0;
    uint32_t bits = 32 - (uint32_t)__builtin_clz(n - 1);
    uint32_t value = (uint32_t)(position % n);
    /* Cycle walking: the network permutes [0, 2^bits), less than twice n; following the cycle until
     * it comes back below n permutes [0, n). */
    do {
        value = order_pass(seed, epoch, bits, value);
    } while (value >= n);
    return value;
}

uint32_t order_window(uint32_t mosaic_window, uint32_t n)
{
    if (mosaic_window > 0)
        return mosaic_window;
    return n < 1000 ? n : 1000;
}

uint32_t order_partner(uint64_t seed, uint32_t epoch, uint64_t position, uint32_t n,
                       uint32_t window, philox_t *draws)
{
    uint64_t back = 1 + (uint64_t)philox_below(draws, window);
    while (back > position) {
        epoch--; /* unsigned: 0 becomes 0xffffffff */
        position += n;
    }
    return order_sample(seed, epoch, position - back, n);
}
