/* Compressed messages. What one of a client becomes is bounded as messages are, whatever its bytes promise; what goes out is
 * compressed only where that makes it smaller, as the flag of each message may say. */
#include <zlib.h>

#include "native_state.h"

enum { GZIP_WINDOW = 15 + 16, ZLIB_WINDOW = 15, GROW = 4, MEMORY_LEVEL = 8 };

enum hr_encoding hr_encoding_of(hr_view name) {
    if (hr_view_says(name, "identity")) return HR_IDENTITY;
    if (hr_view_says(name, "gzip")) return HR_GZIP;
    if (hr_view_says(name, "deflate")) return HR_DEFLATE;
    return HR_UNKNOWN_ENCODING;
}

bool hr_accepts(hr_view list, const char *name) {
    const char *at = (const char *)list.data, *end = at + list.length;
    size_t length = strlen(name);
    while (at < end) {
        while (at < end && (*at == ' ' || *at == ',')) at++;
        const char *from = at;
        while (at < end && *at != ' ' && *at != ',') at++;
        if ((size_t)(at - from) == length && memcmp(from, name, length) == 0) return true;
    }
    return false;
}

static int window(enum hr_encoding encoding) { return encoding == HR_GZIP ? GZIP_WINDOW : ZLIB_WINDOW; }

static int refuse(hr_error *err, int code, const char *text) { return hr_fail(err, code, "%s", text); }

/* Inflates until the stream's end: its length, or -1. *out grows up to `limit` bytes. */
static int64_t inflate_all(z_stream *z, uint64_t limit, uint8_t **out, hr_error *err) {
    uint64_t room = 0;
    for (int done = Z_OK; done != Z_STREAM_END;) {
        if (z->total_out == room) {
            room = room ? GROW * room : HR_FIRST_ROOM;
            if (room > limit + 1) room = limit + 1;
            uint8_t *more = realloc(*out, room);
            if (more == NULL) return refuse(err, HR_RESOURCE_EXHAUSTED, "no memory for a message of this size now, try later");
            *out = more;
        }
        z->next_out = *out + z->total_out;
        z->avail_out = (uInt)(room - z->total_out < INT32_MAX ? room - z->total_out : INT32_MAX);
        done = inflate(z, Z_NO_FLUSH);
        if (z->total_out > limit)
            return refuse(err, HR_RESOURCE_EXHAUSTED,
                          "a compressed message becomes larger than max, the less of 64 MB and what --max-message-bytes allows: "
                          "send it uncompressed, or fewer rows");
        bool stuck = done == Z_BUF_ERROR && z->avail_in == 0;
        if (stuck || (done != Z_OK && done != Z_STREAM_END && done != Z_BUF_ERROR))
            return refuse(err, HR_INTERNAL, "a compressed message is damaged: expected what grpc-encoding says");
    }
    return (int64_t)z->total_out;
}

int64_t hr_inflate(enum hr_encoding encoding, hr_view data, uint64_t limit, uint8_t **out, hr_error *err) {
    z_stream z = {.next_in = (Bytef *)(uintptr_t)data.data, .avail_in = (uInt)data.length};
    *out = NULL;
    if (encoding != HR_GZIP && encoding != HR_DEFLATE)
        return refuse(err, encoding == HR_IDENTITY ? HR_INTERNAL : HR_UNIMPLEMENTED,
                      "a message is compressed: expected grpc-encoding to be gzip or deflate");
    if (inflateInit2(&z, window(encoding)) != Z_OK)
        return refuse(err, HR_RESOURCE_EXHAUSTED, "no memory for a compressed message, try later");
    int64_t length = inflate_all(&z, limit, out, err);
    inflateEnd(&z);
    if (length >= 0) return length;
    free(*out);
    *out = NULL;
    return -1;
}

/* The message's segments, deflated: how many bytes that makes, 0 when `room` does not hold them. */
static uint64_t deflate_all(z_stream *z, const hr_message *m, uint8_t *to, uint64_t room) {
    z->next_out = to;
    z->avail_out = (uInt)room;
    for (uint32_t i = 0; i < m->segment_count; i++) {
        size_t skip = i ? 0 : HR_PREFIX;
        z->next_in = (Bytef *)(uintptr_t)m->segments[i].data + skip;
        z->avail_in = (uInt)(m->segments[i].length - skip);
        deflate(z, Z_NO_FLUSH);
        if (z->avail_in > 0) return 0;
    }
    return deflate(z, Z_FINISH) == Z_STREAM_END ? z->total_out : 0;
}

static hr_message *new_compressed(const uint8_t *data, uint64_t length) {
    hr_message *m = hr_message_new(1, HR_PREFIX + length);
    if (m == NULL) return NULL;
    uint8_t *to = hr_message_bytes(m, 1);
    hr_put_prefix(to, length);
    to[0] = 1; /* compressed */
    memcpy(to + HR_PREFIX, data, length);
    m->length = HR_PREFIX + length;
    m->segments[0] = (hr_segment){to, m->length};
    return m;
}

hr_message *hr_message_compress(hr_io *io, hr_message *m, enum hr_encoding encoding, int level) {
    z_stream z = {0};
    uint64_t length = m->length - HR_PREFIX;
    uint8_t *room = length ? malloc(length) : NULL;
    hr_message *smaller = NULL;
    if (level == 0) level = Z_DEFAULT_COMPRESSION;
    if (room && deflateInit2(&z, level, Z_DEFLATED, window(encoding), MEMORY_LEVEL, Z_DEFAULT_STRATEGY) == Z_OK) {
        uint64_t bytes = deflate_all(&z, m, room, length - 1);
        if (bytes > 0) smaller = new_compressed(room, bytes);
        deflateEnd(&z);
    }
    free(room);
    if (smaller == NULL) return m;
    hr_message_drop(io, m);
    return smaller;
}
