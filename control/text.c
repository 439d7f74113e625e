#include "control/text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t text_utf8(const char *s, uint32_t *character)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *u = (const unsigned char *)s;
    size_t n = u[0] < 0x80 ? 1 : (u[0] & 0xE0) == 0xC0 ? 2 : (u[0] & 0xF0) == 0xE0 ? 3 : 4;
    if (n == 4 && (u[0] & 0xF8) != 0xF0)
        return 0;
    uint32_t c = n == 1 ? u[0] : u[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((u[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (u[i] & 0x3Fu);
    }
    if (c < least[n] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    *character = c;
    return n;
}

void text_double(char out[TEXT_DOUBLE_BYTES], double value)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, TEXT_DOUBLE_BYTES, "%.*g", digits, value);
        /* 30, not 3e+01: %g turns to an exponent when the digits end before the point. */
        int exponent = strchr(out, 'e') && fabs(value) >= 1e-4 && fabs(value) < 1e15;
        if (strtod(out, NULL) == value && !exponent)
            return;
    }
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

unsigned text_distance(const char *a, const char *b)
{
    enum { LONGEST = 63 };
    unsigned char before[LONGEST + 1], last[LONGEST + 1], row[LONGEST + 1]; /* of the edit table */
    size_t na = strnlen(a, LONGEST), nb = strnlen(b, LONGEST);
    memset(before, 0, sizeof before);
    for (size_t k = 0; k <= nb; k++)
        last[k] = (unsigned char)k;
    for (size_t i = 1; i <= na; i++) {
        row[0] = (unsigned char)i;
        for (size_t k = 1; k <= nb; k++) {
            int ca = tolower((unsigned char)a[i - 1]), cb = tolower((unsigned char)b[k - 1]);
            unsigned edits = least(least(last[k] + 1u, row[k - 1] + 1u), last[k - 1] + (ca != cb));
            if (i > 1 && k > 1 && ca == tolower((unsigned char)b[k - 2]) &&
                tolower((unsigned char)a[i - 2]) == cb)
                edits = least(edits, before[k - 2] + 1u);
            row[k] = (unsigned char)edits;
        }
        memcpy(before, last, sizeof before);
        memcpy(last, row, sizeof last);
    }
    return last[nb];
}

void text_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F)
            *text = ' ';
}
