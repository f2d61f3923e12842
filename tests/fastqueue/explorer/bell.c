/* bell.c: nobody sleeps through what it waits for. */
#include "bell_seam.h"
#include "explorer.h"
#include "fq_ring.h"

enum { RINGS = 2, SLEEPER = 0 };

static fq_bell bell;
static fq_ring_control controls[RINGS];
static uint32_t entries[RINGS][2];
static fq_ring producers[RINGS], consumers[RINGS];
static int taken;

static void setup(void) {
    bell.wanted.v = 0;
    taken = 0;
    for (int i = 0; i < RINGS; i++) {
        controls[i].tail.v = controls[i].head.v = 0;
        fq_ring_attach(&producers[i], &controls[i], entries[i], 2, sizeof entries[i][0], 1);
        fq_ring_attach(&consumers[i], &controls[i], entries[i], 2, sizeof entries[i][0], 0);
    }
}

static void publish(int ring, int count) {
    for (uint32_t i = 0; i < (uint32_t)count; i++) {
        (void)fq_ring_push(&producers[ring], &i);
        fq_bell_ring(&bell, FQ_WANT_SUBMIT);
    }
}
static void publish_two(void) { publish(0, 2); }
static void publish_one(void) { publish(0, 1); }
static void publish_one_more(void) { publish(1, 1); }

/* One look at the bell for both. */
static void publish_two_and_ring_once(void) {
    for (uint32_t i = 0; i < 2; i++) (void)fq_ring_push(&producers[0], &i);
    fq_bell_ring(&bell, FQ_WANT_SUBMIT);
}

/* Rings although the sleeper does not want this event. */
static void ring_in_vain(void) { fq_bell_ring(&bell, FQ_WANT_RELEASE); }

/* What the process of the sleeper does when it sees the end of the ringer's socket. */
static void kick_after_end(void) {
    ex_wait_end(1);
    fq_bell_kick(&bell);
}

/* ---- the sleeper: the former thread in small ---- */

static void drain(void) {
    uint32_t entry;
    for (int i = 0; i < RINGS; i++)
        while (fq_ring_pop(&consumers[i], &entry)) taken++;
}

static int anything(void) { return fq_ring_waiting(&consumers[0]) || fq_ring_waiting(&consumers[1]); }

static void sleep_until_taken(int count) {
    for (drain(); taken < count; drain()) {
        fq_bell_arm(&bell, FQ_WANT_SUBMIT);
        if (!anything()) fq_bell_sleep(&bell, FQ_WANT_SUBMIT, FQ_NEVER);
        fq_bell_disarm(&bell);
    }
}
static void sleep_for_two(void) { sleep_until_taken(2); }
static void sleep_for_one(void) { sleep_until_taken(1); }
static void sleep_for_ever(void) { sleep_until_taken(RINGS * 2 + 1); }

static const char *all_taken(void) { return ex_asleep(SLEEPER) ? "asleep for ever" : "all taken"; }

/* A sleeper that goes on for ever is asleep in the end: is anything left for it? */
static const char *nothing_left(void) {
    int published = (int)(controls[0].tail.v + controls[1].tail.v);
    if (taken != published) return "asleep with work left";
    return published == 0 ? "nothing came" : published == 1 ? "one came, and was taken" : "two came, and were taken";
}

#define ALL_TAKEN .outcome = all_taken, .outcomes = {{"all taken", EX_ALLOWED}, {"asleep for ever", EX_FORBIDDEN}}

const ex_scenario ex_bell[] = {
    {.property = "no publication is slept through", .preemptions = 4, .setup = setup,
     .threads = {{"sleeper", sleep_for_two, 0}, {"ringer", publish_two, 0}}, ALL_TAKEN},
    {.property = "nor when the ringer looks once for all that it has published", .preemptions = 4, .setup = setup,
     .threads = {{"sleeper", sleep_for_two, 0}, {"ringer", publish_two_and_ring_once, 0}}, ALL_TAKEN},
    {.property = "nor with two ringers, each with its own ring", .preemptions = 3, .setup = setup,
     .threads = {{"sleeper", sleep_for_two, 0}, {"ringer", publish_one, 0}, {"another", publish_one_more, 0}},
     ALL_TAKEN},
    {.property = "nor when somebody rings for an event that is not wanted", .preemptions = 3, .setup = setup,
     .threads = {{"sleeper", sleep_for_one, 0}, {"ringer", publish_one, 0}, {"another", ring_in_vain, 0}}, ALL_TAKEN},
    {.property = "a ringer that dies anywhere: the kick that follows wakes for what it published", .preemptions = 3,
     .setup = setup,
     .threads = {{"sleeper", sleep_for_ever, 0}, {"ringer", publish_one, 1}, {"control", kick_after_end, 0}},
     .outcome = nothing_left,
     .outcomes = {{"nothing came", EX_ALLOWED}, {"one came, and was taken", EX_ALLOWED},
                  {"asleep with work left", EX_FORBIDDEN}}},
    {.property = "a dead ringer takes nobody else's wake-up with it, once the kick has followed", .preemptions = 2,
     .setup = setup,
     .threads = {{"sleeper", sleep_for_ever, 0}, {"ringer", publish_one, 1}, {"control", kick_after_end, 0},
                 {"another", publish_one_more, 0}},
     .outcome = nothing_left,
     .outcomes = {{"one came, and was taken", EX_ALLOWED}, {"two came, and were taken", EX_ALLOWED},
                  {"asleep with work left", EX_FORBIDDEN}}},
    {.property = "without the kick a dead ringer strands the sleeper", .preemptions = 3, .setup = setup,
     .threads = {{"sleeper", sleep_for_ever, 0}, {"ringer", publish_one, 1}}, .outcome = nothing_left,
     .outcomes = {{"nothing came", EX_ALLOWED}, {"one came, and was taken", EX_ALLOWED},
                  {"asleep with work left", EX_FORBIDDEN}},
     .must_fail = "asleep with work left"},
    {.property = "a ringer that dies between many publications and its one look strands nobody after the kick",
     .preemptions = 3, .setup = setup,
     .threads = {{"sleeper", sleep_for_ever, 0}, {"ringer", publish_two_and_ring_once, 1}, {"control", kick_after_end, 0}},
     .outcome = nothing_left,
     .outcomes = {{"nothing came", EX_ALLOWED}, {"one came, and was taken", EX_ALLOWED},
                  {"two came, and were taken", EX_ALLOWED}, {"asleep with work left", EX_FORBIDDEN}}},
    {.property = NULL},
};
