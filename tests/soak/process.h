/* Processes as the soak sees them: starting a command, waiting for its end with a deadline, and
 * finding every process of a run, orphans included, by a mark in their environment (private to
 * tests/soak). One thread. */
#ifndef SLUICE_TESTS_SOAK_PROCESS_H
#define SLUICE_TESTS_SOAK_PROCESS_H

#include <stddef.h>
#include <sys/types.h>

enum { PROCESS_LIST = 128 };

/* Orphans become this process's children, so that none hides behind another parent. */
int process_adopt(void);
/* Starts argv with SLUICE_SOAK=mark in its environment, its standard output in the file and its
 * standard error in the one of that name and ".err", /dev/null as input, in a group of its own; it
 * dies with us. Its pid, or -1. */
pid_t process_start(const char *const argv[], const char *mark, const char *output);
/* 1: it has ended within the seconds, *status as waitpid gives it; 0: not yet. */
int process_wait(pid_t pid, double seconds, int *status);
/* Runs a command to its end; its output (standard error included) in text. Its exit status, -1
 * when it did not end within the seconds or could not be started. */
int process_ask(const char *const argv[], double seconds, char *text, size_t bytes);
/* Live processes with the mark, zombies not counted; at most PROCESS_LIST. */
int process_marked(const char *mark, pid_t *pids);
/* Waits for every child that has ended: the orphans, when no process of ours is awaited. */
void process_reap(void);
/* "sluice-loader", or "" when it has gone. */
void process_name(pid_t pid, char *name, size_t bytes);
/* The letter of /proc/PID/stat: R, S, D, T, Z ...; 0 when it has gone. */
char process_state(pid_t pid);
/* "exit status 5", "signal 9". */
const char *process_how(int status);

#endif
