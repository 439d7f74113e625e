/* Every option of the command, in one typed table (design 10).
 *
 * The table drives parsing of key=value words and of pipeline.yaml, type and range checks, --help,
 * the documented pipeline.yaml and args.yaml. Later sources win: table default, pipeline.yaml,
 * command line. Who owns: options_t is a plain value; copy it freely. Any process.
 */
#ifndef SLUICE_CONTROL_OPTIONS_H
#define SLUICE_CONTROL_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

enum { OPTIONS_PATH_BYTES = 4096, OPTIONS_NAME_BYTES = 256, OPTIONS_DEVICES = 64 };
/* Room that any dump or document fits into: four paths of escaped bytes and the rest. */
enum { OPTIONS_YAML_BYTES = 1 << 17 };

/* What batch=auto takes of the memory that is free: the rest is for kernels' code, libraries' own
 * memory, and what is not planned. */
#define OPTIONS_BATCH_SHARE 0.85

typedef enum { OPT_CACHE_NONE = 0 } opt_cache_t;
typedef enum { OPT_IO_AUTO = 0, OPT_IO_URING, OPT_IO_THREADS } opt_io_t;
typedef enum { OPT_OPTIM_AUTO = 0, OPT_OPTIM_SGD, OPT_OPTIM_ADAMW } opt_optimizer_t;
typedef enum { OPT_AMP_AUTO = 0, OPT_AMP_OFF, OPT_AMP_BF16, OPT_AMP_FP16 } opt_amp_t;
typedef enum { OPT_WARN_USE = 0, OPT_WARN_SKIP } opt_warning_t;
/* What a run is for; its command sets it. */
typedef enum { OPT_MODE_TRAIN = 0, OPT_MODE_VAL, OPT_MODE_PREDICT } opt_mode_t;
typedef enum { OPT_RECT_AUTO = 0, OPT_RECT_ON, OPT_RECT_OFF } opt_rect_t;

/* AUTO: the GPU with the most free memory, or the CPU where there is none. ALL: every GPU, an error
 * where there is none. options_resolve_devices replaces both. */
enum { DEVICE_CPU = -1, DEVICE_AUTO = -2, DEVICE_ALL = -3 };

typedef struct {
    opt_mode_t mode;
    /* what */
    char model[OPTIONS_PATH_BYTES]; /* yolo11n, yolo11n.yaml, X.pt, X.safetensors */
    char data[OPTIONS_PATH_BYTES];
    char project[OPTIONS_PATH_BYTES];
    char name[OPTIONS_NAME_BYTES];
    char resume[OPTIONS_PATH_BYTES]; /* "": no; a run directory or a last.state.safetensors */
    int exist_ok, pretrained, save, val, single_cls;
    int save_period;     /* epochs, -1 never */
    double save_minutes; /* between checkpoints within an epoch; 0 never */
    double fraction;
    /* how long */
    int epochs, patience, close_mosaic, seed, deterministic;
    /* size and machine */
    int batch, imgsz;                        /* batch is global; 0: auto, until it is chosen */
    double batch_share;                      /* auto: of the memory that is free for it; else 0 */
    int workers;                             /* loaders on this node; -1: from the machine */
    int devices[OPTIONS_DEVICES], n_devices; /* DEVICE_CPU, a CUDA ordinal, or one AUTO or ALL */
    opt_amp_t amp;
    int sync_bn; /* batch normalisation over all ranks */
    /* optimiser (facts/yolo.md 2 and 4) */
    opt_optimizer_t optimizer;
    double lr0, lrf, momentum, weight_decay, warmup_epochs, warmup_momentum, warmup_bias_lr;
    int cos_lr, nbs;
    double box, cls, dfl;
    /* augmentation (facts/yolo.md 2 and 5) */
    double hsv_h, hsv_s, hsv_v, degrees, translate, scale, shear, perspective, flipud, fliplr, bgr,
        mosaic, mixup;
    /* validation (facts/yolo.md 6) */
    double conf, iou;
    int max_det, agnostic_nms;
    opt_rect_t rect; /* `val`: batches in the shape of their images (auto) or square */
    int save_txt, save_json;
    /* prediction */
    char source[OPTIONS_PATH_BYTES]; /* an image, a folder, a .txt list */
    int tile;                        /* side of a tile in the image's pixels; 0: none */
    double overlap;                  /* of neighbouring tiles, as a share of their side */
    /* data plane */
    int ring_depth;    /* slots per trainer */
    int inflight;      /* cells a loader holds while their reads are under way */
    int mosaic_window; /* positions; 0 = min(N, 1000) */
    opt_io_t io;
    opt_cache_t cache;
    opt_warning_t on_warning;
    double max_pixels; /* megapixels; a header that claims more is refused */
    int max_scans;     /* of a progressive JPEG */
    int max_decode_mb; /* 10^6 bytes; an image whose decoding takes more is refused */
    int max_labels;    /* of an image; one with more is left out */
    int digest;        /* fill cell digests during training too */
    /* supervision */
    double hang_timeout;  /* seconds */
    double init_timeout;  /* seconds, of each stage of a start on several GPUs */
    double stop_deadline; /* seconds */
    uint64_t set_mask[4]; /* table rows that a source has set */
} options_t;

typedef struct option_spec option_spec_t; /* one table row, private to options.c */

/* Table defaults. */
void options_default(options_t *o);
/* One key=value word. ERR_CONFIG names the nearest known key, the legal range or the legal values.
 */
int options_set(options_t *o, const char *word);
/* A YAML file of the same keys; origin is named in errors. */
int options_load_yaml(options_t *o, const char *path);
int options_load_yaml_text(options_t *o, const char *text, size_t bytes, const char *origin);
/* Cross checks after all sources: needed keys, batch over devices, imgsz rounded up. What is
 * changed or not used is said in notes, a line each; "" when there is nothing to say. */
int options_check(options_t *o, char *notes, size_t notes_bytes);
/* The part of it that is for a resume, whose other options are not known yet. */
int options_check_resume(const options_t *o);
/* Replaces DEVICE_AUTO (by GPU `best`, or the CPU where best is negative) and DEVICE_ALL on a machine
 * with so many GPUs (0: none, and `why` says why), and checks ordinals, batch and amp against the
 * devices. ERR_ENV for a device that is not there. */
int options_resolve_devices(options_t *o, int gpus, int best, const char *why);
/* The resolved configuration as YAML text that options_load_yaml_text reads back to the same
 * values. The text's length, or negative when it does not fit into OPTIONS_YAML_BYTES or less. */
int options_dump_yaml(const options_t *o, char *text, size_t bytes);
/* The documented default file, which is pipeline.yaml to the byte (a test holds it). Returns as
 * dump. */
int options_document_yaml(char *text, size_t bytes);
/* --help: sections, keys, defaults, ranges, one line each, without a newline, to a callback. */
void options_help(void (*line)(void *, const char *), void *user);
/* 1 if the command line gave the key, or YAML gave it another value than the one before: the keys
 * that pipeline.yaml only repeats are not set. */
int options_was_set(const options_t *o, const char *key);

#endif
