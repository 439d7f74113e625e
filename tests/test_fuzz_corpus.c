/* Every fuzz target (tests/fuzz) as an ordinary test: its seeds, all inputs that once showed a fault,
 * and a fixed series of mutations of both.
 *
 * A target runs in a process of its own, because what it finds is a crash; what it was fed with when
 * it ended is in memory that the two share, and is written to BUILD/fuzz/found. Mutations end after
 * a time, so a slow machine makes fewer of them; the seeds and the regressions are always whole. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate.h"
#include "tests/scratch.h"

#include "shm/futex.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum {
    MUTATIONS = 2000,
    MUTATE_MS = 1200,
    HANG_S = 100,
    GROW_MB = 512,
    FILE_MOST = 1 << 20,
    INPUT_MOST = 1 << 16
};

typedef struct {
    char name[256];
    uint8_t *data;
    size_t bytes;
} input_t;

typedef struct {
    input_t *items;
    size_t count, room;
} inputs_t;

/* Shared with the process that runs a target: what it is at. */
typedef struct {
    char name[320];
    size_t bytes;
    uint32_t mutations;
    uint8_t data[FILE_MOST];
} trace_t;

static void add_input(void *user, const char *name, const void *data, size_t bytes)
{
    inputs_t *in = user;
    if (in->count == in->room) {
        in->room = in->room ? 2 * in->room : 32;
        in->items = realloc(in->items, in->room * sizeof *in->items);
        assert_non_null(in->items);
    }
    input_t *i = &in->items[in->count++];
    snprintf(i->name, sizeof i->name, "%s", name);
    i->bytes = bytes;
    i->data = malloc(bytes + 1);
    assert_non_null(i->data);
    memcpy(i->data, data, bytes);
}

static void free_inputs(inputs_t *in)
{
    for (size_t i = 0; i < in->count; i++)
        free(in->items[i].data);
    free(in->items);
    memset(in, 0, sizeof *in);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const input_t *)a)->name, ((const input_t *)b)->name);
}

/* All regular files of a folder and its folders, in order of name; none where there is no folder. */
static void add_folder(inputs_t *in, const char *folder)
{
    DIR *d = opendir(folder);
    size_t first = in->count;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char path[SCRATCH_PATH];
        struct stat st;
        size_t bytes;
        if (e->d_name[0] == '.' ||
            (size_t)snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= sizeof path ||
            stat(path, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode))
            add_folder(in, path);
        uint8_t *data =
            S_ISREG(st.st_mode) && st.st_size <= FILE_MOST ? scratch_read(path, &bytes) : NULL;
        if (data)
            add_input(in, path, data, bytes);
        free(data);
    }
    if (d)
        closedir(d);
    if (in->count > first)
        qsort(in->items + first, in->count - first, sizeof *in->items, by_name);
}

static void run_one(const fuzz_target_t *t, trace_t *trace, const char *name, const uint8_t *data,
                    size_t bytes)
{
    snprintf(trace->name, sizeof trace->name, "%s", name);
    trace->bytes = bytes;
    memcpy(trace->data, data, bytes);
    t->run(data, bytes);
}

static void mutate_all(const fuzz_target_t *t, const inputs_t *in, trace_t *trace)
{
    static uint8_t data[INPUT_MOST];
    uint64_t end = clock_ns() + MUTATE_MS * 1000000ull;
    for (uint64_t i = 0; i < MUTATIONS && clock_ns() < end; i++) {
        char name[64];
        const input_t *a = &in->items[i % in->count], *b = &in->items[(i * 7 + 3) % in->count];
        size_t n = mutate(i, a->data, a->bytes, b->data, b->bytes, data, t->most);
        snprintf(name, sizeof name, "%s-mutation-%llu", t->name, (unsigned long long)i);
        run_one(t, trace, name, data, n);
        trace->mutations++;
    }
}

/* Room for GROW_MB more than there is now, so that memory asked for because a file says so is refused,
 * which no target takes for the file's fault. A sanitizer's own shadow needs terabytes. */
static void limit_memory(void)
{
#ifndef SLUICE_SANITIZE
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%llu", &pages) == 1) {
        rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)GROW_MB << 20);
        setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
    }
    if (f)
        fclose(f);
#endif
}

/* In the process of its own; returns its exit status. */
static int run_target(const fuzz_target_t *t, const inputs_t *in, trace_t *trace)
{
    /* cmocka's handlers would go on with the next test in this process. */
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGABRT};
    for (size_t i = 0; i < sizeof deadly / sizeof deadly[0]; i++)
        signal(deadly[i], SIG_DFL);
    alarm(HANG_S);
    limit_memory();
    fuzz_silence();
    run_one(t, trace, "nothing", (const uint8_t *)"", 0);
    for (size_t i = 0; i < in->count; i++)
        run_one(t, trace, in->items[i].name, in->items[i].data, in->items[i].bytes);
    mutate_all(t, in, trace);
    return 0;
}

/* Keeps what a target was fed with when it ended; the path in a static buffer. */
static const char *keep_finding(const trace_t *trace)
{
    const char *build = getenv("SLUICE_BUILD"), *slash = strrchr(trace->name, '/');
    static char path[SCRATCH_PATH];
    char folder[SCRATCH_PATH - 400];
    snprintf(folder, sizeof folder, "%s/fuzz/found", build ? build : "build");
    scratch_folder(folder, "");
    snprintf(path, sizeof path, "%s/%s", folder, slash ? slash + 1 : trace->name);
    FILE *f = fopen(path, "wb");
    if (!f)
        return "(it could not be kept)";
    fwrite(trace->data, 1, trace->bytes, f);
    fclose(f);
    return path;
}

static void gather(const fuzz_target_t *t, inputs_t *in)
{
    const char *tests = getenv("SLUICE_TESTS");
    char folder[SCRATCH_PATH];
    memset(in, 0, sizeof *in);
    snprintf(folder, sizeof folder, "%s/fuzz/seeds/%s", tests ? tests : "tests", t->name);
    add_folder(in, folder);
    snprintf(folder, sizeof folder, "%s/fuzz/regress/%s", tests ? tests : "tests", t->name);
    add_folder(in, folder);
    if (t->seeds)
        t->seeds(add_input, in);
    if (in->count == 0)
        fail_msg("%s has neither seeds nor a folder %s", t->name, folder);
    const char *files = t->files ? scratch_data(t->files) : NULL;
    if (files)
        add_folder(in, files);
}

static void test_target(void **state)
{
    const fuzz_target_t *t = *state;
    inputs_t in;
    int status = -1;
    gather(t, &in);
    trace_t *trace =
        mmap(NULL, sizeof *trace, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(trace != MAP_FAILED);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        status = run_target(t, &in, trace);
        free_inputs(&in);
        exit(status); /* not _exit: a leak is found on the way out */
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        fail_msg("%s: no end within %d s at %s, kept as %s", t->name, HANG_S, trace->name,
                 keep_finding(trace));
    if (status != 0)
        fail_msg("%s: ended with status %x at %s, kept as %s", t->name, (unsigned)status,
                 trace->name, keep_finding(trace));
    print_message("%s: %zu inputs, %u mutations\n", t->name, in.count, trace->mutations);
    munmap(trace, sizeof *trace);
    free_inputs(&in);
}

int main(void)
{
    struct CMUnitTest tests[64];
    memset(tests, 0, sizeof tests);
    for (int i = 0; i < fuzz_targets_count; i++)
        tests[i] = (struct CMUnitTest){.name = fuzz_targets[i].name,
                                       .test_func = test_target,
                                       .initial_state = (void *)(uintptr_t)&fuzz_targets[i]};
    return _cmocka_run_group_tests("fuzz", tests, (size_t)fuzz_targets_count, NULL, NULL);
}
