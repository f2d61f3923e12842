/* Requests in, answers out; dispatch.h tells the story. */
#include "dispatch.h"

#include "dispatch_state.h"

/* A handle: 42 bits of sequence, 6 of lane, 16 of slot. */
_Static_assert(HR_MAX_LANES == 1 << 6 && FQ_MAX_SLOTS == 1 << 16, "a handle has room for every lane and slot");

static uint64_t handle_of(const hr_pending *p) { return p->sequence << 22 | (uint64_t)p->lane << 16 | p->slot; }

static hr_pending *find_handle(hr_dispatch *d, uint64_t handle) {
    hr_lane *lane = &d->lanes[handle >> 16 & (HR_MAX_LANES - 1)];
    uint32_t slot = (uint32_t)(handle & (FQ_MAX_SLOTS - 1));
    if (!lane->open || slot >= d->slots) return NULL;
    hr_pending *p = &lane->pending[slot];
    return p->state == HR_WAITING && p->sequence == handle >> 22 ? p : NULL;
}

static hr_pending *pending_of(hr_timer *timer) { return (hr_pending *)(void *)timer; }

void hr_pending_clear(hr_dispatch *d, hr_pending *p) {
    hr_deadlines_remove(&d->deadlines, &p->timer);
    p->spec->requests--;
    p->spec->bytes -= p->bytes;
    p->spec->spill_bytes -= p->spill_bytes;
    hr_spec_drop(p->spec);
    if (p->id != p->id_inline) free(p->id);
    p->spec = NULL;
    p->id = NULL;
    p->state = HR_IDLE;
    d->outstanding--;
}

/* ---- CLAIMED and PUBLISHED ---- */

static hr_lane *find_lane(hr_dispatch *d, const hr_spec *spec, hr_error *err) {
    hr_lane *lane = spec->worker < HR_MAX_LANES ? &d->lanes[spec->worker] : NULL;
    if (lane != NULL && lane->attached) return lane;
    hr_fail(err, HR_UNAVAILABLE,
            "Request for unknown model: '%.*s' version %.*s is not at ready state: its worker is starting again, try "
            "later",
            HR_NAME(spec->name), HR_NAME(spec->version));
    return NULL;
}

/* When the request must be answered: the call's deadline, or the request's own timeout when that is earlier and the queue
 * policy of its level does not forbid it. What the policy itself allows is the worker's to watch: it bounds the wait alone. */
static int64_t budget_of(const hr_call *call, const hr_spec *spec, const hr_bound *bound) {
    int64_t at = INT64_MAX, timeout_ns;
    uint32_t level = fq_level_of(bound->priority, spec->levels, spec->default_level);
    if (bound->timeout_us == 0 || spec->fixed_timeouts >> level & 1) return call->deadline_ns;
    if (__builtin_mul_overflow(bound->timeout_us, 1000, &timeout_ns) ||
        __builtin_add_overflow(call->arrival_ns, timeout_ns, &at))
        at = INT64_MAX;
    return at < call->deadline_ns ? at : call->deadline_ns;
}

/* Remembers what the answer will need: 0, or -1 when there is no memory for a long id. */
static int remember(hr_dispatch *d, hr_pending *p, hr_spec *spec, const hr_call *call) {
    const hr_bound *bound = &d->bound;
    hr_view id = d->request.id;
    p->id = id.length <= HR_ID_INLINE ? p->id_inline : malloc(id.length);
    if (p->id == NULL) return -1;
    if (id.length > 0) memcpy(p->id, id.data, id.length);
    p->id_length = id.length;
    p->spec = hr_spec_hold(spec);
    p->spec->requests++;
    p->bytes = p->spill_bytes = 0;
    p->token = call->token;
    p->sequence = ++d->sequence & (UINT64_MAX >> 22);
    p->arrival_ns = call->arrival_ns;
    p->stream = call->stream;
    p->output_count = (uint8_t)bound->output_count;
    memcpy(p->outputs, bound->outputs, bound->output_count);
    memcpy(p->classes, bound->classes, bound->output_count * sizeof *bound->classes);
    p->state = HR_WAITING;
    p->timer.place = 0;
    d->outstanding++;
    return 0;
}

/* Every word of the slot but the cancel word, which claiming cleared, and the header, which fill has set. */
static void describe(const hr_dispatch *d, const hr_pending *p, const hr_call *call, fq_slot *slot) {
    slot->model = p->spec->id;
    slot->rows = d->bound.rows;
    slot->flags = 0;
    slot->arrival_ns = call->arrival_ns;
    slot->deadline_ns = p->timer.at_ns;
    slot->tenant = 0;
    slot->priority = d->bound.priority;
    slot->trace_flags = call->trace_flags;
    memcpy(slot->trace_id, call->trace_id, sizeof slot->trace_id);
    memcpy(slot->span_id, call->span_id, sizeof slot->span_id);
}

static int give_up(hr_dispatch *d, hr_lane *lane, hr_pending *p) {
    hr_pending_clear(d, p);
    fq_lane_free(&lane->front, p->slot);
    return -1;
}

static int publish(hr_dispatch *d, hr_lane *lane, hr_pending *p, const hr_call *call, hr_error *err) {
    if (call->in_flight) call->in_flight(call->counter, 1);
    if (fq_lane_push(&lane->front, p->slot) == 0) {
        lane->unrung = true;
        return 0;
    }
    if (call->in_flight) call->in_flight(call->counter, -1);
    fq_input_free(&d->input, p->blocks, p->block_count);
    give_up(d, lane, p);
    return hr_fail(err, HR_INTERNAL, "the submission ring is full, which only a broken worker can bring about");
}

static int claim(hr_dispatch *d, hr_lane *lane, hr_spec *spec, const hr_call *call, int64_t deadline_ns,
                 uint64_t *handle, hr_error *err) {
    uint32_t number;
    fq_slot *slot = fq_lane_claim(&lane->front, &number);
    if (slot == NULL) return hr_bounds_slots(d, err);
    hr_pending *p = &lane->pending[number];
    if (remember(d, p, spec, call) < 0) {
        fq_lane_free(&lane->front, number);
        return hr_fail(err, HR_RESOURCE_EXHAUSTED, "no memory for an id of %zu bytes", d->request.id.length);
    }
    if (hr_fill(d, p, slot, err) < 0) return give_up(d, lane, p);
    hr_deadlines_add(&d->deadlines, &p->timer, deadline_ns);
    describe(d, p, call, slot);
    *handle = handle_of(p);
    return publish(d, lane, p, call, err);
}

static int check_size(const hr_dispatch *d, const hr_spec *spec, hr_error *err) {
    if (!d->refuse_oversize || spec->max_batch_size == 0 || d->bound.rows <= spec->max_batch_size) return 0;
    return hr_fail(err, HR_INVALID_ARGUMENT, "inference request batch-size must be <= %u for '%.*s', got %u",
                   spec->max_batch_size, HR_NAME(spec->name), d->bound.rows);
}

static int submit(hr_dispatch *d, const uint8_t *message, size_t length, const hr_call *call, uint64_t *handle,
                  hr_error *err) {
    if (length > d->max_message)
        return hr_fail(err, HR_RESOURCE_EXHAUSTED,
                       "a message of %zu bytes is larger than the %llu that --max-message-bytes allows: send fewer "
                       "rows, or raise it",
                       length, (unsigned long long)d->max_message);
    if (hr_scan(message, length, &d->request, err) < 0) return -1;
    hr_spec *spec = hr_table_find(d->table, d->request.model_name, d->request.model_version, err);
    hr_lane *lane = spec ? find_lane(d, spec, err) : NULL;
    if (lane == NULL || hr_validate(spec, &d->request, &d->bound, err) < 0) return -1;
    if (check_size(d, spec, err) < 0) return -1;
    int64_t deadline_ns = budget_of(call, spec, &d->bound);
    if (deadline_ns <= call->arrival_ns)
        return hr_fail(err, HR_DEADLINE_EXCEEDED,
                       "Request timeout expired: the deadline of the request for model '%.*s' had passed when it "
                       "arrived",
                       HR_NAME(spec->name));
    return claim(d, lane, spec, call, deadline_ns, handle, err);
}

int hr_dispatch_submit(hr_dispatch *d, const uint8_t *message, size_t length, const hr_call *call, uint64_t *handle,
                       hr_error *err) {
    d->arrived = NULL;
    return submit(d, message, length, call, handle, err);
}

int hr_dispatch_submit_arrived(hr_dispatch *d, hr_arriving *a, size_t length, const hr_call *call, uint64_t *handle,
                               hr_error *err) {
    d->arrived = a;
    return submit(d, d->arena + a->run.offset + a->shift, length, call, handle, err);
}

bool hr_dispatch_unordered(const hr_dispatch *d) { return d->bound.unordered; }
void hr_dispatch_refuse_oversize(hr_dispatch *d) { d->refuse_oversize = true; }
void hr_dispatch_limit_messages(hr_dispatch *d, uint64_t bytes) { d->max_message = bytes; }

/* ---- ANSWERED, by whomever ---- */

/* A response that no protobuf library could read is an error; an error on a stream is a message too. */
void hr_answer_finish(hr_answer *out, const hr_pending *p) {
    uint64_t bytes = out->code == 0 ? hr_encoded_bytes(&out->response) : 0;
    if (bytes > HR_MAX_RESPONSE) {
        out->code = HR_RESOURCE_EXHAUSTED;
        hr_fail(&out->error, out->code,
                "the response of model '%.*s' has %llu bytes, more than the %d that a message can have: ask for fewer "
                "rows or outputs",
                HR_NAME(p->spec->name), (unsigned long long)bytes, HR_MAX_RESPONSE);
    }
    if (out->code == 0) return;
    out->response.output_count = 0;
    if (p->stream) out->response.error = hr_view_of(out->error.text);
}

/* The deadline of a request has passed, whoever saw it first. */
static void say_late(hr_answer *out, const hr_pending *p) {
    out->code = HR_DEADLINE_EXCEEDED;
    hr_fail(&out->error, out->code, "Request timeout expired: model '%.*s' did not answer within %lld us",
            HR_NAME(p->spec->name), (long long)(p->timer.at_ns - p->arrival_ns) / 1000);
}

/* ---- ANSWERED without the worker ---- */

static void leave(hr_dispatch *d, hr_pending *p) {
    hr_lane *lane = &d->lanes[p->lane];
    hr_deadlines_remove(&d->deadlines, &p->timer);
    p->state = HR_GONE;
    if (fq_lane_cancel(&lane->front, p->slot)) fq_bell_wake(lane->front.worker);
}

void hr_dispatch_cancel(hr_dispatch *d, uint64_t handle) {
    hr_pending *p = find_handle(d, handle);
    if (p != NULL) leave(d, p);
}

static int next_expired(hr_dispatch *d, int64_t now_ns, hr_answer *out) {
    hr_timer *timer = hr_deadlines_first(&d->deadlines);
    if (timer == NULL || timer->at_ns > now_ns) return 0;
    hr_pending *p = pending_of(timer);
    out->token = p->token;
    out->held = false;
    out->completion = (fq_completion){0};
    hr_answer_names(out, p); /* the slot lives until FINAL, which is not looked for before the caller comes back */
    say_late(out, p);
    hr_answer_finish(out, p);
    leave(d, p);
    return 1;
}

/* ---- FINAL ---- */

static void retire(hr_dispatch *d, hr_lane *lane, hr_pending *p, const fq_completion *done) {
    hr_pending_clear(d, p);
    if (fq_lane_retire(&lane->front, p->slot, done->answer.length > 0)) fq_bell_wake(lane->front.worker);
}

/* The worker's words, copied from shared memory. It may have cut them within a character. */
static void read_error(hr_answer *out, const hr_lane *lane, const hr_pending *p) {
    uint8_t copy[FQ_TEXT];
    memcpy(copy, fq_lane_text(&lane->front.lane, p->slot), out->completion.text_bytes);
    hr_view text = {copy, strnlen((const char *)copy, out->completion.text_bytes)};
    for (int cut = 0; cut < 3 && text.length > 0 && !hr_utf8_valid(text); cut++) text.length--;
    if (text.length == 0 || !hr_utf8_valid(text)) text = hr_view_of("the worker failed without saying why");
    out->code = out->completion.status <= HR_LAST_CODE ? (int)out->completion.status : HR_INTERNAL;
    bool again = (out->completion.flags & FQ_AGAIN) != 0, queue = (out->completion.flags & FQ_UNLAUNCHED) != 0;
    const char *words = NULL; /* those of Triton that clients look for, where it was the queue that refused */
    if (queue && out->code == HR_DEADLINE_EXCEEDED) words = "Request timeout expired";
    if (queue && again && out->code == HR_RESOURCE_EXHAUSTED) words = "Exceeds maximum queue size";
    if (queue && out->code == HR_DEADLINE_EXCEEDED && p->timer.at_ns <= out->completion.done_ns)
        say_late(out, p);
    else if (words == NULL)
        hr_fail(&out->error, out->code, "%.*s", hr_shown_up_to(text, HR_TEXT - 1), (const char *)text.data);
    else
        hr_fail(&out->error, out->code, "%s: model '%.*s': %.*s", words, HR_NAME(p->spec->name),
                hr_shown_up_to(text, HR_TEXT - HR_NAME_SHOWN - 64), (const char *)text.data);
    out->error.transient = again;
}

static void take(hr_dispatch *d, hr_lane *lane, hr_pending *p, hr_answer *out) {
    hr_deadlines_remove(&d->deadlines, &p->timer);
    p->state = HR_TAKEN;
    out->token = p->token;
    out->code = 0;
    out->held = true;
    out->lane = p->lane;
    out->slot = p->slot;
    hr_answer_names(out, p);
    if (out->completion.status != 0) read_error(out, lane, p);
    else hr_answer_outputs(out, lane, p, out->completion.answer);
    hr_answer_finish(out, p);
}

/* The next completion of a lane whose client waits. Others end here. */
static int next_of_lane(hr_dispatch *d, hr_lane *lane, hr_answer *out) {
    for (;;) {
        int got = fq_lane_poll(&lane->front, &out->completion);
        if (got == 0) return 0;
        /* Completions before the FINAL one come with models that answer more than once, which are not built. */
        if (got < 0 || !(out->completion.flags & FQ_FINAL)) continue;
        hr_pending *p = &lane->pending[out->completion.slot];
        fq_input_free(&d->input, p->blocks, p->block_count);
        if (p->state == HR_WAITING) {
            take(d, lane, p, out);
            return 1;
        }
        retire(d, lane, p, &out->completion);
    }
}

int hr_dispatch_next(hr_dispatch *d, int64_t now_ns, hr_answer *out) {
    if (d->armed) hr_dispatch_disarm(d);
    for (uint32_t i = 0; i < d->lane_count; i++) {
        hr_lane *lane = &d->lanes[(d->turn + i) % d->lane_count];
        if (!lane->attached || !next_of_lane(d, lane, out)) continue;
        d->turn = (d->turn + i) % d->lane_count;
        return 1;
    }
    return next_expired(d, now_ns, out);
}

void hr_dispatch_retire(hr_dispatch *d, const hr_answer *answer) {
    if (!answer->held) return;
    hr_answer_free_texts(answer);
    hr_lane *lane = &d->lanes[answer->lane];
    retire(d, lane, &lane->pending[answer->slot], &answer->completion);
}

void hr_dispatch_release(hr_dispatch *d, uint32_t number, uint32_t slot, bool has_answer) {
    hr_lane *lane = &d->lanes[number];
    const fq_completion done = {.answer.length = has_answer};
    retire(d, lane, &lane->pending[slot], &done);
}

int64_t hr_dispatch_next_deadline(const hr_dispatch *d) {
    const hr_timer *timer = hr_deadlines_first(&d->deadlines);
    return timer ? timer->at_ns : INT64_MAX;
}

/* ---- the rest ---- */

/* The old table's spec of a model that is in both, or NULL. Ids are never used again, so it says just the same. */
static hr_spec *kept_spec(const hr_table *old, const hr_spec *spec) {
    for (uint32_t i = 0; old != NULL && i < old->count; i++)
        if (old->specs[i]->id == spec->id && old->specs[i]->worker == spec->worker) return old->specs[i];
    return NULL;
}

/* A model that stays keeps its spec, and with it the count of what it has in flight. */
void hr_dispatch_set_table(hr_dispatch *d, hr_table *table) {
    hr_table *old = d->table;
    for (uint32_t i = 0; i < table->count; i++) {
        hr_spec *kept = kept_spec(old, table->specs[i]);
        if (kept == NULL) continue;
        hr_spec_drop(table->specs[i]);
        table->specs[i] = hr_spec_hold(kept);
    }
    d->table = table;
    hr_table_drop(old);
}

int hr_dispatch_arena_fd(const hr_dispatch *d) { return d->arena_fd; }
int hr_dispatch_eventfd(const hr_dispatch *d) { return d->eventfd; }
uint32_t hr_dispatch_slots(const hr_dispatch *d) { return d->slots; }
uint32_t hr_dispatch_outstanding(const hr_dispatch *d) { return d->outstanding; }
uint64_t hr_dispatch_arena_used(const hr_dispatch *d) { return fq_input_used(&d->input); }
uint64_t hr_dispatch_spill_used(const hr_dispatch *d) { return d->input.spill.used_pages * FQ_PAGE; }

int hr_dispatch_check(const hr_dispatch *d) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < d->lane_count; i++)
        if (d->lanes[i].open) used += d->slots - d->lanes[i].front.free_count;
    if (used != d->outstanding) return 1;
    for (uint32_t i = 2; i <= d->deadlines.count; i++)
        if (d->deadlines.heap[i]->at_ns < d->deadlines.heap[i / 2]->at_ns) return 2;
    int broken = fq_input_check(&d->input);
    return broken ? 10 + broken : 0;
}
