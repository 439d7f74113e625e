/* sluice scale: another number of loaders while the run works, and whether the machine has room for
 * them. */
#include "control/coordinator_state.h"

#include "shm/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What the loaders that run already hold of it. */
static uint64_t held(coordinator_t *c, uint64_t each)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < RUN_LOADERS_MAX; i++) {
        const proc_t *p = proc_loader(c, i);
        const board_page_t *page = board_page(c->board, p->page);
        if (p->state != PROC_JOINED ||
            atomic_load_explicit(&page->incarnation, memory_order_relaxed) != p->incarnation)
            continue;
        uint64_t has =
            NEEDS_LOADER + atomic_load_explicit(&page->memory_bytes, memory_order_relaxed);
        sum += has < each ? has : each;
    }
    return sum;
}

/* Formats the sentence of a refusal. */
__attribute__((format(printf, 4, 5))) static int refuse(char *text, size_t bytes, int code,
                                                        const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, bytes, fmt, ap);
    va_end(ap);
    return code;
}

static int check_memory(coordinator_t *c, uint32_t n, const arena_budget_t *budget, char *text,
                        size_t bytes)
{
    uint64_t each = c->needs.loader, has = held(c, each), mib = 1 << 20;
    uint64_t need = (uint64_t)n * each;
    need = need > has ? need - has : 0;
    if (need <= budget->available)
        return 0;
    uint64_t most = (budget->available + has) / each;
    return refuse(text, bytes, ERR_ENV,
                  "%u loaders need about %llu MiB each for the images of this data set, %llu MiB "
                  "more than they hold now, and %llu MiB are available (%s): the number stays %u; "
                  "%llu would fit",
                  n, (unsigned long long)(each / mib), (unsigned long long)(need / mib),
                  (unsigned long long)(budget->available / mib), budget->source, c->workers,
                  (unsigned long long)(most > c->workers ? most : c->workers));
}

static int check_descriptors(coordinator_t *c, const needs_t *then, uint64_t have, char *text,
                             size_t bytes)
{
    uint64_t each = (then->descriptors - c->needs.descriptors) / (then->from.workers - c->workers);
    if (then->descriptors <= have)
        return 0;
    return refuse(text, bytes, ERR_ENV,
                  "with %u loaders the coordinator has %llu files open and %llu may be (ulimit -n, "
                  "before the run is started): the number stays %u; %llu would fit",
                  then->from.workers, (unsigned long long)then->descriptors,
                  (unsigned long long)have, c->workers,
                  (unsigned long long)(have > c->needs.descriptors
                                           ? c->workers + (have - c->needs.descriptors) / each
                                           : c->workers));
}

static int check_tasks(coordinator_t *c, const needs_t *then, const needs_limits_t *limits,
                       char *text, size_t bytes)
{
    uint64_t more = then->tasks - c->needs.tasks;
    int user = limits->user_tasks < limits->tasks.available;
    uint64_t have = user ? limits->user_tasks : limits->tasks.available;
    if (more <= have)
        return 0;
    return refuse(text, bytes, ERR_ENV,
                  "%u more loaders start %llu processes and threads, and %llu more may be started "
                  "(%s): the number stays %u",
                  then->from.workers - c->workers, (unsigned long long)more,
                  (unsigned long long)have, user ? "ulimit -u" : limits->tasks.source, c->workers);
}

/* 0, or the code and the sentence that says why there cannot be n loaders. */
static int refused(coordinator_t *c, uint32_t n, char *text, size_t bytes)
{
    needs_limits_t limits;
    needs_t then;
    int rc;
    if (n < 1 || n > RUN_LOADERS_MAX)
        return refuse(text, bytes, ERR_CONFIG, "a run has 1 to %d loaders, not %u", RUN_LOADERS_MAX,
                      n);
    if (c->state != RUN_STARTING && c->state != RUN_TRAINING)
        return refuse(text, bytes, ERR_FAILED, "the number of loaders stays: the run is %s%s",
                      run_state_text(c),
                      c->state < RUN_STARTING ? "; ask again when it starts" : "");
    /* What cannot be found out is no reason. */
    if (n <= c->workers || needs_limits(&limits) < 0)
        return 0;
    needs_from_t from = c->needs.from;
    from.workers = c->workers;
    needs_compute(&from, &c->needs);
    from.workers = n;
    needs_compute(&from, &then);
    if ((rc = check_memory(c, n, &limits.memory, text, bytes)) < 0 ||
        (rc = check_descriptors(c, &then, limits.descriptors, text, bytes)) < 0)
        return rc;
    return check_tasks(c, &then, &limits, text, bytes);
}

int scale_answer(coordinator_t *c, uint32_t n, char *text, size_t bytes)
{
    event_t e;
    uint32_t before = c->workers;
    int rc = refused(c, n, text, bytes);
    if (rc < 0)
        return rc;
    snprintf(text, bytes, "loaders: %u, before %u", n, before);
    if (n == before)
        return 0;
    event_begin(&e, "loader-scale");
    json_key_uint(&e.json, "from", before);
    json_key_uint(&e.json, "to", n);
    event_end(c, &e);
    run_note(c, LOG_INFO, "loaders: %u, before %u", n, before);
    c->workers = n;
    proc_scale_loaders(c);
    return 0;
}
