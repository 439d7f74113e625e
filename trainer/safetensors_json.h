/* A strict reader of the JSON header of a safetensors file, and nothing more.
 *
 * The header's grammar has a fixed depth: an object of tensors, each an object of dtype, shape and
 * data_offsets, and one object of strings under __metadata__. So there is no tree and no recursion:
 * the cursor walks once over the text and hands out what the caller asks for. Strings are decoded
 * in place of the caller's choice. Private to trainer/safetensors*.c; any thread.
 */
#ifndef SLUICE_TRAINER_SAFETENSORS_JSON_H
#define SLUICE_TRAINER_SAFETENSORS_JSON_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *text;
    size_t at, end;
    const char *what; /* why the last call failed; NULL if it did not */
} stjson_t;

/* All calls: 0, or -1 with stjson_t.what set. Once failed, a cursor stays failed. */
int stjson_expect(stjson_t *j, char c);
/* 1 if the next character is c (then it is consumed), 0 if not, -1 at the end of the text. */
int stjson_accept(stjson_t *j, char c);
/* A string with its escapes decoded into out (NUL-terminated, so \u0000 is refused); *length
 * without the NUL. out needs room for the raw text between the quotes and one more:
 * stjson_string_room bytes. */
int stjson_string(stjson_t *j, char *out, size_t room, size_t *length);
size_t stjson_string_room(const stjson_t *j);
/* An integer 0 to 2^63 - 1: no sign, no leading zeros, no fraction, no exponent. */
int stjson_integer(stjson_t *j, int64_t *value);
/* Nothing but spaces to the end. */
int stjson_finish(stjson_t *j);
/* Appends text as a JSON string to out if out is not NULL; returns the bytes it takes, quotes
 * included. */
size_t stjson_quote(char *out, const char *text);

#endif
