/* Memory budget and CPU count from recorded machines, and the arenas themselves. */
#include "shm/arena.h"
#include "shm/board.h"
#include "shm/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[256];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/sluice-test-arena-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

/* Writes a recorded file below the test's root, making its folders. */
static void record(const char *path, const char *text)
{
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_meminfo_only(void **state)
{
    (void)state;
    arena_budget_t b;
    record("/proc/meminfo", "MemTotal:  8000 kB\nMemFree: 1 kB\nMemAvailable:  4000 kB\n");
    record("/proc/self/cgroup", "0::/\n");
    assert_int_equal(arena_budget(root, &b), 0);
    assert_int_equal(b.available, 4000 * 1024);
    assert_int_equal(b.limit, 8000 * 1024);
    assert_non_null(strstr(b.source, "MemAvailable"));
}

static void test_ancestor_limits(void **state)
{
    (void)state;
    arena_budget_t b;
    record("/proc/meminfo", "MemTotal:  8000000 kB\nMemAvailable:  4000000 kB\n");
    record("/proc/self/cgroup", "0::/job/step\n");
    record("/sys/fs/cgroup/job/step/memory.max", "max\n");
    record("/sys/fs/cgroup/job/step/memory.current", "5000\n");
    record("/sys/fs/cgroup/job/memory.max", "1000000\n");
    record("/sys/fs/cgroup/job/memory.current", "700000\n");
    record("/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 100000\n");
    assert_int_equal(arena_budget(root, &b), 0);
    /* limit - (usage - page cache that can go) */
    assert_int_equal(b.available, 400000);
    assert_int_equal(b.limit, 1000000);
    assert_non_null(strstr(b.source, "/job/memory.max"));
    record("/sys/fs/cgroup/job/memory.current", "1200000\n");
    record("/sys/fs/cgroup/job/memory.stat", "inactive_file 0\n");
    assert_int_equal(arena_budget(root, &b), 0);
    assert_int_equal(b.available, 0);
}

static void test_cgroup_v1(void **state)
{
    (void)state;
    arena_budget_t b;
    record("/proc/meminfo", "MemTotal:  8000000 kB\nMemAvailable:  4000000 kB\n");
    record("/proc/self/cgroup", "9:cpu,cpuacct:/c\n4:memory:/m/n\n0::/\n");
    record("/sys/fs/cgroup/memory/m/n/memory.limit_in_bytes", "9223372036854771712\n");
    record("/sys/fs/cgroup/memory/m/n/memory.usage_in_bytes", "10\n");
    record("/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "2000\n");
    record("/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "500\n");
    record("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n");
    record("/sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
    assert_int_equal(arena_budget(root, &b), 0);
    assert_int_equal(b.available, 1500);
    int all = arena_cpus("/nonexistent");
    assert_int_equal(arena_cpus(root), all);
    record("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "50000\n");
    assert_int_equal(arena_cpus(root), 1);
}

static void test_cpu_v2(void **state)
{
    (void)state;
    int all = arena_cpus("/nonexistent");
    assert_true(all >= 1);
    record("/proc/self/cgroup", "0::/q\n");
    record("/sys/fs/cgroup/q/cpu.max", "max 100000\n");
    assert_int_equal(arena_cpus(root), all);
    record("/sys/fs/cgroup/q/cpu.max", "20000 100000\n");
    assert_int_equal(arena_cpus(root), 1);
    if (all >= 2) {
        record("/sys/fs/cgroup/q/cpu.max", "150000 100000\n");
        assert_int_equal(arena_cpus(root), 2); /* rounded up */
    }
}

static void test_create_and_map(void **state)
{
    (void)state;
    void *base, *again;
    uint64_t bytes;
    int fd;
    assert_int_equal(arena_create("test", 8192, &base, &fd), 0);
    ((char *)base)[8191] = 42;
    assert_int_equal(arena_map(fd, 0, &again, &bytes), 0);
    assert_int_equal(bytes, 8192);
    assert_int_equal(((char *)again)[8191], 42);
    assert_int_equal(ftruncate(fd, 4096), -1); /* sealed */
    assert_int_equal(ftruncate(fd, 16384), -1);
    arena_unmap(again, bytes);
    arena_unmap(base, 8192);
    close(fd);
    assert_int_equal(arena_create("test", 1ull << 50, &base, &fd), ERR_ENV);
    assert_non_null(strstr(err_text(), "may be used"));
    assert_int_not_equal(arena_map(-1, 0, &again, &bytes), 0);
}

static void test_board(void **state)
{
    (void)state;
    board_t *board, *other;
    int fd;
    assert_int_equal(board_create(3, &board, &fd), 0);
    assert_int_equal(board_attach(fd, &other), 0);
    assert_null(board_page(board, 3));
    board_page_t *mine = board_page(board, 2), *seen = board_page(other, 2);
    assert_int_equal(seen->kind, BOARD_NONE);
    board_open_page(mine, BOARD_LOADER, 5, 17);
    board_set_phase(mine, BOARD_LOADING);
    board_progress(mine, 3, 10);
    assert_int_equal(seen->kind, BOARD_LOADER);
    assert_int_equal(seen->index, 5);
    assert_int_equal(seen->incarnation, 17);
    assert_int_equal(seen->pid, getpid());
    assert_int_equal(seen->progress, 3);
    assert_string_equal(board_phase_name(seen->phase), "loading");
    assert_string_equal(board_phase_name(999), "unknown");
    for (uint32_t p = 0; p < BOARD_PHASES; p++)
        assert_string_not_equal(board_phase_name(p), "unknown");
    board_hub(board)->work_bell = 9;
    assert_int_equal(board_hub(other)->work_bell, 9);
    board_close(&other);
    board_hub(board)->version++;
    assert_int_not_equal(board_attach(fd, &other), 0);
    board_close(&board);
    close(fd);
}

static void test_errors(void **state)
{
    (void)state;
    assert_int_equal(err_set(ERR_DATA, "line %d", 3), ERR_DATA);
    assert_int_equal(err_add(ERR_DATA, "file %s", "a.txt"), ERR_DATA);
    assert_string_equal(err_text(), "file a.txt: line 3");
    char longer[4096];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    err_set(ERR_DATA, "%s", longer);
    err_add(ERR_DATA, "front");
    assert_memory_equal(err_text(), "front: xxx", 10);
    assert_true(strlen(err_text()) < 2048);
    assert_int_equal(err_exit_status(0), 0);
    assert_int_equal(err_exit_status(ERR_STOPPED), 5);
    assert_int_equal(err_exit_status(ERR_TIMEOUT), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_meminfo_only, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_ancestor_limits, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_cgroup_v1, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_cpu_v2, make_root, remove_root),
        cmocka_unit_test(test_create_and_map),
        cmocka_unit_test(test_board),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
