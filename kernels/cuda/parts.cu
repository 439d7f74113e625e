/* The second level of sums over pixels: one row of doubles a block, added in a fixed order, so that
 * results are the same in every run. A column is added by PART_ROWS threads, then by one. */
#include "kernels/cuda/tile.cuh"

enum { PART_COLUMNS = 32, PART_ROWS = 16 };

static __global__ void add_parts(const double *parts, int rows, int columns, double *sums,
                                 float *low, float *high, int split)
{
    __shared__ double lanes[PART_ROWS][PART_COLUMNS];
    const int column = (int)(blockIdx.x * PART_COLUMNS + threadIdx.x);
    double sum = 0.0;
    if (column < columns) {
#pragma unroll 4
        for (int row = (int)threadIdx.y; row < rows; row += PART_ROWS)
            sum += parts[(int64_t)row * columns + column];
    }
    lanes[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= columns)
        return;
    for (int i = 1; i < PART_ROWS; i++)
        sum += lanes[i][threadIdx.x];
    if (sums)
        sums[column] = sum;
    if (low && column < split)
        low[column] += (float)sum;
    else if (low)
        high[column - split] += (float)sum;
}

void cuda_add_parts(cuda_dev_t *dev, int rows, int columns, double *sums, float *low, float *high,
                    int split)
{
    const dim3 block(PART_COLUMNS, PART_ROWS);
    add_parts<<<(unsigned)(columns + PART_COLUMNS - 1) / PART_COLUMNS, block, 0, cuda_main(dev)>>>(
        (const double *)(const void *)dev->scratch, rows, columns, sums, low, high, split);
}
