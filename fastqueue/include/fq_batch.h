/* fq_batch.h: what a launcher does with a batch.
 *
 *   fq_stream_next        waits for the stream's next batch, and launches it               fq_control.h
 *   fq_batch_check        drops what was cancelled or expired since the batch closed; nothing left: the batch is done
 *   fq_batch_view         the batch's input where it lies, when it lies in one aligned piece; otherwise   fq_gather.h
 *   fq_batch_gather       its rows, copied one after the other
 *   fq_batch_reserve      memory for all outputs, in the output arena                      fq_reserve.h
 *   fq_batch_complete     every request gets its rows; or
 *   fq_batch_fail         every request gets the error
 */
#ifndef FQ_BATCH_H
#define FQ_BATCH_H

#include "fq_reserve.h"

/* ---- the end of a batch ---- */

static inline void fq_request_add_times(fq_request *r, const fq_batch *b, int64_t now) {
    r->input_ns += b->input_ns - b->launched_ns;
    r->compute_ns += b->compute_ns - b->input_ns;
    r->output_ns += now - b->compute_ns;
    r->batch = b->number;
    r->batch_rows = b->rows;
    r->reason = (uint32_t)b->reason;
}

/* Takes the last part of a request whose rows differ: its join, with an answer. The lock is let go while bytes are copied. */
static inline void fq_request_join(fq_former *f, const fq_batch *b, fq_request *r, const fq_shape *shapes) {
    fq_extent data[FQ_MAX_TENSORS];
    uint32_t outputs = b->model->outputs;
    uint64_t bytes = fq_chain_layout(f, r, outputs, 0, data) + fq_batch_answer_bytes(b);
    if (!fq_chain_agrees(f, r, outputs, shapes)) {
        fq_request_error(f, r, FQ_INTERNAL, "the outputs of one request's parts differ in shape, so they cannot be joined");
    } else if (fq_join_take(f, r, bytes) != FQ_RESERVED) {
        fq_request_error(f, r, FQ_EXHAUSTED, "the output arena has no room for the request's outputs in one piece; send "
                                             "fewer rows, try again later or raise --output-arena-mb");
    } else {
        uint64_t end = fq_chain_layout(f, r, outputs, r->join, data);
        pthread_mutex_unlock(&f->lock);
        fq_chain_copy(f, r, outputs, data);
        pthread_mutex_lock(&f->lock);
        r->answer = fq_answer_write(f, b, end, data, r->slot.rows, shapes);
    }
}

/* One part of a batch whose outputs are computed. `row`: its first row within the batch. */
static inline void fq_part_complete(fq_former *f, const fq_batch *b, uint32_t i, uint64_t row, const fq_shape *shapes) {
    fq_request *r = b->parts[i].request;
    r->rows_done += b->parts[i].rows;
    if (r->status) return;
    if (!fq_request_is_split(b, r))
        r->answer = fq_answer_in_block(f, b, i, row, shapes);
    else if (b->variable)
        fq_chain_add(f, r, fq_answer_in_block(f, b, i, row, shapes), b->parts[i].row);
    if (!fq_request_is_split(b, r) || r->rows_done < r->slot.rows) return;
    if (b->variable)
        fq_request_join(f, b, r, shapes);
    else
        r->answer = fq_answer_in_join(f, b, r, shapes);
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
        fq_request_add_times(b->parts[i].request, b, now);
        fq_part_complete(f, b, i, row, shapes);
        fq_request_part_done(f, b->parts[i].request);
    }
    fq_batch_done(f, b);
    pthread_mutex_unlock(&f->lock);
    return 0;
}

/* Fails every request of the batch with a gRPC status and a message. `flags`: FQ_AGAIN, or 0. */
static inline void fq_batch_fail(fq_batch *b, uint32_t status, uint32_t flags, const char *text) {
    fq_former *f = b->former;
    pthread_mutex_lock(&f->lock);
    b->model->share.credit_ns -= fq_now(f) - b->launched_ns;
    for (uint32_t i = 0; i < b->part_count; i++) {
        if (!b->parts[i].request->status) b->parts[i].request->flags = flags;
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
    for (uint32_t p = 0; p < b->part_count; p++) {
        fq_request_leaves(b->parts[p].request);
        if (b->parts[p].request->taken_ns == 0) b->parts[p].request->taken_ns = b->launched_ns;
    }
    return b;
}

/* Drops the parts that need not run any more. 1 when the batch must run, 0 when nothing is left and it is done. */
static inline int fq_batch_check(fq_batch *b) {
    fq_former *f = b->former;
    pthread_mutex_lock(&f->lock);
    int left = fq_batch_sift(f, b, fq_now(f));
    fq_former_ring_fronts(f);
    pthread_mutex_unlock(&f->lock);
    return left;
}

#endif
