/* fq_queue.h: the requests that wait: one list per (model, batch key), in the order in which they are to be taken.
 *
 * The order is by rank (fq_policy.h), and by arrival within one: the queue knows the last request of every rank, so that a new
 * one finds its place at once, however many wait.
 *
 * A request whose first part was taken stays at the head until its last part is, whoever comes: it may hold output memory for
 * all its parts (fq_reserve.h), and who waits for that memory must never stand before it.
 *
 * WHO WAITS, for max_queue and for the queue time-out: from the time a request is taken in until its first part is on its way
 * into the model. That is the close of its batch where the stream was idle, and the launch where the batch had to queue behind
 * another (fq_request_leaves). So a model's bound counts what the engine has not begun, and nothing else.
 */
#ifndef FQ_QUEUE_H
#define FQ_QUEUE_H

#include "fq_stats.h"

/* ---- the list ---- */

static inline void fq_queue_insert(fq_queue *queue, fq_request *r) {
    uint64_t before = queue->ranks & (UINT64_MAX >> (63 - r->rank)); /* that go first */
    fq_request *prev = before ? queue->last[63 - __builtin_clzll(before)] : NULL;
    r->prev = prev;
    r->next = prev ? prev->next : queue->head;
    if (r->next) r->next->prev = r;
    *(prev ? &prev->next : &queue->head) = r;
    queue->last[r->rank] = r;
    queue->ranks |= UINT64_C(1) << r->rank;
}

static inline void fq_queue_remove(fq_queue *queue, const fq_request *r) {
    if (queue->last[r->rank] == r) {
        if (r->prev && r->prev->rank == r->rank)
            queue->last[r->rank] = r->prev;
        else
            queue->ranks &= ~(UINT64_C(1) << r->rank);
    }
    *(r->prev ? &r->prev->next : &queue->head) = r->next;
    if (r->next) r->next->prev = r->prev;
}

/* Behind everybody of another rank. */
static inline void fq_queue_move(fq_queue *queue, fq_request *r, uint32_t rank) {
    fq_queue_remove(queue, r);
    r->rank = rank;
    fq_queue_insert(queue, r);
}

/* ---- with its model ---- */

/* The queue for this request, or NULL when there is none left. */
static inline fq_queue *fq_former_queue(fq_former *f, fq_model *model, const fq_request *r) {
    fq_queue *queue = model->queues;
    while (queue && !fq_request_same_key(queue->head, r)) queue = queue->next;
    if (queue || !f->free_queues) return queue;
    queue = f->free_queues;
    f->free_queues = queue->next;
    queue->head = NULL;
    queue->ranks = 0;
    queue->model = model;
    queue->next = model->queues;
    model->queues = queue;
    return queue;
}

static inline void fq_queue_append(fq_queue *queue, fq_request *r) {
    r->queue = queue;
    r->rank = fq_rank(r->level, 0);
    r->queued = 1;
    fq_queue_insert(queue, r);
    queue->model->waiting++;
    queue->model->queued[r->level]++;
    fq_stats_pending(queue->model->stats, (int64_t)r->slot.rows);
}

/* The request does not wait any more, or is gone. */
static inline void fq_request_leaves(fq_request *r) {
    if (r->queued) r->model->queued[r->level]--;
    r->queued = 0;
}

/* Takes a request out of its queue. 1 when the queue is empty now, and gone. */
static inline int fq_queue_unlink(fq_former *f, fq_request *r) {
    fq_queue *queue = r->queue;
    fq_model *model = queue->model;
    fq_queue_remove(queue, r);
    r->queue = NULL;
    if (--model->waiting == 0) pthread_cond_broadcast(&f->drained);
    if (queue->head) return 0;
    fq_queue **at = &model->queues;
    while (*at != queue) at = &(*at)->next;
    *at = queue->next;
    queue->next = f->free_queues;
    f->free_queues = queue;
    return 1;
}

/* Whether the queue headed by `a` has its turn before the one headed by `b`. */
static inline int fq_request_before(const fq_request *a, const fq_request *b) {
    int begun_a = a->next_row != 0, begun_b = b->next_row != 0;
    if (begun_a != begun_b) return begun_a;
    if (a->rank != b->rank) return a->rank < b->rank;
    return a->slot.arrival_ns < b->slot.arrival_ns;
}

#endif
