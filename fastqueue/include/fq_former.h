/* fq_former.h: the worker's side of everything: its state, and the batch former.
 *
 * The former is a monitor: one worker-local lock, and whoever holds it may make the next step. The worker's former
 * thread sleeps on the bell and steps when it is rung; a launcher that comes for its next batch steps first, so that
 * under load the next batch is formed by the thread that runs it, and nobody has to be woken. The lock is taken a few
 * times per batch, never per request, and cannot outlive the process: no other process ever waits for it.
 *
 *   drain   every lane's submissions, releases and cancels                             fq_former_drain
 *   expire  what has waited past its deadline, or its queue time-out                   fq_expire.h
 *   form    while a launch slot is free: ask the policy, close batches                 fq_form.h
 *
 * A batch is monotonic: a queue of waiting requests is what other designs call the open batch; closing gives it a number,
 * a stream and a list of parts; it is launched once and done once.
 *
 *   launch slot   FREE -> CLOSED -> LAUNCHED -> FREE       two per stream, used in turn
 *
 * Files: fq_request.h a request, fq_queue.h what waits and in which order, fq_policy.h when to close, fq_form.h how;
 * fq_batch.h what a launcher does with a batch.
 */
#ifndef FQ_FORMER_H
#define FQ_FORMER_H

#include "fq_form.h"

/* ---- drain ---- */

static inline fq_model *fq_former_model(fq_former *f, uint32_t id) {
    for (uint32_t i = 0; id != 0 && i < f->model_end; i++)
        if (f->models[i].id == id) return &f->models[i];
    return NULL;
}

/* `flags`: FQ_AGAIN, or 0. */
static inline void fq_former_refuse(fq_former *f, fq_request *r, uint32_t status, uint32_t flags, const char *text) {
    r->flags = flags;
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

/* Whether the request's level has as many waiting as its queue policy allows, after whatever can be done about that now. */
static inline int fq_former_is_full(fq_former *f, const fq_request *r, int64_t now) {
    const fq_model *model = r->model;
    uint32_t most = model->levels[r->level].max_queue;
    int64_t until_ns = FQ_NEVER;
    if (most == 0 || model->queued[r->level] < most) return 0;
    fq_former_expire(f, now);
    fq_former_form(f, now, &until_ns);
    return model->queued[r->level] >= most;
}

/* A new request: into its queue, or refused with a completion. */
static inline void fq_former_accept(fq_former *f, fq_attached *lane, fq_request *r, int64_t now) {
    char text[FQ_TEXT];
    int broken = fq_request_load(r, lane->arena, lane->arena_bytes);
    fq_model *model = r->model = fq_former_model(f, r->slot.model);
    if (!broken && !model) {
        fq_former_refuse(f, r, FQ_UNAVAILABLE, FQ_AGAIN, "the model was unloaded while the request was on its way; send it again");
        return;
    }
    if (!broken) broken = fq_request_check(r, &model->signature, lane->arena_bytes);
    if (!broken && r->slot.rows > model->policy.max_batch && fq_request_bytes(r) == 0)
        broken = 16; /* rows that cost nothing to send would cost as many batches as they claim to be */
    if (broken) {
        (void)snprintf(text, sizeof text, "the request's descriptor breaks rule %d of fq_request.h", broken);
        fq_former_refuse(f, r, FQ_INTERNAL, 0, text);
        return;
    }
    if (r->slot.rows > model->policy.max_batch &&
        fq_former_join_bytes(model, r->slot.rows) > fq_output_most(&f->output, 2)) {
        (void)snprintf(text, sizeof text, "the outputs of %u rows need %llu bytes in one piece, and half of the output arena, or of what it may spill into, has %llu; "
                       "send fewer rows or raise --output-arena-mb or --spill-mb", r->slot.rows,
                       (unsigned long long)fq_former_join_bytes(model, r->slot.rows),
                       (unsigned long long)fq_output_most(&f->output, 2));
        fq_former_refuse(f, r, FQ_EXHAUSTED, 0, text);
        return;
    }
    r->level = fq_level_of(r->slot.priority, model->level_count, model->default_level);
    if (fq_former_is_full(f, r, now)) {
        (void)snprintf(text, sizeof text, "%u requests wait, as many as its queue policy (max_queue_size) allows; try again later", model->levels[r->level].max_queue);
        fq_former_refuse(f, r, FQ_EXHAUSTED, FQ_AGAIN, text);
        return;
    }
    r->key = fq_request_key(r);
    fq_queue *queue = fq_former_queue(f, model, r);
    if (!queue) {
        (void)snprintf(text, sizeof text, "more than %d different input shapes are waiting; try again later", (int)FQ_MAX_QUEUES);
        fq_former_refuse(f, r, FQ_EXHAUSTED, FQ_AGAIN, text);
        return;
    }
    r->state = FQ_WAITING;
    fq_queue_append(queue, r);
    r->queue_until_ns = fq_queue_until_ns(&model->levels[r->level], r->slot.arrival_ns);
    f->next_deadline_ns = fq_min_ns(f->next_deadline_ns, fq_request_expires_ns(r));
}

static inline void fq_request_reset(fq_request *r) {
    r->queue = NULL;
    r->model = NULL;
    r->level = r->rank = r->queued = r->flags = 0;
    r->queue_until_ns = FQ_NEVER;
    r->next_row = r->parts = r->rows_done = r->status = r->text_bytes = 0;
    r->join = r->join_bytes = r->chain = r->batch = 0;
    r->batch_rows = r->reason = 0;
    r->taken_ns = r->input_ns = r->compute_ns = r->output_ns = 0;
    r->answer = (fq_extent){0, 0};
}

static inline void fq_former_releases(fq_former *f, fq_attached *lane) {
    fq_release entry;
    uint32_t count = 0;
    for (; count < lane->end.lane.slot_count && fq_ring_pop(&lane->end.lane.release, &entry); count++)
        if (entry.slot < lane->end.lane.slot_count) (void)fq_answer_drop(f, &lane->answers[entry.slot]);
    fq_output_given_back(f, count);
}

static inline void fq_former_submissions(fq_former *f, fq_attached *lane, int64_t now) {
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
        fq_former_accept(f, lane, r, now);
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

static inline void fq_former_drain(fq_former *f, int64_t now) {
    for (uint32_t i = 0; i < FQ_MAX_LANES; i++) {
        fq_attached *lane = &f->lanes[i];
        if (!lane->used || lane->dead) continue;
        fq_former_releases(f, lane);
        fq_former_submissions(f, lane, now);
        fq_former_cancels(f, lane);
    }
}

/* One step, lock held: everything that can be done now. Returns when to step again if nothing rings before. */
static inline int64_t fq_former_step(fq_former *f) {
    int64_t now = fq_now(f);
    fq_former_drain(f, now);
    fq_former_expire(f, now);
    int64_t until_ns = f->next_deadline_ns;
    fq_former_form(f, now, &until_ns);
    fq_former_ring_fronts(f);
    return until_ns;
}

#endif
