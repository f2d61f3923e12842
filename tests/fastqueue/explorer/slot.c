/* slot.c: the life of a slot: what belongs to whom, and when. A race on any of its memory is a failure. */
#include <stdio.h>

#include "lane_kit.h"

enum { REQUESTS = 3, WORKER = 0, FRONT = 1 };

static lane_kit kit;
static uint64_t output;           /* one block of the output arena */
static int answered, served, lost_text;

static void setup(uint32_t slots) {
    kit_setup(&kit, slots);
    output = 0;
    answered = served = lost_text = 0;
}
static void setup_one_slot(void) { setup(1); }
static void setup_two_slots(void) { setup(2); }

/* ---- fields and text: written anew for each use of the slot ---- */

static void read_text(const fq_completion *done) {
    char text[8] = "";
    fq_data_get(text, fq_lane_text(&kit.front.lane, done->slot), done->text_bytes);
    if (text[0] != (char)('0' + done->batch)) lost_text = 1;
}

static void ask_one_by_one(int count) {
    for (int i = 1; i <= count; i++) {
        fq_completion done;
        (void)kit_submit(&kit, (uint32_t)i);
        kit_await(&kit, &done);
        read_text(&done);
        kit_retire(&kit, done.slot, 0);
        answered++;
    }
}
static void ask_two(void) { ask_one_by_one(2); }

static void answer_with_text(int count) {
    for (int i = 1; i <= count; i++) {
        fq_slot copy;
        uint32_t number = kit_take(&kit, &copy);
        ex_claim(copy.tenant == copy.model, "the slot's copy is not what was published");
        char text = (char)('0' + copy.model);
        fq_data_put(fq_lane_text(&kit.worker.lane, number), &text, 1);
        served++;
        kit_post(&kit, &(fq_completion){.slot = number, .flags = FQ_FINAL, .text_bytes = 1, .batch = copy.model});
    }
}
static void answer_two(void) { answer_with_text(2); }
static void answer_three(void) { answer_with_text(3); }

static void ask_three_with_two_slots(void) {
    fq_completion done;
    (void)kit_submit(&kit, 1);
    (void)kit_submit(&kit, 2);
    ex_claim(kit_submit(&kit, 3) == -1, "more slots than there are");
    for (int i = 0; i < 3; i++) {
        kit_await(&kit, &done);
        read_text(&done);
        kit_retire(&kit, done.slot, 0);
        if (answered++ == 0) ex_claim(kit_submit(&kit, 3) >= 0, "FINAL did not free the slot");
    }
}

static const char *all_answered(void) {
    if (lost_text) return "a wrong text";
    return answered == served && !ex_asleep(WORKER) && !ex_asleep(FRONT) ? "all answered" : "a request is lost";
}

#define ANSWERED                                                                                             \
    .outcome = all_answered, .outcomes = {                                                                   \
        {"all answered", EX_ALLOWED}, {"a request is lost", EX_FORBIDDEN}, {"a wrong text", EX_FORBIDDEN},   \
    }

/* ---- output memory: one block, which the worker writes again as soon as it was given back ---- */

static void read_answers(void) {
    for (int i = 1; i <= REQUESTS; i++) {
        fq_completion done;
        uint64_t value = 0;
        (void)kit_submit(&kit, (uint32_t)i);
        kit_await(&kit, &done);
        fq_data_get(&value, &output, sizeof value);
        ex_claim(value == (uint64_t)i, "an answer was overwritten before it was read");
        kit_retire(&kit, done.slot, 1);
        answered++;
    }
}

static void write_answers(void) {
    fq_release entry;
    for (uint64_t i = 1; i <= REQUESTS; i++) {
        fq_slot copy;
        int released = 0;
        uint32_t number = kit_take(&kit, &copy);
        while (fq_ring_pop(&kit.worker.lane.release, &entry)) released++;
        ex_claim(released == (i > 1), "a slot came again before its release, or a release is lost");
        fq_data_put(&output, &i, sizeof i);
        served++;
        kit_post(&kit, &(fq_completion){.slot = number, .flags = FQ_FINAL, .answer = {FQ_PAGE, 8}});
    }
}

/* A launcher waits for output memory: the former sleeps for releases as well. */
static void read_and_release_late(void) {
    fq_completion done;
    (void)kit_submit(&kit, 1);
    kit_await(&kit, &done);
    kit_retire(&kit, done.slot, 1);
    answered++;
}

static void write_and_wait_for_release(void) {
    fq_release entry;
    fq_slot copy;
    uint32_t number = kit_take(&kit, &copy);
    served++;
    kit_post(&kit, &(fq_completion){.slot = number, .flags = FQ_FINAL, .answer = {FQ_PAGE, 8}});
    while (!fq_ring_pop(&kit.worker.lane.release, &entry)) kit_worker_sleep(&kit, FQ_WANT_SUBMIT | FQ_WANT_RELEASE);
}

/* ---- death ---- */

static void kick_worker_after_front(void) {
    ex_wait_end(FRONT);
    fq_bell_kick(&kit.worker_bell);
}

static void ring_front_after_worker(void) {
    ex_wait_end(WORKER);
    ex_event_write(&kit.eventfd);
}

/* Takes whatever a front end published before it died, and sleeps. */
static void serve_for_ever(void) { answer_with_text(REQUESTS + 1); }

static void submit_two(void) {
    (void)kit_submit(&kit, 1);
    (void)kit_submit(&kit, 2);
}

static const char *published_is_taken(void) {
    static const char *const names[] = {"none", "one", "both"};
    if ((uint64_t)served != kit.front.lane.header->submission.tail.v) return "a published request is lost";
    return names[served];
}

/* Takes what the worker posted until it is told that the worker is gone; then looks once more. */
static void await_both_or_end(void) {
    fq_completion done;
    while (answered < 2) {
        int gone = ex_died(WORKER), got = 0;
        while (answered < 2 && fq_lane_poll(&kit.front, &done) == 1) {
            read_text(&done);
            answered++;
            got = 1;
        }
        if (answered == 2 || (gone && !got)) break;
        if (!got && fq_front_lane_arm(&kit.front)) ex_event_wait(&kit.eventfd);
    }
}

static void setup_two_submitted(void) {
    setup_two_slots();
    submit_two();
}

static const char *posted_is_known(void) {
    static const char *const names[] = {"none answered", "one answered", "both answered"};
    if (ex_asleep(FRONT)) return "the front end waits for a dead worker";
    if (lost_text) return "a wrong text";
    return names[answered];
}

const ex_scenario ex_slot[] = {
    {.property = "a slot's fields and text are written again only when nobody reads them (one slot)",
     .preemptions = 3, .setup = setup_one_slot, .threads = {{"worker", answer_two, 0}, {"front end", ask_two, 0}},
     ANSWERED},
    {.property = "a slot's fields and text are written again only when nobody reads them (two slots)",
     .preemptions = 2, .setup = setup_two_slots,
     .threads = {{"worker", answer_three, 0}, {"front end", ask_three_with_two_slots, 0}}, ANSWERED},
    {.property = "output memory is written again only when its reader has let go, and no release is lost",
     .preemptions = 2, .setup = setup_one_slot,
     .threads = {{"worker", write_answers, 0}, {"front end", read_answers, 0}}, ANSWERED},
    {.property = "no release is slept through by a worker that waits for memory",
     .preemptions = 3, .setup = setup_one_slot,
     .threads = {{"worker", write_and_wait_for_release, 0}, {"front end", read_and_release_late, 0}}, ANSWERED},
    {.property = "of a front end that dies anywhere, what was published is taken, whole",
     .preemptions = 2, .setup = setup_two_slots,
     .threads = {{"worker", serve_for_ever, 0}, {"front end", submit_two, 1}, {"control", kick_worker_after_front, 0}},
     .outcome = published_is_taken,
     .outcomes = {{"none", EX_ALLOWED}, {"one", EX_ALLOWED}, {"both", EX_ALLOWED},
                  {"a published request is lost", EX_FORBIDDEN}}},
    {.property = "of a worker that dies anywhere, what was posted is taken, and nobody waits for the rest",
     .preemptions = 2, .setup = setup_two_submitted,
     .threads = {{"worker", answer_two, 1}, {"front end", await_both_or_end, 0},
                 {"control", ring_front_after_worker, 0}},
     .outcome = posted_is_known,
     .outcomes = {{"none answered", EX_ALLOWED}, {"one answered", EX_ALLOWED}, {"both answered", EX_ALLOWED},
                  {"a wrong text", EX_FORBIDDEN}, {"the front end waits for a dead worker", EX_FORBIDDEN}}},
    {.property = NULL},
};
