/* Bytes to the network's input: y = value / 255 (facts/yolo.md 5.9). Images without gaps are one
 * run of bytes, taken as many at a time as make 16 bytes of y; else a thread takes a pixel. y is
 * overwritten. */
#include "kernels/cuda/tile.cuh"

enum { IMAGE_THREADS = 256, IMAGE_CHANNELS = 3 };

/* `wide` bytes are taken V at a time, the rest one by one. */
template <typename T, int V>
static __global__ void __launch_bounds__(IMAGE_THREADS)
    image_run(const uint8_t *src, T *y, int64_t count, int64_t wide)
{
    const int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = me * V; i < wide; i += threads * V) {
        const pack_t<uint8_t, V> b = *reinterpret_cast<const pack_t<uint8_t, V> *>(src + i);
        float v[V];
#pragma unroll
        for (int k = 0; k < V; k++)
            v[k] = (float)b.v[k] / 255.0f;
        store(y + i, v);
    }
    for (int64_t i = wide + me; i < count; i += threads)
        y[i] = from_float<T>((float)src[i] / 255.0f);
}

template <typename T>
static __global__ void __launch_bounds__(IMAGE_THREADS)
    image_pixels(const uint8_t *src, T *y, int64_t ld, int64_t pixels)
{
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < pixels; i += threads)
#pragma unroll
        for (int c = 0; c < IMAGE_CHANNELS; c++)
            y[i * ld + c] = from_float<T>((float)src[i * IMAGE_CHANNELS + c] / 255.0f);
}

template <typename T> static void launch(cuda_dev_t *dev, k_at u8, const k_tensor_t *y)
{
    constexpr int V = wide<T>();
    const uint8_t *src = (const uint8_t *)cuda_ptr(dev, u8);
    T *dst = (T *)cuda_ptr(dev, y->at);
    const int64_t pixels = cuda_pixels(y), count = pixels * IMAGE_CHANNELS;
    if (y->ld != IMAGE_CHANNELS) {
        image_pixels<T><<<(unsigned)cuda_blocks(dev, pixels, IMAGE_THREADS), IMAGE_THREADS, 0,
                          cuda_main(dev)>>>(src, dst, y->ld, pixels);
        return;
    }
    const int64_t whole = u8 % V == 0 && y->at % 16 == 0 ? count / V * V : 0;
    const int blocks = cuda_blocks(dev, whole ? whole / V : count, IMAGE_THREADS);
    image_run<T, V><<<(unsigned)blocks, IMAGE_THREADS, 0, cuda_main(dev)>>>(src, dst, count, whole);
}

int cuda_image(k_dev_t *device, k_at u8, const k_tensor_t *y)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (cuda_check_tensor(dev, "image", "y", y) < 0)
        return -1;
    if (y->c != IMAGE_CHANNELS)
        return cuda_fail(dev, "image: y has %d channels, not 3", y->c);
    if (cuda_check_place(dev, "image", "the bytes", u8, (uint64_t)cuda_pixels(y) * IMAGE_CHANNELS,
                         1) < 0)
        return -1;
    CUDA_BY_TYPE(y->dtype, T, launch<T>(dev, u8, y));
    return cuda_launched(dev, "image");
}
