/* litmus.c: the explorer's own test. Small programs whose outcomes under C11 are known: what must be possible has to be seen,
 * what must be impossible must not be. Words are accessed without labels, so nothing here is ever weakened. */
#include <stdio.h>
#include <string.h>

#include "explorer.h"

static uint32_t x, y, z;
static int a, b, c, d;
static char text[32];

static void setup(void) {
    x = y = z = 0;
    a = b = c = d = -1;
}

static int load(uint32_t *word, int order) { return (int)fq_model_load(word, sizeof *word, order, FQ_LABEL_NONE); }
static void store(uint32_t *word, uint64_t value, int order) {
    fq_model_store(word, sizeof *word, value, order, FQ_LABEL_NONE);
}
static void exchange(uint32_t *word, uint64_t value, int order) {
    (void)fq_model_xchg(word, sizeof *word, value, order, FQ_LABEL_NONE);
}

static const char *ab(void) {
    snprintf(text, sizeof text, "%d %d", a, b);
    return text;
}
static const char *abcd(void) {
    snprintf(text, sizeof text, "%d %d %d %d", a, b, c, d);
    return text;
}

/* store buffering: each stores its word, then loads the other's */
static void sb_rel_0(void) { store(&x, 1, FQ_REL), a = load(&y, FQ_ACQ); }
static void sb_rel_1(void) { store(&y, 1, FQ_REL), b = load(&x, FQ_ACQ); }
static void sb_sc_0(void) { store(&x, 1, FQ_SC), a = load(&y, FQ_SC); }
static void sb_sc_1(void) { store(&y, 1, FQ_SC), b = load(&x, FQ_SC); }

/* message passing: a says whether the flag was seen, b what the message then was */
static void mp_rlx_0(void) { store(&x, 1, FQ_RLX), store(&y, 1, FQ_RLX); }
static void mp_rel_0(void) { store(&x, 1, FQ_RLX), store(&y, 1, FQ_REL); }
static void mp_rlx_1(void) { a = load(&y, FQ_RLX), b = load(&x, FQ_RLX); }
static void mp_acq_1(void) { a = load(&y, FQ_ACQ), b = load(&x, FQ_RLX); }

/* the flag is replaced on the way, by a relaxed exchange or by a relaxed store of another thread */
static void chain_exchange(void) { exchange(&y, 2, FQ_RLX); }
static void chain_store(void) { store(&y, 2, FQ_RLX); }
static const char *chain_outcome(void) {
    if (a != 2 || y != 2) return "the replacement was not seen"; /* y: it came after the flag, not before */
    return b ? "message seen" : "message missed";
}

/* two loads of one word */
static void twice_store(void) { store(&x, 1, FQ_RLX); }
static void twice_load(void) { a = load(&x, FQ_RLX), b = load(&x, FQ_RLX); }

/* what somebody read in my past, I cannot unread: c says whether the middle thread's flag was seen */
static void past_middle(void) {
    a = load(&x, FQ_RLX);
    store(&y, 1, FQ_REL);
}
static void past_last(void) {
    c = load(&y, FQ_ACQ);
    b = load(&x, FQ_RLX);
}
static const char *past_outcome(void) {
    return a == 1 && c == 1 && b == 0 ? "unread" : a == 1 && c == 1 ? "kept" : "nothing to see";
}

/* independent reads of independent writes */
static void iriw_x(void) { store(&x, 1, FQ_SC); }
static void iriw_y(void) { store(&y, 1, FQ_SC); }
static void iriw_xy_sc(void) { a = load(&x, FQ_SC), b = load(&y, FQ_SC); }
static void iriw_yx_sc(void) { c = load(&y, FQ_SC), d = load(&x, FQ_SC); }
static void iriw_xy_acq(void) { a = load(&x, FQ_ACQ), b = load(&y, FQ_ACQ); }
static void iriw_yx_acq(void) { c = load(&y, FQ_ACQ), d = load(&x, FQ_ACQ); }
static const char *iriw_outcome(void) {
    return strcmp(abcd(), "1 0 1 0") == 0 ? "two orders" : "one order";
}

/* two stores to z are ordered by sequential consistency alone: that must not carry x along */
static void carry_first(void) { store(&x, 1, FQ_RLX), store(&z, 1, FQ_SC); }
static void carry_second(void) { store(&z, 2, FQ_SC), b = load(&x, FQ_RLX); }
static const char *carry_outcome(void) { return z == 2 && b == 0 ? "second, and x not seen" : "other"; }

/* plain data behind a flag */
static uint64_t data;
static void race_setup(void) { setup(), data = 0; }
static void race_writer(int order) {
    uint64_t value = 7;
    fq_model_put(&data, &value, sizeof value);
    store(&x, 1, order);
}
static void race_rel(void) { race_writer(FQ_REL); }
static void race_rlx(void) { race_writer(FQ_RLX); }
static void race_reader(void) {
    uint64_t value = 0;
    if (load(&x, FQ_ACQ)) fq_model_get(&value, &data, sizeof value);
    a = (int)value;
    b = 0;
}
static void race_half(void) {
    uint32_t value = 7;
    fq_model_put((char *)&data + 4, &value, sizeof value);
}

/* a sleeper, and a ringer that looks at the word first: the doorbell with acquire and release only */
static void bell_sleeper(void) {
    store(&x, 1, FQ_REL);
    if (!load(&y, FQ_ACQ)) fq_model_sleep(&x, 1, INT64_MAX);
}
static void bell_ringer(void) {
    store(&y, 1, FQ_REL);
    if (!load(&x, FQ_ACQ)) return;
    store(&x, 0, FQ_RLX);
    fq_model_wake(&x);
}
static const char *bell_outcome(void) { return ex_asleep(0) ? "asleep for ever" : "awake"; }

/* death */
static void die_twice(void) { store(&x, 1, FQ_RLX), store(&x, 2, FQ_RLX); }
static void die_witness(void) { ex_wait_end(0), a = ex_died(0), b = load(&x, FQ_SC); }

#define YES EX_ALLOWED
#define NO EX_FORBIDDEN

const ex_scenario ex_litmus[] = {
    {.property = "store buffering, release and acquire: both may miss the other", .preemptions = 4, .setup = setup,
     .threads = {{"0", sb_rel_0, 0}, {"1", sb_rel_1, 0}}, .outcome = ab,
     .outcomes = {{"0 0", YES}, {"0 1", YES}, {"1 0", YES}, {"1 1", YES}}},
    {.property = "store buffering, sequentially consistent: one sees the other", .preemptions = 4, .setup = setup,
     .threads = {{"0", sb_sc_0, 0}, {"1", sb_sc_1, 0}}, .outcome = ab,
     .outcomes = {{"0 0", NO}, {"0 1", YES}, {"1 0", YES}, {"1 1", YES}}},
    {.property = "message passing, release and acquire: flag seen, message seen", .preemptions = 4, .setup = setup,
     .threads = {{"0", mp_rel_0, 0}, {"1", mp_acq_1, 0}}, .outcome = ab,
     .outcomes = {{"0 0", YES}, {"0 1", YES}, {"1 0", NO}, {"1 1", YES}}},
    {.property = "message passing, relaxed store: the message may be missed", .preemptions = 4, .setup = setup,
     .threads = {{"0", mp_rlx_0, 0}, {"1", mp_acq_1, 0}}, .outcome = ab,
     .outcomes = {{"0 0", YES}, {"0 1", YES}, {"1 0", YES}, {"1 1", YES}}},
    {.property = "message passing, relaxed load: the message may be missed", .preemptions = 4, .setup = setup,
     .threads = {{"0", mp_rel_0, 0}, {"1", mp_rlx_1, 0}}, .outcome = ab,
     .outcomes = {{"0 0", YES}, {"0 1", YES}, {"1 0", YES}, {"1 1", YES}}},
    {.property = "an exchange carries on the release it replaces", .preemptions = 4, .setup = setup,
     .threads = {{"0", mp_rel_0, 0}, {"1", mp_acq_1, 0}, {"2", chain_exchange, 0}}, .outcome = chain_outcome,
     .outcomes = {{"message seen", YES}, {"message missed", NO}, {"the replacement was not seen", YES}}},
    {.property = "a store of another thread does not", .preemptions = 4, .setup = setup,
     .threads = {{"0", mp_rel_0, 0}, {"1", mp_acq_1, 0}, {"2", chain_store, 0}}, .outcome = chain_outcome,
     .outcomes = {{"message seen", YES}, {"message missed", YES}, {"the replacement was not seen", YES}}},
    {.property = "two loads of one word never go back", .preemptions = 4, .setup = setup,
     .threads = {{"0", twice_store, 0}, {"1", twice_load, 0}}, .outcome = ab,
     .outcomes = {{"0 0", YES}, {"0 1", YES}, {"1 0", NO}, {"1 1", YES}}},
    {.property = "what was read in a thread's past cannot be unread", .preemptions = 4, .setup = setup,
     .threads = {{"0", twice_store, 0}, {"1", past_middle, 0}, {"2", past_last, 0}}, .outcome = past_outcome,
     .outcomes = {{"unread", NO}, {"kept", YES}, {"nothing to see", YES}}},
    {.property = "independent reads, sequentially consistent: one order for all", .preemptions = 4, .setup = setup,
     .threads = {{"0", iriw_x, 0}, {"1", iriw_y, 0}, {"2", iriw_xy_sc, 0}, {"3", iriw_yx_sc, 0}},
     .outcome = iriw_outcome, .outcomes = {{"two orders", NO}, {"one order", YES}}},
    {.property = "independent reads, acquire: two orders are possible", .preemptions = 4, .setup = setup,
     .threads = {{"0", iriw_x, 0}, {"1", iriw_y, 0}, {"2", iriw_xy_acq, 0}, {"3", iriw_yx_acq, 0}},
     .outcome = iriw_outcome, .outcomes = {{"two orders", YES}, {"one order", YES}}},
    {.property = "the order of two stores to one word carries nothing along", .preemptions = 4, .setup = setup,
     .threads = {{"0", carry_first, 0}, {"1", carry_second, 0}}, .outcome = carry_outcome,
     .outcomes = {{"second, and x not seen", YES}, {"other", YES}}},
    {.property = "plain data behind release and acquire does not race", .preemptions = 4, .setup = race_setup,
     .threads = {{"0", race_rel, 0}, {"1", race_reader, 0}}, .outcome = ab,
     .outcomes = {{"0 0", YES}, {"7 0", YES}}},
    {.property = "plain data behind a relaxed store races", .preemptions = 4, .setup = race_setup,
     .threads = {{"0", race_rlx, 0}, {"1", race_reader, 0}}, .outcome = ab,
     .must_fail = "data race: a read of bytes whose write is not ordered before it"},
    {.property = "a race on a part of the bytes is a race", .preemptions = 4, .setup = race_setup,
     .threads = {{"0", race_rel, 0}, {"1", race_half, 0}}, .outcome = ab,
     .must_fail = "data race: two unordered writes"},
    {.property = "a doorbell of acquire and release loses a wake-up", .preemptions = 4, .setup = setup,
     .threads = {{"sleeper", bell_sleeper, 0}, {"ringer", bell_ringer, 0}}, .outcome = bell_outcome,
     .outcomes = {{"awake", YES}, {"asleep for ever", NO}}, .must_fail = "asleep for ever"},
    {.property = "a thread may die before any access", .preemptions = 4, .setup = setup,
     .threads = {{"0", die_twice, 1}, {"1", die_witness, 0}}, .outcome = ab,
     .outcomes = {{"1 0", YES}, {"1 1", YES}, {"0 0", YES}, {"0 1", YES}, {"0 2", YES}}},
    {.property = NULL},
};
