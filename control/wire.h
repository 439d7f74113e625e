/* The messages of the control plane (design 6): one ZeroMQ frame each, a header and a fixed body.
 *
 * Little-endian, fixed-width, no pointers; sizes are asserted in wire.c. wire_check refuses a frame
 * whose magic, version, type or length is not exactly right: it is logged and dropped, never
 * trusted. Text fields are NUL-terminated within their size after wire_check. Variable text follows
 * the fixed body in the few types that say so. Any process.
 */
#ifndef SLUICE_CONTROL_WIRE_H
#define SLUICE_CONTROL_WIRE_H

#include "control/plan.h"
#include "control/stream.h"

#include <stddef.h>
#include <stdint.h>

enum { WIRE_MAGIC = 0x31434c53 /* "SLC1" */, WIRE_VERSION = 3 };
enum { WIRE_MAX_BYTES = 1 << 20, WIRE_TOKEN = 33, WIRE_TEXT = 512, WIRE_RANKS = 64 };

typedef enum {
    WIRE_HELLO = 1, /* worker -> coordinator */
    WIRE_WELCOME,   /* coordinator -> worker; args.yaml text follows */
    WIRE_EPOCH,     /* coordinator -> workers, ahead of time */
    WIRE_EPOCH_ACK, /* worker -> coordinator */
    WIRE_READY,     /* trainer -> coordinator: model built, memory held, first batch awaited;
                       rank 0: a line for the terminal may follow */
    WIRE_PROGRESS,  /* trainer -> coordinator -> watchers, a few a second at most */
    WIRE_EPOCH_END, /* rank 0 -> coordinator -> watchers: losses and metrics of an epoch (-> scribe:
                       csv row) */
    WIRE_SNAPSHOT,  /* rank 0 -> coordinator -> scribe: a file image is complete in snapshot memory
                     */
    WIRE_SAVED,     /* scribe -> coordinator -> rank 0: written or not; the image's slot is free */
    WIRE_BAD_SAMPLE, /* loader -> coordinator */
    WIRE_LEDGER,     /* coordinator -> loaders and rank 0: a substitution; scribe -> coordinator,
                        before WIRE_RUN_INFO: one of the run to resume */
    WIRE_EVENT,      /* anyone -> coordinator -> scribe and watchers: one JSON line for events.jsonl
                        follows */
    WIRE_STOP,       /* coordinator -> workers */
    WIRE_BYE,        /* worker -> coordinator: leaving in good order, or why not */
    WIRE_COMMAND,    /* sluice status / stop / scale -> coordinator */
    WIRE_REPLY,      /* coordinator -> command; text or JSON follows */
    WIRE_CSV,        /* coordinator -> scribe: one results.csv row follows */
    WIRE_RUN_INFO, /* scribe -> coordinator: the run directory is made and locked; args.yaml follows
                    */
    WIRE_ARGS,     /* coordinator -> scribe: the resolved configuration for args.yaml follows */
    WIRE_LOG,      /* coordinator -> scribe: lines of a process's stderr follow */
    WIRE_END,      /* coordinator -> watchers: the run is over */
    WIRE_CHECKPOINT, /* coordinator -> rank 0: write one now; rank 0 -> coordinator: done, or not */
    WIRE_WARNED,     /* loader -> coordinator: an image is used although its decoder warned */
    WIRE_FOUND,      /* trainer -> coordinator: detections of a cell; wire_box_t rows follow.
                        coordinator -> trainer, without rows: one taken, the next may come */
    WIRE_MEASURED,   /* rank 0 -> coordinator: rows of a validation's result follow */
    WIRE_PART,       /* coordinator -> scribe: bytes of a file of the run directory follow */
    WIRE_TYPES
} wire_type_t;

typedef struct {
    uint32_t magic;
    uint16_t version, type; /* wire_type_t */
    uint32_t bytes;         /* of the whole frame */
    uint32_t number;        /* of a published frame, counted on from 1; 0 in all others */
} wire_header_t;

typedef struct {
    wire_header_t head;
    uint32_t kind; /* board_kind_t */
    uint32_t index, incarnation, pid;
    char token[WIRE_TOKEN], build[63];
} wire_hello_t;

/* Descriptor numbers are those inherited through exec; -1 where the process has none. */
typedef struct {
    wire_header_t head;
    plan_t plan;
    uint64_t list_digest;
    int32_t board_fd, catalog_fd, collective_fd, snapshot_fd;
    int32_t ring_fd[WIRE_RANKS]; /* a trainer: only its own is >= 0 */
    uint32_t board_page;         /* this process's page */
    uint32_t threads;            /* this process's share of the CPU quota */
    uint32_t workers;            /* loaders of the run */
    uint32_t devices;            /* as ranks */
    int32_t device;              /* a trainer's: DEVICE_CPU or CUDA ordinal */
    char run_dir[4096];          /* absolute; "" for digest */
    uint32_t yaml_bytes;         /* args.yaml text behind this struct */
    uint32_t format;             /* a trainer's: gpu_format_t of its activations (gpus.h) */
} wire_welcome_t;

typedef struct {
    wire_header_t head;
    uint32_t epoch, mosaic, imgsz, ranks, batch, train_steps, val_steps, pad;
    uint64_t seed, list_digest, agreement; /* wire_agreement of the fields above */
} wire_epoch_t;

typedef struct {
    wire_header_t head;
    uint32_t epoch, pad;
    uint64_t agreement; /* computed by the worker from its own plan and catalog */
} wire_epoch_ack_t;

typedef struct {
    wire_header_t head;
    uint32_t rank, phase; /* plan_phase_t */
    uint32_t epoch, step, steps, instances;
    float items[3]; /* box, cls, dfl: running means of the epoch */
    float lr[3];
    double images_per_s, wait_share; /* share of the time waited for data */
    uint64_t memory_bytes;
} wire_progress_t;

typedef struct {
    wire_header_t head;
    uint32_t epoch, validated;
    float train_items[3], val_items[3], lr[3];
    float precision, recall, map50, map;
    double seconds; /* since training start */
    float fitness, best_fitness;
    uint32_t is_best, early_stop, images, instances;
    stream_digest_t stream; /* of all ranks; count 0 where the run does not ask for digests */
} wire_epoch_end_t;

/* What a resume needs, and the last file of a checkpoint: with it the checkpoint is there. */
#define WIRE_STATE_PATH "weights/last.state.safetensors"

/* A file image in snapshot memory: the scribe writes it under run_dir, whole or not at all. */
typedef struct {
    wire_header_t head;
    uint32_t epoch, slot;
    uint32_t number, pad; /* of the snapshot, counted from 1: its files have the same */
    uint64_t offset, length, checksum;
    char path[256];    /* relative to the run directory: "weights/last.safetensors" */
    char copy_to[256]; /* the same bytes under another name too ("weights/best.safetensors"), or ""
                        */
} wire_snapshot_t;

typedef struct {
    wire_header_t head;
    uint32_t epoch, slot;
    int32_t status;  /* 0 or a negative ERR_ */
    uint32_t number; /* of the snapshot */
    char path[256], text[WIRE_TEXT];
} wire_saved_t;

typedef struct {
    wire_header_t head;
    uint32_t split, sample; /* catalog */
    uint32_t phase, epoch;
    uint64_t position; /* of the cell that met it */
    uint32_t loader;
    /* Where reading failed: other images of the split that were then tried at random, and how many
     * of them could not be read either. 0 of 0: none was tried. */
    uint16_t probed, unread;
    char reason[WIRE_TEXT];
} wire_bad_sample_t;

typedef struct {
    wire_header_t head;
    uint32_t split, sample; /* catalog */
    uint32_t warnings, pad; /* that decoding it gave */
    char text[WIRE_TEXT];   /* the first of them */
} wire_warned_t;

/* Ledger entry: `sample` of `split` is read as `substitute`, in the cell at (from_epoch,
 * from_position) alone where `only` is 1, else there and in all cells behind. */
typedef struct {
    wire_header_t head;
    uint32_t split, sample, substitute, number; /* number: 1, 2, ... */
    uint32_t from_epoch, only;
    uint64_t from_position;
} wire_ledger_t;

/* A checkpoint that somebody asked for (`sluice checkpoint`), and what became of it. */
typedef struct {
    wire_header_t head;
    uint32_t number;      /* of the request; an answer is for all requests up to it */
    int32_t status;       /* answer: 0 or a negative ERR_ */
    char text[WIRE_TEXT]; /* answer: what was written, or why not */
} wire_checkpoint_t;

typedef enum {
    WIRE_STOP_DONE = 0,
    WIRE_STOP_USER, /* finish the step, checkpoint, leave */
    WIRE_STOP_ERROR,
    WIRE_STOP_NO_DATA, /* as USER, and a batch that is not ready does not come any more */
} wire_stop_why_t;
typedef struct {
    wire_header_t head;
    uint32_t why; /* wire_stop_why_t */
    uint32_t deadline_ms;
} wire_stop_t;

typedef struct {
    wire_header_t head;
    uint32_t kind, index, incarnation;
    int32_t status; /* 0 or a negative ERR_ */
    char text[WIRE_TEXT];
} wire_bye_t;

/* STOP's argument 1: at once, without a checkpoint. BRIEF is answered by one flat JSON object.
 * FOLLOW is answered by an empty WIRE_REPLY to the watchers: who hears it misses nothing from then
 * on. */
typedef enum {
    WIRE_CMD_STATUS = 1,
    WIRE_CMD_STOP,
    WIRE_CMD_SCALE,
    WIRE_CMD_CHECKPOINT,
    WIRE_CMD_FOLLOW,
    WIRE_CMD_BRIEF
} wire_cmd_t;
typedef struct {
    wire_header_t head;
    uint32_t command, argument;
    char token[WIRE_TOKEN], pad[31];
} wire_command_t;

/* What the scribe found or made; a resume's args.yaml text follows. */
typedef struct {
    wire_header_t head;
    uint32_t resumed;    /* 1: the run directory held a run to go on with */
    uint32_t next_epoch; /* resumed: first epoch that is not done */
    uint32_t finished;   /* resumed: nothing is left to do */
    uint32_t ledger;     /* resumed: WIRE_LEDGER frames that came before this one */
    uint64_t free_bytes; /* of the run directory's file system */
    /* resumed: the state, as it was written */
    uint64_t position;                       /* samples of next_epoch that are consumed */
    uint64_t list_digest;                    /* of the sample list */
    uint32_t ranks, batch, threads, pending; /* pending: batches since the last optimiser step */
    char run_dir[4096];                      /* absolute */
} wire_run_info_t;

typedef struct {
    wire_header_t head;
    char process[48]; /* "loader-3": the file is logs/loader-3.log */
} wire_log_t;

typedef struct {
    wire_header_t head;
    uint32_t exit, epochs_done; /* the run's exit status; epochs in this process's life */
    char text[WIRE_TEXT];       /* why, where it is not 0 */
} wire_end_t;

/* The answer to a command; text follows. */
typedef struct {
    wire_header_t head;
    int32_t status; /* 0, or the negative ERR_ that the command ends with: the text says why */
    uint32_t pad;
} wire_reply_t;

/* A detection, in the sample's upright file pixels. */
typedef struct {
    float x1, y1, x2, y2, score;
    uint32_t cls; /* of the data set in a validation, of the model in a prediction */
} wire_box_t;

typedef struct {
    wire_header_t head;
    uint32_t position; /* of the cell in the order of validation */
    uint32_t count;    /* rows that follow */
    uint32_t unusable; /* 1: its file could not be used */
    uint32_t pad;
} wire_found_t;

typedef enum {
    WIRE_MEASURED_CLASSES = 0, /* wire_class_t, of all classes together first, then in order */
    WIRE_MEASURED_CONFUSED,    /* wire_confused_t, those that are not 0 */
    WIRE_MEASURED_END,         /* no rows: nothing comes behind it */
} wire_measured_kind_t;

typedef struct {
    uint32_t images, instances; /* images with the class, its boxes */
    double precision, recall, map50, map;
} wire_class_t;

/* The class number behind the last one stands for background. */
typedef struct {
    uint32_t predicted, actual, count;
} wire_confused_t;

typedef struct {
    wire_header_t head;
    uint32_t kind, count; /* rows that follow */
    /* Of all ranks, END only: nanoseconds in the model and behind it, images that they were for. */
    double infer_ns, post_ns, images;
} wire_measured_t;

/* Files grow under no name, or a temporary one; the last part gives them theirs. */
typedef struct {
    wire_header_t head;
    char path[256]; /* relative to the run directory */
    uint32_t last, pad;
} wire_part_t;

/* A header only: WIRE_READY, WIRE_EVENT, WIRE_CSV, WIRE_ARGS; text follows in all but the first. */
typedef struct {
    wire_header_t head;
} wire_plain_t;

/* Fills the header for a frame of `bytes` (fixed body plus text, no NUL needed behind the text). */
void wire_begin(void *frame, wire_type_t type, size_t bytes);
/* Smallest frame of a type, 0 for an unknown type. */
size_t wire_body_bytes(uint32_t type);
/* 0 if the frame can be trusted to have its type's layout; terminates the fixed text fields. */
int wire_check(void *frame, size_t bytes);
/* The variable text behind the fixed body of a checked frame. A frame that bus_receive handed out
 * has a NUL behind it, so there the text is a C string. */
const char *wire_text(const void *frame, size_t *bytes);
const char *wire_type_name(uint32_t type);
/* What the processes of one run must share: version of the program and the layouts in shared
 * memory. */
const char *wire_build(void);
/* The hash of file images in snapshot memory (wire_snapshot_t.checksum), 64 bits, not
 * cryptographic. */
uint64_t wire_checksum(const void *data, uint64_t bytes);
/* Folds one value into a running hash. */
uint64_t wire_mix(uint64_t hash, uint64_t value);
/* What all must agree on for an epoch: a hash of (epoch, seed, list digest, ranks, batch, imgsz,
 * where the plan begins, mosaic). */
uint64_t wire_agreement(const plan_t *plan, uint32_t epoch, uint64_t list_digest);

#endif
