#include "loader/draw.h"

#include "loader/font.h"

#include <math.h>
#include <string.h>

int draw_line_width(uint32_t width, uint32_t height)
{
    long line = lrint(((double)width + height) / 2 * 0.003);
    return line < 2 ? 2 : (int)line;
}

void draw_colour(uint32_t cls, uint8_t rgb[3])
{
    double hue = fmod(cls * 0.61803398875, 1.0) * 6, part = fmod(hue, 1.0);
    const double low = 0.1, high = 0.95, up = low + (high - low) * part, down = high + low - up;
    const double table[6][3] = {{high, up, low},   {down, high, low}, {low, high, up},
                                {low, down, high}, {up, low, high},   {high, low, down}};
    for (int i = 0; i < 3; i++)
        rgb[i] = (uint8_t)lrint(255 * table[(int)hue % 6][i]);
}

static int64_t clamp(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

/* Pixels [x1, x2) of rows [y1, y2). */
static void fill(const draw_canvas_t *c, int64_t x1, int64_t y1, int64_t x2, int64_t y2,
                 const uint8_t rgb[3])
{
    x1 = clamp(x1, c->width);
    x2 = clamp(x2, c->width);
    y1 = clamp(y1, c->height);
    y2 = clamp(y2, c->height);
    for (int64_t y = y1; y < y2; y++) {
        uint8_t *row = c->pixels + (size_t)y * c->stride;
        for (int64_t x = x1; x < x2; x++)
            memcpy(row + 3 * x, rgb, 3);
    }
}

/* Coordinates of a picture are small; anything else is cut here, NaN to 0. */
static int64_t pixel(float x)
{
    return x > -1e6f && x < 1e6f ? (int64_t)lrintf(x) : x >= 1e6f ? 1000000 : 0;
}

void draw_box(const draw_canvas_t *c, float fx1, float fy1, float fx2, float fy2, int line,
              const uint8_t rgb[3])
{
    int64_t x1 = pixel(fx1), y1 = pixel(fy1), x2 = pixel(fx2), y2 = pixel(fy2);
    fill(c, x1, y1, x2, y1 + line, rgb);
    fill(c, x1, y2 - line, x2, y2, rgb);
    fill(c, x1, y1, x1 + line, y2, rgb);
    fill(c, x2 - line, y1, x2, y2, rgb);
}

/* One '?' for each character that is not ASCII: bytes behind its first are passed over. */
static int is_continuation(unsigned char c)
{
    return (c & 0xC0) == 0x80;
}

void draw_label(const draw_canvas_t *c, float fx, float fy, const char *text, int line,
                const uint8_t rgb[3])
{
    static const uint8_t black[3] = {0, 0, 0}, white[3] = {255, 255, 255};
    int scale = (line + 1) / 2;
    int64_t step = (FONT_WIDTH + 1) * scale, high = (FONT_HEIGHT + 2) * scale, n = 0;
    for (const char *p = text; *p; p++)
        n += !is_continuation((unsigned char)*p);
    int64_t x = pixel(fx), y = pixel(fy), wide = n * step + scale;
    y = y - high >= 0 ? y - high : y;
    x = x + wide > c->width ? (int64_t)c->width - wide : x;
    x = x < 0 ? 0 : x;
    /* By how bright the plate looks (Rec. 601). */
    int bright = 299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] > 128000;
    fill(c, x, y, x + wide, y + high, rgb);
    x += scale;
    for (const char *p = text; *p; p++) {
        if (is_continuation((unsigned char)*p))
            continue;
        const uint8_t *glyph = font_glyph((unsigned char)*p);
        for (int row = 0; row < FONT_HEIGHT; row++)
            for (int bit = 0; bit < FONT_WIDTH; bit++)
                if (glyph[row] >> (FONT_WIDTH - 1 - bit) & 1)
                    fill(c, x + bit * scale, y + (row + 1) * scale, x + (bit + 1) * scale,
                         y + (row + 2) * scale, bright ? black : white);
        x += step;
    }
}
