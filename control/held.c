#include "control/held.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HELD_PATH = 4096 };

/* The state letter of a stat file: behind the last ')', for a name may hold anything. '\0' when it
 * cannot be read. */
static char read_state(const char *path)
{
    char text[1024];
    FILE *f = fopen(path, "re");
    if (!f)
        return '\0';
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *close = strrchr(text, ')');
    return close && close[1] == ' ' ? close[2] : '\0';
}

/* Kernels that do not tell say "0" or nothing. */
static void read_where(const char *path, char *where, size_t bytes)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(where, 1, bytes - 1, f) : 0;
    if (f)
        fclose(f);
    where[n] = '\0';
    where[strcspn(where, "\n")] = '\0';
    if (strcmp(where, "0") == 0)
        where[0] = '\0';
}

int held_look(const char *root, pid_t pid, held_state_t *s)
{
    char folder[HELD_PATH], path[HELD_PATH + 300];
    memset(s, 0, sizeof *s);
    snprintf(folder, sizeof folder, "%s/proc/%d/task", root, (int)pid);
    DIR *tasks = opendir(folder);
    if (!tasks) {
        snprintf(path, sizeof path, "%s/proc/self", root);
        return access(path, F_OK) == 0 ? 1 : -1;
    }
    for (struct dirent *e; (e = readdir(tasks));) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "%s/%s/stat", folder, e->d_name);
        char state = read_state(path);
        s->threads++;
        /* A thread that vanished between the two looks has ended. */
        if (state == 'Z' || state == 'X' || (state == '\0' && access(path, F_OK) != 0))
            s->gone++;
        if (state != 'D')
            continue;
        if (s->waiting++ == 0) {
            snprintf(path, sizeof path, "%s/%s/wchan", folder, e->d_name);
            read_where(path, s->where, sizeof s->where);
        }
    }
    closedir(tasks);
    return 0;
}

int held_inert(const held_state_t *s)
{
    return s->threads > 0 && s->waiting + s->gone == s->threads;
}

held_action_t held_decide(const held_case_t *h)
{
    if (h->leaving)
        return HELD_LEAVE;
    if (h->loader && h->inert >= HELD_LOOKS)
        return h->held >= HELD_MOST ? HELD_FAIL : HELD_RETURN;
    return h->told ? HELD_WAIT : HELD_SAY;
}
