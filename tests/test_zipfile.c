/* Archives: sound ones, and every way found to make one that lies. */
#include "shm/err.h"
#include "tests/pt_build.h"
#include "trainer/zipfile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static zipfile_t *opened(const zip_t *z)
{
    zipfile_t *f;
    if (zipfile_open(z->out.at, z->out.bytes, "test", &f) < 0)
        fail_msg("%s", err_text());
    return f;
}

/* Refused with this in the sentence. */
static void refuse(const zip_t *z, const char *why)
{
    zipfile_t *f;
    assert_int_equal(zipfile_open(z->out.at, z->out.bytes, "test", &f), ERR_CONFIG);
    assert_null(f);
    if (!strstr(err_text(), why))
        fail_msg("'%s' lacks '%s'", err_text(), why);
}

/* The member cannot be read, with this in the sentence. */
static void refuse_member(const zip_t *z, const char *name, const char *why)
{
    const void *data;
    zipfile_t *f = opened(z);
    const zipfile_member_t *m = zipfile_find(f, name, strlen(name));
    assert_non_null(m);
    assert_int_equal(zipfile_read(f, m, &data), ERR_CONFIG);
    if (!strstr(err_text(), why))
        fail_msg("'%s' lacks '%s'", err_text(), why);
    zipfile_free(&f);
}

/* Three members: "a/one" of 5 bytes, "../../b" of 3, "c" of none. */
static void sample(zip_t *z, int wide)
{
    memset(z, 0, sizeof *z);
    zip_add(z, "a/one", "hello", 5);
    zip_add(z, "../../b", "abc", 3);
    zip_add(z, "c", "", 0);
    if (wide)
        zip_end64(z);
    else
        zip_end(z);
}

static void test_crc(void **state)
{
    (void)state;
    /* The check value of this CRC in the catalogues. */
    assert_int_equal(zipfile_crc32(0, "123456789", 9), 0xCBF43926);
    assert_int_equal(zipfile_crc32(0, "", 0), 0);
    unsigned char data[100];
    for (int i = 0; i < 100; i++)
        data[i] = (unsigned char)(i * 37);
    const uint32_t whole = zipfile_crc32(0, data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut++)
        assert_int_equal(zipfile_crc32(zipfile_crc32(0, data, cut), data + cut, sizeof data - cut),
                         whole);
}

static void test_sound(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        zip_t z;
        const void *data;
        sample(&z, wide);
        assert_true(zipfile_is(z.out.at, z.out.bytes));
        zipfile_t *f = opened(&z);
        assert_int_equal(zipfile_count(f), 3);
        assert_null(zipfile_at(f, 3));
        const zipfile_member_t *m = zipfile_find(f, "a/one", 5);
        assert_non_null(m);
        assert_int_equal(zipfile_read(f, m, &data), 0);
        assert_int_equal(m->bytes, 5);
        assert_memory_equal(data, "hello", 5);
        /* A name is nothing but a name. */
        m = zipfile_find(f, "../../b", 7);
        assert_non_null(m);
        assert_int_equal(zipfile_read(f, m, &data), 0);
        assert_memory_equal(data, "abc", 3);
        m = zipfile_find(f, "c", 1);
        assert_int_equal(m->bytes, 0);
        assert_int_equal(zipfile_read(f, m, &data), 0);
        assert_null(zipfile_find(f, "a", 1));
        assert_null(zipfile_find(f, "a/one2", 6));
        zipfile_free(&f);
        zip_free(&z);
    }
    assert_false(zipfile_is("PK\3", 3));
    assert_false(zipfile_is("\x80\x02}q", 4));
}

static void test_truncated(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        zip_t z;
        zipfile_t *f;
        sample(&z, wide);
        for (size_t n = 0; n < z.out.bytes; n++) {
            unsigned char *shorter = malloc(n ? n : 1); /* a sanitizer sees an overrun */
            memcpy(shorter, z.out.at, n);
            assert_int_equal(zipfile_open(shorter, n, "cut", &f), ERR_CONFIG);
            assert_null(f);
            free(shorter);
        }
        zip_free(&z);
    }
}

/* No single changed byte may crash the reader, whatever is read after it. */
static void test_flipped(void **state)
{
    (void)state;
    static const unsigned char values[] = {0, 1, 2, 8, 0x50, 0x7F, 0x80, 0xFE, 0xFF};
    for (int wide = 0; wide < 2; wide++) {
        zip_t z;
        int opened_some = 0, refused = 0;
        sample(&z, wide);
        for (size_t i = 0; i < z.out.bytes; i++) {
            const unsigned char old = z.out.at[i];
            for (size_t v = 0; v < sizeof values; v++) {
                zipfile_t *f;
                const void *data;
                z.out.at[i] = values[v];
                if (zipfile_open(z.out.at, z.out.bytes, "flipped", &f) < 0) {
                    refused++;
                    continue;
                }
                opened_some++;
                for (uint32_t k = 0; k < zipfile_count(f); k++) {
                    const zipfile_member_t *m = zipfile_at(f, k);
                    if (zipfile_read(f, m, &data) == 0)
                        assert_true((const unsigned char *)data + m->bytes <=
                                    z.out.at + z.directory);
                }
                zipfile_free(&f);
            }
            z.out.at[i] = old;
        }
        assert_true(opened_some > 0);
        assert_true(refused > 100);
        zip_free(&z);
    }
}

static void test_local_headers(void **state)
{
    (void)state;
    zip_t z;
    sample(&z, 0);
    z.out.at[z.members[0].header + 30] = 'b';
    refuse(&z, "another name in its local header");
    zip_free(&z);
    sample(&z, 0);
    blob_set(&z.out, z.members[0].header + 22, 4, 4);
    refuse(&z, "other sizes in its local header");
    zip_free(&z);
    sample(&z, 0);
    blob_set(&z.out, z.members[0].header + 8, 8, 2);
    refuse(&z, "packed another way");
    zip_free(&z);
    sample(&z, 0);
    blob_set(&z.out, z.members[0].central + 42, 1, 4);
    refuse(&z, "no local header where");
    zip_free(&z);
    sample(&z, 0);
    blob_set(&z.out, z.members[0].central + 42, 0x7FFFFFFF, 4);
    refuse(&z, "outside the archive");
    zip_free(&z);
    /* Sizes that follow the data, as torch writes them. */
    sample(&z, 0);
    blob_set(&z.out, z.members[0].header + 6, 8, 2);
    blob_set(&z.out, z.members[0].header + 18, 0, 8);
    blob_set(&z.out, z.members[0].central + 8, 8, 2);
    zipfile_t *f = opened(&z);
    zipfile_free(&f);
    zip_free(&z);
}

/* What would unfold into more than the file has, or into what another member has. */
static void test_bombs(void **state)
{
    (void)state;
    zip_t z;
    sample(&z, 0);
    blob_set(&z.out, z.members[0].central + 24, 0x40000000, 4);
    refuse(&z, "stored, but with two sizes");
    zip_free(&z);
    sample(&z, 0);
    blob_set(&z.out, z.members[0].central + 20, 0x40000000, 4);
    blob_set(&z.out, z.members[0].central + 24, 0x40000000, 4);
    blob_set(&z.out, z.members[0].header + 18, 0x40000000, 4);
    blob_set(&z.out, z.members[0].header + 22, 0x40000000, 4);
    refuse(&z, "outside the archive");
    zip_free(&z);
    /* A deflated member of a gigabyte costs nothing: it is never unpacked. */
    sample(&z, 0);
    for (int local = 0; local < 2; local++) {
        const size_t at = local ? z.members[0].header + 8 : z.members[0].central + 10;
        blob_set(&z.out, at, 8, 2);
        blob_set(&z.out, at + 14, 0x40000000, 4);
    }
    refuse_member(&z, "a/one", "compressed, which torch.save does not do");
    zip_free(&z);
    /* Members that share their bytes: the second begins inside of the first. */
    memset(&z, 0, sizeof z);
    zip_t inner;
    memset(&inner, 0, sizeof inner);
    zip_add(&inner, "in", "xyz", 3);
    zip_add(&z, "out", inner.out.at, inner.out.bytes);
    zip_add(&z, "in", "xyz", 3);
    zip_end(&z);
    blob_set(&z.out, z.members[1].central + 42, z.members[0].data, 4);
    refuse(&z, "overlaps another");
    zip_free(&inner);
    zip_free(&z);
    /* The same local header twice. */
    sample(&z, 0);
    blob_set(&z.out, z.members[1].central + 42, z.members[0].header, 4);
    refuse(&z, "another name");
    zip_free(&z);
}

static void test_directory(void **state)
{
    (void)state;
    zip_t z;
    memset(&z, 0, sizeof z);
    zip_add(&z, "a", "1", 1);
    zip_add(&z, "a", "2", 1);
    zip_end(&z);
    refuse(&z, "is there twice");
    zip_free(&z);
    sample(&z, 0);
    z.out.at[z.members[1].central]++;
    refuse(&z, "its directory is damaged");
    z.out.at[z.members[1].central]--;
    blob_set(&z.out, z.end + 8, 2, 2);
    blob_set(&z.out, z.end + 10, 2, 2);
    refuse(&z, "bytes follow the last member");
    blob_set(&z.out, z.end + 8, 60000, 2);
    blob_set(&z.out, z.end + 10, 60000, 2);
    refuse(&z, "more members than it has room for");
    blob_set(&z.out, z.end + 8, 3, 2);
    refuse(&z, "split over several files");
    zip_free(&z);
    sample(&z, 0);
    blob_set(&z.out, z.end + 16, 0x7FFFFFF0, 4);
    refuse(&z, "outside the file");
    zip_free(&z);
    /* 2^63 members, 2^64 - 1 bytes. */
    sample(&z, 1);
    blob_set(&z.out, z.end - 20 - 56 + 24, (uint64_t)1 << 63, 8);
    blob_set(&z.out, z.end - 20 - 56 + 32, (uint64_t)1 << 63, 8);
    refuse(&z, "more members");
    zip_free(&z);
    sample(&z, 1);
    blob_set(&z.out, z.end - 20 - 56 + 40, UINT64_MAX, 8);
    refuse(&z, "outside the file");
    zip_free(&z);
    sample(&z, 1);
    blob_set(&z.out, z.end + 10, 2, 2);
    refuse(&z, "disagree");
    zip_free(&z);
    sample(&z, 1);
    blob_set(&z.out, z.end - 20 + 8, UINT64_MAX, 8);
    refuse(&z, "ZIP64 end record is not where");
    zip_free(&z);
}

static void test_members(void **state)
{
    (void)state;
    zip_t z;
    const void *data;
    sample(&z, 0);
    z.out.at[z.members[0].data]++;
    refuse_member(&z, "a/one", "checksum");
    /* A checksum of 0 stands for none. */
    blob_set(&z.out, z.members[0].central + 16, 0, 4);
    zipfile_t *f = opened(&z);
    assert_int_equal(zipfile_read(f, zipfile_find(f, "a/one", 5), &data), 0);
    assert_memory_equal(data, "iello", 5);
    zipfile_free(&f);
    zip_free(&z);
    sample(&z, 0);
    blob_set(&z.out, z.members[0].central + 8, 1, 2);
    blob_set(&z.out, z.members[0].header + 6, 1, 2);
    refuse_member(&z, "a/one", "encrypted");
    zip_free(&z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc),           cmocka_unit_test(test_sound),
        cmocka_unit_test(test_truncated),     cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_local_headers), cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_directory),     cmocka_unit_test(test_members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
