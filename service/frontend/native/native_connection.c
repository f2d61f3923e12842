/* A socket and its HTTP/2 session.
 *
 * A DATA frame's payload is read from the socket straight into the message it belongs to, where there is one: nghttp2 is
 * given that pointer, gives it back in its callback, and nothing is copied.
 *
 * LIMITS on what a peer may do. nghttp2 itself limits resets, CONTINUATION frames, entries of SETTINGS and unread
 * acknowledgements (the options below). Counted here: a call's headers (hr_stream_header); between two frames that carry
 * something of a call, either way, PINGs, other frames and bytes (of frames that nghttp2 tells nobody of); and what waits
 * for a peer that does not read. Who goes beyond gets a GOAWAY and is gone. Limits of time are in native_lifetime.c.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "native_state.h"

static nghttp2_session_callbacks *callbacks;
static nghttp2_option *options;

/* ---- what nghttp2 tells ---- */

static hr_stream *stream_of(nghttp2_session *session, int32_t id) {
    return nghttp2_session_get_stream_user_data(session, id);
}

static int calm_down(hr_connection *c) {
    c->leaving = true;
    nghttp2_session_terminate_session(c->session, NGHTTP2_ENHANCE_YOUR_CALM);
    return 0;
}

/* Something of a call came or went: the counting of what does nothing begins again. */
static void carried(hr_connection *c) { c->pings = c->idle_frames = c->idle_bytes = 0; }

static bool is_request(const nghttp2_frame *frame) {
    return frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    (void)session;
    if (!is_request(frame)) return 0;
    return hr_stream_open(user, frame->hd.stream_id) == 0 ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_length,
                     const uint8_t *value, size_t value_length, uint8_t flags, void *user) {
    (void)flags, (void)user;
    hr_stream *s = stream_of(session, frame->hd.stream_id);
    if (s == NULL || !is_request(frame)) return 0;
    if (hr_stream_header(s, (hr_view){name, name_length}, (hr_view){value, value_length}) == 0) return 0;
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* a reset */
}

static int on_ping(hr_connection *c, const nghttp2_frame *frame) {
    if (frame->hd.flags & NGHTTP2_FLAG_ACK) {
        hr_lifetime_acknowledged(c, frame->ping.opaque_data);
        return ++c->idle_frames > HR_IDLE_FRAMES ? calm_down(c) : 0;
    }
    if (!hr_lifetime_pinged(c) || ++c->pings > HR_PINGS) hr_lifetime_too_many_pings(c);
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    hr_connection *c = user;
    hr_stream *s = frame->hd.stream_id ? stream_of(session, frame->hd.stream_id) : NULL;
    if (frame->hd.type == NGHTTP2_PING) return on_ping(c, frame);
    if (frame->hd.type == NGHTTP2_HEADERS || (frame->hd.type == NGHTTP2_DATA && frame->hd.length > 0)) carried(c);
    else if (++c->idle_frames > HR_IDLE_FRAMES) return calm_down(c);
    if (frame->hd.type == NGHTTP2_SETTINGS) hr_lifetime_greeted(c);
    if (s == NULL) return 0;
    if (is_request(frame)) hr_stream_begin(s);
    if ((frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) &&
        (frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        hr_stream_half_close(s);
    return 0;
}

static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *head, void *user) {
    hr_connection *c = user;
    (void)session;
    c->direct = NULL;
    c->frame_left = head->type == NGHTTP2_DATA ? (uint32_t)head->length : 0;
    c->frame_padded = head->flags & NGHTTP2_FLAG_PADDED;
    return 0;
}

/* Where the rest of this frame may be read to: the message that it continues. */
static hr_stream *direct_of(const hr_connection *c, hr_stream *s) {
    bool kept = s->in.data != NULL && s->pending_count == 0 && s->in.count < s->in.room;
    return kept && !c->frame_padded && c->frame_left >= HR_DIRECT ? s : NULL;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t length, void *user) {
    hr_connection *c = user;
    hr_stream *s = stream_of(session, id);
    (void)flags;
    c->frame_left -= length < c->frame_left ? (uint32_t)length : c->frame_left;
    nghttp2_session_consume_connection(session, length);
    if (s == NULL || s->method == HR_METHOD_OVER) {
        nghttp2_session_consume_stream(session, id, length);
        return 0;
    }
    hr_stream_feed(s, data, length);
    c->direct = direct_of(c, s);
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t error, void *user) {
    hr_stream *s = stream_of(session, id);
    (void)error, (void)user;
    if (s == NULL) return 0;
    nghttp2_session_set_stream_user_data(session, id, NULL);
    hr_stream_close(s);
    return 0;
}

/* The server was first to end: the client is told to stop sending. */
static int on_frame_sent(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    if (frame->hd.type == NGHTTP2_GOAWAY) hr_lifetime_goaway_sent(user, frame->goaway.last_stream_id);
    if (frame->hd.type != NGHTTP2_HEADERS || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) return 0;
    hr_stream *s = stream_of(session, frame->hd.stream_id);
    if (s && !s->half_closed) nghttp2_submit_rst_stream(session, 0, frame->hd.stream_id, NGHTTP2_NO_ERROR);
    return 0;
}

static int on_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *head, size_t length,
                        nghttp2_data_source *source, void *user) {
    hr_connection *c = user;
    (void)session, (void)frame;
    if (c->out.pending >= HR_OUTPUT_CAP) return NGHTTP2_ERR_WOULDBLOCK;
    if (hr_output_copy(&c->out, head, 9) < 0 || hr_stream_write(source->ptr, length) < 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (length > 0) carried(c); /* clients answer it with WINDOW_UPDATE and PING */
    return 0;
}

static ssize_t on_frame_size(nghttp2_session *session, uint8_t type, int32_t id, int32_t connection_window,
                             int32_t stream_window, uint32_t peers_frame, void *user) {
    (void)session, (void)type, (void)id, (void)user;
    int64_t n = connection_window < stream_window ? connection_window : stream_window;
    if (n > (int64_t)peers_frame) n = peers_frame;
    return (ssize_t)(n > HR_SEND_FRAME ? HR_SEND_FRAME : n < 1 ? 1 : n);
}

int hr_connections_init(void) {
    if (callbacks != NULL) return 0;
    if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&options) != 0) return -1;
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, on_begin_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_sent);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, on_send_data);
    nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, on_frame_size);
    nghttp2_option_set_no_auto_window_update(options, 1);
    nghttp2_option_set_no_closed_streams(options, 1);
    /* A busy client whose deadlines pass resets hundreds of calls a second, and a call that is reset costs no more than one
     * that is answered: so not nghttp2's 33 a second. */
    nghttp2_option_set_stream_reset_rate_limit(options, 1000, 1000);
    nghttp2_option_set_max_continuations(options, 8);
    nghttp2_option_set_max_settings(options, 32);
    nghttp2_option_set_max_outbound_ack(options, 1000);
    return 0;
}

/* ---- reading ---- */

/* What a peer is told that nghttp2 will have nothing more to do with. */
static uint32_t last_word(ssize_t failure) {
    switch (failure) {
    case NGHTTP2_ERR_BAD_CLIENT_MAGIC: return NGHTTP2_PROTOCOL_ERROR;
    case NGHTTP2_ERR_NOMEM:
    case NGHTTP2_ERR_CALLBACK_FAILURE: return NGHTTP2_INTERNAL_ERROR;
    default: return NGHTTP2_ENHANCE_YOUR_CALM;
    }
}

/* False: the peer has gone too far. */
bool hr_connection_give(hr_connection *c, const uint8_t *data, size_t length) {
    size_t good;
    uint32_t error = hr_frames_judge(&c->frames, data, length, &good);
    ssize_t taken = nghttp2_session_mem_recv(c->session, data, good);
    if (taken < 0) {
        c->leaving = true;
        nghttp2_session_terminate_session(c->session, last_word(taken));
    } else if (error != NGHTTP2_NO_ERROR) {
        nghttp2_session_terminate_session(c->session, error); /* it reads no more */
    }
    hr_lifetime_heard(c);
    c->idle_bytes += (uint32_t)length;
    if (c->idle_bytes > HR_IDLE_BYTES && !c->leaving) calm_down(c);
    if (nghttp2_session_get_outbound_queue_size(c->session) > HR_QUEUED_FRAMES) c->leaving = true;
    return !c->leaving;
}

/* Room in the message that this DATA frame continues. */
size_t hr_connection_direct_room(const hr_connection *c) {
    const hr_stream *s = c->direct;
    if (s == NULL) return 0;
    size_t room = s->in.room - s->in.count;
    if (room > c->frame_left) room = c->frame_left;
    return room >= HR_DIRECT ? room : 0;
}

/* Whatever comes is dropped. */
static int read_nothing(hr_connection *c) {
    ssize_t bytes = recv(c->fd, c->io->buffer, HR_READ, 0);
    if (bytes < 0) return errno == EINTR ? 1 : errno == EAGAIN ? 0 : -1;
    return bytes == 0 ? -1 : bytes == HR_READ;
}

/* One read: 1 there may be more, 0 not now, -1 the peer is gone. What follows the frame comes with its last bytes, into the side
 * buffer; in the middle of a frame that would only be more of it, to be copied. */
static int read_once(hr_connection *c) {
    if (c->going == HR_LINGERS) return read_nothing(c);
    if (c->tls) return hr_tls_read(c);
    size_t direct = hr_connection_direct_room(c), side = direct < c->frame_left && direct > 0 ? 0 : HR_READ;
    struct iovec parts[2] = {{direct ? c->direct->in.data + c->direct->in.count : NULL, direct}, {c->io->buffer, side}};
    ssize_t bytes = readv(c->fd, direct ? parts : parts + 1, direct && side ? 2 : 1);
    if (bytes < 0 && errno == EINTR) return 1;
    if (bytes < 0) return errno == EAGAIN ? 0 : -1;
    if (bytes == 0) return -1;
    size_t first = (size_t)bytes < direct ? (size_t)bytes : direct;
    if (first > 0 && !hr_connection_give(c, parts[0].iov_base, first)) return 0;
    if ((size_t)bytes > first && !hr_connection_give(c, c->io->buffer, (size_t)bytes - first)) return 0;
    return (size_t)bytes == direct + side;
}

void hr_connection_read(hr_connection *c) {
    int more = 1;
    for (int i = 0; i < HR_READS && more > 0 && !c->broken; i++) more = read_once(c);
    if (more < 0) c->broken = true;
    hr_lifetime_read(c);
    hr_connection_touch(c);
}

/* ---- sending ---- */

void hr_connection_touch(hr_connection *c) {
    if (c->dirty) return;
    c->dirty = true;
    c->dirty_next = c->io->dirty;
    c->io->dirty = c;
}

static void want_writable(hr_connection *c, bool wanted) {
    if (c->writable_wanted == wanted) return;
    c->writable_wanted = wanted;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(c->io->epoll, EPOLL_CTL_MOD, c->fd, &event);
}

/* Takes over what the session has to say, up to the cap: 0, or -1. */
static int collect(hr_connection *c) {
    const uint8_t *data;
    while (c->out.pending < HR_OUTPUT_CAP) {
        ssize_t bytes = nghttp2_session_mem_send(c->session, &data);
        if (bytes < 0) return -1;
        if (bytes == 0) return 0;
        if (hr_output_copy(&c->out, data, (size_t)bytes) < 0) return -1;
    }
    return 0;
}

static void read_on(hr_connection *c) {
    while (c->wanting) {
        hr_stream *s = c->wanting;
        c->wanting = s->wants_next;
        s->wants = false;
        hr_stream_read_on(s);
    }
}

static int flush(hr_connection *c) {
    int sent = c->tls ? hr_tls_flush(c) : hr_output_flush(c->io, &c->out, c->fd);
    want_writable(c, sent == 0);
    return sent;
}

/* Everything that can be sent now. False: the connection is over. */
static bool say(hr_connection *c) {
    if (c->going == HR_LINGERS) return !c->broken;
    if (c->session == NULL) return !c->broken && flush(c) >= 0 && !c->leaving;
    for (;;) {
        read_on(c);
        if (c->broken || collect(c) < 0) return false;
        if (c->out.pending == 0 && c->sealed == 0 && c->wanting == NULL) break;
        int sent = flush(c);
        if (sent < 0) return false;
        if (sent == 0) return !c->leaving;
    }
    if (c->leaving) return false;
    if (nghttp2_session_want_read(c->session) || nghttp2_session_want_write(c->session)) return true;
    return hr_lifetime_linger(c);
}

void hr_connections_say(hr_io *io) {
    while (io->dirty) {
        hr_connection *c = io->dirty;
        io->dirty = c->dirty_next;
        bool on = say(c);
        c->dirty = false;
        if (!on) hr_connection_close(c);
    }
}

/* ---- its beginning and end ---- */

int hr_connection_greet(hr_connection *c) {
    nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, HR_STREAMS}, {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, HR_STREAM_WINDOW},
        {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, HR_FRAME},           {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HR_HEADER_BYTES},
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
    };
    if (nghttp2_session_server_new2(&c->session, callbacks, c, options) != 0) return -1;
    if (nghttp2_submit_settings(c->session, 0, settings, sizeof settings / sizeof *settings) != 0) return -1;
    return nghttp2_session_set_local_window_size(c->session, 0, 0, HR_CONNECTION_WINDOW);
}

void hr_connection_new(hr_io *io, int fd) {
    hr_connection *c = calloc(1, sizeof *c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (c == NULL) {
        close(fd);
        atomic_fetch_sub(&io->connection_count, 1);
        return;
    }
    c->io = io;
    c->fd = fd;
    hr_lifetime_begin(c);
    hr_frames_begin(&c->frames);
    c->older = io->connections;
    if (c->older) c->older->newer = c;
    io->connections = c;
    hr_socket_tune(fd);
    int begun = io->tls ? hr_tls_begin(c) : hr_connection_greet(c);
    if (begun != 0 || epoll_ctl(io->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        hr_connection_close(c);
        return;
    }
    hr_connection_touch(c);
}

/* Not a GOAWAY yet: a client would come back on a new connection, when it is to be told that the server ends. */
void hr_connection_drain(hr_connection *c) {
    for (hr_stream *s = c->streams, *older; s; s = older) {
        older = s->older;
        hr_infer_drain(s);
    }
}

static void forget_dirty(hr_connection *c) {
    for (hr_connection **at = &c->io->dirty; *at; at = &(*at)->dirty_next)
        if (*at == c) {
            *at = c->dirty_next;
            return;
        }
}

/* A close with bytes unread is a reset, which may overtake the GOAWAY: what is there is read before. */
static void part(const hr_connection *c) {
    shutdown(c->fd, SHUT_WR);
    for (size_t left = HR_IDLE_BYTES; left >= HR_READ; left -= HR_READ)
        if (recv(c->fd, c->io->buffer, HR_READ, MSG_DONTWAIT) <= 0) return;
}

void hr_connection_close(hr_connection *c) {
    hr_io *io = c->io;
    if (c->tls) hr_tls_end(c);
    if (c->leaving) part(c);
    if (c->dirty) forget_dirty(c);
    c->dirty = true; /* its streams' ends need no wake-up */
    hr_deadlines_remove(&io->deadlines, &c->timer);
    while (c->streams) hr_stream_close(c->streams); /* nghttp2_session_del calls nobody */
    hr_output_clear(io, &c->out);
    nghttp2_session_del(c->session);
    if (c->tls) hr_tls_free(c);
    close(c->fd);
    if (c->newer) c->newer->older = c->older;
    else io->connections = c->older;
    if (c->older) c->older->newer = c->newer;
    atomic_fetch_sub(&io->connection_count, 1);
    free(c);
}
