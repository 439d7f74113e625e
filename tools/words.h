/* The key=value words of commands that have no run's options: `sluice sample`, `sluice export`. Main
 * thread. */
#ifndef SLUICE_TOOLS_WORDS_H
#define SLUICE_TOOLS_WORDS_H

/* One key, and where its value goes: one of text (not empty), number (least to most), share (0 to 1),
 * truth (True or False as the options of train take them). */
typedef struct {
    const char *key;
    const char **text;
    long long *number, least, most;
    double *share;
    int *truth;
    int given; /* set by words_read */
} word_t;

/* argv[1] and on; the last of a key wins. ERR_CONFIG with a sentence that begins with the command's
 * name, for an unknown word with the nearest key. */
int words_read(const char *command, int argc, char **argv, word_t *words, int n);

#endif
