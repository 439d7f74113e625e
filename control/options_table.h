/* One row an option: what options_*.c parse, check, print and document. Private to
 * control/options*.c.
 */
#ifndef SLUICE_CONTROL_OPTIONS_TABLE_H
#define SLUICE_CONTROL_OPTIONS_TABLE_H

#include "control/options.h"

typedef enum {
    OPT_TYPE_TEXT = 0,
    OPT_TYPE_INT,
    OPT_TYPE_REAL,
    OPT_TYPE_BOOL,
    OPT_TYPE_WORD,   /* one of words */
    OPT_TYPE_DEVICE, /* o->devices */
    OPT_TYPE_BATCH,  /* o->batch, o->batch_share */
    OPT_TYPE_ABSENT, /* known from elsewhere, not in this version: only the words of `initial` pass
                      */
} option_type_t;

enum {
    OPT_OPEN_LOW = 1, /* min itself is outside */
    OPT_NONE_OK = 2,  /* `none` gives the default */
};

/* A legal word and its value. The first word of a value is the one that is written out; NULL ends.
 */
typedef struct {
    const char *word;
    int value;
} option_word_t;

struct option_spec {
    const char *key; /* NULL: a section */
    option_type_t type;
    unsigned flags;
    size_t offset, size; /* of the field in options_t; size is used by text */
    const char *initial; /* the default as typed; ABSENT: the accepted words, separated by spaces */
    double min, max;
    const option_word_t *words;
    const char *help;    /* one line; ABSENT: what this version does not have */
    const char *section; /* a row without a key: the title of the rows that follow */
};

extern const option_spec_t options_table[];
extern const int options_table_rows;

/* The row of a key, or NULL. */
const option_spec_t *options_find(const char *key);
/* Writes a row's value into o from what a person typed; o is untouched on ERR_CONFIG. */
int options_parse(options_t *o, const option_spec_t *row, const char *text);
/* The value of a row as text, as a person would type it. */
int options_value_text(const options_t *o, const option_spec_t *row, char *text, size_t bytes);
/* "a whole number from 1 to 100000", "SGD or AdamW": what a row takes. */
void options_legal_text(const option_spec_t *row, char *text, size_t bytes);

#endif
