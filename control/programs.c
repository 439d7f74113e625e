#include "control/programs.h"

#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* ld.so's status, and that of supervise.c's child whose exec fails. */
enum { PROGRAMS_UNLOADED = 127 };

void programs_trainer(const char *bin_dir, int gpu, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/sluice-trainer-cuda", bin_dir);
    /* One that is there and cannot be run says so when it is started. */
    if (!gpu || (access(path, F_OK) != 0 && errno == ENOENT))
        snprintf(path, bytes, "%s/sluice-trainer", bin_dir);
}

int programs_unloaded(const supervise_child_t *child)
{
    return child->ended && WIFEXITED(child->status) &&
           WEXITSTATUS(child->status) == PROGRAMS_UNLOADED;
}
