/* The operations of kernels.h once more, in double precision and in the plainest loops: what the
 * tests compare with. Arrays are dense NHWC; weights OHWI, depthwise [3][3][c]. Results overwrite.
 */
#ifndef SLUICE_TESTS_REF_OPS_H
#define SLUICE_TESTS_REF_OPS_H

#include <stdint.h>

typedef struct {
    int n, h, w, c1, c2, k, s;
} ref_conv_t;

int ref_out(int in, int k, int s); /* output size with padding k / 2 */
void ref_conv(const ref_conv_t *p, const double *x, const double *w, const double *bias, double *y);
void ref_conv_dx(const ref_conv_t *p, const double *dy, const double *w, double *dx);
void ref_conv_dw(const ref_conv_t *p, const double *x, const double *dy, double *dw, double *dbias);

void ref_dwconv(int n, int h, int w, int c, const double *x, const double *wt, double *y);
void ref_dwconv_dx(int n, int h, int w, int c, const double *dy, const double *wt, double *dx);
void ref_dwconv_dw(int n, int h, int w, int c, const double *x, const double *dy, double *dw);

/* y = act(gamma xhat + beta) (+ residual), batch statistics over `pixels`; mean and var may be
 * NULL. */
void ref_bn(int64_t pixels, int c, const double *x, const double *gamma, const double *beta,
            double eps, int silu, const double *residual, double *y, double *mean, double *var);
void ref_bn_bwd(int64_t pixels, int c, const double *x, const double *gamma, const double *beta,
                double eps, int silu, const double *dy, double *dx, double *dgamma, double *dbeta);

void ref_maxpool(int n, int h, int w, int c, int k, const double *x, double *y, int *index);
void ref_maxpool_dx(int n, int h, int w, int c, int k, const double *x, const double *dy,
                    double *dx);
void ref_upsample(int n, int h, int w, int c, const double *x, double *y);
void ref_upsample_dx(int n, int h, int w, int c, const double *dy, double *dx);

typedef struct {
    int n, positions, heads, kd, hd;
} ref_attention_t;
/* y: [n][positions][heads * hd]; lse [n][heads][positions]. */
void ref_attention(const ref_attention_t *p, const double *qkv, double *y, double *lse);
void ref_attention_dx(const ref_attention_t *p, const double *qkv, const double *dy,
                      const double *dv, double *dqkv);

#endif
