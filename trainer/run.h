/* The life of a trainer process: start, device, model, memory, weights, the run, leaving (design
 * 1).
 */
#ifndef SLUICE_TRAINER_RUN_H
#define SLUICE_TRAINER_RUN_H

/* Runs to the end and says goodbye to the coordinator. 0, or the code whose exit status main
 * returns; err_text says why. */
int trainer_run(int argc, char **argv);

#endif
