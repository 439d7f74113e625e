/* DESIGN
 * From the end of the file to its beginning, as the format has it (APPNOTE 4.3): the end record,
 * through its ZIP64 twin where a field is full, gives the central directory; its entries give the
 * local headers; a local header gives where the data begins. Everything is an offset into the
 * caller's bytes and is compared with the end of what it must lie in before it is read.
 */
#include "trainer/zipfile.h"

#include "shm/err.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    CENTRAL_BYTES = 46,
    LOCAL_BYTES = 30,
    COMMENT_MAX = 65535,
    MEMBERS_MAX = 1 << 18, /* a checkpoint has one a storage: a few thousand */
    NAME_MAX_BYTES = 512,
    FLAG_ENCRYPTED = 1,
    FLAG_DESCRIPTOR = 8, /* sizes follow the data: the local header has zeros */
    EXTRA_ZIP64 = 1,
};

struct zipfile {
    char *origin;
    const unsigned char *bytes;
    uint64_t total;
    zipfile_member_t *members; /* in order of name */
    uint32_t count;
};

/* Where the directory is said to be. */
typedef struct {
    uint64_t entries, bytes, offset;
    uint64_t end; /* nothing of a member may lie behind this */
} directory_t;

static uint16_t u16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t u32(const unsigned char *p)
{
    return (uint32_t)u16(p) | (uint32_t)u16(p + 2) << 16;
}

static uint64_t u64(const unsigned char *p)
{
    return u32(p) | (uint64_t)u32(p + 4) << 32;
}

static int broken(const zipfile_t *z, const char *what)
{
    return err_set(ERR_CONFIG, "%s: not a usable archive: %s", z->origin, what);
}

static int broken_member(const zipfile_t *z, const zipfile_member_t *m, const char *what)
{
    return err_set(ERR_CONFIG, "%s: member %.*s %s", z->origin,
                   m->name_bytes > 200 ? 200 : (int)m->name_bytes, m->name, what);
}

/* ---- checksum ---- */

static uint32_t crc_table[8][256];

/* Eight tables, so that eight bytes take one step each way: table k is table 0 moved on by k bytes.
 */
static void crc_fill(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
        crc_table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++)
            crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
}

uint32_t zipfile_crc32(uint32_t crc, const void *data, uint64_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const unsigned char *p = data;
    uint32_t c = ~crc;
    pthread_once(&once, crc_fill);
    for (; bytes >= 8; bytes -= 8, p += 8) {
        const uint32_t lo = c ^ u32(p), hi = u32(p + 4);
        c = crc_table[7][lo & 255] ^ crc_table[6][lo >> 8 & 255] ^ crc_table[5][lo >> 16 & 255] ^
            crc_table[4][lo >> 24] ^ crc_table[3][hi & 255] ^ crc_table[2][hi >> 8 & 255] ^
            crc_table[1][hi >> 16 & 255] ^ crc_table[0][hi >> 24];
    }
    for (; bytes > 0; bytes--, p++)
        c = c >> 8 ^ crc_table[0][(c ^ *p) & 255];
    return ~c;
}

/* ---- the directory ---- */

/* The end record: the last place that has its signature and a comment that ends with the file. */
static int find_end(const zipfile_t *z, uint64_t *at)
{
    const uint64_t most = END_BYTES + COMMENT_MAX;
    const uint64_t first = z->total > most ? z->total - most : 0;
    if (z->total < END_BYTES)
        return broken(z, "the file is shorter than an archive's end record");
    for (uint64_t i = z->total - END_BYTES + 1; i-- > first;) {
        if (u32(z->bytes + i) == 0x06054B50 && i + END_BYTES + u16(z->bytes + i + 20) == z->total) {
            *at = i;
            return 0;
        }
    }
    return broken(z, "it has no end record: cut short?");
}

/* The ZIP64 end record behind a locator, if there is one just before the end record. */
static int read_end64(const zipfile_t *z, uint64_t end, directory_t *d)
{
    const unsigned char *locator = z->bytes + end - LOCATOR_BYTES;
    if (end < LOCATOR_BYTES + END64_BYTES || u32(locator) != 0x07064B50)
        return 0;
    const uint64_t at = u64(locator + 8), last = end - LOCATOR_BYTES - END64_BYTES;
    if (u32(locator + 4) != 0 || u32(locator + 16) > 1)
        return broken(z, "it is split over several files");
    if (at > last || u32(z->bytes + at) != 0x06064B50)
        return broken(z, "its ZIP64 end record is not where it should be");
    const unsigned char *p = z->bytes + at;
    if (u32(p + 16) != 0 || u32(p + 20) != 0 || u64(p + 24) != u64(p + 32))
        return broken(z, "it is split over several files");
    *d = (directory_t){
        .entries = u64(p + 32), .bytes = u64(p + 40), .offset = u64(p + 48), .end = at};
    return 1;
}

static int find_directory(const zipfile_t *z, directory_t *d)
{
    uint64_t end = 0;
    int rc = find_end(z, &end);
    if (rc < 0)
        return rc;
    const unsigned char *p = z->bytes + end;
    const directory_t small = {
        .entries = u16(p + 10), .bytes = u32(p + 12), .offset = u32(p + 16), .end = end};
    const int wide = read_end64(z, end, d);
    if (wide < 0)
        return wide;
    if (!wide) {
        if (u16(p + 4) != 0 || u16(p + 6) != 0 || u16(p + 8) != u16(p + 10))
            return broken(z, "it is split over several files");
        *d = small;
    } else if ((small.entries != 0xFFFF && small.entries != d->entries) ||
               (small.bytes != 0xFFFFFFFF && small.bytes != d->bytes) ||
               (small.offset != 0xFFFFFFFF && small.offset != d->offset)) {
        return broken(z, "its two end records disagree");
    }
    if (d->offset > d->end || d->bytes > d->end - d->offset)
        return broken(z, "its directory lies outside the file: cut short?");
    if (d->entries > MEMBERS_MAX || d->entries * CENTRAL_BYTES > d->bytes)
        return broken(z, "its directory claims more members than it has room for");
    return 0;
}

/* The fields of a ZIP64 extra that stand for full ones, in the order of the format. */
static int read_extra(const unsigned char *p, size_t bytes, uint64_t *size, uint64_t *packed,
                      uint64_t *offset)
{
    while (bytes >= 4) {
        const uint16_t id = u16(p), n = u16(p + 2);
        if (n > bytes - 4)
            return -1;
        if (id == EXTRA_ZIP64) {
            uint64_t *const fields[] = {size, packed, offset};
            size_t at = 4;
            for (int i = 0; i < 3; i++) {
                if (!fields[i] || *fields[i] != 0xFFFFFFFF)
                    continue;
                if (at + 8 > 4u + n)
                    return -1;
                *fields[i] = u64(p + at);
                at += 8;
            }
        }
        p += 4 + n;
        bytes -= 4u + n;
    }
    return 0;
}

/* The local header says the same as the directory, or leaves it to the descriptor behind the data;
 * the member ends before `end`. */
static int check_local(const zipfile_t *z, zipfile_member_t *m, uint64_t end)
{
    if (m->header > end || end - m->header < LOCAL_BYTES)
        return broken_member(z, m, "lies outside the archive: cut short?");
    const unsigned char *p = z->bytes + m->header;
    if (u32(p) != 0x04034B50)
        return broken_member(z, m, "has no local header where the directory says");
    const size_t name = u16(p + 26), extra = u16(p + 28);
    if (end - m->header - LOCAL_BYTES < name + extra)
        return broken_member(z, m, "lies outside the archive: cut short?");
    uint64_t size = u32(p + 22), packed = u32(p + 18);
    if (name != m->name_bytes || memcmp(p + LOCAL_BYTES, m->name, name) != 0)
        return broken_member(z, m, "has another name in its local header");
    if (u16(p + 8) != m->method || ((u16(p + 6) ^ m->flags) & (FLAG_ENCRYPTED | FLAG_DESCRIPTOR)))
        return broken_member(z, m, "is packed another way in its local header");
    /* torch pads here with a field of its own, which need not be well formed to the last byte. */
    if ((size == 0xFFFFFFFF || packed == 0xFFFFFFFF) &&
        read_extra(p + LOCAL_BYTES + name, extra, &size, &packed, NULL))
        return broken_member(z, m, "has a broken ZIP64 field");
    const int deferred = (m->flags & FLAG_DESCRIPTOR) && size == 0 && packed == 0;
    if (!deferred && (size != m->bytes || packed != m->packed))
        return broken_member(z, m, "has other sizes in its local header");
    m->data = m->header + LOCAL_BYTES + name + extra;
    if (end - m->data < m->packed)
        return broken_member(z, m, "lies outside the archive: cut short?");
    return 0;
}

static int read_member(zipfile_t *z, const directory_t *d, uint64_t *at)
{
    zipfile_member_t *m = &z->members[z->count];
    const unsigned char *p = z->bytes + *at;
    const uint64_t left = d->offset + d->bytes - *at;
    if (left < CENTRAL_BYTES || u32(p) != 0x02014B50)
        return broken(z, "its directory is damaged");
    const size_t name = u16(p + 28), extra = u16(p + 30), comment = u16(p + 32);
    if (left - CENTRAL_BYTES < name + extra + comment)
        return broken(z, "its directory is damaged");
    *m = (zipfile_member_t){
        .name = (const char *)p + CENTRAL_BYTES,
        .name_bytes = name,
        .flags = u16(p + 8),
        .method = u16(p + 10),
        .crc = u32(p + 16),
        .packed = u32(p + 20),
        .bytes = u32(p + 24),
        .header = u32(p + 42),
    };
    if (name == 0 || name > NAME_MAX_BYTES)
        return broken(z, "a member has no name, or one of more than 512 bytes");
    if (u16(p + 34) != 0 && u16(p + 34) != 0xFFFF)
        return broken(z, "it is split over several files");
    if (read_extra(p + CENTRAL_BYTES + name, extra, &m->bytes, &m->packed, &m->header))
        return broken_member(z, m, "has a broken ZIP64 field");
    if (m->method == 0 && m->bytes != m->packed)
        return broken_member(z, m, "is stored, but with two sizes");
    *at += CENTRAL_BYTES + name + extra + comment;
    z->count++;
    return check_local(z, m, d->offset);
}

/* ---- order ---- */

static int compare_names(const void *a, const void *b)
{
    const zipfile_member_t *x = a, *y = b;
    const size_t n = x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes;
    const int order = memcmp(x->name, y->name, n);
    if (order != 0)
        return order;
    return x->name_bytes < y->name_bytes ? -1 : x->name_bytes > y->name_bytes;
}

static int compare_places(const void *a, const void *b)
{
    const zipfile_member_t *x = a, *y = b;
    return x->header < y->header ? -1 : x->header > y->header;
}

static int check_members(zipfile_t *z)
{
    uint64_t at = 0;
    qsort(z->members, z->count, sizeof *z->members, compare_places);
    for (uint32_t i = 0; i < z->count; i++) {
        if (z->members[i].header < at)
            return broken_member(z, &z->members[i], "overlaps another");
        at = z->members[i].data + z->members[i].packed;
    }
    qsort(z->members, z->count, sizeof *z->members, compare_names);
    for (uint32_t i = 1; i < z->count; i++) {
        if (compare_names(&z->members[i - 1], &z->members[i]) == 0)
            return broken_member(z, &z->members[i], "is there twice");
    }
    return 0;
}

static int read_directory(zipfile_t *z)
{
    directory_t d = {0};
    int rc = find_directory(z, &d);
    if (rc < 0)
        return rc;
    z->members = calloc(d.entries + 1, sizeof *z->members);
    if (!z->members)
        return err_set(ERR_ENV, "%s: out of memory for the archive's directory", z->origin);
    uint64_t at = d.offset;
    for (uint64_t i = 0; i < d.entries; i++) {
        if ((rc = read_member(z, &d, &at)) < 0)
            return rc;
    }
    if (at != d.offset + d.bytes)
        return broken(z, "bytes follow the last member of its directory");
    return check_members(z);
}

int zipfile_is(const void *bytes, uint64_t total)
{
    /* An archive without members begins with its end record. */
    return total >= 4 && (u32(bytes) == 0x04034B50 || u32(bytes) == 0x06054B50);
}

int zipfile_open(const void *bytes, uint64_t total, const char *origin, zipfile_t **zip)
{
    int rc;
    zipfile_t *z = calloc(1, sizeof *z);
    *zip = NULL;
    if (!z || !(z->origin = strdup(origin))) {
        free(z);
        return err_set(ERR_ENV, "%s: out of memory", origin);
    }
    z->bytes = bytes;
    z->total = total;
    CHECK_GOTO(read_directory(z), rc, fail);
    *zip = z;
    return 0;
fail:
    zipfile_free(&z);
    return rc;
}

void zipfile_free(zipfile_t **zip)
{
    zipfile_t *z = *zip;
    if (!z)
        return;
    free(z->members);
    free(z->origin);
    free(z);
    *zip = NULL;
}

uint32_t zipfile_count(const zipfile_t *zip)
{
    return zip->count;
}

const zipfile_member_t *zipfile_at(const zipfile_t *zip, uint32_t i)
{
    return i < zip->count ? &zip->members[i] : NULL;
}

const zipfile_member_t *zipfile_find(const zipfile_t *zip, const char *name, size_t name_bytes)
{
    const zipfile_member_t key = {.name = name, .name_bytes = name_bytes};
    return bsearch(&key, zip->members, zip->count, sizeof key, compare_names);
}

int zipfile_read(const zipfile_t *zip, const zipfile_member_t *m, const void **data)
{
    if (m->flags & FLAG_ENCRYPTED)
        return broken_member(zip, m, "is encrypted");
    if (m->method != 0)
        return broken_member(zip, m,
                             "is compressed, which torch.save does not do: load the file in "
                             "PyTorch and save it again");
    if (m->crc != 0 && zipfile_crc32(0, zip->bytes + m->data, m->bytes) != m->crc)
        return broken_member(zip, m, "does not have its checksum: the file is damaged");
    *data = zip->bytes + m->data;
    return 0;
}
