/* control/options: every row, what people type, what is refused and how it is said, round trips. */
#include "control/options.h"
#include "control/options_table.h"
#include "shm/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static char yaml[OPTIONS_YAML_BYTES];

static void set(options_t *o, const char *word)
{
    if (options_set(o, word) < 0)
        fail_msg("%s: %s", word, err_text());
}

/* Refused with ERR_CONFIG and a sentence with `said` in it; the values stay. */
static void refuse(const char *word, const char *said)
{
    options_t o, before;
    options_default(&o);
    before = o;
    if (options_set(&o, word) != ERR_CONFIG)
        fail_msg("%s was taken", word);
    if (!strstr(err_text(), said))
        fail_msg("%s: '%s' lacks '%s'", word, err_text(), said);
    assert_memory_equal(&o, &before, sizeof o);
}

static void every_default_parses(void **state)
{
    (void)state;
    options_t zero;
    for (int i = 0; i < options_table_rows; i++) {
        const option_spec_t *row = &options_table[i];
        char text[128];
        if (!row->key)
            continue;
        memset(&zero, 0, sizeof zero);
        snprintf(text, sizeof text, "%s", row->initial);
        if (row->type == OPT_TYPE_ABSENT)
            text[strcspn(text, " ")] = '\0';
        if (*text && options_parse(&zero, row, text) < 0)
            fail_msg("%s", err_text());
        assert_ptr_equal(options_find(row->key), row); /* no key twice */
        assert_non_null(row->help);
        assert_true(row->type != OPT_TYPE_TEXT || strlen(row->initial) < row->size);
    }
}

/* facts/yolo.md 2. */
static void defaults_are_the_specified_ones(void **state)
{
    (void)state;
    options_t o;
    options_default(&o);
    assert_string_equal(o.model, "yolo11n");
    assert_string_equal(o.data, "");
    assert_string_equal(o.project, "runs/detect");
    assert_string_equal(o.name, "train");
    assert_true(o.epochs == 100 && o.patience == 100 && o.batch == 16 && o.imgsz == 640 &&
                o.nbs == 64);
    assert_true(o.close_mosaic == 10 && o.seed == 0 && o.save_period == -1 && o.max_det == 300);
    assert_true(o.save && o.val && o.deterministic && o.pretrained);
    assert_true(!o.exist_ok && !o.single_cls && !o.cos_lr && !o.agnostic_nms);
    assert_true(o.lr0 == 0.01 && o.lrf == 0.01 && o.momentum == 0.937 && o.weight_decay == 0.0005);
    assert_true(o.warmup_epochs == 3 && o.warmup_momentum == 0.8 && o.warmup_bias_lr == 0.1);
    assert_true(o.box == 7.5 && o.cls == 0.5 && o.dfl == 1.5);
    assert_true(o.hsv_h == 0.015 && o.hsv_s == 0.7 && o.hsv_v == 0.4 && o.degrees == 0);
    assert_true(o.translate == 0.1 && o.scale == 0.5 && o.shear == 0 && o.perspective == 0);
    assert_true(o.flipud == 0 && o.fliplr == 0.5 && o.bgr == 0 && o.mosaic == 1 && o.mixup == 0);
    assert_true(o.conf == 0.001 && o.iou == 0.7 && o.fraction == 1);
    assert_true(o.optimizer == OPT_OPTIM_AUTO && o.amp == OPT_AMP_AUTO &&
                o.cache == OPT_CACHE_NONE);
    assert_true(o.workers == -1 && o.n_devices == 1 && o.devices[0] == DEVICE_AUTO);
}

static void takes_what_people_type(void **state)
{
    (void)state;
    options_t o;
    options_default(&o);
    set(&o, "epochs=200");
    set(&o, "lr0=1e-3");
    set(&o, "degrees=15");
    set(&o, "data=a dir/it's=\"one\" \xC3\xA4.yaml");
    assert_int_equal(o.epochs, 200);
    assert_true(o.lr0 == 0.001 && o.degrees == 15);
    assert_string_equal(o.data, "a dir/it's=\"one\" \xC3\xA4.yaml");

    static const char *const truths[] = {"True", "true", "1", "yes", "on", "TRUE"};
    static const char *const lies[] = {"False", "false", "0", "no", "off"};
    char word[64];
    for (int i = 0; i < 6; i++) {
        o.cos_lr = 0;
        snprintf(word, sizeof word, "cos_lr=%s", truths[i]);
        set(&o, word);
        assert_int_equal(o.cos_lr, 1);
    }
    for (int i = 0; i < 5; i++) {
        o.cos_lr = 1;
        snprintf(word, sizeof word, "cos_lr=%s", lies[i]);
        set(&o, word);
        assert_int_equal(o.cos_lr, 0);
    }
    static const struct {
        const char *word;
        int value;
    } amps[] = {{"amp=True", OPT_AMP_AUTO}, {"amp=False", OPT_AMP_OFF}, {"amp=off", OPT_AMP_OFF},
                {"amp=bf16", OPT_AMP_BF16}, {"amp=FP16", OPT_AMP_FP16}, {"amp=auto", OPT_AMP_AUTO}};
    for (int i = 0; i < 6; i++) {
        set(&o, amps[i].word);
        assert_int_equal(o.amp, amps[i].value);
    }
    set(&o, "optimizer=adamw");
    assert_int_equal(o.optimizer, OPT_OPTIM_ADAMW);
    set(&o, "optimizer=sgd");
    assert_int_equal(o.optimizer, OPT_OPTIM_SGD);
    set(&o, "cache=False");
    set(&o, "cache=none");
    set(&o, "io=threads");
    assert_int_equal(o.io, OPT_IO_THREADS);
    set(&o, "conf=0.2");
    set(&o, "conf=None");
    assert_true(o.conf == 0.001);
    set(&o, "resume=runs/x");
    set(&o, "resume=none");
    assert_string_equal(o.resume, "");
    set(&o, "seed=2147483647");
    assert_int_equal(o.seed, 2147483647);
}

static void refuses_with_a_sentence(void **state)
{
    (void)state;
    refuse("epochs=abc", "whole number from 1 to 100000");
    refuse("epochs=0", "whole number from 1");
    refuse("epochs=2.5", "whole number");
    refuse("epochs= 3", "whole number");
    refuse("epochs=99999999999999999999", "whole number");
    refuse("epochs=", "whole number");
    refuse("lr0=1.5", "from 0 to 1");
    refuse("lr0=-0.1", "from 0 to 1");
    refuse("lr0=nan", "from 0 to 1");
    refuse("lr0=inf", "from 0 to 1");
    refuse("lr0=0x1p-3", "from 0 to 1");
    refuse("fraction=0", "above 0");
    refuse("scale=1.01", "from 0 to 1");
    refuse("scale=(0.5,1)", "from 0 to 1");
    refuse("max_det=0", "from 1");
    refuse("nbs=0", "from 1");
    refuse("seed=-1", "from 0");
    refuse("cos_lr=maybe", "True or False");
    refuse("optimizer=MuSGD", "auto, SGD or AdamW");
    refuse("amp=fp8", "True, False, bf16 or fp16");
    refuse("cache=ram", "cache=ram");
    refuse("batch=-2", "auto, or a share");
    refuse("batch=0", "auto, or a share");
    refuse("batch=1.5", "auto, or a share");
    refuse("batch=65537", "from 1 to 65536");
    refuse("batch=nan", "auto, or a share");
    refuse("batch=automatic", "auto, or a share");
    refuse("epochs", "key=value");
    refuse("=3", "key=value");
    refuse("", "key=value");
    refuse("data=a\nb", "control character");
    refuse("data=a\xFF", "not UTF-8");
    char longest[OPTIONS_PATH_BYTES + 16] = "data=";
    memset(longest + 5, 'a', OPTIONS_PATH_BYTES);
    refuse(longest, "at most 4095");
}

static void unknown_keys_name_the_nearest(void **state)
{
    (void)state;
    refuse("epoch=3", "'epochs'");
    refuse("batchsize=3", "'batch'");
    refuse("batch_size=3", "'batch'");
    refuse("img_size=3", "'imgsz'");
    refuse("lr=3", "'lr0'");
    refuse("learningrate0=3", "unknown key");
    refuse("Epochs=3", "'epochs'");
    refuse("--epochs=3", "'epochs'");
    refuse("optmizer=SGD", "'optimizer'");
    refuse("devices=0", "'device'");
    refuse("mosiac=0", "'mosaic'");
    refuse("weightdecay=0", "'weight_decay'");
    char word[400];
    memset(word, 'x', sizeof word);
    memcpy(word + sizeof word - 3, "=1", 3);
    refuse(word, "unknown key");
}

/* Nothing that is asked for is ignored in silence: the off value passes, any other is refused. */
static void absent_keys_take_only_their_off_value(void **state)
{
    (void)state;
    static const char *const off[] = {
        "rect=False",  "rect=false",   "multi_scale=0", "multi_scale=0.00",
        "cutmix=0.0",  "copy_paste=0", "time=none",     "time=None",
        "freeze=none", "cls_pw=0",     "plots=False",   "auto_augment=randaugment",
        "erasing=0.4", "dropout=0.0",  "half=False",    "split=val",
        "task=detect", "mode=train",   "rect=0",        "verbose=True"};
    options_t o;
    options_default(&o);
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        set(&o, off[i]);
    refuse("cutmix=0.5", "set cutmix=0.0");
    refuse("multi_scale=0.5", "this version has no training at changing sizes");
    refuse("cutmix=0.1", "CutMix");
    refuse("copy_paste=1", "copy-paste");
    refuse("time=2", "limit in hours");
    refuse("freeze=10", "frozen layers");
    refuse("plots=True", "pictures");
    refuse("half=True", "amp=");
    refuse("erasing=0.3", "classification");
    refuse("task=segment", "task");
    refuse("dropout=0.1", "dropout");
    refuse("cls_pw=", "class weighting");
}

static void yaml_sets_the_same_keys(void **state)
{
    (void)state;
    static const char text[] =
        "# a run\nmodel: yolov8s\ndata: \"my data/d.yaml\"\nimgsz: 320\n"
        "device: [0, 1]\ncos_lr: true\nproject: null\nname: 'none'\nconf: ~\n"
        "lr0: 0.01\nrect: false\ntime: null\namp: True\noptimizer: \"SGD\"\n";
    options_t o;
    options_default(&o);
    assert_int_equal(options_load_yaml_text(&o, text, strlen(text), "t.yaml"), 0);
    assert_string_equal(o.model, "yolov8s");
    assert_string_equal(o.data, "my data/d.yaml");
    assert_true(o.imgsz == 320 && o.cos_lr == 1 && o.n_devices == 2 &&
                o.optimizer == OPT_OPTIM_SGD);
    assert_string_equal(o.project, "runs/detect");
    assert_string_equal(o.name, "none");
    assert_true(options_was_set(&o, "imgsz") && options_was_set(&o, "device"));
    assert_false(options_was_set(&o, "lr0")); /* only repeats the default */
    assert_false(options_was_set(&o, "epochs"));
    assert_false(options_was_set(&o, "no such key"));
    set(&o, "lr0=0.01"); /* the command line does set it */
    assert_true(options_was_set(&o, "lr0"));

    static const struct {
        const char *text, *said;
    } wrong[] = {
        {"a: 1\nepoch: 2\n", "t.yaml:1"},    {"\nepoch: 2\n", "t.yaml:2: unknown key 'epoch'"},
        {"epochs: many\n", "t.yaml:1"},      {"epochs: {a: 1}\n", "a map"},
        {"epochs: [[1]]\n", "nested"},       {"- epochs\n", "key: value"},
        {"half: true\n", "half=False"},      {"scale: [0.5, 1.5]\n", "from 0 to 1"},
        {"epochs: 3\nepochs: 4\n", "twice"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        options_default(&o);
        assert_int_equal(options_load_yaml_text(&o, wrong[i].text, strlen(wrong[i].text), "t.yaml"),
                         ERR_CONFIG);
        if (!strstr(err_text(), wrong[i].said))
            fail_msg("'%s' lacks '%s'", err_text(), wrong[i].said);
    }
}

static void assert_same_values(const options_t *a, const options_t *b)
{
    options_t x = *a, y = *b;
    memset(x.set_mask, 0, sizeof x.set_mask);
    memset(y.set_mask, 0, sizeof y.set_mask);
    assert_memory_equal(&x, &y, sizeof x);
}

static void round_trip(const options_t *o)
{
    options_t back;
    int n = options_dump_yaml(o, yaml, sizeof yaml);
    if (n < 0)
        fail_msg("%s", err_text());
    assert_int_equal(n, (int)strlen(yaml));
    options_default(&back);
    if (options_load_yaml_text(&back, yaml, (size_t)n, "dump") < 0)
        fail_msg("%s in:\n%s", err_text(), yaml);
    assert_same_values(o, &back);
}

/* What a YAML reader would take for something else. */
static const char *const names[] = {"none",
                                    "True",
                                    "1",
                                    "-x",
                                    "a: b",
                                    "# c",
                                    "it's",
                                    "\"q\"",
                                    "back\\slash",
                                    "~",
                                    "[a]",
                                    "{a}",
                                    "1e3",
                                    "0x1F",
                                    "*a",
                                    "&a",
                                    "!t",
                                    "%d",
                                    "@",
                                    "`",
                                    " lead",
                                    "trail ",
                                    "a  b",
                                    "\xC3\xA4\xE2\x82\xAC",
                                    "\xF0\x9F\x90\x9F",
                                    "nul\xE2\x80\xA8line",
                                    "\xEF\xBB\xBF mark",
                                    "\xC2\x85nel",
                                    "---",
                                    "...",
                                    "?",
                                    "- a",
                                    "a,b",
                                    "null",
                                    "yes",
                                    "=",
                                    "<<",
                                    "1:30",
                                    ".5",
                                    "_1"};

static void names_read_back(options_t *o)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        options_default(o); /* clears what a longer text left behind its end */
        memset(o->model, 0, sizeof o->model);
        memset(o->name, 0, sizeof o->name);
        snprintf(o->name, sizeof o->name, "%s", names[i]);
        snprintf(o->data, sizeof o->data, "/a/%s/data.yaml", names[i]);
        snprintf(o->model, sizeof o->model, "%s", names[i]);
        round_trip(o);
    }
}

static void dumps_read_back_exactly(void **state)
{
    (void)state;
    options_t o;
    options_default(&o);
    round_trip(&o);
    names_read_back(&o);
    /* Doubles with all their digits, in every real field. */
    o.lr0 = 1.0 / 3;
    o.momentum = 0.1 + 0.2;
    o.weight_decay = 5e-324;
    o.box = 999.9999999999999;
    o.degrees = 1e-5;
    o.amp = OPT_AMP_FP16;
    o.optimizer = OPT_OPTIM_ADAMW;
    o.io = OPT_IO_URING;
    o.on_warning = OPT_WARN_SKIP;
    o.cos_lr = 1;
    o.val = 0;
    o.workers = 7;
    o.seed = 123456789;
    o.n_devices = OPTIONS_DEVICES;
    for (int i = 0; i < OPTIONS_DEVICES; i++)
        o.devices[i] = 9999 - i;
    round_trip(&o);
    memset(o.devices, 0, sizeof o.devices);
    o.n_devices = 2;
    o.devices[0] = o.devices[1] = DEVICE_CPU;
    round_trip(&o);
    memset(o.devices, 0, sizeof o.devices);
    o.n_devices = 1;
    o.devices[0] = DEVICE_ALL;
    round_trip(&o);
    o.batch = 0;
    o.batch_share = OPTIONS_BATCH_SHARE;
    o.sync_bn = 1;
    round_trip(&o);
    o.batch_share = 0.1 + 0.2;
    round_trip(&o);
    /* The longest paths, every byte escaped. */
    memset(o.data, '"', sizeof o.data - 1);
    memset(o.model, '\\', sizeof o.model - 1);
    memset(o.project, '"', sizeof o.project - 1);
    memset(o.resume, '"', sizeof o.resume - 1);
    round_trip(&o);
}

static void a_dump_that_does_not_fit_says_so(void **state)
{
    (void)state;
    options_t o;
    options_default(&o);
    int whole = options_dump_yaml(&o, yaml, sizeof yaml);
    for (int room = 1; room <= whole + 1; room += 7) {
        char *small = malloc((size_t)room + 1);
        assert_non_null(small);
        small[room] = 'Z';
        int n = options_dump_yaml(&o, small, (size_t)room);
        assert_true(n == (room > whole ? whole : ERR_FAILED));
        assert_int_equal(small[room], 'Z');
        assert_true(strlen(small) < (size_t)room);
        free(small);
    }
}

static void the_document_is_the_file_and_the_defaults(void **state)
{
    (void)state;
    static char file[OPTIONS_YAML_BYTES];
    int n = options_document_yaml(yaml, sizeof yaml);
    assert_true(n > 0);
    FILE *f = fopen("pipeline.yaml", "r");
    if (!f)
        fail_msg("run this test from the folder of pipeline.yaml");
    size_t bytes = fread(file, 1, sizeof file - 1, f);
    fclose(f);
    file[bytes] = '\0';
    if (strcmp(file, yaml) != 0)
        fail_msg("pipeline.yaml differs from the table; it should be:\n%s", yaml);
    options_t o, defaults;
    options_default(&defaults);
    options_default(&o);
    assert_int_equal(options_load_yaml(&o, "pipeline.yaml"), 0);
    assert_memory_equal(&o, &defaults, sizeof o); /* and counts nothing as set */
    for (int i = 0; i < options_table_rows; i++)
        if (options_table[i].key)
            assert_non_null(strstr(yaml, options_table[i].key));
}

static void check(const char *words, int rc, const char *said)
{
    options_t o;
    char copy[512], *rest = copy, *word, notes[512];
    options_default(&o);
    snprintf(copy, sizeof copy, "%s", words);
    while ((word = strsep(&rest, " ")))
        set(&o, word);
    int got = options_check(&o, notes, sizeof notes);
    if (got != rc)
        fail_msg("%s: %d, %s", words, got, err_text());
    const char *text = rc < 0 ? err_text() : notes;
    if (!strstr(text, said) || (*said == '\0' && rc == 0 && *notes))
        fail_msg("%s: '%s' lacks '%s'", words, text, said);
}

static void cross_checks(void **state)
{
    (void)state;
    check("data=d.yaml", 0, "");
    check("epochs=3", ERR_CONFIG, "data= is missing");
    check("resume=runs/x", 0, "");
    check("data=d device=0,1,2,3 batch=10", ERR_CONFIG, "batch=8 or batch=12");
    check("data=d device=0,1,2,3 batch=3", ERR_CONFIG, "batch=4 is the least");
    check("data=d device=0,1,2,3 batch=8", 0, "");
    check("data=d device=cpu,cpu batch=15", ERR_CONFIG, "batch=14 or batch=16");
    check("data=d device=0,1,2 batch=auto", 0, "");
    check("data=d mode=val batch=auto", ERR_CONFIG, "is for `sluice train`");
    check("data=d imgsz=650", 0, "imgsz=650 is rounded up to 672");
    check("data=d imgsz=33", 0, "rounded up to 64");
    check("data=d imgsz=320", 0, "");
    check("data=d amp=bf16 device=cpu", ERR_CONFIG, "needs a GPU");
    check("data=d amp=bf16 device=0", 0, "");
    check("data=d amp=True device=cpu", 0, "");
    check("data=d workers=0", ERR_CONFIG, "workers=0");
    check("data=d name=a/b", ERR_CONFIG, "one folder name");
    check("data=d name=..", ERR_CONFIG, "one folder name");
    check("data=d resume=True", ERR_CONFIG, "name the run folder");
    options_t resume;
    options_default(&resume);
    set(&resume, "resume=true");
    assert_int_equal(options_check_resume(&resume), ERR_CONFIG);
    set(&resume, "resume=runs/detect/true");
    assert_int_equal(options_check_resume(&resume), 0);
    check("data=d model=yolo11m.pt", 0,
          ""); /* whether it can be used is the trainer's to find out */
    check("data=d lr0=0.005", 0, "lr0 is not used");
    check("data=d lr0=0.005 optimizer=SGD", 0, "");
    check("data=d epochs=5", 0, "mosaic stays on to the end");
    check("data=d epochs=10", 0, "");
    check("data=d epochs=5 close_mosaic=0", 0, "");
    check("data=d epochs=5 mosaic=0", 0, "");
    options_t o;
    options_default(&o);
    set(&o, "data=d");
    set(&o, "imgsz=100");
    assert_int_equal(options_check(&o, NULL, 0), 0);
    assert_int_equal(o.imgsz, 128);
    char notes[256];
    assert_int_equal(options_check(&o, notes, sizeof notes), 0); /* said once */
    assert_string_equal(notes, "");
}

static void count_line(void *user, const char *line)
{
    int *lines = user;
    if (strlen(line) > 110 || strchr(line, '\n'))
        fail_msg("help line: %s", line);
    ++*lines;
}

static void help_has_a_line_a_row(void **state)
{
    (void)state;
    int lines = 0, sections = 0;
    for (int i = 0; i < options_table_rows; i++)
        sections += !options_table[i].key;
    options_help(count_line, &lines);
    assert_int_equal(lines, options_table_rows + sections); /* a blank line before each section */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_default_parses),
        cmocka_unit_test(defaults_are_the_specified_ones),
        cmocka_unit_test(takes_what_people_type),
        cmocka_unit_test(refuses_with_a_sentence),
        cmocka_unit_test(unknown_keys_name_the_nearest),
        cmocka_unit_test(absent_keys_take_only_their_off_value),
        cmocka_unit_test(yaml_sets_the_same_keys),
        cmocka_unit_test(dumps_read_back_exactly),
        cmocka_unit_test(a_dump_that_does_not_fit_says_so),
        cmocka_unit_test(the_document_is_the_file_and_the_defaults),
        cmocka_unit_test(cross_checks),
        cmocka_unit_test(help_has_a_line_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
