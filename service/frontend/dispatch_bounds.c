/* What may be in flight, and the words for what may not. Everything here may be gone a moment later, but a request that is
 * larger than the arena.
 *
 * While other models are loaded, one model has at most half of the slots to its worker, of the input arena and of the spill
 * behind it, so that its backlog refuses that model alone. With nothing there it may always send one, however large. How many of its
 * requests may wait (max_queue_size) is the worker's to say, who knows which of them do.
 */
#include "dispatch_state.h"

static bool is_alone(const hr_dispatch *d) { return d->table == NULL || d->table->count < 2; }

static int half_out(const hr_spec *spec, const char *what, unsigned long long most, const char *setting, hr_error *err) {
    hr_fail(err, HR_RESOURCE_EXHAUSTED,
            "the requests in flight of model '%.*s' have %s that one model may have while others are loaded, half of them "
            "(%llu): try later, or raise %s",
            HR_NAME(spec->name), what, most, setting);
    err->transient = true;
    return -1;
}

int hr_bounds_check(const hr_dispatch *d, const hr_spec *spec, uint64_t bytes, hr_error *err) {
    uint32_t others = spec->requests - 1; /* the request in hand is counted already */
    uint32_t slots = d->slots > 1 ? d->slots / 2 : 1;
    uint64_t head = (uint64_t)d->input.blocks * FQ_LARGE / 2, spill = d->input.spill.pages * FQ_PAGE / 2;
    if (others == 0 || is_alone(d)) return 0;
    if (others >= slots) return half_out(spec, "all slots", slots, "--slots-per-lane", err);
    if (fq_input_spills(&d->input, bytes)) {
        if (spec->spill_bytes == 0 || spec->spill_bytes + bytes <= spill) return 0;
        return half_out(spec, "all bytes for large requests", spill, "--spill-mb", err);
    }
    if (spec->bytes == 0 || spec->bytes + bytes <= head) return 0;
    return half_out(spec, "all bytes of the input arena", head, "--arena-mb", err);
}

int hr_bounds_arena(const hr_dispatch *d, uint64_t bytes, hr_error *err) {
    unsigned long long head_mb = d->input.blocks / ((1u << 20) / FQ_LARGE), spill_mb = d->input.spill.pages * FQ_PAGE >> 20;
    unsigned long long head_used = d->input.used_bytes, spill_used = hr_dispatch_spill_used(d), needed = bytes;
    if (bytes > FQ_LARGE && bytes > fq_input_most(&d->input))
        return hr_fail(err, HR_RESOURCE_EXHAUSTED,
                       "a request of %llu bytes never fits into the input arena of %llu MB (--arena-mb), of which one "
                       "request may have three quarters, nor into the %llu MB for large ones (--spill-mb): send fewer "
                       "rows or raise one of them",
                       needed, head_mb, spill_mb);
    int spills = fq_input_spills(&d->input, bytes);
    hr_fail(err, HR_RESOURCE_EXHAUSTED,
            "the input arena has no room for %llu bytes now: %llu bytes of its %llu MB %s are in use, try later", needed,
            spills ? spill_used : head_used, spills ? spill_mb : head_mb,
            spills ? "for large requests (--spill-mb)" : "(--arena-mb)");
    err->transient = true;
    return -1;
}

int hr_bounds_slots(const hr_dispatch *d, hr_error *err) {
    hr_fail(err, HR_RESOURCE_EXHAUSTED,
            "all %u slots for requests in flight to this worker (--slots-per-lane) are in use, try later", d->slots);
    err->transient = true;
    return -1;
}
