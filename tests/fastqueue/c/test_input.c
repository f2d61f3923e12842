/* The input arena's allocator against a model that knows who owns each small block. */
#include "check.h"
#include "fq_input.h"

enum { BLOCKS = 16, SMALLS = BLOCKS * 64, MESSAGES = 48, EXTENTS = 16 };

typedef struct arena {
    fq_input input;
    uint64_t private_memory[(BLOCKS * 17 + 7) / 8];
    unsigned char owned[SMALLS]; /* 0: free */
} arena;

typedef struct message {
    uint32_t count;
    uint64_t bytes;
    fq_extent extents[EXTENTS];
} message;

static void arena_init(arena *a) {
    CHECK(fq_input_private_bytes(BLOCKS) <= sizeof a->private_memory);
    memset(a, 0, sizeof *a);
    memset(a->private_memory, 0xff, sizeof a->private_memory); /* init must not rely on zeroes */
    fq_input_init(&a->input, BLOCKS, a->private_memory);
}

static uint32_t small_at(uint64_t offset) { return (uint32_t)((offset - FQ_LARGE) / FQ_SMALL); }

static uint64_t mark(arena *a, const message *m, int owned) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        const fq_extent *e = &m->extents[i];
        CHECK(e->offset >= FQ_LARGE && e->offset + e->length <= fq_input_arena_bytes(BLOCKS));
        CHECK(e->length > 0 && e->offset % FQ_SMALL == 0 && e->length % FQ_SMALL == 0);
        for (uint32_t s = 0; s < e->length / FQ_SMALL; s++) {
            CHECK_EQ(a->owned[small_at(e->offset) + s], !owned); /* given twice, or freed twice */
            a->owned[small_at(e->offset) + s] = (unsigned char)owned;
        }
        bytes += e->length;
    }
    return bytes;
}

static int take(arena *a, message *m, uint64_t bytes, uint32_t most) {
    m->bytes = bytes;
    m->count = fq_input_alloc(&a->input, bytes, m->extents, most);
    CHECK(m->count <= most);
    if (m->count == 0) return 0;
    uint64_t got = mark(a, m, 1);
    CHECK(got >= bytes && got - bytes < FQ_SMALL); /* nothing is wasted but the end of the last block */
    return 1;
}

static void give(arena *a, message *m) {
    (void)mark(a, m, 0);
    fq_input_free(&a->input, m->extents, m->count);
    m->count = 0;
}

static void check_books(const arena *a) {
    uint64_t owned = 0;
    for (int s = 0; s < SMALLS; s++) owned += a->owned[s];
    CHECK_EQ(fq_input_check(&a->input), 0);
    CHECK_EQ(a->input.used_bytes, owned * FQ_SMALL);
}

static uint64_t random_size(void) {
    switch (test_below(4)) {
    case 0: return 1 + test_below(FQ_SMALL);
    case 1: return 1 + test_below(FQ_LARGE);
    case 2: return FQ_LARGE - 8 + test_below(16);
    default: return 1 + test_below(5 * FQ_LARGE);
    }
}

TEST(extents_never_overlap_and_all_memory_comes_back) {
    static arena a;
    static message messages[MESSAGES];
    int refused = 0;
    arena_init(&a);
    memset(messages, 0, sizeof messages);
    for (int step = 0; step < 30000; step++) {
        message *m = &messages[test_below(MESSAGES)];
        if (m->count)
            give(&a, m);
        else
            refused += !take(&a, m, random_size(), 1 + (uint32_t)test_below(EXTENTS));
        check_books(&a);
    }
    CHECK(refused > 100); /* the arena was full now and then, else little was tested */
    for (int i = 0; i < MESSAGES; i++) give(&a, &messages[i]);
    CHECK_EQ(a.input.used_bytes, 0);
    CHECK_EQ(a.input.free_blocks, BLOCKS);
    check_books(&a);
}

TEST(a_refusal_takes_nothing) {
    static arena a;
    message all[BLOCKS], no;
    arena_init(&a);
    for (int i = 0; i < BLOCKS; i += 2) { /* every second block: no two large ones in a row */
        CHECK(take(&a, &all[i], FQ_LARGE, 1));
        CHECK(take(&a, &all[i + 1], FQ_LARGE, 1));
    }
    for (int i = 0; i < BLOCKS; i += 2) give(&a, &all[i]);
    uint64_t used = a.input.used_bytes;
    CHECK(!take(&a, &no, 3 * FQ_LARGE, 2)); /* needs three pieces */
    CHECK(!take(&a, &no, 9 * FQ_LARGE, EXTENTS)); /* more than there is */
    CHECK(!take(&a, &no, 1, 0));
    CHECK_EQ(a.input.used_bytes, used);
    check_books(&a);
    CHECK(take(&a, &no, 3 * FQ_LARGE, 3));
    CHECK_EQ(no.count, 3);
}

TEST(a_message_lies_in_one_piece_while_there_is_one) {
    static arena a;
    message m;
    arena_init(&a);
    uint64_t limit = BLOCKS - BLOCKS / 4;
    CHECK(take(&a, &m, limit * FQ_LARGE, EXTENTS));
    CHECK_EQ(m.count, 1);
    give(&a, &m);
    for (uint64_t bytes = 1; bytes <= FQ_LARGE; bytes += FQ_SMALL - 1) {
        CHECK(take(&a, &m, bytes, 1));
        give(&a, &m);
    }
    CHECK(take(&a, &m, FQ_LARGE + 1, EXTENTS)); /* a large block and one small one behind it */
    CHECK(m.count == 1 && m.extents[0].length == FQ_LARGE + FQ_SMALL);
}

TEST(the_last_quarter_is_kept_for_small_messages) {
    static arena a;
    message large[BLOCKS], small[SMALLS], no;
    int larges = 0, smalls = 0;
    arena_init(&a);
    while (take(&a, &large[larges], FQ_LARGE + FQ_SMALL, EXTENTS)) larges++;
    CHECK(larges > 0);
    CHECK(!take(&a, &no, FQ_LARGE + 1, EXTENTS));
    for (int i = 0; i < BLOCKS / 4 * 64; i++) CHECK_EQ(a.owned[SMALLS - 1 - i], 0);
    for (int i = 0; i < BLOCKS / 4; i++) { /* four messages of the largest size that counts as small */
        CHECK(take(&a, &small[smalls], FQ_LARGE, 1));
        smalls++;
    }
    while (smalls < SMALLS && take(&a, &small[smalls], FQ_SMALL, 1)) smalls++;
    CHECK_EQ(a.input.used_bytes, (uint64_t)SMALLS * FQ_SMALL); /* and small ones use all there is */
    check_books(&a);
}

TEST(small_messages_fill_a_broken_block_before_they_break_another) {
    static arena a;
    message m[64];
    arena_init(&a);
    for (int i = 0; i < 64; i++) CHECK(take(&a, &m[i], FQ_SMALL, 1));
    CHECK_EQ(a.input.free_blocks, BLOCKS - 1);
    for (int i = 1; i < 64; i += 2) give(&a, &m[i]); /* holes of one */
    message two;
    CHECK(take(&a, &two, 2 * FQ_SMALL, 1)); /* does not fit into a hole */
    CHECK_EQ(a.input.free_blocks, BLOCKS - 2);
    for (int i = 0; i < 64; i += 2) give(&a, &m[i]);
    CHECK_EQ(a.input.free_blocks, BLOCKS - 1); /* whole again */
    check_books(&a);
}

TEST(bit_runs) {
    CHECK_EQ(fq_bit_run(~0ull, 64), 0);
    CHECK_EQ(fq_bit_run(~0ull << 1, 64), 64);
    CHECK_EQ(fq_bit_run(0, 1), 64);
    for (int step = 0; step < 100000; step++) {
        uint64_t bits = test_random() | test_random() | (test_below(2) ? test_random() << 32 : 0);
        uint32_t count = 1 + (uint32_t)test_below(64), at = 0;
        while (at + count <= 64 && (bits & fq_small_mask(at, count)) != fq_small_mask(at, count)) at++;
        CHECK_EQ(fq_bit_run(bits, count), at + count <= 64 ? at : 64);
    }
}
