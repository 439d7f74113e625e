/* sluice-trainer --devices: the GPUs of this machine as one line of JSON, for the coordinator and for
 * `sluice devices` (control/gpus.h reads it). A process of its own: it may hang with the driver, and
 * whoever started it kills it then.
 */
#ifndef SLUICE_TRAINER_DEVICES_H
#define SLUICE_TRAINER_DEVICES_H

#include <stddef.h>

/* Why a trainer that kernels/cuda is not linked into finds no GPU. */
extern const char devices_no_cuda[];

/* The program with --devices as its first word; --to FD: answered there, else on standard output. 0
 * also where there is no GPU: the answer has the reason. */
int devices_main(int argc, char **argv);
/* "; pid 4711 (python) holds 30210 MB of it": who holds memory of a CUDA device, for the sentence of a
 * rank that finds too little. Called before that rank opens the device, so that it does not name
 * itself. "" where nobody is known, and on a CPU (ordinal < 0). */
void devices_holders(int ordinal, char *text, size_t bytes);
/* A whole answer to --to's descriptor (standard output where fd < 0). */
int devices_put(int fd, const char *text, size_t bytes);
/* The number behind a word of the command line; `otherwise` where it is not there. */
long devices_number(int argc, char **argv, const char *word, long otherwise);

#endif
