/* fq_finish.h: how a request ends. Lock held throughout.
 *
 * Every request that was taken from a lane ends here exactly once, in fq_request_finish: with an answer, with the first
 * error that befell it, or, when its front end is dead, with nothing said. That is the one FINAL completion.
 */
#ifndef FQ_FINISH_H
#define FQ_FINISH_H

#include <unistd.h>

#include "fq_queue.h"

/* The first error of a request is the one that is told. */
static inline void fq_request_error(fq_former *f, fq_request *r, uint32_t status, const char *text) {
    fq_attached *lane = &f->lanes[r->lane];
    if (r->status) return;
    r->status = status;
    size_t bytes = strlen(text);
    r->text_bytes = bytes < FQ_TEXT ? (uint32_t)bytes : FQ_TEXT - 1;
    if (lane->dead) return;
    char *to = fq_lane_text(&lane->end.lane, r->number);
    fq_data_put(to, text, r->text_bytes);
    to[r->text_bytes] = 0;
}

/* Whoever waits for output memory looks again: there may be room, or nothing left that it could wait for. */
static inline void fq_output_given_back(fq_former *f, uint64_t any) {
    if (any && f->memory_waiters) pthread_cond_broadcast(&f->memory);
}

/* Lets go of a delivered answer and its slices; the extent is emptied. Returns granules freed. */
static inline uint64_t fq_answer_drop(fq_former *f, fq_extent *at) {
    if (at->length == 0) return 0;
    const fq_answer *answer = (const fq_answer *)(f->output_base + at->offset);
    const fq_slice *slices = (const fq_slice *)(answer + 1);
    uint64_t freed = 0;
    for (uint32_t i = 0; i < answer->slice_count; i++) freed += fq_output_drop(&f->output, slices[i].data);
    freed += fq_output_drop(&f->output, *at);
    at->length = 0;
    return freed;
}

static inline void fq_join_drop(fq_former *f, fq_request *r) {
    if (r->join == 0) return;
    f->joins_bytes[r->join / FQ_GRANULE >= f->output.head] -= r->join_bytes;
    fq_output_given_back(f, fq_output_drop(&f->output, (fq_extent){r->join, r->join_bytes}));
    r->join = 0;
    if (f->memory_waiters) pthread_cond_broadcast(&f->memory);
}

/* Lets go of the parts that were collected. */
static inline void fq_chain_drop(fq_former *f, fq_request *r) {
    uint64_t freed = 0;
    while (r->chain) {
        const fq_answer *answer = (const fq_answer *)(f->output_base + r->chain);
        fq_extent at = {r->chain, fq_answer_bytes(answer->slice_count)};
        r->chain = answer->next;
        freed += fq_answer_drop(f, &at);
    }
    fq_output_given_back(f, freed);
}

static inline void fq_request_post(fq_request *r, fq_attached *lane, int64_t now) {
    uint32_t flags = FQ_FINAL | r->flags | (r->taken_ns ? 0u : FQ_UNLAUNCHED);
    fq_completion done = {
        .slot = r->number, .flags = flags, .status = r->status, .text_bytes = r->text_bytes, .answer = r->answer,
        .batch = r->batch, .batch_rows = r->batch_rows, .reason = r->reason,
        .queue_ns = r->taken_ns ? r->taken_ns - r->slot.arrival_ns : now - r->slot.arrival_ns,
        .input_ns = r->input_ns, .compute_ns = r->compute_ns, .output_ns = r->output_ns, .done_ns = now,
    };
    lane->answers[r->number] = r->answer;
    lane->posted += fq_lane_post(&lane->end, &done);
}

static inline void fq_request_finish(fq_former *f, fq_request *r) {
    fq_attached *lane = &f->lanes[r->lane];
    int64_t now = fq_now(f);
    if (r->model && r->status)
        fq_stats_failure(r->model->stats, r, now);
    else if (r->model)
        fq_stats_success(r->model->stats, r, now);
    fq_request_leaves(r);
    fq_join_drop(f, r);
    fq_chain_drop(f, r);
    r->state = FQ_IDLE;
    lane->outstanding--;
    if (!lane->dead) {
        fq_request_post(r, lane, now);
        return;
    }
    fq_output_given_back(f, fq_answer_drop(f, &r->answer));
    if (lane->outstanding == 0) pthread_cond_broadcast(&f->drained);
}

/* Ends a waiting request with an error; one with parts out ends when they are done. */
static inline void fq_request_end_waiting(fq_former *f, fq_request *r, uint32_t status, const char *text) {
    fq_stats_pending(r->model->stats, -(int64_t)(r->slot.rows - r->next_row));
    r->state = FQ_RUNNING;
    (void)fq_queue_unlink(f, r);
    fq_request_leaves(r);
    fq_request_error(f, r, status, text);
    if (r->parts == 0) fq_request_finish(f, r);
}

/* One part of a request is done, or will never be. */
static inline void fq_request_part_done(fq_former *f, fq_request *r) {
    r->parts--;
    if (r->status && r->state == FQ_WAITING)
        fq_request_end_waiting(f, r, r->status, "");
    else if (r->parts == 0 && r->state == FQ_RUNNING)
        fq_request_finish(f, r);
}

/* Wakes the front ends that have completions to take: once per batch and lane. */
static inline void fq_former_ring_fronts(fq_former *f) {
    for (uint32_t i = 0; i < FQ_MAX_LANES; i++) {
        fq_attached *lane = &f->lanes[i];
        uint64_t one = 1;
        if (!lane->used || lane->posted == 0) continue;
        lane->posted = 0;
        if (fq_lane_ring_front(&lane->end) && write(lane->eventfd, &one, sizeof one) < 0)
            continue; /* full counter: it is readable already */
    }
}

#endif
