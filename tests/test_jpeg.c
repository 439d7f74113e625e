/* The JPEG decoder: djpeg's pixels for every odd file that djpeg decodes, a reason for every other,
 * the eight EXIF orientations, and limits that hold before memory is asked for.
 */
#include "loader/decode.h"
#include "loader/exif.h"
#include "loader/jpeg.h"
#include "shm/err.h"
#include "tests/scratch.h"

#include <dirent.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const picture_limits_t limits = {256000000, 100, 0};

typedef struct {
    uint32_t width, height;
    uint8_t *rgb;
} ppm_t;

static int have_djpeg(void)
{
    return system("command -v djpeg >/dev/null 2>&1") == 0;
}

/* What djpeg makes of a file, as RGB; rgb is NULL when it gives up. PGM is spread over three
 * channels. */
static ppm_t run_djpeg(const char *path)
{
    ppm_t p = {0};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        assert_non_null(freopen("/dev/null", "w", stderr));
        execlp("djpeg", "djpeg", "-pnm", path, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *in = fdopen(ends[0], "rb");
    char kind;
    unsigned channels = 0;
    if (fscanf(in, "P%c %u %u 255", &kind, &p.width, &p.height) == 3 && fgetc(in) == '\n')
        channels = kind == '6' ? 3 : 1;
    size_t n = (size_t)p.width * p.height;
    p.rgb = channels ? malloc(n * 3 + 1) : NULL;
    size_t got = p.rgb ? fread(p.rgb, channels, n, in) : 0;
    for (size_t i = n; channels == 1 && i-- > 0;)
        memset(p.rgb + 3 * i, p.rgb[i], 3);
    char rest[4096];
    while (fread(rest, 1, sizeof rest, in) > 0)
        continue; /* so that djpeg never dies of a closed pipe */
    fclose(in);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    /* 0: fine, 2: with warnings (EXIT_WARNING of djpeg) */
    int usable = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 2);
    if (!usable || got != n) {
        free(p.rgb);
        p.rgb = NULL;
    }
    return p;
}

/* The stored pixel that the upright (x, y) shows: the definition of the EXIF orientations. */
static const uint8_t *upright(const ppm_t *p, int orientation, uint32_t x, uint32_t y)
{
    uint32_t w = p->width, h = p->height, sx = 0, sy = 0;
    switch (orientation) {
    case 1: sx = x, sy = y; break;
    case 2: sx = w - 1 - x, sy = y; break;
    case 3: sx = w - 1 - x, sy = h - 1 - y; break;
    case 4: sx = x, sy = h - 1 - y; break;
    case 5: sx = y, sy = x; break;
    case 6: sx = y, sy = h - 1 - x; break;
    case 7: sx = w - 1 - y, sy = h - 1 - x; break;
    case 8: sx = w - 1 - y, sy = x; break;
    }
    return p->rgb + 3 * ((size_t)sy * w + sx);
}

static void assert_same_pixels(const char *name, const picture_t *got, const ppm_t *want)
{
    uint32_t w = got->orientation > 4 ? want->height : want->width;
    uint32_t h = got->orientation > 4 ? want->width : want->height;
    size_t differ = 0;
    assert_int_equal(got->width, w);
    assert_int_equal(got->height, h);
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++)
            differ += memcmp(got->pixels + y * got->stride + 3 * (size_t)x,
                             upright(want, got->orientation, x, y), 3) != 0;
    if (differ)
        print_error("%s: %zu of %u x %u pixels differ from djpeg's\n", name, differ, w, h);
    assert_int_equal(differ, 0);
}

static int by_name(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

typedef void (*file_check_fn)(const char *path, const char *name, const uint8_t *file,
                              size_t bytes);

/* Runs a check over the files of shared odd/<folder>; returns how many there were. */
static int each_file(const char *folder, file_check_fn check)
{
    struct dirent **names;
    char path[SCRATCH_PATH];
    snprintf(path, sizeof path, "odd/%s", folder);
    const char *found = scratch_data(path);
    if (!found)
        skip();
    char base[SCRATCH_PATH];
    snprintf(base, sizeof base, "%s", found);
    int n = scandir(base, &names, by_name, alphasort);
    for (int i = 0; i < n; i++) {
        size_t bytes = 0;
        snprintf(path, sizeof path, "%.3800s/%.255s", base, names[i]->d_name);
        uint8_t *file = scratch_read(path, &bytes);
        assert_non_null(file);
        check(path, names[i]->d_name, file, bytes);
        free(file);
        free(names[i]);
    }
    free(names);
    return n;
}

static decode_t *decoder; /* one for all files: a failure must not spoil the next */

static int set_up(void **state)
{
    (void)state;
    /* Fresh memory is filled with rubbish here, but not in djpeg: pixels must not depend on it. */
    mallopt(M_PERTURB, 0xA5);
    return decode_new(&decoder);
}

static int tear_down(void **state)
{
    (void)state;
    decode_free(&decoder);
    return 0;
}

static const picture_t *decode_ok(const char *path, const char *name, const uint8_t *file,
                                  size_t bytes)
{
    const picture_t *p = NULL;
    int rc = decode_image(decoder, 0, file, bytes, &limits, &p);
    if (rc < 0)
        print_error("%s: %s\n", name, err_text());
    assert_int_equal(rc, 0);
    decode_header_t h;
    assert_int_equal(decode_probe(decoder, file, bytes, &limits, &h), 0);
    assert_int_equal(h.width, p->width);
    assert_int_equal(h.height, p->height);
    assert_int_equal(h.orientation, p->orientation);
    if (have_djpeg()) {
        ppm_t want = run_djpeg(path);
        assert_non_null(want.rgb);
        assert_same_pixels(name, p, &want);
        free(want.rgb);
    }
    return p;
}

static void check_good(const char *path, const char *name, const uint8_t *file, size_t bytes)
{
    const picture_t *p = decode_ok(path, name, file, bytes);
    assert_int_equal(p->warnings, 0);
    print_message("    good %s: %u x %u\n", name, p->width, p->height);
}

static void check_warn(const char *path, const char *name, const uint8_t *file, size_t bytes)
{
    const picture_t *p = decode_ok(path, name, file, bytes);
    assert_true(p->warnings > 0);
    assert_true(p->warning[0] != '\0');
    print_message("    warn %s: %u, %s\n", name, p->warnings, p->warning);
}

static void check_refused(const char *path, const char *name, const uint8_t *file, size_t bytes)
{
    (void)path;
    const picture_t *p = NULL;
    assert_int_equal(decode_image(decoder, 0, file, bytes, &limits, &p), ERR_DATA);
    assert_true(strlen(err_text()) > 8);
    print_message("    refused %s: %s\n", name, err_text());
}

static void test_good(void **state)
{
    (void)state;
    assert_true(each_file("good", check_good) >= 20);
}

static void test_warn(void **state)
{
    (void)state;
    assert_true(each_file("warn", check_warn) >= 16);
}

static void test_broken(void **state)
{
    struct rusage before, after;
    (void)state;
    getrusage(RUSAGE_SELF, &before);
    assert_true(each_file("broken", check_refused) >= 32);
    getrusage(RUSAGE_SELF, &after);
    /* Claims of 65500 x 65500 must not be believed: kilobytes of peak memory may hardly rise. */
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 * 1024);
}

static void test_unsupported(void **state)
{
    (void)state;
    assert_true(each_file("unsupported", check_refused) >= 1);
    assert_non_null(strstr(err_text(), "12"));
}

/* ---- orientation ---- */

static picture_t first_turn; /* Landscape_1, kept */

static void check_turn(const char *path, const char *name, const uint8_t *file, size_t bytes)
{
    const picture_t *p = decode_ok(path, name, file, bytes);
    assert_int_equal(p->orientation, name[strlen("Landscape_")] - '0');
    if (p->orientation == 1) {
        assert_int_equal(picture_begin(&first_turn, p->width, p->height, 1), 0);
        memcpy(first_turn.pixels, p->pixels, p->stride * p->height);
    }
    assert_int_equal(p->width, first_turn.width);
    assert_int_equal(p->height, first_turn.height);
    /* The files were compressed one by one, so they agree up to compression noise. */
    double sum = 0;
    size_t n = p->stride * p->height;
    for (size_t i = 0; i < n; i++)
        sum += abs(p->pixels[i] - first_turn.pixels[i]);
    print_message("    %s: mean difference to the first %.2f levels\n", name, sum / (double)n);
    assert_true(sum / (double)n < 6.0);
}

static void test_exif_files(void **state)
{
    (void)state;
    picture_init(&first_turn);
    int n = each_file("exif", check_turn);
    picture_fini(&first_turn);
    assert_int_equal(n, 8);
}

/* A JPEG with an APP1 behind its SOI. */
static uint8_t *with_app1(const uint8_t *file, size_t bytes, const uint8_t *payload, size_t n,
                          size_t *out_bytes)
{
    uint8_t *out = malloc(bytes + n + 4);
    memcpy(out, file, 2);
    out[2] = 0xFF;
    out[3] = 0xE1;
    out[4] = (uint8_t)((n + 2) >> 8);
    out[5] = (uint8_t)(n + 2);
    memcpy(out + 6, payload, n);
    memcpy(out + 6 + n, file + 2, bytes - 2);
    *out_bytes = bytes + n + 4;
    return out;
}

/* The same coefficients under every orientation: the upright pixels must be the stored ones, moved.
 * The sides are no multiples of the bands and blocks. */
static void test_exif_exact(void **state)
{
    (void)state;
    size_t bytes, turned_bytes;
    uint8_t *file = scratch_jpeg(75, 41, 90, &bytes);
    const picture_t *p;
    assert_int_equal(decode_image(decoder, 0, file, bytes, &limits, &p), 0);
    ppm_t stored = {p->width, p->height, p->pixels}; /* slot 0 stays valid while slot 1 is used */
    for (uint8_t o = 1; o <= 8; o++) {
        uint8_t app1[] = {'E',  'x',  'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1,
                          0x01, 0x12, 0,   3,   0, 0, 0,   1,   0, o,  0, 0, 0, 0, 0, 0};
        uint8_t *turned = with_app1(file, bytes, app1, sizeof app1, &turned_bytes);
        assert_int_equal(decode_image(decoder, 1, turned, turned_bytes, &limits, &p), 0);
        assert_int_equal(p->orientation, o);
        assert_same_pixels("turned", p, &stored);
        free(turned);
    }
    free(file);
}

static void test_exif_hostile(void **state)
{
    (void)state;
    const char *why = NULL;
    uint8_t ok[] = {'E',  'x',  'i', 'f', 0, 0, 'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0,
                    0x12, 0x01, 3,   0,   1, 0, 0,   0,   6,  0, 0, 0, 0, 0, 0, 0};
    assert_int_equal(exif_app1(ok, sizeof ok, &why), 6);
    assert_int_equal(exif_app1((const uint8_t *)"http://ns.adobe.com/xap/", 24, &why), 0);
    assert_null(why);
    /* Any prefix and any single changed byte: an answer in range, and never a byte read beyond it.
     */
    for (size_t n = 0; n < sizeof ok; n++) {
        uint8_t *cut = malloc(n ? n : 1);
        memcpy(cut, ok, n);
        int o = exif_app1(cut, n, &why);
        assert_true(o == 0 || o == -1 || o == 6);
        free(cut);
        for (int value = 0; value < 256; value++) {
            uint8_t *changed = malloc(sizeof ok);
            memcpy(changed, ok, sizeof ok);
            changed[n] = (uint8_t)value;
            o = exif_app1(changed, sizeof ok, &why);
            assert_true(o >= -1 && o <= 8);
            free(changed);
        }
    }
    ok[24] = 9;
    assert_int_equal(exif_app1(ok, sizeof ok, &why), -1);
    assert_non_null(why);
}

/* ---- limits ---- */

static void test_limits(void **state)
{
    (void)state;
    size_t bytes;
    const picture_t *p;
    uint8_t *file = scratch_jpeg(64, 64, 0, &bytes);
    picture_limits_t tight = {64 * 64, 100, 0};
    assert_int_equal(decode_image(decoder, 0, file, bytes, &tight, &p), 0);
    tight.max_pixels--;
    assert_int_equal(decode_image(decoder, 0, file, bytes, &tight, &p), ERR_DATA);
    assert_non_null(strstr(err_text(), "max_pixels"));
    /* Damage the size in the frame header to the largest that libjpeg takes. */
    for (size_t i = 2; i + 9 < bytes; i++) {
        if (file[i] == 0xFF && file[i + 1] == 0xC0) {
            file[i + 5] = file[i + 7] = 0xFF;
            file[i + 6] = file[i + 8] = 0xDC;
            break;
        }
    }
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    assert_int_equal(decode_image(decoder, 0, file, bytes, &limits, &p), ERR_DATA);
    getrusage(RUSAGE_SELF, &after);
    assert_non_null(strstr(err_text(), "65500 x 65500"));
    assert_true(after.ru_maxrss - before.ru_maxrss < 16 * 1024);
    free(file);
}

static void test_scan_limit(void **state)
{
    (void)state;
    const char *path = scratch_data("odd/good/progressive3.jpg");
    if (!path)
        skip();
    size_t bytes;
    const picture_t *p;
    uint8_t *file = scratch_read(path, &bytes);
    picture_limits_t tight = {256000000, 2, 0};
    assert_int_equal(decode_image(decoder, 0, file, bytes, &tight, &p), ERR_DATA);
    assert_non_null(strstr(err_text(), "max_scans"));
    assert_int_equal(decode_image(decoder, 0, file, bytes, &limits, &p), 0);
    free(file);
}

/* Every prefix of a file: a verdict each time, and the object is good for the next. */
static void test_prefixes(void **state)
{
    (void)state;
    size_t bytes;
    const picture_t *p;
    uint8_t *file = scratch_jpeg(40, 30, 200, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        int rc = decode_image(decoder, 0, file, n, &limits, &p);
        assert_true(rc == ERR_DATA || (rc == 0 && p->warnings > 0));
    }
    assert_int_equal(decode_image(decoder, 0, file, bytes, &limits, &p), 0);
    assert_int_equal(p->warnings, 0);
    free(file);
}

/* A buffer that has grown is kept: the slots' memory stays what the largest picture needed. */
static void test_buffers_stay(void **state)
{
    (void)state;
    size_t large_bytes, small_bytes;
    const picture_t *p;
    uint8_t *large = scratch_jpeg(300, 200, 10, &large_bytes);
    uint8_t *small = scratch_jpeg(30, 20, 10, &small_bytes);
    assert_int_equal(decode_image(decoder, 7, large, large_bytes, &limits, &p), 0);
    const uint8_t *pixels = p->pixels;
    uint64_t memory = decode_memory(decoder);
    assert_int_equal(decode_image(decoder, 7, small, small_bytes, &limits, &p), 0);
    assert_int_equal(decode_image(decoder, 7, large, large_bytes, &limits, &p), 0);
    assert_ptr_equal(p->pixels, pixels);
    assert_int_equal(decode_memory(decoder), memory);
    free(large);
    free(small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),         cmocka_unit_test(test_warn),
        cmocka_unit_test(test_broken),       cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_exif_files),   cmocka_unit_test(test_exif_exact),
        cmocka_unit_test(test_exif_hostile), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_scan_limit),   cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_buffers_stay),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
