/* control/gpus, and the coordinator that asks a child for the GPUs and for a batch: lists as recorded
 * and as nobody should write them, children that hang, crash or lie. The program is its own
 * trainer: links named sluice-trainer and sluice-trainer-cuda lead here, and FAKE in the environment says
 * what they do. */
#include "control/coordinator.h"
#include "control/gpus.h"
#include "control/programs.h"
#include "shm/err.h"
#include "tests/scratch.h"
#include "trainer/devices.h"
#include "trainer/plan_batch.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

/* As on a machine with four GPUs of two kinds, one of them in use. */
static const char four[] =
    "{\"devices\":["
    "{\"ordinal\":0,\"name\":\"NVIDIA H200\",\"bus\":\"0000:19:00.0\",\"capability\":90,"
    "\"total\":150754820096,\"free\":62000000000,\"processes\":["
    "{\"pid\":4711,\"name\":\"python\",\"bytes\":88000000000},"
    "{\"pid\":12,\"name\":\"\",\"bytes\":0}]},"
    "{\"ordinal\":1,\"name\":\"NVIDIA H200\",\"bus\":\"0000:3B:00.0\",\"capability\":90,"
    "\"total\":150754820096,\"free\":150000000000,\"processes\":[]},"
    "{\"ordinal\":2,\"name\":\"Tesla T4\",\"bus\":\"0000:5E:00.0\",\"capability\":75,"
    "\"total\":15843721216,\"free\":15600000000,\"processes\":[]},"
    "{\"ordinal\":3,\"name\":\"Quadro P6000\",\"bus\":\"0000:86:00.0\",\"capability\":61,"
    "\"total\":25637224448,\"free\":25600000000,\"processes\":[]}"
    "],\"why\":\"\"}\n";
static const char full[] =
    "{\"devices\":[{\"ordinal\":0,\"name\":\"NVIDIA "
    "L4\",\"bus\":\"0000:00:04.0\",\"capability\":89,"
    "\"total\":24152899584,\"free\":31457280,\"processes\":["
    "{\"pid\":881,\"name\":\"tritonserver\",\"bytes\":23000000000}]}],\"why\":\"\"}\n";
static const char none[] = "{\"devices\":[],\"why\":\"no NVIDIA driver is installed\"}\n";

static int parse(const char *text, gpus_t *g)
{
    return gpus_parse(text, strlen(text), g);
}

static void lists_are_read(void **state)
{
    (void)state;
    static gpus_t g;
    char holders[256];
    assert_int_equal(parse(four, &g), 0);
    assert_int_equal(g.n, 4);
    assert_string_equal(g.at[0].name, "NVIDIA H200");
    assert_string_equal(g.at[1].bus, "0000:3B:00.0");
    assert_true(g.at[2].capability == 75 && g.at[2].total == 15843721216 &&
                g.at[2].free == 15600000000);
    gpus_holders(&g.at[0], holders, sizeof holders);
    assert_string_equal(holders, "pid 4711 (python) 88000 MB, pid 12");
    gpus_holders(&g.at[1], holders, sizeof holders);
    assert_string_equal(holders, "");
    assert_int_equal(gpus_best(&g), 1);
    assert_ptr_equal(gpus_find(&g, 3), &g.at[3]);
    assert_null(gpus_find(&g, 4));
    assert_null(gpus_find(&g, DEVICE_CPU));
    assert_int_equal(parse(none, &g), 0);
    assert_int_equal(g.n, 0);
    assert_string_equal(g.why, "no NVIDIA driver is installed");
    assert_int_equal(gpus_best(&g), -1);
    /* Keys that this version does not know are a later version's business. */
    assert_int_equal(parse("{\"driver\":\"580\",\"devices\":[],\"why\":\"x\"}", &g), 0);
}

#define GPU(ordinal, name, total, free, processes)                                                 \
    "{\"ordinal\":" ordinal ",\"name\":" name ",\"bus\":\"b\",\"capability\":90,\"total\":" total  \
    ",\"free\":" free ",\"processes\":" processes "}"
#define LIST(gpus) "{\"devices\":[" gpus "],\"why\":\"\"}"

static void other_lists_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "no GPUs today\n",
        "[]",
        "{}",
        "{\"devices\":{},\"why\":\"\"}",
        "{\"devices\":[],\"why\":\"\"}",
        "{\"devices\":[]}",
        "{\"devices\":[1],\"why\":\"\"}",
        "{\"devices\":[{}],\"why\":\"\"}",
        "{\"devices\":[",
        "{\"devices\":&a [*a],\"why\":\"x\"}",
        LIST(GPU("1", "\"n\"", "9", "9", "[]")),
        LIST(GPU("0", "\"n\"", "9", "9", "[]") "," GPU("0", "\"n\"", "9", "9", "[]")),
        LIST(GPU("-1", "\"n\"", "9", "9", "[]")),
        LIST(GPU("0.5", "\"n\"", "9", "9", "[]")),
        LIST(GPU("\"0\"", "\"n\"", "9", "9", "[]")),
        LIST(GPU("0", "7", "9", "9", "[]")),
        LIST(GPU("0", "[]", "9", "9", "[]")),
        LIST(GPU("0", "\"n\"", "9", "10", "[]")),
        LIST(GPU("0", "\"n\"", "-9", "-9", "[]")),
        LIST(GPU("0", "\"n\"", "99999999999999999999", "9", "[]")),
        LIST(GPU("0", "\"n\"", "1e300", "9", "[]")),
        LIST(GPU("0", "\"n\"", "9", "9", "{}")),
        LIST(GPU("0", "\"n\"", "9", "9", "[{}]")),
        LIST(GPU("0", "\"n\"", "9", "9", "[{\"pid\":-1,\"name\":\"x\",\"bytes\":1}]")),
        LIST(GPU("0", "\"n\"", "9", "9", "[{\"pid\":4294967296,\"name\":\"x\",\"bytes\":1}]")),
        LIST(GPU("0", "\"n\"", "9", "9", "[{\"pid\":1,\"name\":5,\"bytes\":1}]")),
        LIST("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"),
    };
    static gpus_t g;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse(bad[i], &g) != ERR_ENV)
            fail_msg("list %zu was taken: %s", i, bad[i]);
        assert_true(g.n == 0 && err_text()[0]);
    }
    /* 65 devices, in order. */
    char many[16384] = "{\"devices\":[";
    for (int i = 0; i <= GPUS_MOST; i++)
        sprintf(many + strlen(many), "%s" GPU("%d", "\"n\"", "9", "9", "[]"), i ? "," : "", i);
    strcat(many, "],\"why\":\"\"}");
    assert_int_equal(parse(many, &g), ERR_ENV);
}

static void names_cannot_drive_a_terminal(void **state)
{
    (void)state;
    static gpus_t g;
    char long_name[600];
    assert_int_equal(parse(LIST(GPU("0", "\"a\\u001b[2Jb\\nc\"", "9", "9",
                                    "[{\"pid\":1,\"name\":\"x\\ty\",\"bytes\":1}]")),
                           &g),
                     0);
    assert_string_equal(g.at[0].name, "a [2Jb c");
    assert_string_equal(g.at[0].holders[0].name, "x y");
    char text[1024] = "{\"devices\":[], \"why\":\"";
    memset(long_name, 'w', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    strcat(text, long_name);
    strcat(text, "\"}");
    assert_int_equal(parse(text, &g), 0);
    assert_int_equal(strlen(g.why), sizeof g.why - 1);
    /* More holders than there is room for are cut. */
    char crowd[4096] =
        "{\"devices\":[{\"ordinal\":0,\"name\":\"n\",\"bus\":\"b\",\"capability\":90,"
        "\"total\":9,\"free\":9,\"processes\":[";
    for (int i = 0; i < GPUS_HOLDERS + 9; i++)
        sprintf(crowd + strlen(crowd), "%s{\"pid\":%d,\"name\":\"p\",\"bytes\":1}", i ? "," : "",
                i);
    strcat(crowd, "]}],\"why\":\"\"}");
    assert_int_equal(parse(crowd, &g), 0);
    assert_int_equal(g.at[0].n_holders, GPUS_HOLDERS);
    char short_text[40];
    gpus_holders(&g.at[0], short_text, sizeof short_text);
    assert_true(strlen(short_text) < sizeof short_text);
}

/* Whatever a byte is changed to, the list is taken or refused, and what is taken is in range. */
static void changed_bytes_do_no_harm(void **state)
{
    (void)state;
    static gpus_t g;
    char text[sizeof four];
    uint32_t seed = 1;
    int taken = 0;
    for (int i = 0; i < 3000; i++) {
        memcpy(text, four, sizeof four);
        for (int k = 0; k < 1 + i % 3; k++) {
            seed = seed * 1664525u + 1013904223u;
            static const char likely[] = "0123456789aZ\"{}[]:,.- ";
            text[(seed >> 8) % (sizeof four - 1)] =
                i % 4 ? likely[(seed >> 3) % (sizeof likely - 1)] : (char)(seed >> 3);
        }
        int rc = gpus_parse(text, sizeof four - 1 - (i % 5 == 0 ? seed % 200 : 0), &g);
        assert_true(rc == 0 || rc == ERR_ENV);
        taken += rc == 0;
        assert_true(g.n >= 0 && g.n <= GPUS_MOST);
        for (int d = 0; d < g.n; d++)
            assert_true(g.at[d].ordinal == d && g.at[d].free <= g.at[d].total &&
                        g.at[d].n_holders <= GPUS_HOLDERS &&
                        memchr(g.at[d].name, 0, sizeof g.at[d].name));
    }
    if (taken < 100 || taken > 2900) /* both ways are gone */
        fail_msg("%d of 3000 were taken", taken);
}

/* ---- held against the options ---- */

static char notes[4096];

static int resolve(const char *list, const char *words, options_t *o)
{
    static gpus_t g;
    char copy[256];
    assert_int_equal(parse(list, &g), 0);
    options_default(o);
    snprintf(copy, sizeof copy, "%s", words);
    for (char *save = NULL, *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        assert_int_equal(options_set(o, w), 0);
    return gpus_resolve(o, &g, notes, sizeof notes);
}

static void devices_are_chosen(void **state)
{
    (void)state;
    static options_t o;
    static const struct {
        const char *list, *words;
        int code;
        int n, first; /* of the result */
        const char *said;
    } cases[] = {
        {four, "device=auto", 0, 1, 1, "device=auto: GPU 1 (NVIDIA H200), the one of 4"},
        {full, "device=1", ERR_ENV, 0, 0, "device=1: this machine has one GPU, device=0"},
        {four, "device=4", ERR_ENV, 0, 0, "this machine's GPUs are 0 to 3"},
        {four, "device=0", 0, 1, 0,
         "GPU 0 (NVIDIA H200): 62000 of 150754 MB are free; others hold"},
        {four, "device=0,1 batch=16", 0, 2, 0, "pid 4711 (python) 88000 MB"},
        {four, "device=1,1 batch=16", 0, 2, 1, "2 ranks share GPU 1"},
        {four, "device=1,2 batch=15", ERR_CONFIG, 0, 0, "batch=14 or batch=16"},
        {four, "device=all batch=16", ERR_ENV, 0, 0, "Quadro P6000 has compute capability 6.1"},
        {four, "device=2 amp=bf16", ERR_CONFIG, 0, 0, "7.5, and bf16 needs 8.0"},
        {four, "device=2 amp=fp16", 0, 1, 2, ""},
        {four, "device=2", 0, 1, 2, "amp=True: fp16 with loss scaling, for GPU 2 (Tesla T4)"},
        {full, "device=auto", ERR_ENV, 0, 0, "held by pid 881 (tritonserver) 23000 MB"},
        {none, "device=auto", 0, 1, DEVICE_CPU, "the CPU, for there is no GPU to use: no NVIDIA"},
        {none, "device=all", ERR_ENV, 0, 0, "(no NVIDIA driver is installed); use device=cpu"},
        {none, "device=auto amp=bf16", ERR_CONFIG, 0, 0, "needs a GPU"},
        {four, "device=cpu,cpu batch=16", 0, 2, DEVICE_CPU, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int rc = resolve(cases[i].list, cases[i].words, &o);
        const char *said = rc < 0 ? err_text() : notes;
        if (rc != cases[i].code || !strstr(said, cases[i].said))
            fail_msg("%s: %d, %s", cases[i].words, rc, said);
        if (rc == 0)
            assert_true(o.n_devices == cases[i].n && o.devices[0] == cases[i].first);
    }
}

static void formats_follow_the_devices(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        gpu_format_t format;
    } cases[] = {{"device=1", GPU_BF16},          {"device=2", GPU_FP16},
                 {"device=1,2", GPU_FP16}, /* one for all ranks */
                 {"device=1 amp=fp16", GPU_FP16}, {"device=1 amp=False", GPU_FP32},
                 {"device=cpu", GPU_FP32}};
    static options_t o;
    static gpus_t g;
    assert_int_equal(parse(four, &g), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(resolve(four, cases[i].words, &o), 0);
        assert_int_equal(gpus_format(&o, &g), cases[i].format);
    }
    assert_int_equal(resolve(four, "device=1,2", &o), 0);
    assert_int_equal(gpus_tightest(&o, &g)->ordinal, 2);
    assert_int_equal(resolve(four, "device=0,1,1,1 batch=16", &o), 0);
    assert_int_equal(gpus_ranks_on(&o, 1), 3);
    assert_int_equal(gpus_tightest(&o, &g)->ordinal, 1);
    assert_int_equal(resolve(four, "device=cpu", &o), 0);
    assert_null(gpus_tightest(&o, &g));
}

static void rungs_grow(void **state)
{
    (void)state;
    static const uint32_t want[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64};
    uint32_t rungs[PLAN_BATCH_RUNGS];
    assert_int_equal(plan_batch_ladder(1, rungs), 1);
    assert_int_equal(plan_batch_ladder(11, rungs), 5);
    assert_int_equal(plan_batch_ladder(64, rungs), 11);
    assert_memory_equal(rungs, want, sizeof want);
    int n = plan_batch_ladder(PLAN_BATCH_MOST, rungs);
    assert_true(n < PLAN_BATCH_RUNGS && rungs[n - 1] == PLAN_BATCH_MOST);
}

/* What this machine's own child says is a list, with GPUs or with a reason. */
static void this_machine_has_a_list(void **state)
{
    (void)state;
    static gpus_t g;
    char to[16], name[] = "sluice-trainer", word[] = "--devices", key[] = "--to", *text;
    size_t bytes;
    int fd = memfd_create("answer", MFD_CLOEXEC);
    assert_true(fd >= 0);
    snprintf(to, sizeof to, "%d", fd);
    char *argv[] = {name, word, key, to, NULL};
    assert_int_equal(devices_main(4, argv), 0);
    assert_int_equal(gpus_answer(fd, "its answer", &text, &bytes), 0);
    assert_int_equal(gpus_parse(text, bytes, &g), 0);
    assert_true(g.n > 0 || g.why[0]);
    print_message("%s", text);
    free(text);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(gpus_answer(fd, "its answer", &text, &bytes), ERR_ENV);
    assert_string_equal(err_text(), "its answer is empty");
    assert_int_equal(ftruncate(fd, GPUS_ANSWER_BYTES), 0);
    assert_int_equal(gpus_answer(fd, "its answer", &text, &bytes), ERR_ENV);
    close(fd);
    assert_int_equal(gpus_answer(-1, "its answer", &text, &bytes), ERR_ENV);
}

/* ---- children ---- */

static int fake_trainer(const char *name, int argc, char **argv)
{
    const char *fake = getenv("FAKE"), *answer = fake;
    int to = (int)devices_number(argc, argv, "--to", -1);
    int plan = strcmp(argv[1], "--plan") == 0;
    if (strcmp(argv[1], "--devices") != 0 && !plan)
        return 4;                        /* a rank: these runs end here */
    if (strcmp(fake, "unloaded") == 0) { /* what ld.so says */
        fprintf(stderr,
                "/somewhere/%s: error while loading shared libraries: libcudnn.so.9: cannot "
                "open shared object file: No such file or directory\n",
                name);
        return 127;
    }
    if (strcmp(fake, "name") == 0) {
        char list[128];
        snprintf(list, sizeof list, "{\"devices\":[],\"why\":\"asked %s\"}", name);
        return devices_put(to, list, strlen(list)) < 0;
    }
    if (strcmp(fake, "hang") == 0)
        pause();
    if (strcmp(fake, "crash") == 0) {
        fprintf(stderr, "the driver has a fit\n");
        raise(SIGABRT);
    }
    if (strcmp(fake, "silent") == 0)
        return 0;
    if (plan)
        answer = getenv("FAKE_PLAN");
    return devices_put(to, answer, strlen(answer)) < 0;
}

static char bin[SCRATCH_PATH], scratch[SCRATCH_PATH], told[8192];

static void on_note(void *user, log_level_t level, const char *text)
{
    (void)user;
    (void)level;
    size_t n = strlen(told);
    snprintf(told + n, sizeof told - n, "%s\n", text);
}

static int run(const char *fake, const char *plan, const char *device, const char *batch)
{
    static coordinator_config_t config;
    char data[SCRATCH_PATH + 32], project[SCRATCH_PATH + 32];
    memset(&config, 0, sizeof config);
    told[0] = '\0';
    snprintf(data, sizeof data, "data=%.4000s/data.yaml", scratch);
    snprintf(project, sizeof project, "project=%.4000s/runs", scratch);
    const char *words[] = {data, project, device, batch, "imgsz=32", "workers=1", "exist_ok=True"};
    options_default(&config.options);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        assert_int_equal(options_set(&config.options, words[i]), 0);
    setenv("FAKE", fake, 1);
    setenv("FAKE_PLAN", plan, 1);
    config.bin_dir = bin;
    config.devices_s = strcmp(fake, "hang") == 0 ? 1 : 60;
    config.view = (coordinator_view_t){.note = on_note};
    int rc = coordinator_run(&config);
    print_message("%s, %s: %d %s\n", device, batch, rc, rc < 0 ? err_text() : "");
    return rc;
}

static int need_programs(void)
{
    char path[SCRATCH_PATH + 32];
    snprintf(path, sizeof path, "%.4000s/sluice-scribe", bin);
    return access(path, X_OK) == 0;
}

/* The text says which; 1 when the process is gone. */
static int is_gone(const char *text)
{
    const char *pid = strstr(text, "pid ");
    assert_non_null(pid);
    return kill((pid_t)atoi(pid + 4), 0) != 0 && errno == ESRCH;
}

static void a_driver_that_hangs_is_named(void **state)
{
    (void)state;
    if (!need_programs())
        skip();
    assert_int_equal(run("hang", "", "device=auto", "batch=4"), ERR_ENV);
    assert_non_null(strstr(err_text(), "the NVIDIA driver does not answer"));
    assert_non_null(strstr(err_text(), "device=cpu"));
    assert_true(is_gone(err_text()));
}

static void a_child_that_fails_is_named(void **state)
{
    (void)state;
    if (!need_programs())
        skip();
    assert_int_equal(run("crash", "", "device=0", "batch=4"), ERR_FAILED);
    assert_non_null(strstr(err_text(), "devices (pid"));
    assert_non_null(strstr(err_text(), "the driver has a fit"));
    assert_int_equal(run("silent", "", "device=0", "batch=4"), ERR_ENV);
    assert_int_equal(run("{\"devices\":7}", "", "device=0", "batch=4"), ERR_ENV);
    assert_non_null(strstr(err_text(), "not one of this version"));
    assert_int_equal(run(none, "", "device=0", "batch=4"), ERR_ENV);
    assert_non_null(strstr(err_text(), "no NVIDIA driver is installed"));
}

/* Libraries that a machine without GPUs does not have, or has no room for. */
static void libraries_that_are_missing_are_no_gpu(void **state)
{
    (void)state;
    if (!need_programs())
        skip();
    assert_int_equal(run("unloaded", "", "device=auto", "batch=4"), ERR_ENV);
    assert_non_null(strstr(told, "device=auto: the CPU, for there is no GPU to use: "
                                 "/somewhere/sluice-trainer-cuda: error while loading shared "
                                 "libraries: libcudnn.so.9: "));
    assert_non_null(strstr(err_text(), "rank-0")); /* that it came to: the fake leaves at once */
    assert_int_equal(run("unloaded", "", "device=0", "batch=4"), ERR_ENV);
    assert_non_null(strstr(err_text(), "device=0: no usable GPU was found (/somewhere/"));
    assert_non_null(strstr(err_text(), "libcudnn.so.9: cannot open"));
    assert_null(strstr(err_text(), "rank-0"));
}

static void move_program(const char *name, const char *to)
{
    char path[SCRATCH_PATH + 64], other[SCRATCH_PATH + 64];
    snprintf(path, sizeof path, "%.4000s/%s", bin, name);
    snprintf(other, sizeof other, "%.4000s/%s", bin, to);
    assert_int_equal(rename(path, other), 0);
}

/* sluice-trainer-cuda is asked for GPUs and computes on them, sluice-trainer does where it is alone. */
static void the_trainer_with_cuda_is_asked(void **state)
{
    (void)state;
    char path[SCRATCH_PATH + 64], whole[SCRATCH_PATH + 64];
    snprintf(whole, sizeof whole, "%.4000s/sluice-trainer-cuda", bin);
    programs_trainer(bin, 1, path, sizeof path);
    assert_string_equal(path, whole);
    programs_trainer(bin, 0, path, sizeof path);
    whole[strlen(whole) - strlen("-cuda")] = '\0';
    assert_string_equal(path, whole);
    if (!need_programs())
        skip();
    assert_int_equal(run("name", "", "device=0", "batch=4"), ERR_ENV);
    assert_non_null(strstr(err_text(), "asked sluice-trainer-cuda"));
    move_program("sluice-trainer-cuda", "elsewhere");
    programs_trainer(bin, 1, path, sizeof path);
    int alone = run("name", "", "device=0", "batch=4");
    move_program("elsewhere", "sluice-trainer-cuda");
    assert_string_equal(path, whole);
    assert_int_equal(alone, ERR_ENV);
    assert_non_null(strstr(err_text(), "asked sluice-trainer)"));
    /* Ranks: one of the two cannot be started, which is the one that is named. */
    move_program("sluice-trainer", "elsewhere");
    int gpu = run(four, "", "device=1", "batch=4");
    char words[1024];
    snprintf(words, sizeof words, "%s", err_text());
    int cpu = run(four, "", "device=cpu", "batch=4");
    move_program("elsewhere", "sluice-trainer");
    assert_int_equal(gpu, ERR_ENV);
    assert_non_null(strstr(words, "rank-0"));
    assert_null(strstr(words, "did not start")); /* the fake has, and left */
    assert_int_equal(cpu, ERR_ENV);
    assert_non_null(strstr(err_text(), "did not start: exec "));
}

static void a_batch_is_chosen_or_not(void **state)
{
    (void)state;
    if (!need_programs())
        skip();
    /* The ranks are fakes that leave with status 4: what is looked at came before them. */
    assert_int_equal(
        run(four,
            "{\"batch\":8,\"need\":19800000000,\"of\":25600000000,\"device\":2,\"code\":0,"
            "\"why\":\"12 would need 29.1 GB\"}",
            "device=1,2", "batch=auto"),
        ERR_ENV);
    assert_non_null(
        strstr(told, "batch=auto: 8 (19.8 of 25.6 GB on GPU 2; 12 would need 29.1 GB)"));
    assert_non_null(strstr(told, "sync_bn=True"));
    assert_non_null(strstr(err_text(), "rank-"));
    assert_int_equal(run(four,
                         "{\"batch\":0,\"need\":0,\"of\":0,\"device\":1,\"code\":-4,"
                         "\"why\":\"not even one image fits\"}",
                         "device=1", "batch=-1"),
                     ERR_ENV);
    assert_string_equal(err_text(), "batch=auto: not even one image fits");
    static const char *const bad[] = {
        "{\"batch\":7,\"need\":1,\"of\":1,\"device\":1,\"code\":0,\"why\":\"\"}", /* two ranks */
        "{\"batch\":-2,\"need\":1,\"of\":1,\"device\":1,\"code\":0,\"why\":\"\"}",
        "{\"batch\":8,\"need\":1,\"of\":1,\"device\":1,\"code\":-900,\"why\":\"x\"}",
        "{\"batch\":8}",
        "8",
        "{\"batch\":",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(run(four, bad[i], "device=1,2", "batch=auto"), ERR_ENV);
        assert_non_null(strstr(err_text(), "sluice-trainer --plan"));
    }
}

static void link_program(const char *name, const char *from)
{
    char path[SCRATCH_PATH + 64];
    snprintf(path, sizeof path, "%.4000s/%s", bin, name);
    if (access(from, X_OK) == 0 && symlink(from, path) != 0)
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
}

static int set_up(void **state)
{
    (void)state;
    char self[SCRATCH_PATH], from[SCRATCH_PATH + 64], name[64];
    const char *programs = getenv("SLUICE_BIN");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return -1;
    self[n] = '\0';
    scratch_begin(scratch);
    snprintf(bin, sizeof bin, "%s", scratch_folder(scratch, "bin"));
    link_program("sluice-trainer", self);
    link_program("sluice-trainer-cuda", self);
    static const char *const real[] = {"sluice-scribe", "sluice-loader"};
    for (int i = 0; i < 2; i++) {
        char *whole;
        snprintf(from, sizeof from, "%.4000s/%s", programs ? programs : "build/bin", real[i]);
        whole = realpath(from, NULL);
        if (whole)
            link_program(real[i], whole);
        free(whole);
    }
    for (int i = 0; i < 24; i++) {
        snprintf(name, sizeof name, "images/%s/%02d.jpg", i < 20 ? "train" : "val", i);
        scratch_write_jpeg(scratch, name, 32, 32);
        snprintf(name, sizeof name, "labels/%s/%02d.txt", i < 20 ? "train" : "val", i);
        scratch_text(scratch, name, "0 0.5 0.5 0.25 0.25\n");
    }
    scratch_text(scratch, "data.yaml", "train: images/train\nval: images/val\nnames: [a]\n");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_end(scratch);
    return 0;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
    if (strncmp(name, "sluice-trainer", strlen("sluice-trainer")) == 0)
        return fake_trainer(name, argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(other_lists_are_refused),
        cmocka_unit_test(names_cannot_drive_a_terminal),
        cmocka_unit_test(changed_bytes_do_no_harm),
        cmocka_unit_test(devices_are_chosen),
        cmocka_unit_test(formats_follow_the_devices),
        cmocka_unit_test(rungs_grow),
        cmocka_unit_test(this_machine_has_a_list),
        cmocka_unit_test(a_driver_that_hangs_is_named),
        cmocka_unit_test(a_child_that_fails_is_named),
        cmocka_unit_test(libraries_that_are_missing_are_no_gpu),
        cmocka_unit_test(the_trainer_with_cuda_is_asked),
        cmocka_unit_test(a_batch_is_chosen_or_not),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
