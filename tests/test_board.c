/* shm/board: pages are their owners', seen by everybody who attaches, and what is not a board is
 * refused. */
#include "shm/arena.h"
#include "shm/board.h"
#include "shm/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { PAGES = 3 };

static uint32_t phase_of(const board_page_t *p)
{
    return atomic_load_explicit(&p->phase, memory_order_relaxed);
}

static void a_page_is_seen_by_others(void **state)
{
    (void)state;
    board_t *mine, *other;
    int fd;
    assert_int_equal(board_create(PAGES, &mine, &fd), 0);
    assert_int_equal(board_attach(fd, &other), 0);
    assert_int_equal(board_pages(other), PAGES);
    assert_null(board_page(other, PAGES));
    assert_non_null(board_page(other, PAGES - 1));
    board_page_t *page = board_page(mine, 1);
    const board_page_t *seen = board_page(other, 1);
    assert_ptr_not_equal(page, seen);
    assert_int_equal(seen->kind, BOARD_NONE);
    board_open_page(page, BOARD_TRAINER, 4, 77);
    assert_true(seen->kind == BOARD_TRAINER && seen->index == 4 && seen->incarnation == 77);
    assert_true(seen->pid == (uint32_t)getpid() && phase_of(seen) == BOARD_START);
    assert_int_equal(board_page(other, 0)->kind, BOARD_NONE);
    assert_int_equal(board_page(other, 2)->kind, BOARD_NONE);
    board_hub(mine)->abort_word = 1;
    assert_int_equal(board_hub(other)->abort_word, 1);
    board_close(&other);
    assert_null(other);
    board_close(&mine);
    close(fd);
}

/* Progress is that of the phase, and a successor sees nothing of its page's last owner. */
static void what_is_over_does_not_show(void **state)
{
    (void)state;
    board_t *b;
    int fd;
    assert_int_equal(board_create(1, &b, &fd), 0);
    board_page_t *p = board_page(b, 0);
    board_open_page(p, BOARD_LOADER, 0, 1);
    board_set_phase(p, BOARD_VALIDATE);
    uint64_t since = p->since_ns;
    assert_true(since > 0 && p->beat_ns >= since);
    board_progress(p, 3, 9);
    assert_true(p->progress == 3 && p->progress_of == 9 && p->since_ns == since);
    board_set_phase(p, BOARD_FORWARD);
    assert_true(p->progress == 0 && p->progress_of == 0 && p->since_ns >= since);
    p->cells_done = 5;
    p->inflight[2].phase = CELL_READ;
    board_open_page(p, BOARD_LOADER, 0, 2);
    assert_true(p->cells_done == 0 && p->inflight[2].phase == CELL_FREE && p->incarnation == 2);
    board_close(&b);
    close(fd);
}

/* A GPU's page is pinned as a whole: it begins at a page, and no process's words lie on it. */
static void gpus_have_pages_of_their_own(void **state)
{
    (void)state;
    board_t *mine, *other;
    int fd;
    assert_int_equal(board_create(PAGES, &mine, &fd), 0);
    assert_int_equal(board_attach(fd, &other), 0);
    const char *behind = (const char *)board_page(mine, PAGES - 1) + BOARD_PAGE_BYTES;
    for (uint32_t r = 0; r < BOARD_GPUS; r++) {
        board_gpu_t *g = board_gpu(mine, r);
        assert_int_equal((uintptr_t)g % BOARD_PAGE_BYTES, 0);
        assert_ptr_equal((const char *)g, behind + (size_t)r * BOARD_PAGE_BYTES);
        g->started = 2 + r;
        g->completed = 1 + r;
    }
    for (uint32_t r = 0; r < BOARD_GPUS; r++)
        assert_true(board_gpu(other, r)->started == 2 + r &&
                    board_gpu(other, r)->completed == 1 + r);
    assert_null(board_gpu(mine, BOARD_GPUS));
    assert_int_equal(board_page(other, PAGES - 1)->kind, BOARD_NONE);
    board_close(&other);
    board_close(&mine);
    close(fd);
}

static void a_stage_has_its_time(void **state)
{
    (void)state;
    board_t *b;
    int fd;
    assert_int_equal(board_create(1, &b, &fd), 0);
    board_page_t *p = board_page(b, 0);
    board_open_page(p, BOARD_TRAINER, 0, 1);
    assert_true(p->stage == BOARD_STAGE_NONE && p->stage_ns == 0);
    board_set_phase(p, BOARD_BUILD);
    board_set_stage(p, BOARD_STAGE_RENDEZVOUS);
    assert_true(p->stage == BOARD_STAGE_RENDEZVOUS && p->stage_ns >= p->since_ns);
    assert_int_equal(phase_of(p), BOARD_BUILD);
    board_close(&b);
    close(fd);
}

static void every_phase_and_kind_has_a_name(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < BOARD_PHASES; i++)
        for (uint32_t k = 0; k <= i; k++)
            assert_int_equal(strcmp(board_phase_name(i), board_phase_name(k)) == 0, i == k);
    assert_string_equal(board_phase_name(BOARD_PHASES), "unknown");
    for (uint32_t i = 0; i < BOARD_STAGES; i++)
        for (uint32_t k = 0; k <= i; k++)
            assert_int_equal(strcmp(board_stage_name(i), board_stage_name(k)) == 0, i == k);
    assert_string_equal(board_stage_name(BOARD_STAGES), "unknown");
    for (uint32_t i = 0; i <= BOARD_SCAN; i++)
        for (uint32_t k = 0; k <= i; k++)
            assert_int_equal(strcmp(board_kind_name(i), board_kind_name(k)) == 0, i == k);
    assert_string_equal(board_kind_name(BOARD_SCAN + 1), "unknown");
}

static void what_is_no_board_is_refused(void **state)
{
    (void)state;
    board_t *b, *other;
    board_hub_t *hub;
    void *base;
    int fd;
    assert_int_equal(arena_create("not-a-board", 2 * BOARD_PAGE_BYTES, &base, &fd), 0);
    assert_int_equal(board_attach(fd, &b), ERR_FAILED);
    assert_non_null(strstr(err_text(), "one build"));
    arena_unmap(base, 2 * BOARD_PAGE_BYTES);
    close(fd);
    assert_true(board_attach(-1, &b) < 0);
    assert_int_equal(board_create(2, &b, &fd), 0);
    hub = board_hub(b);
    hub->version++;
    assert_int_equal(board_attach(fd, &other), ERR_FAILED);
    hub->version--;
    hub->pages++;
    assert_int_equal(board_attach(fd, &other), ERR_FAILED);
    hub->pages--;
    assert_int_equal(board_attach(fd, &other), 0);
    board_close(&other);
    board_close(&b);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_is_seen_by_others),
        cmocka_unit_test(what_is_over_does_not_show),
        cmocka_unit_test(gpus_have_pages_of_their_own),
        cmocka_unit_test(a_stage_has_its_time),
        cmocka_unit_test(every_phase_and_kind_has_a_name),
        cmocka_unit_test(what_is_no_board_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
