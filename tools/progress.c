#include "tools/progress.h"

#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { SHOW_TTY_NS = 200000000, SHOW_PLAIN_S = 30 };
enum { CONSOLE_BYTES = 256 << 10, CONSOLE_END_MS = 2000 };
enum { COLUMNS_UNKNOWN = 80, LINE_BYTES = 256 };

/* Hands what was written to p->out since the last time to the console. passing: see console_put. */
static void show(progress_t *p, int fd, int passing)
{
    long n = fflush(p->out) == 0 ? ftell(p->out) : 0;
    if (n > 0)
        console_put(p->console, fd, p->text, (size_t)n, passing);
    rewind(p->out);
}

static void clear_line(progress_t *p)
{
    if (p->line_shown)
        fputs("\r\033[K", p->out);
    p->line_shown = 0;
}

/* Characters that fit on a line: a line that is written over in place must not wrap. 0: no end. */
static size_t columns(const progress_t *p)
{
    struct winsize w;
    if (!p->tty)
        return 0;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : COLUMNS_UNKNOWN;
}

/* The longer of two forms of a line where the terminal has room for it. */
static const char *fitting(const progress_t *p, const char *full, const char *brief)
{
    size_t room = columns(p);
    return room == 0 || strlen(full) <= room ? full : brief;
}

static void format_bytes(char *text, size_t room, uint64_t bytes)
{
    double mib = (double)bytes / (1 << 20);
    if (mib < 1024)
        snprintf(text, room, "%.0f MiB", mib);
    else
        snprintf(text, room, "%.1f GiB", mib / 1024);
}

static void format_time(char *text, size_t room, double seconds)
{
    unsigned long s = seconds > 0 ? (unsigned long)(seconds + 0.5) : 0;
    if (s < 3600)
        snprintf(text, room, "%lu:%02lu", s / 60, s % 60);
    else
        snprintf(text, room, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
}

static void on_note(void *user, log_level_t level, const char *text)
{
    progress_t *p = user;
    clear_line(p);
    show(p, STDOUT_FILENO, 0);
    fprintf(p->out, "%s%s\n",
            level == LOG_WARN    ? "warning: "
            : level == LOG_ERROR ? "error: "
                                 : "",
            text);
    show(p, STDERR_FILENO, 0);
}

static void on_scanning(void *user, uint64_t done, uint64_t of)
{
    progress_t *p = user;
    uint64_t now = clock_ns();
    if (!p->tty || (now - p->shown_ns < SHOW_TTY_NS && (of == 0 || done < of)))
        return;
    p->shown_ns = now;
    clear_line(p);
    if (of)
        fprintf(p->out, "reading the data set: %llu of %llu files", (unsigned long long)done,
                (unsigned long long)of);
    else
        fprintf(p->out, "listing the data set: %llu names", (unsigned long long)done);
    p->line_shown = 1;
    show(p, STDOUT_FILENO, 1);
}

/* "gpu 1, NVIDIA H200 (0000:19:00.0, 9.0), bf16: needs 21.4 GiB of 138.9 GiB free" */
static void print_gpu(progress_t *p, const coordinator_table_t *t, uint32_t r)
{
    char need[32], left[32];
    int ordinal = t->options->devices[r];
    const gpu_t *gpu = t->gpus ? gpus_find(t->gpus, ordinal) : NULL;
    format_bytes(need, sizeof need, t->device_memory[r]);
    format_bytes(left, sizeof left, t->device_free[r]);
    fprintf(p->out, "  rank %-6u gpu %d", r, ordinal);
    if (gpu)
        fprintf(p->out, ", %s (%s, %d.%d)", gpu->name, gpu->bus, gpu->capability / 10,
                gpu->capability % 10);
    fprintf(p->out, ", %s: needs %s of %s free\n", gpus_format_name(t->format), need, left);
}

static void print_ranks(progress_t *p, const coordinator_table_t *t)
{
    for (uint32_t r = 0; r < t->plan->ranks; r++) {
        char need[32];
        if (t->options->devices[r] >= 0) {
            print_gpu(p, t, r);
            continue;
        }
        format_bytes(need, sizeof need, t->memory[r]);
        fprintf(p->out, "  rank %-6u cpu, %u thread%s: needs %s of memory\n", r, t->threads,
                t->threads == 1 ? "" : "s", need);
    }
}

/* All that the run may come to hold, and what there was for it. */
static void print_memory(progress_t *p, const coordinator_table_t *t)
{
    char part[4][32], of[32];
    const needs_t *n = &t->needs;
    uint64_t ranks = 0;
    for (uint32_t r = 0; r < t->plan->ranks; r++)
        ranks += t->memory[r];
    format_bytes(part[0], sizeof part[0], n->rings + n->loaders + n->rest + ranks);
    format_bytes(part[1], sizeof part[1], n->rings);
    format_bytes(part[2], sizeof part[2], n->loaders);
    format_bytes(part[3], sizeof part[3], n->rest);
    format_bytes(of, sizeof of, t->budget.available);
    fprintf(p->out, "  memory      at most %s of %s: ranks, rings %s, loaders %s, the rest %s\n",
            part[0], of, part[1], part[2], part[3]);
}

static void print_resume(progress_t *p, const coordinator_table_t *t)
{
    for (uint32_t i = 0; i < t->n_resume; i++)
        fprintf(p->out, "  %-11s %-15s %-8s %s\n", i ? "" : "resume", t->resume[i].what,
                t->resume[i].verdict, t->resume[i].text);
}

static void print_schedule(progress_t *p, const coordinator_table_t *t)
{
    schedule_t s;
    schedule_point_t at = {.accumulate = 1};
    const plan_t *plan = t->plan;
    uint32_t steps = plan_train_steps(plan);
    schedule_init(&s, t->options, plan->n_train, steps, catalog_classes(t->catalog));
    schedule_at(&s, s.warmup_steps, &at);
    fprintf(p->out, "  batch       %u images over %u rank%s, %u on each\n", plan->batch,
            plan->ranks, plan->ranks == 1 ? "" : "s", plan->batch / plan->ranks);
    fprintf(p->out, "  accumulate  %u batch%s an optimiser step (nbs=%d)\n", at.accumulate,
            at.accumulate == 1 ? "" : "es", t->options->nbs);
    fprintf(p->out, "  optimizer   %s%s, lr0 %g, momentum %g, weight decay %g\n",
            s.optimizer == OPT_OPTIM_SGD ? "SGD" : "AdamW",
            t->options->optimizer == OPT_OPTIM_AUTO ? " (auto)" : "", s.lr0, s.momentum,
            s.weight_decay);
    fprintf(p->out, "  warm-up     %u of %llu steps\n", s.warmup_steps,
            (unsigned long long)steps * plan->epochs);
}

static void on_start(void *user, const coordinator_table_t *t)
{
    progress_t *p = user;
    char ring[32], disk[32];
    const plan_t *plan = t->plan;
    clear_line(p);
    p->plan = *plan;
    p->have_plan = 1;
    p->imgsz = (int)plan->imgsz;
    p->epochs = (int)plan->epochs;
    snprintf(p->data, sizeof p->data, "%s", t->options->data);
    snprintf(p->model, sizeof p->model, "%s", t->options->model);
    format_bytes(ring, sizeof ring, t->needs.ring);
    format_bytes(disk, sizeof disk, t->disk_free);
    fprintf(p->out, "  run         %s%s\n", t->run_dir, t->resumed ? " (resumed)" : "");
    fprintf(p->out, "  model       %s, %u classes, %u px\n", t->options->model,
            catalog_classes(t->catalog), plan->imgsz);
    fprintf(p->out, "  data        %s\n", t->options->data);
    fprintf(p->out, "  images      %u to train on, %u to validate with\n", plan->n_train,
            plan->n_val);
    print_resume(p, t);
    print_ranks(p, t);
    fprintf(p->out, "  loaders     %u, on %u CPU%s\n", t->workers, t->cpus,
            t->cpus == 1 ? "" : "s");
    fprintf(p->out, "  rings       %u of %s: %u batches each\n", plan->ranks, ring, t->ring.depth);
    print_memory(p, t);
    fprintf(p->out, "  disk        %s free\n", disk);
    print_schedule(p, t);
    fprintf(p->out, "  length      epochs %u to %u, %u steps each\n", plan->first_epoch + 1,
            plan->epochs, plan_train_steps(plan));
    show(p, STDOUT_FILENO, 0);
}

/* Batches of a rank before this one: the measure of what is done. */
static uint64_t batch_number(const plan_t *p, const wire_progress_t *m)
{
    uint64_t train = plan_train_steps(p), val = p->val_every_epoch ? plan_val_steps(p) : 0;
    /* An epoch that goes on in the middle: its steps keep their numbers. */
    uint64_t skipped =
        train - (plan_end_step(p, p->first_epoch) - plan_first_step(p, p->first_epoch));
    uint64_t at = (m->epoch - p->first_epoch) * (train + val) + m->step;
    if (m->phase == PLAN_VAL)
        at += plan_end_step(p, m->epoch);
    if (m->epoch == p->first_epoch)
        return at - plan_first_step(p, m->epoch);
    return at - skipped;
}

static void on_progress(void *user, const coordinator_progress_t *c)
{
    progress_t *p = user;
    const wire_progress_t *m = &c->rank0;
    uint64_t now = clock_ns();
    uint64_t pause = p->tty ? SHOW_TTY_NS : SHOW_PLAIN_S * 1000000000ull;
    if (!p->have_plan || m->epoch < p->plan.first_epoch)
        return;
    uint64_t done = batch_number(&p->plan, m), all = plan_batches(&p->plan);
    if (!p->first_ns) {
        p->first_ns = p->shown_ns = now;
        p->first_batch = done;
    }
    if (now - p->shown_ns < pause)
        return;
    p->shown_ns = now;
    clear_line(p);
    char head[LINE_BYTES], loss[LINE_BYTES], rest[LINE_BYTES], full[3 * LINE_BYTES];
    char brief[3 * LINE_BYTES], left[32] = "";
    if (done > p->first_batch)
        format_time(left, sizeof left,
                    (double)(now - p->first_ns) / 1e9 * (double)(all > done ? all - done : 0) /
                        (double)(done - p->first_batch));
    snprintf(head, sizeof head, "epoch %u/%u  %s %u/%u  ", m->epoch + 1, c->epochs,
             m->phase == PLAN_VAL ? "val" : "train", m->step + 1, m->steps);
    snprintf(loss, sizeof loss, "box %.3f cls %.3f dfl %.3f  ", (double)m->items[0],
             (double)m->items[1], (double)m->items[2]);
    snprintf(rest, sizeof rest, "%.1f images/s%s%s%s  %.0f%% waiting for data", c->images_per_s,
             left[0] ? "  " : "", left, left[0] ? " left" : "", 100 * c->wait_share);
    snprintf(full, sizeof full, "%s%s%s", head, loss, rest);
    snprintf(brief, sizeof brief, "%s%s", head, rest);
    fprintf(p->out, "%.*s", columns(p) ? (int)columns(p) : (int)sizeof full,
            fitting(p, full, brief));
    if (!p->tty)
        fputc('\n', p->out);
    p->line_shown = p->tty;
    show(p, STDOUT_FILENO, 1);
}

static void on_epoch(void *user, const wire_epoch_end_t *e)
{
    progress_t *p = user;
    char time[32];
    clear_line(p);
    format_time(time, sizeof time, e->seconds);
    char full[2 * LINE_BYTES], brief[2 * LINE_BYTES];
    int n = snprintf(full, sizeof full, "epoch %u/%d  box %.4f cls %.4f dfl %.4f", e->epoch + 1,
                     p->epochs, (double)e->train_items[0], (double)e->train_items[1],
                     (double)e->train_items[2]);
    if (e->validated)
        n += snprintf(full + n, sizeof full - (size_t)n,
                      "  P %.3f R %.3f mAP50 %.4f mAP50-95 %.4f%s", (double)e->precision,
                      (double)e->recall, (double)e->map50, (double)e->map,
                      e->is_best ? " (best)" : "");
    snprintf(full + n, sizeof full - (size_t)n, "  at %s", time);
    /* Precision, recall and time of a narrow terminal's lines are in results.csv. */
    n = snprintf(brief, sizeof brief, "epoch %u/%d  box %.3f cls %.3f dfl %.3f", e->epoch + 1,
                 p->epochs, (double)e->train_items[0], (double)e->train_items[1],
                 (double)e->train_items[2]);
    if (e->validated)
        snprintf(brief + n, sizeof brief - (size_t)n, "  mAP50 %.3f mAP50-95 %.3f%s",
                 (double)e->map50, (double)e->map, e->is_best ? " (best)" : "");
    fprintf(p->out, "%s\n", fitting(p, full, brief));
    p->shown_ns = clock_ns();
    show(p, STDOUT_FILENO, 0);
}

static void print_next(progress_t *p, const coordinator_summary_t *s)
{
    int last_is_best = s->has_map && !s->best_before && s->best_epoch + 1 == (uint32_t)p->epochs;
    if (s->code == ERR_STOPPED)
        fprintf(p->out, "  next        sluice train resume=%s\n", s->run_dir);
    else if (s->stopped_early)
        fprintf(p->out,
                "  next        it stopped improving: a larger model or imgsz (this was %s at %d),\n"
                "              or more images\n",
                p->model, p->imgsz);
    else if (s->has_map && s->map50 < 0.05)
        fprintf(p->out,
                "  next        it has hardly begun to learn: epochs=%d, or check the labels of\n"
                "              %s\n",
                4 * p->epochs, p->data);
    else if (last_is_best)
        fprintf(p->out, "  next        it was still improving: epochs=%d\n", 2 * p->epochs);
    else
        fprintf(p->out,
                "  next        a larger imgsz (this was %d) helps with small objects,\n"
                "              a larger model (this was %s) with many classes\n",
                p->imgsz, p->model);
}

static void print_files(progress_t *p, const coordinator_summary_t *s)
{
    if (s->left_out + s->bad + s->warned == 0)
        return;
    fprintf(p->out,
            "  files       %u left out, %u bad in training, %u used although their decoder warns:\n"
            "              sluice files %s\n",
            s->left_out, s->bad, s->warned, s->run_dir);
}

static void on_end(void *user, const coordinator_summary_t *s)
{
    progress_t *p = user;
    char time[32];
    clear_line(p);
    format_time(time, sizeof time, s->seconds);
    if ((s->code == 0 || s->code == ERR_STOPPED) && p->have_plan) {
        fprintf(p->out, "%s after %u epoch%s in %s\n", s->code == 0 ? "done" : "stopped",
                s->epochs_done, s->epochs_done == 1 ? "" : "s", time);
        if (s->has_map)
            fprintf(p->out, "  best        %smAP50 %.4f, mAP50-95 %.4f in epoch %u\n",
                    s->best_before ? "before this resume (results.csv); since then " : "", s->map50,
                    s->map, s->best_epoch + 1);
        if (s->weights_saved)
            fprintf(p->out, "  weights     %s/weights/%s.safetensors\n", s->run_dir,
                    s->has_map ? "best" : "last");
        fprintf(p->out, "  curves      %s/results.csv\n", s->run_dir);
        print_files(p, s);
        print_next(p, s);
    } else if (s->run_dir[0] && s->weights_saved) {
        fprintf(p->out, "  what was saved is in %s\n", s->run_dir);
    }
    show(p, STDOUT_FILENO, 0);
}

int progress_open(progress_t *p)
{
    memset(p, 0, sizeof *p);
    p->tty = isatty(STDOUT_FILENO);
    p->out = open_memstream(&p->text, &p->text_bytes);
    int rc = p->out ? console_open(CONSOLE_BYTES, &p->console)
                    : err_sys(ERR_ENV, "no memory for what is shown");
    if (rc < 0)
        progress_close(p);
    return rc;
}

void progress_close(progress_t *p)
{
    console_close(&p->console, CONSOLE_END_MS);
    if (p->out)
        fclose(p->out);
    free(p->text);
    p->out = NULL;
    p->text = NULL;
}

coordinator_view_t progress_view(progress_t *p)
{
    return (coordinator_view_t){.user = p,
                                .note = on_note,
                                .scanning = on_scanning,
                                .start = on_start,
                                .progress = on_progress,
                                .epoch = on_epoch,
                                .end = on_end};
}
