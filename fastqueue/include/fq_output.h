/* fq_output.h: the allocator of an output arena. Used by the worker that owns the arena, under its lock; all
 * bookkeeping is private memory of the worker.
 *
 * Memory is handed out in blocks, one per batch, of whole granules of 4 KB; given back in slices, one per request
 * and output, of any size. Each granule counts how many holders touch it: the batch while it runs, then every slice that
 * overlaps it. A granule whose count returns to 0 is free, whatever else of the block is still held: a reader that is slow
 * with one row of a large batch keeps that row's granules, not the batch.
 *
 * A block lies in the lowest run of free granules that has room: what was just given back is used again while it is in the
 * processor's cache, and memory that was never needed is never touched. Offset 0 to 4095 is the arena's header page, so 0 is
 * never the offset of a block.
 *
 * Behind the head may lie a sparse tail of the same memfd, for blocks above an eighth of the head, as long as one of that
 * size can fit there at all. There the lowest run is taken. A granule of the tail that nobody holds is free at once only
 * within the first `kept` ones; above, it is STALE until its memory has gone back to the system, which takes long and is
 * done without the lock: fq_output_take_stale, punch, fq_output_revive.
 */
#ifndef FQ_OUTPUT_H
#define FQ_OUTPUT_H

#include <string.h>

#include "fq_layout.h"
#include "fq_runs.h"

#define FQ_GRANULE 4096u

typedef struct fq_output {
    uint64_t granules; /* the header's granule included: it is never free */
    uint64_t head;     /* those of the head: the tail starts behind them */
    uint64_t kept;     /* from here on freed granules are stale */
    uint64_t free_granules;
    uint64_t free_tail;      /* those of the tail among them */
    uint64_t stale_granules; /* stale ones, and those that are being punched */
    uint64_t lowest; /* no granule of the head below it is free */
    uint64_t *free_bits;  /* caller's memory: a bit per granule */
    uint64_t *stale_bits; /* caller's memory: a bit per granule */
    uint16_t *holders;    /* caller's memory: a count per granule */
} fq_output;

static inline size_t fq_output_private_bytes(uint64_t granules) {
    return fq_runs_words(granules) * 2 * sizeof(uint64_t) + granules * sizeof(uint16_t);
}

/* An arena of `arena_bytes`, of which the last `tail_bytes` are the tail (0: none). */
static inline void fq_output_init(fq_output *output, uint64_t arena_bytes, uint64_t tail_bytes, void *private_memory) {
    uint64_t granules = arena_bytes / FQ_GRANULE, tail = tail_bytes / FQ_GRANULE, head = granules - tail;
    memset(private_memory, 0, fq_output_private_bytes(granules));
    *output = (fq_output){.granules = granules, .head = head, .kept = 2 * head, .lowest = 1};
    output->free_granules = granules - 1;
    output->free_tail = tail;
    output->free_bits = (uint64_t *)private_memory;
    output->stale_bits = output->free_bits + fq_runs_words(granules);
    output->holders = (uint16_t *)(output->stale_bits + fq_runs_words(granules));
    fq_runs_set(output->free_bits, 1, granules, 1);
    output->holders[0] = 1;
}

/* Whether `bytes` bytes are the tail's, of which one block may have a `share`th part. */
static inline int fq_output_spills(const fq_output *output, uint64_t bytes, uint64_t share) {
    uint64_t head = output->head * FQ_GRANULE, tail = (output->granules - output->head) * FQ_GRANULE;
    return bytes > head / 8 && bytes <= tail / share;
}

/* Bytes that one block can have at most, where it may have a `share`th part. */
static inline uint64_t fq_output_most(const fq_output *output, uint64_t share) {
    uint64_t head = (output->head - 1) * FQ_GRANULE / share, tail = (output->granules - output->head) * FQ_GRANULE / share;
    return head > tail ? head : tail;
}

/* The same of the head alone, or of the tail. */
static inline uint64_t fq_output_part(const fq_output *output, int tail, uint64_t share) {
    return (tail ? output->granules - output->head : output->head - 1) * FQ_GRANULE / share;
}

/* The start of a run of `count` free granules within [from, to), or 0. */
static inline uint64_t fq_output_find(const fq_output *output, uint64_t from, uint64_t to, uint64_t count) {
    uint64_t length, at = fq_runs_find(output->free_bits, from, to, count, &length);
    return length == count ? at : 0;
}

/* The lowest run of the tail or of the head, or 0. */
static inline uint64_t fq_output_place(fq_output *output, uint64_t count, int tail) {
    if (tail) return fq_output_find(output, output->head, output->granules, count);
    uint64_t at = fq_output_find(output, output->lowest, output->head, count);
    if (at == output->lowest) output->lowest = at + count;
    return at;
}

/* A block of at least `bytes` (at least 1), held once: its offset, or 0 when there is no such run now. */
static inline uint64_t fq_output_alloc(fq_output *output, uint64_t bytes, int tail) {
    uint64_t count = bytes / FQ_GRANULE + (bytes % FQ_GRANULE != 0);
    if (count == 0 || count > output->free_granules) return 0;
    uint64_t at = fq_output_place(output, count, tail);
    if (at == 0) return 0;
    fq_runs_set(output->free_bits, at, at + count, 0);
    for (uint64_t g = at; g < at + count; g++) output->holders[g] = 1;
    output->free_granules -= count;
    if (tail) output->free_tail -= count;
    return at * FQ_GRANULE;
}

/* One more holder of a slice within a block that is held. */
static inline void fq_output_hold(fq_output *output, fq_extent slice) {
    if (slice.length == 0) return;
    uint64_t last = (slice.offset + slice.length - 1) / FQ_GRANULE;
    for (uint64_t g = slice.offset / FQ_GRANULE; g <= last; g++) output->holders[g]++;
}

/* Nobody holds these any more. Returns how many are free: all or, of the tail, perhaps fewer. */
static inline uint64_t fq_output_unheld(fq_output *output, uint64_t from, uint64_t end) {
    uint64_t stale = end > output->kept ? (from > output->kept ? from : output->kept) : end;
    fq_runs_set(output->free_bits, from, stale, 1);
    fq_runs_set(output->stale_bits, stale, end, 1);
    output->free_granules += stale - from;
    if (from >= output->head) output->free_tail += stale - from;
    if (from < stale && from < output->lowest) output->lowest = from;
    output->stale_granules += end - stale;
    return stale - from;
}

/* One holder less. Returns how many granules became free. */
static inline uint64_t fq_output_drop(fq_output *output, fq_extent slice) {
    uint64_t freed = 0;
    if (slice.length == 0) return 0;
    uint64_t last = (slice.offset + slice.length - 1) / FQ_GRANULE, from = slice.offset / FQ_GRANULE;
    for (uint64_t g = from; g <= last; g++) {
        if (--output->holders[g] == 0) continue;
        freed += fq_output_unheld(output, from, g); /* those before it */
        from = g + 1;
    }
    return freed + fq_output_unheld(output, from, last + 1);
}

/* A run of at most `most` bytes of stale memory, whose turn to be punched it is: 1, or 0 when there is none. */
static inline int fq_output_take_stale(fq_output *output, uint64_t most, fq_extent *run) {
    uint64_t length, at = fq_runs_find(output->stale_bits, output->head, output->granules, most / FQ_GRANULE, &length);
    fq_runs_set(output->stale_bits, at, at + length, 0);
    *run = (fq_extent){at * FQ_GRANULE, length * FQ_GRANULE};
    return length != 0;
}

/* Its memory has gone back: it is free. */
static inline void fq_output_revive(fq_output *output, fq_extent run) {
    uint64_t at = run.offset / FQ_GRANULE, count = run.length / FQ_GRANULE;
    fq_runs_set(output->free_bits, at, at + count, 1);
    output->free_granules += count;
    output->free_tail += count;
    output->stale_granules -= count;
}

/* Granules of the tail that are not free. */
static inline uint64_t fq_output_spilled(const fq_output *output) {
    return output->granules - output->head - output->free_tail;
}

/* The number of the broken invariant, 0 when all hold. */
static inline int fq_output_check(const fq_output *output) {
    uint64_t free_granules = 0, free_tail = 0, held = 0;
    for (uint64_t g = 0; g < output->granules; g++) {
        int is_free = fq_runs_has(output->free_bits, g), is_stale = fq_runs_has(output->stale_bits, g);
        if (is_free + is_stale + (output->holders[g] != 0) > 1) return 1;
        free_granules += (uint64_t)is_free;
        free_tail += (uint64_t)(is_free && g >= output->head);
        held += output->holders[g] != 0;
        if (is_free && g < output->lowest) return 4;
    }
    if (free_granules != output->free_granules || free_tail != output->free_tail) return 2;
    return free_granules + held + output->stale_granules == output->granules ? 0 : 3;
}

#endif
