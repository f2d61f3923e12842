/* fq_lane.h: the two ends of a lane.
 *
 * The life of a slot, in the words that code, documents and metrics use:
 *
 *   FREE       in the front end's free list
 *   CLAIMED    the front end fills the slot and its header                      fq_lane_claim
 *   PUBLISHED  its number is on the submission ring; the worker owns it         fq_lane_push
 *   FINAL      the FINAL completion was taken: the input blocks are free        fq_lane_poll
 *   FREE       the answer was let go of                                         fq_lane_retire
 *
 * Every published slot gets exactly one FINAL completion, whatever happened to the request, and nothing else
 * ends its life: a cancel or a passed deadline is answered to the client at once, by the front end alone, and the slot
 * lives on until the worker lets go of it.
 *
 * RINGS NEVER FILL. A slot has at most one entry on the submission ring, and is not published again before its
 * FINAL completion; so `slots` entries suffice there, and on the completion ring. A slot is published again only
 * after its release was pushed, and the worker drains the release ring after it has taken a submission and before it
 * completes it: so no slot has two entries there either, and the slot's last answer is given back before its next one.
 *
 * CANCEL. The front end sets the slot's word (X1), then the count of cancels (X3), then looks at the bell. The
 * worker compares the count with the one it last saw (X4) and, when it differs, reads the words of what it holds
 * (X2). A claim clears the word (X0) before the slot is published, so a cancel can only meet the request it was
 * meant for.
 */
#ifndef FQ_LANE_H
#define FQ_LANE_H

#include "fq_layout.h"

/* What both ends keep in private memory. */
typedef struct fq_lane {
    fq_lane_header *header;
    fq_ring submission;
    fq_ring completion;
    fq_ring release;
    fq_slot *slots;
    char *texts;
    uint32_t slot_count;
} fq_lane;

/* Writes the header of a new, zeroed lane of fq_lane_bytes(slots, completions) bytes. */
static inline void fq_lane_format(void *memory, uint32_t slots, uint32_t completions) {
    fq_lane_header *header = (fq_lane_header *)memory;
    header->version = FQ_ABI_VERSION;
    header->slots = slots;
    header->completions = completions;
    header->bytes = fq_lane_bytes(slots, completions);
    header->magic = FQ_MAGIC_LANE;
}

static inline int fq_is_power_of_two(uint32_t n) { return n != 0 && (n & (n - 1)) == 0; }

/* The number of the broken rule, 0 when the lane may be attached. `copy` is a private copy of the header's first
 * 32 bytes, `mapped` the size of the mapping. */
static inline int fq_lane_check_header(const fq_lane_header *copy, uint64_t mapped) {
    if (copy->magic != FQ_MAGIC_LANE) return 1;
    if (copy->version != FQ_ABI_VERSION) return 2;
    if (!fq_is_power_of_two(copy->slots) || copy->slots > FQ_MAX_SLOTS) return 3;
    if (!fq_is_power_of_two(copy->completions) || copy->completions < copy->slots) return 4;
    if (copy->completions > 32 * copy->slots) return 4;
    if (copy->bytes != fq_lane_bytes(copy->slots, copy->completions) || copy->bytes > mapped) return 5;
    return 0;
}

static inline void fq_lane_attach(fq_lane *lane, void *memory, uint32_t slots, uint32_t completions, int front) {
    unsigned char *at = (unsigned char *)memory;
    fq_lane_header *header = (fq_lane_header *)memory;
    lane->header = header;
    lane->slots = (fq_slot *)(at + fq_lane_slots_at(slots, completions));
    lane->texts = (char *)(at + fq_lane_texts_at(slots, completions));
    lane->slot_count = slots;
    fq_ring_attach(&lane->submission, &header->submission, at + fq_lane_submissions_at(), slots,
                   sizeof(fq_submission), front);
    fq_ring_attach(&lane->completion, &header->completion, at + fq_lane_completions_at(slots), completions,
                   sizeof(fq_completion), !front);
    fq_ring_attach(&lane->release, &header->release, at + fq_lane_releases_at(slots, completions), slots,
                   sizeof(fq_release), front);
}

static inline char *fq_lane_text(const fq_lane *lane, uint32_t slot) { return lane->texts + (size_t)slot * FQ_TEXT; }

/* ---- the front end's end ---- */

enum fq_slot_state { FQ_SLOT_FREE, FQ_SLOT_CLAIMED, FQ_SLOT_PUBLISHED, FQ_SLOT_FINAL };

typedef struct fq_front_lane {
    fq_lane lane;
    fq_bell *worker;       /* in the worker page */
    uint32_t *free_slots;  /* caller's memory: `slots` numbers, a stack */
    unsigned char *states; /* caller's memory: `slots` fq_slot_state */
    uint32_t free_count;
} fq_front_lane;

static inline void fq_front_lane_init(fq_front_lane *front, uint32_t *free_slots, unsigned char *states) {
    uint32_t n = front->lane.slot_count;
    front->free_slots = free_slots;
    front->states = states;
    front->free_count = n;
    for (uint32_t i = 0; i < n; i++) {
        free_slots[i] = n - 1 - i;
        states[i] = FQ_SLOT_FREE;
    }
}

/* A slot to fill, or NULL when all are in use. *number is its name from here on. */
static inline fq_slot *fq_lane_claim(fq_front_lane *front, uint32_t *number) {
    if (front->free_count == 0) return NULL;
    *number = front->free_slots[--front->free_count];
    front->states[*number] = FQ_SLOT_CLAIMED;
    fq_slot *slot = &front->lane.slots[*number];
    fq_store_rlx(&slot->cancelled, 0, X0);
    return slot;
}

static inline void fq_lane_free(fq_front_lane *front, uint32_t number) {
    front->states[number] = FQ_SLOT_FREE;
    front->free_slots[front->free_count++] = number;
}

/* Hands the slot to the worker, whose bell the caller rings (FQ_WANT_SUBMIT) after the last of those that it has now.
 * -1: the ring was full, which only a broken peer can bring about; the slot is still the caller's. */
static inline int fq_lane_push(fq_front_lane *front, uint32_t number) {
    fq_submission entry = {.slot = number};
    if (!fq_ring_push(&front->lane.submission, &entry)) return -1;
    front->states[number] = FQ_SLOT_PUBLISHED;
    return 0;
}

/* The same for one alone: 1 when the caller must wake the worker (fq_bell_wake), 0 when it is awake; or -1. */
static inline int fq_lane_publish(fq_front_lane *front, uint32_t number) {
    return fq_lane_push(front, number) < 0 ? -1 : fq_bell_take(front->worker, FQ_WANT_SUBMIT);
}

/* Asks the worker to drop the request. 1: wake it. The slot's FINAL completion still comes. */
static inline int fq_lane_cancel(fq_front_lane *front, uint32_t number) {
    fq_a64 *count = &front->lane.header->cancels;
    fq_store_rlx(&front->lane.slots[number].cancelled, 1, X1);
    fq_store_sc(count, fq_load_rlx(count, X6) + 1, X3);
    return fq_bell_take(front->worker, FQ_WANT_SUBMIT);
}

/* Takes one completion: 1, or 0 when there is none. A completion of a slot that is not out is a broken peer's
 * and is dropped: -1. After FINAL the slot's input blocks are the caller's again. */
static inline int fq_lane_poll(fq_front_lane *front, fq_completion *completion) {
    if (!fq_ring_pop(&front->lane.completion, completion)) return 0;
    uint32_t number = completion->slot;
    if (number >= front->lane.slot_count || front->states[number] != FQ_SLOT_PUBLISHED) return -1;
    if (completion->text_bytes > FQ_TEXT) completion->text_bytes = FQ_TEXT;
    if (completion->flags & FQ_FINAL) front->states[number] = FQ_SLOT_FINAL;
    return 1;
}

/* The slot's answer has been copied or sent: gives its memory back to the worker (`answered`: there was one) and
 * frees the slot. 1: wake the worker. */
static inline int fq_lane_retire(fq_front_lane *front, uint32_t number, int answered) {
    fq_release entry = {.slot = number};
    int pushed = answered && fq_ring_push(&front->lane.release, &entry);
    fq_lane_free(front, number);
    return pushed && fq_bell_take(front->worker, FQ_WANT_RELEASE);
}

/* About to sleep: 1 when it may, 0 when completions came in the meantime (the bell is disarmed again). */
static inline int fq_front_lane_arm(fq_front_lane *front) {
    fq_bell_arm(&front->lane.header->front, FQ_WANT_COMPLETE);
    if (!fq_ring_waiting(&front->lane.completion)) return 1;
    fq_bell_disarm(&front->lane.header->front);
    return 0;
}

/* ---- the worker's end ---- */

typedef struct fq_worker_lane {
    fq_lane lane;
    uint64_t cancels_seen;
} fq_worker_lane;

/* 1 when the count of cancels has moved: the caller then reads the words of what it holds. */
static inline int fq_lane_cancels_moved(fq_worker_lane *worker) {
    uint64_t count = fq_load_acq(&worker->lane.header->cancels, X4);
    int moved = count != worker->cancels_seen;
    worker->cancels_seen = count;
    return moved;
}

static inline int fq_lane_cancelled(const fq_worker_lane *worker, uint32_t slot) {
    return fq_load_rlx(&worker->lane.slots[slot].cancelled, X2) != 0;
}

/* Takes one submission and copies its slot: 1, or 0 when there is none; -1: no such slot, a broken peer's. */
static inline int fq_lane_take(fq_worker_lane *worker, uint32_t *number, fq_slot *copy) {
    fq_submission entry;
    if (!fq_ring_pop(&worker->lane.submission, &entry)) return 0;
    if (entry.slot >= worker->lane.slot_count) return -1;
    *number = entry.slot;
    const fq_slot *slot = &worker->lane.slots[entry.slot];
    fq_data_get(&copy->model, &slot->model, sizeof(fq_slot) - offsetof(fq_slot, model));
    return 1;
}

/* Posts a completion; the caller rings the front bell once it has posted all it has. */
static inline int fq_lane_post(fq_worker_lane *worker, const fq_completion *completion) {
    return fq_ring_push(&worker->lane.completion, completion);
}

/* Posted completions: 1 when the front end sleeps and must be woken through its eventfd. */
static inline int fq_lane_ring_front(fq_worker_lane *worker) {
    return fq_bell_take(&worker->lane.header->front, FQ_WANT_COMPLETE);
}

/* After fq_bell_arm: 1 when this lane has something for a worker that wants `wanted`. */
static inline int fq_worker_lane_waiting(const fq_worker_lane *worker, uint32_t wanted) {
    if (fq_ring_waiting(&worker->lane.submission)) return 1;
    if ((wanted & FQ_WANT_RELEASE) && fq_ring_waiting(&worker->lane.release)) return 1;
    return fq_load_sc(&worker->lane.header->cancels, X5) != worker->cancels_seen;
}

#endif
