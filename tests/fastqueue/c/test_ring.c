/* A ring against a model, with indices that start where arithmetic is delicate; and against a peer gone mad. */
#include "check.h"
#include "fq_ring.h"

enum { MOST = 8 };

typedef struct ring_pair {
    fq_ring_control control;
    uint32_t entries[MOST + 2]; /* one more on either side, to see that nobody writes there */
    fq_ring producer, consumer;
} ring_pair;

static void ring_pair_init(ring_pair *p, uint32_t capacity, uint64_t start) {
    memset(p, 0, sizeof *p);
    memset(p->entries, 0xee, sizeof p->entries);
    fq_store_rlx(&p->control.tail, start, R1);
    fq_store_rlx(&p->control.head, start, R4);
    fq_ring_attach(&p->producer, &p->control, p->entries + 1, capacity, sizeof p->entries[0], 1);
    fq_ring_attach(&p->consumer, &p->control, p->entries + 1, capacity, sizeof p->entries[0], 0);
}

static void ring_pair_check(const ring_pair *p, uint32_t capacity) {
    CHECK_EQ(fq_ring_check(&p->control, capacity), 0);
    CHECK(p->entries[0] == 0xeeeeeeee && p->entries[capacity + 1] == 0xeeeeeeee);
}

static void against_model(uint32_t capacity, uint64_t start) {
    ring_pair p;
    uint32_t pushed = 0, popped = 0, value;
    ring_pair_init(&p, capacity, start);
    for (int step = 0; step < 20000; step++) {
        if (test_below(2)) {
            CHECK_EQ(fq_ring_room(&p.producer) > 0, pushed - popped < capacity);
            int fits = fq_ring_push(&p.producer, &pushed);
            CHECK_EQ(fits, pushed - popped < capacity);
            pushed += (uint32_t)fits;
        } else {
            CHECK_EQ(fq_ring_waiting(&p.consumer), pushed != popped);
            int got = fq_ring_pop(&p.consumer, &value);
            CHECK_EQ(got, pushed != popped);
            if (got) CHECK_EQ(value, popped++);
        }
        ring_pair_check(&p, capacity);
    }
}

TEST(behaves_like_a_bounded_queue) {
    static const uint64_t starts[] = {0, UINT32_MAX - 1ull, UINT64_MAX - 1};
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++)
        for (uint32_t capacity = 1; capacity <= MOST; capacity *= 2) against_model(capacity, starts[s]);
}

TEST(room_says_how_many_fit) {
    ring_pair p;
    uint32_t value = 0;
    ring_pair_init(&p, 4, UINT64_MAX - 1);
    CHECK_EQ(fq_ring_capacity(&p.producer), 4);
    for (uint32_t room = 4; room > 0; room--) {
        CHECK(fq_ring_room(&p.producer) == room);
        CHECK_EQ(fq_ring_push(&p.producer, &value), 1);
    }
    CHECK_EQ(fq_ring_room(&p.producer), 0);
    CHECK_EQ(fq_ring_pop(&p.consumer, &value), 1);
    CHECK_EQ(fq_ring_room(&p.producer), 1);
}

TEST(an_heir_goes_on_where_the_dead_stopped) {
    ring_pair p;
    uint32_t value = 0;
    ring_pair_init(&p, 4, UINT64_MAX - 1);
    for (uint32_t i = 0; i < 3; i++) CHECK_EQ(fq_ring_push(&p.producer, &i), 1);
    CHECK_EQ(fq_ring_pop(&p.consumer, &value), 1);
    fq_ring_attach(&p.consumer, &p.control, p.entries + 1, 4, sizeof p.entries[0], 0);
    fq_ring_attach(&p.producer, &p.control, p.entries + 1, 4, sizeof p.entries[0], 1);
    CHECK_EQ(fq_ring_room(&p.producer), 2);
    for (uint32_t i = 1; i < 3; i++) {
        CHECK_EQ(fq_ring_pop(&p.consumer, &value), 1);
        CHECK_EQ(value, i);
    }
    CHECK_EQ(fq_ring_pop(&p.consumer, &value), 0);
}

/* Whatever stands in the peer's index, this side stays within the entries, and within what a ring can hold. */
TEST(a_mad_producer_leads_the_consumer_nowhere) {
    ring_pair p;
    uint32_t value;
    ring_pair_init(&p, 4, UINT64_MAX - 1);
    for (int step = 0; step < 20000; step++) {
        uint64_t wild = test_below(4) ? p.consumer.own + test_below(12) - 6 : test_random();
        int believable = wild - p.consumer.own <= 4;
        fq_store_rlx(&p.control.tail, wild, R1);
        int got = 0;
        while (got <= 4 && fq_ring_pop(&p.consumer, &value)) got++;
        CHECK(got <= 4);
        CHECK(believable || got == 0);
    }
    CHECK(p.entries[0] == 0xeeeeeeee && p.entries[5] == 0xeeeeeeee);
}

/* Else its sleep would end at once, again and again, and there would be nothing to pop. */
TEST(a_wild_tail_keeps_no_consumer_awake) {
    ring_pair p;
    ring_pair_init(&p, 4, UINT64_MAX - 1);
    for (uint64_t ahead = 1; ahead <= 4; ahead++) {
        fq_store_rlx(&p.control.tail, p.consumer.own + ahead, R1);
        CHECK_EQ(fq_ring_waiting(&p.consumer), 1);
    }
    fq_store_rlx(&p.control.tail, p.consumer.own + 5, R1);
    CHECK_EQ(fq_ring_waiting(&p.consumer), 0);
    fq_store_rlx(&p.control.tail, p.consumer.own - 1, R1);
    CHECK_EQ(fq_ring_waiting(&p.consumer), 0);
}

TEST(a_mad_consumer_leads_the_producer_nowhere) {
    ring_pair p;
    uint32_t value = 7;
    ring_pair_init(&p, 4, UINT64_MAX - 1);
    for (int step = 0; step < 20000; step++) {
        fq_store_rlx(&p.control.head, test_below(4) ? p.producer.own + test_below(12) - 6 : test_random(), R4);
        CHECK(fq_ring_room(&p.producer) <= 4);
        int pushed = 0;
        while (pushed <= 4 && fq_ring_push(&p.producer, &value)) pushed++;
        CHECK(pushed <= 4);
    }
    CHECK(p.entries[0] == 0xeeeeeeee && p.entries[5] == 0xeeeeeeee);
}

TEST(check_names_the_broken_invariant) {
    ring_pair p;
    ring_pair_init(&p, 4, 0);
    CHECK_EQ(fq_ring_check(&p.control, 0), 1);
    CHECK_EQ(fq_ring_check(&p.control, 3), 1);
    fq_store_rlx(&p.control.tail, 5, R1);
    CHECK_EQ(fq_ring_check(&p.control, 4), 2);
    CHECK_EQ(fq_ring_check(&p.control, 8), 0);
    fq_store_rlx(&p.control.head, 6, R4); /* ahead of the tail */
    CHECK_EQ(fq_ring_check(&p.control, 8), 2);
}
