/* fq_gather.h: the inputs of a launched batch. No lock: the batch is its launcher's.
 *
 * A request's rows lie in its front end's input arena. Rows of a fixed size are found by dividing; rows of variable size
 * (BYTES) by the tensor's table of row ends, which lies in the arena too.
 */
#ifndef FQ_GATHER_H
#define FQ_GATHER_H

#include "fq_former.h"

static inline const fq_tensor *fq_batch_tensor(const fq_batch *b, uint32_t input) {
    return fq_request_tensor(b->parts[0].request, input);
}

/* Shape of the whole batch; the rank, or -1 when the requests do not have this input. */
static inline int fq_batch_shape(const fq_batch *b, uint32_t input, int64_t dims[FQ_MAX_RANK]) {
    const fq_tensor *t = fq_batch_tensor(b, input);
    if (!t) return -1;
    memcpy(dims, t->dims, t->rank * sizeof(int64_t));
    if (b->model->signature.batched) dims[0] = b->rows;
    return (int)t->rank;
}

static inline const unsigned char *fq_part_arena(const fq_batch *b, const fq_part *part) {
    return b->former->lanes[part->request->lane].arena;
}

/* Where the row behind `row` rows starts within a tensor of rows of variable size. The table lies in memory that the front
 * end can write: each word is copied and then bounded. */
static inline uint64_t fq_row_start(const unsigned char *arena, const fq_extent *table, const fq_tensor *t, uint32_t row) {
    uint64_t start = 0, at = (row - 1) * sizeof start;
    if (row == 0) return 0;
    for (; at >= table->length; table++) at -= table->length;
    fq_data_get(&start, arena + table->offset + at, sizeof start);
    return start < t->length ? start : t->length;
}

/* The bytes of `rows` rows of a part's request, from `row` on, within that request's tensor. */
static inline fq_extent fq_rows_range(const fq_batch *b, const fq_part *part, const fq_tensor *t, uint32_t row,
                                      uint32_t rows) {
    if (!b->model->signature.batched) return (fq_extent){0, t->length};
    if (part->request->slot.rows == 0) return (fq_extent){0, 0};
    if (t->table_extents > 0) {
        const fq_extent *table = fq_request_extents(part->request) + t->first_extent + t->extent_count;
        uint64_t start = fq_row_start(fq_part_arena(b, part), table, t, row);
        uint64_t end = fq_row_start(fq_part_arena(b, part), table, t, row + rows);
        return (fq_extent){start, end > start ? end - start : 0};
    }
    uint64_t bytes = t->length / part->request->slot.rows;
    return (fq_extent){bytes * row, bytes * rows};
}

static inline fq_extent fq_part_range(const fq_batch *b, const fq_part *part, const fq_tensor *t) {
    return fq_rows_range(b, part, t, part->row, part->rows);
}

static inline uint64_t fq_batch_input_bytes(const fq_batch *b, uint32_t input) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < b->part_count; i++) {
        const fq_tensor *t = fq_request_tensor(b->parts[i].request, input);
        if (t) bytes += fq_part_range(b, &b->parts[i], t).length;
    }
    return bytes;
}

/* The input of the whole batch in place, or NULL when it must be gathered. */
static inline const void *fq_batch_view(const fq_batch *b, uint32_t input) {
    const fq_part *part = &b->parts[0];
    const fq_tensor *t = fq_batch_tensor(b, input);
    if (b->part_count != 1 || !t) return NULL;
    fq_extent range = fq_part_range(b, part, t);
    const fq_extent *e = fq_request_extents(part->request) + t->first_extent;
    for (uint32_t i = 0; i < t->extent_count; range.offset -= e[i++].length) {
        if (range.offset >= e[i].length) continue;
        if (range.length == 0 || range.length > e[i].length - range.offset) return NULL;
        uint64_t at = e[i].offset + range.offset;
        return at % FQ_ALIGN == 0 ? fq_part_arena(b, part) + at : NULL;
    }
    return NULL;
}

/* Copies a range of a tensor's bytes. */
static inline void fq_range_copy(const unsigned char *arena, const fq_extent *e, fq_extent range, unsigned char *to) {
    for (; range.length > 0; e++) {
        if (range.offset >= e->length) {
            range.offset -= e->length;
            continue;
        }
        uint64_t n = e->length - range.offset < range.length ? e->length - range.offset : range.length;
        memcpy(to, arena + e->offset + range.offset, n);
        to += n;
        range = (fq_extent){0, range.length - n};
    }
}

/* Copies `rows` rows of a part, from `row` of its request on: the bytes, or -1 when `capacity` is too small. */
static inline int64_t fq_part_copy(const fq_batch *b, const fq_part *part, uint32_t input, uint32_t row, uint32_t rows,
                                   unsigned char *to, uint64_t capacity) {
    const fq_tensor *t = fq_request_tensor(part->request, input);
    if (!t) return 0;
    fq_extent range = fq_rows_range(b, part, t, row, rows);
    if (range.length > capacity) return -1;
    fq_range_copy(fq_part_arena(b, part), fq_request_extents(part->request) + t->first_extent, range, to);
    return (int64_t)range.length;
}

/* Copies the rows of the batch, in order, to `to`: 0, or -1 when `capacity` is too small. */
static inline int fq_batch_gather(const fq_batch *b, uint32_t input, void *to, uint64_t capacity) {
    unsigned char *at = (unsigned char *)to;
    for (uint32_t i = 0; i < b->part_count; i++) {
        const fq_part *part = &b->parts[i];
        int64_t n = fq_part_copy(b, part, input, part->row, part->rows, at, capacity);
        if (n < 0) return -1;
        at += n;
        capacity -= (uint64_t)n;
    }
    return 0;
}

/* The same of `rows` rows from `first` on, of a model that batches. */
static inline int fq_batch_gather_rows(const fq_batch *b, uint32_t input, uint32_t first, uint32_t rows, void *to,
                                       uint64_t capacity) {
    unsigned char *at = (unsigned char *)to;
    for (uint32_t i = 0; i < b->part_count && rows > 0; i++) {
        const fq_part *part = &b->parts[i];
        if (first >= part->rows) {
            first -= part->rows;
            continue;
        }
        uint32_t some = part->rows - first < rows ? part->rows - first : rows;
        int64_t n = fq_part_copy(b, part, input, part->row + first, some, at, capacity);
        if (n < 0) return -1;
        at += n;
        capacity -= (uint64_t)n;
        rows -= some;
        first = 0;
    }
    return 0;
}

#endif
