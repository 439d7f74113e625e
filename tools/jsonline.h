/* Reads a line of JSON that is one flat object: what events.jsonl and those who watch a run get.
 *
 * The text may come from anywhere: every byte is checked against RFC 8259, and nesting, which no
 * event has, is refused. Nothing is allocated. Pure; any thread.
 *
 *     const char *at = NULL;
 *     while ((rc = jsonline_next(line, &at, &member)) == 1)
 *         ...
 */
#ifndef SLUICE_TOOLS_JSONLINE_H
#define SLUICE_TOOLS_JSONLINE_H

typedef struct {
    char key[128];
    char value[8192]; /* of a string: without quotes and escapes; of others: as it stands */
} jsonline_t;

/* *at is NULL before the first member. 1 a member, 0 the object and the line are at their end,
 * ERR_FAILED when it is no such object, or a member is too long. */
int jsonline_next(const char *line, const char **at, jsonline_t *member);

#endif
