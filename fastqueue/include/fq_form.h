/* fq_form.h: closing batches: which launch slots are free for a model, what of its queues would go together, and whose turn it
 * is. Lock held throughout; fq_policy.h decides.
 */
#ifndef FQ_FORM_H
#define FQ_FORM_H

#include "fq_expire.h"

static inline int fq_stream_has(const fq_stream *s, const fq_model *model) {
    for (uint32_t i = 0; i < FQ_LAUNCH_SLOTS; i++)
        if (s->slots[i].state != FQ_BATCH_FREE && s->slots[i].model == model) return 1;
    return 0;
}

/* The launch slot in `state` with the lowest batch number, or NULL. The second of two batches may be done before the first
 * (when nothing of it is left to run), so slots have no order of their own. */
static inline fq_batch *fq_stream_oldest(fq_stream *s, int state) {
    fq_batch *oldest = NULL;
    for (uint32_t i = 0; i < FQ_LAUNCH_SLOTS; i++)
        if (s->slots[i].state == state && (!oldest || s->slots[i].number < oldest->number)) oldest = &s->slots[i];
    return oldest;
}

/* When what is on a stream is predicted to end. */
static inline int64_t fq_stream_end(fq_stream *s) {
    const fq_batch *b = fq_stream_oldest(s, FQ_BATCH_LAUNCHED);
    if (!b) b = fq_stream_oldest(s, FQ_BATCH_CLOSED);
    int64_t predicted = fq_predict(b->model, b->rows);
    if (predicted == 0) return FQ_NEVER;
    return (b->state == FQ_BATCH_LAUNCHED ? b->launched_ns : b->closed_ns) + predicted;
}

/* The launch slots that `model` may use now; *best is the stream where its next batch would go. */
static inline fq_free_slots fq_former_slots(fq_former *f, const fq_model *model, fq_stream **best) {
    fq_free_slots slots = {.end_ns = FQ_NEVER};
    uint32_t occupied = 0;
    fq_stream *idle = NULL, *behind = NULL;
    for (uint32_t i = 0; i < f->stream_end; i++)
        if (f->streams[i].used && fq_stream_has(&f->streams[i], model)) occupied++;
    for (uint32_t i = 0; i < f->stream_end; i++) {
        fq_stream *s = &f->streams[i];
        if (!s->used || s->group != model->group || s->count == FQ_LAUNCH_SLOTS) continue;
        if (occupied >= model->max_streams && !fq_stream_has(s, model)) continue;
        if (s->count == 0) {
            slots.idle++;
            if (!idle) idle = s;
            continue;
        }
        slots.behind++;
        int64_t end = fq_stream_end(s);
        if (!behind || end < slots.end_ns) behind = s;
        slots.end_ns = fq_min_ns(slots.end_ns, end);
    }
    *best = idle ? idle : behind;
    return slots;
}

/* Rows that a batch with room for `room` may take of a request. */
static inline uint32_t fq_request_fit(const fq_request *r, uint32_t room, uint32_t max_batch) {
    uint32_t left = r->slot.rows - r->next_row;
    if (left <= room) return left;
    return left > max_batch && room == max_batch ? max_batch : 0; /* only an oversize request is divided */
}

/* When the request must be on its way at the latest. The clock of a queue time-out stops with the close of its batch on an
 * idle stream, so its end need not be met to the microsecond: the batch is ready a little before. */
static inline int64_t fq_request_latest_ns(const fq_request *r) {
    if (!r->queued || r->queue_until_ns == FQ_NEVER) return r->slot.deadline_ns;
    return fq_min_ns(r->slot.deadline_ns, r->queue_until_ns - FQ_WAKE_NS);
}

/* What of a queue would go into one batch now. Where that is not all of it the batch is full, and `oldest_ns` without effect. */
static inline fq_pending fq_queue_pending(const fq_queue *queue) {
    const fq_model *model = queue->model;
    uint32_t max = model->policy.max_batch;
    fq_pending pending = {.oldest_ns = FQ_NEVER, .deadline_ns = FQ_NEVER};
    for (const fq_request *r = queue->head; r; r = r->next) {
        uint32_t rows = fq_request_fit(r, max - pending.rows, max);
        if ((rows == 0 && r->slot.rows != 0) || pending.requests == FQ_MAX_PARTS) {
            pending.full = 1;
            break;
        }
        pending.rows += rows;
        pending.requests++;
        pending.oldest_ns = fq_min_ns(pending.oldest_ns, r->slot.arrival_ns);
        pending.deadline_ns = fq_min_ns(pending.deadline_ns, fq_request_latest_ns(r));
        if (pending.rows == max || !model->signature.batched) {
            pending.full = 1;
            break;
        }
    }
    pending.predicted_ns = fq_predict(model, pending.rows);
    return pending;
}

static inline void fq_batch_open(fq_former *f, fq_batch *b, fq_model *model, int reason, int64_t now) {
    b->former = f;
    b->model = model;
    b->state = FQ_BATCH_CLOSED;
    b->reason = reason;
    b->number = ++f->batch_count;
    b->rows = b->padding = b->part_count = 0;
    memset(b->counts, 0, sizeof b->counts);
    b->closed_ns = now;
    b->launched_ns = b->input_ns = b->compute_ns = b->stalled_ns = b->stalled_since = 0;
    b->slow = 0;
    b->block = (fq_extent){0, 0};
    b->reserved = 0;
}

static inline void fq_batch_close(fq_former *f, fq_queue *queue, fq_stream *s, const fq_step *step, uint32_t requests,
                                   int64_t now) {
    fq_model *model = queue->model;
    fq_batch *b = fq_stream_oldest(s, FQ_BATCH_FREE);
    fq_batch_open(f, b, model, step->reason, now);
    b->stream = s;
    while (b->part_count < requests) {
        fq_request *r = queue->head;
        if (s->count == 0) fq_request_leaves(r);
        uint32_t rows = fq_request_fit(r, model->policy.max_batch - b->rows, model->policy.max_batch);
        b->parts[b->part_count++] = (fq_part){r, r->next_row, rows};
        b->rows += rows;
        r->next_row += rows;
        r->parts++;
        fq_stats_pending(model->stats, -(int64_t)rows);
        if (r->next_row < r->slot.rows) {
            if (r->rank != 0) fq_queue_move(queue, r, 0); /* to stay at the head; one of rank 0 does anyhow */
            continue;
        }
        r->state = FQ_RUNNING;
        if (fq_queue_unlink(f, r)) break; /* the queue is empty and gone */
    }
    s->count++;
    model->running++;
    pthread_cond_signal(&s->ready);
}

typedef struct fq_candidate {
    fq_queue *queue;
    fq_stream *stream;
    fq_step step;
    uint32_t requests;
} fq_candidate;

/* The queue of `model` that closes now, the one whose turn it is where several do: 1. Otherwise 0, and *until_ns is brought forward if need be. */
static inline int fq_model_ready(fq_former *f, fq_model *model, int64_t now, fq_candidate *out, int64_t *until_ns) {
    fq_free_slots slots = fq_former_slots(f, model, &out->stream);
    out->queue = NULL;
    if (!out->stream) return 0;
    for (fq_queue *queue = model->queues; queue; queue = queue->next) {
        fq_pending pending = fq_queue_pending(queue);
        fq_step step = fq_next_step(now, &pending, &slots, &model->policy);
        if (step.kind == FQ_STEP_WAIT) {
            *until_ns = fq_min_ns(*until_ns, step.until_ns);
        } else if (!out->queue || fq_request_before(queue->head, out->queue->head)) {
            out->queue = queue;
            out->step = step;
            out->requests = pending.requests;
        }
    }
    return out->queue != NULL;
}

/* Closes one batch, of the model whose turn it is: 1, or 0 when no model is ready. */
static inline int fq_former_form_one(fq_former *f, int64_t now, int64_t *until_ns) {
    fq_candidate candidates[FQ_MAX_MODELS];
    fq_share shares[FQ_MAX_MODELS];
    fq_model *models[FQ_MAX_MODELS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < f->model_end; i++) {
        fq_model *model = &f->models[(f->turn + i) % f->model_end];
        if (model->id == 0) continue;
        if (model->waiting == 0) {
            if (model->share.credit_ns > 0) model->share.credit_ns = 0;
            continue;
        }
        if (!fq_model_ready(f, model, now, &candidates[count], until_ns)) continue;
        models[count] = model;
        shares[count++] = model->share;
    }
    if (count == 0) return 0;
    uint32_t pick = fq_next_model(shares, count, 0);
    for (uint32_t i = 0; i < count; i++) models[i]->share = shares[i];
    f->turn = (uint32_t)(models[pick] - f->models + 1) % f->model_end;
    fq_candidate *c = &candidates[pick];
    fq_batch_close(f, c->queue, c->stream, &c->step, c->requests, now);
    return 1;
}

/* Closes every batch that can be closed. *until_ns is brought forward to when to ask again. */
static inline void fq_former_form(fq_former *f, int64_t now, int64_t *until_ns) {
    int64_t ask_ns;
    do {
        ask_ns = *until_ns;
    } while (fq_former_form_one(f, now, &ask_ns));
    *until_ns = ask_ns;
}

#endif
