/* Starting, watching and ending one process (design 1). Used by the coordinator, which is the only
 * parent, and by commands that ask a child.
 *
 * fork + exec from the calling thread, which must be the one that lives as long as the run:
 * PDEATHSIG fires when the forking *thread* ends. The child gets a session of its own (a terminal's
 * Ctrl-C reaches the coordinator alone), SIGKILL at the parent's death, a lifeline pipe whose
 * end-of-file says the same, its standard output and error in one pipe, /dev/null as input, default
 * signals (an ignored SIGHUP stays ignored) and exactly the descriptors that the caller lists. A
 * start that fails is told through a pipe that closes at exec. Nothing here waits.
 */
#ifndef SLUICE_CONTROL_SUPERVISE_H
#define SLUICE_CONTROL_SUPERVISE_H

#include <stddef.h>
#include <sys/types.h>

enum { SUPERVISE_ARGS = 32, SUPERVISE_FDS = 80 };

/* What to start. Strings and arrays are the caller's and only read. */
typedef struct {
    const char *program; /* path */
    const char *const
        *args; /* behind argv[0], NULL-terminated; --parent and --lifeline are added */
    const char *const
        *env;       /* NAME=VALUE, NULL-terminated: added to the environment, or replacing */
    const int *fds; /* inherited under their own numbers */
    int n_fds;
    int without_pidfd; /* tests: as on a kernel that denies pidfds */
} supervise_spec_t;

/* One started process. */
typedef struct {
    pid_t pid;
    int pidfd;    /* readable when it has ended; -1 where pidfds are denied: SIGCHLD then says it */
    int lifeline; /* our end; closing it asks nobody: it is death's sign */
    int errors;   /* its standard output and error, non-blocking */
    int start;    /* what failed before exec, non-blocking */
    int ended;    /* reaped */
    int status;   /* as waitpid gives it, once ended */
} supervise_child_t;

/* Starts it. 0, or ERR_ENV when no process could be made; a failed exec shows at the child's end.
 */
int supervise_spawn(const supervise_spec_t *spec, supervise_child_t *child);
/* 1 if it has ended (reaped now or before), else 0. Never waits. */
int supervise_ended(supervise_child_t *child);
/* How it ended, in words: "exit status 3", "signal 9 (Killed)", "did not start: exec P: No such
 * file". */
void supervise_describe(const supervise_child_t *child, char *text, size_t bytes);
/* SIGKILL, if it has not ended. */
void supervise_kill(const supervise_child_t *child);
/* SIGCONT, if it has not ended: a process that somebody has stopped hears no message. */
void supervise_continue(const supervise_child_t *child);
/* Releases the descriptors of a child that has ended or is given up. */
void supervise_close(supervise_child_t *child);
/* OPENBLAS_CORETYPE=... for the env of a process that uses BLAS, or NULL. Pure. */
const char *supervise_blas(void);

#endif
