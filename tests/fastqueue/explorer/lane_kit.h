/* lane_kit.h: one lane with its two ends, for cancel.c and slot.c. Each end waits as its process does: the worker as the
 * former thread, on the futex in its page; the front end on its eventfd. */
#ifndef LANE_KIT_H
#define LANE_KIT_H

#include <string.h>

#include "bell_seam.h"
#include "explorer.h"
#include "fq_lane.h"

enum { KIT_SLOTS = 2 };

typedef struct lane_kit {
    _Alignas(FQ_LINE) unsigned char memory[2 * FQ_PAGE]; /* the lane; fq_lane_bytes(2, 2) */
    fq_bell worker_bell;
    uint32_t eventfd;
    fq_front_lane front;
    fq_worker_lane worker;
    uint32_t free_slots[KIT_SLOTS];
    unsigned char states[KIT_SLOTS];
} lane_kit;

static inline void kit_setup(lane_kit *kit, uint32_t slots) {
    memset(kit, 0, sizeof *kit);
    fq_lane_format(kit->memory, slots, slots);
    fq_lane_attach(&kit->front.lane, kit->memory, slots, slots, 1);
    fq_lane_attach(&kit->worker.lane, kit->memory, slots, slots, 0);
    kit->front.worker = &kit->worker_bell;
    fq_front_lane_init(&kit->front, kit->free_slots, kit->states);
}

/* ---- the front end ---- */

static inline void kit_wake_worker(lane_kit *kit, int must) {
    ex_claim(must >= 0, "a ring was full");
    if (must > 0) fq_bell_wake(kit->front.worker);
}

static inline void kit_publish(lane_kit *kit, uint32_t number, const fq_slot *request) {
    fq_data_put(&kit->front.lane.slots[number].model, &request->model, sizeof *request - offsetof(fq_slot, model));
    kit_wake_worker(kit, fq_lane_publish(&kit->front, number));
}

/* Claims a slot, fills it as request `model`, publishes it. Its number, or -1 when none is free. */
static inline int kit_submit(lane_kit *kit, uint32_t model) {
    uint32_t number;
    if (!fq_lane_claim(&kit->front, &number)) return -1;
    kit_publish(kit, number, &(fq_slot){.model = model, .rows = 1, .tenant = model});
    return (int)number;
}

static inline void kit_cancel(lane_kit *kit, uint32_t number) {
    kit_wake_worker(kit, fq_lane_cancel(&kit->front, number));
}

static inline void kit_retire(lane_kit *kit, uint32_t number, int answered) {
    kit_wake_worker(kit, fq_lane_retire(&kit->front, number, answered));
}

/* Waits for a completion. */
static inline void kit_await(lane_kit *kit, fq_completion *done) {
    while (fq_lane_poll(&kit->front, done) == 0)
        if (fq_front_lane_arm(&kit->front)) ex_event_wait(&kit->eventfd);
}

/* ---- the worker ---- */

/* Goes to sleep, unless something of `wanted` is there. */
static inline void kit_worker_sleep(lane_kit *kit, uint32_t wanted) {
    fq_bell_arm(&kit->worker_bell, wanted);
    if (!fq_worker_lane_waiting(&kit->worker, wanted)) fq_bell_sleep(&kit->worker_bell, wanted, FQ_NEVER);
    fq_bell_disarm(&kit->worker_bell);
}

/* Waits for a submission: the slot's number. */
static inline uint32_t kit_take(lane_kit *kit, fq_slot *copy) {
    uint32_t number = 0;
    int taken;
    while ((taken = fq_lane_take(&kit->worker, &number, copy)) == 0) kit_worker_sleep(kit, FQ_WANT_SUBMIT);
    ex_claim(taken == 1, "a slot that does not exist was submitted");
    return number;
}

static inline void kit_post(lane_kit *kit, const fq_completion *done) {
    ex_claim(fq_lane_post(&kit->worker, done), "the completion ring was full");
    if (fq_lane_ring_front(&kit->worker)) ex_event_write(&kit->eventfd);
}

#endif
