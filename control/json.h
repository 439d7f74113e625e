/* JSON text into a buffer of the caller's: for events.jsonl, for what commands are answered, for
 * logs.
 *
 * Commas, quotes and escapes are the builder's business; nesting is checked. Nothing is allocated.
 * When the buffer is full, or nesting is wrong, the builder remembers it, the text stays terminated
 * and json_finish says so: a caller looks once, at the end. Strings need not be valid UTF-8: a byte
 * that is not becomes U+FFFD. A json_t is a plain value of one thread.
 *
 *     json_t j;
 *     json_begin(&j, buffer, sizeof buffer);
 *     json_object_begin(&j);
 *     json_key(&j, "epoch");
 *     json_int(&j, 3);
 *     json_object_end(&j);
 *     CHECK_GOTO(json_finish(&j), rc, fail);
 */
#ifndef SLUICE_CONTROL_JSON_H
#define SLUICE_CONTROL_JSON_H

#include <stddef.h>
#include <stdint.h>

enum { JSON_DEPTH = 16 };

typedef struct {
    char *text; /* terminated after every call */
    size_t room, length;
    int depth;
    int full;                       /* the buffer was too small */
    int wrong;                      /* a call came where JSON does not allow it */
    unsigned char kind[JSON_DEPTH]; /* of the open levels: '{' or '[' */
    unsigned char some[JSON_DEPTH]; /* the level has a member already */
    int keyed;                      /* a key waits for its value */
    int done;                       /* the one top value is complete */
} json_t;

/* Starts an empty text. room >= 1 byte. */
void json_begin(json_t *j, char *text, size_t room);
void json_object_begin(json_t *j);
void json_object_end(json_t *j);
void json_array_begin(json_t *j);
void json_array_end(json_t *j);
void json_key(json_t *j, const char *key);
void json_string(json_t *j, const char *value); /* NULL writes null */
/* The shortest decimal that reads back to the same double; null for NaN and the infinities. */
void json_number(json_t *j, double value);
void json_int(json_t *j, int64_t value);
void json_uint(json_t *j, uint64_t value);
void json_bool(json_t *j, int value);
void json_null(json_t *j);
/* The length of a complete text, or ERR_FAILED when it did not fit or is not one complete value. */
int json_finish(json_t *j);

/* Key and value in one call. */
void json_key_string(json_t *j, const char *key, const char *value);
void json_key_number(json_t *j, const char *key, double value);
void json_key_int(json_t *j, const char *key, int64_t value);
void json_key_uint(json_t *j, const char *key, uint64_t value);
void json_key_bool(json_t *j, const char *key, int value);

#endif
