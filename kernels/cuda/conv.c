/* Convolution: y = x * w (+ bias) and its gradients. Checks here; who computes is told in conv.h. */
#include "kernels/cuda/conv.h"
#include "kernels/cuda/conv_graph.h"

static int conv_check(cuda_dev_t *dev, const char *op, const k_conv_t *p, const k_tensor_t *x,
                      const k_tensor_t *y, k_at bias, k_at work)
{
    if (p->k < 1 || p->k > CONV_K_MAX || p->k % 2 == 0 || p->s < 1 || p->s > p->k + 1)
        return cuda_fail(dev, "%s: kernel %d with stride %d: odd kernels up to %d are possible", op,
                         p->k, p->s, CONV_K_MAX);
    if (cuda_check_tensor(dev, op, "x", x) < 0 || cuda_check_tensor(dev, op, "y", y) < 0)
        return -1;
    if (x->dtype != y->dtype)
        return cuda_fail(dev, "%s: x and y have different formats", op);
    if (x->c != p->c1 || y->c != p->c2 || x->n != y->n || y->h != conv_out(x->h, p->k, p->s) ||
        y->w != conv_out(x->w, p->k, p->s))
        return cuda_fail(
            dev,
            "%s: %d x %d x %d x %d to %d x %d x %d x %d does not fit kernel %d, stride %d, "
            "%d to %d channels",
            op, x->n, x->h, x->w, x->c, y->n, y->h, y->w, y->c, p->k, p->s, p->c1, p->c2);
    if (bias != K_NONE &&
        cuda_check_place(dev, op, "bias", bias, (uint64_t)p->c2 * sizeof(float), sizeof(float)) < 0)
        return -1;
    return cuda_check_place(dev, op, "work", work, cuda_conv_work(&dev->base, p, x), K_ALIGN);
}

/* Weights [c2][k][k][c1] of `size` bytes each: in x's format, their gradients in float32. */
static int check_weights(cuda_dev_t *dev, const char *op, const char *what, const k_conv_t *p,
                         k_at w, uint64_t size)
{
    const uint64_t count = (uint64_t)p->c2 * (uint64_t)p->k * (uint64_t)p->k * (uint64_t)p->c1;
    return cuda_check_place(dev, op, what, w, count * size, (uint32_t)size);
}

uint64_t cuda_conv_work(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x)
{
    return cuda_stem_takes(p) ? K_ALIGN : conv_run_work(cuda_dev(dev), p, x);
}

int cuda_conv(k_dev_t *device, const k_conv_t *p, const k_tensor_t *x, k_at w, k_at bias,
              const k_tensor_t *y, k_at work)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (conv_check(dev, "conv", p, x, y, bias, work) < 0 ||
        check_weights(dev, "conv", "weights", p, w, cuda_size(x->dtype)) < 0)
        return -1;
    const conv_call_t call = {
        .direction = CONV_FORWARD, .p = p, .x = x, .y = y, .w = w, .dw = K_NONE, .work = work};
    int rc = cuda_stem_takes(p) ? cuda_stem(dev, p, x, w, y) : conv_run(dev, &call);
    return rc == 0 && bias != K_NONE ? cuda_bias(dev, y, bias) : rc;
}

int cuda_conv_dx(k_dev_t *device, const k_conv_t *p, const k_tensor_t *dy, k_at w,
                 const k_tensor_t *dx, int acc, k_at work)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (conv_check(dev, "conv_dx", p, dx, dy, K_NONE, work) < 0 ||
        check_weights(dev, "conv_dx", "weights", p, w, cuda_size(dx->dtype)) < 0)
        return -1;
    const conv_call_t call = {.direction = CONV_DX,
                              .p = p,
                              .x = dx,
                              .y = dy,
                              .w = w,
                              .dw = K_NONE,
                              .work = work,
                              .acc = acc != 0};
    return cuda_stem_takes(p) ? cuda_conv_plain(dev, &call) : conv_run(dev, &call);
}

int cuda_conv_dw(k_dev_t *device, const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                 k_at dw, k_at dbias, k_at work)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (conv_check(dev, "conv_dw", p, x, dy, dbias, work) < 0 ||
        check_weights(dev, "conv_dw", "dw", p, dw, sizeof(float)) < 0)
        return -1;
    const conv_call_t call = {
        .direction = CONV_DW, .p = p, .x = x, .y = dy, .w = K_NONE, .dw = dw, .work = work};
    int rc = cuda_stem_takes(p) ? cuda_stem_dw(dev, p, x, dy, dw) : conv_run(dev, &call);
    return rc == 0 && dbias != K_NONE ? cuda_bias_grad(dev, dy, dbias) : rc;
}
