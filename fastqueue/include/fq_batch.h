/* fq_batch.h: what a launcher does with a batch.
 *
 *   fq_stream_next        waits for the stream's next batch, and launches it
 *   fq_batch_check        drops what was cancelled or expired since the batch closed; nothing left: the batch is done
 *   fq_batch_view         the batch's input where it lies, when it lies in one aligned piece; otherwise
 *   fq_batch_gather       its rows, copied one after the other
 *   fq_batch_reserve      memory for all outputs, in the output arena
 *   fq_batch_complete     every request gets its rows; or
 *   fq_batch_fail         every request gets the error
 *
 * OUTPUTS. A batch's outputs are one block of the output arena: each output for all rows, in turn, then an fq_answer
 * per request. A request that came in parts (more rows than max_batch) needs its rows in one piece in the end: its join, a block
 * for all its rows that is reserved whole before its first part runs. A batch that is nothing but one such part is computed
 * right into the join; in a mixed batch the part's rows are copied there. Joins take at most half of the arena: so two of
 * them never wait for each other while each holds what the other needs, and batches always have the other half, which
 * drains as clients read.
 */
#ifndef FQ_BATCH_H
#define FQ_BATCH_H

#include "fq_former.h"

/* ---- inputs: no lock, the batch is the launcher's ---- */

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

/* The bytes of a part within its request's tensor. */
static inline fq_extent fq_part_range(const fq_batch *b, const fq_part *part, const fq_tensor *t) {
    uint32_t rows = part->request->slot.rows;
    if (!b->model->signature.batched) return (fq_extent){0, t->length};
    if (rows == 0) return (fq_extent){0, 0};
    uint64_t row = t->length / rows;
    return (fq_extent){row * part->row, row * part->rows};
}

static inline uint64_t fq_batch_input_bytes(const fq_batch *b, uint32_t input) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < b->part_count; i++) {
        const fq_tensor *t = fq_request_tensor(b->parts[i].request, input);
        if (t) bytes += fq_part_range(b, &b->parts[i], t).length;
    }
    return bytes;
}

static inline const unsigned char *fq_part_arena(const fq_batch *b, const fq_part *part) {
    return b->former->lanes[part->request->lane].arena;
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

static inline unsigned char *fq_part_copy(const fq_batch *b, const fq_part *part, const fq_tensor *t, unsigned char *to) {
    fq_extent range = fq_part_range(b, part, t);
    const fq_extent *e = fq_request_extents(part->request) + t->first_extent;
    for (uint32_t i = 0; i < t->extent_count && range.length > 0; i++) {
        if (range.offset >= e[i].length) {
            range.offset -= e[i].length;
            continue;
        }
        uint64_t n = e[i].length - range.offset < range.length ? e[i].length - range.offset : range.length;
        memcpy(to, fq_part_arena(b, part) + e[i].offset + range.offset, n);
        to += n;
        range = (fq_extent){0, range.length - n};
    }
    return to;
}

/* Copies the rows of the batch, in order, to `to`: 0, or -1 when `capacity` is too small and nothing was copied. */
static inline int fq_batch_gather(const fq_batch *b, uint32_t input, void *to, uint64_t capacity) {
    unsigned char *at = (unsigned char *)to;
    if (fq_batch_input_bytes(b, input) > capacity) return -1;
    for (uint32_t i = 0; i < b->part_count; i++) {
        const fq_tensor *t = fq_request_tensor(b->parts[i].request, input);
        if (t) at = fq_part_copy(b, &b->parts[i], t, at);
    }
    return 0;
}

/* ---- outputs ---- */

static inline int fq_request_is_split(const fq_batch *b, const fq_request *r) {
    return r->slot.rows > b->model->policy.max_batch;
}

/* Offsets of the outputs of `rows` rows within a block; returns the offset behind them. */
static inline uint64_t fq_outputs_layout(const fq_batch *b, uint64_t rows, uint64_t at, uint64_t offsets[FQ_MAX_TENSORS]) {
    for (uint32_t i = 0; i < b->model->outputs; i++) {
        offsets[i] = at;
        at += fq_round_up(b->row_bytes[i] * rows, FQ_ALIGN);
    }
    return at;
}

static inline uint64_t fq_answer_bytes(const fq_batch *b) {
    return fq_round_up(sizeof(fq_answer) + b->model->outputs * sizeof(fq_slice), 8);
}

static inline uint64_t fq_row_bytes_key(const fq_batch *b) {
    uint64_t key = 1;
    for (uint32_t i = 0; i < b->model->outputs; i++) key = fq_mix(key, b->row_bytes[i]);
    return key;
}

enum fq_reserve {
    FQ_RESERVED,
    FQ_RESERVE_FULL,    /* not now */
    FQ_RESERVE_NEVER,   /* larger than the arena allows at all */
    FQ_RESERVE_CHANGED  /* row sizes differ from those of the request's earlier parts */
};

/* The join of a request that is split, before its first part. */
static inline int fq_join_reserve(fq_former *f, const fq_batch *b, fq_request *r) {
    uint64_t offsets[FQ_MAX_TENSORS], half = fq_output_capacity(&f->output) / 2;
    if (r->join) return r->join_key == fq_row_bytes_key(b) ? FQ_RESERVED : FQ_RESERVE_CHANGED;
    uint64_t bytes = fq_round_up(fq_outputs_layout(b, r->slot.rows, 0, offsets) + fq_answer_bytes(b), FQ_GRANULE);
    if (bytes > half) return FQ_RESERVE_NEVER;
    if (f->joins_bytes + bytes > half) return FQ_RESERVE_FULL;
    r->join = fq_output_alloc(&f->output, bytes);
    if (r->join == 0) return FQ_RESERVE_FULL;
    r->join_bytes = bytes;
    r->join_key = fq_row_bytes_key(b);
    f->joins_bytes += bytes;
    return FQ_RESERVED;
}

static inline int fq_batch_is_direct(const fq_batch *b) {
    return b->part_count == 1 && fq_request_is_split(b, b->parts[0].request);
}

static inline void fq_batch_bind_direct(fq_batch *b) {
    const fq_part *part = &b->parts[0];
    (void)fq_outputs_layout(b, part->request->slot.rows, part->request->join, b->output_at);
    for (uint32_t i = 0; i < b->model->outputs; i++) b->output_at[i] += b->row_bytes[i] * part->row;
}

static inline int fq_batch_block(fq_former *f, fq_batch *b) {
    uint64_t bytes = fq_outputs_layout(b, b->rows, 0, b->output_at) + b->part_count * fq_answer_bytes(b);
    if (bytes > fq_output_capacity(&f->output)) return FQ_RESERVE_NEVER;
    uint64_t at = fq_output_alloc(&f->output, bytes);
    if (at == 0) return FQ_RESERVE_FULL;
    b->block = (fq_extent){at, bytes};
    b->answers = fq_outputs_layout(b, b->rows, at, b->output_at);
    return FQ_RESERVED;
}

/* All or nothing but joins, which stay for the next try: each is whole, and needed by every later part. */
static inline int fq_batch_try_reserve(fq_former *f, fq_batch *b) {
    for (uint32_t i = 0; i < b->part_count; i++) {
        fq_request *r = b->parts[i].request;
        int result = fq_request_is_split(b, r) ? fq_join_reserve(f, b, r) : FQ_RESERVED;
        if (result != FQ_RESERVED) return result;
    }
    if (!fq_batch_is_direct(b)) return fq_batch_block(f, b);
    fq_batch_bind_direct(b);
    return FQ_RESERVED;
}

/* Memory for outputs of `row_bytes` bytes per row (for a model that does not batch: per request). With `wait`, sleeps while
 * the arena is full. On FQ_RESERVED b->output_at holds the offsets. */
static inline int fq_batch_reserve(fq_batch *b, const uint64_t *row_bytes, int wait) {
    fq_former *f = b->former;
    memcpy(b->row_bytes, row_bytes, b->model->outputs * sizeof *row_bytes);
    pthread_mutex_lock(&f->lock);
    int result = fq_batch_try_reserve(f, b);
    while (result == FQ_RESERVE_FULL && wait && !f->closing) {
        f->memory_waiters++;
        fq_bell_kick(&f->page->bell); /* the former thread must sleep with FQ_WANT_RELEASE from here on */
        pthread_cond_wait(&f->memory, &f->lock);
        f->memory_waiters--;
        result = fq_batch_try_reserve(f, b);
    }
    b->reserved = result == FQ_RESERVED;
    pthread_mutex_unlock(&f->lock);
    return result;
}

static inline unsigned char *fq_batch_output(const fq_batch *b, uint32_t output) {
    return b->former->output_base + b->output_at[output];
}

/* ---- the end of a batch ---- */

/* The outputs' shapes as the engine made them; dims[0] is the batch's rows where the model batches. */
typedef struct fq_shape {
    uint32_t rank;
    int64_t dims[FQ_MAX_RANK];
} fq_shape;

/* Writes an answer of `rows` rows whose outputs start at `at`, and holds what it names. */
static inline fq_extent fq_answer_write(fq_former *f, const fq_batch *b, uint64_t where, const uint64_t *at, uint64_t rows,
                                        const fq_shape *shapes) {
    fq_answer *answer = (fq_answer *)(f->output_base + where);
    fq_slice *slices = (fq_slice *)(answer + 1);
    *answer = (fq_answer){.slice_count = b->model->outputs};
    for (uint32_t i = 0; i < b->model->outputs; i++) {
        slices[i] = (fq_slice){.index = i, .rank = shapes[i].rank, .data = {at[i], b->row_bytes[i] * rows}};
        memcpy(slices[i].dims, shapes[i].dims, sizeof slices[i].dims);
        if (b->model->signature.batched) slices[i].dims[0] = (int64_t)rows;
        fq_output_hold(&f->output, slices[i].data);
    }
    fq_extent extent = {where, fq_answer_bytes(b)};
    fq_output_hold(&f->output, extent);
    return extent;
}

static inline void fq_answer_part(fq_former *f, const fq_batch *b, uint32_t i, uint64_t row, const fq_shape *shapes) {
    fq_request *r = b->parts[i].request;
    uint64_t at[FQ_MAX_TENSORS];
    if (r->status) return;
    if (!fq_request_is_split(b, r)) {
        for (uint32_t o = 0; o < b->model->outputs; o++) at[o] = b->output_at[o] + row * b->row_bytes[o];
        r->answer = fq_answer_write(f, b, b->answers + i * fq_answer_bytes(b), at, b->parts[i].rows, shapes);
    } else if (r->rows_done == r->slot.rows) {
        uint64_t end = fq_outputs_layout(b, r->slot.rows, r->join, at);
        r->answer = fq_answer_write(f, b, end, at, r->slot.rows, shapes);
    }
}

/* In a mixed batch, the rows of split requests go to their joins. No lock: the joins are reserved, and parts of one
 * request write different rows. */
static inline void fq_batch_fill_joins(fq_former *f, const fq_batch *b) {
    uint64_t at[FQ_MAX_TENSORS], row = 0;
    for (uint32_t i = 0; i < b->part_count; row += b->parts[i++].rows) {
        const fq_part *part = &b->parts[i];
        if (fq_batch_is_direct(b) || !fq_request_is_split(b, part->request)) continue;
        (void)fq_outputs_layout(b, part->request->slot.rows, part->request->join, at);
        for (uint32_t o = 0; o < b->model->outputs; o++)
            memcpy(f->output_base + at[o] + b->row_bytes[o] * part->row,
                   f->output_base + b->output_at[o] + b->row_bytes[o] * row, b->row_bytes[o] * part->rows);
    }
}

static inline void fq_request_add_times(fq_request *r, const fq_batch *b, int64_t now) {
    r->input_ns += b->input_ns - b->launched_ns;
    r->compute_ns += b->compute_ns - b->input_ns;
    r->output_ns += now - b->compute_ns;
    r->batch = b->number;
    r->batch_rows = b->rows;
    r->reason = (uint32_t)b->reason;
}

/* The launch slot is free again. The launcher steps when it comes for its next batch (fq_stream_next). */
static inline void fq_batch_done(fq_former *f, fq_batch *b) {
    fq_stream *s = b->stream;
    if (b->block.length) fq_output_given_back(f, fq_output_drop(&f->output, b->block));
    b->block.length = 0;
    b->state = FQ_BATCH_FREE;
    s->count--;
    b->model->running--;
    pthread_cond_broadcast(&f->drained);
    fq_former_ring_fronts(f);
}

/* Answers every request of a batch whose outputs are computed: 0, or -1 when nothing was reserved. */
static inline int fq_batch_complete(fq_batch *b, const fq_shape *shapes) {
    fq_former *f = b->former;
    struct timespec unix_time;
    if (!b->reserved) return -1;
    clock_gettime(CLOCK_REALTIME, &unix_time);
    fq_batch_fill_joins(f, b);
    pthread_mutex_lock(&f->lock);
    int64_t now = fq_now(f);
    uint64_t row = 0;
    fq_stats_batch(b, now, (uint64_t)unix_time.tv_sec * 1000 + (uint64_t)unix_time.tv_nsec / 1000000);
    fq_learn(b->model, b->rows, now - b->launched_ns);
    b->model->share.credit_ns -= now - b->launched_ns;
    for (uint32_t i = 0; i < b->part_count; row += b->parts[i++].rows) {
        fq_request *r = b->parts[i].request;
        r->rows_done += b->parts[i].rows;
        fq_request_add_times(r, b, now);
        fq_answer_part(f, b, i, row, shapes);
        fq_request_part_done(f, r);
    }
    fq_batch_done(f, b);
    pthread_mutex_unlock(&f->lock);
    return 0;
}

/* Fails every request of the batch with a gRPC status and a message. */
static inline void fq_batch_fail(fq_batch *b, uint32_t status, const char *text) {
    fq_former *f = b->former;
    pthread_mutex_lock(&f->lock);
    b->model->share.credit_ns -= fq_now(f) - b->launched_ns;
    for (uint32_t i = 0; i < b->part_count; i++) {
        fq_request_error(f, b->parts[i].request, status, text);
        fq_request_part_done(f, b->parts[i].request);
    }
    fq_batch_done(f, b);
    pthread_mutex_unlock(&f->lock);
}

/* ---- the start of a batch ---- */

/* The oldest closed batch of a stream, launched; NULL when there is none. Lock held. */
static inline fq_batch *fq_stream_launch(fq_former *f, fq_stream *s) {
    fq_batch *b = fq_stream_oldest(s, FQ_BATCH_CLOSED);
    if (!b) return NULL;
    b->state = FQ_BATCH_LAUNCHED;
    b->launched_ns = b->input_ns = b->compute_ns = fq_now(f);
    for (uint32_t p = 0; p < b->part_count; p++)
        if (b->parts[p].request->taken_ns == 0) b->parts[p].request->taken_ns = b->launched_ns;
    return b;
}

/* Why a part need not run any more, or NULL. */
static inline const char *fq_part_obsolete(fq_former *f, const fq_request *r, int64_t now, uint32_t *status) {
    *status = r->status;
    if (r->status) return "";
    *status = FQ_CANCELLED;
    if (fq_lane_cancelled(&f->lanes[r->lane].end, r->number)) return "cancelled by the client";
    *status = FQ_DEADLINE;
    return r->slot.deadline_ns <= now ? "the deadline passed before the batch was launched" : NULL;
}

/* Drops the parts that need not run any more. 1 when the batch must run, 0 when nothing is left and it is done. */
static inline int fq_batch_check(fq_batch *b) {
    fq_former *f = b->former;
    uint32_t kept = 0, status;
    pthread_mutex_lock(&f->lock);
    int64_t now = fq_now(f);
    b->rows = 0;
    for (uint32_t i = 0; i < b->part_count; i++) {
        fq_part part = b->parts[i];
        const char *why = fq_part_obsolete(f, part.request, now, &status);
        if (!why) {
            b->rows += part.rows;
            b->parts[kept++] = part;
            continue;
        }
        fq_request_error(f, part.request, status, why);
        fq_request_part_done(f, part.request);
    }
    b->part_count = kept;
    if (kept == 0) fq_batch_done(f, b);
    else fq_former_ring_fronts(f);
    pthread_mutex_unlock(&f->lock);
    return kept != 0;
}

#endif
