#include "loader/pngfile.h"

#include "loader/exif.h"
#include "shm/err.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

enum {
    BAND_ROWS = 16,
    CHUNK_BYTES_MAX = 1 << 17, /* of an EXIF block; a JPEG's has 64 KiB at most */
    CHUNKS_MAX = 16,
};

static const png_byte exif_name[5] = "eXIf";

struct pngfile {
    uint8_t *rows; /* stored rows that cannot be decoded in place; grows, kept */
    size_t capacity;
};

int pngfile_new(pngfile_t **r)
{
    *r = calloc(1, sizeof **r);
    return *r ? 0 : err_set(ERR_ENV, "no memory for a PNG decoder");
}

void pngfile_free(pngfile_t **r)
{
    if (!*r)
        return;
    free((*r)->rows);
    free(*r);
    *r = NULL;
}

static int rows_reserve(pngfile_t *r, size_t bytes)
{
    if (bytes <= r->capacity)
        return 0;
    free(r->rows);
    r->capacity = 0;
    r->rows = malloc(bytes);
    if (!r->rows)
        return err_set(ERR_ENV, "no memory for %zu bytes of rows", bytes);
    r->capacity = bytes;
    return 0;
}

/* ---- PNG ---- */

typedef struct {
    const uint8_t *file;
    size_t bytes, at;
    png_structp png;
    png_infop info;
    jmp_buf leave;
    char reason[PICTURE_TEXT];
    picture_t *picture; /* warnings go here; NULL while only the header is read */
} png_reader_t;

static void on_png_error(png_structp png, png_const_charp text)
{
    png_reader_t *p = png_get_error_ptr(png);
    snprintf(p->reason, sizeof p->reason, "%s", text);
    longjmp(p->leave, 1);
}

static void on_png_warning(png_structp png, png_const_charp text)
{
    png_reader_t *p = png_get_error_ptr(png);
    if (p->picture)
        picture_warn(p->picture, text);
}

static void on_png_read(png_structp png, png_bytep to, size_t bytes)
{
    png_reader_t *p = png_get_io_ptr(png);
    if (bytes > p->bytes - p->at)
        png_error(png, "the file is cut short");
    memcpy(to, p->file + p->at, bytes);
    p->at += bytes;
}

/* The error that on_png_error noted. Running out of memory is not the file's fault; libpng 1.6 says
 * it in these words (png_malloc, png_zstream_error). */
static int png_failure(const png_reader_t *p)
{
    int memory =
        strcmp(p->reason, "Out of memory") == 0 || strcmp(p->reason, "insufficient memory") == 0;
    return err_set(memory ? ERR_ENV : ERR_DATA, "PNG: %s", p->reason);
}

/* Texts, profiles and the rest do not reach the pixels: they are skipped unread, so that neither a
 * compressed text that swells nor thousands of chunks cost more than their bytes. EXIF is kept as
 * libpng keeps a chunk that it does not know: its own reader of EXIF makes room for whatever length
 * the chunk claims, up to 2 GiB, before it looks how much of it is there. */
static void only_exif(png_structp png)
{
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_ALWAYS, exif_name, 1);
}

static int png_reader_open(png_reader_t *p, const uint8_t *file, size_t bytes)
{
    memset(p, 0, sizeof *p);
    p->file = file;
    p->bytes = bytes;
    p->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, p, on_png_error, on_png_warning);
    p->info = p->png ? png_create_info_struct(p->png) : NULL;
    if (!p->info) {
        png_destroy_read_struct(&p->png, NULL, NULL);
        return err_set(ERR_ENV, "no memory for a PNG decoder");
    }
    if (setjmp(p->leave)) {
        png_destroy_read_struct(&p->png, &p->info, NULL);
        return png_failure(p);
    }
    png_set_read_fn(p->png, p, on_png_read);
    only_exif(p->png);
    png_set_user_limits(p->png, PICTURE_SIDE, PICTURE_SIDE);
    png_set_chunk_malloc_max(p->png, CHUNK_BYTES_MAX);
    png_set_chunk_cache_max(p->png, CHUNKS_MAX);
    return 0;
}

static void png_reader_close(png_reader_t *p)
{
    png_destroy_read_struct(&p->png, &p->info, NULL);
}

/* Of the first EXIF chunk that has one; a malformed one before it is then no matter. */
static void find_orientation(const png_reader_t *p, pngfile_header_t *h)
{
    png_unknown_chunkp chunks;
    int n = png_get_unknown_chunks(p->png, p->info, &chunks);
    for (int i = 0; i < n; i++) {
        const char *why = NULL;
        if (memcmp(chunks[i].name, exif_name, sizeof exif_name) != 0)
            continue;
        int orientation = exif_tiff(chunks[i].data, chunks[i].size, &why);
        if (orientation > 0) {
            h->orientation = orientation;
            h->exif_remark = NULL;
            return;
        }
        h->exif_remark = h->exif_remark ? h->exif_remark : why;
    }
}

/* Reads up to the pixels; runs under the caller's setjmp. */
static int read_png_header(png_reader_t *p, const picture_limits_t *limits, pngfile_header_t *h)
{
    memset(h, 0, sizeof *h);
    png_read_info(p->png, p->info);
    h->width = png_get_image_width(p->png, p->info);
    h->height = png_get_image_height(p->png, p->info);
    h->orientation = 1;
    find_orientation(p, h);
    /* An interlaced picture that is turned is stored whole before it is. */
    int twice = png_get_interlace_type(p->png, p->info) != PNG_INTERLACE_NONE &&
                h->orientation != 1 && h->orientation != 4;
    return picture_check(h->width, h->height, twice ? (uint64_t)h->width * h->height * 3 : 0,
                         limits);
}

int pngfile_probe(const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                  pngfile_header_t *header)
{
    png_reader_t p;
    int rc = png_reader_open(&p, file, bytes);
    if (rc < 0)
        return rc;
    if (setjmp(p.leave))
        rc = png_failure(&p);
    else
        rc = read_png_header(&p, limits, header);
    png_reader_close(&p);
    return rc;
}

/* Whatever is stored becomes 8-bit RGB. */
static int set_png_transforms(png_reader_t *p)
{
    png_byte color = png_get_color_type(p->png, p->info);
    if (color == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(p->png);
    if (color == PNG_COLOR_TYPE_GRAY)
        png_set_expand_gray_1_2_4_to_8(p->png);
    png_set_strip_16(p->png);
    png_set_strip_alpha(p->png);
    if (!(color & PNG_COLOR_MASK_COLOR))
        png_set_gray_to_rgb(p->png);
    int passes = png_set_interlace_handling(p->png);
    png_read_update_info(p->png, p->info);
    return passes;
}

/* Runs under the caller's setjmp. */
static int read_png_rows(png_reader_t *p, pngfile_t *r, const pngfile_header_t *h,
                         picture_t *picture)
{
    int passes = set_png_transforms(p);
    size_t row_bytes = (size_t)h->width * 3;
    if (png_get_rowbytes(p->png, p->info) != row_bytes)
        return err_set(ERR_DATA, "PNG: this kind of pixels is not supported");
    int direct = picture->orientation == 1 || picture->orientation == 4;
    /* Interlaced passes come back to all rows, so all of them must be at hand. */
    uint32_t band = passes > 1 ? h->height : BAND_ROWS;
    int rc = direct ? 0 : rows_reserve(r, row_bytes * band);
    if (rc < 0)
        return rc;
    for (int pass = 0; pass < passes; pass++) {
        for (uint32_t y = 0; y < h->height; y++) {
            uint8_t *row =
                direct ? picture_row(picture, y) : r->rows + (size_t)(y % band) * row_bytes;
            png_read_row(p->png, row, NULL);
            int full = y % band == band - 1 || y == h->height - 1;
            if (!direct && pass == passes - 1 && full)
                picture_place(picture, y - y % band, y % band + 1, r->rows, row_bytes);
        }
    }
    return 0;
}

/* What stands behind the pixels cannot spoil them any more: trouble there is a warning. */
static void read_png_end(png_reader_t *p, picture_t *picture)
{
    if (setjmp(p->leave))
        picture_warn(picture, p->reason);
    else
        png_read_end(p->png, NULL);
}

int pngfile_decode(pngfile_t *r, const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                   picture_t *picture)
{
    png_reader_t p;
    pngfile_header_t h;
    int rc = png_reader_open(&p, file, bytes);
    if (rc < 0)
        return rc;
    if (setjmp(p.leave)) {
        rc = png_failure(&p);
        goto done;
    }
    CHECK_GOTO(read_png_header(&p, limits, &h), rc, done);
    CHECK_GOTO(picture_begin(picture, h.width, h.height, h.orientation), rc, done);
    p.picture = picture;
    CHECK_GOTO(read_png_rows(&p, r, &h, picture), rc, done);
    read_png_end(&p, picture);
done:
    png_reader_close(&p);
    return rc;
}
