/* Messages on their way in: from the payloads of DATA frames, however they are cut.
 *
 *   prefix (5 bytes) -> message -> prefix -> message ... -> half-closed
 *
 * A message that one piece holds is handed on where it lies. Others are put together where native_arriving.c says. A
 * stream that is full (hr_stream_is_full) is not parsed: what was sent ahead of the answer waits, bounded by the stream's
 * window, which is given back only when it has been parsed.
 */
#include <stdio.h>

#include "native_state.h"

bool hr_stream_is_full(const hr_stream *s) {
    if (s->in.waits) return true;
    if (s->method == HR_METHOD_STREAM_INFER) return hr_infer_is_full(s);
    return s->method == HR_METHOD_RPC && hr_rpc_is_full(s);
}

/* What is a little larger than a message may be is read all the same, for the dispatcher to refuse in its turn. */
static uint64_t readable(const hr_stream *s) {
    uint64_t limit = s->connection->io->native->options.max_message_bytes;
    limit += limit < HR_READ_TO_REFUSE ? limit : HR_READ_TO_REFUSE;
    return limit < INT32_MAX ? limit : INT32_MAX;
}

static void deliver(hr_stream *s, const uint8_t *data, size_t length, bool compressed) {
    if (s->method == HR_METHOD_RPC) hr_rpc_message(s, data, length, compressed);
    else if (s->method != HR_METHOD_OVER) hr_infer_message(s, data, length, NULL);
}

static void deliver_compressed(hr_stream *s, const uint8_t *data, size_t length) {
    hr_error err;
    uint8_t *whole;
    uint64_t limit = readable(s) < HR_INFLATED ? readable(s) : HR_INFLATED;
    int64_t bytes = hr_inflate(s->encoding, (hr_view){data, length}, limit, &whole, &err);
    if (bytes < 0) hr_stream_fail(s, err.code, err.text);
    else deliver(s, whole, (size_t)bytes, true);
    free(whole);
}

static void message_done(hr_stream *s) {
    hr_io *io = s->connection->io;
    hr_incoming in = hr_incoming_take(s);
    if (in.refused) hr_infer_refused(s, in.length, in.why);
    else if (in.compressed) deliver_compressed(s, in.data, in.length);
    else if (in.placed) hr_infer_message(s, in.data, in.length, &in.arriving);
    else deliver(s, in.data, in.length, false);
    hr_incoming_drop(io, &in);
}

/* The prefix is whole. -1: the call is over. */
static int begin_message(hr_stream *s) {
    const uint8_t *p = s->in.prefix;
    char text[HR_TEXT];
    s->in.compressed = p[0] & 1;
    s->in.length = (uint32_t)p[1] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 8 | p[4];
    if (p[0] > 1) {
        hr_stream_fail(s, HR_INTERNAL, "expected a message's flag of 0 or 1, got another: this is no gRPC");
        return -1;
    }
    if (s->in.length <= readable(s)) return 0;
    snprintf(text, sizeof text,
             "a message of %u bytes is larger than max, the %llu that --max-message-bytes allows: send fewer rows, or raise "
             "it",
             s->in.length, (unsigned long long)s->connection->io->native->options.max_message_bytes);
    hr_stream_fail(s, HR_RESOURCE_EXHAUSTED, text);
    return -1;
}

static size_t take_prefix(hr_stream *s, const uint8_t *data, size_t length) {
    size_t n = HR_PREFIX - s->in.prefix_count;
    if (n > length) n = length;
    memcpy(s->in.prefix + s->in.prefix_count, data, n);
    s->in.prefix_count += (uint8_t)n;
    return n;
}

/* Bytes of the message's body; its whole at once is handed on where it lies. */
static size_t take_body(hr_stream *s, const uint8_t *data, size_t length) {
    hr_incoming *in = &s->in;
    size_t left = in->length - in->count, n = left < length ? left : length;
    if (in->data == NULL && n == in->length && !in->refused) {
        bool compressed = in->compressed;
        *in = (hr_incoming){0};
        if (compressed) deliver_compressed(s, data, n);
        else deliver(s, data, n, false);
        return n;
    }
    if (hr_incoming_room(s, (hr_view){data, n}) < 0) return length;
    if (in->waits) return 0;
    if (!in->refused && in->data + in->count != data) memcpy(in->data + in->count, data, n);
    in->count += (uint32_t)n;
    if (in->count == in->length) message_done(s);
    else hr_incoming_ahead(s);
    return n;
}

/* Parses until the stream is full: the number of bytes that were read. */
static size_t parse(hr_stream *s, const uint8_t *data, size_t length) {
    size_t at = 0;
    while (at < length && s->method != HR_METHOD_OVER && !hr_stream_is_full(s)) {
        if (s->in.prefix_count < HR_PREFIX) {
            at += take_prefix(s, data + at, length - at);
            if (s->in.prefix_count < HR_PREFIX) return at;
            if (begin_message(s) < 0) return length;
            if (s->in.length > 0) continue;
        }
        at += take_body(s, data + at, length - at);
    }
    return s->method == HR_METHOD_OVER ? length : at;
}

static void give_window(hr_stream *s) {
    if (s->withheld == 0 || s->half_closed) return;
    nghttp2_session_consume_stream(s->connection->session, s->id, s->withheld);
    s->withheld = 0;
    hr_connection_touch(s->connection);
}

/* What may not be read yet is bounded by the window, which is not given back for it. */
static void keep_pending(hr_stream *s, const uint8_t *data, size_t length) {
    if (s->pending_count + length > s->pending_room) {
        size_t room = s->pending_room ? s->pending_room : HR_READ;
        while (room < s->pending_count + length) room *= 2;
        uint8_t *pending = realloc(s->pending, room);
        if (pending == NULL) {
            hr_stream_fail(s, HR_RESOURCE_EXHAUSTED, "no memory for what was sent ahead, try later");
            return;
        }
        s->pending = pending;
        s->pending_room = room;
    }
    memcpy(s->pending + s->pending_count, data, length);
    s->pending_count += length;
}

void hr_stream_feed(hr_stream *s, const uint8_t *data, size_t length) {
    s->withheld += (uint32_t)length;
    size_t read = s->pending_count ? 0 : parse(s, data, length);
    if (read < length) keep_pending(s, data + read, length - read);
    else give_window(s);
}

void hr_stream_wants_reading(hr_stream *s) {
    if (s->wants) return;
    s->wants = true;
    s->wants_next = s->connection->wanting;
    s->connection->wanting = s;
    hr_connection_touch(s->connection);
}

void hr_stream_read_on(hr_stream *s) {
    if (s->pending_count > 0) {
        uint8_t *pending = s->pending;
        size_t count = s->pending_count;
        s->pending = NULL;
        s->pending_count = s->pending_room = 0;
        size_t read = parse(s, pending, count);
        if (read < count) keep_pending(s, pending + read, count - read);
        free(pending);
    }
    if (s->pending_count > 0 || hr_stream_is_full(s)) return;
    give_window(s);
    if (s->half_closed) hr_stream_half_close(s);
}

/* Also called again when what was pending has been read. */
void hr_stream_half_close(hr_stream *s) {
    s->half_closed = true;
    if (s->http) hr_stream_end(s);
    if (s->pending_count > 0 || s->method == HR_METHOD_OVER) return;
    if (s->in.prefix_count > 0) {
        hr_stream_fail(s, HR_INTERNAL, "the call ended within a message");
        return;
    }
    if (s->method == HR_METHOD_RPC) hr_rpc_half_closed(s);
    else hr_infer_half_closed(s);
}

