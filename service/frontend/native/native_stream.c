/* One call: its headers, its length-prefixed messages in both directions, its status.
 *
 *   headers -> method -> feed: prefix, message, prefix, message ... -> half-closed
 *   headers, messages ... -> trailers                       or trailers alone, when nothing was sent before
 */
#include <stdio.h>

#include "native_state.h"

/* ---- the beginning ---- */

int hr_stream_open(hr_connection *c, int32_t id) {
    hr_io *io = c->io;
    hr_stream *s = io->free_streams;
    if (s) io->free_streams = s->newer;
    else s = malloc(sizeof *s);
    if (s == NULL) return -1;
    *s = (hr_stream){.connection = c, .id = id, .arrival_ns = io->now_ns, .deadline_ns = INT64_MAX};
    s->last = &s->first;
    s->older = c->streams;
    if (s->older) s->older->newer = s;
    c->streams = s;
    c->stream_count++;
    return nghttp2_session_set_stream_user_data(c->session, id, s);
}

/* A call that Python answers gets its headers. Pseudo-headers and what HTTP/2 itself needs are not among them. */
static int keep_header(hr_stream *s, hr_view name, hr_view value) {
    if (name.length == 0 || name.data[0] == ':') return 0;
    if (s->header_count == s->header_room) {
        uint32_t room = s->header_room ? 2 * s->header_room : 8;
        hr_header *headers = realloc(s->headers, room * sizeof *headers);
        if (headers == NULL) return -1;
        s->headers = headers;
        s->header_room = room;
    }
    uint8_t *copy = malloc(name.length + value.length + 1);
    if (copy == NULL) return -1;
    memcpy(copy, name.data, name.length);
    if (value.length) memcpy(copy + name.length, value.data, value.length);
    s->headers[s->header_count++] = (hr_header){{copy, name.length}, {copy + name.length, value.length}};
    return 0;
}

static void set_deadline(hr_stream *s, hr_view value) {
    int64_t timeout_ns = hr_parse_timeout_ns(value);
    if (timeout_ns < 0 || __builtin_add_overflow(s->arrival_ns, timeout_ns, &s->deadline_ns))
        s->deadline_ns = INT64_MAX;
}

static bool path_is(const hr_stream *s, const char *path) {
    return hr_view_says((hr_view){(const uint8_t *)s->path, s->path_length}, path);
}

/* Pseudo-headers come first, so the method is known when the others come. */
static void set_path(hr_stream *s, hr_view value) {
    s->path_length = value.length < HR_PATH ? value.length : HR_PATH;
    memcpy(s->path, value.data, s->path_length);
    if (path_is(s, "/inference.GRPCInferenceService/ModelInfer")) s->wanted = HR_METHOD_INFER;
    else if (path_is(s, "/inference.GRPCInferenceService/ModelStreamInfer")) s->wanted = HR_METHOD_STREAM_INFER;
    else s->wanted = HR_METHOD_RPC;
}

static void set_packs(hr_stream *s, hr_view accepted) {
    if (s->wanted == HR_METHOD_RPC || s->connection->io->native->options.compression == 0) return;
    s->packs = s->packs || hr_accepts(accepted, "gzip");
}

static void set_method(hr_stream *s, hr_view value) {
    s->post = hr_view_says(value, "POST");
    s->head = hr_view_says(value, "HEAD");
}

/* -1: the call is refused unread. */
int hr_stream_header(hr_stream *s, hr_view name, hr_view value) {
    s->header_bytes += (uint32_t)(name.length + value.length) + 32;
    if (s->header_bytes > HR_HEADER_BYTES) return -1;
    if (hr_view_says(name, ":path")) set_path(s, value);
    else if (hr_view_says(name, ":method")) set_method(s, value);
    else if (hr_view_says(name, "content-type")) s->grpc = hr_is_grpc(value);
    else if (hr_view_says(name, "grpc-timeout")) set_deadline(s, value);
    else if (hr_view_says(name, "grpc-encoding")) s->encoding = (uint8_t)hr_encoding_of(value);
    else if (hr_view_says(name, "grpc-accept-encoding")) set_packs(s, value);
    else if (hr_view_says(name, "triton_grpc_error")) s->fail_fast = hr_view_says(value, "true");
    return s->wanted == HR_METHOD_RPC ? keep_header(s, name, value) : 0;
}

static void start_timer(hr_stream *s) {
    if (hr_io_set_timer(s->connection->io, &s->timer, s->deadline_ns) < 0)
        hr_stream_fail(s, HR_RESOURCE_EXHAUSTED, "no memory for a timer");
}

static void forget_headers(hr_stream *s) {
    for (uint32_t i = 0; i < s->header_count; i++) free((void *)(uintptr_t)s->headers[i].name.data);
    free(s->headers);
    s->headers = NULL;
    s->header_count = s->header_room = 0;
}

void hr_stream_begin(hr_stream *s) {
    if (!s->post || !s->grpc) {
        hr_http_refuse(s);
        return;
    }
    start_timer(s);
    if (s->method == HR_METHOD_OVER) return;
    s->method = s->wanted;
    if (s->method == HR_METHOD_RPC) hr_rpc_begin(s); /* takes the headers */
    else hr_infer_begin(s);
}

/* ---- messages out ---- */

static const nghttp2_nv RESPONSE[] = {
    {(uint8_t *)":status", (uint8_t *)"200", 7, 3, NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE},
    {(uint8_t *)"content-type", (uint8_t *)"application/grpc", 12, 16,
     NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE},
    {(uint8_t *)"grpc-accept-encoding", (uint8_t *)"identity,deflate,gzip", 20, 21,
     NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE}};
enum { FIXED = sizeof RESPONSE / sizeof *RESPONSE };

static ssize_t on_read_length(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t length, uint32_t *flags,
                              nghttp2_data_source *source, void *user) {
    (void)session, (void)id, (void)buffer, (void)user;
    return hr_stream_read_length(source->ptr, length, flags);
}

/* The response's headers; what is queued, now and later, is its body. */
void hr_stream_respond(hr_stream *s, const nghttp2_nv *headers, size_t count) {
    nghttp2_data_provider body = {.source.ptr = s, .read_callback = on_read_length};
    nghttp2_submit_response(s->connection->session, s->id, headers, count, &body);
    s->headers_sent = true;
    hr_connection_touch(s->connection);
}

void hr_stream_submit_headers(hr_stream *s, const nghttp2_nv *extra, uint32_t count) {
    if (s->headers_sent) return;
    nghttp2_nv few[FIXED + 8], *headers = count <= 8 ? few : malloc((count + FIXED) * sizeof *headers);
    if (headers == NULL) {
        headers = few;
        count = 0;
    }
    memcpy(headers, RESPONSE, sizeof RESPONSE);
    if (count) memcpy(headers + FIXED, extra, count * sizeof *extra);
    hr_stream_respond(s, headers, count + FIXED);
    if (headers != few) free(headers);
}

static const nghttp2_nv PACKED = {(uint8_t *)"grpc-encoding", (uint8_t *)"gzip", 13, 4,
                                  NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE};

static void go_on(hr_stream *s) {
    hr_stream_submit_headers(s, &PACKED, s->packs ? 1 : 0);
    if (s->deferred) {
        s->deferred = false;
        nghttp2_session_resume_data(s->connection->session, s->id);
    }
    hr_connection_touch(s->connection);
}

/* Takes over the message. */
void hr_stream_send(hr_stream *s, hr_message *m) {
    m->next = NULL;
    *s->last = m;
    s->last = &m->next;
    s->queued += m->length;
    go_on(s);
}

/* ---- the end ---- */

static nghttp2_nv trailer(const char *name, const char *value, size_t length) {
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name), length, NGHTTP2_NV_FLAG_NONE};
}

/* Writes status, text and whatever goes with them: to a response without a body, or behind the body. */
static int submit_status(hr_stream *s, bool alone) {
    char code[4], *text = malloc(3 * s->text.length + 1);
    nghttp2_nv *all = malloc((s->trailer_count + FIXED + 3) * sizeof *all);
    size_t count = 0;
    int failed = -1;
    if (text != NULL && all != NULL) {
        if (alone) {
            memcpy(all, RESPONSE, sizeof RESPONSE);
            count = FIXED;
        }
        all[count++] = trailer("grpc-status", code, (size_t)snprintf(code, sizeof code, "%d", s->status));
        if (s->text.length) all[count++] = trailer("grpc-message", text, hr_percent_encode(s->text, text));
        if (s->retry) all[count++] = trailer("grpc-retry-pushback-ms", "100", 3);
        for (uint32_t i = 0; i < s->trailer_count; i++) all[count++] = s->trailers[i];
        failed = alone ? nghttp2_submit_response(s->connection->session, s->id, all, count, NULL)
                       : nghttp2_submit_trailer(s->connection->session, s->id, all, count);
    }
    free(text);
    free(all);
    return failed;
}

/* The answer ends with what is queued. */
void hr_stream_end(hr_stream *s) {
    s->ending = true;
    go_on(s);
}

/* Ends the call, once what is queued is sent; whatever the client still sends is dropped. */
void hr_stream_finish(hr_stream *s, int code, hr_view text, bool retry) {
    if (s->ending) return;
    uint8_t *copy = text.length ? malloc(text.length) : NULL; /* now: it may be that of an entry, which leaves */
    if (copy) memcpy(copy, text.data, text.length);
    hr_infer_leave(s);
    hr_rpc_leave(s);
    hr_deadlines_remove(&s->connection->io->deadlines, &s->timer);
    hr_incoming_forget(s);
    s->method = HR_METHOD_OVER;
    s->ending = true;
    s->status = code;
    s->retry = retry;
    s->text = (hr_view){copy, copy ? text.length : 0};
    if (s->headers_sent || code == 0) {
        go_on(s);
        return;
    }
    s->headers_sent = true;
    if (submit_status(s, true) != 0) s->connection->broken = true;
    hr_connection_touch(s->connection);
}

void hr_stream_fail(hr_stream *s, int code, const char *text) {
    char room[HR_TEXT];
    hr_view told;
    bool retry = code == HR_RESOURCE_EXHAUSTED && strstr(text, "try later") != NULL;
    code = hr_as_triton(s->connection->io->native->options.triton, code, retry, hr_view_of(text), room, sizeof room, &told);
    hr_stream_finish(s, code, told, retry);
}

void hr_stream_expire(hr_stream *s) {
    hr_stream_fail(s, HR_DEADLINE_EXCEEDED, "Request timeout expired: the call's deadline has passed");
}

/* How much of what is queued goes into the next frame. */
ssize_t hr_stream_read_length(hr_stream *s, size_t most, uint32_t *flags) {
    size_t n = s->queued < most ? (size_t)s->queued : most;
    if (n == 0 && !s->ending) {
        s->deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (!s->ending || n < s->queued) return (ssize_t)n;
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (s->http) return (ssize_t)n;
    *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    if (submit_status(s, false) != 0) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    return (ssize_t)n;
}

static void first_left(hr_stream *s) {
    hr_message *m = s->first;
    s->first = m->next;
    if (s->first == NULL) s->last = &s->first;
    s->segment = 0;
    s->offset = 0;
    hr_message_drop(s->connection->io, m);
}

/* Moves `length` bytes of what is queued to the connection's output: 0, or -1 when memory is out. */
int hr_stream_write(hr_stream *s, size_t length) {
    hr_output_queue *out = &s->connection->out;
    s->queued -= length;
    while (length > 0) {
        hr_message *m = s->first;
        const hr_segment *segment = &m->segments[s->segment];
        size_t n = segment->length - s->offset;
        if (n > length) n = length;
        int failed = n < HR_REFER ? hr_output_copy(out, segment->data + s->offset, n)
                                  : hr_output_refer(out, m, s->segment, s->offset, n);
        if (failed) return -1;
        length -= n;
        s->offset += n;
        if (s->offset < segment->length) continue;
        s->offset = 0;
        if (++s->segment < m->segment_count) continue;
        uint64_t whole = m->length;
        first_left(s);
        if (s->method == HR_METHOD_RPC) hr_rpc_sent(s);
        else hr_infer_sent(s, whole);
    }
    return 0;
}

static void free_trailers(hr_stream *s) {
    for (uint32_t i = 0; i < s->trailer_count; i++) free(s->trailers[i].name);
    free(s->trailers);
}

void hr_stream_close(hr_stream *s) {
    hr_connection *c = s->connection;
    hr_io *io = c->io;
    hr_infer_leave(s);
    hr_rpc_leave(s);
    hr_deadlines_remove(&io->deadlines, &s->timer);
    while (s->first) first_left(s);
    forget_headers(s);
    free_trailers(s);
    hr_incoming_forget(s);
    free(s->pending);
    free((void *)(uintptr_t)s->text.data);
    if (s->wants)
        for (hr_stream **at = &c->wanting; *at; at = &(*at)->wants_next)
            if (*at == s) {
                *at = s->wants_next;
                break;
            }
    if (s->newer) s->newer->older = s->older;
    else c->streams = s->older;
    if (s->older) s->older->newer = s->newer;
    c->stream_count--;
    s->newer = io->free_streams;
    io->free_streams = s;
}
