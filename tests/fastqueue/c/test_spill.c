/* The input arena's tail against a model that knows who owns each page, and which pages the system has back. */
#include "check.h"
#include "fq_input.h"

enum { BLOCKS = 8, PAGES = 700, MESSAGES = 24, EXTENTS = 16 };

static const uint64_t KEPT = (uint64_t)BLOCKS * FQ_LARGE / FQ_PAGE; /* as many as the head has */

typedef struct arena {
    fq_input input;
    uint64_t head_memory[(BLOCKS * 17 + 7) / 8];
    uint64_t spill_memory[2 * ((PAGES + 63) / 64)];
} arena;

typedef struct message {
    uint32_t count;
    fq_extent extents[EXTENTS];
} message;

static unsigned char owned[PAGES], punched[PAGES];

static uint64_t page_at(uint64_t offset) { return (offset - fq_input_arena_bytes(BLOCKS)) / FQ_PAGE; }

static void punch(int fd, uint64_t offset, uint64_t bytes) {
    CHECK_EQ(fd, 7);
    CHECK(bytes > 0 && offset % FQ_PAGE == 0 && bytes % FQ_PAGE == 0);
    for (uint64_t p = page_at(offset); p < page_at(offset + bytes); p++) {
        CHECK(p >= KEPT && p < PAGES);
        CHECK_EQ(owned[p], 0); /* nobody's data is thrown away */
        punched[p] = 1;
    }
}

static void arena_init(arena *a) {
    memset(a, 0, sizeof *a);
    memset(owned, 0, sizeof owned);
    memset(punched, 1, sizeof punched);
    CHECK_EQ(fq_spill_private_bytes((uint64_t)PAGES * FQ_PAGE), sizeof a->spill_memory);
    fq_input_init(&a->input, BLOCKS, a->head_memory);
    fq_input_add_spill(&a->input, (uint64_t)PAGES * FQ_PAGE, 7, punch, a->spill_memory);
}

static void mark(const message *m, int to) {
    for (uint32_t i = 0; i < m->count; i++)
        for (uint64_t p = page_at(m->extents[i].offset), n = m->extents[i].length / FQ_PAGE; n > 0; p++, n--) {
            CHECK(p < PAGES);
            CHECK_EQ(owned[p], !to);
            owned[p] = (unsigned char)to;
            if (to) punched[p] = 0;
        }
}

static int take(arena *a, message *m, uint64_t pages, uint32_t most) {
    uint64_t got = 0;
    m->count = fq_input_alloc(&a->input, pages * FQ_PAGE, m->extents, most);
    CHECK(m->count <= most);
    mark(m, 1);
    for (uint32_t i = 0; i < m->count; i++) got += m->extents[i].length;
    CHECK(m->count == 0 || got == pages * FQ_PAGE);
    return m->count != 0;
}

static void give(arena *a, message *m) {
    mark(m, 0);
    fq_input_free(&a->input, m->extents, m->count);
    m->count = 0;
}

static uint64_t owned_pages(void) {
    uint64_t count = 0;
    for (int p = 0; p < PAGES; p++) count += owned[p];
    return count;
}

/* Runs of free pages, longest first, are all that a message of `pages` may need. */
static uint32_t pieces_needed(uint64_t pages) {
    static unsigned char left[PAGES];
    uint32_t pieces = 0;
    for (int p = 0; p < PAGES; p++) left[p] = !owned[p];
    while (pages > 0) {
        uint64_t best = 0, run = 0, end = 0;
        for (uint64_t p = 0; p < PAGES; p++) {
            run = left[p] ? run + 1 : 0;
            if (run > best) best = run, end = p + 1;
        }
        if (best == 0) return UINT32_MAX;
        memset(left + end - best, 0, best);
        pages -= best < pages ? best : pages;
        pieces++;
    }
    return pieces;
}

static void check_books(const arena *a) {
    CHECK_EQ(fq_input_check(&a->input), 0);
    CHECK_EQ(fq_input_used(&a->input), owned_pages() * FQ_PAGE);
    for (uint64_t p = KEPT; p < PAGES; p++) CHECK(owned[p] || punched[p]); /* all that is not used is the system's */
}

TEST(pages_never_overlap_and_all_memory_goes_back) {
    static arena a;
    static message messages[MESSAGES];
    int refused = 0;
    arena_init(&a);
    memset(messages, 0, sizeof messages);
    for (int step = 0; step < 20000; step++) {
        message *m = &messages[test_below(MESSAGES)];
        if (m->count) {
            give(&a, m);
        } else {
            uint64_t pages = 65 + test_below(test_below(4) ? 60 : 500);
            uint32_t most = 1 + (uint32_t)test_below(EXTENTS), needed = pieces_needed(pages);
            int taken = take(&a, m, pages, most);
            CHECK_EQ(taken, needed <= most); /* it is found if and only if it is there, */
            CHECK(!taken || m->count == needed); /* in as few pieces as can be */
            refused += !taken;
        }
        if (step % 16 == 0) check_books(&a);
    }
    CHECK(refused > 100);
    for (int i = 0; i < MESSAGES; i++) give(&a, &messages[i]);
    check_books(&a);
    message all;
    CHECK(take(&a, &all, PAGES, 1)); /* neighbours are one run again */
}

TEST(only_messages_above_an_eighth_of_the_head_lie_in_the_tail) {
    static arena a;
    fq_extent e[EXTENTS];
    arena_init(&a);
    uint64_t tail = fq_input_arena_bytes(BLOCKS), eighth = (uint64_t)BLOCKS * FQ_LARGE / 8;
    CHECK_EQ(eighth, FQ_LARGE);
    CHECK_EQ(fq_input_alloc(&a.input, eighth, e, EXTENTS), 1);
    CHECK(e[0].offset < tail);
    CHECK_EQ(fq_input_alloc(&a.input, eighth + 1, e, EXTENTS), 1);
    CHECK_EQ(e[0].offset, tail);
    CHECK_EQ(e[0].length, FQ_LARGE + FQ_PAGE);
    CHECK_EQ(a.input.spill.used_pages, 65);
}

TEST(what_no_tail_can_hold_is_the_heads) {
    static arena a;
    fq_extent e[EXTENTS];
    arena_init(&a);
    CHECK_EQ(fq_input_most(&a.input), (uint64_t)PAGES * FQ_PAGE);
    CHECK_EQ(fq_input_alloc(&a.input, fq_input_most(&a.input) + 1, e, EXTENTS), 0);
    fq_input_add_spill(&a.input, 100 * FQ_PAGE, 7, punch, a.spill_memory);
    CHECK_EQ(fq_input_most(&a.input), 6 * FQ_LARGE); /* three quarters of the head */
    CHECK_EQ(fq_input_alloc(&a.input, 101 * FQ_PAGE, e, EXTENTS), 1);
    CHECK(e[0].offset < fq_input_arena_bytes(BLOCKS));
}

TEST(a_full_tail_takes_nothing_of_the_head) {
    static arena a;
    message large, no;
    arena_init(&a);
    CHECK(take(&a, &large, PAGES, 1));
    CHECK(!take(&a, &no, 65, EXTENTS));
    CHECK_EQ(a.input.used_bytes, 0);
    CHECK_EQ(fq_input_alloc(&a.input, FQ_LARGE, no.extents, 1), 1); /* small ones do not notice */
}

TEST(runs_of_bits) {
    uint64_t bits[5], length;
    for (int step = 0; step < 20000; step++) {
        uint64_t from = test_below(300), end = from + test_below(300 - from + 1), count = 1 + test_below(80);
        for (int w = 0; w < 5; w++) bits[w] = test_below(3) ? test_random() | test_random() : ~0ull;
        uint64_t best = 0, run = 0, at = from;
        for (uint64_t p = from; p < end && best < count; p++) {
            run = fq_runs_has(bits, p) ? run + 1 : 0;
            if (run > best) best = run, at = p + 1 - run;
        }
        uint64_t found = fq_runs_find(bits, from, end, count, &length);
        CHECK_EQ(length, best);
        CHECK_EQ(found, at);
        fq_runs_set(bits, from, end, 0);
        CHECK_EQ(fq_runs_next(bits, from, end, 1), end);
        fq_runs_set(bits, from, end, 1);
        CHECK_EQ(fq_runs_next(bits, from, end, 0), end);
    }
}
