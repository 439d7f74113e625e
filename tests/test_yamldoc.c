/* control/yamldoc: trees, lines, values, and files that mean harm. */
#include "control/yamldoc.h"
#include "shm/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static yamldoc_t *load(const char *text)
{
    yamldoc_t *doc = NULL;
    if (yamldoc_load_text(text, strlen(text), "t.yaml", &doc) < 0)
        fail_msg("%s", err_text());
    return doc;
}

/* Refused with ERR_CONFIG and a sentence that contains `word`. */
static void refuse(const char *text, size_t bytes, const char *word)
{
    yamldoc_t *doc = (yamldoc_t *)1;
    assert_int_equal(yamldoc_load_text(text, bytes, "t.yaml", &doc), ERR_CONFIG);
    assert_null(doc);
    if (!strstr(err_text(), word) || !strstr(err_text(), "t.yaml"))
        fail_msg("'%s' lacks '%s'", err_text(), word);
}

static void reads_a_tree(void **state)
{
    (void)state;
    yamldoc_t *doc = load("# a data set\n"
                          "path: \"../a b\"\n"
                          "train: [images/one, images/two]\n"
                          "names:\n"
                          "  0: scratch\n"
                          "  1: K\xC3\xA4se\n"
                          "nc: 2\n"
                          "none: ~\n");
    const yamldoc_node_t *root = yamldoc_root(doc);
    assert_int_equal(root->kind, YAMLDOC_MAP);
    assert_int_equal(root->count, 5);
    const yamldoc_node_t *path = yamldoc_get(root, "path"), *train = yamldoc_get(root, "train");
    assert_string_equal(path->text, "../a b");
    assert_true(path->quoted);
    assert_int_equal(path->line, 2);
    assert_int_equal(train->kind, YAMLDOC_LIST);
    assert_int_equal(train->count, 2);
    assert_string_equal(train->values[1]->text, "images/two");
    const yamldoc_node_t *names = yamldoc_get(root, "names");
    assert_string_equal(names->keys[0]->text, "0");
    assert_string_equal(yamldoc_get(names, "1")->text, "K\xC3\xA4se");
    assert_int_equal(yamldoc_get(names, "1")->line, 6);
    assert_true(yamldoc_is_null(yamldoc_get(root, "none")));
    assert_null(yamldoc_get(root, "absent"));
    assert_null(yamldoc_get(train, "path"));
    yamldoc_free(&doc);
    assert_null(doc);
}

static void an_empty_text_is_null(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "\n\n", "# only a remark\n", "---\n"};
    for (int i = 0; i < 4; i++) {
        yamldoc_t *doc = load(texts[i]);
        assert_true(yamldoc_is_null(yamldoc_root(doc)));
        yamldoc_free(&doc);
    }
}

static void reads_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int is_int, is_double;
        long long i;
        double d;
    } cases[] = {
        {"80", 1, 1, 80, 80},  {"-3", 1, 1, -3, -3},      {"80.0", 1, 1, 80, 80},
        {"0x10", 1, 0, 16, 0}, {"1e3", 1, 1, 1000, 1000}, {"0.5", 0, 1, 0, 0.5},
        {"nan", 0, 0, 0, 0},   {".inf", 0, 0, 0, 0},      {"inf", 0, 0, 0, 0},
        {"1e999", 0, 0, 0, 0}, {"12a", 0, 0, 0, 0},       {"\"5\"", 0, 0, 0, 0},
        {"", 0, 0, 0, 0},      {"[1]", 0, 0, 0, 0},       {"99999999999999999999", 0, 1, 0, 1e20},
        {"--", 0, 0, 0, 0},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        char text[64];
        snprintf(text, sizeof text, "v: %s", cases[k].text);
        yamldoc_t *doc = load(text);
        const yamldoc_node_t *n = yamldoc_get(yamldoc_root(doc), "v");
        long long i = -77;
        double d = -77;
        int rc = yamldoc_int(doc, n, &i);
        assert_int_equal(rc, cases[k].is_int ? 0 : ERR_CONFIG);
        assert_true(i == (rc == 0 ? cases[k].i : -77));
        if (rc < 0)
            assert_non_null(strstr(err_text(), "t.yaml:1"));
        rc = yamldoc_double(doc, n, &d);
        assert_int_equal(rc, cases[k].is_double ? 0 : ERR_CONFIG);
        assert_true(d == (rc == 0 ? cases[k].d : -77));
        yamldoc_free(&doc);
    }
}

static void reads_booleans(void **state)
{
    (void)state;
    yamldoc_t *doc = load("[True, yes, ON, y, 1, False, No, off, n, 0, \"True\", maybe, 2, ~]");
    const yamldoc_node_t *list = yamldoc_root(doc);
    for (int i = 0; i < list->count; i++) {
        int v = -1, rc = yamldoc_bool(doc, list->values[i], &v);
        assert_int_equal(rc, i < 10 ? 0 : ERR_CONFIG);
        assert_int_equal(v, i < 5 ? 1 : i < 10 ? 0 : -1);
    }
    yamldoc_free(&doc);
}

static void knows_null(void **state)
{
    (void)state;
    yamldoc_t *doc = load("[~, null, None, NULL, 'none', nothing, [], {}]");
    const yamldoc_node_t *list = yamldoc_root(doc);
    int nulls = 0;
    for (int i = 0; i < list->count; i++)
        nulls += yamldoc_is_null(list->values[i]);
    assert_int_equal(nulls, 4);
    yamldoc_free(&doc);
}

static void refuses_what_it_cannot_trust(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"a: &x 1\nb: *x\n", "aliases"}, {"a: [&x [], *x]\n", "aliases"},
        {"a: 1\na: 2\n", "twice"},       {"[1, 2]: 3\n", "key"},
        {"? {a: 1}\n: 2\n", "key"},      {"a: 1\n---\nb: 2\n", "second document"},
        {"a: [1, 2\n", "not YAML"},      {"a: \"open\n", "not YAML"},
        {"\tb: 1\n", "not YAML"},        {"a: b: c\n", "not YAML"},
        {"a: \xFF\xFE\n", "not YAML"},   {"a: \"x\\0y\"\n", "NUL"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        refuse(cases[i].text, strlen(cases[i].text), cases[i].word);
    refuse("a: 1\0b", 7, "not YAML");
}

static void nesting_is_bounded(void **state)
{
    (void)state;
    char text[4096];
    for (int depth = 1; depth <= 2000; depth += depth < 40 ? 1 : 490) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        yamldoc_t *doc = NULL;
        int rc = yamldoc_load_text(text, 2 * (size_t)depth, "t.yaml", &doc);
        assert_int_equal(rc, depth <= 32 ? 0 : ERR_CONFIG);
        yamldoc_free(&doc);
    }
}

static void size_is_bounded(void **state)
{
    (void)state;
    size_t bytes = (16u << 20) + 1;
    char *text = malloc(bytes);
    assert_non_null(text);
    memset(text, 'a', bytes);
    refuse(text, bytes, "at most");
    free(text);
    /* Many values: more than a million are refused, and their memory comes back (the sanitizer
     * looks). */
    bytes = 3u << 20;
    text = malloc(bytes);
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i += 2)
        memcpy(text + i, i ? "a," : "[ ", 2);
    refuse(text, bytes, "more than");
    free(text);
}

/* Whatever one changed byte or a cut does to a good text: a tree or a sentence, never a crash. */
static void damaged_texts_do_no_harm(void **state)
{
    (void)state;
    static const char good[] =
        "a: {b: [1, 2.5, 'x'], \"c\": true}\n? d\n: |\n  text\n  more\ne: >-\n  f\n";
    static const char bytes[] = "\0\n :-[]{}'\"&*?|>%@`!#,\t\x80\xFF";
    char text[sizeof good];
    unsigned loaded = 0;
    for (size_t cut = 0; cut < sizeof good; cut++) {
        yamldoc_t *doc = NULL;
        loaded += yamldoc_load_text(good, cut, "t.yaml", &doc) == 0;
        yamldoc_free(&doc);
    }
    for (size_t at = 0; at + 1 < sizeof good; at++)
        for (size_t k = 0; k + 1 < sizeof bytes; k++) {
            memcpy(text, good, sizeof good);
            text[at] = bytes[k];
            yamldoc_t *doc = NULL;
            loaded += yamldoc_load_text(text, sizeof good - 1, "t.yaml", &doc) == 0;
            yamldoc_free(&doc);
        }
    assert_true(loaded > 100);
}

static void files(void **state)
{
    (void)state;
    char dir[] = "/tmp/sluice-yaml-XXXXXX", path[64];
    yamldoc_t *doc = NULL;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/a b.yaml", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("\xEF\xBB\xBFkey: value\r\n", f); /* byte order mark and DOS line ends */
    fclose(f);
    assert_int_equal(yamldoc_load_file(path, &doc), 0);
    assert_string_equal(yamldoc_get(yamldoc_root(doc), "key")->text, "value");
    yamldoc_free(&doc);
    unlink(path);
    assert_int_equal(yamldoc_load_file(path, &doc), ERR_CONFIG);
    assert_non_null(strstr(err_text(), path));
    assert_int_equal(yamldoc_load_file(dir, &doc), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "not a file"));
    assert_int_equal(yamldoc_load_file("/dev/zero", &doc), ERR_CONFIG);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_tree),
        cmocka_unit_test(an_empty_text_is_null),
        cmocka_unit_test(reads_numbers),
        cmocka_unit_test(reads_booleans),
        cmocka_unit_test(knows_null),
        cmocka_unit_test(refuses_what_it_cannot_trust),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(size_is_bounded),
        cmocka_unit_test(damaged_texts_do_no_harm),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
