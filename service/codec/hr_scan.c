/* One function per message of the request, each a switch over its tags; scan_message is the loop around them.
 * A function that meets a fault says where (`fault`, the innermost one is kept) and returns NULL. */
#include "hr_scan.h"

typedef struct scan {
    const uint8_t *fault_at;
    const char *fault;
} scan;

/* Reads the value behind `tag`, below which messages and groups may be nested `depth` deep. */
typedef const uint8_t *read_field(scan *s, const uint8_t *p, const uint8_t *end, uint32_t tag, unsigned depth,
                                  void *into);

static const uint8_t *fault(scan *s, const uint8_t *at, const char *what) {
    if (s->fault == NULL) {
        s->fault = what;
        s->fault_at = at;
    }
    return NULL;
}

__attribute__((always_inline)) static inline bool scan_message(scan *s, hr_view body, unsigned depth,
                                                               const char *name, read_field *field, void *into) {
    const uint8_t *p = body.data, *end = p + body.length;
    while (p < end) {
        uint32_t tag;
        const uint8_t *at = p;
        p = hr_read_tag(p, end, &tag);
        if (p != NULL) p = field(s, p, end, tag, depth, into);
        if (p == NULL) {
            fault(s, at, name);
            return false;
        }
    }
    return true;
}

static const uint8_t *read_string(scan *s, const uint8_t *p, const uint8_t *end, const char *name, hr_view *out) {
    hr_view view;
    const uint8_t *next = hr_read_bytes(p, end, &view);
    if (next == NULL) return fault(s, p, name);
    if (!hr_utf8_valid(view)) return fault(s, p, name);
    *out = view;
    return next;
}

/* ---- parameters ---- */

typedef struct entry {
    hr_param param;
    bool unknown;
} entry;

static const uint8_t *read_number(const uint8_t *p, const uint8_t *end, hr_param *param, enum hr_kind kind) {
    uint64_t value;
    p = kind == HR_KIND_DOUBLE ? hr_read_fixed64(p, end, &value) : hr_read_varint(p, end, &value);
    if (p == NULL) return NULL;
    param->kind = kind;
    param->number = kind == HR_KIND_BOOL ? value != 0 : value;
    return p;
}

static const uint8_t *value_field(scan *s, const uint8_t *p, const uint8_t *end, uint32_t tag, unsigned depth,
                                  void *into) {
    hr_param *param = into;
    switch (tag) {
    case HR_TAG(1, HR_VARINT): return read_number(p, end, param, HR_KIND_BOOL);
    case HR_TAG(2, HR_VARINT): return read_number(p, end, param, HR_KIND_INT64);
    case HR_TAG(3, HR_BYTES):
        param->kind = HR_KIND_STRING;
        return read_string(s, p, end, "string_param (a length, and UTF-8)", &param->text);
    case HR_TAG(4, HR_FIXED64): return read_number(p, end, param, HR_KIND_DOUBLE);
    case HR_TAG(5, HR_VARINT): return read_number(p, end, param, HR_KIND_UINT64);
    default: return hr_skip(p, end, tag, depth);
    }
}

static const uint8_t *entry_field(scan *s, const uint8_t *p, const uint8_t *end, uint32_t tag, unsigned depth,
                                  void *into) {
    entry *e = into;
    hr_view body;
    switch (tag) {
    case HR_TAG(1, HR_BYTES): return read_string(s, p, end, "a parameter's key (a length, and UTF-8)", &e->param.key);
    case HR_TAG(2, HR_BYTES):
        p = hr_read_bytes(p, end, &body);
        if (p == NULL || !scan_message(s, body, depth - 1, "an InferParameter", value_field, &e->param)) return NULL;
        return p;
    default: e->unknown = true; return hr_skip(p, end, tag, depth);
    }
}

static const uint8_t *read_entry(scan *s, const uint8_t *p, const uint8_t *end, unsigned depth, entry *e) {
    hr_view body;
    *e = (entry){0};
    p = hr_read_bytes(p, end, &body);
    if (p == NULL || !scan_message(s, body, depth - 1, "an entry of parameters", entry_field, e)) return NULL;
    return p;
}

static const uint8_t *count_entry(scan *s, const uint8_t *p, const uint8_t *end, unsigned depth, uint64_t *count) {
    entry e;
    p = read_entry(s, p, end, depth, &e);
    if (p != NULL && !e.unknown) ++*count;
    return p;
}

/* The message was scanned, so nothing here can fail; the checks stay, for they cost nothing. */
bool hr_params_next(hr_params *walk, hr_param *out) {
    scan s = {0};
    entry e;
    while (walk->p != NULL && walk->p < walk->end) {
        uint32_t tag;
        const uint8_t *p = hr_read_tag(walk->p, walk->end, &tag);
        bool ours = p != NULL && tag == HR_TAG(walk->field, HR_BYTES);
        if (ours) p = read_entry(&s, p, walk->end, HR_MAX_DEPTH, &e);
        else if (p != NULL) p = hr_skip(p, walk->end, tag, HR_MAX_DEPTH);
        walk->p = p;
        if (!ours || p == NULL || e.unknown) continue;
        *out = e.param;
        return true;
    }
    return false;
}

/* ---- inputs ---- */

static const uint8_t *count_varints(const uint8_t *p, const uint8_t *end, uint64_t *count) {
    hr_view body;
    const uint8_t *next = hr_read_bytes(p, end, &body);
    if (next == NULL) return NULL;
    for (p = body.data; p < next; ++*count) {
        uint64_t value;
        p = hr_read_varint(p, next, &value);
        if (p == NULL) return NULL;
    }
    return next;
}

static const uint8_t *count_fixed(const uint8_t *p, const uint8_t *end, size_t size, uint64_t *count) {
    hr_view body;
    p = hr_read_bytes(p, end, &body);
    if (p == NULL || body.length % size != 0) return NULL;
    *count += body.length / size;
    return p;
}

static const uint8_t *count_string(const uint8_t *p, const uint8_t *end, hr_input *input) {
    hr_view string;
    p = hr_read_bytes(p, end, &string);
    if (p != NULL) input->string_bytes += string.length;
    return p;
}

static const uint8_t *contents_field(scan *s, const uint8_t *p, const uint8_t *end, uint32_t tag, unsigned depth,
                                     void *into) {
    hr_input *input = into;
    uint32_t number = tag >> 3, wire_type = tag & 7;
    (void)s;
    if (number >= HR_CONTENTS_FIELDS) return hr_skip(p, end, tag, depth);
    if (wire_type == hr_contents_alone(number)) {
        input->typed[number]++;
        if (number == HR_BYTES_CONTENTS) return count_string(p, end, input);
        return hr_skip_plain(p, end, tag);
    }
    if (wire_type != HR_BYTES) return hr_skip(p, end, tag, depth);
    if (number == HR_FP32_CONTENTS) return count_fixed(p, end, 4, &input->typed[number]);
    if (number == HR_FP64_CONTENTS) return count_fixed(p, end, 8, &input->typed[number]);
    return count_varints(p, end, &input->typed[number]);
}

static void add_dimension(hr_input *input, uint64_t value) {
    if (input->rank < HR_MAX_RANK) input->dims[input->rank] = (int64_t)value;
    if (input->rank < UINT32_MAX) input->rank++;
}

static const uint8_t *read_dimension(const uint8_t *p, const uint8_t *end, hr_input *input) {
    uint64_t value;
    p = hr_read_varint(p, end, &value);
    if (p != NULL) add_dimension(input, value);
    return p;
}

static const uint8_t *read_shape(scan *s, const uint8_t *p, const uint8_t *end, hr_input *input) {
    hr_view body;
    const uint8_t *next = hr_read_bytes(p, end, &body);
    if (next == NULL) return NULL;
    for (p = body.data; p < next;) {
        const uint8_t *at = p;
        p = read_dimension(p, next, input);
        if (p == NULL) return fault(s, at, "shape of an input");
    }
    return next;
}

static const uint8_t *input_field(scan *s, const uint8_t *p, const uint8_t *end, uint32_t tag, unsigned depth,
                                  void *into) {
    hr_input *input = into;
    hr_view body;
    switch (tag) {
    case HR_TAG(1, HR_BYTES): return read_string(s, p, end, "name of an input (a length, and UTF-8)", &input->name);
    case HR_TAG(2, HR_BYTES):
        return read_string(s, p, end, "datatype of an input (a length, and UTF-8)", &input->datatype);
    case HR_TAG(3, HR_BYTES): return read_shape(s, p, end, input);
    case HR_TAG(3, HR_VARINT): return read_dimension(p, end, input);
    case HR_TAG(4, HR_BYTES): return count_entry(s, p, end, depth, &input->parameters);
    case HR_TAG(HR_INPUT_CONTENTS, HR_BYTES):
        p = hr_read_bytes(p, end, &body);
        input->has_contents = true;
        if (p == NULL || !scan_message(s, body, depth - 1, "contents of an input", contents_field, input)) return NULL;
        return p;
    default: return hr_skip(p, end, tag, depth);
    }
}

static const uint8_t *read_input(scan *s, const uint8_t *p, const uint8_t *end, unsigned depth, hr_request *r) {
    hr_input beyond, *input = r->input_count < HR_MAX_TENSORS ? &r->inputs[r->input_count] : &beyond;
    *input = (hr_input){0};
    p = hr_read_bytes(p, end, &input->body);
    if (p == NULL || !scan_message(s, input->body, depth - 1, "an InferInputTensor", input_field, input)) return NULL;
    r->input_count++;
    return p;
}

/* ---- outputs and the request ---- */

static const uint8_t *requested_field(scan *s, const uint8_t *p, const uint8_t *end, uint32_t tag, unsigned depth,
                                      void *into) {
    hr_requested *output = into;
    switch (tag) {
    case HR_TAG(1, HR_BYTES): return read_string(s, p, end, "name of an output (a length, and UTF-8)", &output->name);
    case HR_TAG(2, HR_BYTES): return count_entry(s, p, end, depth, &output->parameters);
    default: return hr_skip(p, end, tag, depth);
    }
}

static const uint8_t *read_requested(scan *s, const uint8_t *p, const uint8_t *end, unsigned depth, hr_request *r) {
    hr_requested beyond, *output = r->output_count < HR_MAX_TENSORS ? &r->outputs[r->output_count] : &beyond;
    *output = (hr_requested){0};
    p = hr_read_bytes(p, end, &output->body);
    if (p == NULL) return NULL;
    if (!scan_message(s, output->body, depth - 1, "an InferRequestedOutputTensor", requested_field, output))
        return NULL;
    r->output_count++;
    return p;
}

static const uint8_t *read_raw(const uint8_t *p, const uint8_t *end, hr_request *r) {
    hr_view beyond, *raw = r->raw_count < HR_MAX_TENSORS ? &r->raw[r->raw_count] : &beyond;
    p = hr_read_bytes(p, end, raw);
    r->raw_count++;
    return p;
}

static const uint8_t *request_field(scan *s, const uint8_t *p, const uint8_t *end, uint32_t tag, unsigned depth,
                                    void *into) {
    hr_request *r = into;
    switch (tag) {
    case HR_TAG(1, HR_BYTES): return read_string(s, p, end, "model_name (a length, and UTF-8)", &r->model_name);
    case HR_TAG(2, HR_BYTES): return read_string(s, p, end, "model_version (a length, and UTF-8)", &r->model_version);
    case HR_TAG(3, HR_BYTES): return read_string(s, p, end, "id (a length, and UTF-8)", &r->id);
    case HR_TAG(4, HR_BYTES): return count_entry(s, p, end, depth, &r->parameters);
    case HR_TAG(5, HR_BYTES): return read_input(s, p, end, depth, r);
    case HR_TAG(6, HR_BYTES): return read_requested(s, p, end, depth, r);
    case HR_TAG(7, HR_BYTES): return read_raw(p, end, r);
    default: return hr_skip(p, end, tag, depth);
    }
}

int hr_scan(const uint8_t *message, size_t length, hr_request *out, hr_error *err) {
    static const uint8_t nothing[1];
    scan s = {0};
    hr_view none = {nothing, 0};
    out->body = length ? (hr_view){message, length} : none;
    out->model_name = out->model_version = out->id = none;
    out->parameters = out->input_count = out->output_count = out->raw_count = 0;
    if (scan_message(&s, out->body, HR_MAX_DEPTH, "a field", request_field, out)) return 0;
    return hr_fail(err, HR_INVALID_ARGUMENT,
                   "the request is not an inference.ModelInferRequest: expected %s at byte %zu of %zu, got something "
                   "else",
                   s.fault, (size_t)(s.fault_at - message), length);
}

size_t hr_find_raw(hr_view head) {
    const uint8_t *p = head.data, *end = p + head.length;
    while (p != NULL && p < end) {
        uint64_t length;
        uint32_t tag;
        p = hr_read_tag(p, end, &tag);
        if (p == NULL) break;
        if (tag == HR_TAG(7, HR_BYTES)) {
            p = hr_read_varint(p, end, &length);
            return p ? (size_t)(p - head.data) : 0;
        }
        p = hr_skip(p, end, tag, HR_MAX_DEPTH);
    }
    return 0;
}
