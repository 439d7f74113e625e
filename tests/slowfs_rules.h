/* What tests/slowfs has been told to do with which requests. One thread.
 */
#ifndef SLUICE_TESTS_SLOWFS_RULES_H
#define SLUICE_TESTS_SLOWFS_RULES_H

enum { SLOWFS_READ = 1, SLOWFS_WRITE = 2, SLOWFS_FSYNC = 4, SLOWFS_META = 8, SLOWFS_PATHS = 1024 };

typedef struct {
    int ops;   /* of SLOWFS_READ and the others */
    int error; /* to answer with; 0: the request waits */
    int ms;    /* so long; negative: until release */
    char pattern[SLOWFS_PATHS];
} slowfs_rule_t;

/* The first rule for an operation on a path, or NULL. */
const slowfs_rule_t *slowfs_rule(int op, const char *path);
/* Reads the lines of a control FIFO that are there and confirms each on standard output. 1 when one
 * of them was "release": there is no rule then, and what waits is to be done. */
int slowfs_commands(int control);
const char *slowfs_op_name(int op);

#endif
