/* A lane's two ends in one thread: layout, the life of a slot, and peers that break the rules. */
#include "check.h"
#include "fq_lane.h"

enum { SLOTS = 4, COMPLETIONS = 8 };

typedef struct both {
    void *memory;
    fq_bell worker_bell;
    fq_front_lane front;
    fq_worker_lane worker;
    uint32_t free_slots[SLOTS];
    unsigned char states[SLOTS];
} both;

static both open_lane(void) {
    both b = {.memory = aligned_alloc(FQ_PAGE, fq_lane_bytes(SLOTS, COMPLETIONS))};
    CHECK(b.memory);
    memset(b.memory, 0, fq_lane_bytes(SLOTS, COMPLETIONS));
    fq_lane_format(b.memory, SLOTS, COMPLETIONS);
    fq_lane_attach(&b.front.lane, b.memory, SLOTS, COMPLETIONS, 1);
    fq_lane_attach(&b.worker.lane, b.memory, SLOTS, COMPLETIONS, 0);
    return b;
}

/* The pointers within `b` are those of its final place. */
static void start(both *b) {
    b->front.worker = &b->worker_bell;
    fq_front_lane_init(&b->front, b->free_slots, b->states);
}

static void finish(both *b) { free(b->memory); }

static uint32_t submit(both *b, uint32_t model) {
    uint32_t number = 99;
    fq_slot *slot = fq_lane_claim(&b->front, &number);
    CHECK(slot && number < SLOTS);
    slot->model = model;
    CHECK(fq_lane_publish(&b->front, number) >= 0);
    return number;
}

static uint32_t take(both *b, uint32_t model) {
    uint32_t number = 99;
    fq_slot copy;
    CHECK_EQ(fq_lane_take(&b->worker, &number, &copy), 1);
    CHECK_EQ(copy.model, model);
    return number;
}

static void post_final(both *b, uint32_t number) {
    fq_completion done = {.slot = number, .flags = FQ_FINAL};
    CHECK_EQ(fq_lane_post(&b->worker, &done), 1);
}

/* ---- layout ---- */

TEST(parts_of_a_lane_follow_each_other_without_overlap) {
    for (uint32_t slots = 1; slots <= FQ_MAX_SLOTS; slots *= 2) {
        for (uint32_t completions = slots; completions <= 32 * slots; completions *= 2) {
            uint64_t at[] = {0, fq_lane_submissions_at(), fq_lane_completions_at(slots),
                             fq_lane_releases_at(slots, completions), fq_lane_slots_at(slots, completions),
                             fq_lane_texts_at(slots, completions), fq_lane_bytes(slots, completions)};
            uint64_t bytes[] = {sizeof(fq_lane_header), 4ull * slots, 128ull * completions, 4ull * slots, 128ull * slots,
                                512ull * slots};
            for (int part = 0; part < 6; part++) {
                CHECK(at[part] + bytes[part] <= at[part + 1]);
                CHECK_EQ(at[part] % FQ_LINE, 0);
            }
            CHECK_EQ(at[6] % FQ_PAGE, 0);
        }
    }
}

TEST(only_a_whole_header_may_be_attached) {
    static fq_lane_header good;
    fq_lane_format(&good, SLOTS, COMPLETIONS);
    uint64_t mapped = fq_lane_bytes(SLOTS, COMPLETIONS);
    CHECK_EQ(fq_lane_check_header(&good, mapped), 0);
    CHECK_EQ(fq_lane_check_header(&good, mapped - 1), 5);
    struct {
        fq_lane_header header;
        int rule;
    } bad[9];
    for (int i = 0; i < 9; i++) bad[i].header = good, bad[i].rule = 4;
    bad[0].header.magic++, bad[0].rule = 1;
    bad[1].header.version++, bad[1].rule = 2;
    bad[2].header.slots = 0, bad[2].rule = 3;
    bad[3].header.slots = 3, bad[3].rule = 3;
    bad[4].header.slots = 2 * FQ_MAX_SLOTS, bad[4].rule = 3;
    bad[5].header.completions = SLOTS / 2; /* fewer than slots: the ring could fill */
    bad[6].header.completions = 6;
    bad[7].header.completions = 64 * SLOTS;
    bad[8].header.bytes--, bad[8].rule = 5;
    for (int i = 0; i < 9; i++) CHECK_EQ(fq_lane_check_header(&bad[i].header, mapped), bad[i].rule);
}

/* ---- the life of a slot ---- */

TEST(a_slot_goes_round) {
    both b = open_lane();
    fq_completion done;
    start(&b);
    uint32_t number = submit(&b, 7);
    CHECK_EQ(b.states[number], FQ_SLOT_PUBLISHED);
    CHECK_EQ(take(&b, 7), number);
    CHECK_EQ(fq_lane_poll(&b.front, &done), 0);
    post_final(&b, number);
    CHECK_EQ(fq_lane_poll(&b.front, &done), 1);
    CHECK_EQ(done.slot, number);
    CHECK_EQ(b.states[number], FQ_SLOT_FINAL);
    CHECK_EQ(fq_lane_retire(&b.front, number, 1), 0);
    CHECK_EQ(b.states[number], FQ_SLOT_FREE);
    fq_release release;
    CHECK_EQ(fq_ring_pop(&b.worker.lane.release, &release), 1);
    CHECK_EQ(release.slot, number);
    finish(&b);
}

TEST(claims_end_when_all_slots_are_out) {
    both b = open_lane();
    uint32_t number, seen = 0;
    start(&b);
    for (int i = 0; i < SLOTS; i++) seen |= 1u << submit(&b, 1);
    CHECK_EQ(seen, (1u << SLOTS) - 1); /* each once */
    CHECK(fq_lane_claim(&b.front, &number) == NULL);
    number = take(&b, 1);
    post_final(&b, number);
    fq_completion done;
    CHECK_EQ(fq_lane_poll(&b.front, &done), 1);
    CHECK(fq_lane_claim(&b.front, &number) == NULL); /* FINAL alone does not free it: its answer is still read */
    (void)fq_lane_retire(&b.front, done.slot, 0);
    CHECK(fq_lane_claim(&b.front, &number) != NULL);
    finish(&b);
}

TEST(a_request_without_an_answer_releases_nothing) {
    both b = open_lane();
    fq_completion done;
    fq_release release;
    start(&b);
    (void)submit(&b, 1);
    post_final(&b, take(&b, 1));
    CHECK_EQ(fq_lane_poll(&b.front, &done), 1);
    (void)fq_lane_retire(&b.front, done.slot, 0);
    CHECK_EQ(fq_ring_pop(&b.worker.lane.release, &release), 0);
    finish(&b);
}

/* Random order of everything, with the worker's order of draining: no ring is ever full, every request ends once. */
TEST(rings_never_fill) {
    both b = open_lane();
    uint32_t held[SLOTS], number;
    int holds = 0, outstanding = 0, submitted = 0, ended = 0;
    start(&b);
    for (int step = 0; step < 100000; step++) {
        fq_completion done;
        fq_release release;
        fq_slot copy, *slot;
        switch (test_below(4)) {
        case 0:
            if ((slot = fq_lane_claim(&b.front, &number)) == NULL) break;
            CHECK(fq_lane_publish(&b.front, number) >= 0);
            submitted++, outstanding++;
            break;
        case 1:
            while (fq_lane_take(&b.worker, &number, &copy) == 1) held[holds++] = number;
            while (fq_ring_pop(&b.worker.lane.release, &release)) outstanding--;
            break;
        case 2:
            if (holds == 0) break;
            number = held[--holds];
            post_final(&b, number);
            break;
        default:
            if (fq_lane_poll(&b.front, &done) != 1) break;
            CHECK(fq_ring_room(&b.front.lane.release) > 0);
            (void)fq_lane_retire(&b.front, done.slot, 1);
            ended++;
        }
        CHECK(holds <= SLOTS && ended <= submitted);
    }
    CHECK(ended > 1000 && submitted - ended <= SLOTS);
    finish(&b);
}

/* ---- wake-ups ---- */

TEST(the_ringer_is_told_when_to_wake) {
    both b = open_lane();
    uint32_t number;
    start(&b);
    CHECK(fq_lane_claim(&b.front, &number));
    CHECK_EQ(fq_lane_publish(&b.front, number), 0); /* nobody sleeps */
    (void)take(&b, 0);
    fq_bell_arm(&b.worker_bell, FQ_WANT_SUBMIT);
    CHECK_EQ(fq_lane_cancel(&b.front, number), 1);
    CHECK_EQ(fq_lane_cancel(&b.front, number), 0); /* once is enough */
    post_final(&b, number);
    CHECK_EQ(fq_lane_ring_front(&b.worker), 0);
    CHECK_EQ(fq_front_lane_arm(&b.front), 0); /* there is something: it must not sleep */
    fq_completion done;
    CHECK_EQ(fq_lane_poll(&b.front, &done), 1);
    CHECK_EQ(fq_front_lane_arm(&b.front), 1);
    CHECK_EQ(fq_lane_ring_front(&b.worker), 1);
    fq_bell_arm(&b.worker_bell, FQ_WANT_SUBMIT);
    CHECK_EQ(fq_lane_retire(&b.front, number, 1), 0); /* a release that nobody waits for */
    CHECK_EQ(fq_worker_lane_waiting(&b.worker, FQ_WANT_SUBMIT | FQ_WANT_RELEASE), 1);
    finish(&b);
}

TEST(the_worker_sees_each_kind_of_news) {
    both b = open_lane();
    start(&b);
    CHECK_EQ(fq_worker_lane_waiting(&b.worker, FQ_WANT_SUBMIT), 0);
    uint32_t number = submit(&b, 1);
    CHECK_EQ(fq_worker_lane_waiting(&b.worker, FQ_WANT_SUBMIT), 1);
    (void)take(&b, 1);
    CHECK_EQ(fq_lane_cancels_moved(&b.worker), 0);
    (void)fq_lane_cancel(&b.front, number);
    CHECK_EQ(fq_worker_lane_waiting(&b.worker, FQ_WANT_SUBMIT), 1);
    CHECK_EQ(fq_lane_cancels_moved(&b.worker), 1);
    CHECK_EQ(fq_lane_cancelled(&b.worker, number), 1);
    CHECK_EQ(fq_lane_cancels_moved(&b.worker), 0);
    CHECK_EQ(fq_worker_lane_waiting(&b.worker, FQ_WANT_SUBMIT), 0);
    finish(&b);
}

TEST(a_claim_clears_the_cancel_word) {
    both b = open_lane();
    fq_completion done;
    start(&b);
    uint32_t number = submit(&b, 1);
    (void)fq_lane_cancel(&b.front, number);
    post_final(&b, take(&b, 1));
    CHECK_EQ(fq_lane_poll(&b.front, &done), 1);
    (void)fq_lane_retire(&b.front, number, 0);
    CHECK_EQ(submit(&b, 2), number);
    CHECK_EQ(fq_lane_cancelled(&b.worker, take(&b, 2)), 0);
    finish(&b);
}

/* ---- a peer that breaks the rules ---- */

TEST(a_completion_of_a_slot_that_is_not_out_is_dropped) {
    both b = open_lane();
    fq_completion done;
    start(&b);
    uint32_t number = submit(&b, 1);
    post_final(&b, SLOTS);
    post_final(&b, UINT32_MAX);
    post_final(&b, (number + 1) % SLOTS); /* free */
    post_final(&b, number);
    post_final(&b, number); /* twice */
    for (int i = 0; i < 3; i++) CHECK_EQ(fq_lane_poll(&b.front, &done), -1);
    CHECK_EQ(fq_lane_poll(&b.front, &done), 1);
    CHECK_EQ(fq_lane_poll(&b.front, &done), -1);
    CHECK_EQ(fq_lane_poll(&b.front, &done), 0);
    finish(&b);
}

TEST(a_text_is_no_longer_than_its_place) {
    both b = open_lane();
    fq_completion done = {.flags = FQ_FINAL, .text_bytes = UINT32_MAX};
    start(&b);
    done.slot = submit(&b, 1);
    CHECK_EQ(fq_lane_post(&b.worker, &done), 1);
    CHECK_EQ(fq_lane_poll(&b.front, &done), 1);
    CHECK_EQ(done.text_bytes, FQ_TEXT);
    finish(&b);
}

TEST(a_submission_of_a_slot_that_does_not_exist_is_dropped) {
    both b = open_lane();
    uint32_t number;
    fq_slot copy;
    start(&b);
    CHECK_EQ(fq_ring_push(&b.front.lane.submission, &(fq_submission){SLOTS}), 1);
    CHECK_EQ(fq_ring_push(&b.front.lane.submission, &(fq_submission){UINT32_MAX}), 1);
    CHECK_EQ(fq_lane_take(&b.worker, &number, &copy), -1);
    CHECK_EQ(fq_lane_take(&b.worker, &number, &copy), -1);
    CHECK_EQ(fq_lane_take(&b.worker, &number, &copy), 0);
    finish(&b);
}
