/* Samples that cannot be used and samples that are used with a warning: the ledger's entries, what
 * is told, and when it is too much. */
#include "control/coordinator_state.h"

#include "shm/err.h"

#include <stdio.h>
#include <string.h>

/* A storage is taken to be gone when a third of so many other images or more could not be read: at a
 * tenth, which ends a run by itself, that is met by chance once in 100,000 trials of 48. */
enum { GONE_PROBED = 20, GONE_SHARE = 3 };

static const char *split_name(uint32_t split)
{
    return split == CATALOG_TRAIN ? "train" : "val";
}

static const char *path_of(const coordinator_t *c, uint32_t split, uint32_t sample)
{
    return catalog_path(c->catalog, catalog_sample(c->catalog, (catalog_split_t)split, sample));
}

/* A place in a split's order that no loader has claimed and that none claims before it hears of it:
 * two windows ahead of the trainer that is furthest, for a loader reads its messages before every
 * claim. */
static ledger_place_t beyond_claims(const coordinator_t *c, uint32_t split)
{
    uint64_t seq = 0;
    for (uint32_t r = 0; r < c->ranks; r++) {
        uint64_t ahead = ring_tail(c->rings[r]) + 2 * (uint64_t)c->ring_config.depth;
        seq = ahead > seq ? ahead : seq;
    }
    plan_batch_t b = plan_locate(&c->plan, seq);
    ledger_place_t place = {.epoch = b.epoch};
    if (b.phase == (split == CATALOG_TRAIN ? PLAN_TRAIN : PLAN_VAL))
        place.position = plan_position(&c->plan, &b, 0, 0);
    else if (b.phase == PLAN_VAL) /* an epoch's training comes before its validation */
        place.epoch++;
    return place;
}

static void tell_bad_sample(coordinator_t *c, const wire_bad_sample_t *m, const char *substitute)
{
    const char *path = path_of(c, m->split, m->sample);
    event_t e;
    event_begin(&e, "bad-sample");
    json_key_string(&e.json, "path", path);
    json_key_string(&e.json, "reason", m->reason);
    json_key_string(&e.json, "split", split_name(m->split));
    json_key_uint(&e.json, "epoch", m->epoch + 1);
    json_key_uint(&e.json, "position", m->position);
    if (substitute)
        json_key_string(&e.json, "substitute", substitute);
    event_end(c, &e);
    uint32_t count = ledger_samples(c->ledger);
    tell_t how = substitute ? tell_how(count) : TELL_NAME;
    if (how == TELL_NAME || how == TELL_NAME_LAST)
        run_note(c, LOG_WARN, "bad sample: %s: %s%s%s", path, m->reason,
                 substitute ? "; another image is used in its place" : "",
                 how == TELL_NAME_LAST ? "; from here on bad samples are counted" : "");
    else if (how == TELL_COUNT)
        run_note(c, LOG_WARN, "%u bad samples so far, the last: %s: %s", count, path, m->reason);
}

/* Many others cannot be read either: it is not this file. */
static int storage_gone(const wire_bad_sample_t *m)
{
    return m->probed >= GONE_PROBED && m->unread * GONE_SHARE >= m->probed;
}

static void tell_storage_gone(coordinator_t *c, const wire_bad_sample_t *m)
{
    const char *path = path_of(c, m->split, m->sample);
    event_t e;
    event_begin(&e, "storage-gone");
    json_key_string(&e.json, "path", path);
    json_key_string(&e.json, "reason", m->reason);
    json_key_uint(&e.json, "tried", m->probed);
    json_key_uint(&e.json, "unread", m->unread);
    event_end(c, &e);
    run_give_up(c, ERR_DATA,
                "the storage of the %s images has gone: %s %s, and %u of %u others tried at random "
                "cannot be read either",
                m->split == CATALOG_TRAIN ? "training" : "validation", path, m->reason, m->unread,
                m->probed);
}

void samples_bad(coordinator_t *c, const proc_t *p, const wire_bad_sample_t *m)
{
    uint32_t substitute = 0;
    int rc = err_set(ERR_FAILED, "a bad-sample report before there is a sample list");
    /* What comes behind a reason to end for is a consequence of it. */
    if (c->code < 0)
        return;
    if (c->ledger && storage_gone(m) && m->split < CATALOG_SPLITS &&
        catalog_sample(c->catalog, (catalog_split_t)m->split, m->sample)) {
        tell_storage_gone(c, m);
        return;
    }
    if (results_bad(c, m))
        return;
    if (c->ledger) {
        ledger_place_t beyond = beyond_claims(c, m->split);
        rc = ledger_report(c->ledger, m, &beyond, &substitute);
    }
    if (rc == ERR_FAILED) {
        log_line(LOG_WARN, "%s: %s", p->name, err_text());
        return;
    }
    if (rc < 0) {
        char text[1024];
        snprintf(text, sizeof text, "%s", err_text());
        tell_bad_sample(c, m, NULL);
        run_give_up(c, rc, "%s", text);
        return;
    }
    if (rc == LEDGER_NEW)
        tell_bad_sample(c, m, path_of(c, m->split, substitute));
    /* Rank 0 too: its checkpoints have to hold what its batches were made with. */
    proc_catch_up(c, proc_trainer(c, 0));
    for (uint32_t i = 0; i < RUN_LOADERS_MAX; i++)
        proc_catch_up(c, proc_loader(c, i));
}

/* ---- decoder's warnings ---- */

/* Counted in c->warned already. */
static void tell_warned(coordinator_t *c, uint32_t split, const char *path, const char *reason,
                        const char *found)
{
    event_t e;
    event_begin(&e, "decoder-warning");
    json_key_string(&e.json, "path", path);
    json_key_string(&e.json, "reason", reason);
    json_key_string(&e.json, "split", split_name(split));
    json_key_string(&e.json, "found", found);
    event_end(c, &e);
}

void samples_warned(coordinator_t *c, const proc_t *p, const wire_warned_t *m)
{
    int rc = c->catalog ? warned_add(&c->warned, m->split, m->sample)
                        : err_set(ERR_FAILED, "a decoder's warning before there is a sample list");
    if (rc < 0)
        log_line(LOG_WARN, "%s: %s", p->name, err_text());
    if (rc <= 0)
        return;
    char reason[WIRE_TEXT + 80];
    if (m->warnings > 1)
        snprintf(reason, sizeof reason, "decodes with %u warnings, the first: %s", m->warnings,
                 m->text);
    else
        snprintf(reason, sizeof reason, "decodes with a warning: %s", m->text);
    const char *path = path_of(c, m->split, m->sample);
    tell_warned(c, m->split, path, reason, "training");
    uint32_t count = ++c->warned_in_training;
    tell_t how = tell_how(count);
    if (how == TELL_NAME || how == TELL_NAME_LAST)
        run_note(c, LOG_WARN, "%s %s; it is used (on_warning=skip would not)%s", path, reason,
                 how == TELL_NAME_LAST ? "; from here on such images are counted" : "");
    else if (how == TELL_COUNT)
        run_note(c, LOG_WARN, "%u images decode with a warning so far, the last: %s", count, path);
}

/* ---- the scan's findings ---- */

enum { ISSUES_SHOWN = 20 };

static void tell_issue(coordinator_t *c, const catalog_issue_t *issue, int shown)
{
    const char *path = catalog_string(c->catalog, issue->path);
    const char *reason = catalog_string(c->catalog, issue->reason);
    static const char *const events[] = {[CATALOG_DROPPED] = "sample-left-out",
                                         [CATALOG_WARNED] = "sample-remark",
                                         [CATALOG_KEPT] = "sample-kept"};
    static const char *const words[] = {[CATALOG_DROPPED] = "left out",
                                        [CATALOG_WARNED] = "remark",
                                        [CATALOG_DECODER] = "remark",
                                        [CATALOG_KEPT] = "keeps its place, and cannot be used"};
    if (issue->kind == CATALOG_DECODER) {
        tell_warned(c, issue->split, path, reason, "scan");
    } else {
        event_t e;
        event_begin(&e, events[issue->kind]);
        json_key_string(&e.json, "path", path);
        json_key_string(&e.json, "reason", reason);
        json_key_string(&e.json, "split", split_name(issue->split));
        event_end(c, &e);
    }
    if (shown)
        run_note(c, LOG_WARN, "%s: %s: %s", words[issue->kind], path, reason);
}

void samples_issues(coordinator_t *c)
{
    uint32_t n = catalog_issues(c->catalog), dropped = 0, kept = 0;
    char warned[80] = "";
    for (uint32_t i = 0; i < n; i++) {
        const catalog_issue_t *issue = catalog_issue(c->catalog, i);
        dropped += issue->kind == CATALOG_DROPPED;
        kept += issue->kind == CATALOG_KEPT;
        tell_issue(c, issue, i < ISSUES_SHOWN);
    }
    c->left_out = dropped;
    if (n > ISSUES_SHOWN)
        run_note(c, LOG_WARN, "and %u more%s", n - ISSUES_SHOWN,
                 c->config->digest_only ? "" : "; all are in events.jsonl");
    if (kept)
        run_note(
            c, LOG_WARN,
            "%u image%s of the run's list cannot be used now: %s in it, and where training meets "
            "%s others are used, as when a file goes bad while it is on",
            kept, kept == 1 ? "" : "s", kept == 1 ? "it keeps its place" : "they keep their places",
            kept == 1 ? "it" : "them");
    if (warned_count(&c->warned))
        snprintf(warned, sizeof warned, ", %u used although their decoder warns",
                 warned_count(&c->warned));
    if (!run_trains(c)) {
        run_note(c, LOG_INFO, "%u images, %u left out%s", catalog_count(c->catalog, CATALOG_VAL),
                 dropped, warned);
        return;
    }
    run_note(c, LOG_INFO,
             "data: %u training images (%u without objects), %u for validation, %u left out%s",
             catalog_count(c->catalog, CATALOG_TRAIN),
             catalog_backgrounds(c->catalog, CATALOG_TRAIN), catalog_count(c->catalog, CATALOG_VAL),
             dropped, warned);
}
