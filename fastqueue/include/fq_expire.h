/* fq_expire.h: what need not run any more leaves, wherever it waits: in a queue, or in a batch that is closed and not launched.
 * Lock held throughout.
 *
 *   cancelled           the client is gone
 *   deadline            the request's budget (its gRPC deadline or its `timeout`) is spent
 *   queue time-out      it has waited for as long as its level's queue policy allows: an error, or a place behind the others
 *
 * The first two hold until the launch; the third until the request does not count as waiting any more (fq_queue.h). So an
 * error comes when it is due, whatever the engine is doing, and what is dropped never reaches the engine.
 */
#ifndef FQ_EXPIRE_H
#define FQ_EXPIRE_H

#include "fq_finish.h"

/* The launch slot is free again. The launcher steps when it comes for its next batch (fq_stream_next). */
static inline void fq_batch_done(fq_former *f, fq_batch *b) {
    fq_stream *s = b->stream;
    if (b->block.length) (void)fq_output_drop(&f->output, b->block);
    fq_output_given_back(f, 1);
    b->block.length = 0;
    b->state = FQ_BATCH_FREE;
    s->count--;
    b->model->running--;
    pthread_cond_broadcast(&f->drained);
    fq_former_ring_fronts(f);
}

static inline const fq_level *fq_request_policy(const fq_request *r) { return &r->model->levels[r->level]; }

static inline int fq_request_waited_out(const fq_request *r, int64_t now) { return r->queued && r->queue_until_ns <= now; }

/* When a request that is not launched must be looked at. */
static inline int64_t fq_request_expires_ns(const fq_request *r) {
    return r->queued ? fq_min_ns(r->slot.deadline_ns, r->queue_until_ns) : r->slot.deadline_ns;
}

/* Why a request need not run any more; NULL: it must. `text` is room for the words. */
static inline const char *fq_request_obsolete(const fq_request *r, int64_t now, char text[FQ_TEXT]) {
    if (r->slot.deadline_ns <= now) return "the deadline passed while the request waited in the queue";
    if (!fq_request_waited_out(r, now) || fq_request_policy(r)->delay) return NULL;
    (void)snprintf(text, FQ_TEXT, "it waited %lld us in the queue, and its queue policy (default_timeout_microseconds) allows %lld",
                   (long long)(now - r->slot.arrival_ns) / 1000, (long long)fq_request_policy(r)->timeout_ns / 1000);
    return text;
}

/* Drops the parts of a batch that need not run any more. 1 when something is left; 0 when not, and the batch is done. */
static inline int fq_batch_sift(fq_former *f, fq_batch *b, int64_t now) {
    char text[FQ_TEXT];
    uint32_t kept = 0;
    b->rows = 0;
    for (uint32_t i = 0; i < b->part_count; i++) {
        fq_part part = b->parts[i];
        int cancelled = fq_lane_cancelled(&f->lanes[part.request->lane].end, part.request->number);
        const char *why = cancelled ? "cancelled by the client" : fq_request_obsolete(part.request, now, text);
        if (!why && part.request->status == 0) {
            b->rows += part.rows;
            b->parts[kept++] = part;
            continue;
        }
        if (why) fq_request_error(f, part.request, cancelled ? FQ_CANCELLED : FQ_DEADLINE, why);
        fq_request_part_done(f, part.request);
    }
    b->part_count = kept;
    if (kept == 0) fq_batch_done(f, b);
    return kept != 0;
}

static inline void fq_batch_expire(fq_former *f, fq_batch *b, int64_t now) {
    if (b->state != FQ_BATCH_CLOSED || !fq_batch_sift(f, b, now)) return;
    for (uint32_t i = 0; i < b->part_count; i++) {
        fq_request *r = b->parts[i].request;
        if (fq_request_waited_out(r, now)) r->queue_until_ns = FQ_NEVER; /* its level delays: no more to be done here */
        f->next_deadline_ns = fq_min_ns(f->next_deadline_ns, fq_request_expires_ns(r));
    }
}

static inline void fq_request_expire(fq_former *f, fq_request *r, int64_t now) {
    char text[FQ_TEXT];
    const char *why = fq_request_obsolete(r, now, text);
    if (why) {
        fq_request_end_waiting(f, r, FQ_DEADLINE, why);
        return;
    }
    if (fq_request_waited_out(r, now)) { /* its level delays */
        r->queue_until_ns = FQ_NEVER;
        if (r->next_row == 0) fq_queue_move(r->queue, r, fq_rank(r->level, 1));
    }
    f->next_deadline_ns = fq_min_ns(f->next_deadline_ns, fq_request_expires_ns(r));
}

/* Ends or moves everything whose time has come. */
static inline void fq_former_expire(fq_former *f, int64_t now) {
    if (now < f->next_deadline_ns) return;
    f->next_deadline_ns = FQ_NEVER;
    for (uint32_t i = 0; i < f->stream_end; i++)
        for (uint32_t s = 0; s < FQ_LAUNCH_SLOTS; s++) fq_batch_expire(f, &f->streams[i].slots[s], now);
    for (uint32_t i = 0; i < FQ_MAX_LANES; i++) {
        fq_attached *lane = &f->lanes[i];
        for (uint32_t s = 0; lane->used && s < lane->end.lane.slot_count; s++)
            if (lane->requests[s].state == FQ_WAITING) fq_request_expire(f, &lane->requests[s], now);
    }
}

#endif
