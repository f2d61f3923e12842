/* cancel.c: a cancel is never lost, and never meets another request than its own. */
#include "lane_kit.h"

static lane_kit kit;
static int dropped, ran, second_taken;

static void setup_one_slot(void) {
    kit_setup(&kit, 1);
    dropped = ran = second_taken = 0;
}

/* Two requests wait in the worker, which has no launch slot for them. */
static void setup_two_waiting(void) {
    uint32_t number;
    fq_slot copy;
    kit_setup(&kit, 2);
    dropped = ran = second_taken = 0;
    for (uint32_t i = 0; i < 2; i++) {
        (void)kit_submit(&kit, 1 + i);
        (void)fq_lane_take(&kit.worker, &number, &copy);
    }
}

/* ---- a cancel against the worker's sleep ---- */

static void cancel_one(void) { kit_cancel(&kit, 0); }
static void cancel_both(void) { kit_cancel(&kit, 0), kit_cancel(&kit, 1); }

/* The former in small: reads the words of what waits when the count has moved, and sleeps when it has not. */
static void drop_cancelled(int count) {
    int waits[2] = {1, 1};
    while (dropped < count) {
        int moved = fq_lane_cancels_moved(&kit.worker);
        for (uint32_t i = 0; moved && i < 2; i++) {
            if (!waits[i] || !fq_lane_cancelled(&kit.worker, i)) continue;
            waits[i] = 0;
            dropped++;
        }
        if (!moved) kit_worker_sleep(&kit, FQ_WANT_SUBMIT);
    }
}
static void drop_one(void) { drop_cancelled(1); }
static void drop_both(void) { drop_cancelled(2); }

static const char *all_dropped(void) { return ex_asleep(0) ? "a cancel was slept through" : "dropped"; }

#define DROPPED .outcome = all_dropped, \
                .outcomes = {{"dropped", EX_ALLOWED}, {"a cancel was slept through", EX_FORBIDDEN}}

/* ---- a cancel against launch, completion and the next use of its slot ---- */

static void cancel_and_go_on(void) {
    fq_completion done;
    int number = kit_submit(&kit, 1);
    kit_cancel(&kit, (uint32_t)number);
    kit_await(&kit, &done);
    kit_retire(&kit, done.slot, 0);
    ex_claim(kit_submit(&kit, 2) == number, "FINAL did not free the slot");
}

/* In the order of the former: what is accepted is looked at by itself, because a cancel that was counted before it was
 * accepted is not counted again. */
static uint32_t take_and_look(fq_slot *copy, int *drop) {
    uint32_t number = 0;
    while (fq_lane_take(&kit.worker, &number, copy) == 0) {
        (void)fq_lane_cancels_moved(&kit.worker); /* nothing is held that it could mean */
        kit_worker_sleep(&kit, FQ_WANT_SUBMIT);
    }
    *drop = fq_lane_cancelled(&kit.worker, number);
    if (fq_lane_cancels_moved(&kit.worker)) *drop |= fq_lane_cancelled(&kit.worker, number);
    return number;
}

static void serve_both(void) {
    for (uint32_t i = 0; i < 2; i++) {
        fq_slot copy;
        int drop;
        uint32_t number = take_and_look(&copy, &drop);
        drop = drop || fq_lane_cancelled(&kit.worker, number); /* before launch, as fq_batch_check looks */
        ex_claim(copy.model == i + 1 && copy.tenant == i + 1, "the slot's copy is not what was published");
        ex_claim(copy.model == 1 || !drop, "the cancel met the next request");
        if (copy.model == 2) second_taken = 1;
        if (copy.model == 1) *(drop ? &dropped : &ran) = 1;
        kit_post(&kit, &(fq_completion){.slot = number, .flags = FQ_FINAL});
    }
}

static const char *own_request_only(void) {
    if (dropped + ran != 1 || !second_taken) return "a request is lost";
    return dropped ? "dropped, the next untouched" : "too late, the next untouched";
}

const ex_scenario ex_cancel[] = {
    {.property = "no cancel is slept through", .preemptions = 5, .setup = setup_two_waiting,
     .threads = {{"worker", drop_one, 0}, {"front end", cancel_one, 0}}, DROPPED},
    {.property = "nor one of two", .preemptions = 4, .setup = setup_two_waiting,
     .threads = {{"worker", drop_both, 0}, {"front end", cancel_both, 0}}, DROPPED},
    {.property = "a cancel meets its own request, or comes too late, and never the next one in its slot",
     .preemptions = 3, .setup = setup_one_slot,
     .threads = {{"worker", serve_both, 0}, {"front end", cancel_and_go_on, 0}}, .outcome = own_request_only,
     .outcomes = {{"dropped, the next untouched", EX_ALLOWED}, {"too late, the next untouched", EX_ALLOWED},
                  {"a request is lost", EX_FORBIDDEN}}},
    {.property = NULL},
};
