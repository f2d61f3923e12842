/* fq_input.h: the allocator of an input arena. Used by the front-end thread that owns the arena, and by nobody else;
 * all its bookkeeping is private memory of that thread, so nothing here is shared and nothing is atomic.
 *
 * The head of the arena is divided into large blocks of 256 KB. A large block is
 *
 *   WHOLE_FREE   nobody's
 *   WHOLE_USED   part of one message
 *   BROKEN       divided into 64 small blocks of 4 KB, each free or part of one message
 *
 * A message takes as few extents as possible: a run of small blocks up to 252 KB, above that a run of large
 * blocks whose last one is broken when only a part of it is needed. When no run is long enough it takes what
 * there is, piece by piece. The last quarter of the head takes only messages up to 256 KB, so that a few
 * large senders cannot starve the rest.
 *
 * Behind the head may lie a sparse tail (fq_spill.h). Messages above an eighth of the head, and above 256 KB, lie there and
 * nowhere else, as long as one of that size can fit there at all; a larger one, or one of an arena without a tail, is
 * the head's business after all.
 *
 * A message that is still arriving lies in one run that grows with it (fq_grow.h), and wishes for the blocks it will need. Who
 * takes small blocks leaves those alone as long as there are others.
 *
 * Offset 0 to 4095 is the arena's header page; the first large block starts at FQ_LARGE.
 */
#ifndef FQ_INPUT_H
#define FQ_INPUT_H

#include <string.h>

#include "fq_layout.h"
#include "fq_spill.h"

#define FQ_SMALL 4096u
#define FQ_LARGE 262144u
#define FQ_SMALLS 64u /* in a large block */

enum { FQ_WHOLE_FREE, FQ_WHOLE_USED, FQ_BROKEN };

typedef struct fq_input {
    uint32_t blocks;       /* large blocks of the head */
    uint32_t reserved_at;  /* from here on only for messages up to FQ_LARGE */
    uint32_t free_blocks;  /* WHOLE_FREE ones */
    uint32_t hint;         /* where to look for small blocks first */
    uint64_t used_bytes;   /* in blocks handed out */
    uint64_t *small_free;  /* caller's memory: per large block, a bit per free small block */
    uint64_t *wished;      /* likewise, per small block that a growing message hopes for; some may not be free */
    unsigned char *states; /* caller's memory: per large block */
    fq_spill spill;        /* without pages: there is no tail */
} fq_input;

/* Private memory for an arena whose head has `blocks` large blocks, in bytes (aligned to 8). */
static inline size_t fq_input_private_bytes(uint32_t blocks) { return blocks * (2 * sizeof(uint64_t) + 1u); }
static inline uint64_t fq_input_arena_bytes(uint32_t blocks) { return FQ_LARGE + (uint64_t)blocks * FQ_LARGE; }

static inline void fq_input_init(fq_input *input, uint32_t blocks, void *private_memory) {
    input->blocks = blocks;
    input->reserved_at = blocks - blocks / 4;
    input->free_blocks = blocks;
    input->hint = 0;
    input->used_bytes = 0;
    input->small_free = (uint64_t *)private_memory;
    input->wished = input->small_free + blocks;
    input->states = (unsigned char *)(input->wished + blocks);
    memset(private_memory, 0, fq_input_private_bytes(blocks));
    memset(input->small_free, 0xff, blocks * sizeof(uint64_t));
    input->spill = (fq_spill){.pages = 0};
}

/* Adds a tail of `bytes` bytes behind the head, of which as much as the head has stays ours once it was used. `fd` is the
 * arena's memfd, for `punch`; `private_memory` has fq_spill_private_bytes(bytes) bytes, zeroed. */
static inline void fq_input_add_spill(fq_input *input, uint64_t bytes, int fd, fq_punch *punch, void *private_memory) {
    uint64_t head = fq_input_arena_bytes(input->blocks);
    fq_spill_init(&input->spill, head, bytes, (uint64_t)input->blocks * FQ_LARGE, private_memory);
    input->spill.fd = fd;
    input->spill.punch = punch;
}

static inline int fq_input_spills(const fq_input *input, uint64_t bytes) {
    uint64_t eighth = (uint64_t)input->blocks * FQ_LARGE / 8;
    return bytes > FQ_LARGE && bytes > eighth && bytes <= input->spill.pages * FQ_PAGE;
}

/* Bytes that one message can have at most, when nothing else is there. */
static inline uint64_t fq_input_most(const fq_input *input) {
    uint64_t head = input->reserved_at * (uint64_t)FQ_LARGE, tail = input->spill.pages * FQ_PAGE;
    return head > tail ? head : tail;
}

static inline uint64_t fq_input_used(const fq_input *input) { return input->used_bytes + input->spill.used_pages * FQ_PAGE; }

static inline uint64_t fq_input_offset(uint32_t block) { return FQ_LARGE + (uint64_t)block * FQ_LARGE; }

static inline uint64_t fq_small_mask(uint32_t first, uint32_t count) {
    return (count >= 64 ? ~0ull : (1ull << count) - 1) << first;
}

/* The first run of `count` set bits, or 64. */
static inline uint32_t fq_bit_run(uint64_t bits, uint32_t count) {
    for (uint32_t have = 1; have < count && bits;) {
        uint32_t step = have < count - have ? have : count - have;
        bits &= bits >> step;
        have += step;
    }
    return bits ? (uint32_t)__builtin_ctzll(bits) : 64;
}

static inline void fq_input_break(fq_input *input, uint32_t block) {
    input->states[block] = FQ_BROKEN;
    input->free_blocks--;
}

static inline void fq_input_take_smalls(fq_input *input, uint32_t block, uint32_t first, uint32_t count) {
    input->small_free[block] &= ~fq_small_mask(first, count);
    input->used_bytes += (uint64_t)count * FQ_SMALL;
}

/* A run of `count` (1 to 64) small blocks below large block `limit`, wished-for ones only if `wished_too`. 1 when found. */
static inline int fq_input_smalls_but(fq_input *input, uint32_t count, uint32_t limit, int wished_too, fq_extent *out) {
    uint32_t fresh = limit;
    for (uint32_t i = 0; i < limit; i++) {
        uint32_t block = input->hint + i < limit ? input->hint + i : input->hint + i - limit;
        uint64_t without = wished_too ? 0 : input->wished[block];
        if (input->states[block] == FQ_WHOLE_FREE && fresh == limit && !without) fresh = block;
        if (input->states[block] != FQ_BROKEN) continue;
        uint32_t first = fq_bit_run(input->small_free[block] & ~without, count);
        if (first == 64) continue;
        fq_input_take_smalls(input, block, first, count);
        input->hint = block;
        *out = (fq_extent){fq_input_offset(block) + (uint64_t)first * FQ_SMALL, (uint64_t)count * FQ_SMALL};
        return 1;
    }
    if (fresh == limit) return 0;
    fq_input_break(input, fresh);
    fq_input_take_smalls(input, fresh, 0, count);
    input->hint = fresh;
    *out = (fq_extent){fq_input_offset(fresh), (uint64_t)count * FQ_SMALL};
    return 1;
}

static inline int fq_input_smalls(fq_input *input, uint32_t count, uint32_t limit, fq_extent *out) {
    return fq_input_smalls_but(input, count, limit, 0, out) || fq_input_smalls_but(input, count, limit, 1, out);
}

/* The longest run of WHOLE_FREE blocks below `limit`, not longer than `wanted`. Returns its length. */
static inline uint32_t fq_input_longest_run(const fq_input *input, uint32_t wanted, uint32_t limit, uint32_t *first) {
    uint32_t best = 0, run = 0;
    for (uint32_t block = 0; block < limit && best < wanted; block++) {
        run = input->states[block] == FQ_WHOLE_FREE ? run + 1 : 0;
        if (run > best) {
            best = run;
            *first = block + 1 - run;
        }
    }
    return best;
}

/* Takes `run` blocks at `first` for up to `bytes` bytes; the last one is broken when a part of it suffices. */
static inline uint64_t fq_input_take_run(fq_input *input, uint32_t first, uint32_t run, uint64_t bytes) {
    uint64_t taken = 0;
    for (uint32_t i = 0; i < run; i++) {
        uint64_t left = bytes - taken;
        uint32_t smalls = left >= FQ_LARGE ? FQ_SMALLS : (uint32_t)((left + FQ_SMALL - 1) / FQ_SMALL);
        fq_input_break(input, first + i);
        if (smalls == FQ_SMALLS) input->states[first + i] = FQ_WHOLE_USED;
        fq_input_take_smalls(input, first + i, 0, smalls);
        taken += (uint64_t)smalls * FQ_SMALL;
    }
    return taken;
}

static inline void fq_input_free(fq_input *input, const fq_extent *extents, uint32_t count);

/* Memory for `bytes` (at least 1): the number of extents written to `out`, at most `most`; 0 when the arena cannot give
 * it now, and nothing was taken. Extents are whole blocks; the last may be longer than asked for. */
static inline uint32_t fq_input_alloc(fq_input *input, uint64_t bytes, fq_extent *out, uint32_t most) {
    uint32_t limit = bytes <= FQ_LARGE ? input->blocks : input->reserved_at;
    uint32_t count = 0;
    if (most == 0) return 0;
    if (bytes <= FQ_LARGE) {
        uint32_t smalls = (uint32_t)((bytes + FQ_SMALL - 1) / FQ_SMALL);
        return (uint32_t)fq_input_smalls(input, smalls, limit, out);
    }
    if (fq_input_spills(input, bytes)) return fq_spill_take(&input->spill, bytes, out, most);
    for (uint64_t taken = 0; taken < bytes;) {
        uint32_t first = 0, wanted = (uint32_t)((bytes - taken + FQ_LARGE - 1) / FQ_LARGE);
        uint32_t run = fq_input_longest_run(input, wanted, limit, &first);
        if (run == 0 || count == most) {
            fq_input_free(input, out, count);
            return 0;
        }
        out[count].offset = fq_input_offset(first);
        out[count].length = fq_input_take_run(input, first, run, bytes - taken);
        taken += out[count++].length;
    }
    return count;
}

static inline void fq_input_free_block(fq_input *input, uint32_t block, uint32_t first, uint32_t smalls) {
    input->small_free[block] |= fq_small_mask(first, smalls);
    input->used_bytes -= (uint64_t)smalls * FQ_SMALL;
    if (block < input->hint) input->hint = block; /* memory that was used before is in the cache, and faulted in */
    if (input->small_free[block] != ~0ull) return;
    input->states[block] = FQ_WHOLE_FREE;
    input->free_blocks++;
}

static inline void fq_input_free_blocks(fq_input *input, fq_extent extent) {
    uint64_t at = extent.offset - FQ_LARGE, end = at + extent.length;
    while (at < end) {
        uint32_t block = (uint32_t)(at / FQ_LARGE), first = (uint32_t)(at % FQ_LARGE / FQ_SMALL);
        uint32_t smalls = FQ_SMALLS - first;
        if ((end - at) / FQ_SMALL < smalls) smalls = (uint32_t)((end - at) / FQ_SMALL);
        fq_input_free_block(input, block, first, smalls);
        at += (uint64_t)smalls * FQ_SMALL;
    }
}

/* Gives back extents as fq_input_alloc wrote them. */
static inline void fq_input_free(fq_input *input, const fq_extent *extents, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (extents[i].offset < fq_input_arena_bytes(input->blocks)) fq_input_free_blocks(input, extents[i]);
        else fq_spill_give(&input->spill, extents[i]);
    }
}

/* The number of the broken invariant, 0 when all hold. */
static inline int fq_input_check(const fq_input *input) {
    uint32_t free_blocks = 0;
    uint64_t used = 0;
    for (uint32_t block = 0; block < input->blocks; block++) {
        uint32_t smalls = (uint32_t)__builtin_popcountll(input->small_free[block]);
        if (input->states[block] == FQ_WHOLE_FREE) free_blocks++;
        if (input->states[block] == FQ_WHOLE_USED && smalls != 0) return 1;
        if (input->states[block] == FQ_BROKEN && smalls == FQ_SMALLS) return 2;
        if (input->states[block] != FQ_WHOLE_FREE) used += (uint64_t)(FQ_SMALLS - smalls) * FQ_SMALL;
    }
    if (free_blocks != input->free_blocks) return 3;
    if (used != input->used_bytes) return 4;
    return fq_spill_check(&input->spill);
}

#endif
