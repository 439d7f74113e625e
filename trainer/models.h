/* The model tables that come with the program (trainer/models/NAME.yaml), built into the binary so
 * that it needs no file beside it. Any thread. */
#ifndef SLUICE_TRAINER_MODELS_H
#define SLUICE_TRAINER_MODELS_H

#include <stddef.h>

/* The table's text, not terminated, and its length; NULL for an unknown name ("yolo11", "yolov8").
 */
const char *models_text(const char *name, size_t *bytes);
/* Name i of the tables, NULL beyond the last. */
const char *models_name(int i);

#endif
