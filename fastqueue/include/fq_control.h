/* fq_control.h: setting a worker up, running it, and taking it down: lanes, models and streams come and go while it serves.
 *
 * The caller gives all memory, zeroed: nothing here allocates. A lane's mappings and private memory may be released
 * only when fq_former_detach has returned; a model's id is never used again.
 */
#ifndef FQ_CONTROL_H
#define FQ_CONTROL_H

#include "fq_batch.h"

/* `page`: the worker page. `output`, `output_bytes`: the output arena, header page included. `output_private`:
 * fq_output_private_bytes(output_bytes / FQ_GRANULE) bytes. */
static inline void fq_former_init(fq_former *f, fq_worker_page *page, void *output, uint64_t output_bytes,
                                  void *output_private) {
    fq_arena_header *header = (fq_arena_header *)output;
    pthread_condattr_t attributes;
    pthread_mutex_init(&f->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_cond_init(&f->memory, &attributes);
    pthread_cond_init(&f->drained, &attributes);
    for (uint32_t i = 0; i < FQ_MAX_STREAMS; i++) pthread_cond_init(&f->streams[i].ready, &attributes);
    pthread_condattr_destroy(&attributes);
    for (uint32_t i = 0; i < FQ_MAX_QUEUES; i++) {
        f->queues[i].next = f->free_queues;
        f->free_queues = &f->queues[i];
    }
    page->version = header->version = FQ_ABI_VERSION;
    page->bytes = sizeof *page;
    page->magic = FQ_MAGIC_WORKER;
    header->bytes = header->head_bytes = output_bytes;
    header->magic = FQ_MAGIC_OUTPUT;
    f->page = page;
    f->output_base = (unsigned char *)output;
    fq_output_init(&f->output, output_bytes, 0, output_private);
    f->fixed_ns = -1;
    f->sleep_until_ns = f->next_deadline_ns = FQ_NEVER;
}

/* Right after fq_former_init: the last `bytes` of the output arena, whose memfd is `fd`, are its tail. */
static inline void fq_former_set_spill(fq_former *f, uint64_t bytes, int fd, fq_punch *punch) {
    fq_output_init(&f->output, f->output.granules * FQ_GRANULE, bytes, f->output.free_bits);
    f->output_fd = fd;
    f->punch = punch;
    ((fq_arena_header *)f->output_base)->head_bytes = f->output.head * FQ_GRANULE;
}

/* Private memory of a lane with `slots` slots on the worker's side, in bytes. */
static inline size_t fq_attached_private_bytes(uint32_t slots) {
    return slots * (sizeof(fq_request) + sizeof(fq_extent) + fq_round_up(FQ_HEADER_MAX, 8));
}

/* The lane's number, or -1 when there is no room. `private_memory` is zeroed. */
static inline int fq_former_attach(fq_former *f, void *lane_memory, uint32_t slots, uint32_t completions,
                                   const void *arena, uint64_t arena_bytes, int eventfd, void *private_memory) {
    int number = -1;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < FQ_MAX_LANES && number < 0; i++)
        if (!f->lanes[i].used) number = i;
    if (number >= 0) {
        fq_attached *lane = &f->lanes[number];
        *lane = (fq_attached){.used = 1, .eventfd = eventfd, .arena_bytes = arena_bytes};
        lane->arena = (const unsigned char *)arena;
        lane->requests = (fq_request *)private_memory;
        lane->answers = (fq_extent *)(lane->requests + slots);
        unsigned char *headers = (unsigned char *)(lane->answers + slots);
        for (uint32_t s = 0; s < slots; s++) {
            lane->requests[s].header = headers + s * fq_round_up(FQ_HEADER_MAX, 8);
            lane->requests[s].lane = (uint32_t)number;
            lane->requests[s].number = s;
        }
        fq_lane_attach(&lane->end.lane, lane_memory, slots, completions, 0);
    }
    pthread_mutex_unlock(&f->lock);
    fq_bell_kick(&f->page->bell);
    return number;
}

/* The front end of a lane is gone: drops what waits, waits for what runs, takes back what was delivered. */
static inline void fq_former_detach(fq_former *f, uint32_t number) {
    fq_attached *lane = &f->lanes[number];
    pthread_mutex_lock(&f->lock);
    lane->dead = 1;
    for (uint32_t s = 0; s < lane->end.lane.slot_count; s++) {
        fq_request *r = &lane->requests[s];
        if (r->state == FQ_WAITING) fq_request_end_waiting(f, r, FQ_UNAVAILABLE, "");
        else if (r->state == FQ_RUNNING) fq_request_error(f, r, FQ_UNAVAILABLE, "");
    }
    while (lane->outstanding) pthread_cond_wait(&f->drained, &f->lock);
    for (uint32_t s = 0; s < lane->end.lane.slot_count; s++) (void)fq_answer_drop(f, &lane->answers[s]);
    fq_output_given_back(f, 1);
    lane->used = 0;
    pthread_mutex_unlock(&f->lock);
    fq_bell_kick(&f->page->bell); /* what it held of the tail is to be punched */
}

typedef struct fq_model_config {
    uint32_t id;
    uint32_t group;       /* the streams it runs on */
    uint32_t max_streams; /* it occupies at most so many at once */
    uint32_t outputs;
    fq_policy policy;
    fq_signature signature;
    int64_t output_row_bytes[FQ_MAX_TENSORS];
    uint32_t level_count;   /* 0: one level without bounds */
    uint32_t default_level; /* from 0 */
    fq_level levels[FQ_MAX_LEVELS];
} fq_model_config;

/* Rows whose outputs fit into the output arena together, when their sizes are known: a batch never closes with more, or small
 * requests would be refused for the company they were put in. At least 1. */
static inline uint32_t fq_model_fitting_rows(const fq_former *f, const fq_model_config *config) {
    uint64_t row = sizeof(fq_answer) + config->outputs * sizeof(fq_slice), room = fq_output_most(&f->output, 1);
    for (uint32_t i = 0; i < config->outputs; i++) {
        if (config->output_row_bytes[i] < 0) return config->policy.max_batch;
        row += (uint64_t)config->output_row_bytes[i];
    }
    room = room > config->outputs * FQ_ALIGN ? room - config->outputs * FQ_ALIGN : 0;
    if (room / row >= config->policy.max_batch) return config->policy.max_batch;
    return room / row > 0 ? (uint32_t)(room / row) : 1;
}

/* The model's number in the worker page, or -1 when FQ_MAX_MODELS are loaded. */
static inline int fq_former_add_model(fq_former *f, const fq_model_config *config) {
    int number = -1;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < FQ_MAX_MODELS && number < 0; i++)
        if (f->models[i].id == 0) number = i;
    if (number >= 0) {
        fq_model *model = &f->models[number];
        *model = (fq_model){.id = config->id, .group = config->group, .max_streams = config->max_streams,
                            .outputs = config->outputs, .policy = config->policy, .signature = config->signature};
        model->policy.max_batch = fq_model_fitting_rows(f, config);
        memcpy(model->output_row_bytes, config->output_row_bytes, sizeof model->output_row_bytes);
        memcpy(model->levels, config->levels, sizeof model->levels);
        model->level_count = config->level_count ? config->level_count : 1;
        model->default_level = config->default_level;
        model->stats = &f->page->models[number];
        memset((void *)model->stats, 0, sizeof *model->stats);
        fq_store_rlx(&model->stats->model, config->id, S1);
        if (f->model_end <= (uint32_t)number) f->model_end = (uint32_t)number + 1;
    }
    pthread_mutex_unlock(&f->lock);
    return number;
}

/* Lock held: a step by somebody who is not the former thread, which may now have to wake earlier than it planned. */
static inline void fq_former_step_for(fq_former *f) {
    int64_t until_ns = fq_former_step(f);
    if (until_ns < f->sleep_until_ns || f->output.stale_granules) fq_bell_kick(&f->page->bell);
}

/* After a batch that somebody else than its launcher has completed: the launcher may sleep, and what waits goes into the slot
 * that is free now. */
static inline void fq_former_slot_freed(fq_former *f) {
    pthread_mutex_lock(&f->lock);
    if (!f->closing) fq_former_step_for(f);
    pthread_mutex_unlock(&f->lock);
}

/* Waits until nothing of the model waits or runs, then forgets it. The front ends have stopped sending to it: what they sent
 * before is in their lanes by now, and is drained first, so that all of it is answered. */
static inline void fq_former_remove_model(fq_former *f, uint32_t id) {
    pthread_mutex_lock(&f->lock);
    fq_model *model = fq_former_model(f, id);
    if (model && !f->closing) fq_former_step_for(f);
    while (model && (model->waiting || model->running)) pthread_cond_wait(&f->drained, &f->lock);
    if (model) {
        fq_store_rlx(&model->stats->model, 0, S1);
        model->id = 0;
    }
    pthread_mutex_unlock(&f->lock);
}

/* The stream's number, or -1 when FQ_MAX_STREAMS are in use. A number is given again as soon as it is removed: whoever removes
 * streams adds none before their launchers have left. */
static inline int fq_former_add_stream(fq_former *f, uint32_t group) {
    int number = -1;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < FQ_MAX_STREAMS && number < 0; i++)
        if (!f->streams[i].used && f->streams[i].count == 0) number = i;
    if (number >= 0) {
        f->streams[number].used = 1;
        f->streams[number].group = group;
        if (f->stream_end <= (uint32_t)number) f->stream_end = (uint32_t)number + 1;
    }
    pthread_mutex_unlock(&f->lock);
    return number;
}

/* Its launcher's fq_stream_next returns NULL once what is closed has been launched. */
static inline void fq_former_remove_stream(fq_former *f, uint32_t number) {
    pthread_mutex_lock(&f->lock);
    f->streams[number].used = 0;
    pthread_cond_broadcast(&f->streams[number].ready);
    pthread_mutex_unlock(&f->lock);
}

/* ---- the watch ---- */

/* A batch that is in its model's hands. */
typedef struct fq_running {
    uint32_t model;
    uint32_t rows;
    uint64_t number;
    int64_t age_ns; /* since its launch, without the time it waited for output memory */
    int64_t slow_after_ns;
    int slow; /* it is slow, and was not when it was looked at before */
} fq_running;

enum { FQ_MAX_RUNNING = FQ_MAX_STREAMS * FQ_LAUNCH_SLOTS };

static inline int64_t fq_batch_age_ns(const fq_batch *b, int64_t now) {
    return (b->stalled_since ? b->stalled_since : now) - b->launched_ns - b->stalled_ns;
}

/* Every launched batch; counts those that have become slow. Their number. */
static inline uint32_t fq_former_watch(fq_former *f, fq_running out[FQ_MAX_RUNNING]) {
    uint32_t count = 0;
    pthread_mutex_lock(&f->lock);
    int64_t now = fq_now(f);
    for (uint32_t i = 0; i < FQ_MAX_RUNNING; i++) {
        fq_batch *b = &f->streams[i / FQ_LAUNCH_SLOTS].slots[i % FQ_LAUNCH_SLOTS];
        if (b->state != FQ_BATCH_LAUNCHED) continue;
        fq_running running = {.model = b->model->id, .rows = b->rows, .number = b->number, .age_ns = fq_batch_age_ns(b, now)};
        running.slow_after_ns = fq_slow_after_ns(fq_predict(b->model, b->rows));
        running.slow = !b->slow && running.age_ns >= running.slow_after_ns;
        if (running.slow) {
            b->slow = 1;
            fq_add(&b->model->stats->slow, 1);
        }
        out[count++] = running;
    }
    pthread_mutex_unlock(&f->lock);
    return count;
}

/* ---- running ---- */

/* A launcher's next batch, launched; waits for one. NULL: the stream is removed or the worker closes. */
static inline fq_batch *fq_stream_next(fq_former *f, uint32_t number) {
    fq_stream *s = &f->streams[number];
    fq_batch *b = NULL;
    pthread_mutex_lock(&f->lock);
    if (!f->closing) fq_former_step_for(f);
    while (!(b = fq_stream_launch(f, s)) && s->used && !f->closing) pthread_cond_wait(&s->ready, &f->lock);
    pthread_mutex_unlock(&f->lock);
    return b;
}

enum { FQ_PUNCH_BYTES = 16 << 20 }; /* at once; others may step in between */

/* Gives some of what is stale back to the system, with the lock let go: 1, or 0 when there was none. Lock held. */
static inline int fq_former_punch(fq_former *f) {
    fq_extent run;
    if (!f->output.stale_granules || !fq_output_take_stale(&f->output, FQ_PUNCH_BYTES, &run)) return 0;
    pthread_mutex_unlock(&f->lock);
    if (f->punch) f->punch(f->output_fd, run.offset, run.length);
    pthread_mutex_lock(&f->lock);
    fq_output_revive(&f->output, run);
    fq_output_given_back(f, 1);
    return 1;
}

/* One step by whoever calls; says when to step again if nothing rings before. */
static inline int64_t fq_former_step_now(fq_former *f) {
    pthread_mutex_lock(&f->lock);
    int64_t until_ns = fq_former_step(f);
    while (fq_former_punch(f)) continue;
    pthread_mutex_unlock(&f->lock);
    return until_ns;
}

/* A closed batch of the stream, launched, without waiting and without a step; NULL: there is none. */
static inline fq_batch *fq_stream_try(fq_former *f, uint32_t number) {
    pthread_mutex_lock(&f->lock);
    fq_batch *b = fq_stream_launch(f, &f->streams[number]);
    pthread_mutex_unlock(&f->lock);
    return b;
}

/* After fq_bell_arm: is there anything to do in any lane? */
static inline int fq_former_waiting(const fq_former *f, uint32_t wanted) {
    for (uint32_t i = 0; i < FQ_MAX_LANES; i++) {
        const fq_attached *lane = &f->lanes[i];
        if (lane->used && !lane->dead && fq_worker_lane_waiting(&lane->end, wanted)) return 1;
    }
    return 0;
}

enum fq_turn { FQ_TURN_AGAIN, FQ_TURN_SLEEP, FQ_TURN_END };

/* Steps, and says what to do next: for FQ_TURN_SLEEP, the events wanted and until when. */
static inline enum fq_turn fq_former_turn(fq_former *f, uint32_t *wanted, int64_t *until_ns) {
    enum fq_turn next = FQ_TURN_SLEEP;
    pthread_mutex_lock(&f->lock);
    *until_ns = f->sleep_until_ns = fq_former_step(f);
    int punched = fq_former_punch(f);
    *wanted = FQ_WANT_SUBMIT | (f->memory_waiters || fq_output_spilled(&f->output) ? FQ_WANT_RELEASE : 0u);
    fq_bell_arm(&f->page->bell, *wanted);
    if (punched || fq_former_waiting(f, *wanted)) next = FQ_TURN_AGAIN;
    if (f->closing) next = FQ_TURN_END;
    if (next != FQ_TURN_SLEEP) fq_bell_disarm(&f->page->bell);
    pthread_mutex_unlock(&f->lock);
    return next;
}

/* The former thread: until fq_former_close. */
static inline void fq_former_run(fq_former *f) {
    uint32_t wanted;
    int64_t until_ns;
    enum fq_turn next;
    while ((next = fq_former_turn(f, &wanted, &until_ns)) != FQ_TURN_END) {
        if (next == FQ_TURN_AGAIN) continue;
        fq_bell_sleep(&f->page->bell, wanted, until_ns);
        fq_bell_disarm(&f->page->bell);
    }
}

/* Ends the former thread and every launcher after what it has launched. Requests that wait stay unanswered: whoever closes
 * a worker that still has some ends its lanes, and their front ends answer. */
static inline void fq_former_close(fq_former *f) {
    pthread_mutex_lock(&f->lock);
    f->closing = 1;
    pthread_cond_broadcast(&f->memory);
    for (uint32_t i = 0; i < FQ_MAX_STREAMS; i++) pthread_cond_broadcast(&f->streams[i].ready);
    pthread_mutex_unlock(&f->lock);
    fq_bell_kick(&f->page->bell);
}

#endif
