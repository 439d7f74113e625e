/* sluice bench step [key=value ...]: a training step measured on one device, as a line of JSON. A child
 * measures (trainer/bench.h says what the line holds). */
#include "tools/commands.h"

#include "control/gpus.h"
#include "control/programs.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "tools/run_options.h"
#include "tools/words.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    BENCH_GRACE_S = 30, /* for a child that ends by itself at its own deadline */
    BENCH_LOOK_MS = 50,
    BENCH_END_MS = 2000, /* for a child that was killed */
    BENCH_WORDS = 24,
    BENCH_WORD = OPTIONS_PATH_BYTES + 32,
};

typedef struct {
    const char *model, *device, *amp, *optimizer;
    long long batch, imgsz, steps, warmup, nc, boxes, seconds, tflops;
} request_t;

/* The child's words: numbers of the measurement, then options of train. */
typedef struct {
    char text[BENCH_WORDS][BENCH_WORD];
    const char *at[BENCH_WORDS + 1];
    int n;
} child_words_t;

/* Its standard error: the line with its own failure, and the beginning of one that is not whole. */
typedef struct {
    char line[2048], failure[2048];
    size_t used;
} speech_t;

static int read_request(int argc, char **argv, request_t *r)
{
    word_t words[] = {
        {.key = "model", .text = &r->model},
        {.key = "device", .text = &r->device},
        {.key = "amp", .text = &r->amp},
        {.key = "optimizer", .text = &r->optimizer},
        {.key = "batch", .number = &r->batch, .least = 1, .most = 4096},
        {.key = "imgsz", .number = &r->imgsz, .least = 32, .most = 16384},
        {.key = "steps", .number = &r->steps, .least = 1, .most = 1000},
        {.key = "warmup", .number = &r->warmup, .least = 1, .most = 1000},
        {.key = "nc", .number = &r->nc, .least = 1, .most = 10000},
        {.key = "boxes", .number = &r->boxes, .least = 1, .most = 1000},
        {.key = "seconds", .number = &r->seconds, .least = 1, .most = 86400},
        {.key = "tflops", .number = &r->tflops, .least = 0, .most = 100000},
    };
    *r = (request_t){.model = "yolo11m",
                     .device = "auto",
                     .amp = "True",
                     .optimizer = "SGD",
                     .batch = 8,
                     .imgsz = 2048,
                     .steps = 30,
                     .warmup = 10,
                     .nc = 80,
                     .boxes = 20,
                     .seconds = 300};
    if (argc < 2 || strcmp(argv[1], "step") != 0)
        return err_set(ERR_CONFIG, "usage: sluice bench step [key=value ...], as in `sluice bench "
                                   "step model=yolo11m batch=8 imgsz=2048 device=0`");
    return words_read("bench", argc - 1, argv + 1, words, sizeof words / sizeof words[0]);
}

static void add_word(child_words_t *c, const char *word)
{
    snprintf(c->text[c->n], BENCH_WORD, "%s", word);
    c->at[c->n] = c->text[c->n];
    c->n++;
}

static void add_number(child_words_t *c, const char *word, long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    add_word(c, word);
    add_word(c, text);
}

static int add_option(child_words_t *c, const char *key, const char *value)
{
    if (strlen(key) + strlen(value) + 2 > BENCH_WORD)
        return err_set(ERR_CONFIG, "bench: %s= is too long", key);
    snprintf(c->text[c->n], BENCH_WORD, "%s=%s", key, value);
    c->at[c->n] = c->text[c->n];
    c->n++;
    return 0;
}

static int make_words(const request_t *r, child_words_t *c)
{
    char batch[32], imgsz[32];
    snprintf(batch, sizeof batch, "%lld", r->batch);
    snprintf(imgsz, sizeof imgsz, "%lld", r->imgsz);
    add_word(c, "--bench");
    add_number(c, "--steps", r->steps);
    add_number(c, "--warmup", r->warmup);
    add_number(c, "--classes", r->nc);
    add_number(c, "--boxes", r->boxes);
    add_number(c, "--seconds", r->seconds);
    if (r->tflops > 0)
        add_number(c, "--tflops", r->tflops);
    const char *const options[][2] = {{"model", r->model}, {"device", r->device},
                                      {"amp", r->amp},     {"optimizer", r->optimizer},
                                      {"batch", batch},    {"imgsz", imgsz}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof options / sizeof options[0]; i++)
        rc = add_option(c, options[i][0], options[i][1]);
    return rc;
}

/* ---- the child ---- */

/* Its last words, or those of the loader of libraries, are this command's error; its other lines are
 * shown as they come. */
static void take_line(speech_t *s)
{
    static const char own[] = "sluice-trainer: ";
    if (strncmp(s->line, own, sizeof own - 1) == 0)
        snprintf(s->failure, sizeof s->failure, "%s", s->line + sizeof own - 1);
    else if (strstr(s->line, ": error while loading shared libraries: "))
        snprintf(s->failure, sizeof s->failure, "%s", s->line);
    else
        fprintf(stderr, "%s\n", s->line);
    s->used = 0;
}

static void listen(int fd, speech_t *s)
{
    char bytes[1024];
    ssize_t n;
    while ((n = read(fd, bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] != '\n' && s->used + 1 < sizeof s->line) {
                s->line[s->used++] = bytes[i];
                continue;
            }
            s->line[s->used] = '\0';
            take_line(s);
        }
}

static int ends_within(supervise_child_t *child, uint64_t ms, speech_t *s)
{
    const uint64_t until = clock_ns() + ms * 1000000;
    for (;;) {
        int ended = supervise_ended(child);
        listen(child->errors, s);
        if (ended)
            return 1;
        if (clock_ns() >= until)
            return 0;
        struct pollfd p[] = {{.fd = child->errors, .events = POLLIN},
                             {.fd = child->pidfd, .events = POLLIN}};
        poll(p, 2, BENCH_LOOK_MS);
    }
}

static int how_it_failed(const supervise_child_t *child, speech_t *s)
{
    char how[256];
    if (WIFEXITED(child->status) && WEXITSTATUS(child->status) <= -ERR_ENV && s->failure[0])
        return err_set(-WEXITSTATUS(child->status), "%s", s->failure);
    supervise_describe(child, how, sizeof how);
    if (programs_unloaded(child)) {
        if (!s->failure[0])
            snprintf(s->failure, sizeof s->failure, "sluice-trainer-cuda %s", how);
        return err_set(ERR_ENV, "%s", s->failure);
    }
    return err_set(ERR_FAILED, "sluice-trainer --bench %s%s%s", how, s->failure[0] ? ": " : "",
                   s->failure);
}

static int wait_for(supervise_child_t *child, long long seconds, speech_t *s)
{
    if (!ends_within(child, (uint64_t)(seconds + BENCH_GRACE_S) * 1000, s)) {
        supervise_kill(child);
        int ended = ends_within(child, BENCH_END_MS, s);
        return err_set(ERR_TIMEOUT,
                       "nothing was measured within %lld s (pid %d%s): raise seconds=, or lower "
                       "batch, imgsz or steps",
                       seconds, (int)child->pid,
                       ended ? "" : ", which was killed and which the kernel does not let go");
    }
    return WIFEXITED(child->status) && WEXITSTATUS(child->status) == 0 ? 0
                                                                       : how_it_failed(child, s);
}

/* *unloaded: the trainer did not begin, and the speech has why. */
static int measure(const char *bin_dir, int gpu, const request_t *r, speech_t *s, int *unloaded)
{
    char program[PATH_MAX + 32], *text = NULL;
    const char *env[] = {"OPENBLAS_NUM_THREADS=1", supervise_blas(), NULL};
    supervise_child_t child;
    size_t bytes = 0;
    int fd = -1, started = 0, rc;
    child_words_t *words = calloc(1, sizeof *words);
    *unloaded = 0;
    if (!words)
        return err_set(ERR_ENV, "no memory for a command line");
    CHECK_GOTO(make_words(r, words), rc, done);
    programs_trainer(bin_dir, gpu, program, sizeof program);
    const gpus_question_t question = {.program = program, .words = words->at, .env = env};
    CHECK_GOTO(gpus_ask(&question, &child, &fd), rc, done);
    started = 1;
    rc = wait_for(&child, r->seconds, s);
    *unloaded = programs_unloaded(&child);
    if (rc == 0)
        rc = gpus_answer(fd, "the answer of sluice-trainer --bench", &text, &bytes);
    if (rc == 0)
        fwrite(text, 1, bytes, stdout);
done:
    if (started)
        supervise_close(&child);
    if (fd >= 0)
        close(fd);
    free(text);
    free(words);
    return rc;
}

/* What device= comes to before anybody has looked for GPUs: a number, or DEVICE_AUTO and its like. */
static int device_of(const request_t *r, int *device)
{
    char word[BENCH_WORD];
    options_t *o = calloc(1, sizeof *o);
    if (!o)
        return err_set(ERR_ENV, "no memory for options");
    options_default(o);
    snprintf(word, sizeof word, "device=%s", r->device);
    int rc = options_set(o, word);
    *device = o->devices[0];
    free(o);
    return rc;
}

int cmd_bench(int argc, char **argv)
{
    char bin_dir[PATH_MAX];
    speech_t s = {.used = 0};
    request_t request;
    int device = DEVICE_AUTO, unloaded = 0, rc;
    CHECK_GOTO(read_request(argc, argv, &request), rc, done);
    CHECK_GOTO(device_of(&request, &device), rc, done);
    CHECK_GOTO(run_bin_dir(bin_dir, sizeof bin_dir), rc, done);
    rc = measure(bin_dir, device != DEVICE_CPU, &request, &s, &unloaded);
    if (unloaded && device == DEVICE_AUTO) {
        fprintf(stderr, "device=auto: the CPU, for there is no GPU to use: %s\n", s.failure);
        request.device = "cpu";
        s = (speech_t){.used = 0};
        rc = measure(bin_dir, 0, &request, &s, &unloaded);
    }
done:
    return rc;
}
