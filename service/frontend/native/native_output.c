/* What goes out: messages, which may lie in the output arena, and the bytes of a connection between them. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "native_state.h"

/* ---- messages ---- */

hr_message *hr_message_new(uint32_t segments, size_t room) {
    hr_message *m = malloc(sizeof *m + segments * sizeof(hr_segment) + room);
    if (m == NULL) return NULL;
    *m = (hr_message){.holders = 1, .segment_count = segments, .segments = (hr_segment *)(m + 1)};
    return m;
}

void hr_put_prefix(uint8_t *to, uint64_t length) {
    to[0] = 0; /* not compressed */
    for (int i = 0; i < 4; i++) to[1 + i] = (uint8_t)(length >> (24 - 8 * i));
}

static void unlink_held(hr_io *io, hr_message *m) {
    if (m->older) m->older->newer = m->newer;
    else io->held_oldest = m->newer;
    if (m->newer) m->newer->older = m->older;
    else io->held_newest = m->older;
    io->held_bytes -= m->length;
    m->held = false;
    m->older = m->newer = NULL;
}

/* The message goes out from the answer's slices, which are given back when it is sent. */
void hr_message_hold(hr_io *io, hr_message *m, const hr_answer *answer) {
    m->held = true;
    m->lane = answer->lane;
    m->slot = answer->slot;
    m->has_answer = answer->completion.answer.length > 0;
    m->older = io->held_newest;
    if (m->older) m->older->newer = m;
    else io->held_oldest = m;
    io->held_newest = m;
    io->held_bytes += m->length;
}

void hr_message_charge(hr_io *io, hr_message *m) {
    m->charged = true;
    hr_count(&io->native->answer_bytes, (int64_t)m->length);
}

void hr_message_drop(hr_io *io, hr_message *m) {
    if (--m->holders > 0) return;
    if (m->held) {
        unlink_held(io, m);
        hr_dispatch_release(io->dispatch, m->lane, m->slot, m->has_answer);
    }
    if (m->charged) hr_count(&io->native->answer_bytes, -(int64_t)m->length);
    free(m->copy);
    free(m);
}

/* Payloads are the odd segments: a message begins with its prefix and head, and empty payloads are no segments. */
static void copy_out(hr_message *m) {
    size_t bytes = 0, at = 0;
    for (uint32_t i = 1; i < m->segment_count; i += 2) bytes += m->segments[i].length;
    m->copy = malloc(bytes ? bytes : 1);
    for (uint32_t i = 1; i < m->segment_count && m->copy; i += 2) {
        memcpy(m->copy + at, m->segments[i].data, m->segments[i].length);
        m->segments[i].data = m->copy + at;
        at += m->segments[i].length;
    }
}

static bool leave_arena(hr_io *io, hr_message *m) {
    copy_out(m);
    if (m->copy == NULL) return false;
    unlink_held(io, m);
    return true;
}

void hr_messages_leave_lane(hr_io *io, uint32_t lane) {
    for (hr_message *m = io->held_oldest, *newer; m; m = newer) {
        newer = m->newer;
        if (m->lane != lane) continue;
        if (leave_arena(io, m)) continue;
        abort(); /* no memory, and its bytes are about to be unmapped under a writev: no worse answer is left */
    }
}

void hr_messages_leave_arena(hr_io *io) {
    while (io->held_bytes > io->native->options.held_bytes) {
        hr_message *m = io->held_oldest;
        uint32_t lane = m->lane, slot = m->slot;
        bool has_answer = m->has_answer;
        if (!leave_arena(io, m)) return; /* it waits in the arena a little longer */
        hr_dispatch_release(io->dispatch, lane, slot, has_answer);
    }
}

/* ---- a connection's output ---- */

static hr_piece *new_piece(hr_output_queue *q) {
    if (q->count == q->room) {
        uint32_t room = q->room ? 2 * q->room : 64;
        hr_piece *pieces = realloc(q->pieces, room * sizeof *pieces);
        if (pieces == NULL) return NULL;
        q->pieces = pieces;
        q->room = room;
    }
    return &q->pieces[q->count++];
}

static int make_room(hr_output_queue *q, size_t length) {
    size_t room = q->byte_room ? q->byte_room : HR_READ;
    while (q->byte_count + length > room) room *= 2;
    if (room == q->byte_room) return 0;
    uint8_t *bytes = realloc(q->bytes, room);
    if (bytes == NULL) return -1;
    q->bytes = bytes;
    q->byte_room = room;
    return 0;
}

int hr_output_copy(hr_output_queue *q, const uint8_t *data, size_t length) {
    if (length == 0) return 0;
    if (make_room(q, length) < 0) return -1;
    hr_piece *last = q->count > q->first ? &q->pieces[q->count - 1] : NULL;
    if (last && !last->message && last->offset + last->length == q->byte_count) {
        last->length += (uint32_t)length;
    } else {
        hr_piece *piece = new_piece(q);
        if (piece == NULL) return -1;
        *piece = (hr_piece){.offset = q->byte_count, .length = (uint32_t)length};
    }
    memcpy(q->bytes + q->byte_count, data, length);
    q->byte_count += length;
    q->pending += length;
    return 0;
}

int hr_output_refer(hr_output_queue *q, hr_message *m, uint32_t segment, size_t offset, size_t length) {
    hr_piece *piece = new_piece(q);
    if (piece == NULL) return -1;
    *piece = (hr_piece){.message = m, .segment = segment, .offset = offset, .length = (uint32_t)length};
    m->holders++;
    q->pending += length;
    return 0;
}

static const uint8_t *piece_data(const hr_output_queue *q, const hr_piece *piece) {
    return (piece->message ? piece->message->segments[piece->segment].data : q->bytes) + piece->offset;
}

static void sent(hr_io *io, hr_output_queue *q, size_t bytes) {
    q->pending -= bytes;
    while (bytes > 0) {
        hr_piece *piece = &q->pieces[q->first];
        if (bytes < piece->length) {
            piece->offset += bytes;
            piece->length -= (uint32_t)bytes;
            return;
        }
        bytes -= piece->length;
        q->first++;
        if (piece->message) hr_message_drop(io, piece->message);
    }
}

static void rewind_output(hr_output_queue *q) {
    q->first = q->count = 0;
    q->byte_count = 0;
    if (q->byte_room <= HR_OUTPUT_CAP) return;
    free(q->bytes); /* a large one is not kept for ever */
    q->bytes = NULL;
    q->byte_room = 0;
}

size_t hr_output_front(const hr_output_queue *q, uint8_t *room, size_t most, const uint8_t **data) {
    const hr_piece *piece = &q->pieces[q->first], *end = &q->pieces[q->count];
    size_t length = 0;
    *data = piece_data(q, piece);
    if (piece->length >= most || piece + 1 == end) return piece->length < most ? piece->length : most;
    for (*data = room; piece < end && length < most; piece++) {
        size_t n = piece->length < most - length ? piece->length : most - length;
        memcpy(room + length, piece_data(q, piece), n);
        length += n;
    }
    return length;
}

void hr_output_sent(hr_io *io, hr_output_queue *q, size_t bytes) {
    sent(io, q, bytes);
    if (q->first == q->count) rewind_output(q);
}

int hr_output_flush(hr_io *io, hr_output_queue *q, int fd) {
    while (q->first < q->count) {
        struct iovec parts[64];
        uint32_t count = 0;
        size_t total = 0;
        for (uint32_t i = q->first; i < q->count && count < 64; i++, count++) {
            parts[count] = (struct iovec){(void *)(uintptr_t)piece_data(q, &q->pieces[i]), q->pieces[i].length};
            total += q->pieces[i].length;
        }
        struct msghdr out = {.msg_iov = parts, .msg_iovlen = count};
        ssize_t bytes = sendmsg(fd, &out, MSG_NOSIGNAL);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) return errno == EAGAIN ? 0 : -1;
        sent(io, q, (size_t)bytes);
        if ((size_t)bytes < total) return 0;
    }
    rewind_output(q);
    return 1;
}

void hr_output_clear(hr_io *io, hr_output_queue *q) {
    for (uint32_t i = q->first; i < q->count; i++)
        if (q->pieces[i].message) hr_message_drop(io, q->pieces[i].message);
    free(q->bytes);
    free(q->pieces);
    *q = (hr_output_queue){0};
}
