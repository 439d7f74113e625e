/* What a resume says of each thing: kept, changed or lost. */
#include "control/coordinator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    wire_run_info_t was;
    plan_t plan;
    coordinator_resume_t r;
    coordinator_resume_row_t rows[COORDINATOR_RESUME_ROWS];
    uint32_t n;
} fixture_t;

/* Image 40 of 72 of epoch 3, one rank, batches of 8, nothing changed. */
static void begin(fixture_t *f)
{
    memset(f, 0, sizeof *f);
    f->was.ranks = 1;
    f->was.batch = 8;
    f->was.threads = 2;
    f->plan = (plan_t){.n_train = 72,
                       .n_val = 9,
                       .ranks = 1,
                       .batch = 8,
                       .val_batch = 16,
                       .epochs = 9,
                       .first_epoch = 2,
                       .first_position = 40,
                       .val_every_epoch = 1};
    f->r = (coordinator_resume_t){.was = &f->was,
                                  .plan = &f->plan,
                                  .threads = 2,
                                  .nbs = 64,
                                  .deterministic = 1,
                                  .changed = ""};
}

static void tell(fixture_t *f)
{
    f->n = coordinator_resume_rows(&f->r, f->rows);
    assert_true(f->n <= COORDINATOR_RESUME_ROWS);
    for (uint32_t i = 0; i < f->n; i++)
        assert_true(strlen(f->rows[i].text) + 1 < sizeof f->rows[i].text);
}

static void says(fixture_t *f, const char *what, const char *verdict, const char *text)
{
    for (uint32_t i = 0; i < f->n; i++) {
        const coordinator_resume_row_t *r = &f->rows[i];
        if (strcmp(r->what, what) != 0)
            continue;
        if (strcmp(r->verdict, verdict) != 0 || !strstr(r->text, text))
            fail_msg("%s: '%s %s', not '%s %s'", what, r->verdict, r->text, verdict, text);
        return;
    }
    fail_msg("nothing is said of %s", what);
}

static int said(const fixture_t *f, const char *what)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (strcmp(f->rows[i].what, what) == 0)
            return 1;
    return 0;
}

static void nothing_changed(void **state)
{
    (void)state;
    fixture_t f;
    begin(&f);
    tell(&f);
    for (uint32_t i = 0; i < f.n; i++)
        assert_string_equal(f.rows[i].verdict, "kept");
    says(&f, "order of images", "kept", "from image 41 of 72 of epoch 3 on");
    says(&f, "learning rate", "kept", "step 6 of 9 of epoch 3");
    says(&f, "same weights", "kept", "to the bit");
    assert_false(said(&f, "gradients"));
    assert_false(said(&f, "substitutes"));
    begin(&f);
    f.was.pending = 3;
    f.r.ledger = 1;
    f.plan.first_position = 72;
    tell(&f);
    says(&f, "order of images", "kept", "validation comes first");
    says(&f, "gradients", "kept", "of 3 batches");
    says(&f, "substitutes", "kept", "1 entry");
    f.plan.val_every_epoch = 0;
    tell(&f);
    says(&f, "order of images", "kept", "ends without a validation");
    begin(&f);
    f.plan.first_position = 0;
    tell(&f);
    says(&f, "order of images", "kept", "from the beginning of epoch 3");
}

static void another_batch(void **state)
{
    (void)state;
    fixture_t f;
    begin(&f);
    f.was.pending = 1;
    f.plan.batch = 4;
    tell(&f);
    says(&f, "order of images", "kept", "from image 41 of 72");
    says(&f, "batch", "changed", "4 images, before 8; an optimiser step has 16 batches, before 8");
    says(&f, "gradients", "lost", "of 1 batch since");
    says(&f, "learning rate", "changed", "step 11 of 18");
    says(&f, "ranks", "kept", "1");
    says(&f, "same weights", "lost", "the batch is another");
}

static void other_ranks(void **state)
{
    (void)state;
    fixture_t f;
    begin(&f);
    f.plan.ranks = 2;
    f.r.threads = 1;
    tell(&f);
    says(&f, "order of images", "kept", "from image 41 of 72");
    says(&f, "batch", "kept", "8 images");
    says(&f, "ranks", "changed", "2, before 1");
    says(&f, "BN statistics", "changed", "rank 1 begins with those of rank 0");
    says(&f, "threads", "changed", "1 for each rank, before 2");
    says(&f, "same weights", "lost", "sums over ranks");
    f.plan.ranks = 4;
    tell(&f);
    says(&f, "BN statistics", "changed", "rank 1 and those behind it begin");
    f.was.ranks = 4;
    f.plan.ranks = 2;
    tell(&f);
    says(&f, "BN statistics", "lost", "those of rank 2 and those behind it; the others are kept");
}

/* Each reason alone takes the promise back. */
static void bits_are_promised_only_where_they_hold(void **state)
{
    (void)state;
    fixture_t f;
    begin(&f);
    f.r.threads = 1;
    tell(&f);
    says(&f, "same weights", "lost", "1 thread, before 2");
    begin(&f);
    f.r.changed = "imgsz, mosaic";
    tell(&f);
    says(&f, "same weights", "lost", "imgsz, mosaic changed");
    begin(&f);
    f.r.deterministic = 0;
    tell(&f);
    says(&f, "same weights", "lost", "deterministic=False");
    begin(&f);
    f.was.ranks = f.plan.ranks = 2;
    tell(&f);
    says(&f, "same weights", "lost", "batches are the same");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_changed),
        cmocka_unit_test(another_batch),
        cmocka_unit_test(other_ranks),
        cmocka_unit_test(bits_are_promised_only_where_they_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
