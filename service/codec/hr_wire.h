/* hr_wire.h: the protobuf wire format, as upb reads it.
 *
 * upb is the C library under protobuf's Python package, and so the parser that servers written with grpcio
 * use. What the specification leaves open is decided as upb decides it:
 *
 *   varint    at most 10 bytes; bits above the 64th are dropped
 *   tag       a varint of at most 5 bytes, at most 2^32 - 1; field number 0 is refused; wire types 6 and 7 are refused
 *   length    a varint of any (over-long) form whose value is at most 2^31 - 1, and within the enclosing message
 *   group     skipped with everything in it; must be closed by its own number within the enclosing message
 *   depth     messages and groups may be nested 100 deep below the outermost message
 *
 * That is upb as of protobuf 6. In protobuf 7 a length of more than 5 bytes is refused, and field number 0 passes within a
 * group that is skipped; no protobuf library writes either.
 *
 * A reader is a pair (p, end). Every function here takes both, reads nothing at or behind `end`, and returns
 * the place behind what it read, or NULL when there is no such thing there. Nothing is allocated and nothing is copied.
 */
#ifndef HR_WIRE_H
#define HR_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    HR_VARINT = 0,
    HR_FIXED64 = 1,
    HR_BYTES = 2,
    HR_START_GROUP = 3,
    HR_END_GROUP = 4,
    HR_FIXED32 = 5,
    HR_MAX_DEPTH = 100,
    HR_MAX_RANK = 8,    /* of a tensor, batch axis included */
    HR_MAX_TENSORS = 64 /* inputs or outputs of a model */
};

#define HR_TAG(number, wire_type) (((uint32_t)(number) << 3) | (uint32_t)(wire_type))

/* A piece of somebody else's memory. */
typedef struct hr_view {
    const uint8_t *data;
    size_t length;
} hr_view;

static inline int hr_view_is(hr_view a, hr_view b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}
static inline hr_view hr_view_of(const char *text) { return (hr_view){(const uint8_t *)text, strlen(text)}; }
static inline int hr_view_says(hr_view v, const char *text) { return hr_view_is(v, hr_view_of(text)); }
static inline int hr_view_starts(hr_view v, const char *text) {
    size_t n = strlen(text);
    return v.length >= n && memcmp(v.data, text, n) == 0;
}

static inline const uint8_t *hr_read_long_varint(const uint8_t *p, const uint8_t *end, uint64_t *value) {
    uint64_t v = 0;
    for (unsigned i = 0; i < 10 && p < end; i++) {
        uint8_t byte = *p++;
        v |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = v;
            return p;
        }
    }
    return NULL;
}

static inline const uint8_t *hr_read_varint(const uint8_t *p, const uint8_t *end, uint64_t *value) {
    if (p < end && *p < 0x80) {
        *value = *p;
        return p + 1;
    }
    return hr_read_long_varint(p, end, value);
}

static inline const uint8_t *hr_read_tag(const uint8_t *p, const uint8_t *end, uint32_t *tag) {
    uint64_t value;
    const uint8_t *next = hr_read_varint(p, end, &value);
    if (next == NULL || next - p > 5 || value > UINT32_MAX || value < 8) return NULL;
    *tag = (uint32_t)value;
    return next;
}

/* A length and the bytes it announces. */
static inline const uint8_t *hr_read_bytes(const uint8_t *p, const uint8_t *end, hr_view *out) {
    uint64_t length;
    p = hr_read_varint(p, end, &length);
    if (p == NULL || length > INT32_MAX || length > (uint64_t)(end - p)) return NULL;
    *out = (hr_view){p, (size_t)length};
    return p + length;
}

static inline const uint8_t *hr_read_fixed64(const uint8_t *p, const uint8_t *end, uint64_t *value) {
    if (end - p < 8) return NULL;
    memcpy(value, p, 8); /* little-endian, as every machine this runs on */
    return p + 8;
}

/* Skips the value behind a tag that opens no group. */
static inline const uint8_t *hr_skip_plain(const uint8_t *p, const uint8_t *end, uint32_t tag) {
    uint64_t value;
    hr_view view;
    switch (tag & 7) {
    case HR_VARINT: return hr_read_varint(p, end, &value);
    case HR_FIXED64: return end - p < 8 ? NULL : p + 8;
    case HR_BYTES: return hr_read_bytes(p, end, &view);
    case HR_FIXED32: return end - p < 4 ? NULL : p + 4;
    default: return NULL;
    }
}

/* Skips a group whose opening tag was read. `depth`: how many groups may be open at once here. */
static inline const uint8_t *hr_skip_group(const uint8_t *p, const uint8_t *end, uint32_t tag, unsigned depth) {
    uint32_t open[HR_MAX_DEPTH]; /* field numbers, outermost first */
    unsigned count = 0;
    do {
        if ((tag & 7) == HR_START_GROUP) {
            if (count == depth) return NULL;
            open[count++] = tag >> 3;
        } else if ((tag & 7) == HR_END_GROUP) {
            if (open[--count] != tag >> 3) return NULL;
        } else {
            p = hr_skip_plain(p, end, tag);
        }
        if (p != NULL && count > 0) p = hr_read_tag(p, end, &tag);
        if (p == NULL) return NULL;
    } while (count > 0);
    return p;
}

/* Skips a field that nobody asked for. A group's end that no group opened is refused. */
static inline const uint8_t *hr_skip(const uint8_t *p, const uint8_t *end, uint32_t tag, unsigned depth) {
    if ((tag & 7) == HR_START_GROUP) return hr_skip_group(p, end, tag, depth);
    return hr_skip_plain(p, end, tag);
}

/* ---- UTF-8 (RFC 3629: no over-long forms, no surrogates, nothing above U+10FFFF) ---- */

/* The bytes of the character at p, or 0. */
static inline size_t hr_utf8_character(const uint8_t *p, size_t left) {
    uint8_t first = p[0], low = 0x80, high = 0xbf;
    size_t n = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (n <= 1 || n > left) return n > left ? 0 : n;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
    if (p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    return n;
}

static inline int hr_utf8_valid(hr_view v) {
    const uint8_t *p = v.data, *end = p + v.length;
    while (p < end) {
        uint64_t eight;
        if (end - p >= 8) {
            memcpy(&eight, p, 8);
            if ((eight & 0x8080808080808080u) == 0) {
                p += 8;
                continue;
            }
        }
        size_t n = hr_utf8_character(p, (size_t)(end - p));
        if (n == 0) return 0;
        p += n;
    }
    return 1;
}

#endif
