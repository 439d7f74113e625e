#include "tools/jsonline.h"

#include "control/text.h"
#include "shm/err.h"

#include <string.h>

/* A text that refuses what does not fit. */
typedef struct {
    char *text;
    size_t room, used;
    int full;
} out_t;

static void put(out_t *o, const char *bytes, size_t n)
{
    o->full |= n >= o->room - o->used;
    if (o->full)
        return;
    memcpy(o->text + o->used, bytes, n);
    o->used += n;
    o->text[o->used] = '\0';
}

static const char *skip_space(const char *s)
{
    return s + strspn(s, " \t\r\n");
}

/* Four hexadecimal digits, or -1. */
static int hex4(const char *s)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    int v = 0;
    for (int i = 0; i < 4; i++) {
        const char *d = s[i] ? strchr(digits, s[i]) : NULL;
        if (!d)
            return -1;
        v = v * 16 + (int)((d - digits) & 15);
    }
    return v;
}

/* A character below U+10000 as UTF-8. Half a surrogate pair is no character: U+FFFD; a NUL would
 * end the text: the same. */
static void put_character(out_t *o, int c)
{
    if (c == 0 || (c >= 0xD800 && c < 0xE000))
        c = 0xFFFD;
    char b[3] = {(char)(0xE0 | c >> 12), (char)(0x80 | (c >> 6 & 63)), (char)(0x80 | (c & 63))};
    if (c < 0x80) {
        b[2] = (char)c;
        put(o, b + 2, 1);
    } else if (c < 0x800) {
        b[1] = (char)(0xC0 | c >> 6);
        put(o, b + 1, 2);
    } else {
        put(o, b, 3);
    }
}

/* Behind the closing quote of the string that begins at s, or NULL. */
static const char *read_string(const char *s, out_t *o)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (*s++ != '"')
        return NULL;
    while (*s != '"') {
        uint32_t c;
        size_t n = text_utf8(s, &c);
        if (n == 0 || c < 0x20)
            return NULL;
        if (c != '\\') {
            put(o, s, n);
            s += n;
            continue;
        }
        const char *name = s[1] ? strchr(names, s[1]) : NULL;
        if (name) {
            put(o, &values[name - names], 1);
            s += 2;
        } else {
            int v = s[1] == 'u' ? hex4(s + 2) : -1;
            if (v < 0)
                return NULL;
            put_character(o, v);
            s += 6;
        }
    }
    return s + 1;
}

static const char *skip_digits(const char *s)
{
    size_t n = strspn(s, "0123456789");
    return n ? s + n : NULL;
}

/* Behind the number at s, or NULL. */
static const char *skip_number(const char *s)
{
    s += *s == '-';
    s = *s == '0' ? s + 1 : skip_digits(s);
    if (s && *s == '.')
        s = skip_digits(s + 1);
    if (s && (*s == 'e' || *s == 'E')) {
        s++;
        s += *s == '+' || *s == '-';
        s = skip_digits(s);
    }
    return s;
}

static const char *read_value(const char *s, out_t *o)
{
    static const char *const words[] = {"true", "false", "null"};
    const char *end = NULL;
    if (*s == '"')
        return read_string(s, o);
    for (int i = 0; i < 3; i++)
        if (strncmp(s, words[i], strlen(words[i])) == 0)
            end = s + strlen(words[i]);
    if (!end)
        end = skip_number(s);
    if (end)
        put(o, s, (size_t)(end - s));
    return end;
}

int jsonline_next(const char *line, const char **at, jsonline_t *m)
{
    out_t key = {m->key, sizeof m->key, 0, 0}, value = {m->value, sizeof m->value, 0, 0};
    const char *s = skip_space(*at ? *at : line);
    m->key[0] = m->value[0] = '\0';
    if (*s == '}' && *at) {
        if (*skip_space(s + 1))
            return err_set(ERR_FAILED, "there is more behind the object");
        return 0;
    }
    if (*s != (*at ? ',' : '{'))
        return err_set(ERR_FAILED, "not one flat JSON object");
    s = skip_space(s + 1);
    if (*s == '}' && !*at) {
        *at = s;
        return jsonline_next(line, at, m);
    }
    s = read_string(s, &key);
    s = s ? skip_space(s) : NULL;
    s = s && *s == ':' ? read_value(skip_space(s + 1), &value) : NULL;
    if (!s || key.full || value.full)
        return err_set(ERR_FAILED, s ? "a member is too long" : "not one flat JSON object");
    *at = s;
    return 1;
}
