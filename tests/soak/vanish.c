#include "tests/soak/vanish.h"

#include "tests/soak/clock.h"
#include "tests/soak/process.h"
#include "tests/soak/say.h"

#include <stdio.h>
#include <string.h>

enum { VANISH_SHELL_S = 20, VANISH_FILES = 4 /* of each data set: three of training, one */ };

/* A line of shell in the folder vanish/. */
static int shell(const soak_t *soak, const char *line, const char *also)
{
    char text[6 * RUN_PATH], said[1024];
    const char *const argv[] = {"/bin/sh", "-c", text, NULL};
    snprintf(text, sizeof text, "set -e; mkdir -p %s/vanish; cd %s/vanish; %s%s", soak->work,
             soak->work, line, also);
    int rc = process_ask(argv, VANISH_SHELL_S, said, sizeof said);
    return rc == 0 ? 0 : say_violation("%s: exit status %d: %s", text, rc, said);
}

int vanish_prepare(const soak_t *soak)
{
    static const char script[] =
        "mkdir -p bin kept; "
        "for d in ../small ../large; do "
        "ls $d/images/train/* | sed -n '2p;5p;6p'; ls $d/images/val/* | sed -n '2p'; done "
        ">victims; "
        "for n in sluice-trainer sluice-scribe; do ln -sf $b/$n bin/$n; done; "
        "cp $b/sluice bin/; "
        "printf '#!/bin/sh\\ncase \" $* \" in *\" --scan \"*) ;; *)\\n"
        "(cd %s && [ ! -e back ] && while read -r f; do mv $f kept/${f#../}; done <victims) "
        "2>/dev/null ;;\\nesac\\nexec %s/sluice-loader \"$@\"\\n' \"$PWD\" \"$b\" "
        ">bin/sluice-loader; "
        "chmod +x bin/sluice-loader; "
        "for d in small large; do mkdir -p kept/$d/images/train kept/$d/images/val; done";
    char line[RUN_PATH + sizeof script];
    snprintf(line, sizeof line, "b=%s; %s", soak->bin, script);
    return shell(soak, line, "");
}

static const char put_back[] =
    "while read -r f; do [ ! -e kept/${f#../} ] || mv kept/${f#../} $f; done <victims";

int vanish_begin(const soak_t *soak, vanish_t *v)
{
    v->named_at = 0;
    v->back = 0;
    return shell(soak, "rm -f back;", put_back);
}

int vanish_end(const soak_t *soak)
{
    return shell(soak, "touch back;", put_back);
}

/* A ring holds 4 batches and the ledger takes effect two rings ahead: in steps of a training and in
 * images of a digest (batches of 8), twice that. */
int vanish_look(const run_t *r, const seen_t *seen, vanish_t *v)
{
    uint64_t ahead = r->config->kind == RUN_TRAIN ? 16 : 16 * 8;
    uint64_t now = run_progress(r, seen);
    if (v->back || seen->bad < VANISH_FILES)
        return 0;
    if (v->named_at == 0) {
        v->named_at = now + 1;
        say("the %d files that are gone have all been named", VANISH_FILES);
        return 0;
    }
    if (now < v->named_at + ahead)
        return 0;
    v->back = 1;
    v->returns++;
    /* A loader that starts this very moment must have seen the mark before they are moved. */
    if (shell(r->soak, "touch back; sleep 0.3;", put_back) < 0)
        return -1;
    say("the %d files are back", VANISH_FILES);
    return 0;
}
