#include "hr_encode.h"

/* ---- sizes ---- */

static uint64_t varint_bytes(uint64_t value) {
    return (uint64_t)(70 - __builtin_clzll(value | 1)) / 7;
}

/* A field with a length, whose number is below 16. */
static uint64_t field_bytes(uint64_t length) { return 1 + varint_bytes(length) + length; }

/* A string field: absent when it is empty. */
static uint64_t string_bytes(hr_view v) { return v.length ? field_bytes(v.length) : 0; }

static uint64_t shape_bytes(const hr_output *o) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < o->rank; i++) n += varint_bytes((uint64_t)o->dims[i]);
    return n;
}

static uint64_t output_bytes(const hr_output *o) {
    uint64_t shape = o->rank ? field_bytes(shape_bytes(o)) : 0;
    return string_bytes(o->name) + string_bytes(o->datatype) + shape;
}

/* parameters { key: "triton_final_response" value { bool_param: false } }: the last byte is the flag. */
static const uint8_t FINAL[] = "\x22\x1b\x0a\x15triton_final_response\x12\x02\x08"; /* and the flag for the zero */
_Static_assert(sizeof FINAL == 2 + 0x1b, "the entry's length");

static uint64_t infer_head_bytes(const hr_response *r) {
    uint64_t n = string_bytes(r->model_name) + string_bytes(r->model_version) + string_bytes(r->id);
    if (r->final != HR_FINAL_UNSAID) n += sizeof FINAL;
    for (uint32_t i = 0; i < r->output_count; i++) n += field_bytes(output_bytes(&r->outputs[i]));
    return n;
}

static uint64_t infer_bytes(const hr_response *r) {
    uint64_t n = infer_head_bytes(r);
    for (uint32_t i = 0; i < r->output_count; i++) n += field_bytes(r->outputs[i].data.length);
    return n;
}

uint64_t hr_encoded_bytes(const hr_response *r) {
    uint64_t n = infer_bytes(r);
    return r->stream ? string_bytes(r->error) + field_bytes(n) : n;
}

static uint64_t payload_bytes(const hr_response *r) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < r->output_count; i++) n += r->outputs[i].data.length;
    return n;
}

uint64_t hr_head_bytes(const hr_response *r) { return hr_encoded_bytes(r) - payload_bytes(r); }

/* ---- bytes ---- */

static uint8_t *put_varint(uint8_t *to, uint64_t value) {
    while (value >= 0x80) {
        *to++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *to++ = (uint8_t)value;
    return to;
}

static uint8_t *put_length(uint8_t *to, unsigned field, uint64_t length) {
    *to++ = (uint8_t)HR_TAG(field, HR_BYTES);
    return put_varint(to, length);
}

static uint8_t *put_bytes(uint8_t *to, hr_view v) {
    if (v.length) memcpy(to, v.data, v.length);
    return to + v.length;
}

static uint8_t *put_string(uint8_t *to, unsigned field, hr_view v) {
    return v.length ? put_bytes(put_length(to, field, v.length), v) : to;
}

static uint8_t *put_output(uint8_t *to, const hr_output *o) {
    to = put_length(to, 5, output_bytes(o));
    to = put_string(to, 1, o->name);
    to = put_string(to, 2, o->datatype);
    if (o->rank == 0) return to;
    to = put_length(to, 3, shape_bytes(o));
    for (uint32_t i = 0; i < o->rank; i++) to = put_varint(to, (uint64_t)o->dims[i]);
    return to;
}

static uint8_t *put_final(uint8_t *to, enum hr_final final) {
    if (final == HR_FINAL_UNSAID) return to;
    memcpy(to, FINAL, sizeof FINAL);
    to[sizeof FINAL - 1] = final == HR_FINAL_TRUE;
    return to + sizeof FINAL;
}

/* Everything before the first entry of raw_output_contents. */
static uint8_t *put_head(uint8_t *to, const hr_response *r) {
    if (r->stream) to = put_length(put_string(to, 1, r->error), 2, infer_bytes(r));
    to = put_string(to, 1, r->model_name);
    to = put_string(to, 2, r->model_version);
    to = put_string(to, 3, r->id);
    to = put_final(to, r->final);
    for (uint32_t i = 0; i < r->output_count; i++) to = put_output(to, &r->outputs[i]);
    return to;
}

uint8_t *hr_encode(const hr_response *r, uint8_t *to) {
    to = put_head(to, r);
    for (uint32_t i = 0; i < r->output_count; i++) {
        hr_view data = r->outputs[i].data;
        to = put_bytes(put_length(to, 6, data.length), data);
    }
    return to;
}

uint32_t hr_encode_head(const hr_response *r, uint8_t *head, hr_segment *segments) {
    uint32_t count = 0;
    uint8_t *at = put_head(head, r);
    for (uint32_t i = 0; i < r->output_count; i++) {
        hr_view data = r->outputs[i].data;
        at = put_length(at, 6, data.length);
        if (data.length == 0) continue;
        segments[count++] = (hr_segment){head, (size_t)(at - head)};
        segments[count++] = (hr_segment){data.data, data.length};
        head = at;
    }
    if (at > head) segments[count++] = (hr_segment){head, (size_t)(at - head)};
    return count;
}
