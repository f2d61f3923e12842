#include "hr_validate.h"

#include <inttypes.h>
#include <stdio.h>

#include "hr_classes.h"
#include "hr_parameters.h"
#include "hr_strings.h"

/* What every check below needs, so that each takes one argument. */
typedef struct check {
    const hr_spec *spec;
    const hr_request *request;
    hr_bound *out;
    hr_error *err;
    int8_t input_of[HR_MAX_TENSORS]; /* the request's input for each of the model's, -1: none */
} check;

#define MODEL(c) HR_NAME((c)->spec->name)

static uint32_t kept(uint64_t count) { return count < HR_MAX_TENSORS ? (uint32_t)count : HR_MAX_TENSORS; }

/* ---- inputs by name ---- */

/* Adds " 'name'" as long as there is room, then "...". */
static void add_name(char text[HR_TEXT / 2], hr_view name) {
    size_t at = strlen(text), room = HR_TEXT / 2 - at;
    if (room > HR_NAME_SHOWN + 8) snprintf(text + at, room, "%s'%.*s'", at ? ", " : "", HR_NAME(name));
    else if (at < 3 || strcmp(text + at - 3, "...") != 0) snprintf(text + at, room, ", ...");
}

static const char *missing_inputs(const check *c, char text[HR_TEXT / 2]) {
    text[0] = '\0';
    for (uint32_t i = 0; i < c->spec->input_count; i++)
        if (c->input_of[i] < 0) add_name(text, c->spec->inputs[i].name);
    return text;
}

static const char *model_inputs(const check *c, char text[HR_TEXT / 2]) {
    text[0] = '\0';
    for (uint32_t i = 0; i < c->spec->input_count; i++) add_name(text, c->spec->inputs[i].name);
    return text;
}

static int wrong_count(const check *c) {
    char names[HR_TEXT / 2];
    bool few = c->request->input_count < c->spec->input_count;
    return hr_fail(c->err, HR_INVALID_ARGUMENT, "expected %u inputs but got %" PRIu64 " inputs for model '%.*s': %s %s",
                   c->spec->input_count, c->request->input_count, MODEL(c), few ? "missing" : "expected",
                   few ? missing_inputs(c, names) : model_inputs(c, names));
}

static int unknown_input(const check *c, hr_view name) {
    char names[HR_TEXT / 2];
    return hr_fail(c->err, HR_INVALID_ARGUMENT, "unexpected inference input '%.*s' for model '%.*s'. Expected %s",
                   HR_NAME(name), MODEL(c), model_inputs(c, names));
}

static int match_inputs(check *c) {
    const hr_input *unknown = NULL;
    memset(c->input_of, -1, sizeof c->input_of);
    for (uint32_t i = 0; i < kept(c->request->input_count); i++) {
        const hr_input *input = &c->request->inputs[i];
        int index = hr_tensor_find(c->spec->inputs, c->spec->input_count, input->name, i);
        if (index < 0) {
            unknown = unknown ? unknown : input;
            continue;
        }
        if (c->input_of[index] >= 0)
            return hr_fail(c->err, HR_INVALID_ARGUMENT,
                           "input '%.*s' already exists in request for model '%.*s': expected it once, got it again",
                           HR_NAME(input->name), MODEL(c));
        c->input_of[index] = (int8_t)i;
    }
    if (c->request->input_count != c->spec->input_count) return wrong_count(c);
    return unknown ? unknown_input(c, unknown->name) : 0;
}

/* ---- where the data is ---- */

static int no_data(const check *c, const hr_input *input) {
    const hr_request *r = c->request;
    bool typed = false;
    for (uint32_t i = 0; i < c->spec->input_count; i++) typed |= r->inputs[i].has_contents;
    if (typed && r->raw_count == 0)
        return hr_fail(c->err, HR_INVALID_ARGUMENT,
                       "unable to find data for input tensor '%.*s' for model '%.*s' in request: expected contents in "
                       "every input, got none in this one",
                       HR_NAME(input->name), MODEL(c));
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "unable to find data for input tensor '%.*s' for model '%.*s' in request: expected %u entries in "
                   "raw_input_contents, got %" PRIu64,
                   HR_NAME(input->name), MODEL(c), c->spec->input_count, r->raw_count);
}

static int check_data(const check *c) {
    const hr_request *r = c->request;
    for (uint32_t i = 0; i < c->spec->input_count; i++) {
        const hr_input *input = &r->inputs[i];
        if (input->has_contents && r->raw_count == 0) continue;
        if (input->has_contents)
            return hr_fail(c->err, HR_INVALID_ARGUMENT,
                           "contents field must not be specified when using raw_input_contents for '%.*s' for model "
                           "'%.*s'",
                           HR_NAME(input->name), MODEL(c));
        if (i >= r->raw_count) return no_data(c, input);
    }
    if (r->raw_count == c->spec->input_count || r->raw_count == 0) return 0;
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "expected %u entries in raw_input_contents for model '%.*s', one for each input, got %" PRIu64,
                   c->spec->input_count, MODEL(c), r->raw_count);
}

/* ---- one input ---- */

static int wrong_shape(const check *c, const hr_tensor_spec *t, const hr_input *input) {
    char want[HR_SHAPE_TEXT], got[HR_SHAPE_TEXT];
    int64_t dims[HR_MAX_RANK] = {-1};
    uint32_t axis = c->spec->max_batch_size > 0;
    memcpy(dims + axis, t->dims, t->rank * sizeof(int64_t));
    const char *hint = axis && input->rank == t->rank ? " (the model batches: the number of rows comes first)" : "";
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "unexpected shape for input '%.*s' for model '%.*s'. Expected %s, got %s%s", HR_NAME(t->name),
                   MODEL(c), hr_shape_text(want, dims, t->rank + axis),
                   hr_shape_text(got, input->dims, input->rank), hint);
}

static int check_shape(const check *c, const hr_tensor_spec *t, const hr_input *input) {
    uint32_t axis = c->spec->max_batch_size > 0;
    if (input->rank != t->rank + axis) return wrong_shape(c, t, input);
    for (uint32_t d = 0; d < t->rank; d++) {
        int64_t want = t->dims[d], got = input->dims[d + axis];
        if (got < 0 || (want >= 0 && want != got)) return wrong_shape(c, t, input);
    }
    if (axis && (input->dims[0] < 0 || input->dims[0] > INT32_MAX))
        return hr_fail(c->err, HR_INVALID_ARGUMENT,
                       "input '%.*s' for model '%.*s': expected 0 to %d rows as first dimension, got %" PRId64,
                       HR_NAME(t->name), MODEL(c), INT32_MAX, input->dims[0]);
    return 0;
}

static int check_rows(const check *c, const hr_tensor_spec *t, const hr_input *input, uint32_t i) {
    int64_t rows = c->spec->max_batch_size > 0 ? input->dims[0] : 1;
    if (i == 0) c->out->rows = (uint32_t)rows;
    if (c->out->rows == (uint64_t)rows) return 0;
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "input '%.*s' batch size does not match other inputs for '%.*s': expected %u rows as in '%.*s', got "
                   "%" PRId64,
                   HR_NAME(t->name), MODEL(c), c->out->rows, HR_NAME(c->spec->inputs[0].name), rows);
}

/* Bytes that a shape without negative dimensions asks for. UINT64_MAX, which no data has, when the product without
 * its zeros does not fit an int64: nobody could hold such an array, not even an empty one. */
static uint64_t bytes_of(const hr_input *input, uint32_t element_bytes) {
    int64_t bytes = element_bytes;
    bool empty = false;
    for (uint32_t d = 0; d < input->rank; d++) {
        if (input->dims[d] == 0) empty = true;
        else if (__builtin_mul_overflow(bytes, input->dims[d], &bytes)) return UINT64_MAX;
    }
    return empty ? 0 : (uint64_t)bytes;
}

/* Strings differ in size, so it is their number that the shape asks for. */
static int check_string_count(const check *c, const hr_tensor_spec *t, const hr_input *input, uint64_t got) {
    uint64_t want = bytes_of(input, 1);
    if (want == got) return 0;
    if (got > want)
        return hr_fail(c->err, HR_INVALID_ARGUMENT,
                       "unexpected number of string elements %" PRIu64
                       " for inference input '%.*s' for model '%.*s', expecting %" PRIu64,
                       got, HR_NAME(t->name), MODEL(c), want);
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "expected %" PRIu64 " string elements for inference input '%.*s' for model '%.*s', got %" PRIu64,
                   want, HR_NAME(t->name), MODEL(c), got);
}

static int check_strings(const check *c, const hr_tensor_spec *t, const hr_input *input, hr_view data) {
    hr_strings found = hr_strings_in(data);
    if (found.left == 0) return check_string_count(c, t, input, found.count);
    if (found.left < HR_STRING_HEAD)
        return hr_fail(c->err, HR_INVALID_ARGUMENT,
                       "incomplete string length indicator for inference input '%.*s' for model '%.*s', expecting %d "
                       "bytes but only %zu bytes available for element %" PRIu64,
                       HR_NAME(t->name), MODEL(c), HR_STRING_HEAD, found.left, found.count);
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "incomplete string data for inference input '%.*s' for model '%.*s', expecting string of length %u "
                   "but only %zu bytes available for element %" PRIu64,
                   HR_NAME(t->name), MODEL(c), found.length, found.left - HR_STRING_HEAD, found.count);
}

/* What a model cannot take would fail the whole batch there; here it fails its own request. */
static int check_text(const check *c, const hr_tensor_spec *t, const hr_input *input, const hr_view *raw) {
    uint64_t element;
    if (!t->text || (raw ? hr_strings_are_text(*raw, &element) : hr_typed_is_text(input, &element))) return 0;
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "inference input '%.*s' for model '%.*s' takes text: expected UTF-8, got other bytes in element "
                   "%" PRIu64,
                   HR_NAME(t->name), MODEL(c), element);
}

static int check_bytes(const check *c, const hr_tensor_spec *t, const hr_input *input, hr_view data) {
    if (t->datatype == HR_BYTES_DATATYPE)
        return check_strings(c, t, input, data) < 0 ? -1 : check_text(c, t, input, &data);
    uint64_t want = bytes_of(input, hr_datatype_bytes(t->datatype));
    if (want == data.length) return 0;
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "input byte size mismatch for input '%.*s' for model '%.*s'. Expected %" PRIu64 ", got %zu",
                   HR_NAME(t->name), MODEL(c), want, data.length);
}

/* Everything that was sent must be in the one field that the datatype has. */
static int check_field(const check *c, const hr_tensor_spec *t, const hr_input *input) {
    enum hr_contents field = hr_contents_of(t->datatype);
    hr_view datatype = hr_datatype_name(t->datatype);
    if (field == 0)
        return hr_fail(c->err, HR_INVALID_ARGUMENT,
                       "input '%.*s' for model '%.*s' has typed contents, which datatype %.*s does not have: expected "
                       "its data in raw_input_contents",
                       HR_NAME(t->name), MODEL(c), HR_NAME(datatype));
    for (enum hr_contents other = HR_BOOL_CONTENTS; other < HR_CONTENTS_FIELDS; other++)
        if (other != field && input->typed[other] > 0)
            return hr_fail(c->err, HR_INVALID_ARGUMENT,
                           "input '%.*s' for model '%.*s' has datatype %.*s: expected its contents in %s, got %" PRIu64
                           " elements in %s",
                           HR_NAME(t->name), MODEL(c), HR_NAME(datatype), hr_contents_name(field), input->typed[other],
                           hr_contents_name(other));
    return 0;
}

/* Elements of typed contents: their number and, where they become smaller, their values. */
static int check_elements(const check *c, const hr_tensor_spec *t, const hr_input *input, uint64_t *bytes) {
    if (check_field(c, t, input) < 0) return -1;
    enum hr_contents field = hr_contents_of(t->datatype);
    uint64_t want = bytes_of(input, 1), got = input->typed[field], element;
    int64_t value;
    *bytes = hr_typed_bytes(input, t->datatype);
    if (t->datatype == HR_BYTES_DATATYPE)
        return check_string_count(c, t, input, got) < 0 ? -1 : check_text(c, t, input, NULL);
    if (want != got)
        return hr_fail(c->err, HR_INVALID_ARGUMENT,
                       "input byte size mismatch for input '%.*s' for model '%.*s'. Expected %" PRIu64
                       " elements in %s, got %" PRIu64,
                       HR_NAME(t->name), MODEL(c), want, hr_contents_name(field), got);
    if (hr_typed_fits(input, t->datatype, &element, &value)) return 0;
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "input '%.*s' for model '%.*s': expected values that %.*s can hold in %s, got %" PRId64
                   " as element %" PRIu64,
                   HR_NAME(t->name), MODEL(c), HR_NAME(hr_datatype_name(t->datatype)), hr_contents_name(field), value,
                   element);
}

static int check_datatype(const check *c, const hr_tensor_spec *t, const hr_input *input) {
    hr_view want = hr_datatype_name(t->datatype);
    if (hr_view_is(input->datatype, want)) return 0;
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "inference input '%.*s' data-type is '%.*s', but model '%.*s' expects '%.*s'", HR_NAME(t->name),
                   HR_NAME(input->datatype), MODEL(c), HR_NAME(want));
}

/* The shape that the model sees. */
static void place(const check *c, const hr_tensor_spec *t, const hr_input *input, hr_bound_input *out) {
    uint32_t axis = c->spec->max_batch_size > 0;
    out->rank = input->rank;
    out->dims = input->dims;
    if (!t->reshaped) return;
    hr_form wire = hr_wire_form(t);
    out->rank = t->model.rank + axis;
    out->dims = out->reshaped;
    if (axis) out->reshaped[0] = input->dims[0];
    hr_form_translate(&wire, input->dims + axis, &t->model, out->reshaped + axis);
}

static int bind_input(const check *c, uint32_t i) {
    const hr_tensor_spec *t = &c->spec->inputs[i];
    const hr_input *input = &c->request->inputs[c->input_of[i]];
    bool typed = c->request->raw_count == 0;
    hr_view data = typed ? (hr_view){input->body.data, 0} : c->request->raw[c->input_of[i]];
    if (check_datatype(c, t, input) < 0 || check_shape(c, t, input) < 0 || check_rows(c, t, input, i) < 0) return -1;
    uint64_t bytes = data.length;
    if ((typed ? check_elements(c, t, input, &bytes) : check_bytes(c, t, input, data)) < 0) return -1;
    hr_bound_input *out = &c->out->inputs[i];
    out->input = input;
    out->data = (hr_view){data.data, (size_t)bytes};
    out->typed = typed;
    place(c, t, input, out);
    return 0;
}

static int bind_inputs(const check *c) {
    size_t bytes = 0;
    c->out->rows = 1;
    c->out->input_count = c->spec->input_count;
    for (uint32_t i = 0; i < c->spec->input_count; i++) {
        if (bind_input(c, i) < 0) return -1;
        bytes += c->out->inputs[i].data.length;
    }
    if (bytes > 0 || c->out->rows <= 1 || c->out->rows <= c->spec->max_batch_size) return 0;
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "inference request batch-size must be <= %u for '%.*s' where rows hold no data, got %u",
                   c->spec->max_batch_size, MODEL(c), c->out->rows);
}

/* ---- outputs ---- */

static int check_classes(const check *c, int index, uint32_t classes) {
    const hr_tensor_spec *t = &c->spec->outputs[index];
    if (classes == 0 || hr_can_classify(t->datatype)) return 0;
    return hr_fail(c->err, HR_INVALID_ARGUMENT,
                   "class result not available for output '%.*s' of model '%.*s' due to unsupported type '%.*s': expected "
                   "the parameter 'classification' for numeric outputs alone",
                   HR_NAME(t->name), MODEL(c), HR_NAME(hr_datatype_name(t->datatype)));
}

static int bind_outputs(const check *c) {
    const hr_request *r = c->request;
    uint64_t named = 0;
    c->out->output_count = 0;
    if (r->output_count > HR_MAX_TENSORS)
        return hr_fail(c->err, HR_INVALID_ARGUMENT,
                       "expected at most %d requested outputs for model '%.*s', got %" PRIu64, HR_MAX_TENSORS,
                       MODEL(c), r->output_count);
    for (uint32_t i = 0; i < r->output_count; i++) {
        int index = hr_tensor_find(c->spec->outputs, c->spec->output_count, r->outputs[i].name, i);
        if (index < 0)
            return hr_fail(c->err, HR_INVALID_ARGUMENT, "unexpected inference output '%.*s' for model '%.*s'",
                           HR_NAME(r->outputs[i].name), MODEL(c));
        if (check_classes(c, index, c->out->classes[i]) < 0) return -1;
        if (named & (1ull << index)) continue;
        named |= 1ull << index;
        c->out->classes[c->out->output_count] = c->out->classes[i]; /* not behind where it was */
        c->out->outputs[c->out->output_count++] = (uint8_t)index;
    }
    if (r->output_count > 0) return 0;
    for (; c->out->output_count < c->spec->output_count; c->out->output_count++)
        c->out->outputs[c->out->output_count] = (uint8_t)c->out->output_count;
    return 0;
}

int hr_validate(const hr_spec *spec, const hr_request *request, hr_bound *out, hr_error *err) {
    check c = {.spec = spec, .request = request, .out = out, .err = err};
    if (request->id.length > HR_MAX_ID)
        return hr_fail(err, HR_INVALID_ARGUMENT, "expected an id of at most %d bytes, got %zu", HR_MAX_ID,
                       request->id.length);
    if (hr_check_parameters(request, out, err) < 0) return -1;
    if (match_inputs(&c) < 0 || check_data(&c) < 0 || bind_inputs(&c) < 0) return -1;
    return bind_outputs(&c);
}
