/* Messages that are received into the input arena: memory for them while they arrive. fq_grow.h says where, and that it follows
 * what has come. A message that cannot grow where it lies is moved; the arena then holds it twice for a moment. */
#include "dispatch_state.h"

bool hr_dispatch_can_receive(const hr_dispatch *d, uint64_t length) {
    return length <= d->max_message && length + FQ_ALIGN <= fq_input_most(&d->input);
}

bool hr_dispatch_spills(const hr_dispatch *d, uint64_t length) { return fq_input_spills(&d->input, length); }

uint64_t hr_dispatch_share(const hr_dispatch *d, uint64_t length) {
    if (hr_dispatch_spills(d, length)) return d->input.spill.pages * FQ_PAGE / 4;
    return (uint64_t)d->input.blocks * FQ_LARGE / 4;
}

/* A batch of one request whose tensor lies on a boundary is used where it lies. */
void hr_dispatch_arrive(hr_arriving *a, uint64_t length, hr_view first) {
    size_t raw = hr_find_raw(first);
    *a = (hr_arriving){.shift = (uint32_t)(-raw % FQ_ALIGN)};
    a->whole = a->shift + length;
}

static int move(hr_dispatch *d, hr_arriving *a, uint64_t bytes) {
    fq_extent to = {0}, from = a->run;
    if (!fq_grow(&d->input, &to, bytes, a->whole)) return 0;
    memcpy(d->arena + to.offset, d->arena + from.offset, from.length);
    fq_grown(&d->input, &from, a->whole);
    fq_input_free(&d->input, &from, 1);
    a->run = to;
    return 1;
}

uint8_t *hr_dispatch_receive(hr_dispatch *d, hr_arriving *a, uint64_t bytes, uint64_t *room) {
    uint64_t needed = a->shift + bytes;
    if (!fq_grow(&d->input, &a->run, needed, a->whole) && (a->run.length == 0 || !move(d, a, needed))) return NULL;
    *room = (a->run.length < a->whole ? a->run.length : a->whole) - a->shift;
    return d->arena + a->run.offset + a->shift;
}

void hr_dispatch_no_room(const hr_dispatch *d, const hr_arriving *a, hr_error *err) {
    (void)hr_bounds_arena(d, a->whole, err);
}

void hr_dispatch_abandon(hr_dispatch *d, hr_arriving *a) {
    if (a->run.length > 0) {
        fq_grown(&d->input, &a->run, a->whole);
        fq_input_free(&d->input, &a->run, 1);
    }
    *a = (hr_arriving){0};
}
