/* What the rest of the process asks of the I/O threads: each question is carried out there, and the caller waits. */
#include <unistd.h>

#include "native_state.h"

typedef struct listen_errand {
    int fd, failed;
} listen_errand;

static void listen_on(hr_io *io, void *argument) {
    hr_native *n = io->native;
    listen_errand *e = argument;
    e->failed = n->listener_count == HR_LISTENERS || hr_io_watch(io, e->fd, n) < 0;
    if (!e->failed) n->listeners[n->listener_count++] = e->fd;
}

int hr_native_listen(hr_native *n, int fd, hr_error *err) {
    listen_errand errand = {.fd = fd};
    hr_io_ask(&n->ios[0], listen_on, &errand);
    if (!errand.failed) return 0;
    close(fd);
    return hr_fail(err, HR_INTERNAL, "the listening socket cannot be watched");
}

typedef struct lane_errand {
    uint32_t lane;
    int result, lane_fd, page_fd, output_fd;
    hr_error *err;
} lane_errand;

static void open_lane(hr_io *io, void *argument) {
    lane_errand *e = argument;
    e->result = hr_dispatch_open_lane(io->dispatch, &e->lane_fd, e->err);
}

static void attach(hr_io *io, void *argument) {
    lane_errand *e = argument;
    e->result = hr_dispatch_attach(io->dispatch, e->lane, e->page_fd, e->output_fd, e->err);
}

/* What the worker has answered is an answer; the rest is told that it is gone. */
static void close_lane(hr_io *io, void *argument) {
    lane_errand *e = argument;
    hr_infer_answers(io);
    hr_infer_lost(io, e->lane);
    hr_messages_leave_lane(io, e->lane);
    hr_dispatch_close_lane(io->dispatch, e->lane, NULL);
}

static void free_lane(hr_io *io, void *argument) { hr_dispatch_free_lane(io->dispatch, ((lane_errand *)argument)->lane); }

static void set_table(hr_io *io, void *table) { hr_dispatch_set_table(io->dispatch, table); }

static void drain(hr_io *io, void *argument) {
    (void)argument;
    io->draining = true;
    for (hr_connection *c = io->connections; c; c = c->older) hr_connection_drain(c);
}

void hr_native_stop_listening(hr_native *n) {
    while (n->listener_count > 0) close(n->listeners[--n->listener_count]);
}

static void go(hr_io *io, void *argument) {
    hr_native *n = io->native;
    (void)argument;
    if (io == &n->ios[0]) hr_native_stop_listening(n);
    for (hr_connection *c = io->connections; c; c = c->older) hr_lifetime_go(c);
}

static void hang_up(hr_io *io, void *argument) {
    (void)argument;
    for (hr_connection *c = io->connections; c; c = c->older) {
        c->broken = true; /* not at once: events of this wake-up may name it */
        hr_connection_touch(c);
    }
}

static void outstanding(hr_io *io, void *sum) { *(uint64_t *)sum += hr_dispatch_outstanding(io->dispatch); }

uint32_t hr_native_threads(const hr_native *n) { return n->options.threads; }

int hr_native_open_lane(hr_native *n, uint32_t thread, int *lane_fd, hr_error *err) {
    lane_errand errand = {.err = err};
    hr_io_ask(&n->ios[thread], open_lane, &errand);
    *lane_fd = errand.lane_fd;
    return errand.result;
}

void hr_native_fds(const hr_native *n, uint32_t thread, int *arena_fd, int *eventfd) {
    *arena_fd = hr_dispatch_arena_fd(n->ios[thread].dispatch);
    *eventfd = hr_dispatch_eventfd(n->ios[thread].dispatch);
}

int hr_native_attach(hr_native *n, uint32_t thread, uint32_t lane, int page_fd, int output_fd, hr_error *err) {
    lane_errand errand = {.lane = lane, .page_fd = page_fd, .output_fd = output_fd, .err = err};
    hr_io_ask(&n->ios[thread], attach, &errand);
    return errand.result;
}

void hr_native_close_lane(hr_native *n, uint32_t thread, uint32_t lane) {
    lane_errand errand = {.lane = lane};
    hr_io_ask(&n->ios[thread], close_lane, &errand);
}

void hr_native_free_lane(hr_native *n, uint32_t thread, uint32_t lane) {
    lane_errand errand = {.lane = lane};
    hr_io_ask(&n->ios[thread], free_lane, &errand);
}

void hr_native_set_table(hr_native *n, uint32_t thread, hr_table *table) { hr_io_ask(&n->ios[thread], set_table, table); }
void hr_native_started(hr_native *n) { atomic_store(&n->started, true); }

void hr_native_drain(hr_native *n) {
    for (uint32_t i = 0; i < n->options.threads; i++) hr_io_ask(&n->ios[i], drain, NULL);
}

void hr_native_go(hr_native *n) {
    for (uint32_t i = 0; i < n->options.threads; i++) hr_io_ask(&n->ios[i], go, NULL);
}

void hr_native_hang_up(hr_native *n) {
    for (uint32_t i = 0; i < n->options.threads; i++) hr_io_ask(&n->ios[i], hang_up, NULL);
}

uint64_t hr_native_in_flight(const hr_native *n) { return atomic_load(&n->in_flight); }
uint64_t hr_native_calls(const hr_native *n) { return atomic_load(&n->calls); }
uint64_t hr_native_streams(const hr_native *n) { return atomic_load(&n->streams); }
uint64_t hr_native_rejected(const hr_native *n, int code) { return atomic_load(&n->rejected[code]); }
uint64_t hr_native_refused_draining(const hr_native *n) { return atomic_load(&n->refused_draining); }
uint64_t hr_native_answer_bytes(const hr_native *n) { return atomic_load(&n->answer_bytes); }
int hr_native_event_fd(const hr_native *n) { return n->event_fd; }

static void unsent(hr_io *io, void *sum) {
    for (hr_connection *c = io->connections; c; c = c->older)
        *(uint64_t *)sum += c->stream_count + (c->out.pending + c->sealed > 0 || c->going != HR_STAYS);
}

uint64_t hr_native_unsent(hr_native *n) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n->options.threads; i++) hr_io_ask(&n->ios[i], unsent, &sum);
    return sum;
}

uint64_t hr_native_outstanding(hr_native *n) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n->options.threads; i++) hr_io_ask(&n->ios[i], outstanding, &sum);
    return sum;
}

static void arena_used(hr_io *io, void *sum) { *(uint64_t *)sum += hr_dispatch_arena_used(io->dispatch); }

uint64_t hr_native_arena_used(hr_native *n) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n->options.threads; i++) hr_io_ask(&n->ios[i], arena_used, &sum);
    return sum;
}

static void check(hr_io *io, void *broken) {
    if (*(int *)broken == 0) *(int *)broken = hr_dispatch_check(io->dispatch);
}

int hr_native_check(hr_native *n) {
    int broken = 0;
    for (uint32_t i = 0; i < n->options.threads; i++) hr_io_ask(&n->ios[i], check, &broken);
    return broken;
}
