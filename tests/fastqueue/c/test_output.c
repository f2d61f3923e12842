/* The output arena's allocator against a model that knows who holds each granule. */
#include "check.h"
#include "fq_output.h"

enum { GRANULES = 200, BLOCKS = 24, SLICES = 6 };

typedef struct block {
    fq_extent whole; /* length 0: none */
    int held;        /* by its batch */
    fq_extent slices[SLICES];
} block;

typedef struct arena {
    fq_output output;
    uint64_t private_memory[2 * ((GRANULES + 63) / 64) + (GRANULES * 2 + 7) / 8];
    int holders[GRANULES];
} arena;

static void arena_init(arena *a) {
    CHECK(fq_output_private_bytes(GRANULES) <= sizeof a->private_memory);
    memset(a, 0, sizeof *a);
    memset(a->private_memory, 0xff, sizeof a->private_memory);
    fq_output_init(&a->output, GRANULES * FQ_GRANULE + 100, 0, a->private_memory); /* a part of a granule is not used */
    a->holders[0] = 1;
}

/* Adds to the model's counts; how many granules came to 0. */
static uint64_t count(arena *a, fq_extent e, int by) {
    uint64_t freed = 0;
    if (e.length == 0) return 0;
    for (uint64_t g = e.offset / FQ_GRANULE; g <= (e.offset + e.length - 1) / FQ_GRANULE; g++) {
        CHECK(g > 0 && g < GRANULES);
        a->holders[g] += by;
        CHECK(a->holders[g] >= 0);
        freed += a->holders[g] == 0;
    }
    return freed;
}

static void check_books(const arena *a) {
    uint64_t free_granules = 0;
    CHECK_EQ(fq_output_check(&a->output), 0);
    for (uint64_t g = 0; g < GRANULES; g++) {
        CHECK_EQ(a->output.holders[g], a->holders[g]);
        free_granules += a->holders[g] == 0;
    }
    CHECK_EQ(a->output.free_granules, free_granules);
}

static int longest_free_run(const arena *a) {
    int best = 0, run = 0;
    for (int g = 0; g < GRANULES; g++) {
        run = a->holders[g] == 0 ? run + 1 : 0;
        if (run > best) best = run;
    }
    return best;
}

static int take(arena *a, block *b, uint64_t bytes) {
    uint64_t at = fq_output_alloc(&a->output, bytes, 0);
    int fits = (int)((bytes + FQ_GRANULE - 1) / FQ_GRANULE) <= longest_free_run(a);
    CHECK_EQ(at != 0, fits); /* it is found if and only if it is there */
    if (at == 0) return 0;
    CHECK_EQ(at % FQ_GRANULE, 0);
    *b = (block){.whole = {at, bytes}, .held = 1};
    for (uint64_t g = at / FQ_GRANULE; g <= (at + bytes - 1) / FQ_GRANULE; g++) CHECK_EQ(a->holders[g], 0);
    (void)count(a, b->whole, 1);
    return 1;
}

static void drop(arena *a, fq_extent *e) {
    uint64_t freed = count(a, *e, -1);
    CHECK_EQ(fq_output_drop(&a->output, *e), freed);
    e->length = 0;
}

/* The batch cuts its block into slices, holds each for its reader, and lets go of the block. */
static void cut(arena *a, block *b) {
    uint64_t at = b->whole.offset, end = at + b->whole.length;
    for (int i = 0; i < SLICES; i++) {
        uint64_t length = i == SLICES - 1 ? end - at : test_below(end - at + 1);
        b->slices[i] = (fq_extent){at, length};
        fq_output_hold(&a->output, b->slices[i]);
        (void)count(a, b->slices[i], 1);
        at += length;
    }
    drop(a, &b->whole);
    b->held = 0;
}

static void step(arena *a, block *b) {
    fq_extent *slice = &b->slices[test_below(SLICES)];
    if (b->held)
        cut(a, b);
    else if (slice->length)
        drop(a, slice);
    else
        for (int i = 0; i < SLICES; i++)
            if (b->slices[i].length) return;
}

static int is_gone(const block *b) {
    for (int i = 0; i < SLICES; i++)
        if (b->slices[i].length) return 0;
    return !b->held;
}

TEST(blocks_never_overlap_and_all_memory_comes_back) {
    static arena a;
    static block blocks[BLOCKS];
    int refused = 0;
    arena_init(&a);
    memset(blocks, 0, sizeof blocks);
    for (int i = 0; i < 40000; i++) {
        block *b = &blocks[test_below(BLOCKS)];
        if (is_gone(b))
            refused += !take(&a, b, 1 + test_below((test_below(4) ? 12 : 90) * FQ_GRANULE));
        else
            step(&a, b);
        check_books(&a);
    }
    CHECK(refused > 100);
    for (int i = 0; i < BLOCKS; i++)
        while (!is_gone(&blocks[i])) step(&a, &blocks[i]);
    check_books(&a);
    CHECK_EQ(a.output.free_granules, GRANULES - 1);
    CHECK_EQ(fq_output_alloc(&a.output, fq_output_most(&a.output, 1), 0), FQ_GRANULE);
}

TEST(a_slow_reader_keeps_its_granules_and_no_more) {
    static arena a;
    block b;
    arena_init(&a);
    CHECK(take(&a, &b, 10 * FQ_GRANULE));
    fq_extent slow = {b.whole.offset + 3 * FQ_GRANULE + 100, 200};
    fq_output_hold(&a.output, slow);
    CHECK_EQ(fq_output_drop(&a.output, b.whole), 9);
    CHECK_EQ(a.output.free_granules, GRANULES - 2);
    CHECK_EQ(fq_output_drop(&a.output, slow), 1);
}

TEST(neighbours_in_one_granule_are_counted_apart) {
    static arena a;
    block b;
    arena_init(&a);
    CHECK(take(&a, &b, FQ_GRANULE));
    fq_extent left = {b.whole.offset, 64}, right = {b.whole.offset + 64, 64};
    fq_output_hold(&a.output, left);
    fq_output_hold(&a.output, right);
    CHECK_EQ(fq_output_drop(&a.output, b.whole), 0);
    CHECK_EQ(fq_output_drop(&a.output, left), 0);
    CHECK_EQ(fq_output_drop(&a.output, right), 1);
}

TEST(what_cannot_fit_is_refused) {
    static arena a;
    arena_init(&a);
    CHECK_EQ(fq_output_most(&a.output, 1), (GRANULES - 1) * FQ_GRANULE);
    CHECK_EQ(fq_output_alloc(&a.output, 0, 0), 0);
    CHECK_EQ(fq_output_alloc(&a.output, fq_output_most(&a.output, 1) + 1, 0), 0);
    CHECK_EQ(fq_output_alloc(&a.output, UINT64_MAX, 0), 0);
    CHECK_EQ(fq_output_alloc(&a.output, UINT64_MAX - FQ_GRANULE, 0), 0);
    check_books(&a);
}

TEST(a_slice_of_nothing_holds_nothing) {
    static arena a;
    arena_init(&a);
    fq_output_hold(&a.output, (fq_extent){FQ_GRANULE, 0});
    CHECK_EQ(fq_output_drop(&a.output, (fq_extent){FQ_GRANULE, 0}), 0);
    check_books(&a);
}

/* ---- the tail ---- */

enum { TAIL = 120, HEAD = GRANULES - TAIL };

static void tail_init(arena *a) {
    arena_init(a);
    fq_output_init(&a->output, GRANULES * FQ_GRANULE, TAIL * FQ_GRANULE, a->private_memory);
}

TEST(only_blocks_above_an_eighth_of_the_head_spill) {
    static arena a;
    tail_init(&a);
    CHECK(!fq_output_spills(&a.output, HEAD * FQ_GRANULE / 8, 1));
    CHECK(fq_output_spills(&a.output, HEAD * FQ_GRANULE / 8 + 1, 1));
    CHECK(fq_output_spills(&a.output, TAIL * FQ_GRANULE, 1));
    CHECK(!fq_output_spills(&a.output, TAIL * FQ_GRANULE + 1, 1)); /* no room at all: the head's */
    CHECK(!fq_output_spills(&a.output, TAIL * FQ_GRANULE / 2 + 1, 2));
    CHECK_EQ(fq_output_most(&a.output, 1), TAIL * FQ_GRANULE);
    CHECK_EQ(fq_output_alloc(&a.output, TAIL * FQ_GRANULE, 1), HEAD * FQ_GRANULE);
    CHECK_EQ(fq_output_alloc(&a.output, 1, 1), 0);
    CHECK_EQ(fq_output_alloc(&a.output, 1, 0), FQ_GRANULE); /* the head is another matter */
    CHECK_EQ(fq_output_spilled(&a.output), TAIL);
    CHECK_EQ(fq_output_check(&a.output), 0);
}

TEST(what_the_tail_had_is_free_when_it_went_back) {
    static arena a;
    fq_extent run, all = {HEAD * FQ_GRANULE, TAIL * FQ_GRANULE};
    uint64_t kept = 2 * HEAD - HEAD, stale = TAIL - kept; /* as many stay as the head has */
    tail_init(&a);
    CHECK_EQ(fq_output_alloc(&a.output, all.length, 1), all.offset);
    CHECK_EQ(fq_output_drop(&a.output, all), kept);
    CHECK_EQ(fq_output_alloc(&a.output, all.length, 1), 0); /* not before it is the system's again */
    CHECK_EQ(fq_output_check(&a.output), 0);
    uint64_t seen = 0;
    while (fq_output_take_stale(&a.output, 16 * FQ_GRANULE, &run)) {
        CHECK(run.offset >= (HEAD + kept) * FQ_GRANULE && run.length <= 16 * FQ_GRANULE);
        CHECK_EQ(fq_output_check(&a.output), 0); /* in nobody's hands */
        fq_output_revive(&a.output, run);
        seen += run.length / FQ_GRANULE;
    }
    CHECK_EQ(seen, stale);
    CHECK_EQ(fq_output_spilled(&a.output), 0);
    CHECK_EQ(fq_output_check(&a.output), 0);
    CHECK_EQ(fq_output_alloc(&a.output, all.length, 1), all.offset);
}

TEST(a_slow_reader_of_a_spilled_block_keeps_its_granules_and_no_more) {
    static arena a;
    tail_init(&a);
    fq_extent block = {fq_output_alloc(&a.output, 100 * FQ_GRANULE, 1), 100 * FQ_GRANULE}, run;
    fq_extent slow = {block.offset + 90 * FQ_GRANULE + 5, 10};
    fq_output_hold(&a.output, slow);
    (void)fq_output_drop(&a.output, block);
    while (fq_output_take_stale(&a.output, FQ_GRANULE * TAIL, &run)) fq_output_revive(&a.output, run);
    CHECK_EQ(fq_output_spilled(&a.output), 1);
    (void)fq_output_drop(&a.output, slow);
    CHECK(fq_output_take_stale(&a.output, FQ_GRANULE * TAIL, &run));
    CHECK_EQ(run.offset, block.offset + 90 * FQ_GRANULE);
}
