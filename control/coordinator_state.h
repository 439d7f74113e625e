/* What the coordinator's files share (private to control/coordinator*.c).
 *
 *   coordinator.c           begin, end, the states of a run, failure
 *   coordinator_loop.c      the one poll loop: signals, deadlines, what is due
 *   coordinator_process.c   starting processes, their ends, respawn
 *   coordinator_message.c   what a message does
 *   coordinator_samples.c   bad samples, decoders' warnings, the scan's findings
 *   coordinator_devices.c   children that look at the GPUs and choose a batch
 *   coordinator_start.c     from the sample list to armed rings
 *   coordinator_resume.c    options of a resumed run, its ledger, what is kept and what is lost
 *   coordinator_checkpoint.c  checkpoints that somebody asks for
 *   coordinator_record.c    events, logs and rows on their way to the scribe and to watchers; notes
 *   coordinator_results.c   sluice val and predict: what was found and measured
 *   coordinator_digest.c    sluice digest: the rings are read here
 *   coordinator_scale.c     another number of loaders
 *   coordinator_status.c    answers to commands
 *
 * States of a run (run_state_t); only run_enter changes the state:
 *
 *   OPENING --run directory locked--> SCANNING --list, memory, rings--> STARTING
 *     --all trainers ready--> TRAINING --all trainers have left--> LEAVING --all have ended--> OVER
 *   STARTING, TRAINING --Ctrl-C, sluice stop--> STOPPING --trainers have left--> LEAVING
 *   TRAINING --run_give_up--> STOPPING
 *   any --run_fail, a stop before STARTING--> LEAVING;  any --second Ctrl-C--> LEAVING, all killed
 * A digest run has no OPENING, and TRAINING begins when the rings are armed.
 */
#ifndef SLUICE_CONTROL_COORDINATOR_STATE_H
#define SLUICE_CONTROL_COORDINATOR_STATE_H

#include "control/coordinator.h"

#include "control/bus.h"
#include "control/gpus.h"
#include "control/json.h"
#include "control/ledger.h"
#include "control/needs.h"
#include "control/outbox.h"
#include "control/parts.h"
#include "control/registry.h"
#include "control/supervise.h"
#include "control/warned.h"
#include "shm/board.h"

#include <signal.h>

enum {
    RUN_LOADERS_MAX = 1024,
    RUN_PROCESSES = 4 + WIRE_RANKS + RUN_LOADERS_MAX,
    RUN_TICK_MS = 100,
    RUN_HELLO_S = 60,        /* from exec to hello, on a machine that is busy */
    RUN_READY_S = 900,       /* a trainer's start-up: model, memory, weights */
    RUN_SCAN_S = 600,        /* a scan without any progress */
    RUN_PLAN_S = 120,        /* for a batch to be chosen: model, device, plans */
    RUN_LEAVE_S = 5,         /* to leave when all work is done */
    RUN_UNKILLABLE_S = 3,    /* after SIGKILL: then the kernel holds it */
    RUN_SWEEP_S = 2,         /* for what a scribe that was killed has left in the run directory */
    RUN_CHECKPOINT_S = 10,   /* of a stop's time: for what follows the step that is finished */
    RUN_WATCH_MS = 200,      /* for the last message to a watcher that does not read */
    RUN_LAST_WORDS_MS = 500, /* for a goodbye still on its way when its sender has ended */
    RUN_DEATHS = 5,          /* loaders that may die without a cell done in between */
    RUN_EVENT_BYTES = 8192,
    RUN_ASKS = 16,             /* requests for a checkpoint that wait at a time */
    RUN_REPLAY_MOST = 1 << 20, /* ledger entries of a resumed run */
    RUN_TOLD = 64,             /* warnings of workers that are remembered, to be told once */
    RUN_STARTS = 16, /* loaders that are started in one round of the loop: each takes about 1 ms */
};

typedef enum {
    RUN_OPENING = 0, /* the scribe makes and locks the run directory */
    RUN_SCANNING,    /* a child looks at the GPUs, the scan reads the data set */
    RUN_STARTING,    /* trainers build their models */
    RUN_TRAINING,
    RUN_STOPPING, /* asked to stop: trainers checkpoint and leave */
    RUN_LEAVING,  /* trainers are gone; loaders leave, the scribe finishes */
    RUN_OVER,
} run_state_t;

typedef enum {
    PROC_NONE = 0, /* no such process at present */
    PROC_STARTED,  /* forked; its hello is awaited until deadline_ns */
    PROC_JOINED,   /* welcomed */
    PROC_ENDED,    /* reaped; its goodbye may still be on the way */
} proc_state_t;

typedef struct {
    uint32_t kind, index; /* board_kind_t */
    uint32_t
        incarnation; /* of the run's processes, counted from 1: also the owner in claim words */
    uint32_t page;   /* of the board */
    proc_state_t state;
    uint64_t since_ns, deadline_ns; /* of the state; 0: no deadline */
    supervise_child_t child;
    char identity[BUS_IDENTITY], name[48]; /* "loader-3.17", "loader-3" */
    int ready;                             /* trainer: READY has come */
    int said_bye, bye_status;
    char bye_text[WIRE_TEXT];
    int stop_wanted, stop_sent; /* a wire_stop_why_t + 1; wanted until it is sent */
    int kill_sent, stuck_told;  /* SIGKILL is sent; that it does not end has been said */
    uint32_t inert;       /* looks in a row that found it held by the kernel (control/held.h) */
    uint32_t epochs_sent; /* announcements below this epoch */
    uint32_t ledger_sent; /* entries */
    uint64_t respawn_ns;  /* PROC_NONE: when to start again; 0: not */
    uint32_t deaths;      /* in a row, without a cell of its own in between */
    size_t line_used;     /* of a line of stderr not yet complete */
    char line[4096];
    char last_words[WIRE_TEXT]; /* last error line, else last line */
    int last_is_error;
} proc_t;

/* Somebody who waits for a checkpoint. */
typedef struct {
    char to[BUS_IDENTITY];
    uint32_t number;
    uint64_t since_ns;
} run_ask_t;

typedef struct coordinator {
    const coordinator_config_t *config;
    const coordinator_view_t *view;
    options_t options;
    run_state_t state;
    uint64_t state_ns, start_ns, last_tick_ns;
    uint64_t deadline_ns; /* of the state; 0: none */
    int interrupts;       /* Ctrl-C so far */
    uint64_t signal_ns;   /* of the last signal that asked for an end */
    int user_stop;
    uint64_t stop_until_ns; /* when what a stop asked for must be on the disk; 0: no stop yet */
    int gave_up;            /* run_give_up: the trainers leave by a checkpoint */
    int code;               /* first failure, or ERR_STOPPED */
    char text[8192];

    bus_t *bus, *watchers; /* ROUTER; PUB, NULL where there is none */
    char endpoint[64], watch[72], token[WIRE_TOKEN];
    int signal_fd;
    sigset_t old_mask;
    registry_t *registry;
    int registered; /* or it was tried */
    char run_dir[4096];
    uint64_t disk_free;
    int resumed;
    uint32_t first_epoch;
    wire_run_info_t was;   /* resumed: what its state says */
    wire_ledger_t *replay; /* resumed: its ledger */
    uint32_t n_replay;
    char resume_changed[256]; /* resumed: options changed that change the numbers; "" none */

    board_t *board;
    board_hub_t *hub;
    int board_fd, catalog_fd, collective_fd, snapshot_fd;
    int ring_fd[WIRE_RANKS];
    ring_t *rings[WIRE_RANKS];
    ring_config_t ring_config;
    catalog_t *catalog;
    uint64_t list_digest;
    plan_t plan;
    ledger_t *ledger;
    warned_t warned;                       /* once there is a list */
    uint32_t warned_in_training, left_out; /* found after the scan; by the scan */
    arena_budget_t budget;                 /* before anything was reserved */
    needs_t needs;
    uint32_t ranks, cpus, threads, workers; /* workers: loaders wanted */
    gpus_t *gpus;                           /* NULL: nobody looked, for the run is on the CPU */
    int answer_fd;                          /* of the child that was asked; -1 */
    char yaml[1 << 17];                     /* resolved options, for welcomes and args.yaml */

    outbox_t *outbox; /* to the scribe */
    uint64_t dropped_told;
    proc_t *procs; /* RUN_PROCESSES: scribe, scan, sweep, trainers, loaders */
    uint32_t incarnations;
    uint32_t epochs_announced;
    uint32_t deaths;                       /* loaders that died since cells_at_death */
    uint64_t cells_at_death, cells_before; /* cells_before: done by loaders that are gone */
    uint32_t snapshots_pending, checkpoint_failed, checkpoint_number;
    run_ask_t asks[RUN_ASKS];
    uint32_t n_asks, asks_made;
    char checkpoint_text[WIRE_TEXT];
    wire_progress_t progress[WIRE_RANKS];
    wire_epoch_end_t last_epoch; /* epochs_done > 0 */
    uint32_t epochs_done, best_epoch;
    double best_map, best_map50;
    int has_map, best_before, stopped_early, weights_saved, scribe_told_stop, end_told;
    uint64_t told[RUN_TOLD]; /* of workers' warnings: hashes */
    uint32_t n_told;
    uint32_t held;                  /* loaders that were left to the kernel */
    uint64_t note_ns;               /* last remark on a state that takes long */
    uint64_t scribe_told_ns;        /* when it was told to finish */
    uint64_t slow_ns, slow_note_ns; /* since when the scribe writes one thing; last remark on it */
    uint64_t scan_beat_ns, scan_progress;

    /* sluice val and predict */
    parts_t *parts;
    struct results *results; /* once there is a list */
    uint32_t bad_images;

    /* sluice digest */
    uint64_t digest_seq, stream;
    uint32_t digest_rank;
    stream_digest_t epoch_digest; /* of the present epoch so far */
} coordinator_t;

/* coordinator.c */
void run_enter(coordinator_t *c, run_state_t state);
const char *run_state_name(run_state_t state);
/* The same for the run that it is: a validation is not "training". */
const char *run_state_text(const coordinator_t *c);
/* Lists the run for commands, when the first worker has joined: from then on somebody takes the entry
 * away should this process be killed. */
void run_register(coordinator_t *c);
/* Notes the first failure (code, text) and tears the run down. */
void run_fail(coordinator_t *c, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for data that does not come any more: the trainers are whole, checkpoint and leave. */
void run_give_up(coordinator_t *c, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Ctrl-C, SIGTERM, `sluice stop`: checkpoint and leave; again: leave now. */
void run_interrupt(coordinator_t *c, const char *who);
/* Without a checkpoint: the second Ctrl-C, `sluice stop --now`. */
void run_interrupt_now(coordinator_t *c, const char *who);
/* What a stop may take: stop_deadline, or a step and its checkpoint where that is longer. Seconds.
 */
double run_stop_seconds(coordinator_t *c);

/* coordinator_process.c */
proc_t *proc_scribe(coordinator_t *c);
proc_t *proc_scan(coordinator_t *c);
/* Looks at the GPUs, or chooses a batch; works without messages (coordinator_devices.c). */
proc_t *proc_ask(coordinator_t *c);
/* Removes what a scribe that was killed has left; works without messages, for RUN_SWEEP_S. */
proc_t *proc_sweep(coordinator_t *c);
proc_t *proc_trainer(coordinator_t *c, uint32_t rank);
proc_t *proc_loader(coordinator_t *c, uint32_t index);
proc_t *proc_find(coordinator_t *c, const char *identity);
static inline int proc_alive(const proc_t *p)
{
    return p->state == PROC_STARTED || p->state == PROC_JOINED;
}
/* Any process of the kind that is alive (BOARD_NONE: of any kind but the scribe). */
int proc_any_alive(coordinator_t *c, uint32_t kind);
void proc_init(coordinator_t *c);
int proc_start(coordinator_t *c, proc_t *p);
/* The child of p runs: what was of its last one is forgotten, and it has so many seconds. */
void proc_began(proc_t *p, uint32_t seconds);
/* Reaps, reads last words, and draws the conclusions. */
void proc_collect(coordinator_t *c);
/* Sends a frame; a full pipe or a vanished peer is not an error here: who is dead is seen
 * elsewhere. */
int proc_send(coordinator_t *c, const proc_t *p, const void *frame, size_t bytes);
/* WIRE_STOP to every live process of a kind (BOARD_NONE: all but the scribe). */
void proc_stop(coordinator_t *c, uint32_t kind, wire_stop_why_t why, double seconds);
void proc_kill(coordinator_t *c, int with_scribe);
/* Leaves a process to the kernel that holds it; a loader's cells go to others. */
void proc_leave_held(coordinator_t *c, proc_t *p);
/* Starts missing and stops surplus loaders. */
void proc_scale_loaders(coordinator_t *c);
/* Announcements, ledger entries and stops that a process has not had yet. */
void proc_catch_up(coordinator_t *c, proc_t *p);
uint64_t run_cells_done(coordinator_t *c);

/* coordinator_message.c */
/* What one checked message does, whoever sent it. */
void message_handle(coordinator_t *c, const bus_message_t *m);
void message_drain(coordinator_t *c);

/* coordinator_samples.c */
/* A loader's report of a file that it cannot use: a ledger entry, or the end of the run when it is
 * too many or the storage. */
void samples_bad(coordinator_t *c, const proc_t *p, const wire_bad_sample_t *m);
void samples_warned(coordinator_t *c, const proc_t *p, const wire_warned_t *m);
/* What the scan has found: events, and the first few lines. */
void samples_issues(coordinator_t *c);

/* coordinator_devices.c */
/* Which devices there are, and who of them is a rank; then the scan. May ask a child first. */
int devices_begin(coordinator_t *c);
/* batch=auto: a child chooses it; then start_planned. */
int devices_plan(coordinator_t *c);
/* The child has ended well: what it answered. */
int devices_answered(coordinator_t *c);
/* The child that was to list the GPUs could not be loaded: as on a machine without one, and the words of
 * the loader of libraries are the reason. */
int devices_unloaded(coordinator_t *c);
/* It has had its time. */
void devices_overdue(coordinator_t *c, const proc_t *p);

/* coordinator_start.c */
/* The sample list is there: issues, batch, plan, memory, rings, then trainers and loaders. */
int start_from_list(coordinator_t *c);
/* The rest of it, when the batch is known. */
int start_planned(coordinator_t *c);
/* Every trainer is ready: args.yaml, the start table, and training, unless a stop came first. */
void start_done(coordinator_t *c);
void start_welcome(coordinator_t *c, const proc_t *p, wire_welcome_t *w);

/* coordinator_resume.c */
/* Paths made absolute, once, without touching storage. */
int resume_absolute(options_t *o, int digest_only);
/* The options of a resumed run: args.yaml, then what the command line may change. */
int resume_options(coordinator_t *c, const char *yaml, size_t bytes);
/* A ledger entry that the scribe found in the state; before its WIRE_RUN_INFO. */
int resume_entry(coordinator_t *c, const wire_ledger_t *entry);
/* Holds the state against the sample list; replays the ledger. */
int resume_check(coordinator_t *c);
/* The event; and the rows for the view. Returns how many rows. */
uint32_t resume_tell(coordinator_t *c, coordinator_resume_row_t rows[COORDINATOR_RESUME_ROWS]);

/* coordinator_checkpoint.c */
void checkpoint_request(coordinator_t *c, const char *to);
void checkpoint_answered(coordinator_t *c, const wire_checkpoint_t *m);
void checkpoint_tick(coordinator_t *c, uint64_t now);

/* coordinator_record.c */
void run_note(coordinator_t *c, log_level_t level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* One line for events.jsonl: event_begin writes time and name; the caller adds keys; event_end
 * sends. */
typedef struct {
    json_t json;
    char text[RUN_EVENT_BYTES];
} event_t;
void event_begin(event_t *e, const char *name);
void event_end(coordinator_t *c, event_t *e);
/* A frame of text for the scribe. */
void record_text(coordinator_t *c, wire_type_t type, const char *text, size_t bytes, int droppable);
void record_csv(coordinator_t *c, const wire_epoch_end_t *e);
/* What a process wrote to its standard error. final: take an incomplete last line too. */
void record_stderr(coordinator_t *c, proc_t *p, int final);
void record_flush(coordinator_t *c);
/* Shows a frame to whoever watches; costs nothing where nobody does, and never waits. */
void record_publish(coordinator_t *c, const void *frame, size_t bytes);
/* The run's end, for watchers. */
void record_end(coordinator_t *c);

/* coordinator_results.c */
/* The plan of a validation or prediction, and room for its results. */
int results_plan(coordinator_t *c);
void results_free(coordinator_t *c);
void results_found(coordinator_t *c, const proc_t *p, const bus_message_t *m);
void results_measured(coordinator_t *c, const bus_message_t *m);
/* Takes the report of a prediction's image that cannot be used: 1; 0: it is not one's. */
int results_bad(coordinator_t *c, const wire_bad_sample_t *m);
/* Acknowledgements that waited for the scribe. */
void results_tick(coordinator_t *c);
static inline int run_trains(const coordinator_t *c)
{
    return c->options.mode == OPT_MODE_TRAIN;
}

/* coordinator_digest.c */
/* Reads what is ready, for at most a few milliseconds. */
void digest_pump(coordinator_t *c);

/* coordinator_status.c */
void status_answer(coordinator_t *c, const char *to, const wire_command_t *command);

/* coordinator_scale.c */
/* The sentence about n loaders from now on, in text; 0, or the code of a refusal. */
int scale_answer(coordinator_t *c, uint32_t n, char *text, size_t bytes);

/* coordinator_loop.c */
int loop_signals(coordinator_t *c);
void loop_run(coordinator_t *c);

#endif
