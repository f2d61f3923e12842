/* fq_policy.h: when a batch closes, whose turn it is, and who goes first. Pure functions: no clock, no lock, no state.
 *
 * NEXT STEP, for one model. A batch closes only when a launch slot is free; what waits behind a busy device
 * keeps growing towards full. Of the free launch slots, those of an idle stream start at once; the second slot of a busy
 * stream only queues behind the batch that runs there, so it takes a full batch, or any ready batch once the running one is
 * predicted to end within head_start. A head start pays where launching ahead hides work (a GPU); what arrives during it
 * misses the batch, so where a launcher forms its next batch itself (a CPU) it is 0, and only full batches queue. (Simulated at
 * a quarter of capacity, 5 ms a batch: queue p99 5.24 ms with a head start of 300 us, 4.94 ms without.)
 *
 *   full      the rows that go together reach max_batch, or the next request does not fit
 *   ready     full, or the oldest request has waited max_wait, or a deadline requires it:
 *             deadline - predicted execution time has come
 *
 * So a request waits at most: until a launch slot is free, or max_wait, whichever is later.
 *
 * NEXT MODEL, among models that share streams and are ready: deficit round-robin on measured device time. Each
 * model has a credit in nanoseconds of device time; a round gives every ready model one quantum, a batch is
 * charged what it took. A model with nothing ready keeps no credit, so it cannot save up for a burst.
 *
 * LEVELS, within a model. A model has 1 to FQ_MAX_LEVELS of them, the first being the highest. A request of a higher level
 * goes into the next batch first, and a batch is filled from as many levels as it has room for. Each level has a queue policy:
 * how many may wait, how long one may, and what becomes of one that has waited longer: an error, or (delay) a place
 * behind everybody else of its level. So where a request stands is a number, its rank: 2 * level, and one more once it is
 * delayed; of one rank, who came first goes first. Nothing ages yet: a low level may wait for ever behind a high one.
 * (Ageing is to be a change of rank, as a delay is: fq_queue_move.)
 *
 * SLOW. A batch that runs for longer than fq_slow_after_ns is worth a warning: longer than any model here should take, and far
 * longer than this one took before.
 */
#ifndef FQ_POLICY_H
#define FQ_POLICY_H

#include <stdint.h>

#include "fq_layout.h"

#define FQ_QUANTUM_NS 1000000
#define FQ_SLOW_NS 10000000000 /* no batch that is younger is called slow */
#define FQ_WAKE_NS 1000000     /* how long before the end of its queue time-out a request makes its batch ready */

enum { FQ_MAX_LEVELS = 32 };

typedef struct fq_policy {
    uint32_t max_batch; /* rows; 1 for a model that does not batch */
    int64_t max_wait_ns;
    int64_t head_start_ns; /* 0: only full batches queue behind a running one */
} fq_policy;

/* What waits together: requests of one model and one batch key, oldest first. */
typedef struct fq_pending {
    uint32_t rows;       /* that would go into one batch, 0 to max_batch */
    uint32_t requests;   /* that would go into one batch; 0: nothing waits */
    int full;            /* rows == max_batch, or the next request does not fit */
    int64_t oldest_ns;   /* arrival of the oldest */
    int64_t deadline_ns; /* the earliest of those that would go, FQ_NEVER: none */
    int64_t predicted_ns; /* execution time of `rows`, 0: not known yet */
} fq_pending;

typedef struct fq_free_slots {
    uint32_t idle;     /* streams with nothing on them */
    uint32_t behind;   /* streams with one batch running and room behind it */
    int64_t end_ns;    /* when the first of those is predicted to end, FQ_NEVER: not known */
} fq_free_slots;

enum fq_step_kind { FQ_STEP_WAIT, FQ_STEP_CLOSE };

typedef struct fq_step {
    int kind;
    int64_t until_ns; /* FQ_STEP_WAIT: ask again then, or when something happens */
    uint32_t rows;    /* FQ_STEP_CLOSE */
    int reason;       /* FQ_STEP_CLOSE: fq_reason */
} fq_step;

static inline int64_t fq_min_ns(int64_t a, int64_t b) { return a < b ? a : b; }

static inline fq_step fq_wait(int64_t until_ns) { return (fq_step){.kind = FQ_STEP_WAIT, .until_ns = until_ns}; }

/* When the pending rows become ready without being full. */
static inline int64_t fq_ready_ns(const fq_pending *pending, const fq_policy *policy) {
    int64_t waited = pending->oldest_ns + policy->max_wait_ns;
    if (pending->deadline_ns == FQ_NEVER) return waited;
    return fq_min_ns(waited, pending->deadline_ns - pending->predicted_ns);
}

static inline fq_step fq_next_step(int64_t now, const fq_pending *pending, const fq_free_slots *slots,
                                   const fq_policy *policy) {
    if (pending->requests == 0 || (slots->idle == 0 && slots->behind == 0)) return fq_wait(FQ_NEVER);
    int64_t ready_ns = fq_ready_ns(pending, policy);
    fq_step close = {.kind = FQ_STEP_CLOSE, .rows = pending->rows, .reason = FQ_REASON_WAIT};
    if (now < pending->oldest_ns + policy->max_wait_ns) close.reason = FQ_REASON_DEADLINE;
    if (pending->full) {
        close.reason = FQ_REASON_FULL;
        return close;
    }
    if (slots->idle > 0) return now >= ready_ns ? close : fq_wait(ready_ns);
    if (policy->head_start_ns == 0 || slots->end_ns == FQ_NEVER) return fq_wait(FQ_NEVER);
    int64_t start_ns = slots->end_ns - policy->head_start_ns;
    if (now >= ready_ns && now >= start_ns) return close;
    return fq_wait(ready_ns > start_ns ? ready_ns : start_ns);
}

/* One ready model. */
typedef struct fq_share {
    int64_t credit_ns; /* of device time; charged after each batch with what it took */
} fq_share;

/* The index of the model whose turn it is, of `count` ready ones (at least 1), starting with `first`; credits are topped
 * up by whole rounds until one of them is positive. */
static inline uint32_t fq_next_model(fq_share *ready, uint32_t count, uint32_t first) {
    int64_t best = INT64_MIN;
    for (uint32_t i = 0; i < count; i++)
        if (ready[i].credit_ns > best) best = ready[i].credit_ns;
    if (best <= 0) {
        int64_t rounds = -best / FQ_QUANTUM_NS + 1;
        for (uint32_t i = 0; i < count; i++) ready[i].credit_ns += rounds * FQ_QUANTUM_NS;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (first + i) % count;
        if (ready[at].credit_ns > 0) return at;
    }
    return first % count;
}

/* ---- levels ---- */

/* The queue policy of one level. */
typedef struct fq_level {
    int64_t timeout_ns; /* 0: none */
    uint32_t delay;     /* who has waited for so long: 0: is refused; 1: goes behind the others of its level */
    uint32_t max_queue; /* requests that may wait, 0: any number */
} fq_level;

/* The level, from 0, of a request of this priority: 1 is the highest; 0, and what is below the lowest, mean the default. */
static inline uint32_t fq_level_of(uint32_t priority, uint32_t levels, uint32_t default_level) {
    return priority >= 1 && priority <= levels ? priority - 1 : default_level;
}

static inline uint32_t fq_rank(uint32_t level, uint32_t delayed) { return 2 * level + delayed; }

/* Until when a request that arrived at `arrival_ns` may wait in the queue; FQ_NEVER: without end. */
static inline int64_t fq_queue_until_ns(const fq_level *level, int64_t arrival_ns) {
    int64_t until_ns;
    if (level->timeout_ns <= 0 || __builtin_add_overflow(arrival_ns, level->timeout_ns, &until_ns)) return FQ_NEVER;
    return until_ns;
}

/* ---- slow batches ---- */

/* How long a batch may run before it is called slow, by its predicted time (0: not known). */
static inline int64_t fq_slow_after_ns(int64_t predicted_ns) {
    if (predicted_ns > FQ_NEVER / 20) return FQ_NEVER;
    return predicted_ns * 20 > FQ_SLOW_NS ? predicted_ns * 20 : FQ_SLOW_NS;
}

#endif
