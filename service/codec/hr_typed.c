#include "hr_typed.h"

static const struct {
    enum hr_contents field;
    int64_t low, high; /* of 32 bits that are to become fewer; else 0, 0 */
} ELEMENTS[HR_DATATYPES] = {
    [HR_BOOL] = {HR_BOOL_CONTENTS, 0, 0},      [HR_UINT8] = {HR_UINT_CONTENTS, 0, UINT8_MAX},
    [HR_UINT16] = {HR_UINT_CONTENTS, 0, UINT16_MAX}, [HR_UINT32] = {HR_UINT_CONTENTS, 0, 0},
    [HR_UINT64] = {HR_UINT64_CONTENTS, 0, 0},  [HR_INT8] = {HR_INT_CONTENTS, INT8_MIN, INT8_MAX},
    [HR_INT16] = {HR_INT_CONTENTS, INT16_MIN, INT16_MAX}, [HR_INT32] = {HR_INT_CONTENTS, 0, 0},
    [HR_INT64] = {HR_INT64_CONTENTS, 0, 0},    [HR_FP32] = {HR_FP32_CONTENTS, 0, 0},
    [HR_FP64] = {HR_FP64_CONTENTS, 0, 0},      [HR_BYTES_DATATYPE] = {HR_BYTES_CONTENTS, 0, 0}};

static const char *const NAMES[HR_CONTENTS_FIELDS] = {
    "no contents",     "bool_contents", "int_contents",  "int64_contents", "uint_contents",
    "uint64_contents", "fp32_contents", "fp64_contents", "bytes_contents"};

enum hr_contents hr_contents_of(enum hr_datatype datatype) { return ELEMENTS[datatype].field; }

const char *hr_contents_name(enum hr_contents field) { return NAMES[field]; }

uint64_t hr_typed_bytes(const hr_input *input, enum hr_datatype datatype) {
    uint64_t count = input->typed[ELEMENTS[datatype].field];
    if (datatype == HR_BYTES_DATATYPE) return count * HR_STRING_HEAD + input->string_bytes;
    return count * hr_datatype_bytes(datatype);
}

/* ---- from run to run ---- */

/* The next field `number` of a message that was scanned: the bytes of its value. `alone` is the wire type that it has
 * when it is not HR_BYTES. */
static bool next_field(hr_view *rest, uint32_t number, uint32_t alone, hr_view *value) {
    const uint8_t *p = rest->data, *end = p + rest->length;
    while (p != NULL && p < end) {
        uint32_t tag;
        const uint8_t *at = p = hr_read_tag(p, end, &tag);
        if (p == NULL) break;
        bool bytes = tag == HR_TAG(number, HR_BYTES), ours = bytes || tag == HR_TAG(number, alone);
        p = bytes ? hr_read_bytes(p, end, value) : hr_skip(p, end, tag, HR_MAX_DEPTH);
        if (p == NULL || !ours) continue;
        if (!bytes) *value = (hr_view){at, (size_t)(p - at)};
        *rest = (hr_view){p, (size_t)(end - p)};
        return true;
    }
    *rest = (hr_view){end, 0};
    return false;
}

static bool next_run(hr_typed *t) {
    uint32_t field = ELEMENTS[t->datatype].field;
    hr_view run;
    while (!next_field(&t->contents, field, hr_contents_alone(field), &run))
        if (!next_field(&t->input, HR_INPUT_CONTENTS, HR_BYTES, &t->contents)) return false;
    t->p = run.data;
    t->end = run.data + run.length;
    t->length = (uint32_t)run.length;
    t->head = field == HR_BYTES_CONTENTS ? HR_STRING_HEAD : 0;
    return true;
}

bool hr_typed_next_string(hr_typed *walk, uint32_t *length) {
    if (!next_run(walk)) return false;
    *length = walk->length;
    return true;
}

hr_typed hr_typed_at(const hr_input *input, enum hr_datatype datatype) {
    const uint8_t *p = input->body.data;
    return (hr_typed){.input = input->body, .contents = {p, 0}, .p = p, .end = p, .datatype = datatype};
}

/* ---- within a run ---- */

/* Each returns the place behind what it wrote, with the walk behind what it read. */

static uint8_t *put_fixed(hr_typed *t, uint8_t *to, const uint8_t *end) {
    size_t n = (size_t)(t->end - t->p) < (size_t)(end - to) ? (size_t)(t->end - t->p) : (size_t)(end - to);
    memcpy(to, t->p, n);
    t->p += n;
    return to + n;
}

__attribute__((always_inline)) static inline uint8_t *put_varints(hr_typed *t, uint8_t *to, const uint8_t *end,
                                                                  size_t bytes, bool is_bool) {
    const uint8_t *p = t->p, *last = t->end;
    while (to < end && p < last) {
        uint64_t value = 0;
        p = hr_read_varint(p, last, &value);
        if (p == NULL) break; /* never: the run was scanned */
        if (is_bool) value = value != 0;
        memcpy(to, &value, bytes); /* the low bytes: little-endian, as every machine this runs on */
        to += bytes;
    }
    t->p = p ? p : last;
    return to;
}

/* A string may be cut anywhere, also within its length. */
static uint8_t *put_string(hr_typed *t, uint8_t *to, const uint8_t *end) {
    uint32_t n = (size_t)(end - to) < t->head ? (uint32_t)(end - to) : t->head;
    memcpy(to, (const uint8_t *)&t->length + (HR_STRING_HEAD - t->head), n); /* little-endian, as above */
    t->head -= n;
    return put_fixed(t, to + n, end);
}

static uint8_t *put_run(hr_typed *t, uint8_t *to, const uint8_t *end) {
    if (t->datatype == HR_BYTES_DATATYPE) return put_string(t, to, end);
    if (t->datatype == HR_BOOL) return put_varints(t, to, end, 1, true);
    if (t->datatype == HR_FP32 || t->datatype == HR_FP64) return put_fixed(t, to, end);
    switch (hr_datatype_bytes(t->datatype)) {
    case 1: return put_varints(t, to, end, 1, false);
    case 2: return put_varints(t, to, end, 2, false);
    case 4: return put_varints(t, to, end, 4, false);
    default: return put_varints(t, to, end, 8, false);
    }
}

void hr_typed_write(void *walk, void *to, uint64_t length) {
    hr_typed *t = walk;
    uint8_t *at = to, *end = at + length;
    while (at < end) {
        if (t->p < t->end || t->head > 0) at = put_run(t, at, end);
        else if (!next_run(t)) {
            memset(at, 0, (size_t)(end - at)); /* validated requests have as many as are asked for */
            return;
        }
    }
}

/* ---- do they fit ---- */

bool hr_typed_is_text(const hr_input *input, uint64_t *element) {
    hr_typed t = hr_typed_at(input, HR_BYTES_DATATYPE);
    for (*element = 0; next_run(&t); ++*element)
        if (!hr_utf8_valid((hr_view){t.p, (size_t)(t.end - t.p)})) return false;
    return true;
}

/* The first value of the present run that is outside, with the walk behind it; else at the end of the run. */
static bool run_fits(hr_typed *t, uint64_t *element, int64_t *value) {
    int64_t low = ELEMENTS[t->datatype].low, high = ELEMENTS[t->datatype].high;
    bool with_sign = ELEMENTS[t->datatype].field == HR_INT_CONTENTS;
    for (const uint8_t *p = t->p; p < t->end; ++*element) {
        uint64_t bits;
        p = hr_read_varint(p, t->end, &bits);
        if (p == NULL) break;
        *value = with_sign ? (int32_t)(uint32_t)bits : (int64_t)(uint32_t)bits;
        if (*value < low || *value > high) return false;
    }
    t->p = t->end;
    return true;
}

bool hr_typed_fits(const hr_input *input, enum hr_datatype datatype, uint64_t *element, int64_t *value) {
    hr_typed t = hr_typed_at(input, datatype);
    *element = 0;
    *value = 0;
    if (ELEMENTS[datatype].high == 0) return true;
    while (next_run(&t))
        if (!run_fits(&t, element, value)) return false;
    return true;
}
