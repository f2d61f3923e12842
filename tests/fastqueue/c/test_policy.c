/* The two policy functions, as tables. Times are in microseconds here; the clock is a number. */
#include "check.h"
#include "fq_policy.h"

enum { FULL = FQ_REASON_FULL, WAITED = FQ_REASON_WAIT, DEADLINE = FQ_REASON_DEADLINE, FOR_EVER = -1, NEVER = -1 };

static int64_t ns(int64_t us) { return us == NEVER ? FQ_NEVER : us * 1000; }

/* One row: what waits, which launch slots are free, and what must come of it. */
typedef struct row {
    const char *what;
    int64_t now;
    uint32_t requests;
    int full;
    int64_t deadline, predicted; /* of a request that arrived at 0 */
    uint32_t idle, behind;
    int64_t end;      /* of the batch that runs, when `behind` */
    int64_t max_wait;
    int closes;       /* else waits until: */
    int64_t until;
    int reason;
    int64_t head_start;
} row;

static const row rows[] = {
    {"nothing waits", 9, 0, 0, NEVER, 0, 1, 0, NEVER, 0, 0, FOR_EVER, 0, 0},
    {"no launch slot: even a full batch goes on growing", 9, 3, 1, NEVER, 0, 0, 0, NEVER, 0, 0, FOR_EVER, 0, 0},
    {"no launch slot: nor does a deadline close it", 9, 3, 0, 5, 0, 0, 0, NEVER, 0, 0, FOR_EVER, 0, 0},
    {"idle stream, no wait asked for: at once", 0, 1, 0, NEVER, 0, 1, 0, NEVER, 0, 1, 0, WAITED, 0},
    {"idle stream, full: at once", 0, 3, 1, NEVER, 0, 1, 0, NEVER, 100, 1, 0, FULL, 0},
    {"full comes before waited", 200, 3, 1, NEVER, 0, 1, 0, NEVER, 100, 1, 0, FULL, 0},
    {"not full: until the oldest has waited", 99, 2, 0, NEVER, 0, 1, 0, NEVER, 100, 0, 100, 0, 0},
    {"the oldest has waited", 100, 2, 0, NEVER, 0, 1, 0, NEVER, 100, 1, 0, WAITED, 0},
    {"a deadline requires it before that", 59, 2, 0, 80, 20, 1, 0, NEVER, 100, 0, 60, 0, 0},
    {"now", 60, 2, 0, 80, 20, 1, 0, NEVER, 100, 1, 0, DEADLINE, 0},
    {"a later deadline changes nothing", 99, 2, 0, 500, 20, 1, 0, NEVER, 100, 0, 100, 0, 0},
    {"execution time not known: the deadline itself", 70, 2, 0, 80, 0, 1, 0, NEVER, 100, 0, 80, 0, 0},
    {"waited comes before a deadline", 100, 2, 0, 80, 0, 1, 0, NEVER, 100, 1, 0, WAITED, 0},
    {"behind a running batch: a full one at once", 0, 3, 1, NEVER, 0, 0, 1, 9000, 0, 1, 0, FULL, 0},
    {"behind: a ready one only shortly before the end", 1, 1, 0, NEVER, 0, 0, 1, 1000, 0, 0, 700, 0, 300},
    {"that is now", 700, 1, 0, NEVER, 0, 0, 1, 1000, 0, 1, 0, WAITED, 300},
    {"behind: shortly before the end, but not ready", 800, 1, 0, NEVER, 0, 0, 1, 1000, 900, 0, 900, 0, 300},
    {"behind: the end is not known", 800, 1, 0, NEVER, 0, 0, 1, NEVER, 0, 0, FOR_EVER, 0, 300},
    {"behind: the end is overdue", 5000, 1, 0, NEVER, 0, 0, 1, 1000, 0, 1, 0, WAITED, 300},
    {"behind, without a head start: only a full one", 990, 1, 0, NEVER, 0, 0, 1, 1000, 0, 0, FOR_EVER, 0, 0},
    {"even overdue", 5000, 1, 0, NEVER, 0, 0, 1, 1000, 0, 0, FOR_EVER, 0, 0},
    {"full, without a head start", 0, 3, 1, NEVER, 0, 0, 1, 9000, 0, 1, 0, FULL, 0},
    {"an idle stream comes before the place behind a busy one", 1, 1, 0, NEVER, 0, 1, 1, 9000, 0, 1, 0, WAITED, 0},
};

static fq_step ask(const row *r, int64_t now_ns) {
    fq_policy policy = {.max_batch = 8, .max_wait_ns = ns(r->max_wait), .head_start_ns = ns(r->head_start)};
    fq_pending pending = {.rows = r->requests, .requests = r->requests, .full = r->full, .oldest_ns = 0,
                          .deadline_ns = ns(r->deadline), .predicted_ns = ns(r->predicted)};
    fq_free_slots slots = {.idle = r->idle, .behind = r->behind, .end_ns = ns(r->end)};
    return fq_next_step(now_ns, &pending, &slots, &policy);
}

TEST(next_step_is_its_table) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fq_step step = ask(&rows[i], ns(rows[i].now));
        fprintf(stderr, "row: %s\n", rows[i].what);
        CHECK_EQ(step.kind, rows[i].closes ? FQ_STEP_CLOSE : FQ_STEP_WAIT);
        if (step.kind == FQ_STEP_WAIT) {
            CHECK_EQ(step.until_ns, ns(rows[i].until));
        } else {
            CHECK_EQ(step.reason, rows[i].reason);
            CHECK_EQ(step.rows, rows[i].requests);
        }
    }
}

/* "Wait until t" means: later than now, and at t it closes if nothing else has happened. So nobody turns in a loop, and
 * nobody oversleeps. */
TEST(next_step_keeps_its_word) {
    int waits = 0;
    for (int i = 0; i < 200000; i++) {
        row r = {.requests = 1 + (uint32_t)test_below(8), .full = test_below(8) == 0, .idle = (uint32_t)test_below(2),
                 .behind = (uint32_t)test_below(2), .max_wait = (int64_t)test_below(1000)};
        r.deadline = test_below(2) ? NEVER : (int64_t)test_below(2000);
        r.predicted = (int64_t)test_below(500);
        r.head_start = test_below(2) ? 300 : 0;
        r.end = test_below(4) ? (int64_t)test_below(3000) : NEVER;
        int64_t now = ns((int64_t)test_below(3000));
        fq_step step = ask(&r, now);
        if (step.kind == FQ_STEP_CLOSE || step.until_ns == FQ_NEVER) continue;
        waits++;
        CHECK(step.until_ns > now);
        CHECK_EQ(ask(&r, step.until_ns).kind, FQ_STEP_CLOSE);
        CHECK_EQ(ask(&r, step.until_ns - 1).kind, FQ_STEP_WAIT);
    }
    CHECK(waits > 1000);
}

/* ---- between models ---- */

TEST(one_model_always_has_its_turn) {
    fq_share share = {.credit_ns = -123456789};
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(fq_next_model(&share, 1, 0), 0);
        CHECK(share.credit_ns > 0);
        share.credit_ns -= 50000000;
    }
}

TEST(turns_go_round_from_the_first_on) {
    fq_share ready[3] = {{1}, {1}, {1}};
    CHECK_EQ(fq_next_model(ready, 3, 1), 1);
    CHECK_EQ(fq_next_model(ready, 3, 2), 2);
    ready[2].credit_ns = 0;
    CHECK_EQ(fq_next_model(ready, 3, 2), 0); /* nothing left: the next one */
    CHECK_EQ(ready[0].credit_ns, 1);         /* and nobody was topped up */
}

TEST(a_model_in_debt_waits_until_the_others_have_had_as_much) {
    fq_share ready[2] = {{-10 * FQ_QUANTUM_NS}, {0}};
    int turns = 0;
    while (fq_next_model(ready, 2, 0) == 1) {
        ready[1].credit_ns -= FQ_QUANTUM_NS;
        turns++;
    }
    CHECK(turns >= 9 && turns <= 11);
}

TEST(models_get_equal_device_time_whatever_their_batches_take) {
    static const int64_t cost[4] = {30000, FQ_QUANTUM_NS, 3 * FQ_QUANTUM_NS + 1, 20 * FQ_QUANTUM_NS};
    fq_share ready[4] = {{0}, {0}, {0}, {0}};
    int64_t time[4] = {0}, least, most;
    uint32_t first = 0;
    for (int i = 0; i < 100000; i++) {
        uint32_t pick = fq_next_model(ready, 4, first);
        ready[pick].credit_ns -= cost[pick];
        time[pick] += cost[pick];
        first = (pick + 1) % 4;
        least = most = time[0];
        for (int m = 1; m < 4; m++) {
            if (time[m] < least) least = time[m];
            if (time[m] > most) most = time[m];
        }
        CHECK(most - least <= cost[3] + 2 * FQ_QUANTUM_NS); /* at every moment, not only in the end */
    }
    CHECK(least > 100 * cost[3]);
}

/* ---- levels ---- */

TEST(a_priority_is_a_level_or_the_default) {
    CHECK_EQ(fq_level_of(1, 3, 2), 0);
    CHECK_EQ(fq_level_of(3, 3, 0), 2);
    CHECK_EQ(fq_level_of(0, 3, 1), 1);
    CHECK_EQ(fq_level_of(4, 3, 1), 1);
    CHECK_EQ(fq_level_of(UINT32_MAX, 3, 1), 1);
    CHECK_EQ(fq_level_of(7, 1, 0), 0); /* a model without levels has one */
}

TEST(a_delayed_request_is_behind_its_level_and_before_the_next) {
    for (uint32_t level = 0; level < FQ_MAX_LEVELS; level++) {
        CHECK(fq_rank(level, 0) < fq_rank(level, 1));
        if (level > 0) CHECK(fq_rank(level - 1, 1) < fq_rank(level, 0));
    }
    CHECK(fq_rank(FQ_MAX_LEVELS - 1, 1) < 64);
}

TEST(a_queue_time_out_counts_from_the_arrival) {
    fq_level level = {.timeout_ns = ns(500)};
    CHECK_EQ(fq_queue_until_ns(&level, ns(100)), ns(600));
    level.timeout_ns = 0;
    CHECK_EQ(fq_queue_until_ns(&level, ns(100)), FQ_NEVER);
    level.timeout_ns = INT64_MAX;
    CHECK_EQ(fq_queue_until_ns(&level, ns(100)), FQ_NEVER);
}

TEST(slow_is_twenty_times_as_long_as_predicted_and_ten_seconds_at_least) {
    int64_t second = 1000000000;
    CHECK_EQ(fq_slow_after_ns(0), 10 * second);
    CHECK_EQ(fq_slow_after_ns(second / 2), 10 * second);
    CHECK_EQ(fq_slow_after_ns(second), 20 * second);
    CHECK_EQ(fq_slow_after_ns(INT64_MAX / 2), FQ_NEVER);
}
