/* The bell's word, alone; and the real futex, with one thread on either side. */
#include "check.h"
#include "fq_bell.h"

#include <pthread.h>

TEST(nobody_is_woken_who_does_not_sleep) {
    fq_bell bell = {0};
    CHECK_EQ(fq_bell_take(&bell, FQ_WANT_SUBMIT), 0);
}

TEST(an_announcement_is_taken_once) {
    fq_bell bell = {0};
    fq_bell_arm(&bell, FQ_WANT_SUBMIT);
    CHECK_EQ(fq_bell_take(&bell, FQ_WANT_SUBMIT), 1);
    CHECK_EQ(fq_bell_take(&bell, FQ_WANT_SUBMIT), 0);
}

TEST(only_a_wanted_event_takes_it) {
    fq_bell bell = {0};
    fq_bell_arm(&bell, FQ_WANT_SUBMIT | FQ_WANT_RELEASE);
    CHECK_EQ(fq_bell_take(&bell, FQ_WANT_COMPLETE), 0);
    CHECK_EQ(fq_bell_take(&bell, FQ_WANT_RELEASE), 1);
    CHECK_EQ(fq_bell_take(&bell, FQ_WANT_SUBMIT), 0);
}

TEST(a_disarmed_bell_wakes_nobody) {
    fq_bell bell = {0};
    fq_bell_arm(&bell, FQ_WANT_SUBMIT);
    fq_bell_disarm(&bell);
    CHECK_EQ(fq_bell_take(&bell, FQ_WANT_SUBMIT), 0);
}

/* These return or hang; the test's own time limit is the judge. */
TEST(a_sleep_ends_at_once_when_the_announcement_is_gone) {
    fq_bell bell = {0};
    fq_bell_arm(&bell, FQ_WANT_SUBMIT);
    fq_bell_disarm(&bell);
    fq_bell_sleep(&bell, FQ_WANT_SUBMIT, FQ_NEVER);
}

TEST(a_sleep_ends_at_its_time) {
    fq_bell bell = {0};
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    fq_bell_arm(&bell, FQ_WANT_SUBMIT);
    fq_bell_sleep(&bell, FQ_WANT_SUBMIT, 1); /* long past */
    fq_bell_sleep(&bell, FQ_WANT_SUBMIT, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + 1000000);
    CHECK_EQ(fq_bell_take(&bell, FQ_WANT_SUBMIT), 1);
}

typedef struct sleeper {
    fq_bell bell;
    fq_a32 woken;
} sleeper;

static void *sleep_until_rung(void *argument) {
    sleeper *s = (sleeper *)argument;
    for (uint32_t rung = 0; rung < 1000; rung++) {
        fq_bell_arm(&s->bell, FQ_WANT_SUBMIT);
        while (fq_load_rlx(&s->bell.wanted, S2)) fq_bell_sleep(&s->bell, FQ_WANT_SUBMIT, FQ_NEVER);
        fq_store_rlx(&s->woken, rung + 1, S1);
    }
    return NULL;
}

/* Rings until the sleeper has counted it: a wake that comes between announcement and sleep must not be lost. */
static void wake_every_time(void (*ring)(fq_bell *)) {
    sleeper s = {0};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, sleep_until_rung, &s), 0);
    while (fq_load_rlx(&s.woken, S2) < 1000) ring(&s.bell);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void ring_for_submit(fq_bell *bell) { fq_bell_ring(bell, FQ_WANT_SUBMIT); }

TEST(a_ring_ends_the_sleep) { wake_every_time(ring_for_submit); }
TEST(a_kick_ends_the_sleep) { wake_every_time(fq_bell_kick); }
