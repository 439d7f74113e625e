#include "tests/readme_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void cell_text(const char *from, const char *to, char *out)
{
    size_t n = 0;
    while (from < to && *from == ' ')
        from++;
    while (to > from && (to[-1] == ' ' || to[-1] == '\n'))
        to--;
    for (; from < to && n + 1 < README_CELL; from++)
        if (*from != '`')
            out[n++] = *from;
    out[n] = '\0';
}

static void row_text(const char *line, char cells[README_COLUMNS][README_CELL])
{
    const char *at = line + 1;
    for (int c = 0; c < README_COLUMNS; c++) {
        const char *end = strchr(at, '|');
        cells[c][0] = '\0';
        if (!end)
            continue;
        cell_text(at, end, cells[c]);
        at = end + 1;
    }
}

int readme_table(const char *path, const char *heading, readme_table_t *table)
{
    char name[4096], line[1024];
    const char *tests = getenv("SLUICE_TESTS");
    int behind = 0, lines = 0;
    snprintf(name, sizeof name, "%s%s%s", tests ? tests : ".", tests ? "/../" : "/", path);
    table->rows = 0;
    FILE *f = fopen(name, "r");
    if (!f)
        return -1;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (!behind) {
            behind = strcmp(line, heading) == 0;
        } else if (line[0] != '|') {
            if (lines > 0)
                break;
        } else if (++lines > 2 && table->rows < README_ROWS) { /* behind head and rule */
            row_text(line, table->cell[table->rows++]);
        }
    }
    fclose(f);
    return 0;
}
