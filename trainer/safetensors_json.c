#include "trainer/safetensors_json.h"

#include <string.h>

static int fail(stjson_t *j, const char *what)
{
    if (!j->what)
        j->what = what;
    j->at = j->end;
    return -1;
}

static void skip_space(stjson_t *j)
{
    while (j->at < j->end && memchr(" \t\n\r", j->text[j->at], 4))
        j->at++;
}

int stjson_accept(stjson_t *j, char c)
{
    skip_space(j);
    if (j->what || j->at == j->end)
        return fail(j, "the header ends too early");
    if (j->text[j->at] != c)
        return 0;
    j->at++;
    return 1;
}

int stjson_expect(stjson_t *j, char c)
{
    int rc = stjson_accept(j, c);
    if (rc == 0)
        return fail(j, c == '"'   ? "a string is missing"
                       : c == '{' ? "an object is missing"
                       : c == '[' ? "a list is missing"
                                  : "a bracket, colon or comma is missing");
    return rc < 0 ? -1 : 0;
}

static int hex4(stjson_t *j, uint32_t *value)
{
    if (j->end - j->at < 4)
        return fail(j, "a \\u escape is cut short");
    *value = 0;
    for (int i = 0; i < 4; i++) {
        char c = j->text[j->at++];
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A') + 10;
        else
            return fail(j, "a \\u escape has a character that is not a hexadecimal digit");
        *value = *value * 16 + digit;
    }
    return 0;
}

/* The code point of a \u escape, whose "\u" has been read, as UTF-8. Surrogates must come in pairs.
 */
static int unicode_escape(stjson_t *j, char *out, size_t *n)
{
    uint32_t code, low;
    if (hex4(j, &code))
        return -1;
    if (code >= 0xD800 && code < 0xDC00) {
        if (j->end - j->at < 2 || j->text[j->at] != '\\' || j->text[j->at + 1] != 'u')
            return fail(j, "a surrogate stands alone");
        j->at += 2;
        if (hex4(j, &low))
            return -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return fail(j, "a surrogate stands alone");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
        return fail(j, "a surrogate stands alone");
    }
    if (code == 0)
        return fail(j, "a string holds a NUL character");
    if (code < 0x80) {
        out[(*n)++] = (char)code;
    } else if (code < 0x800) {
        out[(*n)++] = (char)(0xC0 | code >> 6);
        out[(*n)++] = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        out[(*n)++] = (char)(0xE0 | code >> 12);
        out[(*n)++] = (char)(0x80 | (code >> 6 & 0x3F));
        out[(*n)++] = (char)(0x80 | (code & 0x3F));
    } else {
        out[(*n)++] = (char)(0xF0 | code >> 18);
        out[(*n)++] = (char)(0x80 | (code >> 12 & 0x3F));
        out[(*n)++] = (char)(0x80 | (code >> 6 & 0x3F));
        out[(*n)++] = (char)(0x80 | (code & 0x3F));
    }
    return 0;
}

static int escape(stjson_t *j, char *out, size_t *n)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (j->at == j->end)
        return fail(j, "a string has no end");
    char c = j->text[j->at++];
    if (c == 'u')
        return unicode_escape(j, out, n);
    const char *p = c ? strchr(from, c) : NULL;
    if (!p)
        return fail(j, "a string has an unknown escape");
    out[(*n)++] = to[p - from];
    return 0;
}

/* Length of the UTF-8 sequence at p (at most `left` bytes), 0 if it is not valid: overlong forms,
 * surrogates and values beyond U+10FFFF are not. */
static size_t utf8_length(const unsigned char *p, size_t left)
{
    size_t n = p[0] < 0x80   ? 1
               : p[0] < 0xC2 ? 0
               : p[0] < 0xE0 ? 2
               : p[0] < 0xF0 ? 3
               : p[0] < 0xF5 ? 4
                             : 0;
    if (n > left)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    }
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F) ||
        (p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] > 0x8F))
        return 0;
    return n;
}

size_t stjson_string_room(const stjson_t *j)
{
    size_t i = j->at;
    while (i < j->end && j->text[i] != '"')
        i++;
    if (i == j->end)
        return 1;
    size_t first = ++i;
    while (i < j->end && j->text[i] != '"')
        i += j->text[i] == '\\' ? 2 : 1;
    return (i < j->end ? i : j->end) - first + 1;
}

int stjson_string(stjson_t *j, char *out, size_t room, size_t *length)
{
    size_t n = 0;
    if (stjson_expect(j, '"'))
        return -1;
    while (j->at < j->end && j->text[j->at] != '"') {
        char decoded[4];
        const char *piece = j->text + j->at;
        size_t bytes = 0;
        if (*piece == '\\') {
            j->at++;
            if (escape(j, decoded, &bytes))
                return -1;
            piece = decoded;
        } else {
            const unsigned char *p = (const unsigned char *)piece;
            bytes = *p < 0x20 ? 0 : utf8_length(p, j->end - j->at);
            if (bytes == 0)
                return fail(j, "a string holds a control character or is not UTF-8");
            j->at += bytes;
        }
        if (n + bytes >= room)
            return fail(j, "a string is too long");
        memcpy(out + n, piece, bytes);
        n += bytes;
    }
    if (j->at == j->end)
        return fail(j, "a string has no end");
    j->at++;
    out[n] = 0;
    *length = n;
    return 0;
}

int stjson_integer(stjson_t *j, int64_t *value)
{
    uint64_t v = 0;
    skip_space(j);
    size_t first = j->at;
    for (; j->at < j->end && j->text[j->at] >= '0' && j->text[j->at] <= '9'; j->at++) {
        uint64_t digit = (uint64_t)(j->text[j->at] - '0');
        if (v > (INT64_MAX - digit) / 10)
            return fail(j, "a number is too large");
        v = v * 10 + digit;
    }
    size_t digits = j->at - first;
    if (digits == 0)
        return fail(j, "a whole number is missing");
    if (digits > 1 && j->text[first] == '0')
        return fail(j, "a number has a leading zero");
    *value = (int64_t)v;
    return 0;
}

int stjson_finish(stjson_t *j)
{
    if (j->what)
        return -1;
    skip_space(j);
    return j->at == j->end ? 0 : fail(j, "text follows the header's object");
}

static void put(char *out, size_t *n, char c)
{
    if (out)
        out[*n] = c;
    (*n)++;
}

size_t stjson_quote(char *out, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0;
    put(out, &n, '"');
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\')
            put(out, &n, '\\');
        if (c >= 0x20) {
            put(out, &n, (char)c);
            continue;
        }
        for (const char *e = "\\u00"; *e; e++)
            put(out, &n, *e);
        put(out, &n, hex[c >> 4]);
        put(out, &n, hex[c & 15]);
    }
    put(out, &n, '"');
    return n;
}
