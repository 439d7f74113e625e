/* How kernels over maps share out work: a thread has V neighbouring channels (a group) and walks
 * over items: pixels, or strips or rows of them. It keeps what belongs to its channels in registers,
 * and neighbouring threads touch neighbouring memory: a block is `tile` groups wide and `rows` items
 * high. Sums over items go from registers through shared memory to one row of doubles a block in
 * scratch, which cuda_add_parts adds in order. For .cu files only.
 */
#ifndef SLUICE_KERNELS_CUDA_TILE_CUH
#define SLUICE_KERNELS_CUDA_TILE_CUH

#include "kernels/cuda/types.cuh"

enum {
    TILE_THREADS = 256, /* most of a block */
    TILE_GROUPS = 32,   /* most side by side: 512 bytes of a pixel */
    TILE_A_SM = 16,     /* blocks a multiprocessor where each item is for itself */
    TILE_SUMS_A_SM = 8, /* where a block ends with sums: fewer rows to add up */
    TILE_FLOATS = 2048, /* values that a thread sums in float, at most */
};

typedef struct {
    int64_t items;
    int groups;        /* of V channels, in an item */
    int tile, rows;    /* of a block: groups side by side, items at a time */
    int blocks, tiles; /* grid.x, grid.y */
} tile_t;

/* A share of `items` of `groups` groups each; a thread has about `each` items where there are many
 * blocks' worth. */
static inline tile_t tile_share(const cuda_dev_t *dev, int64_t items, int groups, int each)
{
    tile_t t = {items, groups, 0, 0, 0, (groups + TILE_GROUPS - 1) / TILE_GROUPS};
    t.tile = (groups + t.tiles - 1) / t.tiles;
    t.rows = TILE_THREADS / t.tile;
    int64_t a_block = (int64_t)t.rows * each, need = (items + a_block - 1) / a_block;
    int64_t most = (int64_t)dev->sms * TILE_A_SM / t.tiles;
    most = most < 1 ? 1 : most;
    t.blocks = (int)(need < most ? need : most);
    return t;
}

/* The same where a block ends with `columns` sums over its items, of `values` values an item and
 * thread: few blocks, but not so few that a thread sums too many values in float. */
static inline tile_t tile_share_sums(const cuda_dev_t *dev, int64_t items, int groups, int values,
                                     int columns)
{
    tile_t t = tile_share(dev, items, groups, values < 8 ? 8 / values : 1);
    int64_t most = (int64_t)dev->sms * TILE_SUMS_A_SM / t.tiles;
    int64_t least = (items * values / t.rows + TILE_FLOATS - 1) / TILE_FLOATS;
    int64_t room = CUDA_SCRATCH_BYTES / ((int64_t)columns * (int64_t)sizeof(double));
    int64_t blocks = t.blocks < most ? t.blocks : most;
    blocks = blocks > least ? blocks : least;
    blocks = blocks < room ? blocks : room;
    t.blocks = (int)(blocks < 1 ? 1 : blocks);
    return t;
}

/* 0 if scratch has room for one row of `columns` sums at least. */
static inline int tile_check_sums(cuda_dev_t *dev, const char *op, int64_t columns)
{
    if (columns <= CUDA_SCRATCH_BYTES / (int64_t)sizeof(double))
        return 0;
    return cuda_fail(dev, "%s: %lld sums over the pixels; at most %d are possible", op,
                     (long long)columns, CUDA_SCRATCH_BYTES / (int)sizeof(double));
}

static inline dim3 tile_grid(const tile_t *t)
{
    return dim3((unsigned)t->blocks, (unsigned)t->tiles);
}

static inline dim3 tile_block(const tile_t *t)
{
    return dim3((unsigned)(t->tile * t->rows));
}

/* A thread's group, its first item and the way to the next. */
typedef struct {
    int group, row;
    int64_t item, step;
} tile_spot_t;

/* A thread of the last tile that has no group gets no item. */
__device__ __forceinline__ tile_spot_t tile_spot(const tile_t &t)
{
    tile_spot_t s;
    s.row = (int)threadIdx.x / t.tile;
    s.group = (int)blockIdx.y * t.tile + (int)threadIdx.x - s.row * t.tile;
    s.step = (int64_t)t.blocks * t.rows;
    s.item = s.group < t.groups ? (int64_t)blockIdx.x * t.rows + s.row : t.items;
    return s;
}

/* a / b for a >= 0: 64-bit division takes many times as long. */
__device__ __forceinline__ int64_t tile_divide(int64_t a, int b)
{
    return a >> 32 ? a / b : (int64_t)((uint32_t)a / (uint32_t)b);
}

/* The sums of the K values over the block's rows, to the threads of row 0. All threads call it.
 * lanes: shared, K * TILE_THREADS. */
template <int K>
__device__ __forceinline__ void tile_sums(const tile_t &t, double (&v)[K], double *lanes)
{
    const int me = (int)threadIdx.x, row = me / t.tile;
    __syncthreads(); /* an earlier call's last readers */
#pragma unroll
    for (int k = 0; k < K; k++)
        lanes[k * TILE_THREADS + me] = v[k];
    for (int rows = t.rows; rows > 1;) {
        const int half = (rows + 1) / 2;
        __syncthreads();
        if (row + half < rows)
#pragma unroll
            for (int k = 0; k < K; k++)
                lanes[k * TILE_THREADS + me] += lanes[k * TILE_THREADS + me + half * t.tile];
        rows = half;
    }
#pragma unroll
    for (int k = 0; k < K; k++)
        v[k] = lanes[k * TILE_THREADS + me];
}

/* parts.cu. Adds scratch's doubles [rows][columns] over the rows, in order. sums: double [columns],
 * overwritten, or NULL. Where low is not NULL, the sums are also added to float32 low[column], and
 * from column `split` on to high[column - split]. */
void cuda_add_parts(cuda_dev_t *dev, int rows, int columns, double *sums, float *low, float *high,
                    int split);

#endif
