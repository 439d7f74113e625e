/* DESIGN
 *
 * /proc/self/cgroup says in which group the process is, as seen from the root of its cgroup
 * namespace; /proc/self/mountinfo says which part of the hierarchy is mounted where:
 *
 *   group /docker/1f, mounted / on M             own folder M/docker/1f, then M/docker, M
 *   group /docker/1f, mounted /docker/1f on M    M alone: a container without a cgroup namespace
 *   group /, mounted / on M                      M alone: one with a namespace of its own
 *   group /../x or of another part               M alone: what is mounted is all that can be read
 *
 * Where mountinfo is missing or names no such mount, the usual places are tried.
 */
#include "shm/cgroup.h"

#include <stdio.h>
#include <string.h>

/* Whether `word` is among the comma-separated words of `list`. */
static int has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ',')) {
        if (strcspn(p, ",") == n && strncmp(p, word, n) == 0)
            return 1;
    }
    return 0;
}

/* The group's path in the hierarchy, from a line "4:memory:/a/b" or "0::/a/b". 0 found. */
static int find_group(const char *root, const char *controller, char *group)
{
    char path[CGROUP_PATH], line[CGROUP_PATH];
    int found = -1;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    while (found < 0 && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *where = names ? strchr(names + 1, ':') : NULL;
        if (!where || where[1] != '/')
            continue;
        *where++ = '\0';
        names++;
        if (controller ? has_word(names, controller) : names[0] == '\0') {
            snprintf(group, CGROUP_PATH, "%s", where);
            found = 0;
        }
    }
    fclose(f);
    return found;
}

/* mountinfo writes blanks and backslashes as \ooo. In place. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *p = text; *p; to++) {
        if (p[0] == '\\' && p[1] >= '0' && p[1] <= '3' && p[2] >= '0' && p[2] <= '7' &&
            p[3] >= '0' && p[3] <= '7') {
            *to = (char)((p[1] - '0') * 64 + (p[2] - '0') * 8 + (p[3] - '0'));
            p += 4;
        } else {
            *to = *p++;
        }
    }
    *to = '\0';
}

/* What lies behind `part` in `path`, both from the hierarchy's root: "" for the same folder, NULL
 * when it is not below. */
static const char *below(const char *path, const char *part)
{
    size_t n = strcmp(part, "/") == 0 ? 0 : strlen(part);
    if (strncmp(path, part, n) != 0 || (path[n] != '/' && path[n] != '\0'))
        return NULL;
    return strcmp(path + n, "/") == 0 ? "" : path + n;
}

/* Reads one line of mountinfo: "id parent dev ROOT POINT options.. - TYPE source OPTIONS". 1 if it
 * is a mount of the hierarchy; *part and *point lie in line. */
static int read_mount(char *line, const char *controller, char **part, char **point)
{
    char *field[5], *rest = strstr(line, " - "), *save, *type, *options;
    line[strcspn(line, "\n")] = '\0';
    if (!rest)
        return 0;
    *rest = '\0';
    type = strtok_r(rest + 3, " ", &save);
    options = strtok_r(NULL, " ", &save) ? strtok_r(NULL, " ", &save) : NULL;
    if (!type || !options)
        return 0;
    if (controller ? strcmp(type, "cgroup") != 0 || !has_word(options, controller)
                   : strcmp(type, "cgroup2") != 0)
        return 0;
    for (int i = 0; i < 5; i++)
        if (!(field[i] = strtok_r(i == 0 ? line : NULL, " ", &save)))
            return 0;
    unescape(field[3]);
    unescape(field[4]);
    *part = field[3];
    *point = field[4];
    return 1;
}

/* Where the hierarchy is mounted, and the group's folder below that. The mount that shows most of
 * the group's ancestors is the best; one that does not hold the group at all is the last resort. */
static void find_mount(const char *root, const char *controller, const char *group, char *mount,
                       char *rest)
{
    char path[CGROUP_PATH], line[2 * CGROUP_PATH], *part, *point;
    int best = -1; /* -1 none, 0 not the group's, else 1 + length of what lies below */
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (!read_mount(line, controller, &part, &point))
            continue;
        const char *tail = strncmp(group, "/..", 3) == 0 ? NULL : below(group, part);
        int score = tail ? 1 + (int)strlen(tail) : 0;
        if (score <= best)
            continue;
        best = score;
        snprintf(mount, CGROUP_PATH, "%s", point);
        snprintf(rest, CGROUP_PATH, "%s", tail ? tail : "");
    }
    if (f)
        fclose(f);
    if (best >= 0)
        return;
    snprintf(mount, CGROUP_PATH, "/sys/fs/cgroup%s%s", controller ? "/" : "",
             controller ? controller : "");
    snprintf(rest, CGROUP_PATH, "%s",
             strncmp(group, "/..", 3) == 0 || strcmp(group, "/") == 0 ? "" : group);
}

void cgroup_each(const char *root, const char *controller,
                 void (*visit)(const char *folder, void *user), void *user)
{
    char group[CGROUP_PATH], mount[CGROUP_PATH], rest[CGROUP_PATH], folder[3 * CGROUP_PATH];
    if (find_group(root, controller, group) < 0)
        return;
    find_mount(root, controller, group, mount, rest);
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s%s", root, mount, rest);
        visit(folder, user);
        char *slash = strrchr(rest, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}
