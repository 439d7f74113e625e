/* Memory, tasks and CPUs that recorded machines leave (tests/recorded: containers, batch systems,
 * cgroup v1 and v2), and the sum of what a run needs compared with them. */
#include "control/needs.h"
#include "shm/arena.h"
#include "shm/err.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char root[SCRATCH_PATH];

static int make_root(void **state)
{
    (void)state;
    scratch_begin(root);
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    scratch_end(root);
    return 0;
}

/* Lays out tests/recorded/NAME.txt below root: "== PATH" begins a file, "#" lines before the first
 * are remarks. */
static void unpack(const char *name)
{
    char path[SCRATCH_PATH], at[SCRATCH_PATH] = "";
    const char *tests = getenv("SLUICE_TESTS");
    size_t bytes;
    snprintf(path, sizeof path, "%s/recorded/%s.txt", tests ? tests : "tests", name);
    char *text = (char *)scratch_read(path, &bytes), *body = NULL;
    if (!text)
        fail_msg("%s cannot be read", path);
    text = realloc(text, bytes + 1);
    text[bytes] = '\0';
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        next = next ? next + 1 : NULL;
        if (strncmp(line, "== ", 3) != 0)
            continue;
        if (body) {
            *line = '\0';
            scratch_text(root, at, body);
            *line = '=';
        }
        assert_non_null(next);
        next[-1] = '\0';
        snprintf(at, sizeof at, "%s", line + 4); /* behind the slash */
        body = next;
    }
    if (body)
        scratch_text(root, at, body);
    free(text);
}

/* What is known of each machine: the least of its bounds, and which of them it is. */
typedef struct {
    const char *name, *source; /* source: what its memory's ends with */
    uint64_t available, limit, tasks;
    int cpus; /* 0: not bounded by the record */
} machine_t;

static const machine_t machines[] = {
    {"bare_v2", "/proc/meminfo", 51200000000, 67108864000, 32768 - 1200, 0},
    /* 4 GiB - (3 GiB - page cache and slabs that can go) */
    {"docker_v2", "/sys/fs/cgroup/memory.max", 4294967296 - (3221225472 - 2164260864), 4294967296,
     197, 2},
    {"docker_v1", "/memory/memory.limit_in_bytes", 2147483648 - (1073741824 - 2 * 268435456),
     2147483648, UINT64_MAX, 1},
    {"podman_v2", "/sys/fs/cgroup/memory.max", 1000000000, 1073741824, 2046, 0},
    {"k8s_v2", "-pod5d1.slice/memory.max", 8589934592 - (6442450944 - 1073741824), 8589934592,
     UINT64_MAX, 1},
    {"k8s_v1", "hierarchical_memory_limit", 3000000000 - 800000000, 3000000000, UINT64_MAX, 0},
    {"slurm_v1", "/job_77/memory.limit_in_bytes", 17179869184 - 4294967296, 17179869184, UINT64_MAX,
     1},
    {"slurm_v2", "/job_9/memory.high", 8000000000, 10000000000, UINT64_MAX, 1},
    {"hybrid", "/user.slice/a b/memory.limit_in_bytes", 400000000, 500000000, UINT64_MAX, 0},
    {"outside", "/mnt/cgroup here/memory.max", 100000000, 700000000, UINT64_MAX, 0},
    {"full", "/x/memory.max", 0, 1000000, 0, 0},
};

static void ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    if (n < k || strcmp(text + n - k, end) != 0)
        fail_msg("'%s' does not end with '%s'", text, end);
}

static void test_machine(void **state)
{
    const machine_t *m = *state;
    arena_budget_t memory, tasks;
    scratch_begin(root);
    unpack(m->name);
    assert_int_equal(arena_budget(root, &memory), 0);
    assert_int_equal(memory.available, m->available);
    assert_int_equal(memory.limit, m->limit);
    ends_with(memory.source, m->source);
    arena_tasks(root, &tasks);
    assert_int_equal(tasks.available, m->tasks);
    int all = arena_cpus("/nonexistent");
    assert_int_equal(arena_cpus(root), m->cpus && m->cpus < all ? m->cpus : all);
    scratch_end(root);
}

/* Every CPU of a list is counted, and what is no list bounds nothing. */
static void test_cpu_lists(void **state)
{
    static const struct {
        const char *list;
        int cpus;
    } lists[] = {{"0\n", 1}, {"3-3\n", 1}, {"\n", 0}, {"x\n", 0}, {"5-2\n", 0}, {"0,\n", 1}};
    (void)state;
    int all = arena_cpus("/nonexistent");
    scratch_text(root, "proc/self/cgroup", "0::/q\n");
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        scratch_text(root, "sys/fs/cgroup/q/cpuset.cpus.effective", lists[i].list);
        int want = lists[i].cpus ? lists[i].cpus : all;
        assert_int_equal(arena_cpus(root), want);
    }
}

static void test_without_proc(void **state)
{
    arena_budget_t b;
    (void)state;
    assert_int_equal(arena_budget("/nonexistent", &b), 0);
    assert_true(b.available > 0 && b.available <= b.limit);
    assert_non_null(strstr(b.source, "is missing"));
    scratch_text(root, "proc/meminfo", "MemTotal: 5 kB\n");
    assert_int_equal(arena_budget(root, &b), ERR_ENV);
}

/* ---- what a run needs ---- */

static needs_from_t a_run(uint32_t imgsz, uint32_t batch, uint32_t workers)
{
    needs_from_t f = {.ring = {.depth = 4,
                               .cells = batch,
                               .label_cap = 64,
                               .image_bytes = (uint64_t)batch * imgsz * imgsz * 3},
                      .ranks = 2,
                      .workers = workers,
                      .threads = 4,
                      .inflight = 4,
                      .sources = 4,
                      .imgsz = imgsz,
                      .file_bytes = 1000000,
                      .pixels = 4000000};
    return f;
}

static const needs_limits_t plenty = {.memory = {.available = UINT64_MAX, .source = "here"},
                                      .tasks = {.available = UINT64_MAX, .source = "there"},
                                      .descriptors = UINT64_MAX,
                                      .user_tasks = UINT64_MAX};

static void test_needs_add_up(void **state)
{
    (void)state;
    needs_from_t f = a_run(1024, 8, 6);
    needs_t n, more;
    needs_compute(&f, &n);
    assert_int_equal(n.ring, ring_bytes(&f.ring));
    assert_int_equal(n.rings, 2 * n.ring);
    assert_int_equal(n.loaders, 6 * n.loader);
    /* All files of five cells, one decoded picture, four at loaded size: the least there can be. */
    assert_true(n.loader > 5 * 4 * 1000000 + 3 * 4000000 + 4 * 3 * 1024 * 1024);
    assert_true(n.descriptors > 9 * 4 && n.tasks >= 9 * 3 + 2 * 3);
    f.workers = 7;
    needs_compute(&f, &more);
    assert_int_equal(more.loaders - n.loaders, n.loader);
    assert_true(more.descriptors > n.descriptors && more.tasks > n.tasks && more.rest > n.rest);
    f.reader_threads = 16;
    needs_compute(&f, &n);
    assert_int_equal(n.tasks - more.tasks, 7 * 16);
    /* Small pictures are not counted at the size of the cell. */
    f.pixels = 100;
    needs_compute(&f, &more);
    assert_true(more.loader < n.loader);
}

/* Each bound refuses at one less than what is needed, and names itself. */
static void test_needs_compared(void **state)
{
    (void)state;
    needs_from_t f = a_run(640, 16, 1000);
    needs_t n;
    needs_compute(&f, &n);
    needs_limits_t l = plenty;
    assert_int_equal(needs_check(&n, &l), 0);
    l.memory.available = n.rings + n.loaders + n.rest;
    assert_int_equal(needs_check(&n, &l), 0);
    l.memory.available--;
    assert_int_equal(needs_check(&n, &l), ERR_ENV);
    assert_non_null(strstr(err_text(), "(here): lower ring_depth (4)"));
    assert_non_null(strstr(err_text(), "workers (1000)"));
    l = plenty;
    l.descriptors = n.descriptors;
    l.user_tasks = n.tasks;
    assert_int_equal(needs_check(&n, &l), 0);
    l.descriptors--;
    assert_int_equal(needs_check(&n, &l), ERR_ENV);
    assert_non_null(strstr(err_text(), "ulimit -n"));
    l = plenty;
    l.user_tasks = n.tasks - 1;
    assert_int_equal(needs_check(&n, &l), ERR_ENV);
    assert_non_null(strstr(err_text(), "ulimit -u"));
    l = plenty;
    l.tasks.available = n.tasks - 1;
    assert_int_equal(needs_check(&n, &l), ERR_ENV);
    assert_non_null(strstr(err_text(), "there"));
}

int main(void)
{
    enum { MACHINES = sizeof machines / sizeof machines[0] };
    struct CMUnitTest tests[MACHINES + 4];
    memset(tests, 0, sizeof tests);
    for (size_t i = 0; i < MACHINES; i++)
        tests[i] = (struct CMUnitTest){.name = machines[i].name,
                                       .test_func = test_machine,
                                       .initial_state = (void *)&machines[i]};
    tests[MACHINES] =
        (struct CMUnitTest)cmocka_unit_test_setup_teardown(test_cpu_lists, make_root, remove_root);
    tests[MACHINES + 1] = (struct CMUnitTest)cmocka_unit_test_setup_teardown(
        test_without_proc, make_root, remove_root);
    tests[MACHINES + 2] = (struct CMUnitTest)cmocka_unit_test(test_needs_add_up);
    tests[MACHINES + 3] = (struct CMUnitTest)cmocka_unit_test(test_needs_compared);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
