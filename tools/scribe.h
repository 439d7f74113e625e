/* What the scribe does with each message: files of the run directory (design 1 and 9).
 *
 * One scribe per process, one thread. It works through its messages in order; nobody waits for it
 * but a snapshot's slot. A disk that fails is told once a file and again when it works: training
 * goes on.
 */
#ifndef SLUICE_TOOLS_SCRIBE_H
#define SLUICE_TOOLS_SCRIBE_H

#include "control/options.h"
#include "control/wire.h"
#include "shm/board.h"
#include "tools/partfile.h"
#include "tools/rundir.h"

enum { SCRIBE_YAML_MOST = 1 << 18 };

typedef struct {
    rundir_t dir;
    int events, csv;       /* growing files */
    uint64_t lost;         /* lines that could not be written since that was said to be over */
    uint64_t mended_ns;    /* when that was */
    int snapshot_fd;       /* memfd; -1: none */
    int list_fd;           /* memfd of the sample list; -1: none */
    int has_list;          /* the run directory has the sample list that this run goes on with */
    board_page_t *page;    /* NULL in tests */
    wire_ledger_t *ledger; /* owned; of the run to resume, wire_run_info_t.ledger entries */
    int begun;             /* args.yaml is there: the run has begun */
    int resumed;
    int trains; /* 0: `sluice val` and `sluice predict`, which leave a training's files alone */
    partfiles_t parts;
} scribe_t;

/* Makes (or for options->resume opens) and locks the run directory, removes what was left
 * half-written, opens the growing files. *info is what the coordinator is told; *yaml, the caller's
 * to free, is a resumed run's args.yaml, else NULL. */
int scribe_open(scribe_t *s, const options_t *options, wire_run_info_t *info, char **yaml,
                size_t *yaml_bytes);
/* Closes everything; the directory of a run that never began goes. */
void scribe_close(scribe_t *s);

/* One JSON line for events.jsonl, one row for results.csv (header of facts/yolo.md 6.7 when new),
 * lines of a process's log: without a newline at the end, or with. */
int scribe_event(scribe_t *s, const char *line, size_t bytes);
int scribe_csv(scribe_t *s, const char *row, size_t bytes);
int scribe_log(scribe_t *s, const char *process, const char *lines, size_t bytes);
int scribe_args(scribe_t *s, const char *yaml, size_t bytes);
/* Keeps the sample list for a resume, unless it is one that came from there. What cannot be kept is
 * told, and training goes on. */
void scribe_list(scribe_t *s);
/* Writes a snapshot image; *saved is the answer to send, whatever the outcome. */
void scribe_snapshot(scribe_t *s, const wire_snapshot_t *image, wire_saved_t *saved);

#endif
