/* Puts a request that was found valid into the input arena, header first: tensors are copied where they are not there already,
 * and what is typed, and where rows of BYTES end, is written straight into it. */
#include "dispatch_state.h"

/* Where a request's tensors come from, while they are copied. */
typedef struct hr_sources {
    fq_source of[HR_MAX_TENSORS];
    hr_typed typed[HR_MAX_TENSORS];
    hr_row_ends row_ends[HR_MAX_TENSORS];
} hr_sources;

static void find_source(const hr_dispatch *d, const hr_spec *spec, uint32_t i, hr_sources *out) {
    const hr_bound_input *in = &d->bound.inputs[i];
    fq_source *source = &out->of[i];
    *source = (fq_source){
        .index = i, .rank = in->rank, .dims = in->dims, .data = in->data.data, .length = in->data.length};
    if (d->arrived && !in->typed) source->placed = (uint64_t)(in->data.data - d->arena);
    if (in->typed) {
        out->typed[i] = hr_typed_at(in->input, spec->inputs[i].datatype);
        source->write = hr_typed_write;
        source->state = &out->typed[i];
    }
    if (spec->inputs[i].datatype != HR_BYTES_DATATYPE || spec->max_batch_size == 0) return;
    out->row_ends[i] = hr_row_ends_at(in->input, in->data, in->typed);
    source->rows = d->bound.rows;
    source->write_ends = hr_row_ends_write;
    source->ends_state = &out->row_ends[i];
}

/* The memory of a message that was received into the arena is the request's, if the request refers to it. */
static void keep_arrived(hr_dispatch *d, hr_pending *p, const fq_source *sources, uint32_t count) {
    bool placed = false;
    for (uint32_t i = 0; i < count; i++) placed |= sources[i].placed && sources[i].length > 0;
    if (!placed) {
        hr_dispatch_abandon(d, d->arrived);
        return;
    }
    fq_grown(&d->input, &d->arrived->run, d->arrived->whole);
    p->blocks[p->block_count++] = d->arrived->run;
    if (d->arrived->run.offset < fq_input_arena_bytes(d->input.blocks)) p->bytes += d->arrived->run.length;
    else p->spill_bytes += d->arrived->run.length;
    *d->arrived = (hr_arriving){0};
}

int hr_fill(hr_dispatch *d, hr_pending *p, fq_slot *slot, hr_error *err) {
    hr_sources sources;
    uint32_t count = d->bound.input_count;
    for (uint32_t i = 0; i < count; i++) find_source(d, p->spec, i, &sources);
    uint64_t bytes = fq_fill_bytes(sources.of, count, count) + (d->arrived ? d->arrived->run.length : 0);
    uint64_t used = d->input.used_bytes, spill_used = hr_dispatch_spill_used(d);
    if (hr_bounds_check(d, p->spec, bytes, err) < 0) return -1;
    p->block_count = fq_fill(&d->input, d->arena, sources.of, count, p->blocks, slot);
    if (p->block_count == 0) return hr_bounds_arena(d, bytes, err);
    p->bytes = d->input.used_bytes - used;
    p->spill_bytes = hr_dispatch_spill_used(d) - spill_used;
    if (d->arrived) keep_arrived(d, p, sources.of, count);
    p->spec->bytes += p->bytes;
    p->spec->spill_bytes += p->spill_bytes;
    return 0;
}
