#include "loader/jpeg_encode.h"

#include "shm/err.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

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

int jpeg_encode(const draw_canvas_t *picture, int quality, unsigned char **bytes,
                unsigned long *size)
{
    struct jpeg_compress_struct c;
    encode_error_t error;
    memset(&c, 0, sizeof c);
    *bytes = NULL;
    *size = 0;
    c.err = jpeg_std_error(&error.manager);
    error.manager.error_exit = on_error;
    if (setjmp(error.leave)) {
        jpeg_destroy_compress(&c);
        free(*bytes);
        *bytes = NULL;
        return ERR_ENV;
    }
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, bytes, size);
    c.image_width = picture->width;
    c.image_height = picture->height;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, quality, TRUE);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        JSAMPROW row = picture->pixels + (size_t)c.next_scanline * picture->stride;
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    return 0;
}
