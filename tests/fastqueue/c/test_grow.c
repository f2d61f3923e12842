/* Runs that grow, among blocks that do not, against a model that knows who owns each page. */
#include "check.h"
#include "fq_grow.h"

enum { BLOCKS = 8, SMALLS = BLOCKS * 64, TAIL = 700, PAGES = SMALLS + TAIL, MESSAGES = 24 };

typedef struct arena {
    fq_input input;
    uint64_t head_memory[(BLOCKS * 17 + 7) / 8];
    uint64_t spill_memory[2 * ((TAIL + 63) / 64)];
} arena;

typedef struct message {
    fq_extent run;
    uint64_t whole;
    int fixed; /* of fq_input_alloc */
} message;

static unsigned char owned[PAGES];

static void arena_init(arena *a) {
    memset(a, 0, sizeof *a);
    memset(owned, 0, sizeof owned);
    fq_input_init(&a->input, BLOCKS, a->head_memory);
    fq_input_add_spill(&a->input, (uint64_t)TAIL * FQ_PAGE, -1, NULL, a->spill_memory);
}

static void mark(fq_extent e, uint64_t from, int to) {
    CHECK(e.offset >= FQ_LARGE && e.offset % FQ_PAGE == 0 && e.length % FQ_PAGE == 0);
    for (uint64_t p = from; p < e.length / FQ_PAGE; p++) {
        uint64_t page = (e.offset - FQ_LARGE) / FQ_PAGE + p;
        CHECK(page < PAGES);
        CHECK_EQ(owned[page], !to);
        owned[page] = (unsigned char)to;
    }
}

static int grow(arena *a, message *m, uint64_t bytes) {
    fq_extent before = m->run;
    if (!fq_grow(&a->input, &m->run, bytes, m->whole)) {
        CHECK(m->run.offset == before.offset && m->run.length == before.length);
        return 0;
    }
    CHECK(before.length == 0 || m->run.offset == before.offset);
    CHECK(m->run.length >= bytes && m->run.length >= before.length);
    CHECK(m->run.length == before.length || m->run.length - bytes < FQ_PAGE); /* what has come, and no more */
    mark(m->run, before.length / FQ_PAGE, 1);
    return 1;
}

static void give(arena *a, message *m) {
    if (!m->fixed) fq_grown(&a->input, &m->run, m->whole);
    mark(m->run, 0, 0);
    fq_input_free(&a->input, &m->run, 1);
    *m = (message){0};
}

static void check_books(const arena *a) {
    uint64_t count = 0;
    for (int p = 0; p < PAGES; p++) count += owned[p];
    CHECK_EQ(fq_input_check(&a->input), 0);
    CHECK_EQ(fq_input_used(&a->input), count * FQ_PAGE);
}

static void check_no_wishes(const arena *a) {
    for (int i = 0; i < BLOCKS; i++) CHECK_EQ(a->input.wished[i], 0);
    CHECK_EQ(fq_runs_next(a->input.spill.wished, 0, TAIL, 1), TAIL);
}

static void begin(arena *a, message *m) {
    static const uint64_t most[] = {20000, 200000, FQ_LARGE, 700000, 1500000};
    m->whole = 1 + test_below(most[test_below(5)]);
    m->fixed = test_below(3) == 0;
    if (m->fixed && (m->whole > FQ_LARGE || !fq_input_alloc(&a->input, m->whole, &m->run, 1))) {
        *m = (message){0};
        return;
    }
    if (m->fixed) mark(m->run, 0, 1);
    else if (!grow(a, m, 1 + test_below(m->whole))) *m = (message){0};
}

TEST(pages_never_overlap_and_all_memory_and_every_wish_goes_back) {
    static arena a;
    static message messages[MESSAGES];
    int grown = 0, stuck = 0;
    arena_init(&a);
    memset(messages, 0, sizeof messages);
    for (int step = 0; step < 40000; step++) {
        message *m = &messages[test_below(MESSAGES)];
        if (m->run.length == 0) begin(&a, m);
        else if (m->fixed || test_below(3) == 0) give(&a, m);
        else if (grow(&a, m, 1 + test_below(m->whole))) grown++;
        else stuck++;
        if (step % 16 == 0) check_books(&a);
    }
    CHECK(grown > 1000);
    CHECK(stuck > 20); /* and it is told */
    for (int i = 0; i < MESSAGES; i++)
        if (messages[i].run.length) give(&a, &messages[i]);
    check_books(&a);
    check_no_wishes(&a);
}

/* Six that fit beside each other: whatever the order of their pieces, none is ever in another's way. */
TEST(messages_that_fit_grow_where_they_lie) {
    static arena a;
    message m[6] = {{.whole = 200000}, {.whole = 150000}, {.whole = 250000}, {.whole = 100000}, {.whole = 400000},
                    {.whole = 1000000}}; /* the last two lie in the tail */
    uint64_t came[6] = {0};
    arena_init(&a);
    for (int left = 6; left > 0;) {
        uint32_t i = (uint32_t)test_below(6);
        if (came[i] == m[i].whole) continue;
        came[i] += 1 + test_below(30000);
        if (came[i] > m[i].whole) came[i] = m[i].whole;
        left -= came[i] == m[i].whole;
        CHECK(grow(&a, &m[i], came[i]));
    }
    CHECK_EQ(m[4].run.offset >= fq_input_arena_bytes(BLOCKS), 1);
    CHECK_EQ(m[3].run.offset < fq_input_arena_bytes(BLOCKS), 1);
    check_books(&a);
}

TEST(a_wish_keeps_others_out_only_while_there_is_other_room) {
    static arena a;
    message m = {.whole = FQ_LARGE};
    fq_extent e;
    arena_init(&a);
    CHECK(grow(&a, &m, 1));
    for (int i = 1; i < BLOCKS * 64 - 63; i++) {
        CHECK(fq_input_alloc(&a.input, FQ_SMALL, &e, 1));
        CHECK(e.offset >= m.run.offset + m.whole);
        mark(e, 0, 1);
    }
    CHECK(grow(&a, &m, 2 * FQ_SMALL));
    CHECK(fq_input_alloc(&a.input, FQ_SMALL, &e, 1));
    CHECK_EQ(e.offset, m.run.offset + 2 * FQ_SMALL); /* nothing else is left */
    CHECK_EQ(fq_grow(&a.input, &m.run, 3 * FQ_SMALL, m.whole), 0);
    mark(e, 0, 1);
    check_books(&a);
}

TEST(half_of_a_message_has_nothing_of_the_last_quarter) {
    static arena a;
    message m = {0};
    arena_init(&a);
    for (;;) {
        m = (message){.whole = FQ_SMALL};
        if (!grow(&a, &m, 1)) break;
        CHECK(m.run.offset + m.run.length <= fq_input_offset(a.input.reserved_at));
    }
    CHECK_EQ(a.input.used_bytes, (uint64_t)BLOCKS / 4 * 3 * FQ_LARGE);
    fq_extent whole;
    CHECK(fq_input_alloc(&a.input, FQ_SMALL, &whole, 1));
}
