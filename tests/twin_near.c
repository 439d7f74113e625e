#include "tests/twin_near.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* One value of either kind. */
static double at(const void *values, int doubles, int64_t i)
{
    return doubles ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static void near_values(const char *what, const void *gpu, const void *cpu, int doubles,
                        int64_t count, double rounding, double limit)
{
    double top = 0.0;
    for (int64_t i = 0; i < count; i++)
        top = fmax(top, fabs(at(cpu, doubles, i)));
    for (int64_t i = 0; i < count; i++) {
        double got = at(gpu, doubles, i), want = at(cpu, doubles, i);
        if (!(fabs(got - want) <= rounding * fabs(want) + limit * top))
            fail_msg("%s: value %lld of %lld is %.9g, not %.9g (largest %g, limit %g)", what,
                     (long long)i, (long long)count, got, want, top, limit);
    }
}

void twin_near(twin_t *t, const char *what, const twin_tensor_t *x, double limit)
{
    const double rounding[] = {[K_F32] = 0.0, [K_BF16] = 0x1p-8, [K_F16] = 0x1p-11};
    float *gpu = twin_get_gpu(t, x), *cpu = twin_get_cpu(t, x);
    int64_t count = (int64_t)x->cpu.n * x->cpu.h * x->cpu.w * x->cpu.c;
    near_values(what, gpu, cpu, 0, count, rounding[x->gpu.dtype], limit);
    twin_gaps_untouched(t, x);
    free(gpu);
    free(cpu);
}

static void near_place(twin_t *t, const char *what, k_at place, int doubles, int64_t count,
                       double limit)
{
    uint64_t bytes = (uint64_t)count * (doubles ? sizeof(double) : sizeof(float));
    void *gpu = twin_bytes_gpu(t, place, bytes), *cpu = twin_bytes_cpu(t, place, bytes);
    near_values(what, gpu, cpu, doubles, count, 0.0, limit);
    free(gpu);
    free(cpu);
}

void twin_near_floats(twin_t *t, const char *what, k_at place, int64_t count, double limit)
{
    near_place(t, what, place, 0, count, limit);
}

void twin_near_doubles(twin_t *t, const char *what, k_at place, int64_t count, double limit)
{
    near_place(t, what, place, 1, count, limit);
}
