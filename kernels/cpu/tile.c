#include "kernels/cpu/tile.h"

#include <stdlib.h>

int32_t tile_even_rows(int64_t count)
{
    int64_t tiles = (count + TILE_ROWS - 1) / TILE_ROWS;
    return (int32_t)((count + tiles - 1) / tiles);
}

/* clang does not keep these tiles in registers: its builds use the BLAS. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)

#define TILE_TARGET __attribute__((target("avx512f")))

/* Sixteen floats at any address. */
typedef float tile_vec_t __attribute__((vector_size(64), aligned(4), may_alias));

/* Writes one register's sums at column `first` of a row: `count` of them. */
TILE_TARGET static inline __attribute__((always_inline)) void
store(const tile_t *t, const float *sum, float *c, int32_t first)
{
    if (t->columns - first >= TILE_LANES) {
        tile_vec_t v = *(const tile_vec_t *)(const void *)sum;
        tile_vec_t *out = (tile_vec_t *)(void *)(c + first);
        if (t->bias)
            v += *(const tile_vec_t *)(const void *)(t->bias + first);
        if (t->acc)
            v += *out;
        *out = v;
        return;
    }
    for (int32_t j = first; j < t->columns; j++) {
        float value = t->bias ? sum[j - first] + t->bias[j] : sum[j - first];
        c[j] = t->acc ? c[j] + value : value;
    }
}

/* Not inlined: once for all sizes. */
TILE_TARGET static __attribute__((noinline)) void tile_store(const tile_t *t, const tile_vec_t *sum)
{
    int vectors = t->columns > TILE_LANES ? 2 : 1;
    for (int32_t r = 0; r < t->rows; r++)
        for (int i = 0; i < vectors; i++)
            store(t, (const float *)&sum[r * vectors + i], t->c + r * t->c_row, TILE_LANES * i);
}

/* A tile of `rows` rows and 16 * vectors columns, both constants where this is inlined: the sums
 * then live in registers. Row addresses are three from each of five bases, so that they fit the
 * address modes; the empty asm keeps the compiler from making a pointer of each row instead. */
TILE_TARGET static inline __attribute__((always_inline)) void
tile_run(const tile_t *t, const int rows, const int vectors)
{
    tile_vec_t sum[TILE_ROWS * 2] = {{0}};
    const int64_t row = t->a_row, a_k = t->a_k, b_k = t->b_k;
    for (int64_t run = 0; run < t->runs; run++) {
        const float *b = t->b + run * t->b_run, *a = t->a + run * t->a_run;
        const float *base[5] = {a, a + 3 * row, a + 6 * row, a + 9 * row, a + 12 * row};
        for (int64_t k = 0; k < t->len; k++, b += b_k) {
            tile_vec_t v[2];
#pragma GCC unroll 2
            for (int i = 0; i < vectors; i++)
                v[i] = *(const tile_vec_t *)(const void *)(b + TILE_LANES * i);
#pragma GCC unroll 14
            for (int r = 0; r < rows; r++) {
                float x = base[r / 3][r % 3 * row];
#pragma GCC unroll 2
                for (int i = 0; i < vectors; i++)
                    sum[r * vectors + i] += x * v[i];
            }
#pragma GCC unroll 5
            for (int i = 0; i < (rows + 2) / 3; i++)
                base[i] += a_k;
            __asm__("" : "+r"(b), "+r"(base[0]), "+r"(base[(rows - 1) / 3]));
        }
    }
    tile_store(t, sum);
}

#define TILE_KERNEL(ROWS)                                                                          \
    TILE_TARGET static void tile_##ROWS(const tile_t *t)                                           \
    {                                                                                              \
        if (t->columns > TILE_LANES)                                                               \
            tile_run(t, ROWS, 2);                                                                  \
        else                                                                                       \
            tile_run(t, ROWS, 1);                                                                  \
    }

TILE_KERNEL(1)
TILE_KERNEL(2)
TILE_KERNEL(3)
TILE_KERNEL(4)
TILE_KERNEL(5)
TILE_KERNEL(6)
TILE_KERNEL(7)
TILE_KERNEL(8)
TILE_KERNEL(9)
TILE_KERNEL(10)
TILE_KERNEL(11)
TILE_KERNEL(12)
TILE_KERNEL(13)
TILE_KERNEL(14)

static void (*const tile_kernels[TILE_ROWS])(const tile_t *t) = {
    tile_1, tile_2, tile_3,  tile_4,  tile_5,  tile_6,  tile_7,
    tile_8, tile_9, tile_10, tile_11, tile_12, tile_13, tile_14};

int tile_available(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") != 0; /* it answers with a mask */
}

void tile_product(const tile_t *t)
{
    tile_kernels[t->rows - 1](t);
}

#else

int tile_available(void)
{
    return 0;
}

void tile_product(const tile_t *t)
{
    (void)t;
    abort(); /* a bug: callers ask tile_available first */
}

#endif
