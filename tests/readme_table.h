/* Reads a table of a folder's README, so that a test can hold it against the code's. */
#ifndef SLUICE_TESTS_README_TABLE_H
#define SLUICE_TESTS_README_TABLE_H

enum { README_ROWS = 64, README_COLUMNS = 8, README_CELL = 160 };

typedef struct {
    int rows;
    char cell[README_ROWS][README_COLUMNS][README_CELL]; /* trimmed, without backticks */
} readme_table_t;

/* The rows (without head and rule) of the first table behind the line `heading` of `path`, which is
 * given from the top folder; found through SLUICE_TESTS, else from the current directory. 0, or -1
 * when there is no such file. A missing heading gives 0 rows. */
int readme_table(const char *path, const char *heading, readme_table_t *table);

#endif
