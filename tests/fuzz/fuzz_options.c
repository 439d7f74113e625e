/* Words of a command line, one a line: what is taken must survive being written and read again. */
#include "tests/fuzz/fuzz.h"

#include "control/options.h"
#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

void fuzz_options(const uint8_t *data, size_t bytes)
{
    static options_t o, again;
    static char dump[OPTIONS_YAML_BYTES], second[OPTIONS_YAML_BYTES], notes[4096];
    char *text = malloc(bytes + 1);
    fuzz_require(text != NULL, "no memory");
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    options_default(&o);
    for (char *rest = text, *word; (word = strsep(&rest, "\n")) != NULL;) {
        int rc = options_set(&o, word);
        fuzz_require(rc == 0 || (rc == ERR_CONFIG && err_text()[0]), "a word failed otherwise");
    }
    free(text);
    int n = options_dump_yaml(&o, dump, sizeof dump);
    fuzz_require(n > 0, "options that cannot be written");
    options_default(&again);
    fuzz_require(options_load_yaml_text(&again, dump, (size_t)n, "dump") == 0,
                 "options that are not read again");
    fuzz_require(options_dump_yaml(&again, second, sizeof second) == n &&
                     memcmp(dump, second, (size_t)n) == 0,
                 "options that are read differently");
    if (options_check(&o, notes, sizeof notes) == 0)
        options_resolve_devices(&o, 2, 1, "none");
}
