#include "tools/sample.h"

#include "loader/jpeg_encode.h"
#include "shm/arena.h"
#include "shm/err.h"
#include "tools/sample_defects.h"
#include "tools/sample_folder.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Quality as cameras of inspection lines write it. */
enum {
    SAMPLE_QUALITY = 90,
    THREADS_MAX = 16,
    TICK_MS = 100,
    LABEL_BYTES = SAMPLE_DEFECTS_MAX * 64
};

typedef struct {
    const sample_config_t *config;
    int folder; /* descriptor of out */
    int val;    /* images in val */
    /* Relaxed: an index is taken once; counts are read after pthread_join. */
    _Atomic int next, done, labels, without;
    _Atomic int stop; /* relaxed: 1 after any thread's error */
    pthread_mutex_t mutex;
    int failed; /* under the mutex, with its text */
    char reason[512];
} job_t;

/* val images are spread evenly over the indices. */
static int is_val(const job_t *job, int i)
{
    int64_t n = job->config->images, v = job->val;
    return (i + 1) * v / n > i * v / n;
}

/* YOLO rows: class, centre and size over the image's side, six digits after the point. */
static int label_text(const sample_label_t *labels, int n, int side, char text[LABEL_BYTES])
{
    int at = 0;
    text[0] = '\0';
    for (int i = 0; i < n; i++) {
        const box_t *b = &labels[i].box;
        double s = side;
        at += snprintf(text + at, (size_t)(LABEL_BYTES - at), "%d %.6f %.6f %.6f %.6f\n",
                       (int)labels[i].kind, (b->x0 + b->x1) / (2 * s), (b->y0 + b->y1) / (2 * s),
                       (b->x1 - b->x0) / s, (b->y1 - b->y0) / s);
    }
    return at;
}

static int write_image(job_t *job, int i, canvas_t *canvas)
{
    const uint32_t side = (uint32_t)canvas->size;
    const draw_canvas_t picture = {canvas->rgb, side, side, (size_t)3 * side};
    unsigned char *jpeg;
    unsigned long bytes;
    sample_label_t labels[SAMPLE_DEFECTS_MAX];
    char text[LABEL_BYTES], name[SAMPLE_NAME_BYTES];
    int n = sample_image(canvas, job->config->seed, (uint64_t)i, labels);
    if (n < 0)
        return n;
    int rc = jpeg_encode(&picture, SAMPLE_QUALITY, &jpeg, &bytes);
    if (rc < 0)
        return rc;
    int val = is_val(job, i);
    sample_name(name, "images", val, i, "jpg");
    rc = sample_put(job->folder, name, jpeg, bytes);
    free(jpeg);
    if (rc < 0)
        return rc;
    sample_name(name, "labels", val, i, "txt");
    rc = sample_put(job->folder, name, text, (size_t)label_text(labels, n, canvas->size, text));
    atomic_fetch_add_explicit(&job->labels, n, memory_order_relaxed);
    atomic_fetch_add_explicit(&job->without, n == 0, memory_order_relaxed);
    return rc;
}

static void *work(void *arg)
{
    job_t *job = arg;
    canvas_t canvas = {0};
    int rc = canvas_init(&canvas, job->config->imgsz);
    while (rc == 0 && !atomic_load_explicit(&job->stop, memory_order_relaxed)) {
        int i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (i >= job->config->images)
            break;
        rc = write_image(job, i, &canvas);
        atomic_fetch_add_explicit(&job->done, 1, memory_order_relaxed);
    }
    if (rc < 0) {
        pthread_mutex_lock(&job->mutex);
        if (job->failed == 0) {
            job->failed = rc;
            snprintf(job->reason, sizeof job->reason, "%s", err_text());
        }
        pthread_mutex_unlock(&job->mutex);
        atomic_store_explicit(&job->stop, 1, memory_order_relaxed);
    }
    canvas_fini(&canvas);
    return NULL;
}

static void join(pthread_t thread, const job_t *job, void (*progress)(int, int))
{
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TICK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until) == 0)
            return;
        int done = atomic_load_explicit(&job->done, memory_order_relaxed);
        if (progress && done < job->config->images)
            progress(done, job->config->images);
    }
}

static int run_threads(job_t *job, void (*progress)(int, int))
{
    pthread_t threads[THREADS_MAX];
    int n = job->config->threads > 0 ? job->config->threads : arena_cpus(""), started = 0;
    n = n > THREADS_MAX ? THREADS_MAX : n;
    n = n > job->config->images ? job->config->images : n;
    while (started < n) {
        int error = pthread_create(&threads[started], NULL, work, job);
        if (error && started == 0)
            return err_set(ERR_ENV, "cannot start a thread: %s", strerror(error));
        if (error)
            break; /* fewer will do */
        started++;
    }
    for (int i = 0; i < started; i++)
        join(threads[i], job, progress);
    if (progress && !job->failed)
        progress(job->config->images, job->config->images);
    return job->failed ? err_set(job->failed, "%s", job->reason) : 0;
}

static int write_yaml(const job_t *job)
{
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "# Synthetic inspection images: sluice sample images=%d imgsz=%d seed=%llu\n"
                     "path: .\ntrain: images/train\nval: images/val\nnc: %d\nnames:\n",
                     job->config->images, job->config->imgsz, (unsigned long long)job->config->seed,
                     DEFECTS);
    for (int i = 0; i < DEFECTS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "  %d: %s\n", i, defect_name((defect_t)i));
    return sample_put(job->folder, "data.yaml", text, (size_t)n);
}

int sample_write(const sample_config_t *config, void (*progress)(int done, int of),
                 sample_counts_t *counts)
{
    job_t job = {.config = config, .folder = -1};
    int rc = 0;
    /* One in five, and never none (design: train and val must both have an image). */
    job.val = (config->images + 2) / 5 > 0 ? (config->images + 2) / 5 : 1;
    CHECK_GOTO(sample_folder_open(config->out, &job.folder), rc, fail);
    pthread_mutex_init(&job.mutex, NULL);
    rc = run_threads(&job, progress);
    pthread_mutex_destroy(&job.mutex);
    if (rc < 0)
        goto fail;
    CHECK_GOTO(write_yaml(&job), rc, fail);
    *counts = (sample_counts_t){config->images - job.val, job.val, job.labels, job.without};
fail:
    sample_folder_close(&job.folder);
    return rc < 0 ? err_add(rc, "%s", config->out) : 0;
}
