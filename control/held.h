/* Processes that were killed and do not end, because the kernel holds them: what /proc shows of
 * them, and what follows (design 3, "Death and fencing").
 *
 * After SIGKILL a thread that is in the kernel never runs another instruction of ours. So a loader
 * all of whose threads are seen in an uninterruptible wait, or gone, in two looks is as good as
 * dead: its cells can be filled by others. Both functions are pure but for the files they read.
 */
#ifndef SLUICE_CONTROL_HELD_H
#define SLUICE_CONTROL_HELD_H

#include <stdint.h>
#include <sys/types.h>

enum { HELD_LOOKS = 2, HELD_MOST = 8 /* loaders that the kernel may hold before a run ends */ };

/* What /proc says of a process's threads. */
typedef struct {
    uint32_t threads, waiting, gone; /* waiting: uninterruptibly (D); gone: Z or X */
    char where[64]; /* the kernel function that the first of these waits in, or "" */
} held_state_t;

/* 0 read; 1 there is no such process; -1 /proc does not tell. root is "" for the live system. */
int held_look(const char *root, pid_t pid, held_state_t *state);
/* 1 when no thread of a killed process can run again before it ends. */
int held_inert(const held_state_t *state);

typedef enum {
    HELD_WAIT = 0, /* nothing new */
    HELD_SAY,      /* say that it does not end; its cells are still its own */
    HELD_RETURN,   /* a loader: its cells go to others, a new one takes its place */
    HELD_LEAVE,    /* the run is ending: it is named and left to the kernel */
    HELD_FAIL,     /* too many are held: the storage is gone */
} held_action_t;

typedef struct {
    int loader, leaving;
    int told;       /* HELD_SAY has been done */
    uint32_t inert; /* looks in a row that found it inert, this one included */
    uint32_t held;  /* loaders of this run that were left to the kernel before */
} held_case_t;

/* For a process that was killed more than its deadline ago and has not ended. */
held_action_t held_decide(const held_case_t *h);

#endif
