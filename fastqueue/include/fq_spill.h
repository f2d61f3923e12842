/* fq_spill.h: the allocator of an input arena's tail, for messages that would crowd its head. Used by the front-end thread
 * that owns the arena, and by nobody else; all bookkeeping is private memory of that thread.
 *
 * The tail lies behind the head in the same memfd and is sparse: address space, and memory only where a message lies. It is
 * handed out in pages, the lowest run that is long enough, or the longest ones there are, piece by piece; neighbours that
 * are given back are one run again.
 *
 * What is given back goes back to the system (a hole is punched into the memfd), but for the lowest `kept` pages: memory
 * that is new costs some ten times what a copy into it costs, and the first large message of a service is rarely its
 * last. The lowest run is taken first, so those pages are those that are used again.
 */
#ifndef FQ_SPILL_H
#define FQ_SPILL_H

#include <string.h>

#include "fq_layout.h"
#include "fq_runs.h"

typedef struct fq_spill {
    uint64_t offset; /* of the tail in the arena */
    uint64_t pages;
    uint64_t kept;       /* pages from the start of the tail that are never punched */
    uint64_t used_pages;
    uint64_t *free_bits; /* caller's memory: a bit per page */
    uint64_t *wished;    /* likewise, of pages that a growing message hopes for (fq_grow.h); some may not be free */
    fq_punch *punch;     /* NULL: nothing is punched */
    int fd;              /* of the arena, for `punch` */
} fq_spill;

/* Private memory for a tail of `bytes` bytes, in bytes (aligned to 8). */
static inline size_t fq_spill_private_bytes(uint64_t bytes) {
    return 2 * fq_runs_words(bytes / FQ_PAGE) * sizeof(uint64_t);
}

/* A tail of `bytes` bytes at `offset`, of which `kept_bytes` stay ours for good once they were used. */
static inline void fq_spill_init(fq_spill *spill, uint64_t offset, uint64_t bytes, uint64_t kept_bytes,
                                 void *private_memory) {
    *spill = (fq_spill){.offset = offset, .pages = bytes / FQ_PAGE, .kept = kept_bytes / FQ_PAGE, .fd = -1};
    spill->free_bits = (uint64_t *)private_memory;
    spill->wished = spill->free_bits + fq_runs_words(spill->pages);
    fq_runs_set(spill->free_bits, 0, spill->pages, 1);
}

static inline void fq_spill_give(fq_spill *spill, fq_extent extent) {
    uint64_t from = (extent.offset - spill->offset) / FQ_PAGE, end = from + extent.length / FQ_PAGE;
    fq_runs_set(spill->free_bits, from, end, 1);
    spill->used_pages -= end - from;
    if (from < spill->kept) from = spill->kept;
    if (from < end && spill->punch) spill->punch(spill->fd, spill->offset + from * FQ_PAGE, (end - from) * FQ_PAGE);
}

/* Memory for `bytes` (at least 1): the number of extents written to `out`, at most `most`; 0 when the tail cannot give it
 * now, and nothing was taken. */
static inline uint32_t fq_spill_take(fq_spill *spill, uint64_t bytes, fq_extent *out, uint32_t most) {
    uint64_t left = (bytes - 1) / FQ_PAGE + 1, length;
    uint32_t count = 0;
    if (left > spill->pages - spill->used_pages) return 0;
    while (left > 0 && count < most) {
        uint64_t at = fq_runs_find(spill->free_bits, 0, spill->pages, left, &length);
        fq_runs_set(spill->free_bits, at, at + length, 0);
        spill->used_pages += length;
        out[count++] = (fq_extent){spill->offset + at * FQ_PAGE, length * FQ_PAGE};
        left -= length;
    }
    if (left == 0) return count;
    while (count > 0) fq_spill_give(spill, out[--count]);
    return 0;
}

/* The number of the broken invariant, 0 when all hold. */
static inline int fq_spill_check(const fq_spill *spill) {
    uint64_t free_pages = 0;
    for (uint64_t page = 0; page < spill->pages; page++) free_pages += (uint64_t)fq_runs_has(spill->free_bits, page);
    return free_pages + spill->used_pages == spill->pages ? 0 : 10;
}

#endif
