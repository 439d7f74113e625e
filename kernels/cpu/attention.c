/* Attention over the positions of an image (facts/yolo.md 1.2), in blocks of rows: the matrix of
 * scores is never kept whole, so memory grows with the number of positions, not with its square.
 *
 *   forward   S = scale Q K^T, scale = kd^-1/2; P = exp(S - lse), lse = log sum exp(S) of the
 *             row; y = P V. Item: one block of rows of one head of one image.
 *   backward  P again from lse; dV += P^T dY, dP = dY V^T, dS = P (dP - D), D = row sum of
 *             dY * Y, dQ = scale dS K, dK += scale dS^T Q.
 *             Item: one head of one image, since dK and dV collect over its row blocks.
 *
 * work: for each thread ATTENTION_ROWS rows of P and as many of dP.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vexp.h"

#include <math.h>
#include <string.h>

enum { ATTENTION_ROWS = 64 };

typedef struct {
    int32_t heads, kd, hd;
    int64_t positions;
    float scale;
    const k_tensor_t *qkv, *y, *v, *dy, *dv, *dqkv;
    float *lse, *work;
} attention_job_t;

static int64_t row_blocks(const attention_job_t *j)
{
    return (j->positions + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
}

/* Channel `channel` of head `head`, first pixel of image n. */
static float *head_at(cpu_dev_t *dev, const k_tensor_t *t, int64_t n, int64_t positions,
                      int64_t channel)
{
    return cpu_f32(dev, t->at) + n * positions * t->ld + channel;
}

CPU_VECTOR static float row_max(const float *row, int64_t count)
{
    float lane[16], best;
    int64_t i = 0;
    for (int l = 0; l < 16; l++)
        lane[l] = row[0];
    for (; i + 16 <= count; i += 16)
        for (int l = 0; l < 16; l++)
            lane[l] = row[i + l] > lane[l] ? row[i + l] : lane[l];
    best = lane[0];
    for (int l = 1; l < 16; l++)
        best = lane[l] > best ? lane[l] : best;
    for (; i < count; i++)
        best = row[i] > best ? row[i] : best;
    return best;
}

/* row = exp(row - shift); returns the sum. */
CPU_VECTOR static float row_exp(float *row, int64_t count, float shift)
{
    float lane[16] = {0}, sum = 0.0f;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        for (int l = 0; l < 16; l++) {
            float e = cpu_expf(row[i + l] - shift);
            row[i + l] = e;
            lane[l] += e;
        }
    }
    for (int l = 0; l < 16; l++)
        sum += lane[l];
    for (; i < count; i++) {
        row[i] = cpu_expf(row[i] - shift);
        sum += row[i];
    }
    return sum;
}

CPU_VECTOR static void row_scale(float *restrict row, int64_t count, float factor)
{
    for (int64_t i = 0; i < count; i++)
        row[i] *= factor;
}

/* dp = p * (dp - d) */
CPU_VECTOR static void row_dscore(float *restrict dp, const float *restrict p, int64_t count,
                                  float d)
{
    for (int64_t i = 0; i < count; i++)
        dp[i] = p[i] * (dp[i] - d);
}

static void attention_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    const attention_job_t *j = ctx;
    int64_t positions = j->positions, blocks = row_blocks(j);
    float *scores = j->work + thread * 2 * ATTENTION_ROWS * positions;
    for (int64_t item = first; item < last; item++) {
        int64_t row = item % blocks * ATTENTION_ROWS, head = item / blocks % j->heads;
        int64_t n = item / blocks / j->heads;
        int64_t rows = positions - row < ATTENTION_ROWS ? positions - row : ATTENTION_ROWS;
        const float *q = head_at(dev, j->qkv, n, positions, head * (2 * j->kd + j->hd));
        const float *k = q + j->kd, *v = k + j->kd;
        float *lse = j->lse + (n * j->heads + head) * positions + row;
        float *y = head_at(dev, j->y, n, positions, head * j->hd) + row * j->y->ld;
        float *copy = head_at(dev, j->v, n, positions, head * j->hd) + row * j->v->ld;
        int64_t ld = j->qkv->ld;
        cpu_gemm(0, 1, rows, positions, j->kd, j->scale, q + row * ld, ld, k, ld, 0.0f, scores,
                 positions);
        for (int64_t i = 0; i < rows; i++) {
            float *s = scores + i * positions, top = row_max(s, positions);
            float sum = row_exp(s, positions, top);
            row_scale(s, positions, 1.0f / sum);
            lse[i] = top + logf(sum);
            memcpy(copy + i * j->v->ld, v + (row + i) * ld, (size_t)j->hd * sizeof *v);
        }
        cpu_gemm(0, 0, rows, j->hd, positions, 1.0f, scores, positions, v, ld, 0.0f, y, j->y->ld);
    }
}

/* One block of rows of a head, backward; dk and dv of the head are collected. */
static void attention_dx_rows(const attention_job_t *j, float *p, const float *qkv,
                              const float *lse, const float *y, const float *dy, float *dqkv,
                              int64_t row, int64_t rows)
{
    int64_t positions = j->positions, ld = j->qkv->ld, dld = j->dqkv->ld;
    int32_t kd = j->kd, hd = j->hd;
    const float *q = qkv + row * ld, *k = qkv + kd, *v = qkv + 2 * kd;
    float *dq = dqkv + row * dld, *dk = dqkv + kd, *dv = dqkv + 2 * kd;
    float *dp = p + ATTENTION_ROWS * positions;
    y += row * j->y->ld;
    dy += row * j->dy->ld;
    cpu_gemm(0, 1, rows, positions, kd, j->scale, q, ld, k, ld, 0.0f, p, positions);
    cpu_gemm(0, 1, rows, positions, hd, 1.0f, dy, j->dy->ld, v, ld, 0.0f, dp, positions);
    for (int64_t i = 0; i < rows; i++) {
        float d = 0.0f;
        for (int32_t c = 0; c < hd; c++)
            d += y[i * j->y->ld + c] * dy[i * j->dy->ld + c];
        row_exp(p + i * positions, positions, lse[row + i]);
        row_dscore(dp + i * positions, p + i * positions, positions, d);
    }
    cpu_gemm(1, 0, positions, hd, rows, 1.0f, p, positions, dy, j->dy->ld, 1.0f, dv, dld);
    cpu_gemm(0, 0, rows, kd, positions, j->scale, dp, positions, k, ld, 0.0f, dq, dld);
    cpu_gemm(1, 0, positions, kd, rows, j->scale, dp, positions, q, ld, 1.0f, dk, dld);
}

static void attention_dx_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    const attention_job_t *j = ctx;
    int64_t positions = j->positions;
    float *p = j->work + thread * 2 * ATTENTION_ROWS * positions;
    for (int64_t item = first; item < last; item++) {
        int64_t n = item / j->heads, head = item % j->heads, channel = head * (2 * j->kd + j->hd);
        const float *qkv = head_at(dev, j->qkv, n, positions, channel);
        const float *y = head_at(dev, j->y, n, positions, head * j->hd);
        const float *dy = head_at(dev, j->dy, n, positions, head * j->hd);
        const float *dv_copy = head_at(dev, j->dv, n, positions, head * j->hd);
        float *dqkv = head_at(dev, j->dqkv, n, positions, channel);
        for (int64_t i = 0; i < positions; i++) {
            float *dk = dqkv + i * j->dqkv->ld + j->kd;
            memset(dk, 0, (size_t)j->kd * sizeof *dk);
            memcpy(dk + j->kd, dv_copy + i * j->dv->ld, (size_t)j->hd * sizeof *dk);
        }
        for (int64_t row = 0; row < positions; row += ATTENTION_ROWS) {
            int64_t rows = positions - row < ATTENTION_ROWS ? positions - row : ATTENTION_ROWS;
            attention_dx_rows(j, p, qkv, j->lse + item * positions, y, dy, dqkv, row, rows);
        }
    }
}

uint64_t cpu_attention_work(k_dev_t *dev, const k_tensor_t *qkv, int32_t heads, int32_t kd,
                            int32_t hd)
{
    (void)heads, (void)kd, (void)hd;
    uint64_t positions = (uint64_t)qkv->h * (uint64_t)qkv->w;
    return (uint64_t)cpu_dev(dev)->threads * 2 * ATTENTION_ROWS * positions * sizeof(float);
}

/* Checks the tensor `t` of `c` channels against qkv's images and positions. */
static int attention_shape(cpu_dev_t *d, const char *op, const char *what, const k_tensor_t *t,
                           const k_tensor_t *qkv, int32_t c)
{
    if (cpu_check_tensor(d, op, what, t) < 0)
        return -1;
    if (t->n == qkv->n && t->h == qkv->h && t->w == qkv->w && t->c == c)
        return 0;
    return cpu_fail(d, "%s: %s is %d x %d x %d x %d, not %d x %d x %d x %d", op, what, t->n, t->h,
                    t->w, t->c, qkv->n, qkv->h, qkv->w, c);
}

static int attention_check(cpu_dev_t *d, const char *op, attention_job_t *j, k_at lse, k_at work)
{
    const k_tensor_t *qkv = j->qkv;
    if (j->heads < 1 || j->kd < 1 || j->hd < 1)
        return cpu_fail(d, "%s: %d heads of %d + %d channels are impossible", op, j->heads, j->kd,
                        j->hd);
    if (attention_shape(d, op, "qkv", qkv, qkv, j->heads * (2 * j->kd + j->hd)) < 0 ||
        attention_shape(d, op, "y", j->y, qkv, j->heads * j->hd) < 0)
        return -1;
    j->positions = (int64_t)qkv->h * qkv->w;
    j->scale = 1.0f / sqrtf((float)j->kd);
    uint64_t rows = (uint64_t)qkv->n * (uint64_t)j->heads * (uint64_t)j->positions;
    if (cpu_check_place(d, op, "lse", lse, rows * sizeof(float)) < 0 ||
        cpu_check_place(d, op, "work", work,
                        cpu_attention_work(&d->base, qkv, j->heads, j->kd, j->hd)) < 0)
        return -1;
    j->lse = cpu_f32(d, lse);
    j->work = cpu_f32(d, work);
    return 0;
}

int cpu_attention(k_dev_t *dev, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                  const k_tensor_t *y, const k_tensor_t *v, k_at lse, k_at work)
{
    cpu_dev_t *d = cpu_dev(dev);
    attention_job_t j = {.heads = heads, .kd = kd, .hd = hd, .qkv = qkv, .y = y, .v = v};
    if (attention_check(d, "attention", &j, lse, work) < 0 ||
        attention_shape(d, "attention", "v", v, qkv, heads * hd) < 0)
        return -1;
    cpu_share(d, attention_range, &j, (int64_t)qkv->n * heads * row_blocks(&j), 1);
    return 0;
}

int cpu_attention_dx(k_dev_t *dev, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                     const k_tensor_t *y, k_at lse, const k_tensor_t *dy, const k_tensor_t *dv,
                     const k_tensor_t *dqkv, k_at work)
{
    cpu_dev_t *d = cpu_dev(dev);
    const char *op = "attention_dx";
    attention_job_t j = {
        .heads = heads, .kd = kd, .hd = hd, .qkv = qkv, .y = y, .dy = dy, .dv = dv, .dqkv = dqkv};
    if (attention_check(d, op, &j, lse, work) < 0 ||
        attention_shape(d, op, "dy", dy, qkv, heads * hd) < 0 ||
        attention_shape(d, op, "dv", dv, qkv, heads * hd) < 0 ||
        attention_shape(d, op, "dqkv", dqkv, qkv, qkv->c) < 0)
        return -1;
    cpu_share(d, attention_dx_range, &j, (int64_t)qkv->n * heads, 1);
    return 0;
}
