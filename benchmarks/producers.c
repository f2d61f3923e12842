/* producers.c: what a front-end thread does to the queue, and nothing else: a closed loop of equal requests over
 * one lane. benchmarks/worker.py compiles it (cc -shared, with fastqueue's headers) and calls it from a thread
 * per lane, without the interpreter's lock. Every request is copied into the arena, as one that was received.
 */
#include <poll.h>
#include <stdlib.h>

#include "fq_fill.h"
#include "fq_lane.h"
#include "fq_map.h"
#include "fq_queue.h"

enum stage { WARMING, COUNTING, OVER };

typedef struct producer {
    int lane_fd, arena_fd, event_fd, page_fd, output_fd;
    uint32_t slots, blocks; /* of the lane, of the arena */
    uint32_t model, rows, rank, in_flight;
    uint32_t room;          /* for latencies */
    const int64_t *dims;
    const void *data;
    uint64_t length;
    uint32_t *latencies_us; /* of the requests answered while `stage` was COUNTING, up to `room` */
    const _Atomic uint32_t *stage;
    uint64_t answered, failed; /* while it was COUNTING */
} producer;

typedef struct state {
    fq_front_lane front;
    fq_input input;
    unsigned char *arena;
    fq_extent (*blocks)[FQ_FILL_BLOCKS]; /* of each slot */
    uint32_t *taken;
    uint64_t *sent_ns;
    uint32_t out;
} state;

static int send_some(producer *p, state *s) {
    fq_source source = {.rank = p->rank, .dims = p->dims, .data = p->data, .length = p->length};
    uint32_t number, pushed = 0;
    fq_slot *slot;
    while (s->out < p->in_flight && (slot = fq_lane_claim(&s->front, &number)) != NULL) {
        s->taken[number] = fq_fill(&s->input, s->arena, &source, 1, s->blocks[number], slot);
        if (s->taken[number] == 0) {
            fq_lane_free(&s->front, number);
            break;
        }
        slot->model = p->model;
        slot->rows = p->rows;
        slot->priority = 0;
        slot->arrival_ns = s->sent_ns[number] = fq_monotonic_ns();
        slot->deadline_ns = FQ_NEVER;
        if (fq_lane_push(&s->front, number) < 0) return -1;
        s->out++;
        pushed++;
    }
    if (pushed && fq_bell_take(s->front.worker, FQ_WANT_SUBMIT)) fq_bell_wake(s->front.worker);
    return 0;
}

static void take_answer(producer *p, state *s, const fq_completion *done) {
    uint32_t number = done->slot;
    if (atomic_load_explicit(p->stage, memory_order_relaxed) == COUNTING) {
        if (p->answered < p->room)
            p->latencies_us[p->answered] = (uint32_t)((fq_monotonic_ns() - s->sent_ns[number]) / 1000);
        p->answered++;
        p->failed += done->status != 0;
    }
    fq_input_free(&s->input, s->blocks[number], s->taken[number]);
    if (fq_lane_retire(&s->front, number, done->answer.length != 0)) fq_bell_wake(s->front.worker);
    s->out--;
}

static int wait_for_answers(producer *p, state *s) {
    struct pollfd waiting = {.fd = p->event_fd, .events = POLLIN};
    uint64_t count;
    if (!fq_front_lane_arm(&s->front)) return 0;
    if (poll(&waiting, 1, 10000) != 1) return -1;
    return read(p->event_fd, &count, sizeof count) == sizeof count ? 0 : -1;
}

static int run(producer *p, state *s) {
    fq_completion done;
    int got;
    for (;;) {
        int over = atomic_load_explicit(p->stage, memory_order_relaxed) == OVER;
        if (over && s->out == 0) return 0;
        if (!over && send_some(p, s) < 0) return -1;
        if (wait_for_answers(p, s) < 0) return -1;
        while ((got = fq_lane_poll(&s->front, &done)) != 0)
            if (got > 0 && (done.flags & FQ_FINAL)) take_answer(p, s, &done);
    }
}

/* Sends and counts until `stage` is OVER and all is answered: 0; -1: no memory, a full ring, or 10 s without an answer. */
int produce(producer *p) {
    state s = {.out = 0};
    uint64_t bytes;
    void *lane = fq_map_open(p->lane_fd, 1, &bytes);
    fq_worker_page *page = fq_map_open(p->page_fd, 1, &bytes);
    s.arena = fq_map_open(p->arena_fd, 1, &bytes);
    s.blocks = calloc(p->slots, sizeof *s.blocks);
    s.taken = calloc(p->slots, sizeof *s.taken);
    s.sent_ns = calloc(p->slots, sizeof *s.sent_ns);
    uint32_t *free_slots = calloc(p->slots, sizeof *free_slots);
    unsigned char *states = calloc(p->slots, 1);
    void *books = calloc(1, fq_input_private_bytes(p->blocks));
    if (!lane || !page || !s.arena || !s.blocks || !s.taken || !s.sent_ns || !free_slots || !states || !books)
        return -1;
    fq_input_init(&s.input, p->blocks, books);
    fq_lane_attach(&s.front.lane, lane, p->slots, p->slots, 1);
    fq_front_lane_init(&s.front, free_slots, states);
    s.front.worker = &page->bell;
    return run(p, &s);
}
