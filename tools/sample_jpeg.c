#include "tools/sample_jpeg.h"

#include "shm/err.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

enum { QUALITY = 90 };

typedef struct {
    struct jpeg_error_mgr manager; /* first: libjpeg's pointer leads to the whole */
    jmp_buf leave;
} encode_error_t;

static void on_error(j_common_ptr common)
{
    encode_error_t *e = (encode_error_t *)common->err;
    char text[JMSG_LENGTH_MAX];
    common->err->format_message(common, text);
    err_set(ERR_ENV, "cannot encode a JPEG: %s", text);
    longjmp(e->leave, 1);
}

int sample_jpeg_encode(sample_jpeg_t *j, const canvas_t *canvas)
{
    struct jpeg_compress_struct c;
    encode_error_t error;
    sample_jpeg_fini(j);
    memset(&c, 0, sizeof c);
    c.err = jpeg_std_error(&error.manager);
    error.manager.error_exit = on_error;
    if (setjmp(error.leave)) {
        jpeg_destroy_compress(&c);
        return ERR_ENV;
    }
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &j->bytes, &j->size);
    c.image_width = c.image_height = (JDIMENSION)canvas->size;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c); /* 4:2:0 */
    jpeg_set_quality(&c, QUALITY, TRUE);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        JSAMPROW row = canvas->rgb + (size_t)3 * c.next_scanline * (size_t)canvas->size;
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    return 0;
}

void sample_jpeg_fini(sample_jpeg_t *j)
{
    free(j->bytes);
    j->bytes = NULL;
    j->size = 0;
}
