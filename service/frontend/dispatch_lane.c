/* The memory of a front-end thread: its arena, and lanes that come and go with their workers. */
#include <errno.h>
#include <sys/eventfd.h>

#include "dispatch_state.h"
#include "fq_map.h"

static uint32_t power_of_two(uint32_t n) {
    uint32_t power = 1;
    while (power < n && power < FQ_MAX_SLOTS) power *= 2;
    return power;
}

/* ---- the thread ---- */

static int make_arena(hr_dispatch *d, uint32_t arena_mb, uint32_t spill_mb, hr_error *err) {
    uint32_t blocks = arena_mb * ((1u << 20) / FQ_LARGE);
    uint64_t spill = (uint64_t)spill_mb << 20;
    d->arena_bytes = fq_input_arena_bytes(blocks) + spill;
    d->arena_fd = fq_map_create("headrace-input", d->arena_bytes);
    if (d->arena_fd >= 0) d->arena = fq_map_open(d->arena_fd, 1, &d->arena_bytes);
    if (d->arena == NULL)
        return hr_fail(err, HR_RESOURCE_EXHAUSTED,
                       "an input arena of %u MB (--arena-mb) and %u MB (--spill-mb) cannot be made: %s", arena_mb,
                       spill_mb, strerror(errno));
    d->arena_private = malloc(fq_input_private_bytes(blocks));
    d->spill_private = calloc(1, fq_spill_private_bytes(spill) + 1);
    if (d->arena_private == NULL || d->spill_private == NULL)
        return hr_fail(err, HR_RESOURCE_EXHAUSTED, "no memory for an input arena of %u MB (--arena-mb)", arena_mb);
    fq_input_init(&d->input, blocks, d->arena_private);
    fq_input_add_spill(&d->input, spill, d->arena_fd, fq_map_punch, d->spill_private);
    fq_arena_header *header = (fq_arena_header *)(void *)d->arena;
    header->version = FQ_ABI_VERSION;
    header->bytes = d->arena_bytes;
    header->head_bytes = d->arena_bytes - spill;
    header->magic = FQ_MAGIC_INPUT;
    return 0;
}

static int make_thread(hr_dispatch *d, uint32_t arena_mb, uint32_t spill_mb, hr_error *err) {
    d->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (d->eventfd < 0) return hr_fail(err, HR_RESOURCE_EXHAUSTED, "no eventfd: %s", strerror(errno));
    return make_arena(d, arena_mb, spill_mb, err);
}

hr_dispatch *hr_dispatch_new(uint32_t arena_mb, uint32_t spill_mb, uint32_t slots, hr_error *err) {
    if (arena_mb < 1 || arena_mb > UINT32_MAX / 8 || spill_mb > UINT32_MAX / 8 || slots < 1 || slots > FQ_MAX_SLOTS) {
        hr_fail(err, HR_INVALID_ARGUMENT, "expected at least 1 MB of input arena and 1 to %u slots, got %u and %u",
                FQ_MAX_SLOTS, arena_mb, slots);
        return NULL;
    }
    hr_dispatch *d = calloc(1, sizeof *d);
    if (d == NULL) {
        hr_fail(err, HR_RESOURCE_EXHAUSTED, "no memory for a front-end thread");
        return NULL;
    }
    d->slots = power_of_two(slots);
    d->max_message = INT32_MAX;
    d->arena_fd = d->eventfd = -1;
    if (make_thread(d, arena_mb, spill_mb, err) == 0) return d;
    hr_dispatch_free(d);
    return NULL;
}

static void close_fd(int fd) {
    if (fd >= 0) close(fd);
}

static void unmap(void *at, uint64_t bytes) {
    if (at != NULL) munmap(at, bytes);
}

/* ---- lanes ---- */

/* Ends all of a lane but `pending`, which says what its requests had of the arena. */
static void unmap_lane(hr_lane *lane) {
    unmap(lane->memory, lane->bytes);
    unmap(lane->page, lane->page_bytes);
    unmap((void *)(uintptr_t)lane->output, lane->output_bytes);
    close_fd(lane->fd);
    free(lane->free_slots);
    free(lane->states);
    *lane = (hr_lane){.fd = -1, .pending = lane->pending};
}

static void free_lane(hr_lane *lane) {
    unmap_lane(lane);
    free(lane->pending);
    *lane = (hr_lane){.fd = -1};
}

static int make_lane(hr_dispatch *d, hr_lane *lane, uint8_t number) {
    lane->bytes = fq_lane_bytes(d->slots, d->slots);
    lane->fd = fq_map_create("headrace-lane", lane->bytes);
    if (lane->fd < 0) return -1;
    lane->memory = fq_map_open(lane->fd, 1, &lane->bytes);
    lane->pending = calloc(d->slots, sizeof *lane->pending);
    lane->free_slots = calloc(d->slots, sizeof *lane->free_slots);
    lane->states = calloc(d->slots, 1);
    if (!lane->memory || !lane->pending || !lane->free_slots || !lane->states) return -1;
    for (uint32_t i = 0; i < d->slots; i++) {
        lane->pending[i].slot = i;
        lane->pending[i].lane = number;
    }
    fq_lane_format(lane->memory, d->slots, d->slots);
    fq_lane_attach(&lane->front.lane, lane->memory, d->slots, d->slots, 1);
    fq_front_lane_init(&lane->front, lane->free_slots, lane->states);
    lane->open = true;
    return 0;
}

int hr_dispatch_open_lane(hr_dispatch *d, int *lane_fd, hr_error *err) {
    uint32_t number = 0;
    while (number < HR_MAX_LANES && (d->lanes[number].open || d->lanes[number].closed)) number++;
    if (number == HR_MAX_LANES)
        return hr_fail(err, HR_RESOURCE_EXHAUSTED, "expected at most %d workers, got one more", HR_MAX_LANES);
    hr_lane *lane = &d->lanes[number];
    lane->fd = -1;
    uint32_t room = (number + 1) * d->slots;
    if ((d->deadlines.room < room && hr_deadlines_grow(&d->deadlines, room - d->deadlines.room) < 0) ||
        make_lane(d, lane, (uint8_t)number) < 0) {
        int saved = errno;
        free_lane(lane);
        return hr_fail(err, HR_RESOURCE_EXHAUSTED, "a lane of %u slots (--slots-per-lane) cannot be made: %s", d->slots,
                       strerror(saved));
    }
    if (number >= d->lane_count) d->lane_count = number + 1;
    *lane_fd = lane->fd;
    return (int)number;
}

static int map_page(hr_lane *lane, int fd, hr_error *err) {
    lane->page = fq_map_open(fd, 1, &lane->page_bytes);
    if (lane->page == NULL)
        return hr_fail(err, HR_INTERNAL, "the worker's page cannot be mapped: expected a sealed memfd: %s",
                       strerror(errno));
    if (lane->page_bytes < sizeof(fq_worker_page) || lane->page->magic != FQ_MAGIC_WORKER ||
        lane->page->version != FQ_ABI_VERSION)
        return hr_fail(err, HR_INTERNAL, "the worker's page has another layout: expected version %u, got %u",
                       FQ_ABI_VERSION, lane->page->version);
    return 0;
}

static int map_output(hr_lane *lane, int fd, hr_error *err) {
    lane->output = fq_map_open(fd, 0, &lane->output_bytes);
    const fq_arena_header *header = (const fq_arena_header *)(const void *)lane->output;
    if (header == NULL)
        return hr_fail(err, HR_INTERNAL, "the output arena cannot be mapped: expected a sealed memfd: %s",
                       strerror(errno));
    if (lane->output_bytes < FQ_PAGE || header->magic != FQ_MAGIC_OUTPUT || header->version != FQ_ABI_VERSION)
        return hr_fail(err, HR_INTERNAL, "the output arena has another layout: expected version %u, got %u",
                       FQ_ABI_VERSION, header->version);
    return 0;
}

int hr_dispatch_attach(hr_dispatch *d, uint32_t number, int page_fd, int output_fd, hr_error *err) {
    hr_lane *lane = number < HR_MAX_LANES ? &d->lanes[number] : NULL;
    if (lane == NULL || !lane->open || lane->attached)
        return hr_fail(err, HR_INTERNAL, "expected a lane that waits for its worker, got number %u", number);
    if (map_page(lane, page_fd, err) < 0 || map_output(lane, output_fd, err) < 0) {
        unmap(lane->page, lane->page_bytes);
        unmap((void *)(uintptr_t)lane->output, lane->output_bytes);
        lane->page = NULL;
        lane->output = NULL;
        return -1;
    }
    lane->front.worker = &lane->page->bell;
    lane->attached = true;
    if (d->armed) (void)fq_front_lane_arm(&lane->front); /* the thread sleeps: this lane must ring too */
    return 0;
}

int hr_dispatch_next_lost(hr_dispatch *d, uint32_t number, hr_answer *out) {
    hr_lane *lane = &d->lanes[number];
    for (uint32_t i = 0; lane->open && i < d->slots; i++) {
        hr_pending *p = &lane->pending[i];
        if (p->state != HR_WAITING) continue;
        hr_deadlines_remove(&d->deadlines, &p->timer);
        p->state = HR_GONE;
        out->token = p->token;
        out->code = HR_UNAVAILABLE;
        out->held = false;
        out->completion = (fq_completion){0};
        hr_answer_names(out, p);
        hr_fail(&out->error, out->code,
                "the worker of this model ended while it held the request; it is starting again, try later");
        hr_answer_finish(out, p);
        return 1;
    }
    return 0;
}

uint32_t hr_dispatch_close_lane(hr_dispatch *d, uint32_t number, uint64_t *tokens) {
    uint32_t count = 0;
    if (number >= HR_MAX_LANES || !d->lanes[number].open) return 0;
    hr_lane *lane = &d->lanes[number];
    for (uint32_t i = 0; i < d->slots; i++) {
        hr_pending *p = &lane->pending[i];
        if (p->state == HR_IDLE) continue;
        bool read = p->state != HR_TAKEN; /* the worker may be reading its input */
        if (p->state == HR_WAITING && tokens != NULL) tokens[count++] = p->token;
        hr_pending_clear(d, p);
        if (read) p->state = HR_ASIDE;
    }
    for (uint32_t i = 0; d->table != NULL && i < d->table->count; i++)
        if (d->table->specs[i]->worker == number) d->table->specs[i]->worker = HR_NO_LANE; /* the next one has its own */
    unmap_lane(lane);
    lane->closed = true;
    return count;
}

void hr_dispatch_free_lane(hr_dispatch *d, uint32_t number) {
    if (number >= HR_MAX_LANES || !d->lanes[number].closed) return;
    hr_lane *lane = &d->lanes[number];
    for (uint32_t i = 0; i < d->slots; i++) {
        hr_pending *p = &lane->pending[i];
        if (p->state == HR_ASIDE) fq_input_free(&d->input, p->blocks, p->block_count);
    }
    free_lane(lane);
}

void hr_dispatch_free(hr_dispatch *d) {
    if (d == NULL) return;
    for (uint32_t i = 0; i < d->lane_count; i++) {
        hr_dispatch_close_lane(d, i, NULL);
        hr_dispatch_free_lane(d, i);
    }
    hr_table_drop(d->table);
    unmap(d->arena, d->arena_bytes);
    close_fd(d->arena_fd);
    close_fd(d->eventfd);
    free(d->arena_private);
    free(d->spill_private);
    free(d->deadlines.heap);
    free(d);
}
