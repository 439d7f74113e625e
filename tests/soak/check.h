/* What two runs of one configuration must have in common (private to tests/soak). One thread.
 * 0, or a violation. */
#ifndef SLUICE_TESTS_SOAK_CHECK_H
#define SLUICE_TESTS_SOAK_CHECK_H

/* Two files of the same bytes: what sluice digest prints. */
int check_same_text(const char *expected, const char *found);
/* weights/: every tensor bit for bit, and all that the state says but the time it took. The ledger,
 * whose order is the order of events, is left to check_stream. */
int check_weights(const char *expected_dir, const char *found_dir);
/* results.csv: epochs 1 to n, each once; same numbers, time apart, where expected_dir is given. */
int check_results(const char *expected_dir, const char *found_dir, int epochs);
/* events.jsonl: whole lines; each epoch's stream is the one that `sluice digest` printed. */
int check_stream(const char *digest_output, const char *found_dir, int epochs);
/* No temporary file, no lock. */
int check_folder(const char *dir);

#endif
