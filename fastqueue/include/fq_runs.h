/* fq_runs.h: runs of pages in a bitmap, a bit per page: how the allocators find room. Bits at and behind the end of what
 * is asked about are not read.
 */
#ifndef FQ_RUNS_H
#define FQ_RUNS_H

#include <stdint.h>

/* Gives a piece of a memfd back to the system (fq_map_punch). */
typedef void fq_punch(int fd, uint64_t offset, uint64_t bytes);

static inline uint64_t fq_runs_words(uint64_t pages) { return (pages + 63) / 64; }

static inline int fq_runs_has(const uint64_t *bits, uint64_t page) { return (int)(bits[page / 64] >> (page % 64) & 1); }

/* Sets (or, with `to` 0, clears) the bits of [from, end). */
static inline void fq_runs_set(uint64_t *bits, uint64_t from, uint64_t end, int to) {
    while (from < end) {
        uint64_t upto = (from / 64 + 1) * 64 < end ? (from / 64 + 1) * 64 : end, count = upto - from;
        uint64_t mask = (count == 64 ? ~0ull : (1ull << count) - 1) << (from % 64);
        if (to) bits[from / 64] |= mask;
        else bits[from / 64] &= ~mask;
        from = upto;
    }
}

/* The first page in [from, end) whose bit is `set`; `end` when there is none. */
static inline uint64_t fq_runs_next(const uint64_t *bits, uint64_t from, uint64_t end, int set) {
    while (from < end) {
        uint64_t word = bits[from / 64];
        uint64_t found = (set ? word : ~word) >> (from % 64);
        if (found) {
            uint64_t at = from + (uint64_t)__builtin_ctzll(found);
            return at < end ? at : end;
        }
        from = (from / 64 + 1) * 64;
    }
    return end;
}

/* The first run of set bits within [from, end) that has `count` (at least 1): its start. When there is none, the first of
 * the longest, whose length goes to *length; 0 is the length when no bit is set. */
static inline uint64_t fq_runs_find(const uint64_t *bits, uint64_t from, uint64_t end, uint64_t count, uint64_t *length) {
    uint64_t best = from;
    *length = 0;
    while (from < end && *length < count) {
        uint64_t at = fq_runs_next(bits, from, end, 1), most = count < end - at ? at + count : end;
        from = fq_runs_next(bits, at, most, 0);
        if (from - at > *length) {
            *length = from - at;
            best = at;
        }
    }
    return best;
}

#endif
