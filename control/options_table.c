/* Defaults and ranges: facts/yolo.md 2, except where a row's help or a comment says otherwise. */
#include "control/options_table.h"

#include <limits.h>
#include <string.h>

/* A row a line reads as the table that it is. */
/* clang-format off */
static const option_word_t optimizer_words[] = {
    {"auto", OPT_OPTIM_AUTO}, {"SGD", OPT_OPTIM_SGD}, {"AdamW", OPT_OPTIM_ADAMW}, {NULL, 0}};
static const option_word_t amp_words[] = {
    {"True", OPT_AMP_AUTO}, {"False", OPT_AMP_OFF}, {"bf16", OPT_AMP_BF16}, {"fp16", OPT_AMP_FP16},
    {"auto", OPT_AMP_AUTO}, {"off", OPT_AMP_OFF}, {"1", OPT_AMP_AUTO}, {"yes", OPT_AMP_AUTO},
    {"on", OPT_AMP_AUTO}, {"0", OPT_AMP_OFF}, {"no", OPT_AMP_OFF}, {NULL, 0}};
static const option_word_t io_words[] = {
    {"auto", OPT_IO_AUTO}, {"uring", OPT_IO_URING}, {"threads", OPT_IO_THREADS}, {NULL, 0}};
static const option_word_t cache_words[] = {
    {"none", OPT_CACHE_NONE}, {"False", OPT_CACHE_NONE}, {"0", OPT_CACHE_NONE},
    {"no", OPT_CACHE_NONE}, {"off", OPT_CACHE_NONE}, {NULL, 0}};
static const option_word_t warning_words[] = {
    {"use", OPT_WARN_USE}, {"skip", OPT_WARN_SKIP}, {NULL, 0}};
static const option_word_t mode_words[] = {
    {"train", OPT_MODE_TRAIN}, {"val", OPT_MODE_VAL}, {"predict", OPT_MODE_PREDICT}, {NULL, 0}};
static const option_word_t rect_words[] = {
    {"auto", OPT_RECT_AUTO}, {"True", OPT_RECT_ON}, {"1", OPT_RECT_ON}, {"yes", OPT_RECT_ON},
    {"on", OPT_RECT_ON}, {"False", OPT_RECT_OFF}, {"0", OPT_RECT_OFF}, {"no", OPT_RECT_OFF},
    {"off", OPT_RECT_OFF}, {NULL, 0}};

#define AT(field) offsetof(options_t, field), sizeof(((options_t *)0)->field)
#define TEXT(field, initial, flags, help) \
    {#field, OPT_TYPE_TEXT, flags, AT(field), initial, 0, 0, NULL, help, NULL}
#define INT(field, initial, min, max, flags, help) \
    {#field, OPT_TYPE_INT, flags, AT(field), initial, min, max, NULL, help, NULL}
#define REAL(field, initial, min, max, flags, help) \
    {#field, OPT_TYPE_REAL, flags, AT(field), initial, min, max, NULL, help, NULL}
#define BOOL(field, initial, help) \
    {#field, OPT_TYPE_BOOL, 0, AT(field), initial, 0, 0, NULL, help, NULL}
#define WORD(field, initial, words, help) \
    {#field, OPT_TYPE_WORD, 0, AT(field), initial, 0, 0, words, help, NULL}
#define ABSENT(key, accepted, what) \
    {key, OPT_TYPE_ABSENT, 0, 0, 0, accepted, 0, 0, NULL, what, NULL}
/* A row without a key opens a section. */
#define SECTION(title) \
    {NULL, OPT_TYPE_ABSENT, 0, 0, 0, NULL, 0, 0, NULL, NULL, title}

const option_spec_t options_table[] = {
    SECTION("What is trained, on what"),
    WORD(mode, "train", mode_words, "what the run is for; the command says it"),
    TEXT(model, "yolo11n", 0, "a model's name; .pt or .safetensors; a run's folder; a .yaml table"),
    TEXT(data, "", OPT_NONE_OK, "the data set's data.yaml"),
    TEXT(project, "runs/detect", OPT_NONE_OK, "folder of the runs; a relative one lies in runs/detect"),
    TEXT(name, "train", OPT_NONE_OK, "run folder in it; -2, -3 ... is added to a name in use"),
    TEXT(resume, "", OPT_NONE_OK, "run folder or last.state.safetensors to go on from"),
    BOOL(exist_ok, "False", "use the run folder even if it is there already"),
    BOOL(pretrained, "True", "take the weights of a .pt or .safetensors model, not only its shape"),
    BOOL(save, "True", "write weights and what a resume needs"),
    INT(save_period, "-1", -1, 100000, OPT_NONE_OK, "keep weights of every so many epochs; -1: last and best only"),
    REAL(save_minutes, "10", 0, 100000, 0, "checkpoints within an epoch too, every so many minutes; 0: none"),
    BOOL(val, "True", "validate after every epoch; False: after the last one only"),
    BOOL(single_cls, "False", "treat all classes as one"),
    REAL(fraction, "1.0", 0, 1, OPT_OPEN_LOW, "share of the training images to use, from the front"),

    SECTION("How long"),
    INT(epochs, "100", 1, 100000, 0, "passes over the training images"),
    INT(patience, "100", 0, 100000, 0, "stop after so many epochs without a better mAP; 0: never"),
    INT(close_mosaic, "10", 0, 100000, 0, "last epochs without mosaic and mixup; 0: none"),
    INT(seed, "0", 0, INT_MAX, 0, "of every random draw"),
    BOOL(deterministic, "True", "the same weights for the same seed on one device"),

    SECTION("Size and machine"),
    {"batch", OPT_TYPE_BATCH, 0, 0, 0, "16", 1, 65536, NULL,
     "images of a batch over all devices, or auto; val, predict: on each", NULL},
    INT(imgsz, "640", 32, 16384, 0, "training side in pixels; rounded up to a multiple of 32"),
    INT(workers, "-1", -1, 1024, OPT_NONE_OK, "loader processes; -1: from the machine's CPUs"),
    {"device", OPT_TYPE_DEVICE, OPT_NONE_OK, 0, 0, "auto", 0, 0, NULL,
     "auto (a GPU, else the CPU), all, 0 or 0,1,2,3, cpu, cpu,cpu (two ranks)", NULL},
    WORD(amp, "True", amp_words, "True: bf16 on a GPU (before 8.0 fp16), float32 on a CPU"),
    BOOL(sync_bn, "False", "batch normalisation over the images of all ranks, not of each"),

    SECTION("Optimiser"),
    WORD(optimizer, "auto", optimizer_words, "auto: by the run's length, with lr0 and momentum of its own"),
    REAL(lr0, "0.01", 0, 1, 0, "learning rate at the start"),
    REAL(lrf, "0.01", 0, 1, 0, "learning rate at the end, as a share of lr0"),
    REAL(momentum, "0.937", 0, 1, 0, "SGD's momentum, AdamW's beta1"),
    REAL(weight_decay, "0.0005", 0, 1, 0, "of convolution weights, for a batch of nbs"),
    REAL(warmup_epochs, "3.0", 0, 100000, 0, "epochs of warm-up, may be a fraction"),
    REAL(warmup_momentum, "0.8", 0, 1, 0, "momentum at the start of the warm-up"),
    REAL(warmup_bias_lr, "0.1", 0, 1, 0, "learning rate of biases at the start of the warm-up"),
    BOOL(cos_lr, "False", "cosine instead of linear decay"),
    INT(nbs, "64", 1, 65536, 0, "nominal batch: smaller batches accumulate up to it"),
    REAL(box, "7.5", 0, 1000, 0, "gain of the box loss"),
    REAL(cls, "0.5", 0, 1000, 0, "gain of the class loss"),
    REAL(dfl, "1.5", 0, 1000, 0, "gain of the distribution focal loss"),

    SECTION("Augmentation"),
    REAL(hsv_h, "0.015", 0, 1, 0, "hue, as a share of the circle"),
    REAL(hsv_s, "0.7", 0, 1, 0, "saturation, as a share"),
    REAL(hsv_v, "0.4", 0, 1, 0, "brightness, as a share"),
    REAL(degrees, "0.0", 0, 180, 0, "rotation, up to so many degrees either way"),
    REAL(translate, "0.1", 0, 1, 0, "shift, as a share of the side"),
    REAL(scale, "0.5", 0, 1, 0, "zoom between 1 - scale and 1 + scale"),
    REAL(shear, "0.0", 0, 80, 0, "shear, up to so many degrees either way"),
    REAL(perspective, "0.0", 0, 1, 0, "perspective; 0.001 is much already"),
    REAL(flipud, "0.0", 0, 1, 0, "chance of a flip upside down"),
    REAL(fliplr, "0.5", 0, 1, 0, "chance of a flip left to right"),
    REAL(bgr, "0.0", 0, 1, 0, "chance of red and blue changing places"),
    REAL(mosaic, "1.0", 0, 1, 0, "chance of a mosaic of four images"),
    REAL(mixup, "0.0", 0, 1, 0, "chance of blending two images"),

    SECTION("Validation"),
    REAL(conf, "0.001", 0, 1, OPT_NONE_OK, "least confidence of a detection; of predict 0.25 unless set"),
    REAL(iou, "0.7", 0, 1, 0, "overlap above which the weaker detection is suppressed"),
    INT(max_det, "300", 1, 30000, 0, "most detections an image"),
    BOOL(agnostic_nms, "False", "suppress across classes"),
    WORD(rect, "auto", rect_words, "val: batches as their images are shaped (auto, True) or square"),
    BOOL(save_json, "False", "val (in COCO form), predict: detections as predictions.json"),

    SECTION("Prediction"),
    TEXT(source, "", OPT_NONE_OK, "predict: an image, a folder or a .txt list of images"),
    INT(tile, "0", 0, 16384, OPT_NONE_OK, "predict: large images in tiles of so many of their pixels; 0: whole"),
    REAL(overlap, "0.2", 0, 0.9, 0, "predict: of neighbouring tiles, as a share of their side"),
    BOOL(save_txt, "False", "predict: a text file an image, class, box and confidence a line"),

    SECTION("Data plane"),
    INT(ring_depth, "4", 2, 64, 0, "batches kept ready for each device"),
    INT(inflight, "4", 1, 16, 0, "images a loader has under way at once"),
    INT(mosaic_window, "0", 0, INT_MAX, OPT_NONE_OK, "positions that mosaic partners come from; 0: up to 1000"),
    WORD(io, "auto", io_words, "how files are read; auto: io_uring where allowed"),
    WORD(cache, "none", cache_words, "copies of the data set; none in this version"),
    WORD(on_warning, "use", warning_words, "an image that decodes with a warning is used or left out"),
    REAL(max_pixels, "256", 0, 4096, OPT_OPEN_LOW, "megapixels; an image that claims more is left out"),
    INT(max_scans, "100", 1, 100000, 0, "scans of a progressive JPEG; one with more is left out"),
    INT(max_decode_mb, "1024", 16, 1000000, 0, "megabytes that decoding an image may take; one with more is left out"),
    INT(max_labels, "20000", 1, 131072, 0, "objects of an image; one with more is left out"),
    BOOL(digest, "False", "compute each image's digest during training too"),

    SECTION("Supervision"),
    REAL(hang_timeout, "30", 1, 86400, 0, "seconds without progress before a hang is acted on"),
    REAL(init_timeout, "120", 1, 86400, 0, "seconds for each stage in which several GPUs find together"),
    REAL(stop_deadline, "25", 1, 86400, 0, "seconds that a stop may take to checkpoint and leave"),

    SECTION("Known from elsewhere, not in this version: only the value that leaves them off is taken"),
    ABSENT("multi_scale", "0.0 False none", "training at changing sizes"),
    ABSENT("cutmix", "0.0 False none", "CutMix"),
    ABSENT("copy_paste", "0.0 False none", "copy-paste"),
    ABSENT("copy_paste_mode", "flip none", "copy-paste"),
    ABSENT("auto_augment", "none False randaugment", "augmentation for classification"),
    ABSENT("erasing", "0.0 0.4 none", "augmentation for classification"),
    ABSENT("augmentations", "none", "custom augmentation"),
    ABSENT("time", "none 0 False", "limit in hours"),
    ABSENT("freeze", "none 0 False", "frozen layers"),
    ABSENT("cls_pw", "0.0 none", "class weighting"),
    ABSENT("cls_remap", "True 1 yes on none", "classes by number where the weights have names"),
    ABSENT("dropout", "0.0 none", "dropout"),
    ABSENT("half", "False 0 no off none", "half-precision validation (amp= is there)"),
    ABSENT("int8", "False 0 no off none", "quantisation"),
    ABSENT("compile", "False 0 no off none", "graph compilation"),
    ABSENT("profile", "False 0 no off none", "profiling of exported models"),
    ABSENT("plots", "False 0 no off none", "pictures of the run"),
    ABSENT("augment", "False 0 no off none", "test-time augmentation"),
    ABSENT("split", "val none", "other validation split"),
    ABSENT("task", "detect none", "other task than detection"),
    ABSENT("verbose", "True 1 yes on none", "quieter output"),
    ABSENT("overlap_mask", "True False none", "segmentation"),
    ABSENT("mask_ratio", "4 none", "segmentation"),
    ABSENT("classes", "none", "selection of classes"),
};
/* clang-format on */

const int options_table_rows = (int)(sizeof options_table / sizeof options_table[0]);

_Static_assert(sizeof options_table / sizeof options_table[0] <= 256,
               "options_t.set_mask has 256 bits");

const option_spec_t *options_find(const char *key)
{
    for (int i = 0; i < options_table_rows; i++)
        if (options_table[i].key && strcmp(options_table[i].key, key) == 0)
            return &options_table[i];
    return NULL;
}
