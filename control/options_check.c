/* What no single row can check: keys that need each other, and the devices that this machine has.
 */
#include "control/options.h"

#include "shm/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct {
    char *text;
    size_t room;
} notes_t;

__attribute__((format(printf, 2, 3))) static void note(notes_t *notes, const char *fmt, ...)
{
    if (!notes->text || notes->room == 0)
        return;
    size_t used = strlen(notes->text);
    if (used > 0 && used + 1 < notes->room) {
        notes->text[used++] = '\n';
        notes->text[used] = '\0';
    }
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(notes->text + used, notes->room - used, fmt, ap);
    va_end(ap);
}

int options_check_resume(const options_t *o)
{
    if (strcasecmp(o->resume, "true") == 0 || strcmp(o->resume, "1") == 0)
        return err_set(ERR_CONFIG,
                       "resume=%s: name the run folder to go on from, as in "
                       "resume=runs/detect/train",
                       o->resume);
    return 0;
}

static int check_names(const options_t *o)
{
    if (o->mode == OPT_MODE_PREDICT && o->source[0] == '\0')
        return err_set(ERR_CONFIG,
                       "source= is missing: give an image, a folder or a .txt list of images");
    if (o->mode != OPT_MODE_PREDICT && o->data[0] == '\0' && o->resume[0] == '\0')
        return err_set(ERR_CONFIG, "data= is missing: give the path of the data set's data.yaml");
    if (o->model[0] == '\0')
        return err_set(ERR_CONFIG, "model= is empty: give a name such as yolo11n");
    if (o->project[0] == '\0')
        return err_set(ERR_CONFIG, "project= is empty: give the folder of the runs");
    if (o->name[0] == '\0' || strchr(o->name, '/') || strcmp(o->name, ".") == 0 ||
        strcmp(o->name, "..") == 0)
        return err_set(ERR_CONFIG,
                       "name=%s: one folder name is needed; project= holds the path before it",
                       o->name);
    return options_check_resume(o);
}

static int check_batch(const options_t *o)
{
    int ranks = o->n_devices, rest = o->batch % ranks;
    if (o->batch == 0 && o->mode != OPT_MODE_TRAIN)
        return err_set(ERR_CONFIG, "batch=auto is for `sluice train`: give a number");
    if (rest == 0 || o->mode != OPT_MODE_TRAIN)
        return 0;
    if (o->batch < ranks)
        return err_set(ERR_CONFIG, "batch=%d is too small for %d devices: batch=%d is the least",
                       o->batch, ranks, ranks);
    return err_set(ERR_CONFIG,
                   "batch=%d does not divide over %d devices: batch=%d or batch=%d does", o->batch,
                   ranks, o->batch - rest, o->batch - rest + ranks);
}

static int check_amp(const options_t *o)
{
    if (o->devices[0] == DEVICE_CPU && (o->amp == OPT_AMP_BF16 || o->amp == OPT_AMP_FP16))
        return err_set(ERR_CONFIG,
                       "amp=%s needs a GPU; a CPU computes in full precision: use amp=True "
                       "or amp=False",
                       o->amp == OPT_AMP_BF16 ? "bf16" : "fp16");
    return 0;
}

/* Options of one mode that have no meaning in another are refused, not ignored. */
static int check_mode(const options_t *o)
{
    if (o->mode == OPT_MODE_TRAIN && o->rect == OPT_RECT_ON)
        return err_set(ERR_CONFIG, "rect=True: this version has no rectangular training batches; "
                                   "leave rect out or set rect=False");
    if (o->mode != OPT_MODE_PREDICT && (o->source[0] || o->tile || o->save_txt))
        return err_set(ERR_CONFIG, "%s= is for `sluice predict`",
                       o->source[0] ? "source"
                       : o->tile    ? "tile"
                                    : "save_txt");
    if (o->mode == OPT_MODE_TRAIN && o->save_json)
        return err_set(ERR_CONFIG, "save_json=True is for `sluice val` and `sluice predict`");
    if (o->mode != OPT_MODE_TRAIN && o->resume[0])
        return err_set(ERR_CONFIG, "resume= goes on with a training; there is none here");
    if (o->tile > 0 && o->tile < 32)
        return err_set(ERR_CONFIG, "tile=%d: 32 pixels are the least", o->tile);
    if (o->mode == OPT_MODE_PREDICT && o->tile == 0 && options_was_set(o, "overlap"))
        return err_set(ERR_CONFIG, "overlap= is of tiles: it needs tile=");
    return 0;
}

int options_check(options_t *o, char *text, size_t bytes)
{
    notes_t notes = {text, bytes};
    int rc;
    if (text && bytes > 0)
        text[0] = '\0';
    if ((rc = check_mode(o)) < 0 || (rc = check_names(o)) < 0 || (rc = check_batch(o)) < 0 ||
        (rc = check_amp(o)) < 0)
        return rc;
    if (o->workers == 0)
        return err_set(ERR_CONFIG,
                       "workers=0: loading is done by processes of its own; give 1 or more, or "
                       "-1 for the machine's share");
    if (o->imgsz % 32 != 0) {
        int up = (o->imgsz + 31) / 32 * 32;
        note(&notes, "imgsz=%d is rounded up to %d, a multiple of 32", o->imgsz, up);
        o->imgsz = up;
    }
    if (o->mode != OPT_MODE_TRAIN)
        return 0;
    if (o->optimizer == OPT_OPTIM_AUTO) {
        static const char *const unused[] = {"lr0", "momentum", "warmup_bias_lr"};
        for (int i = 0; i < 3; i++)
            if (options_was_set(o, unused[i]))
                note(&notes,
                     "%s is not used: optimizer=auto chooses its own; name SGD or AdamW to use it",
                     unused[i]);
    }
    if (o->close_mosaic > o->epochs && o->mosaic + o->mixup > 0)
        note(&notes,
             "close_mosaic=%d is more than epochs=%d: mosaic stays on to the end (use "
             "close_mosaic=%d to train without it from the start)",
             o->close_mosaic, o->epochs, o->epochs);
    return 0;
}

int options_resolve_devices(options_t *o, int gpus, int best, const char *why)
{
    int kind = o->devices[0], rc;
    if (kind == DEVICE_ALL && gpus <= 0)
        return err_set(ERR_ENV, "device=all: no usable GPU was found (%s); use device=cpu", why);
    if (kind == DEVICE_AUTO) {
        o->devices[0] = best < 0 ? DEVICE_CPU : best;
    } else if (kind == DEVICE_ALL) {
        o->n_devices = gpus > OPTIONS_DEVICES ? OPTIONS_DEVICES : gpus;
        for (int i = 0; i < o->n_devices; i++)
            o->devices[i] = i;
    }
    for (int i = 0; i < o->n_devices; i++) {
        if (o->devices[i] < gpus)
            continue;
        if (gpus <= 0)
            return err_set(ERR_ENV, "device=%d: no usable GPU was found (%s); use device=cpu",
                           o->devices[i], why);
        if (gpus == 1)
            return err_set(ERR_ENV, "device=%d: this machine has one GPU, device=0", o->devices[i]);
        return err_set(ERR_ENV, "device=%d: this machine's GPUs are 0 to %d", o->devices[i],
                       gpus - 1);
    }
    if ((rc = check_batch(o)) < 0)
        return rc;
    return check_amp(o);
}
