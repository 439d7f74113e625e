/* A soak: sluice under random kills, stops, scalings, checkpoints and resumes for some minutes,
 * compared with runs that nothing was done to. See tests/README.md.
 *
 *   soak minutes=60 bin=build/bin [seed=N] [odd=FOLDER] [only=CONFIGURATION]
 *
 * The seed decides what is done and after how long; what a run is doing at that moment is the
 * machine's affair, so a seed repeats a soak in kind, not to the instant. Exit status 0 passed, 1 a
 * violation (everything the runs wrote is kept, and where is said), 2 usage or no working folder.
 */
#include "tests/soak/process.h"
#include "tests/soak/round.h"
#include "tests/soak/say.h"
#include "tests/soak/vanish.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CONFIGS = 9, FIRST_ROUNDS = 2, SOAK_LEAST_S = 10 };

typedef struct {
    double minutes;
    uint64_t seed;
    char odd[RUN_FOLDER], only[64];
    soak_t soak;
} settings_t;

static int usage(const char *why)
{
    fprintf(stderr,
            "soak: %s\nsoak minutes=N bin=FOLDER [seed=N] [odd=FOLDER] [only=CONFIGURATION]\n",
            why);
    return 2;
}

static int read_words(int argc, char **argv, settings_t *s)
{
    char *end = NULL;
    for (int i = 1; i < argc; i++) {
        const char *eq = strchr(argv[i], '=');
        size_t n = eq ? (size_t)(eq - argv[i]) : 0;
        if (!eq)
            return usage("words are key=value");
        if (strlen(eq + 1) >= RUN_FOLDER)
            return usage("a folder's path is too long");
        if (strncmp(argv[i], "minutes", n) == 0)
            s->minutes = strtod(eq + 1, &end);
        else if (strncmp(argv[i], "seed", n) == 0)
            s->seed = strtoull(eq + 1, &end, 10);
        else if (strncmp(argv[i], "bin", n) == 0)
            end = realpath(eq + 1, NULL);
        else if (strncmp(argv[i], "only", n) == 0)
            snprintf(s->only, sizeof s->only, "%.63s", eq + 1);
        else if (strncmp(argv[i], "odd", n) == 0)
            snprintf(s->odd, sizeof s->odd, "%s", eq + 1);
        else
            return usage(argv[i]);
        if (strncmp(argv[i], "bin", n) == 0 && end) {
            if (strlen(end) < sizeof s->soak.bin)
                strcpy(s->soak.bin, end);
            free(end);
            end = NULL;
        }
    }
    if (s->minutes <= 0 || s->minutes > 7 * 24 * 60 || !s->soak.bin[0])
        return usage("minutes= and bin= are needed");
    return 0;
}

/* The soak's folder, registered runs and all. TMPDIR should have some 300 MB. */
static int make_folder(settings_t *s)
{
    const char *tmp = getenv("TMPDIR");
    int n =
        snprintf(s->soak.work, sizeof s->soak.work, "%s/sluice-soak.XXXXXX", tmp ? tmp : "/tmp");
    if (n < 0 || (size_t)n >= sizeof s->soak.work - 64 || s->soak.work[0] != '/' ||
        !mkdtemp(s->soak.work)) {
        fprintf(stderr, "soak: %s: %s\n", s->soak.work, strerror(errno));
        return -1;
    }
    setenv("XDG_RUNTIME_DIR", s->soak.work, 1);
    snprintf(s->soak.small, sizeof s->soak.small, "%s/small/data.yaml", s->soak.work);
    snprintf(s->soak.large, sizeof s->soak.large, "%s/large/data.yaml", s->soak.work);
    return chdir(s->soak.work);
}

/* Two data sets. The small one's boxes are made six times as large, so that something is left of
 * them at 64 px; it gets odd files that decode with a warning, where there are any (of 1 to 64 KB:
 * among the smaller ones are slivers that the scan leaves out, and 6 megapixels of nothing). */
static int make_data(const settings_t *s)
{
    char text[4 * RUN_PATH], said[2048];
    const char *const argv[] = {"/bin/sh", "-c", text, NULL};
    snprintf(
        text, sizeof text,
        "set -e; sluice='%s/sluice'; "
        "$sluice sample out=small images=32 imgsz=128 seed=1 >/dev/null; "
        "$sluice sample out=large images=40 imgsz=640 seed=3 >/dev/null; "
        "for f in small/labels/*/*.txt; do awk '{ w = $4 * 6 > 0.9 ? 0.9 : $4 * 6; "
        "h = $5 * 6 > 0.9 ? 0.9 : $5 * 6; print $1, inside($2, w / 2), inside($3, h / 2), w, h } "
        "function inside(x, s) { return x < s ? s : x > 1 - s ? 1 - s : x }' $f >labels.new; "
        "mv labels.new $f; done; "
        "find '%s/' -type f -size +2 -size -128 -name '*.jpg' 2>/dev/null | sort | while read -r "
        "f; do "
        "cp $f small/images/train/odd_$(basename $f); "
        "cp $f large/images/train/odd_$(basename $f); done; chmod -R u+w small large; "
        "ls small/images/train/odd_* 2>/dev/null | wc -l",
        s->soak.bin, s->odd[0] ? s->odd : "/nonexistent");
    int rc = process_ask(argv, 120, said, sizeof said);
    if (rc != 0)
        return say_violation("making the data sets: exit status %d: %s", rc, said);
    say("data: 26 and 32 training images, and %d odd ones", atoi(said));
    return vanish_prepare(&s->soak);
}

static void configurations(const settings_t *s, config_t c[CONFIGS])
{
    int quick = s->minutes < 2;
    /* A fifteenth of the time, at what an epoch takes on two cores. */
    int calm_train = (int)(s->minutes * 4 / 0.35), calm_digest = (int)(s->minutes * 4 / 0.35);
    const config_t all[CONFIGS] = {
        {"train", RUN_TRAIN, 1, quick ? 6 : 16, 0, 0},
        {"digest-2", RUN_DIGEST, 2, quick ? 5 : 20, 0, 0},
        {"train-2", RUN_TRAIN, 2, quick ? 6 : 16, 0, 0},
        {"digest-vanish", RUN_DIGEST, 1, quick ? 5 : 20, 1, 0},
        {"train-vanish", RUN_TRAIN, 1, quick ? 8 : 16, 1, 0},
        {"digest", RUN_DIGEST, 1, 20, 0, 0},
        {"train-calm", RUN_TRAIN, 1, calm_train, 0, 1},
        {"digest-calm", RUN_DIGEST, 2, calm_digest, 0, 1},
        {"train-2-calm", RUN_TRAIN, 2, calm_train, 0, 1},
    };
    memcpy(c, all, sizeof all);
}

/* The next round's configuration: the first ones in order, then by the seed; none that would not
 * come to its end in the time left. */
static reference_t *choose(reference_t *r, int n, uint32_t round, draw_t *draw, double left,
                           double minutes)
{
    if (round < FIRST_ROUNDS)
        return &r[round < (uint32_t)n ? round : 0];
    for (int tries = 0; tries < 100; tries++) {
        reference_t *at = &r[draw_whole(draw, 0, (uint32_t)n - 1)];
        double alone = at->config->calm ? minutes * 4 : 5;
        double need = at->there ? at->seconds * 2 : alone * 3;
        if (need > left || (at->config->calm && at->there && draw_whole(draw, 0, 2)))
            continue;
        return at;
    }
    return NULL;
}

static void table(const settings_t *s, const totals_t *t, double minutes)
{
    say_where("soak");
    say("%.1f minutes, seed %llu: %u rounds, %u starts, %u resumes", minutes,
        (unsigned long long)s->seed, t->rounds, t->runs, t->resumes);
    say("  %-22s %8s %14s", "action", "done", "longest");
    for (int i = 0; i < n_actions; i++)
        say("  %-22s %8u %12.2f s", actions[i].name, t->tally[i].done, t->tally[i].longest_s);
    say("  %-22s %8u %12.2f s", "resume to next step", t->resumes, t->longest_resume_s);
    say("  %-22s %8u", "vanished files back", t->returns);
    say("  %-22s %8s %14s %14s %12s", "growth when settled", "watched", "longest life",
        "own memory", "grown by");
    for (int i = 0; i < ROUND_PROGRAMS && t->rows[i].name[0]; i++)
        say("  %-22s %8d %12.0f s %10llu KiB %8lld KiB", t->rows[i].name, t->rows[i].processes,
            t->rows[i].life_s, (unsigned long long)t->rows[i].most_kb,
            (long long)t->rows[i].memory_kb);
    say("  left behind after %u ends: no process, socket, entry, lock or temporary file", t->runs);
}

static int soak(const settings_t *s)
{
    static config_t configs[CONFIGS];
    static totals_t totals;
    reference_t references[CONFIGS] = {{0}};
    double began = clock_s(), until = began + s->minutes * 60;
    draw_t draw = draw_begin(s->seed, 0);
    configurations(s, configs);
    int n = s->minutes < 2 ? 5 : CONFIGS, rc = make_data(s);
    for (int i = 0; i < n; i++)
        references[i].config = &configs[i];
    for (int i = 0; i < CONFIGS && s->only[0]; i++)
        if (strcmp(configs[i].name, s->only) == 0) {
            references[0].config = &configs[i];
            n = 1;
        }
    while (rc == 0 && clock_s() < until) {
        reference_t *r = choose(references, n, totals.rounds, &draw, until - clock_s(), s->minutes);
        if (!r)
            break;
        rc = round_reference(&s->soak, r);
        /* However long the first reference took on a busy machine, something is done. */
        double least = totals.rounds == 0 ? clock_s() + SOAK_LEAST_S : 0;
        if (rc == 0)
            rc = round_play(&s->soak, r, s->seed, until > least ? until : least, &totals);
    }
    table(s, &totals, (clock_s() - began) / 60);
    return rc;
}

int main(int argc, char **argv)
{
    static settings_t s;
    char log[RUN_PATH];
    s.seed = (uint64_t)time(NULL) % 1000000;
    int rc = read_words(argc, argv, &s);
    if (rc)
        return rc;
    if (make_folder(&s) < 0)
        return 2;
    snprintf(log, sizeof log, "%s/soak.log", s.soak.work);
    if (process_adopt() != 0 || say_open(log) < 0)
        return 2;
    say_where("soak");
    say("seed %llu, %g minutes, in %s", (unsigned long long)s.seed, s.minutes, s.soak.work);
    rc = soak(&s);
    if (rc == 0) {
        const char *const rm[] = {"/bin/rm", "-rf", s.soak.work, NULL};
        char text[256];
        say("soak: passed");
        process_ask(rm, WAIT_ASK, text, sizeof text);
        return 0;
    }
    say("soak: FAILED: %s", say_first());
    say("all that the runs wrote is in %s", s.soak.work);
    say("again: make soak MINUTES=%g SEED=%llu", s.minutes, (unsigned long long)s.seed);
    return 1;
}
