#include "tests/slowfs_rules.h"

#include <errno.h>
#include <fnmatch.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RULES = 16 };
static slowfs_rule_t rules[RULES];
static int n_rules;

static const struct {
    const char *name;
    int ops;
} names[] = {{"read", SLOWFS_READ},
             {"write", SLOWFS_WRITE},
             {"fsync", SLOWFS_FSYNC},
             {"meta", SLOWFS_META},
             {"all", SLOWFS_READ | SLOWFS_WRITE | SLOWFS_FSYNC | SLOWFS_META}};
enum { NAMES = sizeof names / sizeof names[0] };

const char *slowfs_op_name(int op)
{
    for (size_t i = 0; i < NAMES; i++)
        if (names[i].ops == op)
            return names[i].name;
    return "?";
}

const slowfs_rule_t *slowfs_rule(int op, const char *path)
{
    for (int i = 0; i < n_rules; i++)
        if ((rules[i].ops & op) && fnmatch(rules[i].pattern, path, 0) == 0)
            return &rules[i];
    return NULL;
}

static int parse_ops(char *text)
{
    int ops = 0;
    for (char *save = NULL, *w = strtok_r(text, ",", &save); w; w = strtok_r(NULL, ",", &save))
        for (size_t i = 0; i < NAMES; i++)
            if (strcmp(w, names[i].name) == 0)
                ops |= names[i].ops;
    return ops;
}

static int parse_error(const char *name)
{
    return strcmp(name, "ENOSPC") == 0 ? ENOSPC : strcmp(name, "EROFS") == 0 ? EROFS : EIO;
}

static int command(const char *line)
{
    char what[16] = "", ops[64] = "", pattern[896] = "", value[32] = "";
    slowfs_rule_t *r = &rules[n_rules];
    int n = sscanf(line, "%15s %63s %895s %31s", what, ops, pattern, value);
    int release = n >= 1 && strcmp(what, "release") == 0;
    if (release) {
        n_rules = 0;
    } else if (n >= 3 && n_rules < RULES) {
        r->ops = parse_ops(ops);
        r->error = strcmp(what, "fail") == 0 ? parse_error(value) : 0;
        r->ms = strcmp(what, "delay") == 0 ? atoi(value) : -1;
        snprintf(r->pattern, sizeof r->pattern, "%s", pattern);
        n_rules++;
    } else {
        printf("bad %s\n", line);
        return 0;
    }
    printf("ok %s\n", line);
    return release;
}

int slowfs_commands(int control)
{
    static char line[SLOWFS_PATHS];
    static size_t used;
    int release = 0;
    ssize_t n = read(control, line + used, sizeof line - 1 - used);
    if (n <= 0)
        return 0;
    used += (size_t)n;
    line[used] = '\0';
    char *start = line, *end;
    while ((end = strchr(start, '\n')) != NULL) {
        *end = '\0';
        release |= command(start);
        start = end + 1;
    }
    used = strlen(start);
    memmove(line, start, used + 1);
    return release;
}
