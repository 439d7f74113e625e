#include "tests/ref_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int ref_out(int in, int k, int s)
{
    return (in + 2 * (k / 2) - k) / s + 1;
}

/* Calls body for every pair of output and input pixel that a kernel place joins. */
#define REF_PAIRS(p, oh, ow, body)                                                                 \
    for (int n = 0; n < (p)->n; n++)                                                               \
        for (int oy = 0; oy < (oh); oy++)                                                          \
            for (int ox = 0; ox < (ow); ox++)                                                      \
                for (int ky = 0; ky < (p)->k; ky++)                                                \
                    for (int kx = 0; kx < (p)->k; kx++) {                                          \
                        int iy = oy * (p)->s + ky - (p)->k / 2,                                    \
                            ix = ox * (p)->s + kx - (p)->k / 2;                                    \
                        if (iy < 0 || iy >= (p)->h || ix < 0 || ix >= (p)->w)                      \
                            continue;                                                              \
                        int64_t out = ((int64_t)n * (oh) + oy) * (ow) + ox;                        \
                        int64_t in = ((int64_t)n * (p)->h + iy) * (p)->w + ix;                     \
                        int64_t place = (int64_t)ky * (p)->k + kx;                                 \
                        body                                                                       \
                    }

void ref_conv(const ref_conv_t *p, const double *x, const double *w, const double *bias, double *y)
{
    int oh = ref_out(p->h, p->k, p->s), ow = ref_out(p->w, p->k, p->s);
    int64_t kk = (int64_t)p->k * p->k, outs = (int64_t)p->n * oh * ow;
    for (int64_t i = 0; i < outs; i++)
        for (int o = 0; o < p->c2; o++)
            y[i * p->c2 + o] = bias ? bias[o] : 0.0;
    REF_PAIRS(p, oh, ow, {
        for (int o = 0; o < p->c2; o++)
            for (int c = 0; c < p->c1; c++)
                y[out * p->c2 + o] += w[(o * kk + place) * p->c1 + c] * x[in * p->c1 + c];
    })
}

void ref_conv_dx(const ref_conv_t *p, const double *dy, const double *w, double *dx)
{
    int oh = ref_out(p->h, p->k, p->s), ow = ref_out(p->w, p->k, p->s);
    int64_t kk = (int64_t)p->k * p->k;
    memset(dx, 0, (size_t)p->n * (size_t)p->h * (size_t)p->w * (size_t)p->c1 * sizeof *dx);
    REF_PAIRS(p, oh, ow, {
        for (int o = 0; o < p->c2; o++)
            for (int c = 0; c < p->c1; c++)
                dx[in * p->c1 + c] += w[(o * kk + place) * p->c1 + c] * dy[out * p->c2 + o];
    })
}

void ref_conv_dw(const ref_conv_t *p, const double *x, const double *dy, double *dw, double *dbias)
{
    int oh = ref_out(p->h, p->k, p->s), ow = ref_out(p->w, p->k, p->s);
    int64_t kk = (int64_t)p->k * p->k, outs = (int64_t)p->n * oh * ow;
    memset(dw, 0, (size_t)(p->c2 * kk * p->c1) * sizeof *dw);
    REF_PAIRS(p, oh, ow, {
        for (int o = 0; o < p->c2; o++)
            for (int c = 0; c < p->c1; c++)
                dw[(o * kk + place) * p->c1 + c] += x[in * p->c1 + c] * dy[out * p->c2 + o];
    })
    if (!dbias)
        return;
    memset(dbias, 0, (size_t)p->c2 * sizeof *dbias);
    for (int64_t i = 0; i < outs; i++)
        for (int o = 0; o < p->c2; o++)
            dbias[o] += dy[i * p->c2 + o];
}

void ref_dwconv(int n_all, int h, int w, int c_all, const double *x, const double *wt, double *y)
{
    ref_conv_t p = {n_all, h, w, c_all, c_all, 3, 1};
    memset(y, 0, (size_t)n_all * (size_t)h * (size_t)w * (size_t)c_all * sizeof *y);
    REF_PAIRS(&p, h, w, {
        for (int c = 0; c < c_all; c++)
            y[out * c_all + c] += wt[place * c_all + c] * x[in * c_all + c];
    })
}

void ref_dwconv_dx(int n_all, int h, int w, int c_all, const double *dy, const double *wt,
                   double *dx)
{
    ref_conv_t p = {n_all, h, w, c_all, c_all, 3, 1};
    memset(dx, 0, (size_t)n_all * (size_t)h * (size_t)w * (size_t)c_all * sizeof *dx);
    REF_PAIRS(&p, h, w, {
        for (int c = 0; c < c_all; c++)
            dx[in * c_all + c] += wt[place * c_all + c] * dy[out * c_all + c];
    })
}

void ref_dwconv_dw(int n_all, int h, int w, int c_all, const double *x, const double *dy,
                   double *dw)
{
    ref_conv_t p = {n_all, h, w, c_all, c_all, 3, 1};
    memset(dw, 0, (size_t)c_all * 9 * sizeof *dw);
    REF_PAIRS(&p, h, w, {
        for (int c = 0; c < c_all; c++)
            dw[place * c_all + c] += x[in * c_all + c] * dy[out * c_all + c];
    })
}

static double sigmoid(double z)
{
    return 1.0 / (1.0 + exp(-z));
}

/* Mean and biased variance of channel k. */
static void moments(int64_t pixels, int c, int k, const double *x, double *mean, double *var)
{
    double sum = 0.0, square = 0.0;
    for (int64_t i = 0; i < pixels; i++)
        sum += x[i * c + k];
    *mean = sum / (double)pixels;
    for (int64_t i = 0; i < pixels; i++)
        square += (x[i * c + k] - *mean) * (x[i * c + k] - *mean);
    *var = square / (double)pixels;
}

void ref_bn(int64_t pixels, int c, const double *x, const double *gamma, const double *beta,
            double eps, int silu, const double *residual, double *y, double *mean, double *var)
{
    for (int k = 0; k < c; k++) {
        double mu, v;
        moments(pixels, c, k, x, &mu, &v);
        if (mean)
            mean[k] = mu;
        if (var)
            var[k] = v;
        for (int64_t i = 0; i < pixels; i++) {
            double z = gamma[k] * (x[i * c + k] - mu) / sqrt(v + eps) + beta[k];
            y[i * c + k] = (silu ? z * sigmoid(z) : z) + (residual ? residual[i * c + k] : 0.0);
        }
    }
}

void ref_bn_bwd(int64_t pixels, int c, const double *x, const double *gamma, const double *beta,
                double eps, int silu, const double *dy, double *dx, double *dgamma, double *dbeta)
{
    for (int k = 0; k < c; k++) {
        double mu, v, sum = 0.0, sum_xhat = 0.0;
        moments(pixels, c, k, x, &mu, &v);
        double inv = 1.0 / sqrt(v + eps);
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t i = 0; i < pixels; i++) {
                double xhat = (x[i * c + k] - mu) * inv, z = gamma[k] * xhat + beta[k];
                double s = sigmoid(z),
                       dz = dy[i * c + k] * (silu ? s * (1.0 + z * (1.0 - s)) : 1.0);
                if (pass == 0) {
                    sum += dz;
                    sum_xhat += dz * xhat;
                } else {
                    dx[i * c + k] = gamma[k] * inv *
                                    (dz - sum / (double)pixels - xhat * sum_xhat / (double)pixels);
                }
            }
        }
        dbeta[k] = sum;
        dgamma[k] = sum_xhat;
    }
}

void ref_maxpool(int n_all, int h, int w, int c_all, int k, const double *x, double *y, int *index)
{
    ref_conv_t p = {n_all, h, w, c_all, c_all, k, 1};
    int64_t values = (int64_t)n_all * h * w * c_all;
    for (int64_t i = 0; i < values; i++) {
        y[i] = -INFINITY;
        index[i] = -1;
    }
    REF_PAIRS(&p, h, w, {
        for (int c = 0; c < c_all; c++) {
            if (x[in * c_all + c] > y[out * c_all + c]) {
                y[out * c_all + c] = x[in * c_all + c];
                index[out * c_all + c] = (int)place;
            }
        }
    })
}

void ref_maxpool_dx(int n_all, int h, int w, int c_all, int k, const double *x, const double *dy,
                    double *dx)
{
    ref_conv_t p = {n_all, h, w, c_all, c_all, k, 1};
    size_t values = (size_t)n_all * (size_t)h * (size_t)w * (size_t)c_all;
    double *y = malloc(values * sizeof *y);
    int *index = malloc(values * sizeof *index);
    ref_maxpool(n_all, h, w, c_all, k, x, y, index);
    memset(dx, 0, values * sizeof *dx);
    REF_PAIRS(&p, h, w, {
        for (int c = 0; c < c_all; c++)
            if (index[out * c_all + c] == (int)place)
                dx[in * c_all + c] += dy[out * c_all + c];
    })
    free(y);
    free(index);
}

void ref_upsample(int n_all, int h, int w, int c_all, const double *x, double *y)
{
    for (int64_t row = 0; row < (int64_t)n_all * 2 * h; row++)
        for (int64_t px = 0; px < 2 * w; px++)
            for (int c = 0; c < c_all; c++)
                y[(row * 2 * w + px) * c_all + c] = x[(row / 2 * w + px / 2) * c_all + c];
}

void ref_upsample_dx(int n_all, int h, int w, int c_all, const double *dy, double *dx)
{
    memset(dx, 0, (size_t)n_all * (size_t)h * (size_t)w * (size_t)c_all * sizeof *dx);
    for (int64_t row = 0; row < (int64_t)n_all * 2 * h; row++)
        for (int64_t px = 0; px < 2 * w; px++)
            for (int c = 0; c < c_all; c++)
                dx[(row / 2 * w + px / 2) * c_all + c] += dy[(row * 2 * w + px) * c_all + c];
}

/* Row i of head g of image n: scores scaled, their log-sum-exp returned. */
static double score_row(const ref_attention_t *p, const double *head, int i, double *row)
{
    int c = p->heads * (2 * p->kd + p->hd);
    double top = -INFINITY, sum = 0.0;
    for (int j = 0; j < p->positions; j++) {
        row[j] = 0.0;
        for (int d = 0; d < p->kd; d++)
            row[j] += head[(int64_t)i * c + d] * head[(int64_t)j * c + p->kd + d];
        row[j] /= sqrt((double)p->kd);
        top = row[j] > top ? row[j] : top;
    }
    for (int j = 0; j < p->positions; j++)
        sum += exp(row[j] - top);
    return top + log(sum);
}

void ref_attention(const ref_attention_t *p, const double *qkv, double *y, double *lse)
{
    int c = p->heads * (2 * p->kd + p->hd);
    double *row = malloc((size_t)p->positions * sizeof *row);
    for (int item = 0; item < p->n * p->heads; item++) {
        int n = item / p->heads, g = item % p->heads;
        const double *head = qkv + (int64_t)n * p->positions * c + g * (2 * p->kd + p->hd);
        for (int i = 0; i < p->positions; i++) {
            double l = score_row(p, head, i, row);
            double *out = y + ((int64_t)n * p->positions + i) * p->heads * p->hd + g * p->hd;
            lse[(int64_t)item * p->positions + i] = l;
            for (int d = 0; d < p->hd; d++) {
                out[d] = 0.0;
                for (int j = 0; j < p->positions; j++)
                    out[d] += exp(row[j] - l) * head[(int64_t)j * c + 2 * p->kd + d];
            }
        }
    }
    free(row);
}

void ref_attention_dx(const ref_attention_t *p, const double *qkv, const double *dy,
                      const double *dv, double *dqkv)
{
    int c = p->heads * (2 * p->kd + p->hd), kd = p->kd, hd = p->hd;
    double *row = malloc((size_t)p->positions * sizeof *row);
    double *dp = malloc((size_t)p->positions * sizeof *dp);
    memset(dqkv, 0, (size_t)p->n * (size_t)p->positions * (size_t)c * sizeof *dqkv);
    for (int item = 0; item < p->n * p->heads; item++) {
        int n = item / p->heads, g = item % p->heads;
        int64_t first = (int64_t)n * p->positions * c + g * (2 * kd + hd);
        const double *head = qkv + first;
        double *grad = dqkv + first;
        for (int i = 0; i < p->positions; i++) {
            double l = score_row(p, head, i, row), dot = 0.0;
            int64_t out = ((int64_t)n * p->positions + i) * p->heads * hd + g * hd;
            for (int j = 0; j < p->positions; j++) {
                row[j] = exp(row[j] - l);
                dp[j] = 0.0;
                for (int d = 0; d < hd; d++) {
                    dp[j] += dy[out + d] * head[(int64_t)j * c + 2 * kd + d];
                    grad[(int64_t)j * c + 2 * kd + d] += row[j] * dy[out + d];
                }
                dot += row[j] * dp[j];
            }
            for (int j = 0; j < p->positions; j++) {
                double ds = row[j] * (dp[j] - dot) / sqrt((double)kd);
                for (int d = 0; d < kd; d++) {
                    grad[(int64_t)i * c + d] += ds * head[(int64_t)j * c + kd + d];
                    grad[(int64_t)j * c + kd + d] += ds * head[(int64_t)i * c + d];
                }
            }
            for (int d = 0; d < hd; d++)
                grad[(int64_t)i * c + 2 * kd + d] += dv[out + d];
        }
    }
    free(row);
    free(dp);
}
