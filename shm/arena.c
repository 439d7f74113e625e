#include "shm/arena.h"

#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static double gib(uint64_t bytes)
{
    return (double)bytes / (1024.0 * 1024.0 * 1024.0);
}

/* What a refusal most often means, and what to do about it; errno stays. */
static const char *reason(void)
{
    switch (errno) {
    case EPERM:
    case ENOSYS: return " (memfd_create is denied here: allow it in the container's profile)";
    case EFBIG: return " (the limit on file sizes is too low: ulimit -f)";
    case EMFILE: return " (the limit on open files is too low: ulimit -n)";
    case ENOMEM: return " (the limit on address space may be too low: ulimit -v)";
    default: return "";
    }
}

/* A memfd of this size, with its pages. */
static int reserve(const char *name, uint64_t bytes, int *fd)
{
    int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    *fd = file;
    if (file < 0)
        return err_sys(ERR_ENV, "%s: no shared memory%s", name, reason());
    if (ftruncate(file, (off_t)bytes) < 0)
        return err_sys(ERR_ENV, "%s: sizing %.2f GiB of shared memory%s", name, gib(bytes),
                       reason());
    /* Reserve the pages now: an error here is a sentence, a missing page later is a SIGBUS. */
    while (fallocate(file, 0, 0, (off_t)bytes) < 0)
        if (errno != EINTR)
            return err_sys(ERR_ENV, "%s: reserving %.2f GiB of shared memory", name, gib(bytes));
    if (fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return err_sys(ERR_ENV, "%s: sealing", name);
    return 0;
}

int arena_create(const char *name, uint64_t bytes, void **base, int *fd)
{
    int rc = 0, file = -1;
    void *map = MAP_FAILED;
    arena_budget_t budget;
    CHECK_GOTO(arena_budget("", &budget), rc, fail);
    if (bytes > budget.available) {
        rc = err_set(ERR_ENV, "%s needs %.2f GiB but only %.2f GiB may be used (%s)", name,
                     gib(bytes), gib(budget.available), budget.source);
        goto fail;
    }
    CHECK_GOTO(reserve(name, bytes, &file), rc, fail);
    map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) {
        rc = err_sys(ERR_ENV, "%s: mapping %.2f GiB%s", name, gib(bytes), reason());
        goto fail;
    }
    *base = map;
    *fd = file;
    return 0;
fail:
    if (file >= 0)
        close(file);
    return rc;
}

int arena_map(int fd, int writable, void **base, uint64_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(ERR_ENV, "shared memory descriptor %d", fd);
    if (st.st_size <= 0)
        return err_set(ERR_ENV, "shared memory descriptor %d is empty", fd);
    void *map = mmap(NULL, (size_t)st.st_size, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                     MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return err_sys(ERR_ENV, "mapping %.2f GiB of shared memory%s", gib((uint64_t)st.st_size),
                       reason());
    *base = map;
    *bytes = (uint64_t)st.st_size;
    return 0;
}

void arena_unmap(void *base, uint64_t bytes)
{
    if (base)
        munmap(base, bytes);
}
