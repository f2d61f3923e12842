/* fq_bell.h: how a consumer sleeps and how producers wake it.
 *
 * A bell is one 32-bit word in shared memory: 0 while the consumer is awake, otherwise the set of events
 * it wants to be woken for. The worker sleeps on the word itself (futex); a front-end thread sleeps in its event
 * loop and is woken through an eventfd.
 *
 * SLEEPER                                          RINGER
 *   1. announce: word = wanted (D1)                  1. publish (R1 or X3)
 *   2. look again at every ring (R3, X5)             2. anybody asleep who wants this?  (D2)  no: done
 *   3. something there: disarm (D4), go on           3. word = 0 (D3): who finds it non-zero wakes
 *   4. sleep while word == wanted                    4. futex wake, or a write to the eventfd
 *   5. awake: disarm (D4)
 *
 * Steps 1 and 2 on both sides are sequentially consistent: of "publish, then look for a sleeper" and "announce
 * sleep, then look for work" at least one sees the other.
 *
 * One look serves everything that was published before it: who publishes many in a row may look once, after the last,
 * but must look before it sleeps itself.
 *
 * A ringer that dies before 4 leaves a sleeper that nobody will ring. Its death is seen as the end of its
 * socket by the sleeper's process, which then rings without conditions (fq_bell_kick). That is why there is no
 * time limit on the sleep to hide a lost wake-up behind.
 */
#ifndef FQ_BELL_H
#define FQ_BELL_H

#include <stdint.h>

#include "fq_atomic.h"

enum {
    FQ_WANT_SUBMIT = 1,  /* submissions and cancels */
    FQ_WANT_RELEASE = 2, /* released output slices: somebody waits for output memory */
    FQ_WANT_COMPLETE = 4 /* completions */
};

typedef struct fq_bell {
    fq_a32 wanted;
} fq_bell;

static inline void fq_bell_arm(fq_bell *bell, uint32_t wanted) { fq_store_sc(&bell->wanted, wanted, D1); }

static inline void fq_bell_disarm(fq_bell *bell) { fq_store_rlx(&bell->wanted, 0, D4); }

/* 1 when the caller must wake the sleeper. */
static inline int fq_bell_take(fq_bell *bell, uint32_t event) {
    if ((fq_load_sc(&bell->wanted, D2) & event) == 0) return 0;
    return fq_xchg_rlx(&bell->wanted, 0, D3) != 0;
}

#ifdef FQ_MODEL
#define FQ_BELL_SEAM
#define FQ_NEVER INT64_MAX
static inline int64_t fq_monotonic_ns(void) { return 0; }
static inline void fq_bell_wake(fq_bell *bell) { fq_model_wake(&bell->wanted); }
static inline void fq_bell_sleep(fq_bell *bell, uint32_t wanted, int64_t until_ns) {
    fq_model_sleep(&bell->wanted, wanted, until_ns);
}
#else

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FQ_NEVER INT64_MAX

/* All times of the queue: nanoseconds of CLOCK_MONOTONIC, the same in every process of the machine. */
static inline int64_t fq_monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void fq_bell_wake(fq_bell *bell) {
    (void)syscall(SYS_futex, &bell->wanted, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps while the word is `wanted`, until the absolute CLOCK_MONOTONIC time `until_ns` (FQ_NEVER: no limit). */
static inline void fq_bell_sleep(fq_bell *bell, uint32_t wanted, int64_t until_ns) {
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000)};
    (void)syscall(SYS_futex, &bell->wanted, FUTEX_WAIT_BITSET, wanted, until_ns == FQ_NEVER ? NULL : &until, NULL,
                  FUTEX_BITSET_MATCH_ANY);
}

#endif

static inline void fq_bell_ring(fq_bell *bell, uint32_t event) {
    if (fq_bell_take(bell, event)) fq_bell_wake(bell);
}

/* Wakes whoever sleeps, whatever it wants: for the sleeper's own process. */
static inline void fq_bell_kick(fq_bell *bell) {
    (void)fq_xchg_rlx(&bell->wanted, 0, D3);
    fq_bell_wake(bell);
}

#endif
