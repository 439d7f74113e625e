/* `sluice checkpoint`: whoever asks is answered when the files are on disk, or with the reason why
 * they are not. Rank 0 takes it behind its next optimiser step (trainer/save.h). */
#include "control/coordinator_state.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKPOINT_ANSWER_S = 60 }; /* then whoever asked hears what it waits for */

__attribute__((format(printf, 4, 5))) static void reply(coordinator_t *c, const char *to,
                                                        int status, const char *fmt, ...)
{
    char frame[sizeof(wire_reply_t) + 2048];
    wire_reply_t head;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(frame + sizeof head, sizeof frame - sizeof head, fmt, ap);
    va_end(ap);
    size_t used = strnlen(frame + sizeof head, n < 0 ? 0 : sizeof frame - sizeof head);
    memset(&head, 0, sizeof head);
    wire_begin(&head, WIRE_REPLY, sizeof head + used);
    head.status = status;
    memcpy(frame, &head, sizeof head);
    /* Who has gone without waiting for the answer wants none. */
    int rc = bus_send(c->bus, to, frame, sizeof head + used);
    if (rc < 0 && rc != ERR_GONE)
        log_line(LOG_INFO, "a request for a checkpoint was not answered: %s", err_text());
}

void checkpoint_request(coordinator_t *c, const char *to)
{
    if (c->config->digest_only || !run_trains(c)) {
        const char *command = c->config->digest_only            ? "digest"
                              : c->options.mode == OPT_MODE_VAL ? "val"
                                                                : "predict";
        reply(c, to, ERR_FAILED,
              "no checkpoint: this is a sluice %s, which trains nothing; name a sluice train\n",
              command);
        return;
    }
    if (c->state == RUN_STOPPING) {
        reply(c, to, ERR_FAILED, "the run is being stopped, and writes a checkpoint for that\n");
        return;
    }
    if (c->state != RUN_TRAINING) {
        reply(c, to, ERR_FAILED, "no checkpoint: the run is %s\n", run_state_text(c));
        return;
    }
    if (c->n_asks == RUN_ASKS) {
        reply(c, to, ERR_FAILED, "no checkpoint: %d requests for one wait already\n", RUN_ASKS);
        return;
    }
    wire_checkpoint_t m;
    memset(&m, 0, sizeof m);
    wire_begin(&m, WIRE_CHECKPOINT, sizeof m);
    m.number = c->asks_made + 1;
    if (proc_send(c, proc_trainer(c, 0), &m, sizeof m) < 0) {
        reply(c, to, ERR_FAILED, "no checkpoint: rank-0 takes no message now; try again\n");
        return;
    }
    run_ask_t *ask = &c->asks[c->n_asks++];
    memset(ask, 0, sizeof *ask);
    ask->number = ++c->asks_made;
    ask->since_ns = clock_ns();
    snprintf(ask->to, sizeof ask->to, "%s", to);
}

static void drop_ask(coordinator_t *c, uint32_t i)
{
    c->asks[i] = c->asks[--c->n_asks];
}

void checkpoint_answered(coordinator_t *c, const wire_checkpoint_t *m)
{
    for (uint32_t i = c->n_asks; i-- > 0;) {
        if (c->asks[i].number > m->number)
            continue;
        reply(c, c->asks[i].to, m->status < 0 ? ERR_FAILED : 0, "%s\n", m->text);
        drop_ask(c, i);
    }
}

void checkpoint_tick(coordinator_t *c, uint64_t now)
{
    for (uint32_t i = c->n_asks; i-- > 0;) {
        const run_ask_t *ask = &c->asks[i];
        if (c->state == RUN_LEAVING) {
            reply(c, ask->to, ERR_FAILED, "the run ended before it wrote that checkpoint: %s\n",
                  c->code < 0 ? c->text : "it is done");
        } else if (now - ask->since_ns > CHECKPOINT_ANSWER_S * 1000000000ull) {
            const board_page_t *page = board_page(c->board, proc_trainer(c, 0)->page);
            uint32_t phase = atomic_load_explicit(&page->phase, memory_order_relaxed);
            reply(c, ask->to, ERR_TIMEOUT,
                  "not within %d s: rank-0 is in '%s' (sluice status says more); the checkpoint is "
                  "written after its next optimiser step\n",
                  CHECKPOINT_ANSWER_S, board_phase_name(phase));
        } else {
            continue;
        }
        drop_ask(c, i);
    }
}
