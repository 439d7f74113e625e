/* The coordinator: one per run, inside `sluice train` and `sluice digest` (design 1 and 6).
 *
 * Scans (through a scan process), makes shared memory, starts and reaps scribe, loaders and
 * trainers, runs the control plane, agrees epochs, forwards to the scribe, watches deaths, ends the
 * run. Touches no pixel, no GPU and no file on storage that may hang. Single thread: the one that
 * forks (PDEATHSIG). What a person sees is the caller's business: the view's functions are called
 * on the same thread and must not wait.
 */
#ifndef SLUICE_CONTROL_COORDINATOR_H
#define SLUICE_CONTROL_COORDINATOR_H

#include "control/catalog.h"
#include "control/gpus.h"
#include "control/log.h"
#include "control/needs.h"
#include "control/options.h"
#include "control/wire.h"
#include "shm/arena.h"
#include "shm/ring.h"

/* What a resume does about one thing: "kept", "changed" or "lost", and what that means. */
typedef struct {
    const char *what, *verdict;
    char text[256];
} coordinator_resume_row_t;
enum { COORDINATOR_RESUME_ROWS = 12 };
/* What is known of both sides. */
typedef struct {
    const wire_run_info_t *was; /* from the state */
    const plan_t *plan;
    uint32_t threads, ledger; /* of a rank, now; ledger: entries that hold on */
    int nbs, deterministic;
    const char *changed; /* options that change the numbers, "" for none */
} coordinator_resume_t;
/* The rows of it; pure. Returns how many. */
uint32_t coordinator_resume_rows(const coordinator_resume_t *r,
                                 coordinator_resume_row_t rows[COORDINATOR_RESUME_ROWS]);

/* What a run has come to, before its first step. Pointers are valid during the call. */
typedef struct {
    const options_t *options; /* resolved */
    const plan_t *plan;
    const catalog_t *catalog;
    const char *run_dir;
    int resumed;
    uint32_t workers, threads, cpus; /* threads: of each trainer */
    needs_t needs;                   /* of all but the trainers */
    ring_config_t ring;
    arena_budget_t budget;
    uint64_t disk_free;
    uint64_t memory[WIRE_RANKS]; /* that each trainer holds, from its READY */
    const gpus_t *gpus;          /* NULL: nobody looked */
    gpu_format_t format;         /* of activations */
    uint64_t device_memory[WIRE_RANKS], device_free[WIRE_RANKS]; /* GPUs: of it, before it */
    const coordinator_resume_row_t *resume; /* n_resume > 0: of a resumed run */
    uint32_t n_resume;
} coordinator_table_t;

typedef struct {
    wire_progress_t rank0;
    double images_per_s; /* over all ranks */
    double wait_share;   /* the largest of any rank */
    uint32_t epochs;
} coordinator_progress_t;

typedef struct {
    uint32_t epoch, step, rank;
    int validation;
    uint64_t digest;
    uint32_t cells;
    const uint32_t *samples; /* catalog ids, in order of cell */
} coordinator_batch_t;

/* sluice predict: an image that is done. */
typedef struct {
    uint32_t image, images; /* counted from 1, in the order in which they are done; of so many */
    const char *path;
    uint32_t width, height;
    const wire_box_t *boxes; /* best first */
    uint32_t n;
    int unusable;
} coordinator_found_t;

/* sluice val: the result. Of a prediction the times alone. */
typedef struct {
    const catalog_t *catalog;
    const wire_class_t *classes; /* [0] of all together, then each class */
    uint32_t n_classes;
    const wire_confused_t *confused; /* in order of (predicted, actual) */
    uint32_t n_confused;
    double load_ms, infer_ms, post_ms; /* an image, on one process */
} coordinator_measured_t;

typedef struct {
    int code; /* 0 or a negative ERR_ */
    const char *run_dir;
    uint32_t epochs_done; /* in this process's life */
    uint32_t best_epoch;  /* of those, 0-based; valid if has_map */
    int best_before;      /* one before the resume was better: best.safetensors is its */
    int has_map, stopped_early, weights_saved; /* saved: there is a checkpoint to go on from */
    double map50, map, last_map;               /* of best_epoch; last: of the last */
    double seconds;
    uint64_t stream;                /* digest runs */
    uint32_t left_out, bad, warned; /* files: by the scan, in training, used with a warning */
} coordinator_summary_t;

/* Any may be NULL. */
typedef struct {
    void *user;
    void (*note)(void *user, log_level_t level, const char *text);
    void (*scanning)(void *user, uint64_t done, uint64_t of); /* of 0: still listing */
    void (*start)(void *user, const coordinator_table_t *table);
    void (*progress)(void *user, const coordinator_progress_t *p);
    void (*epoch)(void *user, const wire_epoch_end_t *e);
    /* An error ends the run: nobody needs digests that cannot be written. */
    int (*batch)(void *user, const coordinator_batch_t *b);
    /* Digest runs: an epoch's training cells together (control/stream.h); errors as above. */
    int (*stream)(void *user, uint32_t epoch, uint64_t digest);
    void (*found)(void *user, const coordinator_found_t *f);
    void (*measured)(void *user, const coordinator_measured_t *m);
    void (*end)(void *user, const coordinator_summary_t *s);
} coordinator_view_t;

typedef struct {
    options_t options;
    int digest_only;     /* sluice digest: no scribe, no trainers; the coordinator reads the rings
                            itself */
    const char *bin_dir; /* where sluice-loader and the others are */
    uint32_t devices_s;  /* for the look at the GPUs; 0: GPUS_DEADLINE_S. Tests wait less */
    /* The command line's key=value words: with resume= they change what the run's args.yaml says.
     */
    const char *const *words;
    int n_words;
    const char *const *classes; /* sluice predict: the model's, by name */
    uint32_t n_classes;
    coordinator_view_t view;
} coordinator_config_t;

/* Runs to the end. 0, or the code whose exit status the command returns; err_text says why. */
int coordinator_run(const coordinator_config_t *config);

#endif
