/* check.h: C tests that pytest runs one by one. A test is TEST(name) { ... }; the program runs those named on its command
 * line, or all. A check that fails prints what it expected and what came, and ends the program with code 1. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct test_case {
    const char *name;
    void (*body)(void);
} test_case;

static test_case test_cases[64];
static int test_count;
static uint64_t test_random_state;

static void test_register(const char *name, void (*body)(void)) {
    test_cases[test_count++] = (test_case){name, body};
}

#define TEST(name)                                                                                           \
    static void name(void);                                                                                  \
    __attribute__((constructor)) static void name##_registers(void) { test_register(#name, name); }          \
    static void name(void)

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (condition) break;                                                                                \
        fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                        \
        exit(1);                                                                                             \
    } while (0)

#define CHECK_EQ(got, expected)                                                                              \
    do {                                                                                                     \
        long long got_ = (long long)(got), expected_ = (long long)(expected);                                \
        if (got_ == expected_) break;                                                                        \
        fprintf(stderr, "%s:%d: %s is %lld, expected %lld (%s)\n", __FILE__, __LINE__, #got, got_, expected_, \
                #expected);                                                                                  \
        exit(1);                                                                                             \
    } while (0)

/* Numbers that are the same in every run: each test starts the sequence anew. */
static inline uint64_t test_random(void) {
    test_random_state ^= test_random_state << 13;
    test_random_state ^= test_random_state >> 7;
    test_random_state ^= test_random_state << 17;
    return test_random_state;
}

/* From 0 to n - 1. */
static inline uint64_t test_below(uint64_t n) { return test_random() % n; }

static int test_wanted(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return 1;
    return argc < 2;
}

int main(int argc, char **argv) {
    int ran = 0;
    for (int i = 0; i < test_count; i++) {
        if (!test_wanted(test_cases[i].name, argc, argv)) continue;
        test_random_state = 0x9e3779b97f4a7c15ull;
        test_cases[i].body();
        ran++;
    }
    printf("%d passed\n", ran);
    return ran ? 0 : 2;
}

#endif
