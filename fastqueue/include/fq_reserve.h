/* fq_reserve.h: memory for the outputs of a launched batch, and the answers that name it.
 *
 * A batch's outputs are one block of the output arena: each output for all rows, in turn, then an fq_answer per request. Rows
 * are of one size per output, or, where an output's rows differ (BYTES), their ends are given (fq_sizes).
 *
 * A request that came in parts (more rows than max_batch) needs its rows in one piece in the end: its join.
 *
 *   rows of one size   the join is reserved whole before the first part runs. A batch that is nothing but one such part is
 *                      computed right into it; in a mixed batch the part's rows are copied there. Joins take at most half of
 *                      the arena's head, and half of its tail: so two of them never wait for each other while each holds
 *                      what the other needs, and batches always have the other half, which drains as clients read.
 *   rows that differ   nobody knows the size before the last part: each part's answer stays in its batch's block, in a chain
 *                      by row, and with the last one the join is reserved and filled. It is not waited for: the
 *                      chain holds memory already.
 *
 * Who finds no room waits, but not in vain: when no answer is delivered and not given back, and no batch runs that does
 * not wait itself, nothing will ever be given back. Whoever sees that is refused, and its requests' memory is the others'.
 */
#ifndef FQ_RESERVE_H
#define FQ_RESERVE_H

#include "fq_gather.h"

static inline int fq_request_is_split(const fq_batch *b, const fq_request *r) {
    return r->slot.rows > b->model->policy.max_batch;
}

/* Bytes of an output's first `row` rows. */
static inline uint64_t fq_output_start(const fq_batch *b, uint32_t output, uint64_t row) {
    const uint64_t *ends = b->sizes[output].row_ends;
    if (!ends) return b->sizes[output].row_bytes * row;
    return row > 0 ? ends[row - 1] : 0;
}

/* Offsets of the whole batch's outputs within a block at `at`; returns the offset behind them. */
static inline uint64_t fq_batch_layout(const fq_batch *b, uint64_t at, uint64_t offsets[FQ_MAX_TENSORS]) {
    for (uint32_t i = 0; i < b->model->outputs; i++) {
        offsets[i] = at;
        at += fq_round_up(fq_output_start(b, i, b->rows), FQ_ALIGN);
    }
    return at;
}

/* The same for a join of `rows` rows of one size. */
static inline uint64_t fq_join_layout(const fq_batch *b, uint64_t rows, uint64_t at, uint64_t offsets[FQ_MAX_TENSORS]) {
    for (uint32_t i = 0; i < b->model->outputs; i++) {
        offsets[i] = at;
        at += fq_round_up(b->sizes[i].row_bytes * rows, FQ_ALIGN);
    }
    return at;
}

static inline uint64_t fq_batch_answer_bytes(const fq_batch *b) { return fq_answer_bytes(b->model->outputs); }

static inline uint64_t fq_row_bytes_key(const fq_batch *b) {
    uint64_t key = 1;
    for (uint32_t i = 0; i < b->model->outputs; i++) key = fq_mix(key, b->sizes[i].row_bytes);
    return key;
}

enum fq_reserve {
    FQ_RESERVED,
    FQ_RESERVE_FULL,    /* not now */
    FQ_RESERVE_NEVER,   /* larger than the arena allows at all */
    FQ_RESERVE_VAIN,    /* not now, and what is held is held by those that wait */
    FQ_RESERVE_CHANGED  /* row sizes differ from those of the request's earlier parts */
};

/* Output memory; 0: not now. What the tail gave out is looked for when it is released: the former thread has to know. */
static inline uint64_t fq_former_take(fq_former *f, uint64_t bytes, int tail) {
    uint64_t at = fq_output_alloc(&f->output, bytes, tail);
    if (at != 0 && tail) fq_bell_kick(&f->page->bell);
    return at;
}

static inline int fq_join_take(fq_former *f, fq_request *r, uint64_t bytes) {
    int tail = fq_output_spills(&f->output, bytes, 2);
    r->join = fq_former_take(f, bytes, tail);
    if (r->join == 0) return FQ_RESERVE_FULL;
    r->join_bytes = bytes;
    f->joins_bytes[tail] += bytes;
    return FQ_RESERVED;
}

/* The join of a request that is split, before its first part. */
static inline int fq_join_reserve(fq_former *f, const fq_batch *b, fq_request *r) {
    uint64_t offsets[FQ_MAX_TENSORS], key = fq_row_bytes_key(b);
    if (r->chain) return FQ_RESERVE_CHANGED;
    if (r->join) return r->join_key == key ? FQ_RESERVED : FQ_RESERVE_CHANGED;
    uint64_t bytes = fq_join_layout(b, r->slot.rows, 0, offsets) + fq_batch_answer_bytes(b);
    int tail = fq_output_spills(&f->output, bytes, 2);
    uint64_t half = fq_output_part(&f->output, tail, 2);
    if (bytes > half) return FQ_RESERVE_NEVER;
    if (f->joins_bytes[tail] + bytes > half) return FQ_RESERVE_FULL;
    r->join_key = key;
    return fq_join_take(f, r, bytes);
}

static inline int fq_batch_is_direct(const fq_batch *b) {
    return b->part_count == 1 && !b->variable && fq_request_is_split(b, b->parts[0].request);
}

static inline void fq_batch_bind_direct(fq_batch *b) {
    const fq_part *part = &b->parts[0];
    (void)fq_join_layout(b, part->request->slot.rows, part->request->join, b->output_at);
    for (uint32_t i = 0; i < b->model->outputs; i++) b->output_at[i] += b->sizes[i].row_bytes * part->row;
}

static inline int fq_batch_block(fq_former *f, fq_batch *b) {
    uint64_t bytes = fq_batch_layout(b, 0, b->output_at) + b->part_count * fq_batch_answer_bytes(b);
    if (bytes > fq_output_most(&f->output, 1)) return FQ_RESERVE_NEVER;
    uint64_t at = fq_former_take(f, bytes, fq_output_spills(&f->output, bytes, 1));
    if (at == 0) return FQ_RESERVE_FULL;
    b->block = (fq_extent){at, bytes};
    b->answers = fq_batch_layout(b, at, b->output_at);
    return FQ_RESERVED;
}

static inline int fq_part_reserve(fq_former *f, const fq_batch *b, fq_request *r) {
    if (!fq_request_is_split(b, r)) return FQ_RESERVED;
    if (!b->variable) return fq_join_reserve(f, b, r);
    return r->join ? FQ_RESERVE_CHANGED : FQ_RESERVED;
}

/* All or nothing but joins, which stay for the next try: each is whole, and needed by every later part. */
static inline int fq_batch_try_reserve(fq_former *f, fq_batch *b) {
    for (uint32_t i = 0; i < b->part_count; i++) {
        int result = fq_part_reserve(f, b, b->parts[i].request);
        if (result != FQ_RESERVED) return result;
    }
    if (!fq_batch_is_direct(b)) return fq_batch_block(f, b);
    fq_batch_bind_direct(b);
    return FQ_RESERVED;
}

/* Whether a stream has something that will end without more output memory: all it has, when nothing of it waits. */
static inline int fq_stream_will_release(const fq_stream *s) {
    int batches = 0;
    for (uint32_t i = 0; i < FQ_LAUNCH_SLOTS; i++) {
        if (s->slots[i].state != FQ_BATCH_FREE && s->slots[i].stalled) return 0;
        batches += s->slots[i].state != FQ_BATCH_FREE;
    }
    return batches != 0;
}

/* Whether nothing is left that could give output memory back. */
static inline int fq_former_waits_in_vain(const fq_former *f) {
    if (f->output.stale_granules) return 0;
    for (uint32_t i = 0; i < FQ_MAX_STREAMS; i++)
        if (fq_stream_will_release(&f->streams[i])) return 0;
    for (uint32_t i = 0; i < FQ_MAX_LANES; i++)
        for (uint32_t s = 0; f->lanes[i].used && s < f->lanes[i].end.lane.slot_count; s++)
            if (f->lanes[i].answers[s].length) return 0;
    return 1;
}

/* Sleeps until memory was given back, and tries again. */
static inline int fq_batch_wait(fq_former *f, fq_batch *b) {
    if (fq_former_waits_in_vain(f)) return FQ_RESERVE_VAIN;
    f->memory_waiters++;
    fq_bell_kick(&f->page->bell); /* the former thread must sleep with FQ_WANT_RELEASE from here on */
    pthread_cond_wait(&f->memory, &f->lock);
    f->memory_waiters--;
    return fq_batch_try_reserve(f, b);
}

/* Memory for outputs of these sizes (for a model that does not batch, a row is the request). The row ends must stay where they
 * are until the batch is done. With `wait`, sleeps while the arena is full. On FQ_RESERVED b->output_at holds the offsets. */
static inline int fq_batch_reserve(fq_batch *b, const fq_sizes *sizes, int wait) {
    fq_former *f = b->former;
    memcpy(b->sizes, sizes, b->model->outputs * sizeof *sizes);
    b->variable = 0;
    for (uint32_t i = 0; i < b->model->outputs; i++) b->variable |= sizes[i].row_ends != NULL;
    pthread_mutex_lock(&f->lock);
    int result = fq_batch_try_reserve(f, b);
    if (result == FQ_RESERVE_FULL && wait) b->stalled_since = fq_now(f);
    b->stalled = 1;
    while (result == FQ_RESERVE_FULL && wait && !f->closing) result = fq_batch_wait(f, b);
    b->stalled = 0;
    if (b->stalled_since) b->stalled_ns += fq_now(f) - b->stalled_since;
    b->stalled_since = 0;
    b->reserved = result == FQ_RESERVED;
    pthread_mutex_unlock(&f->lock);
    return result;
}

static inline unsigned char *fq_batch_output(const fq_batch *b, uint32_t output) {
    return b->former->output_base + b->output_at[output];
}

/* ---- answers ---- */

/* The outputs' shapes as the engine made them; dims[0] is the batch's rows where the model batches. */
typedef struct fq_shape {
    uint32_t rank;
    int64_t dims[FQ_MAX_RANK];
} fq_shape;

/* Writes an answer of `rows` rows whose outputs are these slices, and holds what it names. */
static inline fq_extent fq_answer_write(fq_former *f, const fq_batch *b, uint64_t where, const fq_extent *data, uint64_t rows,
                                        const fq_shape *shapes) {
    fq_answer *answer = (fq_answer *)(f->output_base + where);
    fq_slice *slices = (fq_slice *)(answer + 1);
    *answer = (fq_answer){.slice_count = b->model->outputs};
    for (uint32_t i = 0; i < b->model->outputs; i++) {
        slices[i] = (fq_slice){.index = i, .rank = shapes[i].rank, .data = data[i]};
        memcpy(slices[i].dims, shapes[i].dims, sizeof slices[i].dims);
        if (b->model->signature.batched) slices[i].dims[0] = (int64_t)rows;
        fq_output_hold(&f->output, slices[i].data);
    }
    fq_extent extent = {where, fq_batch_answer_bytes(b)};
    fq_output_hold(&f->output, extent);
    return extent;
}

/* The answer of part `i`, whose first row is the batch's row `row`, in the batch's block. */
static inline fq_extent fq_answer_in_block(fq_former *f, const fq_batch *b, uint32_t i, uint64_t row,
                                           const fq_shape *shapes) {
    fq_extent data[FQ_MAX_TENSORS];
    for (uint32_t o = 0; o < b->model->outputs; o++) {
        uint64_t start = fq_output_start(b, o, row);
        data[o] = (fq_extent){b->output_at[o] + start, fq_output_start(b, o, row + b->parts[i].rows) - start};
    }
    return fq_answer_write(f, b, b->answers + i * fq_batch_answer_bytes(b), data, b->parts[i].rows, shapes);
}

/* The answer of a request whose join is full. */
static inline fq_extent fq_answer_in_join(fq_former *f, const fq_batch *b, const fq_request *r, const fq_shape *shapes) {
    uint64_t at[FQ_MAX_TENSORS];
    fq_extent data[FQ_MAX_TENSORS];
    uint64_t end = fq_join_layout(b, r->slot.rows, r->join, at);
    for (uint32_t o = 0; o < b->model->outputs; o++)
        data[o] = (fq_extent){at[o], b->sizes[o].row_bytes * r->slot.rows};
    return fq_answer_write(f, b, end, data, r->slot.rows, shapes);
}

/* In a mixed batch, the rows of split requests go to their joins. No lock: the joins are reserved, and parts of one
 * request write different rows. */
static inline void fq_batch_fill_joins(fq_former *f, const fq_batch *b) {
    uint64_t at[FQ_MAX_TENSORS], row = 0;
    if (b->variable || fq_batch_is_direct(b)) return;
    for (uint32_t i = 0; i < b->part_count; row += b->parts[i++].rows) {
        const fq_part *part = &b->parts[i];
        if (!fq_request_is_split(b, part->request)) continue;
        (void)fq_join_layout(b, part->request->slot.rows, part->request->join, at);
        for (uint32_t o = 0; o < b->model->outputs; o++)
            memcpy(f->output_base + at[o] + b->sizes[o].row_bytes * part->row,
                   f->output_base + b->output_at[o] + b->sizes[o].row_bytes * row, b->sizes[o].row_bytes * part->rows);
    }
}

/* ---- joins of rows that differ ---- */

static inline fq_answer *fq_answer_at(const fq_former *f, uint64_t offset) {
    return (fq_answer *)(f->output_base + offset);
}

/* Puts a part's answer into its request's chain, which is in the order of rows. */
static inline void fq_chain_add(fq_former *f, fq_request *r, fq_extent answer, uint32_t row) {
    uint64_t *at = &r->chain;
    while (*at && fq_answer_at(f, *at)->row < row) at = &fq_answer_at(f, *at)->next;
    fq_answer_at(f, answer.offset)->row = row;
    fq_answer_at(f, answer.offset)->next = *at;
    *at = answer.offset;
}

static inline const fq_slice *fq_answer_slices(const fq_answer *answer) { return (const fq_slice *)(answer + 1); }

/* Where each output of the chain goes within a join at `at`; returns the offset behind them. */
static inline uint64_t fq_chain_layout(const fq_former *f, const fq_request *r, uint32_t outputs, uint64_t at,
                                       fq_extent data[FQ_MAX_TENSORS]) {
    for (uint32_t o = 0; o < outputs; o++) {
        data[o] = (fq_extent){at, 0};
        for (uint64_t i = r->chain; i; i = fq_answer_at(f, i)->next)
            data[o].length += fq_answer_slices(fq_answer_at(f, i))[o].data.length;
        at = fq_round_up(at + data[o].length, FQ_ALIGN);
    }
    return at;
}

/* All parts agree in everything but the number of rows. */
static inline int fq_chain_agrees(const fq_former *f, const fq_request *r, uint32_t outputs, const fq_shape *shapes) {
    for (uint64_t i = r->chain; i; i = fq_answer_at(f, i)->next)
        for (uint32_t o = 0; o < outputs; o++) {
            const fq_slice *slice = &fq_answer_slices(fq_answer_at(f, i))[o];
            if (slice->rank != shapes[o].rank) return 0;
            if (slice->rank > 1 && memcmp(slice->dims + 1, shapes[o].dims + 1, (slice->rank - 1) * sizeof(int64_t)) != 0)
                return 0;
        }
    return 1;
}

/* Copies every part to its place. No lock: the request has no part left but the caller's. */
static inline void fq_chain_copy(const fq_former *f, const fq_request *r, uint32_t outputs, const fq_extent *data) {
    for (uint32_t o = 0; o < outputs; o++) {
        unsigned char *to = f->output_base + data[o].offset;
        for (uint64_t i = r->chain; i; i = fq_answer_at(f, i)->next) {
            fq_extent from = fq_answer_slices(fq_answer_at(f, i))[o].data;
            memcpy(to, f->output_base + from.offset, from.length);
            to += from.length;
        }
    }
}

#endif
