/* Clip and update (facts/yolo.md 4.1, 4.5), PyTorch's formulas:
 * SGD with Nesterov momentum: g += wd * w; buf = momentum * buf + g (first step: g); w -= lr * (g +
 * momentum * buf). AdamW: w *= 1 - lr * wd; m and v are running means; w -= lr / bias1 * m /
 * (sqrt(v / bias2) + eps).
 */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { LANES = 16, NORM_PARTS = 64 };

typedef struct {
    const k_hyper_t *hyper;
    float *w, *g, *m, *v;
    uint64_t count;
    float clip; /* grad_scale and clip factor in one */
    float lr, decay;
    double part[NORM_PARTS];
} update_t;

/* ---- norm ---- */

/* Sum of squares in double, LANES apart so that it is a vector loop. */
CPU_VECTOR static double squares(const float *g, uint64_t count)
{
    double lane[LANES] = {0}, sum = 0;
    uint64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)g[i + (uint64_t)j] * (double)g[i + (uint64_t)j];
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    for (; i < count; i++)
        sum += (double)g[i] * (double)g[i];
    return sum;
}

/* A fixed number of parts, so that the sum is the same for any number of threads. */
static void norm_parts(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    update_t *u = ctx;
    (void)dev, (void)thread;
    for (int64_t p = first; p < last; p++) {
        uint64_t from = u->count * (uint64_t)p / NORM_PARTS;
        u->part[p] = squares(u->g + from, u->count * (uint64_t)(p + 1) / NORM_PARTS - from);
    }
}

int cpu_grad_norm(k_dev_t *base, k_at g, uint64_t count, k_at hyper, k_at norm)
{
    cpu_dev_t *dev = cpu_dev(base);
    if (cpu_check_place(dev, "grad_norm", "g", g, count * sizeof(float)) < 0 ||
        cpu_check_place(dev, "grad_norm", "hyper", hyper, sizeof(k_hyper_t)) < 0 ||
        cpu_check_place(dev, "grad_norm", "norm", norm, sizeof(float)) < 0)
        return -1;
    update_t u = {.g = cpu_f32(dev, g), .count = count, .hyper = cpu_ptr(dev, hyper)};
    cpu_parallel(dev, norm_parts, &u, NORM_PARTS);
    double sum = 0;
    for (int p = 0; p < NORM_PARTS; p++)
        sum += u.part[p];
    *cpu_f32(dev, norm) = (float)(sqrt(sum) * (double)u.hyper->grad_scale);
    return 0;
}

/* ---- updates ---- */

CPU_VECTOR static void sgd_run(float *restrict w, float *restrict g, float *restrict m, uint64_t n,
                               float lr, float decay, float clip, float momentum)
{
    for (uint64_t i = 0; i < n; i++) {
        float d = g[i] * clip + decay * w[i];
        float buf = momentum * m[i] + d;
        m[i] = buf;
        w[i] -= lr * (d + momentum * buf);
        g[i] = 0;
    }
}

CPU_VECTOR static void adamw_run(float *restrict w, float *restrict g, float *restrict m,
                                 float *restrict v, uint64_t n, const update_t *u)
{
    const k_hyper_t *h = u->hyper;
    float b1 = h->momentum, b2 = h->beta2, eps = h->eps, clip = u->clip;
    float shrink = 1 - u->lr * u->decay, step = u->lr / h->bias1, root2 = sqrtf(h->bias2);
    for (uint64_t i = 0; i < n; i++) {
        float d = g[i] * clip;
        float m1 = m[i] + (1 - b1) * (d - m[i]);
        float v1 = b2 * v[i] + (1 - b2) * d * d;
        m[i] = m1;
        v[i] = v1;
        w[i] = w[i] * shrink - step * (m1 / (sqrtf(v1) / root2 + eps));
        g[i] = 0;
    }
}

static void sgd_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    const update_t *u = ctx;
    (void)dev, (void)thread;
    if (u->hyper->first_step != 0) /* whatever the buffer held */
        memset(u->m + first, 0, (size_t)(last - first) * sizeof *u->m);
    sgd_run(u->w + first, u->g + first, u->m + first, (uint64_t)(last - first), u->lr, u->decay,
            u->clip, u->hyper->momentum);
}

static void adamw_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    const update_t *u = ctx;
    (void)dev, (void)thread;
    adamw_run(u->w + first, u->g + first, u->m + first, u->v + first, (uint64_t)(last - first), u);
}

static int prepare(cpu_dev_t *dev, const char *op, update_t *u, k_at w, k_at g, k_at m, k_at v,
                   uint64_t count, int32_t group, k_at hyper, k_at norm)
{
    uint64_t bytes = count * sizeof(float);
    if (cpu_check_place(dev, op, "w", w, bytes) < 0 ||
        cpu_check_place(dev, op, "g", g, bytes) < 0 ||
        cpu_check_place(dev, op, "m", m, bytes) < 0 ||
        cpu_check_place(dev, op, "v", v, bytes) < 0 ||
        cpu_check_place(dev, op, "hyper", hyper, sizeof(k_hyper_t)) < 0 ||
        cpu_check_place(dev, op, "norm", norm, sizeof(float)) < 0)
        return -1;
    if (group < 0 || group >= 3)
        return cpu_fail(dev, "%s: parameter group %d of 3", op, group);
    const k_hyper_t *h = cpu_ptr(dev, hyper);
    float factor = h->max_norm / (*cpu_f32(dev, norm) + 1e-6f);
    *u = (update_t){.hyper = h,
                    .w = cpu_f32(dev, w),
                    .g = cpu_f32(dev, g),
                    .m = cpu_f32(dev, m),
                    .v = cpu_f32(dev, v),
                    .count = count,
                    .lr = h->lr[group],
                    .decay = h->weight_decay[group]};
    u->clip = (factor > 1 ? 1 : factor) * h->grad_scale;
    return 0;
}

int cpu_sgd(k_dev_t *base, k_at w, k_at g, k_at m, uint64_t count, int32_t group, k_at hyper,
            k_at norm)
{
    cpu_dev_t *dev = cpu_dev(base);
    update_t u;
    if (prepare(dev, "sgd", &u, w, g, m, m, count, group, hyper, norm) < 0)
        return -1;
    cpu_parallel(dev, sgd_range, &u, (int64_t)count);
    return 0;
}

int cpu_adamw(k_dev_t *base, k_at w, k_at g, k_at m, k_at v, uint64_t count, int32_t group,
              k_at hyper, k_at norm)
{
    cpu_dev_t *dev = cpu_dev(base);
    update_t u;
    if (prepare(dev, "adamw", &u, w, g, m, v, count, group, hyper, norm) < 0)
        return -1;
    cpu_parallel(dev, adamw_range, &u, (int64_t)count);
    return 0;
}
