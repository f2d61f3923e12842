/* ring.c: one producer, one consumer, and what a death leaves. */
#include "explorer.h"
#include "fq_ring.h"

enum { MOST = 4 };

static fq_ring_control control;
static uint64_t entries[2];
static fq_ring producer, consumer;
static int pushed, refused, popped;
static uint64_t got[MOST + 1];

/* Entries are 1, 2, 3, ... Indices start just below 2^64: nothing may depend on their not wrapping. */
static void setup(uint32_t capacity) {
    control.tail.v = control.head.v = UINT64_MAX - 1;
    entries[0] = entries[1] = 0;
    fq_ring_attach(&producer, &control, entries, capacity, sizeof entries[0], 1);
    fq_ring_attach(&consumer, &control, entries, capacity, sizeof entries[0], 0);
    pushed = refused = popped = 0;
}
static void setup_1(void) { setup(1); }
static void setup_2(void) { setup(2); }

static void push(int attempts) {
    for (int i = 0; i < attempts; i++) {
        uint64_t value = (uint64_t)pushed + 1;
        if (fq_ring_push(&producer, &value))
            pushed++;
        else
            refused = 1;
    }
}
static void push_3(void) { push(3); }
static void push_4(void) { push(4); }

static void pop(int attempts) {
    uint64_t value = 0;
    for (int i = 0; i < attempts; i++)
        if (fq_ring_pop(&consumer, &value)) got[popped++] = value;
}
static void pop_3(void) { pop(3); }
static void pop_4(void) { pop(4); }

static int in_order(void) {
    for (int i = 0; i < popped; i++)
        if (got[i] != (uint64_t)i + 1) return 0;
    return 1;
}

/* The consumer takes what is left; then it must have had every entry once, in order. */
static const char *all_kept(void) {
    int before = popped;
    while (popped <= MOST && fq_ring_pop(&consumer, &got[popped])) popped++;
    if (!in_order()) return "an entry that was never pushed, twice, or out of order";
    if (popped != pushed) return "an entry is lost";
    if (fq_ring_check(&control, fq_ring_capacity(&producer)) != 0) return "an invariant is broken";
    if (before == MOST) return "all kept, all taken at once";
    return refused ? "all kept, the ring was full" : "all kept, some taken later";
}

/* The producer is dead or done; the consumer takes what was published. An entry is pushed only once push says so,
 * so the dead one's last entry may or may not be there. */
static const char *prefix(void) {
    static const char *const names[] = {"none", "the first", "the first two", "all three"};
    while (popped <= MOST && fq_ring_pop(&consumer, &got[popped])) popped++;
    if (!in_order()) return "rubbish";
    if (popped < pushed || popped > pushed + 1) return "not what was published";
    if (fq_ring_check(&control, fq_ring_capacity(&producer)) != 0) return "an invariant is broken";
    return names[popped];
}

/* A dead consumer frees nothing that it had not finished reading: what lies between head and tail is whole, and the
 * producer can take it back. */
static const char *survivor(void) {
    uint64_t last = 0;
    fq_ring heir;
    fq_ring_attach(&heir, &control, entries, fq_ring_capacity(&consumer), sizeof entries[0], 0);
    if (!in_order()) return "rubbish";
    uint64_t value, next = heir.own - (UINT64_MAX - 1) + 1;
    if (next != (uint64_t)popped + 1 && next != (uint64_t)popped + 2) return "not what was freed";
    while (fq_ring_pop(&heir, &value)) {
        if (value != next++) return "rubbish";
        last = value;
    }
    if (next != (uint64_t)pushed + 1) return "an entry is lost";
    return last ? "entries are left, whole" : "nothing is left";
}

#define KEPT                                                                                                 \
    .outcome = all_kept, .outcomes = {                                                                       \
        {"all kept, all taken at once", EX_ALLOWED},                                                         \
        {"all kept, some taken later", EX_ALLOWED},                                                          \
        {"all kept, the ring was full", EX_ALLOWED},                                                         \
        {"an entry is lost", EX_FORBIDDEN},                                                                  \
        {"an entry that was never pushed, twice, or out of order", EX_FORBIDDEN},                            \
        {"an invariant is broken", EX_FORBIDDEN},                                                            \
    }

#define PREFIX                                                                                               \
    .outcome = prefix, .outcomes = {                                                                         \
        {"none", EX_ALLOWED},           {"the first", EX_ALLOWED},                                           \
        {"the first two", EX_ALLOWED},  {"all three", EX_ALLOWED},                                           \
        {"rubbish", EX_FORBIDDEN},      {"not what was published", EX_FORBIDDEN},                            \
        {"an invariant is broken", EX_FORBIDDEN},                                                            \
    }

const ex_scenario ex_ring[] = {
    {.property = "every entry arrives once and in order, and a full ring loses nothing (capacity 1)",
     .preemptions = 7, .setup = setup_1, .threads = {{"producer", push_4, 0}, {"consumer", pop_4, 0}}, KEPT},
    {.property = "every entry arrives once and in order, and a full ring loses nothing (capacity 2)",
     .preemptions = 6, .setup = setup_2, .threads = {{"producer", push_4, 0}, {"consumer", pop_4, 0}}, KEPT},
    {.property = "of a producer that dies anywhere, a prefix arrives (capacity 1)",
     .preemptions = 4, .setup = setup_1, .threads = {{"producer", push_3, 1}, {"consumer", pop_4, 0}}, PREFIX},
    {.property = "of a producer that dies anywhere, a prefix arrives (capacity 2)",
     .preemptions = 4, .setup = setup_2, .threads = {{"producer", push_3, 1}, {"consumer", pop_4, 0}}, PREFIX},
    {.property = "a consumer that dies anywhere has freed only what it has read (capacity 2)",
     .preemptions = 4, .setup = setup_2, .threads = {{"producer", push_4, 0}, {"consumer", pop_3, 1}},
     .outcome = survivor,
     .outcomes = {{"entries are left, whole", EX_ALLOWED}, {"nothing is left", EX_ALLOWED},
                  {"rubbish", EX_FORBIDDEN}, {"not what was freed", EX_FORBIDDEN},
                  {"an entry is lost", EX_FORBIDDEN}}},
    {.property = NULL},
};
