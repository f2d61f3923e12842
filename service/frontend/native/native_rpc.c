/* Calls that Python answers: what happens to them are events, what Python says are commands of their I/O thread.
 *
 * An rpc outlives its stream, because Python may still hold it: the stream's end clears `stream`, and what is said
 * afterwards meets nobody. `holders` belongs to the I/O thread: the stream is one, Python another until hr_rpc_drop.
 *
 * Python reads one message at a time. Until it asks for the next, the stream is full and its window stays shut.
 */
#include <unistd.h>

#include "native_state.h"

struct hr_rpc {
    hr_io *io;
    hr_stream *stream; /* NULL: the call has ended */
    uint32_t holders;
    bool wants;  /* a message: none has been given since Python asked */
    bool halved; /* the client's end was told */
};

/* ---- events ---- */

static void tell(hr_native *n, hr_event *event) {
    uint64_t one = 1;
    event->next = NULL;
    pthread_mutex_lock(&n->event_lock);
    bool first = n->first_event == NULL;
    *n->last_event = event;
    n->last_event = &event->next;
    pthread_mutex_unlock(&n->event_lock);
    if (first && write(n->event_fd, &one, sizeof one) < 0) return; /* it is full of rings already */
}

static hr_event *new_event(hr_rpc *rpc, enum hr_event_kind kind) {
    hr_event *event = calloc(1, sizeof *event);
    if (event == NULL) return NULL;
    event->kind = kind;
    event->rpc = rpc;
    event->deadline_ns = INT64_MAX;
    return event;
}

static void tell_kind(hr_rpc *rpc, enum hr_event_kind kind) {
    hr_event *event = new_event(rpc, kind);
    if (event) tell(rpc->io->native, event);
    else if (rpc->stream) rpc->stream->connection->broken = true;
}

hr_event *hr_native_next_event(hr_native *n) {
    uint64_t rings;
    pthread_mutex_lock(&n->event_lock);
    hr_event *event = n->first_event;
    if (event) n->first_event = event->next;
    if (n->first_event == NULL) n->last_event = &n->first_event;
    if (event == NULL && read(n->event_fd, &rings, sizeof rings) < 0) rings = 0; /* nobody rang */
    pthread_mutex_unlock(&n->event_lock);
    return event;
}

void hr_event_free(hr_event *event) {
    for (uint32_t i = 0; i < event->header_count; i++) free((void *)(uintptr_t)event->headers[i].name.data);
    free(event->headers);
    free((void *)(uintptr_t)event->path.data);
    free(event->data);
    free(event);
}

/* ---- the stream's side ---- */

static void rpc_release(hr_rpc *rpc) {
    if (--rpc->holders == 0) free(rpc);
}

void hr_rpc_begin(hr_stream *s) {
    hr_rpc *rpc = calloc(1, sizeof *rpc);
    hr_event *event = rpc ? new_event(rpc, HR_RPC_STARTED) : NULL;
    uint8_t *path = event ? malloc(s->path_length + 1) : NULL;
    if (path == NULL) {
        free(event);
        free(rpc);
        hr_stream_fail(s, HR_RESOURCE_EXHAUSTED, "no memory for a call, try later");
        return;
    }
    *rpc = (hr_rpc){.io = s->connection->io, .stream = s, .holders = 2};
    s->rpc = rpc;
    memcpy(path, s->path, s->path_length);
    event->path = (hr_view){path, s->path_length};
    event->deadline_ns = s->deadline_ns;
    event->headers = s->headers;
    event->header_count = s->header_count;
    s->headers = NULL;
    s->header_count = s->header_room = 0;
    tell(rpc->io->native, event);
}

bool hr_rpc_is_full(const hr_stream *s) { return s->rpc && !s->rpc->wants; }

void hr_rpc_message(hr_stream *s, const uint8_t *data, size_t length, bool compressed) {
    hr_event *event = new_event(s->rpc, HR_RPC_MESSAGE);
    uint8_t *copy = event ? malloc(length + 1) : NULL;
    if (copy == NULL) {
        free(event);
        hr_stream_fail(s, HR_RESOURCE_EXHAUSTED, "no memory for a message, try later");
        return;
    }
    if (length) memcpy(copy, data, length);
    event->data = copy;
    event->length = length;
    event->compressed = compressed;
    s->rpc->wants = false;
    tell(s->rpc->io->native, event);
}

void hr_rpc_half_closed(hr_stream *s) {
    if (s->rpc->halved) return;
    s->rpc->halved = true;
    tell_kind(s->rpc, HR_RPC_HALF_CLOSED);
}

void hr_rpc_sent(hr_stream *s) { tell_kind(s->rpc, HR_RPC_WRITTEN); }

void hr_rpc_leave(hr_stream *s) {
    hr_rpc *rpc = s->rpc;
    if (rpc == NULL) return;
    s->rpc = NULL;
    rpc->stream = NULL;
    tell_kind(rpc, HR_RPC_ENDED);
    rpc_release(rpc);
}

/* ---- Python's side ---- */

typedef struct hr_rpc_command {
    hr_command command; /* first: a command is this */
    hr_rpc *rpc;
    hr_message *message;
    nghttp2_nv *headers; /* with names and values in memory of their own */
    uint32_t header_count;
    int code;
    uint8_t *text;
    size_t text_length;
} hr_rpc_command;

static hr_rpc_command *new_command(hr_rpc *rpc, void (*run)(hr_io *, hr_command *)) {
    hr_rpc_command *command = calloc(1, sizeof *command);
    if (command == NULL) return NULL;
    command->command.run = run;
    command->rpc = rpc;
    return command;
}

static void free_headers(nghttp2_nv *headers, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) free(headers[i].name);
    free(headers);
}

static void free_command(hr_io *io, hr_rpc_command *c) {
    if (c->message) hr_message_drop(io, c->message);
    if (c->headers) free_headers(c->headers, c->header_count);
    free(c->text);
    free(c);
}

static int copy_headers(hr_rpc_command *c, const hr_header *headers, uint32_t count) {
    if (count == 0) return 0;
    c->headers = calloc(count, sizeof *c->headers);
    for (; c->headers && c->header_count < count; c->header_count++) {
        hr_view name = headers[c->header_count].name, value = headers[c->header_count].value;
        uint8_t *copy = malloc(name.length + value.length + 1);
        if (copy == NULL) return -1;
        memcpy(copy, name.data, name.length);
        if (value.length) memcpy(copy + name.length, value.data, value.length);
        c->headers[c->header_count] =
            (nghttp2_nv){copy, copy + name.length, name.length, value.length, NGHTTP2_NV_FLAG_NONE};
    }
    return c->headers ? 0 : -1;
}

static void run_read(hr_io *io, hr_command *command) {
    hr_rpc_command *c = (hr_rpc_command *)(void *)command;
    hr_stream *s = c->rpc->stream;
    if (s) {
        c->rpc->wants = true;
        hr_stream_wants_reading(s);
    }
    free_command(io, c);
}

static void run_headers(hr_io *io, hr_command *command) {
    hr_rpc_command *c = (hr_rpc_command *)(void *)command;
    if (c->rpc->stream) hr_stream_submit_headers(c->rpc->stream, c->headers, c->header_count);
    free_command(io, c);
}

static void run_send(hr_io *io, hr_command *command) {
    hr_rpc_command *c = (hr_rpc_command *)(void *)command;
    if (c->rpc->stream) {
        hr_stream_send(c->rpc->stream, c->message);
        c->message = NULL;
    }
    free_command(io, c);
}

static void run_finish(hr_io *io, hr_command *command) {
    hr_rpc_command *c = (hr_rpc_command *)(void *)command;
    hr_stream *s = c->rpc->stream;
    if (s) {
        s->trailers = c->headers;
        s->trailer_count = c->header_count;
        c->headers = NULL;
        hr_stream_finish(s, c->code, (hr_view){c->text, c->text_length}, false);
    }
    free_command(io, c);
}

static void run_drop(hr_io *io, hr_command *command) {
    hr_rpc_command *c = (hr_rpc_command *)(void *)command;
    rpc_release(c->rpc);
    free_command(io, c);
}

static int post(hr_rpc_command *c, int failed) {
    if (c == NULL) return -1;
    if (failed) free_command(c->rpc->io, c);
    else hr_io_post(c->rpc->io, &c->command);
    return failed;
}

int hr_rpc_read(hr_rpc *rpc) { return post(new_command(rpc, run_read), 0); }

int hr_rpc_send_headers(hr_rpc *rpc, const hr_header *headers, uint32_t count) {
    hr_rpc_command *c = new_command(rpc, run_headers);
    return post(c, c ? copy_headers(c, headers, count) : -1);
}

int hr_rpc_send(hr_rpc *rpc, const uint8_t *data, size_t length, enum hr_encoding encoding) {
    hr_rpc_command *c = new_command(rpc, run_send);
    hr_message *m = c ? hr_message_new(1, HR_PREFIX + length) : NULL;
    if (m) {
        uint8_t *to = hr_message_bytes(m, 1);
        hr_put_prefix(to, length);
        if (length) memcpy(to + HR_PREFIX, data, length);
        m->length = HR_PREFIX + length;
        m->segments[0] = (hr_segment){to, m->length};
        c->message = encoding == HR_IDENTITY ? m : hr_message_compress(rpc->io, m, encoding, 0);
    }
    return post(c, m ? 0 : -1);
}

int hr_rpc_finish(hr_rpc *rpc, int code, hr_view text, const hr_header *trailers, uint32_t count) {
    hr_rpc_command *c = new_command(rpc, run_finish);
    if (c == NULL) return -1;
    c->code = code;
    c->text = malloc(text.length + 1);
    if (c->text && text.length) memcpy(c->text, text.data, text.length);
    c->text_length = text.length;
    return post(c, c->text ? copy_headers(c, trailers, count) : -1);
}

void hr_rpc_drop(hr_rpc *rpc) {
    if (post(new_command(rpc, run_drop), 0) < 0) return; /* no memory: it is leaked, which is the least of it */
}
