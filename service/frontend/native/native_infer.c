/* ModelInfer and ModelStreamInfer: messages to the dispatcher, its answers to streams.
 *
 * A stream's requests are its entries, in the order in which they came. An ordered entry's answer is sent when those of
 * all ordered entries before it are; an unordered one's (headrace_unordered = true) as soon as it is there. What is open is
 * bounded (hr_infer_is_full), and a stream that is full is not read: that is all its flow control.
 */
#include <stdio.h>

#include "hr_scan.h"
#include "native_state.h"

static const char SHUTTING_DOWN[] = "GRPC server is shutting down and has stopped accepting new requests.";

/* ---- entries ---- */

static hr_entry *entry_new(hr_stream *s) {
    hr_io *io = s->connection->io;
    hr_entry *e = io->free_entries;
    if (e) io->free_entries = e->newer;
    else e = malloc(sizeof *e);
    if (e == NULL) return NULL;
    *e = (hr_entry){.stream = s, .older = s->newest_entry};
    if (e->older) e->older->newer = e;
    else s->oldest_entry = e;
    s->newest_entry = e;
    return e;
}

static void entry_free(hr_entry *e) {
    hr_stream *s = e->stream;
    hr_io *io = s->connection->io;
    if (e->older) e->older->newer = e->newer;
    else s->oldest_entry = e->newer;
    if (e->newer) e->newer->older = e->older;
    else s->newest_entry = e->older;
    if (e->message) hr_message_drop(io, e->message);
    free(e->text);
    e->newer = io->free_entries;
    io->free_entries = e;
}

static void no_longer_in_flight(hr_entry *e) {
    e->in_flight = false;
    hr_count(&e->stream->connection->io->native->in_flight, -1);
}

static void entry_leave(hr_entry *e) {
    if (!e->in_flight) return;
    hr_dispatch_cancel(e->stream->connection->io->dispatch, e->handle);
    no_longer_in_flight(e);
}

/* ---- the beginning ---- */

static void refuse(hr_stream *s, int code, const char *text) {
    hr_count(&s->connection->io->native->rejected[code], 1);
    hr_stream_fail(s, code, text);
}

static void refuse_draining(hr_stream *s) {
    hr_count(&s->connection->io->native->refused_draining, 1);
    hr_stream_finish(s, HR_UNAVAILABLE, hr_view_of(SHUTTING_DOWN), false);
}

void hr_infer_begin(hr_stream *s) {
    hr_native *n = s->connection->io->native;
    char text[HR_TEXT];
    if (s->connection->io->draining) {
        refuse_draining(s);
        return;
    }
    if (atomic_fetch_add(&n->calls, 1) >= n->options.max_calls) {
        hr_count(&n->calls, -1);
        snprintf(text, sizeof text, "all %u calls that may be in progress at once (--max-calls) are, try later",
                 n->options.max_calls);
        refuse(s, HR_RESOURCE_EXHAUSTED, text);
        return;
    }
    s->counted = true;
    if (s->method == HR_METHOD_STREAM_INFER) hr_count(&n->streams, 1);
}

/* ---- messages in ---- */

static uint64_t stream_share(const hr_native *n) { return n->options.answer_bytes / 4; }

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

bool hr_infer_is_full(const hr_stream *s) {
    if (s->open >= HR_WINDOW || s->drained) return true;
    return s->open > 0 && max_u64(s->kept, s->answered + s->waiting * s->latest) >= HR_READ_AHEAD;
}

/* 0, or -1 with what the client is told: no request can be taken now. */
static int check_server(hr_stream *s, hr_error *err) {
    hr_native *n = s->connection->io->native;
    err->transient = false;
    if (!atomic_load(&n->started)) return hr_fail(err, HR_UNAVAILABLE, "Server not ready");
    uint64_t unread = atomic_load(&n->answer_bytes);
    if (unread < n->options.answer_bytes) return 0;
    hr_fail(err, HR_RESOURCE_EXHAUSTED,
            "%llu bytes of answers wait for clients that do not read them, and --answer-mb allows %llu MB: try later",
            (unsigned long long)unread, (unsigned long long)(n->options.answer_bytes >> 20));
    err->transient = true;
    return -1;
}

static int dispatch(hr_io *io, hr_view message, hr_arriving *placed, const hr_call *call, uint64_t *handle, hr_error *err) {
    if (placed) return hr_dispatch_submit_arrived(io->dispatch, placed, message.length, call, handle, err);
    return hr_dispatch_submit(io->dispatch, message.data, message.length, call, handle, err);
}

static void count_in_flight(void *native, int by) { hr_count(&((hr_native *)native)->in_flight, by); }

static int submit(hr_stream *s, hr_entry *e, hr_view message, hr_arriving *placed, hr_error *err) {
    hr_io *io = s->connection->io;
    hr_call call = {.token = (uint64_t)(uintptr_t)e,
                    .arrival_ns = io->now_ns,
                    .deadline_ns = s->deadline_ns,
                    .stream = s->method == HR_METHOD_STREAM_INFER,
                    .in_flight = count_in_flight,
                    .counter = io->native};
    if (check_server(s, err) == 0 && dispatch(io, message, placed, &call, &e->handle, err) == 0) {
        e->in_flight = true;
        e->unordered = hr_dispatch_unordered(io->dispatch);
        return 0;
    }
    hr_count(&io->native->rejected[err->code], 1);
    return -1;
}

static void tell_status(hr_stream *s, int code, int transient, const char *text) {
    char room[HR_TEXT];
    hr_view told;
    bool triton = s->connection->io->native->options.triton;
    code = hr_as_triton(triton, code, transient, hr_view_of(text), room, sizeof room, &told);
    hr_stream_finish(s, code, told, transient == 1);
}

static void unary_message(hr_stream *s, hr_view message, hr_arriving *placed) {
    hr_error err;
    if (s->open > 0) {
        hr_stream_fail(s, HR_INVALID_ARGUMENT, "expected one request, and the call had more");
        return;
    }
    if (s->connection->io->draining) {
        refuse_draining(s);
        return;
    }
    s->entry = (hr_entry){.stream = s};
    if (submit(s, &s->entry, message, placed, &err) < 0) {
        tell_status(s, err.code, err.transient, err.text);
        return;
    }
    s->open = 1;
    hr_deadlines_remove(&s->connection->io->deadlines, &s->timer); /* the dispatcher watches it now */
}

/* ---- answers ---- */

static hr_message *whole_message(const hr_response *response) {
    uint64_t bytes = hr_encoded_bytes(response);
    hr_message *m = hr_message_new(1, HR_PREFIX + bytes);
    if (m == NULL) return NULL;
    uint8_t *to = hr_message_bytes(m, 1);
    hr_put_prefix(to, bytes);
    hr_encode(response, to + HR_PREFIX);
    m->length = HR_PREFIX + bytes;
    m->segments[0] = (hr_segment){to, m->length};
    return m;
}

/* Prefix and head in memory of the message, payloads where they lie. */
static hr_message *message_of_slices(const hr_response *response, uint64_t bytes) {
    hr_message *m = hr_message_new(HR_MAX_SEGMENTS, HR_PREFIX + hr_head_bytes(response));
    if (m == NULL) return NULL;
    uint8_t *to = hr_message_bytes(m, HR_MAX_SEGMENTS);
    hr_put_prefix(to, bytes);
    m->segment_count = hr_encode_head(response, to + HR_PREFIX, m->segments);
    m->segments[0] = (hr_segment){to, HR_PREFIX + m->segments[0].length};
    m->length = HR_PREFIX + bytes;
    return m;
}

/* The answer's message; the answer is retired, or held by it. NULL: no memory. */
static hr_message *message_of(hr_stream *s, hr_answer *a) {
    hr_io *io = s->connection->io;
    uint64_t bytes = hr_encoded_bytes(&a->response);
    bool keep = a->held && a->text_count == 0 && bytes > HR_KEEP; /* texts end with the answer */
    hr_message *m = keep ? message_of_slices(&a->response, bytes) : whole_message(&a->response);
    if (keep && m) hr_message_hold(io, m, a);
    else hr_dispatch_retire(io->dispatch, a);
    bool packs = m && s->packs && bytes <= HR_PACKED;
    return packs ? hr_message_compress(io, m, HR_GZIP, io->native->options.compression) : m;
}

/* Sends what may be sent, of the stream's entries. False: the stream is over. */
static bool send_turns(hr_stream *s) {
    bool turn = true;
    for (hr_entry *e = s->oldest_entry, *newer; e; e = newer) {
        newer = e->newer;
        if (!e->message) {
            turn = turn && e->unordered;
            continue;
        }
        if (!turn && !e->unordered) continue;
        if (s->fail_fast && e->code) {
            hr_stream_finish(s, e->code, hr_view_of(e->text ? e->text : ""), false);
            return false;
        }
        hr_stream_send(s, e->message);
        e->message = NULL;
        entry_free(e);
    }
    return true;
}

static void end_if_done(hr_stream *s) {
    if (s->oldest_entry || s->method != HR_METHOD_STREAM_INFER) return;
    if (s->drained) hr_stream_finish(s, HR_UNAVAILABLE, hr_view_of(SHUTTING_DOWN), false);
    else if (s->half_closed && s->pending_count == 0) hr_stream_finish(s, 0, (hr_view){0}, false);
}

static void entry_answered(hr_entry *e, hr_message *m) {
    hr_stream *s = e->stream;
    if (m == NULL) {
        hr_stream_fail(s, HR_RESOURCE_EXHAUSTED, "no memory for the answer, try later");
        return;
    }
    hr_message_charge(s->connection->io, m);
    e->message = m;
    s->waiting--;
    s->kept -= e->size;
    s->latest = m->length;
    s->answered += m->length;
    if (send_turns(s)) end_if_done(s);
}

/* An error is a message of the stream, with the names that `response` has. */
static void entry_failed(hr_entry *e, hr_response *response, int code, int transient, const char *text) {
    char room[HR_TEXT];
    bool triton = e->stream->connection->io->native->options.triton;
    e->code = hr_as_triton(triton, code, transient, hr_view_of(text), room, sizeof room, &response->error);
    if (e->stream->fail_fast) e->text = strndup((const char *)response->error.data, response->error.length);
    response->stream = true;
    response->output_count = 0;
    response->final = HR_FINAL_TRUE;
    entry_answered(e, whole_message(response));
}

/* The entry of a request of so many bytes; NULL: the stream is over. */
static hr_entry *stream_entry(hr_stream *s, size_t length) {
    hr_entry *e = entry_new(s);
    if (e == NULL) {
        hr_stream_fail(s, HR_RESOURCE_EXHAUSTED, "no memory for a request, try later");
        return NULL;
    }
    e->size = length;
    s->open++;
    s->waiting++;
    s->kept += length;
    return e;
}

static void stream_message(hr_stream *s, hr_view message, hr_arriving *placed) {
    hr_error err, unread;
    hr_entry *e = stream_entry(s, message.length);
    if (e == NULL || submit(s, e, message, placed, &err) == 0) return;
    hr_response response = {0};
    hr_request *request = malloc(sizeof *request);
    if (request && hr_scan(message.data, message.length, request, &unread) == 0) {
        response.model_name = request->model_name;
        response.model_version = request->model_version;
        response.id = request->id;
    }
    entry_failed(e, &response, err.code, err.transient, err.text);
    free(request);
}

void hr_infer_message(hr_stream *s, const uint8_t *data, size_t length, hr_arriving *placed) {
    if (s->method == HR_METHOD_INFER) unary_message(s, (hr_view){data, length}, placed);
    else stream_message(s, (hr_view){data, length}, placed);
}

void hr_infer_refused(hr_stream *s, size_t length, const hr_error *err) {
    hr_count(&s->connection->io->native->rejected[err->code], 1);
    if (s->method == HR_METHOD_INFER) {
        tell_status(s, err->code, err->transient, err->text);
        return;
    }
    hr_response response = {0};
    hr_entry *e = stream_entry(s, length);
    if (e) entry_failed(e, &response, err->code, err->transient, err->text);
}

void hr_infer_half_closed(hr_stream *s) {
    if (s->method == HR_METHOD_STREAM_INFER) end_if_done(s);
    else if (s->open == 0) hr_stream_fail(s, HR_INVALID_ARGUMENT, "expected one request, and the call had none");
}

/* ---- what the dispatcher says ---- */

/* Whether the stream has nothing else to send, and waits for this answer: it lets those that lie here go. */
static bool is_awaited(const hr_entry *e) {
    if (e->stream->first) return false;
    for (const hr_entry *older = e->older; older && !e->unordered; older = older->older)
        if (!older->unordered) return false;
    return true;
}

/* No room for an answer whose client does not read: 1, and the error is in `a`. */
static int unread_too_much(const hr_entry *e, hr_answer *a) {
    const hr_stream *s = e->stream;
    hr_native *n = s->connection->io->native;
    uint64_t unread = atomic_load(&n->answer_bytes);
    if (s->answered >= stream_share(n) && !is_awaited(e)) {
        hr_fail(&a->error, HR_RESOURCE_EXHAUSTED,
                "%llu bytes of answers wait on this stream for a client that does not read them; a stream may have a "
                "quarter of --answer-mb, %llu MB",
                (unsigned long long)s->answered, (unsigned long long)(stream_share(n) >> 20));
        return 1;
    }
    if (unread < n->options.answer_bytes) return 0;
    hr_fail(&a->error, HR_RESOURCE_EXHAUSTED,
            "%llu bytes of answers wait for clients that do not read them, and --answer-mb allows %llu MB: try later",
            (unsigned long long)unread, (unsigned long long)(n->options.answer_bytes >> 20));
    return 1;
}

static void unary_answered(hr_io *io, hr_stream *s, hr_answer *a) {
    hr_message *m = message_of(s, a);
    if (m == NULL) {
        hr_stream_fail(s, HR_RESOURCE_EXHAUSTED, "no memory for the answer, try later");
        return;
    }
    hr_message_charge(io, m);
    hr_stream_send(s, m);
    hr_stream_finish(s, 0, (hr_view){0}, false);
}

static void answered(hr_io *io, hr_answer *a) {
    hr_entry *e = (hr_entry *)(uintptr_t)a->token;
    hr_stream *s = e->stream;
    no_longer_in_flight(e);
    if (a->code == 0 && unread_too_much(e, a)) {
        a->code = HR_RESOURCE_EXHAUSTED;
        a->error.transient = true;
        hr_count(&io->native->rejected[a->code], 1);
    }
    int transient = a->code && a->error.transient ? 1 : -1; /* -1: a worker failed it, and did not say */
    if (a->code == 0) {
        if (s->method == HR_METHOD_INFER) unary_answered(io, s, a);
        else entry_answered(e, message_of(s, a));
        return;
    }
    if (s->method == HR_METHOD_INFER) tell_status(s, a->code, transient, a->error.text);
    else entry_failed(e, &a->response, a->code, transient, a->error.text);
    hr_dispatch_retire(io->dispatch, a);
}

void hr_infer_answers(hr_io *io) {
    while (hr_dispatch_next(io->dispatch, io->now_ns, &io->answer)) answered(io, &io->answer);
}

void hr_infer_lost(hr_io *io, uint32_t lane) {
    while (hr_dispatch_next_lost(io->dispatch, lane, &io->answer)) answered(io, &io->answer);
}

/* ---- the end ---- */

void hr_infer_sent(hr_stream *s, uint64_t length) {
    if (s->method != HR_METHOD_STREAM_INFER) return;
    s->open--;
    s->answered -= length;
    hr_stream_wants_reading(s);
}

void hr_infer_leave(hr_stream *s) {
    if (s->method == HR_METHOD_INFER && s->open > 0) entry_leave(&s->entry);
    while (s->oldest_entry) {
        entry_leave(s->oldest_entry);
        entry_free(s->oldest_entry);
    }
    if (!s->counted) return;
    s->counted = false;
    hr_count(&s->connection->io->native->calls, -1);
    if (s->method == HR_METHOD_STREAM_INFER) hr_count(&s->connection->io->native->streams, -1);
}

void hr_infer_drain(hr_stream *s) {
    if (s->method != HR_METHOD_STREAM_INFER) return;
    s->drained = true;
    end_if_done(s);
}
