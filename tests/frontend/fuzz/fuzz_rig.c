/* What the targets share; fuzz_rig.h tells the story. */
#include "fuzz_rig.h"

#include "fq_lane.h"
#include "fq_former.h"
#include "fq_map.h"
#include "native_thread.c" /* for the wake-up itself, which nobody else may call */

enum { OUTPUT = 4 << 20, WIDE = 32 << 10, MESSAGE = 1 << 20, MS = 1000000 };

static hr_native *native;
static fq_worker_lane worker;
static uint8_t *output;
static uint64_t output_at = FQ_PAGE;
static hr_spec *specs[FUZZ_MODELS];

/* ---- models ---- */

static hr_tensor_spec tensor(const char *name, enum hr_datatype datatype, int64_t dim) {
    return (hr_tensor_spec){.name = hr_view_of(name), .datatype = datatype, .rank = 1, .dims = {dim}};
}

static hr_spec *model(uint32_t id, const char *name, uint32_t max_batch_size, hr_tensor_spec x, hr_tensor_spec y) {
    hr_error err;
    hr_spec *draft = calloc(1, sizeof *draft);
    *draft = (hr_spec){.name = hr_view_of(name), .version = hr_view_of("1"), .id = id, .max_batch_size = max_batch_size,
                       .levels = 2, .input_count = 1, .output_count = 1};
    draft->inputs[0] = x;
    draft->outputs[0] = y;
    if (max_batch_size == 0) draft->inputs[draft->input_count++] = tensor("z", HR_INT32, 2);
    hr_spec *spec = hr_spec_new(draft, &err);
    FUZZ_EXPECT(spec != NULL);
    free(draft);
    return spec;
}

static hr_table *models(void) {
    static const uint32_t ends[] = {3, 6};
    hr_error err;
    hr_tensor_spec labelled = tensor("y", HR_FP32, 4), text = tensor("x", HR_BYTES_DATATYPE, 1);
    labelled.labels = hr_view_of("onetwo");
    labelled.label_ends = (hr_view){(const uint8_t *)ends, sizeof ends};
    text.text = true;
    hr_spec *made[] = {
        model(1, "f", 8, tensor("x", HR_FP32, 4), labelled),
        model(2, "t", 8, text, tensor("y", HR_FP32, 4)),
        model(3, "w", 8, tensor("x", HR_UINT8, 1), tensor("y", HR_UINT8, WIDE)),
        model(4, "u", 0, tensor("x", HR_INT64, -1), tensor("y", HR_FP32, 4)),
    };
    memcpy(specs, made, sizeof specs); /* which stay held */
    hr_table *table = hr_table_new(specs, FUZZ_MODELS, &err);
    FUZZ_EXPECT(table != NULL);
    return table;
}

/* ---- the worker ---- */

static int page(void) {
    uint64_t bytes;
    int fd = fq_map_create("fuzz-page", fq_round_up(sizeof(fq_worker_page), FQ_PAGE));
    fq_worker_page *at = fq_map_open(fd, 1, &bytes);
    FUZZ_EXPECT(at != NULL);
    at->magic = FQ_MAGIC_WORKER;
    at->version = FQ_ABI_VERSION;
    munmap(at, bytes);
    return fd;
}

static int output_arena(void) {
    uint64_t bytes;
    int fd = fq_map_create("fuzz-output", OUTPUT);
    output = fq_map_open(fd, 1, &bytes);
    FUZZ_EXPECT(output != NULL);
    *(fq_arena_header *)(void *)output = (fq_arena_header){.magic = FQ_MAGIC_OUTPUT, .version = FQ_ABI_VERSION, .bytes = OUTPUT};
    return fd;
}

static void start_worker(void) {
    hr_error err;
    uint64_t bytes;
    int lane_fd, page_fd = page(), output_fd = output_arena();
    int lane = hr_dispatch_open_lane(native->ios->dispatch, &lane_fd, &err);
    FUZZ_EXPECT(lane == 0);
    void *memory = fq_map_open(lane_fd, 1, &bytes);
    fq_lane_attach(&worker.lane, memory, native->options.slots, native->options.slots, 0);
    FUZZ_EXPECT(hr_dispatch_attach(native->ios->dispatch, 0, page_fd, output_fd, &err) == 0);
    close(page_fd);
    close(output_fd);
}

/* An answer of zeros, in memory that goes round: what is overwritten is nothing but other zeros. */
static fq_extent answer(uint32_t id, uint32_t rows) {
    uint64_t width = id == 3 ? WIDE : 4 * sizeof(float), bytes = fq_answer_bytes(1) + rows * width;
    if (output_at + bytes > OUTPUT) output_at = FQ_PAGE;
    fq_answer *head = (fq_answer *)(void *)(output + output_at);
    fq_slice *slice = (fq_slice *)(head + 1);
    head->slice_count = 1;
    *slice = (fq_slice){.rank = 2, .data = {output_at + fq_answer_bytes(1), rows * width}, .dims = {rows, id == 3 ? WIDE : 4}};
    if (id == 4) *slice = (fq_slice){.rank = 1, .data = slice->data, .dims = {4}};
    fq_extent at = {output_at, fq_answer_bytes(1)};
    output_at += fq_round_up(bytes, 64);
    return at;
}

static void answer_slot(uint32_t number, const fq_slot *slot) {
    fq_completion done = {.slot = number, .batch = 1, .batch_rows = slot->rows, .done_ns = native->ios->now_ns};
    if (slot->rows > 64) { /* more than the arena can have: a worker refuses that */
        done.status = HR_RESOURCE_EXHAUSTED;
        done.text_bytes = 5;
        memcpy(fq_lane_text(&worker.lane, number), "large", 5);
    } else if (!fq_lane_cancelled(&worker, number)) {
        done.answer = answer(slot->model, slot->rows);
    } else {
        done.status = FQ_CANCELLED;
    }
    done.flags = FQ_FINAL;
    FUZZ_EXPECT(fq_lane_post(&worker, &done));
}

void fuzz_worker(void) {
    fq_slot slot;
    uint32_t number;
    fq_release released;
    while (fq_ring_pop(&worker.lane.release, &released)) {
    }
    while (fq_lane_take(&worker, &number, &slot) == 1) answer_slot(number, &slot);
}

/* ---- Python ---- */

static void answer_event(const hr_event *event) {
    static const hr_header trailer = {{(const uint8_t *)"x", 1}, {(const uint8_t *)"y", 1}};
    switch (event->kind) {
    case HR_RPC_STARTED: hr_rpc_read(event->rpc); break;
    case HR_RPC_MESSAGE:
        hr_rpc_send_headers(event->rpc, &trailer, 1);
        hr_rpc_send(event->rpc, event->data, event->length, event->compressed ? HR_GZIP : HR_IDENTITY);
        break;
    case HR_RPC_WRITTEN: hr_rpc_read(event->rpc); break;
    case HR_RPC_HALF_CLOSED: hr_rpc_finish(event->rpc, 0, (hr_view){0}, &trailer, 1); break;
    case HR_RPC_ENDED: hr_rpc_drop(event->rpc); break;
    }
}

static void answer_events(void) {
    for (hr_event *event; (event = hr_native_next_event(native));) {
        answer_event(event);
        hr_event_free(event);
    }
}

/* ---- the front end ---- */

static void make_native(void) {
    hr_error err;
    native = calloc(1, sizeof *native);
    native->options = (hr_native_options){.threads = 1, .arena_mb = 1, .spill_mb = 1, .slots = 64, .max_calls = 256,
                                          .max_connections = 16, .max_message_bytes = MESSAGE, .answer_bytes = 1 << 20,
                                          .held_bytes = 128 << 10,
                                          .lifetime = {.handshake_ms = 100, .headers_ms = 30, .keepalive_ms = 20, .keepalive_timeout_ms = 10, .ping_strikes = 200,
                                                       .ping_interval_ms = 2, .keepalive_without_calls = true,
                                                       .max_age_ms = 200, .max_age_grace_ms = 20, .notice_ms = 5,
                                                       .linger_ms = 3}};
    native->ios = calloc(1, sizeof *native->ios);
    FUZZ_EXPECT(hr_connections_init() == 0);
    native->last_event = &native->first_event;
    native->event_fd = eventfd(0, EFD_NONBLOCK);
    pthread_mutex_init(&native->event_lock, NULL);
    FUZZ_EXPECT(make_io(native, 0, &err) == 0);
    start_worker();
    hr_dispatch_set_table(native->ios->dispatch, models());
    atomic_store(&native->started, true);
}

hr_io *fuzz_io(void) {
    if (native == NULL) make_native();
    return native->ios;
}

const hr_spec *fuzz_model(uint32_t number) { return specs[number]; }

static void turn_once(void) {
    hr_io *io = fuzz_io();
    io->now_ns += MS;
    fuzz_worker();
    answer_events();
    run_commands(io);
    turn(io, NULL, 0);
}

fuzz_peer fuzz_connect(void) {
    int pair[2];
    hr_io *io = fuzz_io();
    FUZZ_EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    atomic_fetch_add(&io->connection_count, 1);
    hr_connection_new(io, pair[1]);
    return (fuzz_peer){pair[0]};
}

static void throw_away(const fuzz_peer *peer) {
    static uint8_t heap[1 << 18];
    while (recv(peer->fd, heap, sizeof heap, 0) > 0) {
    }
}

void fuzz_turn(fuzz_peer *peer) {
    if (fuzz_io()->connections) hr_connection_read(fuzz_io()->connections);
    turn_once();
    throw_away(peer);
}

void fuzz_send(fuzz_peer *peer, const uint8_t *data, size_t length) {
    while (length > 0 && fuzz_io()->connections) {
        ssize_t sent = send(peer->fd, data, length, MSG_NOSIGNAL);
        if (sent > 0) {
            data += sent;
            length -= (size_t)sent;
        }
        fuzz_turn(peer);
    }
}

void fuzz_hang_up(fuzz_peer *peer) {
    close(peer->fd);
    while (fuzz_io()->connections) {
        hr_connection_read(fuzz_io()->connections);
        turn_once();
    }
}

void fuzz_end(void) {
    hr_io *io = fuzz_io();
    for (int i = 0; i < 3; i++) turn_once(); /* cancelled requests come back, Python lets go of its calls */
    FUZZ_EXPECT(hr_dispatch_check(io->dispatch) == 0);
    FUZZ_EXPECT(hr_dispatch_outstanding(io->dispatch) == 0);
    FUZZ_EXPECT(hr_dispatch_arena_used(io->dispatch) == 0);
    FUZZ_EXPECT(io->held_bytes == 0 && io->held_oldest == NULL && io->deadlines.count == 0);
    FUZZ_EXPECT(atomic_load(&io->connection_count) == 0);
    FUZZ_EXPECT(native->in_flight == 0 && native->calls == 0 && native->streams == 0 && native->answer_bytes == 0);
}
