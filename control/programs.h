/* Which trainer a process runs, of the two that may lie in a folder of programs.
 *
 * `sluice-trainer` links no CUDA library: ranks on a CPU need neither the time nor the address space
 * that those cost, and start where they are not to be had. `sluice-trainer-cuda`, the same program with
 * kernels/cuda and its libraries, is there when the build has found CUDA; it computes on GPUs, looks for
 * them, and may find that a library is missing. Any thread.
 */
#ifndef SLUICE_CONTROL_PROGRAMS_H
#define SLUICE_CONTROL_PROGRAMS_H

#include "control/supervise.h"

#include <stddef.h>

/* Its path. `gpu`: it is to use GPUs, or to look for them; where the folder has no sluice-trainer-cuda
 * the other one is taken, which answers that it has no CUDA. */
void programs_trainer(const char *bin_dir, int gpu, char *path, size_t bytes);
/* 1 when a child has ended before its program began: exec was refused, or the loader of libraries did
 * not find or could not map one. Our programs have no such exit status. */
int programs_unloaded(const supervise_child_t *child);

#endif
