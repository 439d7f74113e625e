/* Files made to be expensive: what they claim costs nothing until it has been compared with a limit,
 * and the limits hold for the scan and for the loaders alike. */
#include "tests/memory_asked.h"
#include "tests/scratch.h"

#include "control/yamldoc.h"
#include "loader/decode.h"
#include "loader/inspect.h"
#include "loader/listing.h"
#include "shm/err.h"
#include "tools/statefile.h"
#include "trainer/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

/* libpng's and libjpeg's own objects for a file take some 30 kB. */
enum { CHEAP = 256 << 10 };

typedef struct {
    uint8_t *data;
    size_t bytes, room;
} file_t;

static void put(file_t *f, const void *data, size_t bytes)
{
    if (f->bytes + bytes > f->room) {
        f->room = 2 * f->room + bytes + 4096;
        f->data = realloc(f->data, f->room);
        assert_non_null(f->data);
    }
    memcpy(f->data + f->bytes, data, bytes);
    f->bytes += bytes;
}

static void put_big(file_t *f, uint32_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--)
        put(f, &(uint8_t){(uint8_t)(value >> 8 * i)}, 1);
}

static void put_little(file_t *f, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        put(f, &(uint8_t){i < 4 ? (uint8_t)(value >> 8 * i) : 0}, 1);
}

static void file_fini(file_t *f)
{
    free(f->data);
    memset(f, 0, sizeof *f);
}

/* ---- decoders ---- */

static decode_t *decoder;

static int open_decoder(void **state)
{
    (void)state;
    return decode_new(&decoder);
}

static int close_decoder(void **state)
{
    (void)state;
    decode_free(&decoder);
    return 0;
}

static picture_limits_t default_limits(void)
{
    options_t o;
    options_default(&o);
    return decode_limits(&o);
}

/* Refused by scan and loader, with this in the sentence, for less memory than `most`. */
static void refused(const file_t *f, const picture_limits_t *limits, const char *why, uint64_t most)
{
    decode_header_t h;
    const picture_t *p;
    for (int whole = 0; whole < 2; whole++) {
        memory_asked_reset();
        int rc = whole ? decode_image(decoder, 0, f->data, f->bytes, limits, &p)
                       : decode_probe(decoder, f->data, f->bytes, limits, &h);
        uint64_t asked = memory_asked();
        if (rc != ERR_DATA || !strstr(err_text(), why))
            fail_msg("%s: %d '%s', not '%s'", whole ? "loader" : "scan", rc, err_text(), why);
        if (asked > most)
            fail_msg("%s: %llu bytes of memory were asked for", whole ? "loader" : "scan",
                     (unsigned long long)asked);
    }
}

/* Frame header of so many components, all sampled alike; marker C0 baseline, C2 progressive. */
static void put_frame(file_t *f, int marker, uint32_t width, uint32_t height, int components)
{
    put_big(f, 0xFF00u | (uint32_t)marker, 2);
    put_big(f, 8u + 3u * (uint32_t)components, 2);
    put_big(f, 8, 1);
    put_big(f, height, 2);
    put_big(f, width, 2);
    put_big(f, (uint32_t)components, 1);
    for (int i = 1; i <= components; i++)
        put(f, (uint8_t[]){(uint8_t)i, 0x11, 0}, 3);
}

static void put_scan(file_t *f, int components, int last)
{
    put_big(f, 0xFFDA, 2);
    put_big(f, 6u + 2u * (uint32_t)components, 2);
    put_big(f, (uint32_t)components, 1);
    for (int i = 1; i <= components; i++)
        put(f, (uint8_t[]){(uint8_t)i, 0}, 2);
    put(f, (uint8_t[]){0, (uint8_t)last, 0}, 3);
}

/* The tables that a frame needs: quantisation 1, one Huffman table of one code for DC and AC. */
static void put_tables(file_t *f)
{
    static const uint8_t huffman[] = {0xFF, 0xC4, 0, 38, 0x00, 1, 0, 0, 0,    0, 0, 0, 0, 0,
                                      0,    0,    0, 0,  0,    0, 0, 0, 0x10, 1, 0, 0, 0, 0,
                                      0,    0,    0, 0,  0,    0, 0, 0, 0,    0, 0, 0};
    put_big(f, 0xFFDB, 2);
    put_big(f, 67, 2);
    put_big(f, 0, 1);
    for (int i = 0; i < 64; i++)
        put_big(f, 1, 1);
    put(f, huffman, sizeof huffman);
}

static void make_jpeg(file_t *f, int marker, uint32_t width, uint32_t height, int components)
{
    memset(f, 0, sizeof *f);
    put_big(f, 0xFFD8, 2);
    put_tables(f);
    put_frame(f, marker, width, height, components);
    put_scan(f, components, marker == 0xC2 ? 0 : 63);
    put_big(f, 0xFFD9, 2);
}

static uint32_t crc_of(const uint8_t *p, size_t n)
{
    uint32_t c = 0xFFFFFFFFu; /* PNG 1.2, annex D */
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
    }
    return ~c;
}

static void put_chunk(file_t *f, const char *name, const void *data, size_t bytes)
{
    put_big(f, (uint32_t)bytes, 4);
    size_t from = f->bytes;
    put(f, name, 4);
    put(f, data, bytes);
    put_big(f, crc_of(f->data + from, bytes + 4), 4);
}

static void begin_png(file_t *f, uint32_t width, uint32_t height, int depth, int color,
                      int interlace)
{
    file_t h = {0};
    memset(f, 0, sizeof *f);
    put(f, "\x89PNG\r\n\x1A\n", 8);
    put_big(&h, width, 4);
    put_big(&h, height, 4);
    put(&h, (uint8_t[]){(uint8_t)depth, (uint8_t)color, 0, 0, (uint8_t)interlace}, 5);
    put_chunk(f, "IHDR", h.data, h.bytes);
    file_fini(&h);
}

static void make_png(file_t *f, uint32_t width, uint32_t height, int interlace)
{
    static const uint8_t turned[] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1,
                                     18,  0,   3, 0,  0, 0, 1, 0, 6, 0, 0};
    begin_png(f, width, height, 16, 6, interlace);
    put_chunk(f, "eXIf", turned, sizeof turned);
    put_chunk(f, "IDAT", "x\x9C\x01", 3);
    put_chunk(f, "IEND", "", 0);
}

static void make_bmp(file_t *f, int32_t width, int32_t height, int bits)
{
    memset(f, 0, sizeof *f);
    put(f, "BM", 2);
    put_little(f, 0, 8);
    put_little(f, 54 + 1024, 4);
    put_little(f, 40, 4);
    put_little(f, (uint32_t)width, 4);
    put_little(f, (uint32_t)height, 4);
    put_little(f, 1, 2);
    put_little(f, (uint32_t)bits, 2);
    put_little(f, 0, 4);
    put_little(f, 0, 12);
    put_little(f, 0xFFFFFFFF, 4); /* palette entries */
    put_little(f, 0, 4);
}

static void test_a_claim_costs_nothing(void **state)
{
    (void)state;
    picture_limits_t limits = default_limits(), wide = limits;
    wide.max_pixels = UINT64_MAX;
    file_t f;
    for (int i = 0; i < 2; i++) {
        /* With any number of pixels allowed, the memory of the decode is what refuses. */
        const picture_limits_t *l = i ? &wide : &limits;
        const char *why = i ? "max_decode_mb" : "max_pixels";
        static const int markers[] = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA};
        for (size_t k = 0; k < sizeof markers / sizeof markers[0]; k++) {
            make_jpeg(&f, markers[k], 65500, 65500, k % 2 ? 3 : 1);
            refused(&f, l, why, CHEAP);
            file_fini(&f);
        }
        for (int interlace = 0; interlace < 2; interlace++) {
            make_png(&f, 65500, 65500, interlace);
            refused(&f, l, why, CHEAP);
            file_fini(&f);
        }
        make_bmp(&f, 65500, -65500, 1);
        refused(&f, l, why, CHEAP);
        file_fini(&f);
    }
    make_png(&f, 0x7FFFFFFF, 0x7FFFFFFF, 0);
    refused(&f, &wide, "PNG", CHEAP);
    file_fini(&f);
    make_bmp(&f, INT32_MAX, INT32_MAX, 32);
    refused(&f, &wide, "a side may have", CHEAP);
    file_fini(&f);
}

static void probed(const file_t *f, const picture_limits_t *limits, uint32_t width, uint32_t height)
{
    decode_header_t h;
    if (decode_probe(decoder, f->data, f->bytes, limits, &h) < 0)
        fail_msg("%s", err_text());
    assert_true(h.width == width && h.height == height);
}

/* The same picture costs more where several scans make it, or where it is interlaced and turned. */
static void test_memory_of_a_decode(void **state)
{
    (void)state;
    picture_limits_t limits = default_limits();
    file_t f;
    assert_int_equal(limits.max_bytes, 1024 * 1000000ull);
    /* 144 megapixels: 432 MB of picture, 864 MB of coefficients in three full components. */
    make_jpeg(&f, 0xC0, 12000, 12000, 3);
    probed(&f, &limits, 12000, 12000);
    file_fini(&f);
    make_jpeg(&f, 0xC2, 12000, 12000, 3);
    refused(&f, &limits, "1296 MB", CHEAP);
    file_fini(&f);
    make_jpeg(&f, 0xC2, 12000, 12000, 1);
    probed(&f, &limits, 12000, 12000);
    file_fini(&f);
    /* 200 megapixels: 600 MB, and again where it must be whole before it can be turned. */
    make_png(&f, 20000, 10000, 0);
    probed(&f, &limits, 10000, 20000);
    file_fini(&f);
    make_png(&f, 20000, 10000, 1);
    refused(&f, &limits, "1200 MB", CHEAP);
    file_fini(&f);
}

static void test_scans_without_end(void **state)
{
    (void)state;
    picture_limits_t limits = default_limits();
    decode_header_t h;
    const picture_t *p;
    file_t f = {0};
    put_big(&f, 0xFFD8, 2);
    put_tables(&f);
    put_frame(&f, 0xC2, 512, 512, 1);
    for (int i = 0; i < 100000; i++)
        put_scan(&f, 1, 0);
    put_big(&f, 0xFFD9, 2);
    if (decode_probe(decoder, f.data, f.bytes, &limits, &h) < 0)
        fail_msg("%s", err_text());
    assert_int_equal(decode_image(decoder, 0, f.data, f.bytes, &limits, &p), ERR_DATA);
    assert_non_null(strstr(err_text(), "more than 100 scans"));
    file_fini(&f);
}

/* Where a JPEG has an APP1 segment libjpeg could keep each: this one has 250000, and one longer than
 * the file. */
static void test_segments_without_end(void **state)
{
    (void)state;
    picture_limits_t limits = default_limits();
    file_t f = {0};
    put_big(&f, 0xFFD8, 2);
    for (int i = 0; i < 250000; i++)
        put_big(&f, 0xFFE10002, 4);
    put_big(&f, 0xFFE1FFFF, 4);
    put(&f, "Exif\0\0MM", 8);
    refused(&f, &limits, "", CHEAP);
    file_fini(&f);
    /* Restart markers are no data, however many there are. */
    const picture_t *p;
    put_big(&f, 0xFFD8, 2);
    put_tables(&f);
    put_big(&f, 0xFFDD0004, 4);
    put_big(&f, 1, 2);
    put_frame(&f, 0xC0, 64, 64, 1);
    put_scan(&f, 1, 63);
    for (uint32_t i = 0; i < 500000; i++)
        put_big(&f, 0xFFD0 + i % 8, 2);
    put_big(&f, 0xFFD9, 2);
    if (decode_image(decoder, 0, f.data, f.bytes, &limits, &p) < 0)
        fail_msg("%s", err_text());
    assert_true(p->width == 64 && p->warnings > 0);
    file_fini(&f);
}

/* A deflate stream of stored blocks' opposite: 1000 bytes that stand for a megabyte of one byte. Made
 * by hand: a literal, then copies of 258 bytes from distance 1, in fixed Huffman codes. */
static void make_swelling(file_t *z, size_t copies)
{
    memset(z, 0, sizeof *z);
    uint32_t bits = 0, n = 0;
    put(z, "\x78\x9C", 2);
#define BIT(b)                                                                                     \
    do {                                                                                           \
        bits |= (uint32_t)(b) << n++;                                                              \
        if (n == 8) {                                                                              \
            put_big(z, bits, 1);                                                                   \
            bits = n = 0;                                                                          \
        }                                                                                          \
    } while (0)
    const uint8_t head[] = {1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0}; /* last, fixed; literal 0: 00110000 */
    for (size_t i = 0; i < sizeof head; i++)
        BIT(head[i]);
    for (size_t c = 0; c < copies; c++) {
        const uint8_t copy[] = {1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0}; /* 285, then distance 1 */
        for (size_t i = 0; i < sizeof copy; i++)
            BIT(copy[i]);
    }
    for (int i = 0; i < 14; i++) /* end of block: seven zeros; and to the end of a byte */
        BIT(0);
#undef BIT
    put_big(z, 0, 4); /* a checksum, wrong: nobody reads so far */
}

static void test_chunks_that_swell(void **state)
{
    (void)state;
    picture_limits_t limits = default_limits();
    decode_header_t h;
    file_t f, z, chunk = {0};
    make_swelling(&z, 400000); /* 100 MB of text in 650 kB */
    begin_png(&f, 16, 16, 8, 2, 0);
    put(&chunk, "Comment\0\0", 9);
    put(&chunk, z.data, z.bytes);
    for (int i = 0; i < 3; i++) {
        put_chunk(&f, "zTXt", chunk.data, chunk.bytes);
        put_chunk(&f, "iCCP", chunk.data, chunk.bytes);
    }
    for (int i = 0; i < 20000; i++)
        put_chunk(&f, "tEXt", "a\0b", 3);
    /* A chunk that claims 2 GB, and is the end of the file. */
    size_t before = f.bytes;
    put_big(&f, 0x7FFFFFF0, 4);
    put(&f, "eXIfMM", 6);
    refused(&f, &limits, "", CHEAP);
    f.bytes = before;
    put_chunk(&f, "IDAT", z.data, z.bytes);
    put_chunk(&f, "IEND", "", 0);
    memory_asked_reset();
    if (decode_probe(decoder, f.data, f.bytes, &limits, &h) < 0)
        fail_msg("%s", err_text());
    assert_true(memory_asked() < CHEAP);
    /* Pixels that swell beyond the picture end where it ends. */
    const picture_t *p;
    memory_asked_reset();
    if (decode_image(decoder, 0, f.data, f.bytes, &limits, &p) < 0)
        fail_msg("%s", err_text());
    assert_true(p->width == 16 && memory_asked() < CHEAP);
    file_fini(&f);
    file_fini(&z);
    file_fini(&chunk);
}

/* ---- the scan ---- */

static void test_the_scan_asks_for_little(void **state)
{
    (void)state;
    char folder[SCRATCH_PATH];
    inspector_t *in = NULL;
    finding_t finding = {0};
    file_t f;
    inspect_rules_t rules = {.limits = default_limits(), .classes = 2, .max_labels = 20000};
    scratch_begin(folder);
    make_jpeg(&f, 0xC2, 65500, 65500, 3);
    const char *path = scratch_write(folder, "claim.jpg", f.data, f.bytes);
    assert_int_equal(inspector_new(&rules, &in), 0);
    memory_asked_reset();
    assert_int_equal(inspect_image(in, path, &finding), 0);
    assert_true(memory_asked() < CHEAP);
    assert_non_null(strstr(finding.dropped, "max_pixels"));
    finding_fini(&finding);
    file_fini(&f);
    inspector_free(&in);
    scratch_end(folder);
}

static void test_labels_without_end(void **state)
{
    (void)state;
    enum { ROWS = 5000000 };
    labels_t l = {0};
    char *text = malloc(2 * ROWS);
    assert_non_null(text);
    for (int i = 0; i < ROWS; i++)
        memcpy(text + (size_t)2 * i, "0\n", 2);
    memory_asked_reset();
    assert_int_equal(labels_parse(text, 2 * ROWS, "many.txt", 1, 0, &l), ERR_DATA);
    assert_non_null(strstr(err_text(), "more than"));
    assert_true(memory_asked() < 32 << 20);
    free(text);
    labels_fini(&l);
}

static void test_more_labels_than_the_option_allows(void **state)
{
    (void)state;
    char folder[SCRATCH_PATH], path[SCRATCH_PATH];
    inspector_t *in = NULL;
    finding_t finding = {0};
    scratch_begin(folder);
    scratch_write_jpeg(folder, "a.jpg", 32, 32);
    snprintf(path, sizeof path, "%s",
             scratch_text(folder, "a.txt", "0 .1 .1 .1 .1\n0 .2 .2 .1 .1\n0 .3 .3 .1 .1\n"));
    snprintf(strrchr(path, '.'), 5, ".jpg");
    for (uint32_t most = 2; most <= 3; most++) {
        inspect_rules_t rules = {.limits = default_limits(), .classes = 2, .max_labels = most};
        assert_int_equal(inspector_new(&rules, &in), 0);
        assert_int_equal(inspect_image(in, path, &finding), 0);
        if (most == 2)
            assert_non_null(strstr(finding.dropped, "3 labels; max_labels allows 2"));
        else
            assert_null(finding.dropped);
        finding_fini(&finding);
        inspector_free(&in);
    }
    scratch_end(folder);
}

static void test_a_list_that_is_no_text(void **state)
{
    (void)state;
    enum { BYTES = 8 << 20 };
    char folder[SCRATCH_PATH], *text = malloc(BYTES);
    listing_t l;
    assert_non_null(text);
    memset(text, 'x', BYTES);
    scratch_begin(folder);
    char *entry = strdup(scratch_write(folder, "list.txt", text, BYTES));
    dataset_t d = {.file = entry, .root = folder};
    d.entries[CATALOG_TRAIN] = (paths_t){.items = &entry, .count = 1, .capacity = 1};
    memory_asked_reset();
    assert_int_equal(listing_make(&d, CATALOG_TRAIN, NULL, NULL, &l), ERR_DATA);
    assert_true(memory_asked() < CHEAP);
    assert_non_null(strstr(err_text(), "not a text file"));
    free(entry);
    free(text);
    scratch_end(folder);
}

/* ---- configuration and checkpoints ---- */

static void test_yaml_without_end(void **state)
{
    (void)state;
    enum { BYTES = 17 << 20 };
    yamldoc_t *doc;
    char *text = malloc(BYTES);
    assert_non_null(text);
    memset(text, ' ', BYTES);
    memory_asked_reset();
    assert_int_equal(yamldoc_load_text(text, BYTES, "long.yaml", &doc), ERR_CONFIG);
    assert_true(memory_asked() < CHEAP);
    assert_non_null(strstr(err_text(), "at most"));
    /* Half a million values. */
    for (int i = 0; i < 1 << 20; i += 2)
        memcpy(text + i + 1, "a,", 2);
    text[0] = '[';
    assert_int_equal(yamldoc_load_text(text, 1 << 20, "many.yaml", &doc), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "more than"));
    assert_true(memory_asked() < 256 << 20);
    free(text);
}

static void test_headers_of_checkpoints(void **state)
{
    (void)state;
    static const uint64_t claims[] = {16, 1 << 20, 16 << 20, 99999999, 1ull << 40, UINT64_MAX};
    int fd = memfd_create("claim", MFD_CLOEXEC);
    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        uint8_t file[16];
        safetensors_t *f;
        statefile_t s;
        for (int k = 0; k < 8; k++)
            file[k] = (uint8_t)(claims[i] >> 8 * k);
        memcpy(file + 8, "{\"a\":{}}", 8);
        assert_int_equal(pwrite(fd, file, sizeof file, 0), sizeof file);
        memory_asked_reset();
        assert_int_equal(safetensors_load_memory(file, sizeof file, "claim", &f), ERR_CONFIG);
        assert_int_equal(statefile_read(fd, "claim", &s), ERR_CONFIG);
        assert_true(memory_asked() < CHEAP);
    }
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_claim_costs_nothing),
        cmocka_unit_test(test_memory_of_a_decode),
        cmocka_unit_test(test_scans_without_end),
        cmocka_unit_test(test_segments_without_end),
        cmocka_unit_test(test_chunks_that_swell),
        cmocka_unit_test(test_the_scan_asks_for_little),
        cmocka_unit_test(test_labels_without_end),
        cmocka_unit_test(test_more_labels_than_the_option_allows),
        cmocka_unit_test(test_a_list_that_is_no_text),
        cmocka_unit_test(test_yaml_without_end),
        cmocka_unit_test(test_headers_of_checkpoints),
    };
    return cmocka_run_group_tests(tests, open_decoder, close_decoder);
}
