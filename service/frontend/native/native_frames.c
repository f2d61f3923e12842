/* Frames that nghttp2 lets pass, and RFC 9113 does not.
 *
 * nghttp2 knows a frame on a stream that is over only when it keeps such streams, as many as may be open at once: 270 KB a
 * connection. And where priorities of RFC 7540 are said not to be heeded, which spares us a tree that the client makes, it
 * looks at no PRIORITY at all. So the heads of frames are read here too, before it gets them; nothing else is.
 *
 *   skip: payload, or the preface -> head -> (PRIORITY: the stream it depends on) -> verdict -> skip
 *
 * NUMBERS of streams only grow: one that the client has left out is closed with the next that it opens, and never comes. The last
 * ones that were left out are known. Where a lower number may belong to trailers that the client sent before it knew that we
 * reset their stream, nothing is wrong.
 *
 * WHAT A CLIENT HAS ENDED, by END_STREAM or RST_STREAM, it may not add to: the last HR_ENDED such streams are known, each in
 * the place of its number. A frame on an older one is ignored, as nghttp2 does it. What comes on a stream that we reset is not
 * wrong: the client may not know yet (5.1).
 */
#include "native_state.h"

enum { HEAD = 9, WITH_DEPENDENCY = HEAD + 4, PREFACE = 24, OF_STREAM = 0x7fffffff };

void hr_frames_begin(hr_frames *f) { *f = (hr_frames){.skip = PREFACE, .next = 1}; }

static uint32_t number(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }

static uint32_t length_of(const hr_frames *f) { return number(f->head) >> 8; }

/* The frame's first bytes that are looked at. */
static uint32_t wanted(const hr_frames *f) {
    bool priority = f->count >= HEAD && f->head[3] == NGHTTP2_PRIORITY && length_of(f) == 5;
    return priority ? WITH_DEPENDENCY : HEAD;
}

static uint32_t judge_priority(const hr_frames *f, uint32_t stream) {
    if (stream == 0) return NGHTTP2_PROTOCOL_ERROR;
    bool on_itself = f->count == WITH_DEPENDENCY && (number(f->head + HEAD) & OF_STREAM) == stream;
    return on_itself ? NGHTTP2_PROTOCOL_ERROR : NGHTTP2_NO_ERROR;
}

/* Even numbers are left to nghttp2. */
static uint32_t judge_number(hr_frames *f, uint32_t stream) {
    if (stream % 2 == 0) return NGHTTP2_NO_ERROR;
    if (stream < f->next) return stream >= f->left_out && stream < f->left_out_end ? NGHTTP2_PROTOCOL_ERROR : NGHTTP2_NO_ERROR;
    if (stream > f->next) {
        f->left_out = f->next;
        f->left_out_end = stream;
    }
    f->next = stream + 2;
    return NGHTTP2_NO_ERROR;
}

/* The error that the frame is, as far as nghttp2 does not find it. */
static uint32_t judge(hr_frames *f) {
    uint8_t type = f->head[3];
    uint32_t stream = number(f->head + 5) & OF_STREAM, *ended = &f->ended[stream / 2 % HR_ENDED];
    bool of_call = type == NGHTTP2_DATA || type == NGHTTP2_HEADERS;
    if (type == NGHTTP2_PRIORITY) return judge_priority(f, stream);
    if (of_call && stream && *ended == stream) return NGHTTP2_STREAM_CLOSED;
    if (type == NGHTTP2_RST_STREAM || (of_call && f->head[4] & NGHTTP2_FLAG_END_STREAM)) *ended = stream;
    return type == NGHTTP2_HEADERS ? judge_number(f, stream) : NGHTTP2_NO_ERROR;
}

uint32_t hr_frames_judge(hr_frames *f, const uint8_t *data, size_t length, size_t *good) {
    for (size_t at = 0; at < length;) {
        size_t n = f->skip ? f->skip : wanted(f) - f->count;
        if (n > length - at) n = length - at;
        at += n;
        if (f->skip) {
            f->skip -= (uint32_t)n;
            continue;
        }
        memcpy(f->head + f->count, data + at - n, n);
        f->count += (uint8_t)n;
        if (f->count < wanted(f)) continue;
        uint32_t error = judge(f);
        *good = at - n;
        if (error != NGHTTP2_NO_ERROR) return error;
        f->skip = length_of(f) - (f->count - HEAD);
        f->count = 0;
    }
    *good = length;
    return NGHTTP2_NO_ERROR;
}
