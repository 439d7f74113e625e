/* Small text helpers of the formats here: UTF-8 looked at one character at a time, doubles in the
 * fewest digits, the nearest word of a list. Pure; any thread.
 */
#ifndef SLUICE_CONTROL_TEXT_H
#define SLUICE_CONTROL_TEXT_H

#include <stddef.h>
#include <stdint.h>

enum { TEXT_DOUBLE_BYTES = 32 };

/* The character at s (NUL-terminated) and its length in bytes; 0 at a byte that is not UTF-8:
 * overlong forms, surrogates and values above U+10FFFF are not. */
size_t text_utf8(const char *s, uint32_t *character);
/* The shortest decimal that strtod reads back to the same double. value is finite. */
void text_double(char out[TEXT_DOUBLE_BYTES], double value);
/* Edits (insert, delete, replace, swap of neighbours) from one word to another, without regard to
 * case. Words are looked at up to 63 bytes. */
unsigned text_distance(const char *a, const char *b);

/* Control characters become spaces: text from outside (file names, decoders' messages) must neither
 * forge lines nor drive a terminal. */
void text_printable(char *text);

#endif
