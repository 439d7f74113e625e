/* Matrix products: the one place that calls the BLAS.
 *
 * Each thread of the device's pool calls sgemm on its own share, so the BLAS itself must use one
 * thread. OpenBLAS chooses its inner kernel by the processor's model number; a model newer than the
 * library gets a kernel of an old processor, several times slower. Results stay right, so this is a
 * remark, not an error: OPENBLAS_CORETYPE in the environment, read when the library is loaded,
 * names a better one.
 */
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void cpu_gemm(int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha,
              const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
              int64_t ldc)
{
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                trans_b ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, alpha, a,
                (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
}

/* Small integers: sums are exact in float, so the comparison is exact whatever the order of
 * additions. */
enum { CHECK_M = 37, CHECK_N = 19, CHECK_K = 53 };

static float check_value(int i)
{
    return (float)(i * 37 % 11 - 5);
}

static int gemm_agrees(int trans_a, int trans_b)
{
    float a[CHECK_M * CHECK_K], b[CHECK_K * CHECK_N], c[CHECK_M * CHECK_N];
    for (int i = 0; i < CHECK_M * CHECK_K; i++)
        a[i] = check_value(i);
    for (int i = 0; i < CHECK_K * CHECK_N; i++)
        b[i] = check_value(3 * i + 1);
    for (int i = 0; i < CHECK_M * CHECK_N; i++)
        c[i] = 2.0f;
    int lda = trans_a ? CHECK_M : CHECK_K, ldb = trans_b ? CHECK_K : CHECK_N;
    cpu_gemm(trans_a, trans_b, CHECK_M, CHECK_N, CHECK_K, 1.0f, a, lda, b, ldb, 1.0f, c, CHECK_N);
    for (int i = 0; i < CHECK_M; i++) {
        for (int j = 0; j < CHECK_N; j++) {
            float sum = 2.0f;
            for (int l = 0; l < CHECK_K; l++)
                sum += (trans_a ? a[l * lda + i] : a[i * lda + l]) *
                       (trans_b ? b[j * ldb + l] : b[l * ldb + j]);
            if (c[i * CHECK_N + j] != sum)
                return 0;
        }
    }
    return 1;
}

int cpu_gemm_check(char *why, size_t why_bytes)
{
    openblas_set_num_threads(1);
    const char *core = openblas_get_corename();
    if (!gemm_agrees(0, 0) || !gemm_agrees(0, 1) || !gemm_agrees(1, 0)) {
        snprintf(
            why, why_bytes,
            "cpu device: OpenBLAS's sgemm (kernel %s) computes wrong products on this processor; "
            "set OPENBLAS_CORETYPE to another kernel, for example Haswell or Prescott",
            core);
        return -1;
    }
#if defined(__x86_64__)
    static const char *const wide[] = {"SkylakeX", "Cooperlake", "SapphireRapids", "Zen4"};
    static const char *const middle[] = {"Haswell", "Zen"};
    int is_wide = 0, is_middle = 0;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        is_wide |= strcasecmp(core, wide[i]) == 0;
    for (size_t i = 0; i < sizeof middle / sizeof *middle; i++)
        is_middle |= strcasecmp(core, middle[i]) == 0;
    __builtin_cpu_init();
    const char *better = NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && !is_wide)
        better = "SkylakeX";
    else if (__builtin_cpu_supports("avx2") && !is_wide && !is_middle)
        better = "Haswell";
    if (better)
        snprintf(
            why, why_bytes,
            "OpenBLAS uses its %s kernel, a poor match for this processor: products may be several "
            "times slower; OPENBLAS_CORETYPE=%s in the environment at start-up cures it",
            core, better);
#endif
    return 0;
}
