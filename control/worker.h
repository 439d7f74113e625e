/* A worker's side of its life: start, hello/welcome, messages, parent's death, leaving (design 1
 * and 6).
 *
 * Used by loader, trainer and scribe. The coordinator execs
 *   sluice-loader --endpoint ipc://@... --kind K --index N --incarnation I --parent PID --lifeline
 * FD with the token in the environment (SLUICE_TOKEN, removed at once). The lifeline is a pipe
 * whose other end only the coordinator holds: end-of-file means that it is dead. PR_SET_PDEATHSIG
 * is set first, then getppid is compared with --parent; then a guard takes over (control/guard.h),
 * and the process does not outlive the end of its lifeline. One per process; single thread.
 */
#ifndef SLUICE_CONTROL_WORKER_H
#define SLUICE_CONTROL_WORKER_H

#include "control/bus.h"
#include "control/catalog.h"
#include "control/options.h"
#include "control/plan.h"
#include "shm/board.h"
#include "shm/ring.h"

typedef struct {
    uint32_t kind, index, incarnation;
    bus_t *bus;
    board_t *board;
    board_page_t *page; /* this process's */
    board_hub_t *hub;
    catalog_t *catalog;        /* NULL for the scribe */
    ring_t *rings[WIRE_RANKS]; /* loader: all; trainer: its own at [index]; else NULL */
    wire_welcome_t welcome;
    options_t options;
    plan_t plan;
    uint32_t epochs_announced; /* epochs below this one are agreed: loaders may claim their cells */
    int stop;                  /* a WIRE_STOP has come */
    wire_stop_t stop_message;
    int lifeline; /* descriptor */
} worker_t;

/* Parses the command line, arms the death signals, connects, says hello, waits for the
 * welcome, attaches board, catalog and rings. */
int worker_start(int argc, char **argv, board_kind_t kind, worker_t *w);
/* Handles what has come: answers WIRE_EPOCH itself (checks the agreement), notes WIRE_STOP; hands
 * every other message to on_message (may be NULL). timeout_ms 0 just looks. ERR_GONE when the
 * coordinator is dead or the run is torn down (hub abort word). */
int worker_poll(worker_t *w, int timeout_ms, int (*on_message)(void *user, const bus_message_t *m),
                void *user);
/* What worker_start and worker_poll do with one checked message: the welcome, and any other. For
 * them, and for tests. */
int worker_welcome(worker_t *w, const bus_message_t *m);
int worker_handle(worker_t *w, const bus_message_t *m,
                  int (*on_message)(void *user, const bus_message_t *m), void *user);
int worker_send(worker_t *w, const void *frame, size_t bytes);
/* Says bye with a status and text (err_text for failures), flushes for at most 1 s, detaches. */
void worker_finish(worker_t *w, int status, const char *text);

#endif
