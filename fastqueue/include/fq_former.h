/* fq_former.h: the worker's side of everything: its state, and the batch former.
 *
 * The former is a monitor: one worker-local lock, and whoever holds it may make the next step. The worker's former
 * thread sleeps on the bell and steps when it is rung; a launcher that comes for its next batch steps first, so that
 * under load the next batch is formed by the thread that runs it, and nobody has to be woken. The lock is taken a few
 * times per batch, never per request, and cannot outlive the process: no other process ever waits for it.
 *
 *   drain   every lane's submissions, releases and cancels                             fq_former_drain
 *   expire  what has waited past its deadline                                          fq_former_expire
 *   form    while a launch slot is free: ask the policy, close batches                 fq_former_form
 *
 * A batch is monotonic: a queue of waiting requests is what other designs call the open batch; closing gives it a number,
 * a stream and a list of parts; it is launched once and done once.
 *
 *   launch slot   FREE -> CLOSED -> LAUNCHED -> FREE       two per stream, used in turn
 *
 * Files: fq_request.h what waits, fq_policy.h when to close, here how; fq_batch.h what a launcher does with a batch.
 */
#ifndef FQ_FORMER_H
#define FQ_FORMER_H

#include "fq_finish.h"

/* ---- drain ---- */

static inline fq_model *fq_former_model(fq_former *f, uint32_t id) {
    for (uint32_t i = 0; id != 0 && i < FQ_MAX_MODELS; i++)
        if (f->models[i].id == id) return &f->models[i];
    return NULL;
}

static inline fq_queue *fq_former_queue(fq_former *f, fq_model *model, const fq_request *r) {
    fq_queue *queue = model->queues;
    while (queue && !fq_request_same_key(queue->head, r)) queue = queue->next;
    if (queue || !f->free_queues) return queue;
    queue = f->free_queues;
    f->free_queues = queue->next;
    *queue = (fq_queue){.next = model->queues, .model = model};
    model->queues = queue;
    return queue;
}

static inline void fq_queue_append(fq_queue *queue, fq_request *r) {
    r->queue = queue;
    r->next = NULL;
    r->prev = queue->tail;
    if (queue->tail)
        queue->tail->next = r;
    else
        queue->head = r;
    queue->tail = r;
    queue->model->waiting++;
    fq_stats_pending(queue->model->stats, (int64_t)r->slot.rows);
}

static inline void fq_former_refuse(fq_former *f, fq_request *r, uint32_t status, const char *text) {
    r->state = FQ_RUNNING;
    fq_request_error(f, r, status, text);
    fq_request_finish(f, r);
}

/* Bytes of output that a request of known output sizes needs in one piece; 0 when they are not known. */
static inline uint64_t fq_former_join_bytes(const fq_model *model, uint32_t rows) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->outputs; i++) {
        if (model->output_row_bytes[i] < 0) return 0;
        bytes += fq_round_up((uint64_t)model->output_row_bytes[i] * rows, FQ_ALIGN);
    }
    return bytes;
}

/* A new request: into its queue, or refused with a completion. */
static inline void fq_former_accept(fq_former *f, fq_attached *lane, fq_request *r) {
    char text[FQ_TEXT];
    int broken = fq_request_load(r, lane->arena, lane->arena_bytes);
    fq_model *model = r->model = fq_former_model(f, r->slot.model);
    if (!broken && !model) {
        fq_former_refuse(f, r, FQ_UNAVAILABLE, "the model was unloaded while the request was on its way; send it again");
        return;
    }
    if (!broken) broken = fq_request_check(r, &model->signature, lane->arena_bytes);
    if (!broken && r->slot.rows > model->policy.max_batch && fq_request_bytes(r) == 0)
        broken = 16; /* rows that cost nothing to send would cost as many batches as they claim to be */
    if (broken) {
        (void)snprintf(text, sizeof text, "the request's descriptor breaks rule %d of fq_request.h", broken);
        fq_former_refuse(f, r, FQ_INTERNAL, text);
        return;
    }
    if (r->slot.rows > model->policy.max_batch &&
        fq_former_join_bytes(model, r->slot.rows) > fq_output_capacity(&f->output) / 2) {
        (void)snprintf(text, sizeof text, "the outputs of %u rows need %llu bytes in one piece and half of the output arena has %llu; "
                       "send fewer rows or raise --output-arena-mb", r->slot.rows,
                       (unsigned long long)fq_former_join_bytes(model, r->slot.rows),
                       (unsigned long long)(fq_output_capacity(&f->output) / 2));
        fq_former_refuse(f, r, FQ_EXHAUSTED, text);
        return;
    }
    r->key = fq_request_key(r);
    fq_queue *queue = fq_former_queue(f, model, r);
    if (!queue) {
        (void)snprintf(text, sizeof text, "more than %d different input shapes are waiting; try again later", (int)FQ_MAX_QUEUES);
        fq_former_refuse(f, r, FQ_EXHAUSTED, text);
        return;
    }
    r->state = FQ_WAITING;
    fq_queue_append(queue, r);
    if (r->slot.deadline_ns < f->next_deadline_ns) f->next_deadline_ns = r->slot.deadline_ns;
}

static inline void fq_request_reset(fq_request *r) {
    r->queue = NULL;
    r->next_row = r->parts = r->rows_done = r->status = r->text_bytes = 0;
    r->join = r->join_bytes = r->chain = r->batch = 0;
    r->batch_rows = r->reason = 0;
    r->taken_ns = r->input_ns = r->compute_ns = r->output_ns = 0;
    r->answer = (fq_extent){0, 0};
}

static inline void fq_former_releases(fq_former *f, fq_attached *lane) {
    fq_release entry;
    uint64_t freed = 0;
    for (uint32_t i = 0; i < lane->end.lane.slot_count && fq_ring_pop(&lane->end.lane.release, &entry); i++)
        if (entry.slot < lane->end.lane.slot_count) freed += fq_answer_drop(f, &lane->answers[entry.slot]);
    if (freed && f->memory_waiters) pthread_cond_broadcast(&f->memory);
}

static inline void fq_former_submissions(fq_former *f, fq_attached *lane) {
    fq_slot copy;
    uint32_t number = 0;
    /* As many as an honest front end can have out; one gone mad does not hold the lock for ever. */
    for (uint32_t i = 0; i < lane->end.lane.slot_count; i++) {
        int taken = fq_lane_take(&lane->end, &number, &copy);
        if (taken == 0) break;
        /* A number that is out of range or still ours is a broken front end's: it gets nothing for it. */
        if (taken < 0 || lane->requests[number].state != FQ_IDLE) continue;
        /* The release of the slot's last answer was pushed before this submission, perhaps after we looked. It must be
         * taken before the slot's next answer is written down in its place. */
        if (lane->answers[number].length) fq_former_releases(f, lane);
        fq_request *r = &lane->requests[number];
        fq_request_reset(r);
        memcpy(&r->slot.model, &copy.model, sizeof copy - offsetof(fq_slot, model));
        lane->outstanding++;
        fq_former_accept(f, lane, r);
        /* A cancel announced between the drain before this one and its look at the count is seen here only. */
        if (r->state == FQ_WAITING && fq_lane_cancelled(&lane->end, number))
            fq_request_end_waiting(f, r, FQ_CANCELLED, "cancelled by the client");
    }
}

static inline void fq_former_cancels(fq_former *f, fq_attached *lane) {
    if (!fq_lane_cancels_moved(&lane->end)) return;
    for (uint32_t i = 0; i < lane->end.lane.slot_count; i++) {
        fq_request *r = &lane->requests[i];
        if (r->state != FQ_WAITING || !fq_lane_cancelled(&lane->end, i)) continue;
        fq_request_end_waiting(f, r, FQ_CANCELLED, "cancelled by the client");
    }
}

static inline void fq_former_drain(fq_former *f) {
    for (uint32_t i = 0; i < FQ_MAX_LANES; i++) {
        fq_attached *lane = &f->lanes[i];
        if (!lane->used || lane->dead) continue;
        fq_former_releases(f, lane);
        fq_former_submissions(f, lane);
        fq_former_cancels(f, lane);
    }
}

/* ---- expire ---- */

static inline void fq_former_expire(fq_former *f, int64_t now) {
    if (now < f->next_deadline_ns) return;
    f->next_deadline_ns = FQ_NEVER;
    for (uint32_t i = 0; i < FQ_MAX_LANES; i++) {
        fq_attached *lane = &f->lanes[i];
        for (uint32_t s = 0; lane->used && s < lane->end.lane.slot_count; s++) {
            fq_request *r = &lane->requests[s];
            if (r->state != FQ_WAITING) continue;
            if (r->slot.deadline_ns <= now)
                fq_request_end_waiting(f, r, FQ_DEADLINE, "the deadline passed while the request waited in the queue");
            else if (r->slot.deadline_ns < f->next_deadline_ns)
                f->next_deadline_ns = r->slot.deadline_ns;
        }
    }
}

/* ---- form ---- */

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
    for (uint32_t i = 0; i < FQ_MAX_STREAMS; i++)
        if (f->streams[i].used && fq_stream_has(&f->streams[i], model)) occupied++;
    for (uint32_t i = 0; i < FQ_MAX_STREAMS; i++) {
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

static inline fq_pending fq_queue_pending(const fq_queue *queue) {
    const fq_model *model = queue->model;
    uint32_t max = model->policy.max_batch;
    fq_pending pending = {.oldest_ns = queue->head->slot.arrival_ns, .deadline_ns = FQ_NEVER};
    for (const fq_request *r = queue->head; r; r = r->next) {
        uint32_t rows = fq_request_fit(r, max - pending.rows, max);
        if ((rows == 0 && r->slot.rows != 0) || pending.requests == FQ_MAX_PARTS) {
            pending.full = 1;
            break;
        }
        pending.rows += rows;
        pending.requests++;
        pending.deadline_ns = fq_min_ns(pending.deadline_ns, r->slot.deadline_ns);
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
    b->rows = b->part_count = 0;
    b->closed_ns = now;
    b->launched_ns = b->input_ns = b->compute_ns = 0;
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
        uint32_t rows = fq_request_fit(r, model->policy.max_batch - b->rows, model->policy.max_batch);
        b->parts[b->part_count++] = (fq_part){r, r->next_row, rows};
        b->rows += rows;
        r->next_row += rows;
        r->parts++;
        fq_stats_pending(model->stats, -(int64_t)rows);
        if (r->next_row < r->slot.rows) continue;
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

/* The oldest queue of `model` that closes now: 1. Otherwise 0, and *until_ns is brought forward if need be. */
static inline int fq_model_ready(fq_former *f, fq_model *model, int64_t now, fq_candidate *out, int64_t *until_ns) {
    fq_free_slots slots = fq_former_slots(f, model, &out->stream);
    int64_t oldest = FQ_NEVER;
    out->queue = NULL;
    if (!out->stream) return 0;
    for (fq_queue *queue = model->queues; queue; queue = queue->next) {
        fq_pending pending = fq_queue_pending(queue);
        fq_step step = fq_next_step(now, &pending, &slots, &model->policy);
        if (step.kind == FQ_STEP_WAIT) {
            *until_ns = fq_min_ns(*until_ns, step.until_ns);
        } else if (!out->queue || pending.oldest_ns < oldest) {
            oldest = pending.oldest_ns;
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
    for (uint32_t i = 0; i < FQ_MAX_MODELS; i++) {
        fq_model *model = &f->models[(f->turn + i) % FQ_MAX_MODELS];
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
    f->turn = (uint32_t)(models[pick] - f->models + 1) % FQ_MAX_MODELS;
    fq_candidate *c = &candidates[pick];
    fq_batch_close(f, c->queue, c->stream, &c->step, c->requests, now);
    return 1;
}

/* One step, lock held: everything that can be done now. Returns when to step again if nothing rings before. */
static inline int64_t fq_former_step(fq_former *f) {
    int64_t now = fq_now(f), until_ns;
    fq_former_drain(f);
    fq_former_expire(f, now);
    do {
        until_ns = f->next_deadline_ns;
    } while (fq_former_form_one(f, now, &until_ns));
    fq_former_ring_fronts(f);
    return until_ns;
}

#endif
