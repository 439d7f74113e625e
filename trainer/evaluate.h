/* `sluice val` and `sluice predict` on a trainer: batches of a plan that has a validation only, and no
 * training state.
 *
 * Ranks work through their own batches without waiting for each other. A validation matches, counts and
 * gathers on rank 0, which tells the coordinator (WIRE_MEASURED); detections go to the coordinator image
 * by image where somebody wants them (WIRE_FOUND), in the file's own pixels, a bounded number of messages
 * ahead of it. The model has the file's classes, the labels the data set's: they meet by name.
 */
#ifndef SLUICE_TRAINER_EVALUATE_H
#define SLUICE_TRAINER_EVALUATE_H

#include "trainer/modelfile.h"
#include "trainer/trainer.h"

/* Which of the data set's classes each of the file's is, by name (exactly, else without regard to case);
 * straight where the file has no names and as many. ERR_CONFIG names the classes that the file does not
 * know. Sets class_of and n_classes. */
int evaluate_classes(trainer_t *t, const modelfile_t *file);
/* All batches, and what follows them. */
int evaluate_run(trainer_t *t);
/* The coordinator has taken one message of detections. */
void evaluate_taken(trainer_t *t);

/* A detection in network pixels as one of the file: the letterbox taken off, cut at the part's border.
 * Pure; for tests too. */
void evaluate_place(const k_det_t *det, const batch_place_t *place, const part_t *part,
                    wire_box_t *box);

#endif
