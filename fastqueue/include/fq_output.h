/* fq_output.h: the allocator of an output arena. Used by the worker that owns the arena, under its lock; all
 * bookkeeping is private memory of the worker.
 *
 * Memory is handed out in blocks, one per batch, of whole granules of 4 KB; given back in slices, one per request
 * and output, of any size. Each granule counts how many holders touch it: the batch while it runs, then every slice that
 * overlaps it. A granule whose count returns to 0 is free, whatever else of the block is still held: a reader that is slow
 * with one row of a large batch keeps that row's granules, not the batch.
 *
 * Blocks are found next-fit over a bitmap of free granules. Offset 0 to 4095 is the arena's header page, so 0 is
 * never the offset of a block.
 */
#ifndef FQ_OUTPUT_H
#define FQ_OUTPUT_H

#include <string.h>

#include "fq_layout.h"

#define FQ_GRANULE 4096u

typedef struct fq_output {
    uint64_t granules; /* the header's granule included: it is never free */
    uint64_t free_granules;
    uint64_t hint;
    uint64_t *free_bits; /* caller's memory: a bit per granule */
    uint16_t *holders;   /* caller's memory: a count per granule */
} fq_output;

static inline uint64_t fq_output_words(uint64_t granules) { return (granules + 63) / 64; }
static inline size_t fq_output_private_bytes(uint64_t granules) {
    return fq_output_words(granules) * 8 + granules * sizeof(uint16_t);
}

static inline void fq_output_init(fq_output *output, uint64_t arena_bytes, void *private_memory) {
    uint64_t granules = arena_bytes / FQ_GRANULE;
    memset(private_memory, 0, fq_output_private_bytes(granules));
    output->granules = granules;
    output->free_granules = granules - 1;
    output->hint = 1;
    output->free_bits = (uint64_t *)private_memory;
    output->holders = (uint16_t *)(output->free_bits + fq_output_words(granules));
    for (uint64_t g = 1; g < granules; g++) output->free_bits[g / 64] |= 1ull << (g % 64);
    output->holders[0] = 1;
}

static inline int fq_output_is_free(const fq_output *output, uint64_t g) {
    return (int)(output->free_bits[g / 64] >> (g % 64) & 1);
}

/* The first granule in [from, to) that is free (or, with `free` 0, taken); `to` when there is none. */
static inline uint64_t fq_output_next(const fq_output *output, uint64_t from, uint64_t to, int free) {
    while (from < to) {
        uint64_t word = output->free_bits[from / 64];
        uint64_t bits = (free ? word : ~word) >> (from % 64);
        if (bits) {
            uint64_t at = from + (uint64_t)__builtin_ctzll(bits);
            return at < to ? at : to;
        }
        from = (from / 64 + 1) * 64;
    }
    return to;
}

/* The start of a run of `count` free granules within [from, to), or 0. */
static inline uint64_t fq_output_find(const fq_output *output, uint64_t from, uint64_t to, uint64_t count) {
    for (uint64_t at = from; at < to;) {
        at = fq_output_next(output, at, to, 1);
        uint64_t end = fq_output_next(output, at, at + count < to ? at + count : to, 0);
        if (end - at == count) return at;
        at = end;
    }
    return 0;
}

/* A block of at least `bytes` (at least 1), held once: its offset, or 0 when there is no such run now. */
static inline uint64_t fq_output_alloc(fq_output *output, uint64_t bytes) {
    uint64_t count = (bytes + FQ_GRANULE - 1) / FQ_GRANULE;
    if (count == 0 || count > output->free_granules) return 0;
    uint64_t at = fq_output_find(output, output->hint, output->granules, count);
    if (at == 0) at = fq_output_find(output, 1, output->granules, count);
    if (at == 0) return 0;
    for (uint64_t g = at; g < at + count; g++) {
        output->free_bits[g / 64] &= ~(1ull << (g % 64));
        output->holders[g] = 1;
    }
    output->free_granules -= count;
    output->hint = at + count < output->granules ? at + count : 1;
    return at * FQ_GRANULE;
}

/* One more holder of a slice within a block that is held. */
static inline void fq_output_hold(fq_output *output, fq_extent slice) {
    if (slice.length == 0) return;
    uint64_t last = (slice.offset + slice.length - 1) / FQ_GRANULE;
    for (uint64_t g = slice.offset / FQ_GRANULE; g <= last; g++) output->holders[g]++;
}

/* One holder less. Returns how many granules became free. */
static inline uint64_t fq_output_drop(fq_output *output, fq_extent slice) {
    uint64_t freed = 0;
    if (slice.length == 0) return 0;
    uint64_t last = (slice.offset + slice.length - 1) / FQ_GRANULE;
    for (uint64_t g = slice.offset / FQ_GRANULE; g <= last; g++) {
        if (--output->holders[g] != 0) continue;
        output->free_bits[g / 64] |= 1ull << (g % 64);
        freed++;
    }
    output->free_granules += freed;
    return freed;
}

/* Bytes that one block can have at most. */
static inline uint64_t fq_output_capacity(const fq_output *output) { return (output->granules - 1) * FQ_GRANULE; }

/* The number of the broken invariant, 0 when all hold. */
static inline int fq_output_check(const fq_output *output) {
    uint64_t free_granules = 0;
    for (uint64_t g = 0; g < output->granules; g++) {
        int is_free = fq_output_is_free(output, g);
        if (is_free != (output->holders[g] == 0)) return 1;
        free_granules += (uint64_t)is_free;
    }
    return free_granules == output->free_granules ? 0 : 2;
}

#endif
