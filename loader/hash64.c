#include "loader/hash64.h"

#include <string.h>

/* DESIGN
 * Four independent lanes of 64 x 64 -> 128 bit multiplications whose halves are folded together,
 * each lane taking 16 bytes a step; the lanes hide the multiplier's latency. Odd constants from the
 * binary expansions of square roots (2, 3, 5, 7), so that nothing is tuned by hand.
 */
#define HASH_K0 0x6A09E667F3BCC909ull
#define HASH_K1 0xBB67AE8584CAA73Bull
#define HASH_K2 0x3C6EF372FE94F82Bull
#define HASH_K3 0xA54FF53A5F1D36F1ull

typedef unsigned __int128 hash_wide_t;

static uint64_t hash_fold(uint64_t a, uint64_t b)
{
    hash_wide_t product = (hash_wide_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_word(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* A lane's step. Adding the state after the fold keeps a zero product from erasing what came
 * before. */
static uint64_t hash_step(uint64_t state, const uint8_t *p, uint64_t k)
{
    return hash_fold(hash_word(p) ^ k, hash_word(p + 8) ^ state) + (state << 23 | state >> 41);
}

uint64_t hash64(const void *data, size_t bytes, uint64_t seed)
{
    const uint8_t *p = data;
    uint64_t a = seed ^ HASH_K0, b = seed ^ HASH_K1, c = seed ^ HASH_K2, d = seed ^ HASH_K3;
    size_t left = bytes;
    for (; left >= 64; left -= 64, p += 64) {
        a = hash_step(a, p, HASH_K1);
        b = hash_step(b, p + 16, HASH_K2);
        c = hash_step(c, p + 32, HASH_K3);
        d = hash_step(d, p + 48, HASH_K0);
    }
    /* The rest, padded with zeros; the length below tells padding from data. */
    uint8_t rest[64] = {0};
    memcpy(rest, p, left);
    a = hash_step(a, rest, HASH_K1);
    b = hash_step(b, rest + 16, HASH_K2);
    c = hash_step(c, rest + 32, HASH_K3);
    d = hash_step(d, rest + 48, HASH_K0);
    a = hash_fold(a ^ HASH_K2, b ^ (uint64_t)bytes);
    c = hash_fold(c ^ HASH_K3, d ^ HASH_K0);
    return hash_fold(a ^ c, (a ^ HASH_K1) + (c << 31 | c >> 33));
}
