/* Pickles: what is understood, and what is refused without an effect. */
#include "shm/err.h"
#include "tests/pt_build.h"
#include "trainer/pickle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Opcodes between protocol and stop, with a NUL-free string's ease. */
#define LOAD(p, ops) load(p, ops, sizeof ops - 1)

static int load(pickle_t **p, const char *ops, size_t bytes)
{
    blob_t b = {0};
    pk_begin(&b);
    blob_add(&b, ops, bytes);
    blob_byte(&b, '.');
    /* Freed at once: nodes of text point into it, and are not read after. */
    int rc = pickle_load(b.at, b.bytes, "test", p);
    assert_true((rc == 0) == (*p != NULL));
    blob_free(&b);
    return rc;
}

static void refuse_blob(blob_t *b, const char *why)
{
    pickle_t *p;
    const int rc = pickle_load(b->at, b->bytes, "test", &p);
    blob_free(b);
    assert_null(p);
    assert_int_equal(rc, ERR_CONFIG);
    if (!strstr(err_text(), why))
        fail_msg("'%s' lacks '%s'", err_text(), why);
}

static void refuse(const char *ops, size_t bytes, const char *why)
{
    blob_t b = {0};
    pk_begin(&b);
    blob_add(&b, ops, bytes);
    blob_byte(&b, '.');
    refuse_blob(&b, why);
}
#define REFUSE(ops, why) refuse(ops, sizeof ops - 1, why)

static int64_t integer(const char *ops, size_t bytes)
{
    pickle_t *p;
    assert_int_equal(load(&p, ops, bytes), 0);
    assert_int_equal(pickle_root(p)->kind, PICKLE_INT);
    const int64_t value = pickle_root(p)->integer;
    pickle_free(&p);
    return value;
}

static void test_scalars(void **state)
{
    (void)state;
    pickle_t *p;
    assert_int_equal(integer("K\xFF", 2), 255);
    assert_int_equal(integer("M\xFF\xFF", 3), 65535);
    assert_int_equal(integer("J\xFE\xFF\xFF\xFF", 5), -2);
    assert_int_equal(integer("\x8A\x00", 2), 0);
    assert_int_equal(integer("\x8A\x01\x80", 3), -128);
    assert_int_equal(integer("\x8A\x02\x80\x00", 4), 128);
    assert_int_equal(integer("\x8A\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", 10), INT64_MAX);
    assert_int_equal(integer("\x8B\x01\x00\x00\x00\x05", 6), 5);
    assert_int_equal(LOAD(&p, "\x8A\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"), 0);
    assert_int_equal(pickle_root(p)->kind, PICKLE_LONG);
    pickle_free(&p);
    assert_int_equal(LOAD(&p, "G\x3F\xF8\x00\x00\x00\x00\x00\x00"), 0);
    assert_true(pickle_root(p)->number == 1.5);
    pickle_free(&p);
    assert_int_equal(LOAD(&p, "N"), 0);
    assert_int_equal(pickle_root(p)->kind, PICKLE_NONE);
    pickle_free(&p);
    assert_int_equal(LOAD(&p, "\x88"), 0);
    assert_int_equal(pickle_root(p)->integer, 1);
    pickle_free(&p);
}

static void test_containers(void **state)
{
    (void)state;
    pickle_t *p;
    blob_t b = {0};
    pk_begin(&b);
    blob_add(&b, "}(", 2);
    pk_text(&b, "a");
    pk_int(&b, 1);
    pk_text(&b, "list");
    blob_add(&b,
             "](K\x01K\x02"
             "e",
             7);
    pk_text(&b, "a");
    pk_int(&b, 3); /* the last of a key counts */
    pk_text(&b, "pair");
    blob_add(&b, "K\x05NK\x06\x87", 6);
    blob_add(&b, "u.", 2);
    assert_int_equal(pickle_load(b.at, b.bytes, "test", &p), 0);
    const pickle_node_t *root = pickle_root(p), *list = pickle_get(root, "list");
    assert_int_equal(root->kind, PICKLE_DICT);
    assert_int_equal(pickle_get(root, "a")->integer, 3);
    assert_null(pickle_get(root, "b"));
    assert_int_equal(list->kind, PICKLE_LIST);
    assert_int_equal(list->count, 2);
    assert_int_equal(list->items[1]->integer, 2);
    assert_int_equal(pickle_get(root, "pair")->count, 3);
    pickle_free(&p);
    blob_free(&b);
    /* Protocol 4: frames, MEMOIZE, STACK_GLOBAL, sets. */
    static const char four[] = "\x80\x04\x95\x1D\x00\x00\x00\x00\x00\x00\x00"
                               "\x8C\x0B"
                               "collections\x94\x8C\x0B"
                               "OrderedDict\x94\x93)R.";
    assert_int_equal(pickle_load(four, sizeof four - 1, "test", &p), 0);
    assert_int_equal(pickle_root(p)->kind, PICKLE_DICT);
    pickle_free(&p);
    assert_int_equal(LOAD(&p, "\x8F(K\x01K\x02\x90"), 0);
    assert_int_equal(pickle_root(p)->count, 2);
    pickle_free(&p);
}

/* A class is a name, an object is what BUILD hands over; nothing is looked up. */
static void test_objects(void **state)
{
    (void)state;
    char name[64];
    pickle_t *p;
    blob_t b = {0};
    pk_begin(&b);
    pk_global(&b, "no.such.module", "Model");
    blob_add(&b, ")\x81}", 3);
    pk_text(&b, "nc");
    pk_int(&b, 7);
    blob_add(&b, "sb.", 3);
    assert_int_equal(pickle_load(b.at, b.bytes, "test", &p), 0);
    const pickle_node_t *root = pickle_root(p);
    assert_int_equal(root->kind, PICKLE_OBJECT);
    assert_true(pickle_is_global(root->of, "no.such.module", "Model"));
    pickle_copy_name(root->of, name, sizeof name);
    assert_string_equal(name, "no.such.module.Model");
    assert_int_equal(pickle_attribute(root, "nc")->integer, 7);
    assert_null(pickle_attribute(root, "nc2"));
    assert_null(pickle_attribute(NULL, "nc"));
    pickle_free(&p);
    blob_free(&b);
}

static void call(const char *module, const char *name, const char *argument)
{
    char want[128];
    blob_t b = {0};
    pk_begin(&b);
    pk_global(&b, module, name);
    pk_text(&b, argument);
    blob_add(&b, "\x85R.", 3);
    snprintf(want, sizeof want, "asks to call %s.%s, which reading tensors does not need", module,
             name);
    refuse_blob(&b, want);
}

static void test_calls(void **state)
{
    (void)state;
    call("os", "system", "touch x");
    call("posix", "system", "touch x");
    call("builtins", "eval", "1");
    call("__builtin__", "exec", "1");
    call("builtins", "getattr", "x");
    call("builtins", "__import__", "os");
    call("subprocess", "Popen", "true");
    call("torch", "load", "x.pt");
    call("torch.hub", "load", "x");
    call("torch.storage", "_load_from_bytes", "x");
    call("pickle", "loads", "x");
    /* No control character is printed. */
    REFUSE("ccollections\nOrderedDict\x1B[2J\n)R", "call collections.OrderedDict [2J,");
    /* What is called must be a name: a chain of calls ends at its first link. */
    blob_t b = {0};
    pk_begin(&b);
    pk_global(&b, "torch", "device");
    pk_text(&b, "cpu");
    blob_add(&b, "\x85R)R.", 5);
    refuse_blob(&b, "something that has no name");
    REFUSE("K\x01)R", "something that has no name");
    REFUSE("K\x01)\x81", "made from what is no class");
    REFUSE("ccollections\nOrderedDict\nK\x01R", "are no tuple");
    REFUSE("c__builtin__\nset\nK\x01\x85R", "no list");
    REFUSE("ccollections\nOrderedDict\n]K\x01"
           "a\x85R",
           "no pairs");
}

static void test_opcodes(void **state)
{
    (void)state;
    REFUSE("(ios\nsystem\n", "opcode 0x69");  /* INST */
    REFUSE("(cos\nsystem\no", "opcode 0x6F"); /* OBJ */
    REFUSE("\x82\x01", "opcode 0x82");        /* EXT1 */
    REFUSE("P1\n", "opcode 0x50");            /* PERSID */
    REFUSE("I1\n", "opcode 0x49");            /* INT of protocol 0 */
    REFUSE("\x97", "opcode 0x97");            /* NEXT_BUFFER */
    pickle_t *p;
    assert_int_equal(pickle_load("\x80\x00N.", 4, "test", &p), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "not a pickle of protocol 2 to 5"));
    assert_int_equal(pickle_load("\x80\x06N.", 4, "test", &p), ERR_CONFIG);
    assert_int_equal(pickle_load("(lp0\n.", 6, "test", &p), ERR_CONFIG);
    assert_int_equal(pickle_load("\x80\x02N..", 5, "test", &p), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "bytes follow"));
}

static void test_stack(void **state)
{
    (void)state;
    REFUSE("", "does not end with one object");
    REFUSE("NN", "does not end with one object");
    REFUSE("(N", "does not end with one object");
    REFUSE("0", "no mark");
    REFUSE("R", "too few objects");
    REFUSE("N(R", "too few objects"); /* what lies under a mark is not there */
    REFUSE("N(\x86", "too few objects");
    REFUSE("t", "no mark");
    REFUSE("u", "no mark");
    REFUSE("(u", "too few objects");
    REFUSE("(Nd", "key without a value");
    REFUSE("}(Nu", "key without a value");
    REFUSE("NNa", "no container");
    REFUSE("]NNs", "no container");
    REFUSE("NNb", "no object");
    REFUSE("h\x05", "memo entry 5 is not there");
    REFUSE("Nr\xFF\xFF\xFF\xFF", "memo entry 4294967295");
    REFUSE("q\x00", "too few objects");
    REFUSE("X\xFF\xFF\xFF\xFFz", "ends too early");
    REFUSE("\x8D\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFz", "ends too early");
    REFUSE("\x8B\xFF\xFF\xFF\xFF", "ends too early");
    REFUSE("\x95\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", "ends too early");
    REFUSE("cos\nsystem", "ends too early");
    REFUSE("NN\x93", "has no name");
}

/* Lists that hold themselves, and tuples a million deep: read and freed without a deep call. */
static void test_deep(void **state)
{
    (void)state;
    pickle_t *p;
    assert_int_equal(LOAD(&p, "]q\x00h\x00"
                              "a"),
                     0);
    assert_ptr_equal(pickle_root(p)->items[0], pickle_root(p));
    pickle_free(&p);
    blob_t b = {0};
    pk_begin(&b);
    blob_byte(&b, ')');
    for (int i = 0; i < 1000000; i++)
        blob_byte(&b, 0x85);
    blob_byte(&b, '.');
    assert_int_equal(pickle_load(b.at, b.bytes, "test", &p), 0);
    pickle_free(&p);
    b.bytes--;
    for (int i = 0; i < 100000; i++)
        blob_byte(&b, 0x85);
    blob_byte(&b, '.');
    refuse_blob(&b, "more than 1048576 objects");
    /* Marks without end. */
    pk_begin(&b);
    for (int i = 0; i < 1000000; i++)
        blob_byte(&b, '(');
    blob_byte(&b, '.');
    refuse_blob(&b, "does not end with one object");
    /* Too many bytes, of which none is looked at. */
    assert_int_equal(pickle_load("\x80\x02", (uint64_t)1 << 40, "test", &p), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "are not read"));
}

/* A pickle with a bit of everything: cut anywhere it is refused, changed anywhere nothing crashes. */
static void test_damaged(void **state)
{
    (void)state;
    static const unsigned char values[] = {0,   1,   '.', '(', 't',  'R',  'b',  'u',
                                           'h', 'q', 'c', 'X', 0x81, 0x87, 0x93, 0xFF};
    blob_t b = {0};
    pickle_t *p;
    const pk_tensor_t t = {.storage = "FloatStorage",
                           .key = "0",
                           .elements = 6,
                           .ndim = 2,
                           .shape = {2, 3},
                           .stride = {3, 1}};
    pk_begin(&b);
    blob_add(&b, "}q\x01(", 4);
    pk_text(&b, "w");
    pk_tensor(&b, &t);
    pk_text(&b, "m");
    pk_global(&b, "a.b", "C");
    blob_add(&b, ")\x81q\x02}", 5);
    pk_text(&b, "s");
    blob_add(&b, "h\x01sbu.", 6);
    assert_int_equal(pickle_load(b.at, b.bytes, "test", &p), 0);
    pickle_free(&p);
    for (size_t n = 0; n < b.bytes; n++) {
        unsigned char *shorter = malloc(n ? n : 1);
        memcpy(shorter, b.at, n);
        assert_int_equal(pickle_load(shorter, n, "cut", &p), ERR_CONFIG);
        free(shorter);
    }
    int refused = 0;
    for (size_t i = 0; i < b.bytes; i++) {
        const unsigned char old = b.at[i];
        for (size_t v = 0; v < sizeof values; v++) {
            b.at[i] = values[v];
            refused += pickle_load(b.at, b.bytes, "changed", &p) < 0;
            pickle_free(&p);
        }
        b.at[i] = old;
    }
    assert_true(refused > 500);
    blob_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars), cmocka_unit_test(test_containers),
        cmocka_unit_test(test_objects), cmocka_unit_test(test_calls),
        cmocka_unit_test(test_opcodes), cmocka_unit_test(test_stack),
        cmocka_unit_test(test_deep),    cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
