/* The sub-commands of `sluice`: one function and one file each (design 10).
 *
 * A command gets its own words: argv[0] is its name ("train"), argv[argc] is NULL. It returns 0, or
 * a negative code of shm/err.h with the error text set: main prints the text and exits with its
 * status. A wrong word on the command line is ERR_CONFIG (exit status 2) with one sentence. `sluice
 * NAME --help` and `sluice help NAME` are answered by cmd_help before the command is called. Main
 * thread only.
 */
#ifndef SLUICE_TOOLS_COMMANDS_H
#define SLUICE_TOOLS_COMMANDS_H

#define SLUICE_VERSION "0.1.0"

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary; /* one line in `sluice help` */
} command_t;

/* In the order that help lists them; ends with a NULL name. */
extern const command_t commands[];
/* The row of a name, or NULL. */
const command_t *command_find(const char *name);

int cmd_train(int argc, char **argv);      /* cmd_train.c: trains a detector to the end of a run */
int cmd_val(int argc, char **argv);        /* cmd_val.c: measures of a trained model */
int cmd_predict(int argc, char **argv);    /* cmd_predict.c: what it finds in images */
int cmd_devices(int argc, char **argv);    /* cmd_devices.c: the GPUs, and who holds their memory */
int cmd_bench(int argc, char **argv);      /* cmd_bench.c: a training step measured */
int cmd_digest(int argc, char **argv);     /* cmd_digest.c: prints the batch stream's digests */
int cmd_status(int argc, char **argv);     /* cmd_status.c: who is in which phase of a run */
int cmd_ps(int argc, char **argv);         /* cmd_ps.c: the live runs */
int cmd_checkpoint(int argc, char **argv); /* cmd_checkpoint.c: one now, and go on */
int cmd_stop(int argc, char **argv);       /* cmd_stop.c: checkpoint and leave */
int cmd_scale(int argc, char **argv);      /* cmd_status.c: more or fewer loaders, live */
int cmd_files(int argc, char **argv);      /* cmd_files.c: files left out, bad, or with a warning */
int cmd_sample(int argc, char **argv);     /* cmd_sample.c: writes a synthetic data set */
int cmd_model(int argc, char **argv);      /* cmd_model.c: prints a model's layers */
int cmd_import(int argc, char **argv);     /* cmd_import.c: other programs' weights as ours */
int cmd_export(int argc, char **argv);     /* cmd_export.c: a model as ONNX */
int cmd_help(int argc, char **argv); /* cmd_help.c: argv[1], if any, names the command to explain */
int cmd_version(int argc, char **argv);

#endif
