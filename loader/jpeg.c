#include "loader/jpeg.h"

#include "loader/exif.h"
#include "shm/err.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

enum {
    BAND_ROWS = 16,       /* rows converted or turned at once */
    APP1 = JPEG_APP0 + 1, /* where EXIF lives */
};

/* error and progress are first in what libjpeg hands back, so its pointers lead to the whole
 * object. */
struct jpeg {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr error;
    struct jpeg_progress_mgr progress;
    jmp_buf leave;
    int failed; /* an ERR_ code when the reason is ours rather than libjpeg's */
    uint32_t max_scans;
    int orientation;         /* of the first EXIF block that has one; 0: none so far */
    const char *exif_remark; /* of a malformed block */
    uint32_t warnings;
    char warning[PICTURE_TEXT];
    uint8_t *band; /* rows that cannot be decoded in place; grows, kept */
    size_t band_capacity;
};

/* ---- callbacks: they run inside libjpeg and may leave by longjmp ---- */

static void on_error(j_common_ptr common)
{
    jpeg_t *j = common->client_data;
    char text[JMSG_LENGTH_MAX];
    common->err->format_message(common, text);
    /* Running out of memory is not the file's fault. */
    j->failed =
        err_set(common->err->msg_code == JERR_OUT_OF_MEMORY ? ERR_ENV : ERR_DATA, "%s", text);
    longjmp(j->leave, 1);
}

static void on_message(j_common_ptr common, int level)
{
    jpeg_t *j = common->client_data;
    if (level >= 0) /* trace */
        return;
    common->err->num_warnings++;
    if (j->warnings++ == 0) {
        char text[JMSG_LENGTH_MAX];
        common->err->format_message(common, text);
        snprintf(j->warning, sizeof j->warning, "%s", text);
    }
}

static void on_output(j_common_ptr common)
{
    (void)common; /* nothing of libjpeg's goes to stderr */
}

/* A small file with thousands of scans over a large image is a bomb: each scan is a pass over all.
 */
static void on_progress(j_common_ptr common)
{
    jpeg_t *j = common->client_data;
    if (j->cinfo.input_scan_number > (int)j->max_scans) {
        j->failed = err_set(ERR_DATA, "more than %u scans (max_scans)", j->max_scans);
        longjmp(j->leave, 1);
    }
}

/* An APP1 segment, read where it lies. libjpeg's own way of keeping segments copies them and walks
 * a list of all for each: a file of empty ones would take for ever. The source is jpeg_mem_src's:
 * all of the file is in its buffer, and skipping behind the end makes it warn and end the file. */
static boolean on_app1(j_decompress_ptr cinfo)
{
    jpeg_t *j = cinfo->client_data;
    const struct jpeg_source_mgr *src = cinfo->src;
    if (src->bytes_in_buffer < 2) {
        src->skip_input_data(cinfo, 2);
        return TRUE;
    }
    size_t length = (size_t)src->next_input_byte[0] << 8 | src->next_input_byte[1];
    length = length < 2 ? 2 : length; /* its own two bytes are part of it */
    if (j->orientation == 0 && length <= src->bytes_in_buffer) {
        int found = exif_app1(src->next_input_byte + 2, length - 2, &j->exif_remark);
        j->orientation = found > 0 ? found : 0;
    }
    src->skip_input_data(cinfo, (long)length);
    return TRUE;
}

/* ---- the object ---- */

int jpeg_new(jpeg_t **out)
{
    jpeg_t *j = calloc(1, sizeof *j);
    if (!j)
        return err_set(ERR_ENV, "no memory for a JPEG decoder");
    j->cinfo.err = jpeg_std_error(&j->error);
    j->error.error_exit = on_error;
    j->error.emit_message = on_message;
    j->error.output_message = on_output;
    j->progress.progress_monitor = on_progress;
    j->cinfo.client_data = j;
    *out = j;
    return 0;
}

void jpeg_free(jpeg_t **j)
{
    if (!*j)
        return;
    free((*j)->band);
    free(*j);
    *j = NULL;
}

/* A fresh libjpeg object for each file: one that is reused keeps the last file's Huffman and
 * quantisation tables, and a file without its own (MJPEG frames) would decode differently after
 * another. Keeps err and client_data; runs under the caller's setjmp. */
static void begin_file(jpeg_t *j, const picture_limits_t *limits)
{
    j->max_scans = limits->max_scans;
    jpeg_create_decompress(&j->cinfo);
    j->cinfo.progress = &j->progress;
    jpeg_set_marker_processor(&j->cinfo, APP1, on_app1);
}

/* What libjpeg keeps of the whole image: the coefficients, where several scans make it. */
static uint64_t working_bytes(jpeg_t *j)
{
    uint64_t blocks = 0;
    if (!jpeg_has_multiple_scans(&j->cinfo))
        return 0;
    for (int i = 0; i < j->cinfo.num_components; i++)
        blocks += (uint64_t)j->cinfo.comp_info[i].width_in_blocks *
                  j->cinfo.comp_info[i].height_in_blocks;
    return blocks * sizeof(JBLOCK);
}

/* Reads the header; runs under the caller's setjmp. */
static int read_header(jpeg_t *j, const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                       jpeg_header_t *h)
{
    jpeg_mem_src(&j->cinfo, file, bytes);
    jpeg_read_header(&j->cinfo, TRUE);
    int rc = picture_check(j->cinfo.image_width, j->cinfo.image_height, working_bytes(j), limits);
    if (rc < 0)
        return rc;
    if (j->cinfo.data_precision != 8)
        return err_set(ERR_DATA, "%d-bit JPEG is not supported", j->cinfo.data_precision);
    if (j->cinfo.out_color_space == JCS_UNKNOWN)
        return err_set(ERR_DATA, "JPEG with %d components of unknown colours is not supported",
                       j->cinfo.num_components);
    h->width = j->cinfo.image_width;
    h->height = j->cinfo.image_height;
    h->orientation = j->orientation ? j->orientation : 1;
    h->exif_remark = j->orientation ? NULL : j->exif_remark;
    h->components = j->cinfo.num_components;
    h->progressive = j->cinfo.progressive_mode;
    h->arithmetic = j->cinfo.arith_code;
    return 0;
}

/* What a new file starts with, before anything can fail. */
static void reset(jpeg_t *j)
{
    j->failed = 0;
    j->orientation = 0;
    j->exif_remark = NULL;
    j->warnings = 0;
    j->warning[0] = '\0';
    /* Should creating fail, destroying must find nothing. */
    j->cinfo.mem = NULL;
}

int jpeg_probe(jpeg_t *j, const uint8_t *file, size_t bytes, const picture_limits_t *limits,
               jpeg_header_t *header)
{
    if (bytes == 0)
        return err_set(ERR_DATA, "the file is empty");
    reset(j);
    memset(header, 0, sizeof *header);
    if (setjmp(j->leave)) {
        jpeg_destroy_decompress(&j->cinfo);
        return j->failed;
    }
    begin_file(j, limits);
    int rc = read_header(j, file, bytes, limits, header);
    jpeg_destroy_decompress(&j->cinfo);
    header->warnings = j->warnings;
    memcpy(header->warning, j->warning, sizeof header->warning);
    return rc;
}

/* ---- decoding ---- */

static int band_reserve(jpeg_t *j, size_t bytes)
{
    if (bytes <= j->band_capacity)
        return 0;
    free(j->band);
    j->band_capacity = 0;
    j->band = malloc(bytes);
    if (!j->band)
        return err_set(ERR_ENV, "no memory for %zu bytes of rows", bytes);
    j->band_capacity = bytes;
    return 0;
}

/* Inverted CMYK to RGB, rounded as djpeg's PPM writer does: c * k / 255 + 0.5. In place: a pixel's
 * three bytes never run ahead of its four. The integer division is exact: n = c * k + 127 rounds to
 * nearest. */
static void cmyk_to_rgb(uint8_t *row, uint32_t width)
{
    for (uint32_t x = 0; x < width; x++) {
        const uint8_t *from = row + (size_t)4 * x;
        uint8_t *to = row + (size_t)3 * x;
        uint32_t k = from[3];
        uint8_t r = (uint8_t)((from[0] * k + 127) / 255), g = (uint8_t)((from[1] * k + 127) / 255),
                b = (uint8_t)((from[2] * k + 127) / 255);
        to[0] = r;
        to[1] = g;
        to[2] = b;
    }
}

/* Decodes the rows; runs under the caller's setjmp. */
static int read_rows(jpeg_t *j, picture_t *picture)
{
    uint32_t width = j->cinfo.output_width, height = j->cinfo.output_height;
    int cmyk = j->cinfo.out_color_space == JCS_CMYK;
    size_t row_bytes = (size_t)width * (cmyk ? 4 : 3);
    int direct = !cmyk && (picture->orientation == 1 || picture->orientation == 4);
    int rc = direct ? 0 : band_reserve(j, row_bytes * BAND_ROWS);
    if (rc < 0)
        return rc;
    while (j->cinfo.output_scanline < height) {
        uint32_t y = j->cinfo.output_scanline, n = height - y < BAND_ROWS ? height - y : BAND_ROWS;
        JSAMPROW rows[BAND_ROWS];
        for (uint32_t i = 0; i < n; i++)
            rows[i] = direct ? picture_row(picture, y + i) : j->band + i * row_bytes;
        for (uint32_t got = 0; got < n;) /* libjpeg gives what one iMCU row has left */
            got += jpeg_read_scanlines(&j->cinfo, rows + got, n - got);
        if (direct)
            continue;
        for (uint32_t i = 0; cmyk && i < n; i++)
            cmyk_to_rgb(rows[i], width);
        picture_place(picture, y, n, j->band, row_bytes);
    }
    return 0;
}

/* The whole of one file; runs under the caller's setjmp. */
static int decode_file(jpeg_t *j, const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                       picture_t *picture)
{
    jpeg_header_t header;
    int rc = read_header(j, file, bytes, limits, &header);
    if (rc < 0)
        return rc;
    J_COLOR_SPACE space = j->cinfo.jpeg_color_space;
    j->cinfo.out_color_space = space == JCS_CMYK || space == JCS_YCCK ? JCS_CMYK : JCS_RGB;
    j->cinfo.dct_method = JDCT_ISLOW;
    rc = picture_begin(picture, header.width, header.height, header.orientation);
    if (rc < 0)
        return rc;
    jpeg_start_decompress(&j->cinfo);
    rc = read_rows(j, picture);
    if (rc < 0)
        return rc;
    jpeg_finish_decompress(&j->cinfo);
    return 0;
}

int jpeg_decode(jpeg_t *j, const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                picture_t *picture)
{
    if (bytes == 0)
        return err_set(ERR_DATA, "the file is empty");
    reset(j);
    if (setjmp(j->leave)) {
        jpeg_destroy_decompress(&j->cinfo);
        return j->failed;
    }
    begin_file(j, limits);
    int rc = decode_file(j, file, bytes, limits, picture);
    jpeg_destroy_decompress(&j->cinfo);
    if (rc < 0)
        return rc;
    picture->warnings = j->warnings;
    memcpy(picture->warning, j->warning, sizeof picture->warning);
    return 0;
}
