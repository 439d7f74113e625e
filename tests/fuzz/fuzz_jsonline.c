/* A line of JSON from a run's events, and what is written from it again. */
#include "tests/fuzz/fuzz.h"

#include "control/json.h"
#include "control/text.h"
#include "tools/jsonline.h"

#include <stdlib.h>
#include <string.h>

/* Reads a line, writing each member as a string. 1 when it was an object to its end. */
static int rewrite(const char *line, char *out, size_t room)
{
    static jsonline_t m;
    const char *at = NULL;
    json_t j;
    int rc;
    json_begin(&j, out, room);
    json_object_begin(&j);
    while ((rc = jsonline_next(line, &at, &m)) == 1) {
        fuzz_require(at > line && at <= line + strlen(line), "the reader left its line");
        json_key_string(&j, m.key, m.value);
    }
    json_object_end(&j);
    return rc == 0 && json_finish(&j) >= 0;
}

void fuzz_jsonline(const uint8_t *data, size_t bytes)
{
    static char once[1 << 16], twice[1 << 16];
    char *line = malloc(bytes + 1);
    fuzz_require(line != NULL, "no memory");
    memcpy(line, data, bytes);
    line[bytes] = '\0';
    /* What was written by us must be read, and come out the same. */
    if (rewrite(line, once, sizeof once)) {
        fuzz_require(rewrite(once, twice, sizeof twice), "a line of ours is not read");
        fuzz_require(strcmp(once, twice) == 0, "a line of ours is read differently");
    }
    text_printable(line);
    free(line);
}
