/* `sluice help`, `sluice help NAME`, `sluice version`: what is printed comes from the tables. */
#include "tools/commands.h"

#include "control/options.h"
#include "shm/err.h"

#include <stdio.h>
#include <string.h>

const command_t commands[] = {
    {"train", cmd_train, "train a detector: from image files to weights with a measured mAP"},
    {"val", cmd_val, "measure a trained model on a data set: P, R, mAP of each class"},
    {"predict", cmd_predict, "find objects in images with a trained model, and draw them"},
    {"status", cmd_status, "show what every process of a run is doing"},
    {"ps", cmd_ps, "list the runs that are alive"},
    {"checkpoint", cmd_checkpoint, "write what a resume needs now, and go on"},
    {"stop", cmd_stop, "end a run after a checkpoint"},
    {"scale", cmd_scale, "give a run more or fewer loaders while it works"},
    {"files", cmd_files, "list a run's files that were left out, bad, or decode with a warning"},
    {"devices", cmd_devices, "list the GPUs, what is free on them, and who holds the rest"},
    {"bench", cmd_bench, "measure a training step on a device, with its dearest operations"},
    {"digest", cmd_digest, "run the loaders alone and print the digests of what they make"},
    {"sample", cmd_sample, "write a synthetic inspection data set to try things on"},
    {"model", cmd_model, "print a model's layers, shapes, parameters and GFLOPs"},
    {"import", cmd_import, "write a PyTorch file's weights (.pt) as a file of this program"},
    {"export", cmd_export, "write a model as an ONNX file, for other programs to run"},
    {"help", cmd_help, "explain a command"},
    {"version", cmd_version, "print the version"},
    {NULL, NULL, NULL},
};

const command_t *command_find(const char *name)
{
    for (const command_t *c = commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static void print_line(void *user, const char *line)
{
    (void)user;
    puts(line);
}

static void help_train(void)
{
    puts("sluice train data=FILE [key=value ...]\n"
         "\n"
         "Trains a detector. Options come from cfg=FILE (else ./pipeline.yaml, where there is "
         "one), then\n"
         "from the command line, which wins. Ctrl-C finishes the step, writes a checkpoint and "
         "leaves.\n"
         "\n"
         "  sluice train data=defects.yaml model=yolo11m epochs=200 imgsz=1024 batch=16 "
         "workers=6\n"
         "\n"
         "Exit status: 0 done, 1 the run failed, 2 usage or configuration, 3 the data set cannot "
         "be used,\n"
         "4 the machine cannot be used (memory, permissions, devices), 5 stopped by the user after "
         "a\n"
         "checkpoint.");
    options_help(print_line, NULL);
}

static void help_val(void)
{
    puts("sluice val model=FILE data=FILE [key=value ...]\n"
         "\n"
         "Measures a trained model on the images of `val` in the data set: precision, recall, "
         "mAP50 and\n"
         "mAP50-95 of all classes and of each, the confusion matrix (conf 0.25, IoU 0.45), time an "
         "image.\n"
         "model= is a run's folder, a .safetensors or a .pt file; its classes and the data set's "
         "meet by\n"
         "name. Results go to runs/detect/val: results.json, confusion_matrix.csv, and with "
         "save_json=True\n"
         "(also coco=True, --coco) predictions.json in COCO form: class numbers from 1, boxes x y "
         "w h in\n"
         "pixels of the file.\n"
         "\n"
         "imgsz is what the file says it was trained at, batch (on each device) 32: twice train's, "
         "so that\n"
         "the numbers are those of the training's own validation. rect=False makes squares. Other "
         "options:\n"
         "conf, iou, max_det, agnostic_nms, single_cls, device, workers, out=FOLDER, project, "
         "name.\n"
         "\n"
         "  sluice val model=runs/detect/train data=defects.yaml\n"
         "\n"
         "Exit status: 0 done, 1 it failed or was stopped, 2 usage or configuration, 3 the data "
         "set cannot\n"
         "be used, 4 the machine cannot be used.");
}

static void help_predict(void)
{
    puts("sluice predict model=FILE source=PATH [key=value ...]\n"
         "\n"
         "Finds objects in an image, the images of a folder, or those that a .txt list names, and "
         "draws\n"
         "them with names and confidence on JPEGs in runs/detect/predict (save=False: none). "
         "save_txt=True\n"
         "writes labels/NAME.txt, a line an object: class, centre x and y, width, height as shares "
         "of the\n"
         "sides, confidence. save_json=True writes predictions.json, corners in pixels. Images of "
         "one name\n"
         "get -2, -3 ... behind it. Images are upright (EXIF); an image that cannot be used is "
         "named and\n"
         "counted, and the others go on.\n"
         "\n"
         "tile=1024 cuts larger images into tiles of so many of their pixels, which have "
         "overlap=0.2 in\n"
         "common at least, and puts the tiles' boxes together. The overlap must be wider than the "
         "largest\n"
         "object. imgsz is then the tile, else what the model was trained at. Other options: conf "
         "(0.25),\n"
         "iou, max_det (of a tile), agnostic_nms, batch (on each device, 1), device, workers, "
         "out=FOLDER.\n"
         "\n"
         "  sluice predict model=runs/detect/train source=images/ tile=1024 save_txt=True\n"
         "\n"
         "Exit status: 0 done, 1 it failed or was stopped, 2 usage or configuration, 3 no image "
         "could be\n"
         "used, 4 the machine cannot be used.");
}

static void help_digest(void)
{
    puts("sluice digest data=FILE [--samples] [key=value ...]\n"
         "\n"
         "Runs the loaders without trainers and prints a line `epoch step rank digest` a batch, a "
         "line\n"
         "`epoch N DIGEST` over all training cells of an epoch, and `stream DIGEST` over all "
         "epochs. Lines\n"
         "of validation batches begin with `val`; epochs and steps count from 0. --samples adds a "
         "column of\n"
         "sample numbers, with commas. Neither the epochs' digests nor the stream's depend on "
         "workers= or\n"
         "on how many devices share the batch; a training run with digest=True has the epochs' in "
         "the\n"
         "events `epoch` of its events.jsonl and in `sluice status`, for comparison. The options "
         "are\n"
         "those of train (`sluice help train`); data, imgsz, batch, device, workers, epochs, seed "
         "and the\n"
         "augmentation matter here.\n"
         "\n"
         "  sluice digest data=defects.yaml imgsz=640 batch=16 device=cpu,cpu workers=4 epochs=1");
}

static void help_status(void)
{
    puts(
        "sluice status [RUN] [--follow] [--json]\n"
        "\n"
        "Shows each process of a run: its phase and since when, a loader's images under way and\n"
        "the file that takes it longest, a trainer's step and what it waits for. RUN is a run's\n"
        "folder, as in runs/detect/train, or its name; it may be left out while one run is\n"
        "alive. --json prints the same as one line of JSON.\n"
        "\n"
        "--follow goes on with a line for each change: progress once a second, epochs, events.\n"
        "It ends with the run, with exit status 0 if that was done or stopped after a checkpoint\n"
        "and 1 if not; Ctrl-C ends it alone. The run never waits for it: what it reads too slowly\n"
        "it misses, and says so. With --json each line is one JSON object, and every rank's\n"
        "progress messages are all shown.");
}

static void help_stop(void)
{
    puts("sluice stop [RUN] [--now]\n"
         "\n"
         "As Ctrl-C in its terminal: the run finishes its step, writes a checkpoint and leaves.\n"
         "Asking again changes nothing. --now is the second Ctrl-C: everything ends at once, "
         "without\n"
         "a checkpoint; the last one stays whole. RUN as in `sluice help status`, or a pid.\n"
         "\n"
         "Says what the run answers, then waits for its end, for as long as its stop_deadline (or\n"
         "one of its steps) and 20 s more. Ctrl-C ends the waiting alone.\n"
         "\n"
         "Exit status: 0 the run was done, or ended as asked; 1 there is no such run, it does not\n"
         "answer, it has not ended in time, or it ended without the checkpoint (the sentence says\n"
         "which); 2 a wrong word.");
}

static void help_ps(void)
{
    puts("sluice ps [--json]\n"
         "\n"
         "Lists your runs that are alive on this machine: pid, age, epochs done, state, directory. "
         "A\n"
         "run that does not answer within a second and a half is listed as that. Entries of runs "
         "that\n"
         "were killed are removed, which is said on standard error. --json: one object a line.\n"
         "\n"
         "Exit status: 0, also where no run is alive; 2 a wrong word; 4 the list cannot be read.");
}

static void help_checkpoint(void)
{
    puts("sluice checkpoint [RUN]\n"
         "\n"
         "Writes weights/last.safetensors and what a resume needs after the run's next optimiser "
         "step, as at\n"
         "an epoch's end, and prints when they are on disk, or why they are not. Training goes on. "
         "RUN as in\n"
         "`sluice help status`. save_minutes= does the same by the clock.\n"
         "\n"
         "Exit status: 0 written; 1 not, or not within a minute (the sentence says why); 2 a wrong "
         "word.");
}

static void help_scale(void)
{
    puts(
        "sluice scale [RUN] workers=N\n"
        "\n"
        "Changes the number of loaders of a run while it works, 1 to 1024; the batches stay the "
        "same to\n"
        "the bit. Loaders that are too many give back what they have not finished and leave within "
        "5 s.\n"
        "RUN as in `sluice help status`.\n"
        "\n"
        "Exit status: 0 changed, or as it was; 1 the run is not at work; 4 memory, open files or\n"
        "processes do not suffice, and the number stays (the sentence has the arithmetic); 2 a "
        "wrong "
        "word.");
}

static void help_files(void)
{
    puts("sluice files [RUN] [--json]\n"
         "\n"
         "Lists the images of a run that were left out by the scan, that could not be used in "
         "training\n"
         "although the scan could read them, and that are used although their decoder warned "
         "(see\n"
         "on_warning=), each with the reason; then the remarks of the scan. RUN is a run's folder, "
         "its name\n"
         "in runs/detect, or a live run as in `sluice help status`; runs that are over have theirs "
         "too.\n"
         "--json prints the events themselves, a line each.\n"
         "\n"
         "Exit status: 0 listed; 1 there is no such run, or it has no events; 2 a wrong word.");
}

static void help_devices(void)
{
    puts("sluice devices [--json]\n"
         "\n"
         "Lists the GPUs that a run can name in device=: number, name, bus, compute capability, "
         "memory\n"
         "that is free, and the processes that hold the rest, as far as the driver tells (in a "
         "container\n"
         "it may not). Numbers are CUDA's: CUDA_VISIBLE_DEVICES chooses and orders them. Where "
         "there is no\n"
         "GPU it says why. --json prints what a run reads itself.\n"
         "\n"
         "A process of its own looks; a driver that does not answer within 10 s is named as "
         "that.\n"
         "\n"
         "Exit status: 0 listed; 2 a wrong word; 4 there is no GPU, or it could not look (--json: "
         "0, and why).");
}

static void help_sample(void)
{
    puts("sluice sample out=DIR [images=200] [imgsz=2048] [seed=0]\n"
         "\n"
         "Writes a made-up inspection data set with exact boxes: images/train, images/val, labels/ "
         "and\n"
         "data.yaml in DIR. The same arguments write the same bytes. One image in five is for "
         "validation.\n"
         "DIR must be new, empty, or an earlier data set of this command, which is replaced.\n"
         "\n"
         "  sluice sample out=sample images=200 imgsz=640");
}

static void help_model(void)
{
    puts(
        "sluice model NAME [nc=80] [imgsz=640]\n"
        "\n"
        "Prints the layers of yolo11 or yolov8 (n, s, m, l, x) with shapes, parameters and GFLOPs\n"
        "(convolutions, two a multiplication).\n"
        "\n"
        "  sluice model yolo11m nc=4 imgsz=1024");
}

static void help_import(void)
{
    puts(
        "sluice import X.pt [out=Y.safetensors]\n"
        "\n"
        "Reads a file of torch.save and writes its weights, in full precision, as a run writes its "
        "own.\n"
        "Nothing in the file is run. It may hold a state dict, a checkpoint with one (ema, model,\n"
        "state_dict), or a whole pickled model; averaged weights (EMA) go first. Prints what was "
        "found.\n"
        "Without out= the new file lies beside X.pt; it must not be there yet. train reads a .pt "
        "file\n"
        "by itself (model=X.pt).\n"
        "\n"
        "  sluice import yolo11m.pt out=weights/yolo11m.safetensors");
}

static void help_bench(void)
{
    puts("sluice bench step [key=value ...]\n"
         "\n"
         "Measures a training step, forward to the averages of the weights, on one device and a "
         "made-up\n"
         "batch that stays there: no loaders, no data set. One line of JSON: ms_per_step (median), "
         "img_per_s,\n"
         "peak_gib, the phases, all operations by name, and the ten dearest calls, each with the "
         "time that\n"
         "its bytes or its arithmetic would take at the least (floor_ms).\n"
         "\n"
         "  model=yolo11m       a name, or a file with weights\n"
         "  batch=8 imgsz=2048  images, and their side\n"
         "  device=auto         one: 0, 1, ... or cpu\n"
         "  amp=True            as train takes it\n"
         "  optimizer=SGD       or AdamW\n"
         "  nc=80 boxes=20      classes, and objects in every image\n"
         "  steps=30 warmup=10  measured, and before them\n"
         "  tflops=N            the rate that floors are made with; else that of the step's best "
         "convolution\n"
         "  seconds=300         deadline\n"
         "\n"
         "  sluice bench step model=yolo11m batch=8 imgsz=2048 device=0");
}

static void help_export(void)
{
    puts("sluice export model=X [out=Y.onnx] [key=value ...]\n"
         "\n"
         "Writes a model as ONNX: normalisation folded into the convolutions, decoding in the "
         "graph, "
         "and the\n"
         "metadata that the usual tools look for. X is a run's folder, a .safetensors or a .pt "
         "file, "
         "or a\n"
         "name as in yolo11n for fresh weights. Without out= the file lies beside the weights; it "
         "must "
         "not\n"
         "be there yet.\n"
         "\n"
         "  format=onnx         the one format there is\n"
         "  imgsz=640           side of the input, or height,width; as X was trained, else 640\n"
         "  batch=1             images of a batch\n"
         "  dynamic=False       True: batch, height and width are open\n"
         "  half=False          True: weights and input in half precision; the output stays float\n"
         "  nms=False           True: suppression in the graph, with conf=0.25 iou=0.7 "
         "max_det=300\n"
         "  opset=17            17 to 22\n"
         "  seed=0              of fresh weights\n"
         "\n"
         "Input `images`: RGB / 255, [batch, 3, height, width]. Output `output0`: [batch, 4 + "
         "classes,\n"
         "anchors], rows cx, cy, w, h in pixels and a score for each class; with nms=True [batch, "
         "max_det, 6],\n"
         "x1, y1, x2, y2, score, class, best first and zeros behind the last.\n"
         "\n"
         "  sluice export model=runs/detect/train/weights/best.safetensors imgsz=1024");
}

static void help_help(void)
{
    puts("sluice help [COMMAND]\n"
         "\n"
         "Lists the commands, or explains one. `sluice COMMAND --help` is the same.");
}

static void help_version(void)
{
    puts("sluice version\n"
         "\n"
         "Prints the version.");
}

static void help_all(void)
{
    puts("sluice trains YOLO11 and YOLOv8 detectors on high-resolution images.\n"
         "\n"
         "  sluice COMMAND [key=value ...]\n");
    for (const command_t *c = commands; c->name; c++)
        printf("  %-10s  %s\n", c->name, c->summary);
    puts("\n"
         "`sluice help COMMAND` explains one. To begin:\n"
         "\n"
         "  sluice sample out=sample images=200 imgsz=640\n"
         "  sluice train data=sample/data.yaml model=yolo11n imgsz=320 epochs=20");
}

int cmd_help(int argc, char **argv)
{
    static const struct {
        int (*run)(int, char **);
        void (*explain)(void);
    } pages[] = {
        {cmd_train, help_train},     {cmd_digest, help_digest},   {cmd_val, help_val},
        {cmd_predict, help_predict}, {cmd_status, help_status},   {cmd_stop, help_stop},
        {cmd_scale, help_scale},     {cmd_files, help_files},     {cmd_sample, help_sample},
        {cmd_model, help_model},     {cmd_import, help_import},   {cmd_help, help_help},
        {cmd_version, help_version}, {cmd_ps, help_ps},           {cmd_checkpoint, help_checkpoint},
        {cmd_export, help_export},   {cmd_devices, help_devices}, {cmd_bench, help_bench},
    };
    if (argc < 2) {
        help_all();
        return 0;
    }
    const command_t *command = command_find(argv[1]);
    if (argc > 2)
        return err_set(ERR_CONFIG, "help explains one command at a time; '%s' is too much",
                       argv[2]);
    if (!command)
        return err_set(ERR_CONFIG, "'%s' is not a command; `sluice help` lists them", argv[1]);
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++)
        if (pages[i].run == command->run)
            pages[i].explain();
    return 0;
}

int cmd_version(int argc, char **argv)
{
    if (argc > 1)
        return err_set(ERR_CONFIG, "version takes no '%s'", argv[1]);
    puts("sluice " SLUICE_VERSION);
    return 0;
}
