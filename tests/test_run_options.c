/* tools/run_options: the table, then a file, then the words; with resume= no file. */
#include "tools/run_options.h"
#include "shm/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static void sources_win_in_their_order(void **state)
{
    (void)state;
    char dir[] = "/tmp/sluice-options-XXXXXX", was[4096], cfg[128];
    char train[] = "train", epochs[] = "epochs=7", data[] = "data=d.yaml";
    char *argv[] = {train, epochs, data, NULL, NULL};
    const char *words[4];
    options_t o;
    int n;
    assert_non_null(getcwd(was, sizeof was));
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(run_options(3, argv, &o, words, &n), 0);
    assert_true(n == 2 && o.epochs == 7 && o.imgsz == 640); /* no file there: none is read */
    FILE *f = fopen("pipeline.yaml", "w");
    assert_non_null(f);
    fputs("epochs: 5\nimgsz: 96\n", f);
    fclose(f);
    assert_int_equal(run_options(3, argv, &o, words, &n), 0);
    assert_true(o.epochs == 7 && o.imgsz == 96);
    snprintf(cfg, sizeof cfg, "cfg=%s/pipeline.yaml", dir);
    argv[3] = cfg;
    assert_int_equal(chdir(was), 0);
    assert_int_equal(run_options(4, argv, &o, words, &n), 0);
    assert_true(n == 2 && o.epochs == 7 && o.imgsz == 96);
    unlink(cfg + 4);
    assert_int_equal(run_options(4, argv, &o, words, &n), ERR_CONFIG);
    assert_non_null(strstr(err_text(), cfg + 4));
    rmdir(dir);
}

static void a_folder_stands_for_its_weights(void **state)
{
    (void)state;
    char dir[] = "/tmp/sluice-options-XXXXXX", weights[64], file[128], path[256];
    assert_non_null(mkdtemp(dir));
    assert_int_equal(run_weights(dir, path, sizeof path), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "there is no weights/best.safetensors"));
    snprintf(weights, sizeof weights, "%s/weights", dir);
    assert_int_equal(mkdir(weights, 0777), 0);
    static const char *const names[] = {"last", "best"}; /* best goes before last */
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s.safetensors", weights, names[i]);
        fclose(fopen(file, "w"));
        assert_int_equal(run_weights(dir, path, sizeof path), 1);
        assert_string_equal(path, file);
    }
    assert_int_equal(run_weights(file, path, sizeof path), 0);
    assert_int_equal(run_weights("yolo11n", path, sizeof path), 0);
    assert_int_equal(run_weights(dir, path, 8), ERR_CONFIG);
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s.safetensors", weights, names[i]);
        unlink(file);
    }
    rmdir(weights);
    rmdir(dir);
}

static void resume_reads_no_file(void **state)
{
    (void)state;
    char dir[] = "/tmp/sluice-options-XXXXXX", was[4096];
    char train[] = "train", resume[] = "resume=runs/x", cfg[] = "cfg=x.yaml";
    char *argv[] = {train, resume, NULL, NULL};
    const char *words[4];
    options_t o;
    int n;
    assert_non_null(getcwd(was, sizeof was));
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    FILE *f = fopen("pipeline.yaml", "w");
    assert_non_null(f);
    fputs("imgsz: 96\n", f);
    fclose(f);
    assert_int_equal(run_options(2, argv, &o, words, &n), 0);
    assert_true(n == 1 && o.imgsz == 640);
    assert_string_equal(o.resume, "runs/x");
    char empty[] = "resume=";
    argv[1] = empty; /* no resume: the file counts */
    assert_int_equal(run_options(2, argv, &o, words, &n), 0);
    assert_int_equal(o.imgsz, 96);
    argv[1] = resume;
    argv[2] = cfg;
    assert_int_equal(run_options(3, argv, &o, words, &n), ERR_CONFIG);
    unlink("pipeline.yaml");
    assert_int_equal(chdir(was), 0);
    rmdir(dir);
}

static void the_programs_are_found(void **state)
{
    (void)state;
    char dir[4096];
    assert_int_equal(run_bin_dir(dir, sizeof dir), 0);
    assert_int_equal(dir[0], '/');
    assert_int_equal(access(dir, X_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_stands_for_its_weights),
        cmocka_unit_test(sources_win_in_their_order),
        cmocka_unit_test(resume_reads_no_file),
        cmocka_unit_test(the_programs_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
