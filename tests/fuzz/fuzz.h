/* Fuzz targets: code that reads bytes which others wrote, fed with bytes nobody would write.
 *
 * A target is one function in one file, fuzz_NAME.c: it hands its bytes to the code under test and
 * calls whatever reads the result, so that a value which was let through wrongly is used. It must
 * leave nothing behind, and it may abort by fuzz_require when what it got contradicts itself. The
 * table in targets.c names all of them. They run in two ways: under libFuzzer (`make fuzz`), and in
 * the ordinary tests (tests/test_fuzz_corpus.c), which replay the seeds, what was found before, and
 * a fixed set of mutations of both. One thread.
 */
#ifndef SLUICE_TESTS_FUZZ_H
#define SLUICE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Takes one seed: bytes are copied, name becomes a file's name. */
typedef void (*fuzz_seed_fn)(void *user, const char *name, const void *data, size_t bytes);

typedef struct {
    const char *name;
    void (*run)(const uint8_t *data, size_t bytes);
    /* Seeds that are made rather than kept, because they follow layouts of this build; or NULL. */
    void (*seeds)(fuzz_seed_fn give, void *user);
    size_t most;       /* bytes of an input */
    const char *files; /* a folder of SLUICE_TEST_DATA whose files are seeds too, or NULL */
} fuzz_target_t;

extern const fuzz_target_t fuzz_targets[];
extern const int fuzz_targets_count;
const fuzz_target_t *fuzz_find(const char *name); /* NULL if there is none */

/* Aborts with the text: a contradiction that is as much a finding as a crash. */
void fuzz_require(int truth, const char *what);
/* A memfd that holds the bytes and nothing else, for code that reads a path: "/proc/self/fd/N" in a
 * static buffer. One for the process, replaced by each call. */
const char *fuzz_file(const void *data, size_t bytes);
/* The same under a name of its own in a folder that the process makes once, for code that looks at how
 * a path ends. One name for the process. *folder, if not NULL: where it lies. */
const char *fuzz_named_file(const void *data, size_t bytes, const char *name, const char **folder);
/* Keeps log lines from standard error, where they would hide what the fuzzer says. */
void fuzz_silence(void);
/* For use by all: reads every byte, so that a sanitizer sees what may not be read. */
void fuzz_touch(const void *data, size_t bytes);

/* The targets. */
void fuzz_yaml(const uint8_t *data, size_t bytes);
void fuzz_dataset(const uint8_t *data, size_t bytes);
void fuzz_listing(const uint8_t *data, size_t bytes);
void fuzz_labels(const uint8_t *data, size_t bytes);
void fuzz_inspect(const uint8_t *data, size_t bytes);
void fuzz_jpeg(const uint8_t *data, size_t bytes);
void fuzz_png(const uint8_t *data, size_t bytes);
void fuzz_png_seeds(fuzz_seed_fn give, void *user);
void fuzz_bmp(const uint8_t *data, size_t bytes);
void fuzz_bmp_seeds(fuzz_seed_fn give, void *user);
void fuzz_exif(const uint8_t *data, size_t bytes);
void fuzz_exif_seeds(fuzz_seed_fn give, void *user);
void fuzz_wire(const uint8_t *data, size_t bytes);
void fuzz_wire_seeds(fuzz_seed_fn give, void *user);
void fuzz_follow(const uint8_t *data, size_t bytes);
void fuzz_follow_seeds(fuzz_seed_fn give, void *user);
void fuzz_modelfile(const uint8_t *data, size_t bytes);
void fuzz_pickle(const uint8_t *data, size_t bytes);
void fuzz_safetensors(const uint8_t *data, size_t bytes);
void fuzz_safetensors_seeds(fuzz_seed_fn give, void *user);
void fuzz_state(const uint8_t *data, size_t bytes);
void fuzz_state_seeds(fuzz_seed_fn give, void *user);
void fuzz_args(const uint8_t *data, size_t bytes);
void fuzz_args_seeds(fuzz_seed_fn give, void *user);
void fuzz_options(const uint8_t *data, size_t bytes);
void fuzz_jsonline(const uint8_t *data, size_t bytes);
void fuzz_catalog(const uint8_t *data, size_t bytes);
void fuzz_catalog_seeds(fuzz_seed_fn give, void *user);
void fuzz_torchfile(const uint8_t *data, size_t bytes);
void fuzz_model(const uint8_t *data, size_t bytes);

#endif
