/* fq_grow.h: memory for a message while it arrives: one run of pages, in the head or in the tail of an input arena, that
 * grows where it lies. Used by the front-end thread that owns the arena, and by nobody else.
 *
 * What a message takes follows what has come of it, not what was announced. But where it is put follows the announcement:
 * where all of it would fit, if there is such a place, so that it need not be moved later. The pages that it hopes for are
 * marked as wished: others take them only when there is nothing else, and then the message is moved after all. So a wish costs
 * nobody memory, and one that comes to nothing costs at most a copy.
 *
 * A growing message has the head below its last quarter, whatever its size: half of a message shall not keep out a whole one.
 */
#ifndef FQ_GROW_H
#define FQ_GROW_H

#include "fq_input.h"

/* One of the two parts of an arena, as pages. */
typedef struct fq_region {
    uint64_t *free_bits;
    uint64_t *wished;
    uint64_t pages; /* that growing messages may have */
    uint64_t offset; /* of its first page in the arena */
} fq_region;

_Static_assert(FQ_SMALL == FQ_PAGE, "a small block of the head is a page, as in the tail");

/* Where a message of `whole` bytes lies, once it is there. */
static inline fq_region fq_grow_region(const fq_input *input, uint64_t whole) {
    const fq_spill *spill = &input->spill;
    if (fq_input_spills(input, whole)) return (fq_region){spill->free_bits, spill->wished, spill->pages, spill->offset};
    return (fq_region){input->small_free, input->wished, (uint64_t)input->reserved_at * FQ_SMALLS, FQ_LARGE};
}

static inline uint64_t fq_grow_pages(uint64_t bytes) { return (bytes + FQ_PAGE - 1) / FQ_PAGE; }

/* The first run of `count` free pages that nobody wishes for, or the region's end. */
static inline uint64_t fq_grow_find(const fq_region *r, uint64_t count) {
    for (uint64_t at = 0; at < r->pages;) {
        at = fq_runs_next(r->free_bits, at, r->pages, 1);
        uint64_t most = count < r->pages - at ? at + count : r->pages;
        uint64_t end = fq_runs_next(r->wished, at, fq_runs_next(r->free_bits, at, most, 0), 1);
        if (end - at == count) return at;
        at = end == at ? fq_runs_next(r->wished, at, r->pages, 0) : end;
    }
    return r->pages;
}

/* Where a message begins that takes `need` pages now and `whole` in the end: where there is most room. Or the region's end. */
static inline uint64_t fq_grow_place(const fq_region *r, uint64_t need, uint64_t whole) {
    uint64_t length, at = fq_grow_find(r, whole);
    if (at < r->pages) return at;
    at = fq_grow_find(r, need);
    if (at < r->pages) return at;
    at = fq_runs_find(r->free_bits, 0, r->pages, need, &length);
    return length >= need ? at : r->pages;
}

static inline void fq_grow_take(fq_input *input, const fq_region *r, uint64_t from, uint64_t end) {
    if (r->offset != FQ_LARGE) {
        fq_runs_set(r->free_bits, from, end, 0);
        input->spill.used_pages += end - from;
        return;
    }
    while (from < end) {
        uint32_t block = (uint32_t)(from / FQ_SMALLS), first = (uint32_t)(from % FQ_SMALLS);
        uint32_t count = end - from < FQ_SMALLS - first ? (uint32_t)(end - from) : FQ_SMALLS - first;
        if (input->states[block] == FQ_WHOLE_FREE) fq_input_break(input, block);
        fq_input_take_smalls(input, block, first, count);
        from += count;
    }
}

/* Makes `run` as long as `bytes` (at least 1) ask for, in whole pages; one of length 0 is placed first. `whole`, which is at
 * least `bytes`, is what the message will have in the end, and the same each time. 1, or 0 when it cannot be had there now,
 * and nothing was taken. */
static inline int fq_grow(fq_input *input, fq_extent *run, uint64_t bytes, uint64_t whole) {
    fq_region r = fq_grow_region(input, whole);
    uint64_t need = fq_grow_pages(bytes), have = run->length / FQ_PAGE, all = fq_grow_pages(whole);
    if (need <= have) return 1;
    uint64_t at = have ? (run->offset - r.offset) / FQ_PAGE : fq_grow_place(&r, need, all);
    if (need > r.pages - at || fq_runs_next(r.free_bits, at + have, at + need, 0) < at + need) return 0;
    fq_grow_take(input, &r, at + have, at + need);
    fq_runs_set(r.wished, at + have, at + need, 0);
    if (have == 0) fq_runs_set(r.wished, at + need, all < r.pages - at ? at + all : r.pages, 1);
    *run = (fq_extent){r.offset + at * FQ_PAGE, need * FQ_PAGE};
    return 1;
}

/* The run grows no more: what it wished for is anybody's. It is given back by fq_input_free, now or later. */
static inline void fq_grown(fq_input *input, const fq_extent *run, uint64_t whole) {
    fq_region r = fq_grow_region(input, whole);
    uint64_t all = fq_grow_pages(whole), at = (run->offset - r.offset) / FQ_PAGE;
    if (run->length > 0) fq_runs_set(r.wished, at + run->length / FQ_PAGE, all < r.pages - at ? at + all : r.pages, 0);
}

#endif
