/* DESIGN. The files of both splits are one array; threads take the next index and write what they
 * find into its finding, so no thread writes what another reads and the order of the results is
 * that of the list. The calling thread waits with a deadline, tells the progress and builds the
 * catalogue at the end. If it is told to give up while a thread hangs in a dead mount, that thread
 * cannot be joined: the pool is then left as it is, and the process is expected to end. */
#include "loader/scan.h"

#include "control/log.h"
#include "loader/inspect.h"
#include "loader/listing.h"
#include "loader/reference.h"
#include "loader/source.h"
#include "shm/arena.h"
#include "shm/err.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Threads mostly wait for storage, so even one CPU gets several. */
enum { THREADS_MIN = 4, THREADS_MAX = 8, TICK_MS = 50, GIVE_UP_MS = 2000 };
/* A data set of at most this many bytes is decoded whole: about two seconds of one CPU (libjpeg
 * takes some 80 MB/s, facts/loader.md 5) buy a verdict on every file before training. */
enum { DECODE_ALL_BYTES = 128 << 20 };

typedef struct {
    const inspect_rules_t *rules;
    const char *const *paths;
    finding_t *findings;
    uint32_t count;
    /* Relaxed: each index is taken once; findings are read after pthread_join. */
    _Atomic uint32_t next, done;
    /* Relaxed: 1 ends the threads after their present file. */
    _Atomic int stop;
    /* Under the mutex: threads that have not come to their end, and the first error of any. */
    pthread_mutex_t mutex;
    pthread_cond_t ended; /* alive has changed; waits by CLOCK_MONOTONIC */
    int alive;
    int failed;
    char reason[512];
    pthread_t threads[THREADS_MAX];
    int n_threads;
} pool_t;

/* What the splits' listings became. */
typedef struct {
    dataset_t *dataset;
    listing_t listings[CATALOG_SPLITS];
    uint32_t first[CATALOG_SPLITS], count[CATALOG_SPLITS]; /* of paths and findings */
    const char **paths; /* borrowed from the listings and the list of a run that goes on */
    finding_t *findings;
    uint32_t total;
    inspect_rules_t rules;
    opt_mode_t mode;
    int again; /* for a run that goes on: its list is in `reference` */
    reference_t reference;
} scan_t;

/* ---- threads ---- */

static void pool_fail(pool_t *p, int rc)
{
    pthread_mutex_lock(&p->mutex);
    if (p->failed == 0) {
        p->failed = rc;
        snprintf(p->reason, sizeof p->reason, "%s", err_text());
    }
    pthread_mutex_unlock(&p->mutex);
    atomic_store_explicit(&p->stop, 1, memory_order_relaxed);
}

static void *pool_thread(void *arg)
{
    pool_t *p = arg;
    inspector_t *inspector = NULL;
    int rc = inspector_new(p->rules, &inspector);
    while (rc == 0 && !atomic_load_explicit(&p->stop, memory_order_relaxed)) {
        uint32_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->count)
            break;
        rc = inspect_image(inspector, p->paths[i], &p->findings[i]);
        atomic_fetch_add_explicit(&p->done, 1, memory_order_relaxed);
    }
    if (rc < 0)
        pool_fail(p, rc);
    inspector_free(&inspector);
    pthread_mutex_lock(&p->mutex);
    p->alive--;
    pthread_cond_signal(&p->ended);
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

static int pool_start(pool_t *p, int threads)
{
    int error = 0;
    pthread_mutex_lock(&p->mutex); /* a thread that ends at once waits to be counted */
    for (int i = 0; i < threads; i++) {
        error = pthread_create(&p->threads[i], NULL, pool_thread, p);
        if (error)
            break; /* fewer will do */
        p->alive = ++p->n_threads;
    }
    pthread_mutex_unlock(&p->mutex);
    if (error && p->n_threads == 0)
        return err_set(ERR_ENV, "cannot start a thread: %s", strerror(error));
    return 0;
}

/* Waits at most TICK_MS; 1 when every thread is at its end. */
static int pool_ended(pool_t *p)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TICK_MS * 1000000l;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&p->mutex);
    if (p->alive > 0)
        pthread_cond_timedwait(&p->ended, &p->mutex, &until);
    int ended = p->alive == 0;
    pthread_mutex_unlock(&p->mutex);
    return ended;
}

/* Joins all threads, telling the progress meanwhile. *stuck is set when one did not end in time
 * after progress asked to give up. */
static int pool_wait(pool_t *p, scan_progress_fn progress, void *user, int *stuck)
{
    int rc = 0, waited_ms = 0;
    *stuck = 0;
    while (!pool_ended(p)) {
        if (rc == 0 && progress)
            rc = progress(user, atomic_load_explicit(&p->done, memory_order_relaxed), p->count);
        if (rc == 0)
            continue;
        atomic_store_explicit(&p->stop, 1, memory_order_relaxed);
        waited_ms += TICK_MS;
        if (waited_ms > GIVE_UP_MS) {
            *stuck = 1;
            return rc;
        }
    }
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL); /* all that is left of it is to return */
    if (rc == 0 && progress)
        rc = progress(user, atomic_load_explicit(&p->done, memory_order_relaxed), p->count);
    return rc;
}

/* Runs the pool over all files. On *stuck nothing that the pool refers to may be freed. */
static int inspect_all(scan_t *s, int threads, scan_progress_fn progress, void *user, int *stuck)
{
    pool_t *p = calloc(1, sizeof *p);
    *stuck = 0;
    if (!p)
        return err_set(ERR_ENV, "no memory for the scan");
    if (threads <= 0) {
        threads = arena_cpus("");
        threads = threads > THREADS_MIN ? threads : THREADS_MIN;
    }
    threads = threads < THREADS_MAX ? threads : THREADS_MAX;
    if ((uint32_t)threads > s->total)
        threads = (int)s->total;
    p->rules = &s->rules;
    p->paths = s->paths;
    p->findings = s->findings;
    p->count = s->total;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = pool_start(p, threads);
    if (rc == 0)
        rc = pool_wait(p, progress, user, stuck);
    if (*stuck)
        return rc;
    if (rc == 0 && p->failed)
        rc = err_set(p->failed, "%s", p->reason);
    pthread_cond_destroy(&p->ended);
    pthread_mutex_destroy(&p->mutex);
    free(p);
    return rc;
}

/* ---- lists in ---- */

/* facts/yolo.md 7.2: fraction keeps the first round(N * fraction), half to even, of the sorted
 * list. */
static uint32_t keep_fraction(uint32_t n, double fraction)
{
    return fraction >= 1 ? n : (uint32_t)nearbyint((double)n * fraction);
}

/* 1 if all files together are small. Looks at no more files than it takes to know that they are
 * not. */
static int is_small(const scan_t *s)
{
    uint64_t bytes = 0;
    struct stat st;
    for (uint32_t i = 0; i < s->total && bytes <= DECODE_ALL_BYTES; i++)
        bytes += stat(s->paths[i], &st) == 0 ? (uint64_t)st.st_size : 0;
    return bytes <= DECODE_ALL_BYTES;
}

typedef struct {
    scan_progress_fn progress;
    void *user;
} teller_t;

/* While listing nobody knows how many there will be: of 0. */
static int tell_seen(void *user, uint64_t seen)
{
    const teller_t *t = user;
    return t->progress ? t->progress(t->user, seen, 0) : 0;
}

static int list_files(scan_t *s, const options_t *o, teller_t *teller)
{
    int rc = 0;
    for (int split = 0; split < CATALOG_SPLITS; split++) {
        rc = listing_make(s->dataset, (catalog_split_t)split, tell_seen, teller,
                          &s->listings[split]);
        if (rc < 0)
            return rc;
        double fraction = split == CATALOG_TRAIN ? o->fraction : 1;
        const paths_t *files = &s->listings[split].files;
        if (s->again)
            rc = reference_match(&s->reference, (catalog_split_t)split, files, fraction);
        if (rc < 0)
            return rc;
        s->first[split] = s->total;
        s->count[split] =
            s->again ? s->reference.count[split] : keep_fraction(files->count, fraction);
        s->total += s->count[split];
    }
    s->paths = calloc((size_t)s->total + 1, sizeof *s->paths);
    s->findings = calloc((size_t)s->total + 1, sizeof *s->findings);
    if (!s->paths || !s->findings)
        return err_set(ERR_ENV, "no memory for a list of %u images", s->total);
    for (int split = 0; split < CATALOG_SPLITS; split++)
        for (uint32_t i = 0; i < s->count[split]; i++)
            s->paths[s->first[split] + i] =
                s->again ? s->reference.items[split][i].path : s->listings[split].files.items[i];
    return 0;
}

static void scan_fini(scan_t *s)
{
    for (uint32_t i = 0; s->findings && i < s->total; i++)
        finding_fini(&s->findings[i]);
    free(s->findings);
    free(s->paths);
    for (int split = 0; split < CATALOG_SPLITS; split++)
        listing_fini(&s->listings[split]);
    reference_fini(&s->reference);
    dataset_free(&s->dataset);
}

/* ---- can it be trained on? ---- */

/* "/a/b, /c/list.txt and 3 more" */
static void name_entries(const paths_t *entries, char *text, size_t bytes)
{
    size_t n = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < entries->count && n < bytes; i++) {
        if (i == 2) {
            snprintf(text + n, bytes - n, " and %u more", entries->count - i);
            break;
        }
        n += (size_t)snprintf(text + n, bytes - n, "%s%s", i ? ", " : "", entries->items[i]);
    }
}

static int no_image(const scan_t *s, catalog_split_t split)
{
    const listing_t *l = &s->listings[split];
    char where[600];
    name_entries(&s->dataset->entries[split], where, sizeof where);
    const char *name = s->rules.no_labels ? "source" : dataset_split_name(split);
    for (uint32_t i = 0; i < s->count[split]; i++) {
        uint32_t k = s->first[split] + i;
        if (s->findings[k].dropped)
            return err_set(ERR_DATA,
                           "no usable %s image: all %u in %s were left out, the first: %s: %s",
                           name, s->count[split], where, s->paths[k], s->findings[k].dropped);
    }
    if (l->files.count > 0)
        return err_set(ERR_DATA, "no %s image: fraction leaves none of the %u in %s", name,
                       l->files.count, where);
    if (l->refused.count > 0)
        return err_set(ERR_DATA, "no usable %s image in %s: %u left out, the first: %s: %s", name,
                       where, l->refused.count, l->refused.items[0], l->reasons.items[0]);
    return err_set(ERR_DATA, "no %s image: looked for .jpg, .jpeg, .png and .bmp in %s", name,
                   where);
}

/* What has become of the list of a run that goes on. */
static int check_again(scan_t *s, const options_t *o)
{
    int rc = 0;
    for (int split = 0; rc == 0 && split < CATALOG_SPLITS; split++)
        rc = reference_judge(&s->reference, (catalog_split_t)split, s->findings + s->first[split]);
    return rc < 0 ? rc : reference_verdict(&s->reference, &s->dataset->names, o->single_cls);
}

static int check_split(const scan_t *s, catalog_split_t split)
{
    uint32_t usable = 0, with_file = 0;
    const char *first = NULL;
    for (uint32_t i = 0; i < s->count[split]; i++) {
        const finding_t *f = &s->findings[s->first[split] + i];
        if (f->dropped)
            continue;
        if (!first)
            first = s->paths[s->first[split] + i];
        usable++;
        with_file += f->labels.found != 0;
    }
    if (usable == 0)
        return no_image(s, split);
    if (split == CATALOG_VAL || with_file > 0)
        return 0;
    char *label = listing_label_path(first);
    int rc =
        err_set(ERR_DATA, "no label file for any of the %u train images: looked for %s and so on",
                usable, label ? label : "labels/*.txt");
    free(label);
    return rc;
}

/* ---- catalogue out ---- */

static int add_issues(const scan_t *s, catalog_split_t split, catalog_builder_t *b)
{
    const listing_t *l = &s->listings[split];
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < l->refused.count; i++)
        if (!s->again || !reference_has(&s->reference, split, l->refused.items[i]))
            rc = catalog_builder_issue(b, CATALOG_DROPPED, split, l->refused.items[i],
                                       l->reasons.items[i]);
    for (uint32_t i = 0; i < s->count[split]; i++) {
        uint32_t k = s->first[split] + i;
        const finding_t *f = &s->findings[k];
        if (rc == 0 && f->dropped)
            rc = catalog_builder_issue(b, f->kept ? CATALOG_KEPT : CATALOG_DROPPED, split,
                                       s->paths[k], f->dropped);
        if (rc == 0 && !f->dropped && f->warning)
            rc = catalog_builder_issue(b, CATALOG_DECODER, split, s->paths[k], f->warning);
        for (int r = 0; rc == 0 && !f->dropped && r < INSPECT_REMARKS && f->remarks[r]; r++)
            rc = catalog_builder_issue(b, CATALOG_WARNED, split, s->paths[k], f->remarks[r]);
    }
    return rc;
}

/* Remarks on a split as a whole; the path is its first entry. Returns 1 if polygons are to be
 * dropped: where boxes and polygons are mixed, all are boxes (facts/yolo.md 7.4). */
static int add_split_issues(const scan_t *s, catalog_split_t split, catalog_builder_t *b)
{
    uint64_t labels = 0, polygons = 0;
    char text[200] = "";
    if (s->rules.no_labels || s->dataset->entries[split].count == 0)
        return 0;
    for (uint32_t i = 0; i < s->count[split]; i++) {
        const finding_t *f = &s->findings[s->first[split] + i];
        if (f->dropped)
            continue;
        labels += f->labels.n;
        polygons += f->labels.n_points > 0 ? f->labels.n : 0;
    }
    int mixed = polygons > 0 && polygons < labels;
    if (labels == 0)
        snprintf(text, sizeof text, "no image has a label: only background is learnt or measured");
    else if (mixed)
        snprintf(
            text, sizeof text,
            "%llu of %llu labels are polygons: boxes and polygons are mixed, all are used as boxes",
            (unsigned long long)polygons, (unsigned long long)labels);
    if (!text[0])
        return 0;
    int rc =
        catalog_builder_issue(b, CATALOG_WARNED, split, s->dataset->entries[split].items[0], text);
    return rc < 0 ? rc : mixed;
}

typedef struct {
    double ratio;
    uint32_t index; /* of path order */
} val_key_t;

static int compare_keys(const void *a, const void *b)
{
    const val_key_t *x = a, *y = b;
    if (x->ratio != y->ratio)
        return x->ratio < y->ratio ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static int add_samples(scan_t *s, catalog_split_t split, int drop_polygons, catalog_builder_t *b)
{
    uint32_t n = s->count[split], used = 0;
    int rc = 0;
    val_key_t *keys = calloc((size_t)n + 1, sizeof *keys);
    if (!keys)
        return err_set(ERR_ENV, "no memory to sort %u images", n);
    for (uint32_t i = 0; i < n; i++) {
        const finding_t *f = &s->findings[s->first[split] + i];
        if (!f->dropped)
            keys[used++] =
                (val_key_t){(double)f->facts.height / (double)f->facts.width, s->first[split] + i};
    }
    if (split == CATALOG_VAL && s->mode != OPT_MODE_PREDICT)
        qsort(keys, used, sizeof *keys, compare_keys);
    for (uint32_t i = 0; rc == 0 && i < used; i++) {
        finding_t *f = &s->findings[keys[i].index];
        labels_t *l = &f->labels;
        for (uint32_t k = 0; drop_polygons && k < l->n; k++)
            l->rows[k].n_points = 0;
        rc = catalog_builder_sample(b, split, s->paths[keys[i].index], &f->facts, l->rows, l->n,
                                    l->points, drop_polygons ? 0 : l->n_points);
    }
    free(keys);
    return rc;
}

static int build(scan_t *s, int single_cls, catalog_builder_t *b)
{
    int rc = 0;
    for (uint32_t i = 0; i < (single_cls ? 0 : s->dataset->names.count); i++)
        CHECK_GOTO(catalog_builder_class(b, s->dataset->names.items[i]), rc, done);
    if (single_cls)
        CHECK_GOTO(catalog_builder_class(b, "item"), rc, done);
    for (int split = 0; split < CATALOG_SPLITS; split++) {
        int mixed;
        CHECK_GOTO(add_issues(s, (catalog_split_t)split, b), rc, done);
        CHECK_GOTO(mixed = add_split_issues(s, (catalog_split_t)split, b), rc, done);
        if (s->again)
            rc = reference_samples(&s->reference, (catalog_split_t)split,
                                   s->findings + s->first[split], b);
        else
            rc = add_samples(s, (catalog_split_t)split, mixed, b);
        if (rc < 0)
            goto done;
    }
done:
    return rc;
}

static int open_dataset(scan_t *s, const options_t *o)
{
    int rc = source_open(o, &s->dataset);
    if (rc < 0 && s->again)
        return err_add(rc, "the run's list has %u images; are they, and what names them, there",
                       catalog_count(s->reference.list, CATALOG_TRAIN) +
                           catalog_count(s->reference.list, CATALOG_VAL));
    return rc;
}

static int scan_files(scan_t *s, const options_t *o, int threads, teller_t *teller, int *stuck)
{
    int rc;
    s->mode = o->mode;
    CHECK_GOTO(open_dataset(s, o), rc, done);
    s->rules = (inspect_rules_t){
        .limits = decode_limits(o),
        .max_labels = (uint32_t)o->max_labels,
        .classes = s->dataset->names.count,
        .single_cls = o->single_cls,
        .skip_warned = o->on_warning == OPT_WARN_SKIP,
        .no_labels = o->mode == OPT_MODE_PREDICT,
    };
    CHECK_GOTO(list_files(s, o, teller), rc, done);
    /* A prediction decodes each image once anyway, and goes on where one is bad. */
    s->rules.decode_all = s->rules.skip_warned || (!s->rules.no_labels && is_small(s));
    if (!s->rules.decode_all && !s->rules.no_labels)
        log_line(LOG_INFO,
                 "%u images, more than %d MiB: checked by header and end; damage within a file "
                 "shows when "
                 "it is loaded (on_warning=skip decodes all of them now)",
                 s->total, DECODE_ALL_BYTES >> 20);
    rc = inspect_all(s, threads, teller->progress, teller->user, stuck);
done:
    return rc;
}

int scan_again(const options_t *o, int threads, const catalog_t *list, catalog_builder_t *b,
               scan_progress_fn progress, void *user)
{
    /* On the heap: a thread that hangs keeps using it after a return. */
    scan_t *s = calloc(1, sizeof *s);
    int rc, stuck = 0;
    if (!s)
        return err_set(ERR_ENV, "no memory for the scan");
    s->again = list != NULL;
    reference_init(&s->reference, list);
    CHECK_GOTO(scan_files(s, o, threads, &(teller_t){progress, user}, &stuck), rc, done);
    if (s->again) {
        CHECK_GOTO(check_again(s, o), rc, done);
    } else {
        if (s->mode == OPT_MODE_TRAIN)
            CHECK_GOTO(check_split(s, CATALOG_TRAIN), rc, done);
        CHECK_GOTO(check_split(s, CATALOG_VAL), rc, done);
    }
    CHECK_GOTO(build(s, o->single_cls, b), rc, done);
done:
    if (stuck)
        return rc;
    scan_fini(s);
    free(s);
    return rc < 0 ? rc : 0;
}

int scan_build(const options_t *o, int threads, catalog_builder_t *b, scan_progress_fn progress,
               void *user)
{
    return scan_again(o, threads, NULL, b, progress, user);
}
