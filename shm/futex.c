#include "shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void futex_wait(const _Atomic uint32_t *word, uint32_t expected, int timeout_ms)
{
    if (timeout_ms > FUTEX_RECHECK_MS)
        timeout_ms = FUTEX_RECHECK_MS;
    if (timeout_ms <= 0)
        return;
    struct timespec t = {.tv_nsec = (long)timeout_ms * 1000000L};
    /* The kernel compares the value itself, so a wake between the caller's look and this call is
     * not lost. EAGAIN, EINTR and ETIMEDOUT all mean "look again". */
    syscall(SYS_futex, (const uint32_t *)word, FUTEX_WAIT, expected, &t, NULL, 0);
}

void futex_wake(const _Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, (const uint32_t *)word, FUTEX_WAKE, count, NULL, NULL, 0);
}

uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
