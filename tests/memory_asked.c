#include "tests/memory_asked.h"

#include <stddef.h>

/* A thread of a library may ask too: plain counting could lose some, which a bound forgives. */
static uint64_t asked;

void memory_asked_reset(void)
{
    asked = 0;
}

uint64_t memory_asked(void)
{
    return asked;
}

#ifdef SLUICE_SANITIZE

/* Sanitizers have their own malloc, and a hook in it. */
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static void on_malloc(const volatile void *p, size_t bytes)
{
    (void)p;
    asked += bytes;
}

static void on_free(const volatile void *p)
{
    (void)p;
}

__attribute__((constructor)) static void install(void)
{
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}

#else

/* The C library's own, under the names by which it lets itself be replaced (glibc manual, Replacing
 * malloc); what is defined here is found first by shared libraries too. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *malloc(size_t bytes);
void *calloc(size_t n, size_t bytes);
void *realloc(void *p, size_t bytes);

void *malloc(size_t bytes)
{
    asked += bytes;
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    asked += n * bytes;
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    asked += bytes;
    return __libc_realloc(p, bytes);
}

#endif
