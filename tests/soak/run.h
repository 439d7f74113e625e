/* One run of sluice under the soak: `sluice train` or `sluice digest` from its start over stops,
 * kills and resumes to its end (private to tests/soak). One thread.
 *
 * A run is asked through the commands that a person has. Its processes are found by a mark in their
 * environment, so that none is missed when the coordinator can't be asked any more. */
#ifndef SLUICE_TESTS_SOAK_RUN_H
#define SLUICE_TESTS_SOAK_RUN_H

#include <stdint.h>
#include <sys/types.h>

enum { RUN_FOLDER = 512, RUN_PATH = 1024, RUN_SEEN = 64, RUN_TEXT = 1 << 16 };
/* Longest waits, in seconds, from the options and constants of the programs. */
enum {
    WAIT_ASK = 8,     /* a command gives up after ASK_WAIT_MS = 3 s; and starts on a busy machine */
    WAIT_NOTHING = 3, /* design 1: after SIGKILL nothing of the run is left within 3 s */
    WAIT_LOADER = 65, /* a pause of 5 s at most before a respawn, RUN_HELLO_S = 60 to join */
    WAIT_MOVE = 30,   /* hang_timeout: after this long without progress a run is taken for hung */
    WAIT_STOP = 30,   /* RUN_STOP_S to the checkpoint, RUN_LEAVE_S = 5 to leave */
    RUN_STOP_S = 25,  /* stop_deadline, as given to the runs */
    WAIT_FAIL = 15,   /* RUN_LEAVE_S, twice RUN_UNKILLABLE_S, and the scribe's last lines */
    WAIT_WRITTEN = 70, /* a checkpoint on command is answered within CHECKPOINT_ANSWER_S = 60 */
    WAIT_STEP = 120,   /* from a start to the first step: scan, model, weights */
};

/* What is common to all runs of a soak. */
typedef struct {
    char bin[RUN_FOLDER];  /* of the programs */
    char work[RUN_FOLDER]; /* the soak's own folder; also where the runs are registered */
    char small[RUN_PATH];  /* data sets: data.yaml */
    char large[RUN_PATH];
} soak_t;

/* What a round runs. The same configuration gives the same stream and, on one rank, the same
 * weights. */
typedef enum {
    RUN_TRAIN,        /* sluice train, small images */
    RUN_DIGEST,       /* sluice digest, larger ones */
    RUN_DIGEST_SMALL, /* sluice digest of the stream that RUN_TRAIN has */
} run_kind_t;

typedef struct {
    const char *name;
    run_kind_t kind;
    int ranks, epochs;
    int vanish; /* files go after the scan and come back later */
    int calm;   /* nothing ends the run: growth is measured */
} config_t;

typedef struct {
    const soak_t *soak;
    const config_t *config;
    char name[96];         /* of files and of the mark */
    char output[RUN_PATH]; /* of the present process: NAME.1.out, ...; NAME.1.out.err */
    char dir[RUN_PATH];    /* run directory, of a training */
    char socket[128];      /* its endpoint's name, as /proc/net/unix has it; "" unknown */
    pid_t pid;             /* of the coordinator; 0: it has ended */
    int starts, resumes, status;
    int done; /* it has come to its end */
} run_t;

typedef struct {
    char name[32], phase[40];
    pid_t pid;
    uint64_t images, steps; /* cells_done; steps_done */
} seen_process_t;

typedef struct {
    char state[32];
    uint64_t images, steps, loaders, bad; /* steps: sum of the ranks' */
    int n;
    seen_process_t process[RUN_SEEN];
} seen_t;

/* Folders begin empty: what an earlier run of the name left goes. */
void run_init(run_t *r, const soak_t *soak, const config_t *config, const char *name);
/* Starts, or resumes when there is something to go on from. 0, or a violation. */
int run_start(run_t *r);
/* 1 with *seen; 0: there is no such run (not yet, or no more); -1: it does not answer. */
int run_look(run_t *r, seen_t *seen);
/* The number that grows while the run gets on: steps of a training, images of a digest. */
uint64_t run_progress(const run_t *r, const seen_t *seen);
/* 1 when it has ended by now, or within the seconds. */
int run_ended(run_t *r, double seconds);
/* Waits until it gets on beyond `from`. 1; 0: it has ended; or a violation (-1). */
int run_moves(run_t *r, uint64_t from, double seconds, const char *after);
/* `sluice NAME RUN [WORD]`: its exit status, -1 too late; the answer in text. */
int run_command(const run_t *r, const char *name, const char *word, double seconds, char *text,
                size_t bytes);
/* A process of the name ("loader-1", "scribe", "rank-"), by number among those that fit. */
const seen_process_t *seen_find(const seen_t *seen, const char *prefix, uint32_t number);
int seen_count(const seen_t *seen, const char *prefix);
/* Its present process has written the words, on either stream. */
int run_said(const run_t *r, const char *words);
/* Shows the end of what it wrote. */
void run_show(const run_t *r);
/* Nothing of an ended run is left: no process, socket or entry, within WAIT_NOTHING. An entry may
 * wait for the next look where nobody was left alive to remove it (look). 0 or a violation. */
int run_nothing_left(const run_t *r, int look);
/* SIGKILL to all of it, at the end of a soak that failed. */
void run_destroy(run_t *r);

#endif
