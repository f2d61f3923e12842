/* The I/O threads: their loop, what others want of them, and the one that accepts. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fq_bell.h"
#include "native_moderation.h"
#include "native_state.h"

enum { EVENTS = 128 };

void hr_count(_Atomic uint64_t *counter, int64_t by) {
    atomic_fetch_add_explicit(counter, (uint64_t)by, memory_order_relaxed);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* ---- commands ---- */

void hr_io_post(hr_io *io, hr_command *command) {
    uint64_t one = 1;
    command->next = NULL;
    pthread_mutex_lock(&io->lock);
    bool first = io->first_command == NULL;
    *io->last_command = command;
    io->last_command = &command->next;
    pthread_mutex_unlock(&io->lock);
    if (first && write(io->wake, &one, sizeof one) < 0) return; /* it is full of rings already */
}

static hr_command *next_command(hr_io *io) {
    pthread_mutex_lock(&io->lock);
    hr_command *command = io->first_command;
    if (command) io->first_command = command->next;
    if (io->first_command == NULL) io->last_command = &io->first_command;
    pthread_mutex_unlock(&io->lock);
    return command;
}

static void run_commands(hr_io *io) {
    uint64_t rings;
    if (read(io->wake, &rings, sizeof rings) < 0) rings = 0; /* nobody rang */
    for (hr_command *command; (command = next_command(io));) command->run(io, command);
}

/* A command whose sender waits. */
typedef struct hr_errand {
    hr_command command; /* first: a command is this */
    void (*what)(hr_io *io, void *argument);
    void *argument;
    bool done;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} hr_errand;

static void run_errand(hr_io *io, hr_command *command) {
    hr_errand *errand = (hr_errand *)(void *)command;
    errand->what(io, errand->argument);
    pthread_mutex_lock(&errand->lock);
    errand->done = true;
    pthread_cond_signal(&errand->changed);
    pthread_mutex_unlock(&errand->lock);
}

/* Has `what` done on the thread, and waits for it. */
void hr_io_ask(hr_io *io, void (*what)(hr_io *, void *), void *argument) {
    hr_errand errand = {.command.run = run_errand, .what = what, .argument = argument};
    pthread_mutex_init(&errand.lock, NULL);
    pthread_cond_init(&errand.changed, NULL);
    hr_io_post(io, &errand.command);
    pthread_mutex_lock(&errand.lock);
    while (!errand.done) pthread_cond_wait(&errand.changed, &errand.lock);
    pthread_mutex_unlock(&errand.lock);
    pthread_cond_destroy(&errand.changed);
    pthread_mutex_destroy(&errand.lock);
}

/* ---- accepting ---- */

typedef struct hr_hand_over {
    hr_command command; /* first: a command is this */
    int fd;
} hr_hand_over;

static void run_hand_over(hr_io *io, hr_command *command) {
    hr_hand_over *over = (hr_hand_over *)(void *)command;
    hr_connection_new(io, over->fd);
    free(over);
}

static hr_io *least_loaded(hr_native *n) {
    hr_io *least = &n->ios[0];
    for (uint32_t i = 1; i < n->options.threads; i++)
        if (atomic_load(&n->ios[i].connection_count) < atomic_load(&least->connection_count)) least = &n->ios[i];
    return least;
}

static uint32_t connections(const hr_native *n) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n->options.threads; i++) sum += atomic_load(&n->ios[i].connection_count);
    return sum;
}

static void hand_over(hr_io *io, int fd) {
    hr_io *to = least_loaded(io->native);
    if (connections(io->native) >= io->native->options.max_connections) {
        close(fd);
        return;
    }
    atomic_fetch_add(&to->connection_count, 1);
    if (to == io) {
        hr_connection_new(io, fd);
        return;
    }
    hr_hand_over *over = malloc(sizeof *over);
    if (over == NULL) {
        atomic_fetch_sub(&to->connection_count, 1);
        close(fd);
        return;
    }
    *over = (hr_hand_over){.command.run = run_hand_over, .fd = fd};
    hr_io_post(to, &over->command);
}

static void accept_all(hr_io *io) {
    const hr_native *n = io->native;
    for (uint32_t i = 0; i < n->listener_count; i++)
        for (int fd; (fd = accept4(n->listeners[i], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) hand_over(io, fd);
}

/* ---- timers ---- */

int hr_io_set_timer(hr_io *io, hr_timer *timer, int64_t at_ns) {
    hr_deadlines *all = &io->deadlines;
    hr_deadlines_remove(all, timer);
    if (at_ns == INT64_MAX) return 0;
    if (all->count == all->room && hr_deadlines_grow(all, all->room ? all->room : 1024) < 0) return -1;
    hr_deadlines_add(all, timer, at_ns);
    return 0;
}

static void expire(hr_io *io) {
    for (hr_timer *timer; (timer = hr_deadlines_first(&io->deadlines)) && timer->at_ns <= io->now_ns;) {
        if (timer->kind == HR_TIMER_CONNECTION) hr_lifetime_expire((hr_connection *)(void *)timer);
        else hr_stream_expire((hr_stream *)(void *)timer);
    }
}

/* ---- the loop ---- */

static int64_t next_deadline(const hr_io *io) {
    int64_t at = hr_dispatch_next_deadline(io->dispatch);
    const hr_timer *timer = hr_deadlines_first(&io->deadlines);
    return timer && timer->at_ns < at ? timer->at_ns : at;
}

static int timeout_ms(hr_io *io) {
    int64_t at = next_deadline(io);
    if (!hr_dispatch_arm(io->dispatch)) return 0;
    if (at == INT64_MAX) return -1;
    int64_t left = at - now_ns();
    if (left <= 0) return 0;
    return left > 60000000000ll ? 60000 : (int)((left + 999999) / 1000000);
}

static void handle(hr_io *io, const struct epoll_event *event) {
    if (event->data.ptr == io) run_commands(io);
    else if (event->data.ptr == io->native) accept_all(io);
    else if (event->data.ptr == io->dispatch) hr_dispatch_heard(io->dispatch); /* answers are taken after every wake-up */
    else hr_connection_read(event->data.ptr);
}

/* What a wake-up does, at `now_ns`. */
static void turn(hr_io *io, const struct epoll_event *events, int count) {
    for (int i = 0; i < count; i++) handle(io, &events[i]);
    hr_dispatch_ring(io->dispatch); /* the workers have something to do while we send */
    hr_infer_answers(io);
    expire(io);
    hr_connections_say(io);
    hr_messages_leave_arena(io);
}

static void nap(void) {
    struct timespec span = {.tv_nsec = HR_NAP_NS};
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
}

static void *loop(void *argument) {
    hr_io *io = argument;
    struct epoll_event events[EVENTS];
    (void)prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul); /* a nap is as long as it says */
    while (!io->stopping) {
        int64_t asked_ns = now_ns();
        int count = epoll_wait(io->epoll, events, EVENTS, timeout_ms(io));
        io->now_ns = now_ns();
        turn(io, events, count);
        if (hr_should_nap(io->now_ns - asked_ns, hr_dispatch_outstanding(io->dispatch))) nap();
    }
    while (io->connections) hr_connection_close(io->connections);
    return NULL;
}

/* ---- making and ending ---- */

int hr_io_watch(hr_io *io, int fd, void *who) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = who};
    return epoll_ctl(io->epoll, EPOLL_CTL_ADD, fd, &event);
}

static int make_io(hr_native *n, uint32_t number, hr_error *err) {
    hr_io *io = &n->ios[number];
    io->native = n;
    io->number = number;
    io->last_command = &io->first_command;
    pthread_mutex_init(&io->lock, NULL);
    io->dispatch = hr_dispatch_new(n->options.arena_mb, n->options.spill_mb, n->options.slots, err);
    if (io->dispatch == NULL) return -1;
    hr_dispatch_limit_messages(io->dispatch, n->options.max_message_bytes);
    if (n->options.triton) hr_dispatch_refuse_oversize(io->dispatch);
    io->epoll = epoll_create1(EPOLL_CLOEXEC);
    io->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    io->buffer = malloc(HR_READ);
    io->sealed = malloc(HR_SEALED_READ);
    if (io->epoll < 0 || io->wake < 0 || io->buffer == NULL || io->sealed == NULL || hr_io_watch(io, io->wake, io) < 0 ||
        hr_io_watch(io, hr_dispatch_eventfd(io->dispatch), io->dispatch) < 0)
        return hr_fail(err, HR_RESOURCE_EXHAUSTED, "an I/O thread cannot be made: %s", strerror(errno));
    io->now_ns = now_ns();
    return 0;
}

static int start_io(hr_native *n, hr_io *io, hr_error *err) {
    if (pthread_create(&io->thread, NULL, loop, io) != 0)
        return hr_fail(err, HR_RESOURCE_EXHAUSTED, "an I/O thread cannot be started");
    n->started_threads++;
    return 0;
}

hr_native *hr_native_new(const hr_native_options *options, hr_error *err) {
    hr_native *n = calloc(1, sizeof *n);
    if (n != NULL) n->ios = calloc(options->threads, sizeof *n->ios);
    if (n == NULL || n->ios == NULL || hr_connections_init() != 0) {
        hr_fail(err, HR_RESOURCE_EXHAUSTED, "no memory for a front end of %u threads", options->threads);
        if (n) free(n->ios);
        free(n);
        return NULL;
    }
    n->options = *options;
    n->last_event = &n->first_event;
    n->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&n->event_lock, NULL);
    for (uint32_t i = 0; i < options->threads; i++) {
        n->ios[i].epoll = n->ios[i].wake = -1;
        if (make_io(n, i, err) == 0 && start_io(n, &n->ios[i], err) == 0) continue;
        hr_native_free(n);
        return NULL;
    }
    return n;
}

static void stop(hr_io *io, void *argument) {
    (void)argument;
    io->stopping = true;
}

static void free_list(hr_io *io) {
    for (hr_stream *s = io->free_streams, *next; s; s = next) {
        next = s->newer;
        free(s);
    }
    for (hr_entry *e = io->free_entries, *next; e; e = next) {
        next = e->newer;
        free(e);
    }
}

static void free_io(hr_io *io) {
    for (hr_command *command; (command = next_command(io));) command->run(io, command); /* whose calls have ended */
    free_list(io);
    hr_dispatch_free(io->dispatch);
    free(io->deadlines.heap);
    free(io->buffer);
    hr_tls_free_thread(io);
    if (io->epoll >= 0) close(io->epoll);
    if (io->wake >= 0) close(io->wake);
    pthread_mutex_destroy(&io->lock);
}

void hr_native_free(hr_native *n) {
    for (uint32_t i = 0; i < n->started_threads; i++) {
        hr_io_ask(&n->ios[i], stop, NULL);
        pthread_join(n->ios[i].thread, NULL);
    }
    for (uint32_t i = 0; i < n->options.threads; i++)
        if (n->ios[i].native) free_io(&n->ios[i]);
    for (hr_event *event; (event = hr_native_next_event(n));) hr_event_free(event);
    hr_native_stop_listening(n);
    close(n->event_fd);
    pthread_mutex_destroy(&n->event_lock);
    free(n->ios);
    free(n);
}
