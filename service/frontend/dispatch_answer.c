/* Turns what a worker wrote into a response. Every word of it is copied before it is checked, and checked before
 * it is used; `broken` says what a client is told when it makes no sense. */
#include "dispatch_state.h"

static void broken(hr_answer *out, const hr_pending *p, const char *what) {
    hr_fail(&out->error, HR_INTERNAL, "the worker's answer for model '%.*s' makes no sense: %s", HR_NAME(p->spec->name),
            what);
    out->code = HR_INTERNAL;
}

void hr_answer_names(hr_answer *out, const hr_pending *p) {
    out->response = (hr_response){.stream = p->stream, .outputs = out->outputs};
    out->response.final = p->stream ? HR_FINAL_TRUE : HR_FINAL_UNSAID;
    out->response.model_name = p->spec->name;
    out->response.model_version = p->spec->version;
    out->response.id = (hr_view){p->id, p->id_length};
    out->classes = 0;
    out->text_count = 0;
}

static bool within(fq_extent e, uint64_t bytes) {
    return e.offset >= FQ_PAGE && e.offset <= bytes && e.length <= bytes - e.offset;
}

/* Do the dimensions ask for just what is there: so many bytes, or so many strings and nothing else? */
static bool sizes_agree(const fq_slice *slice, enum hr_datatype datatype, const uint8_t *output) {
    bool is_strings = datatype == HR_BYTES_DATATYPE;
    uint64_t want = is_strings ? 1 : hr_datatype_bytes(datatype);
    for (uint32_t d = 0; d < slice->rank; d++)
        if (slice->dims[d] < 0 || __builtin_mul_overflow(want, (uint64_t)slice->dims[d], &want)) return false;
    if (!is_strings || slice->data.length == 0) return want == slice->data.length;
    hr_strings found = hr_strings_in((hr_view){output + slice->data.offset, slice->data.length});
    return found.left == 0 && found.count == want;
}

/* Copies the slice of one output, or says what is wrong with it. */
static const char *copy_slice(const hr_lane *lane, const hr_pending *p, const fq_slice *from, uint32_t index,
                              fq_slice *slice) {
    memcpy(slice, from, sizeof *slice);
    if (slice->index != index) return "an output is missing";
    if (slice->rank > HR_MAX_RANK) return "an output has too many dimensions";
    if (slice->rank == 0 && p->spec->max_batch_size > 0) return "an output has no rows";
    if (slice->data.length > 0 && !within(slice->data, lane->output_bytes)) return "an output lies outside its arena";
    if (!sizes_agree(slice, p->spec->outputs[index].datatype, lane->output)) return "an output's shape and size disagree";
    return NULL;
}

/* The form that clients know, in place of the model's: 0, or -1 when the model answered in neither. */
static int reshape(hr_answer *out, const hr_pending *p, fq_slice *slice) {
    char came[HR_SHAPE_TEXT], want[HR_SHAPE_TEXT];
    const hr_tensor_spec *t = &p->spec->outputs[slice->index];
    uint32_t axis = p->spec->max_batch_size > 0;
    int64_t wire_dims[HR_MAX_RANK];
    if (!t->reshaped) return 0;
    hr_form wire = hr_wire_form(t);
    if (slice->rank < axis || !hr_form_fits(&t->model, slice->dims + axis, slice->rank - axis)) {
        out->code = HR_INTERNAL;
        return hr_fail(&out->error, HR_INTERNAL,
                       "output '%.*s' of model '%.*s' came out as %s, expected %s%s, the reshape in its config",
                       HR_NAME(t->name), HR_NAME(p->spec->name), hr_shape_text(came, slice->dims, slice->rank),
                       hr_shape_text(want, t->model.dims, t->model.rank), axis ? " behind the rows" : "");
    }
    hr_form_translate(&t->model, slice->dims + axis, &wire, wire_dims);
    memcpy(slice->dims + axis, wire_dims, wire.rank * sizeof(int64_t));
    slice->rank = wire.rank + axis;
    return 0;
}

static void add_output(hr_answer *out, const hr_lane *lane, const hr_pending *p, const fq_slice *slice) {
    uint32_t i = out->response.output_count++;
    const hr_tensor_spec *spec = &p->spec->outputs[slice->index];
    memcpy(out->dims[i], slice->dims, slice->rank * sizeof(int64_t));
    out->outputs[i] = (hr_output){spec->name, hr_datatype_name(spec->datatype), slice->rank, out->dims[i], {0}};
    out->outputs[i].data = (hr_view){lane->output + slice->data.offset, slice->data.length};
}

/* A worker answers with all outputs of the model, in its order; the client gets those it asked for, in its own. */
void hr_answer_outputs(hr_answer *out, const hr_lane *lane, const hr_pending *p, fq_extent at) {
    uint64_t wanted = sizeof(fq_answer) + p->spec->output_count * sizeof(fq_slice);
    fq_answer answer;
    if (!within(at, lane->output_bytes) || at.offset % 8 != 0 || at.length < wanted) {
        broken(out, p, "it lies outside its arena");
        return;
    }
    const fq_answer *head = (const fq_answer *)(const void *)(lane->output + at.offset);
    const fq_slice *slices = (const fq_slice *)(const void *)(head + 1);
    memcpy(&answer, head, sizeof answer);
    if (answer.slice_count != p->spec->output_count) {
        broken(out, p, "it has another number of outputs");
        return;
    }
    for (uint32_t i = 0; i < p->output_count; i++) {
        fq_slice slice;
        const char *fault = copy_slice(lane, p, &slices[p->outputs[i]], p->outputs[i], &slice);
        if (fault != NULL) {
            out->response.output_count = 0;
            broken(out, p, fault);
            return;
        }
        if (reshape(out, p, &slice) < 0) return;
        add_output(out, lane, p, &slice);
        if (p->classes[i] > 0 && hr_answer_classes(out, p, &p->spec->outputs[slice.index], p->classes[i]) < 0) return;
    }
}
