#include "fake.h"

#include <stdlib.h>
#include <string.h>

graph *fake_graphs;

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

/* ---- who uses memory ---- */

static int open_to(const piece *p, int device) { return p->open && p->device == device; }
static int open_and_kept(const piece *p, int device) { return open_to(p, device) && !p->freed; }
static int writable(const piece *p, int device) { return (void)device, !p->read_only; }

/* Whether all of it is memory of the stream's device; if not, `what` is recorded. */
static int on_device(const stream *s, uint64_t start, uint64_t bytes, int begins, const char *what) {
    int device = s->context->device;
    if (within(&fake_mapped, start, bytes, begins ? open_and_kept : open_to, device)) return 1;
    const piece *p = overlapping(&fake_mapped, start, bytes);
    if (p && p->device != device) violation("work on a stream of device %d uses memory of device %d", device, p->device);
    else violation("%s", what);
    return 0;
}

static void check_host(uint64_t start, uint64_t bytes, int written) {
    if (fake_is_pageable) return;
    if (!within(&fake_pinned, start, bytes, NULL, 0))
        violation("a copy of %llu bytes whose host side is not registered", (unsigned long long)bytes);
    else if (written && !within(&fake_pinned, start, bytes, writable, 0))
        violation("a copy to memory that is registered as read-only");
}

static int allowed_copy(const stream *s, const op *o, int begins) {
    static const char what[] = "a copy whose device side is not mapped";
    if (!o->to_device && !o->from_device) {
        violation("%s", what);
        return 0;
    }
    if (o->to_device && !on_device(s, o->to, o->bytes, begins, what)) return 0;
    if (o->from_device && !on_device(s, o->from, o->bytes, begins, what)) return 0;
    if (begins && !o->to_device) check_host(o->to, o->bytes, 1);
    if (begins && !o->from_device) check_host(o->from, o->bytes, 0);
    return 1;
}

static void check_scratch(const stream *s, const fake_compute *c) {
    piece *p = overlapping(&fake_scratches, c->scratch, c->scratch_bytes);
    if (p && p->owner != s) violation("scratch %llx is used by two streams", (unsigned long long)c->scratch);
    p = at(&fake_scratches, c->scratch);
    if (!p) p = put(&fake_scratches, c->scratch, c->scratch_bytes);
    if (!p->owner) p->owner = (void *)s;
    if (p->bytes < c->scratch_bytes) p->bytes = c->scratch_bytes;
}

static int allowed_compute(const stream *s, const fake_compute *c, int begins) {
    static const char what[] = "a computation uses memory that is not mapped";
    if (!on_device(s, c->x, 4 * c->count, begins, what) || !on_device(s, c->y, 4 * c->count, begins, what)) return 0;
    if (!c->scratch_bytes) return 1;
    if (!on_device(s, c->scratch, c->scratch_bytes, begins, what)) return 0;
    if (begins) check_scratch(s, c);
    return 1;
}

static int is_graph(const graph *which) {
    for (const graph *g = fake_graphs; g; g = g->next)
        if (g == which) return 1;
    return 0;
}

static int allowed_graph(const stream *s, const graph *g, int begins) {
    if (!is_graph(g)) {
        violation("a graph is launched that is not there");
        return 0;
    }
    for (int i = 0; i < g->count; i++)
        if (!allowed(s, &g->nodes[i], begins)) return 0;
    return 1;
}

int allowed(const stream *s, const op *o, int begins) {
    switch (o->kind) {
    case COPY: return allowed_copy(s, o, begins);
    case FILL: return on_device(s, o->to, o->bytes, begins, "zeros where nothing is mapped");
    case COMPUTE: return allowed_compute(s, &o->compute, begins);
    case GRAPH: return allowed_graph(s, o->graph, begins);
    default: return 1;
    }
}

static int uses(const op *o, uint64_t start, uint64_t bytes) {
    const fake_compute *c = &o->compute;
    const struct {
        uint64_t start, bytes;
    } used[] = {{o->to, o->bytes}, {o->from, o->from ? o->bytes : 0}, {c->x, 4 * c->count}, {c->y, 4 * c->count},
                {c->scratch, c->scratch_bytes}};
    if (o->kind == FREE) return 0;
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        if (used[i].bytes && used[i].start < start + bytes && start < used[i].start + used[i].bytes) return 1;
    return 0;
}

static int used_by_graph(uint64_t start, uint64_t bytes) {
    for (const graph *g = fake_graphs; g; g = g->next)
        for (int i = 0; i < g->count; i++)
            if (uses(&g->nodes[i], start, bytes)) return 1;
    return 0;
}

static int used_by_stream(uint64_t start, uint64_t bytes) {
    for (const stream *s = fake_streams; s; s = s->next) {
        if (s->running && uses(s->running, start, bytes)) return 1;
        for (const op *o = s->first; o; o = o->next)
            if (!o->dropped && uses(o, start, bytes)) return 1;
    }
    return 0;
}

void check_unused(uint64_t start, uint64_t bytes, const char *how) {
    if (used_by_graph(start, bytes)) violation("memory of a captured graph is %s", how);
    if (used_by_stream(start, bytes)) violation("memory that work on a stream uses is %s", how);
}

/* ---- work ---- */

static int still_allowed(const stream *s, const op *o) {
    pthread_mutex_lock(&fake_lock);
    int found = allowed(s, o, 0);
    pthread_mutex_unlock(&fake_lock);
    return found;
}

void perform(stream *s, op *o) {
    if (!still_allowed(s, o)) return;
    if (o->kind == COPY) memmove(pointer(o->to), pointer(o->from), o->bytes);
    if (o->kind == FILL) memset(pointer(o->to), o->value, o->bytes);
    if (o->kind == COMPUTE) o->fn(&o->compute);
    if (o->kind == CALL) o->fn(o->data);
    if (o->kind == GRAPH)
        for (int i = 0; i < o->graph->count; i++) perform(s, &o->graph->nodes[i]);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, stream *s) {
    ENTER(enter_current);
    return push(s, (op){.kind = COPY, .to = to, .from = (uintptr_t)from, .bytes = bytes, .to_device = 1});
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, stream *s) {
    ENTER(enter_current);
    return push(s, (op){.kind = COPY, .to = (uintptr_t)to, .from = from, .bytes = bytes, .from_device = 1});
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, stream *s) {
    ENTER(enter_current);
    return push(s, (op){.kind = COPY, .to = to, .from = from, .bytes = bytes, .to_device = 1, .from_device = 1});
}

static int is_device_address(CUdeviceptr address) {
    pthread_mutex_lock(&fake_lock);
    int found = overlapping(&fake_mapped, address, 1) || overlapping(&fake_reserved, address, 1);
    pthread_mutex_unlock(&fake_lock);
    return found;
}

typedef struct attributes { /* CUmemcpyAttributes */
    int order, source_hint[2], target_hint[2];
    unsigned flags;
} attributes;

/* `which`: the first copy that each of the attributes is for. */
static CUresult batch(CUdeviceptr *to, CUdeviceptr *from, const size_t *bytes, size_t count, const attributes *how,
                      const size_t *which, size_t hows, stream *s) {
    if (!count || !hows || hows > count || which[0]) return INVALID_VALUE;
    for (size_t i = 0; i < hows; i++)
        if (how[i].order < 1 || how[i].order > 3 || (i && which[i] <= which[i - 1])) return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult code = push(s, (op){.kind = COPY, .to = to[i], .from = from[i], .bytes = bytes[i],
                                     .to_device = is_device_address(to[i]), .from_device = is_device_address(from[i])});
        if (code) return code;
    }
    return OK;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, attributes *how, size_t *which,
                            size_t hows, size_t *failed, stream *s) {
    ENTER(enter_current);
    *failed = SIZE_MAX; /* no one copy: the arguments as a whole */
    return batch(to, from, bytes, count, how, which, hows, s);
}

#ifndef FAKE_CUDA_12
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, attributes *how, size_t *which,
                               size_t hows, stream *s) {
    ENTER(enter_current);
    return batch(to, from, bytes, count, how, which, hows, s);
}
#endif

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, stream *s) {
    ENTER(enter_current);
    return push(s, (op){.kind = FILL, .to = to, .bytes = bytes, .value = value});
}

CUresult cuLaunchHostFunc(stream *s, void (*fn)(void *), void *data) {
    ENTER(enter_current);
    uint64_t magic = 0;
    if (data) memcpy(&magic, data, sizeof magic);
    if (magic != FAKE_MAGIC) return push(s, (op){.kind = CALL, .fn = fn, .data = data});
    return push(s, (op){.kind = COMPUTE, .fn = fn, .compute = *(fake_compute *)data});
}

/* A computation for cuLaunchHostFunc: y = 2x + 1. */
void fake_affine(void *data) {
    fake_compute *c = data;
    const float *x = pointer(c->x);
    float *y = pointer(c->y);
    if (c->scratch) memcpy(pointer(c->scratch), x, 4 * c->count < c->scratch_bytes ? 4 * c->count : c->scratch_bytes);
    for (uint64_t i = 0; i < c->count; i++) y[i] = 2 * x[i] + 1;
}

/* ---- graphs ---- */

CUresult cuStreamBeginCapture_v2(stream *s, int mode) {
    ENTER(enter_current);
    pthread_mutex_lock(&fake_lock);
    if (mode != 1) violation("a capture that other threads can break");
    s->capture = calloc(1, sizeof *s->capture);
    s->capturer = pthread_self();
    s->capture_lost = 0;
    fake_capturing = s;
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

CUresult cuStreamEndCapture(stream *s, graph **out) {
    ENTER(enter_current);
    *out = NULL;
    if (!s->capture) return INVALID_VALUE;
    if (!pthread_equal(s->capturer, pthread_self())) return CAPTURE_WRONG_THREAD;
    pthread_mutex_lock(&fake_lock);
    graph *g = s->capture;
    s->capture = NULL;
    fake_capturing = NULL;
    pthread_mutex_unlock(&fake_lock);
    if (s->capture_lost) free(g);
    else *out = g;
    return s->capture_lost ? CAPTURE_INVALIDATED : OK;
}

CUresult cuGraphInstantiateWithFlags(graph **out, const graph *g, unsigned long long flags) {
    ENTER(enter_current);
    (void)flags;
    *out = malloc(sizeof **out);
    **out = *g;
    pthread_mutex_lock(&fake_lock);
    (*out)->next = fake_graphs;
    fake_graphs = *out;
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

CUresult cuGraphDestroy(graph *g) {
    ENTER(enter);
    free(g);
    return OK;
}

static int is_pending(const graph *g) { /* lock held */
    for (const stream *s = fake_streams; s; s = s->next) {
        if (s->running && s->running->graph == g) return 1;
        for (const op *o = s->first; o; o = o->next)
            if (o->graph == g) return 1;
    }
    return 0;
}

CUresult cuGraphExecDestroy(graph *g) {
    ENTER(enter);
    pthread_mutex_lock(&fake_lock);
    graph **place = &fake_graphs;
    while (*place && *place != g) place = &(*place)->next;
    int known = *place != NULL, pending = known && is_pending(g);
    if (known) *place = g->next;
    if (!known) violation("a graph is destroyed that is not there");
    if (pending) violation("a graph is destroyed that is on a stream");
    pthread_mutex_unlock(&fake_lock);
    if (known && !pending) free(g);
    return known ? OK : INVALID_HANDLE;
}

CUresult cuGraphLaunch(graph *g, stream *s) {
    ENTER(enter_current);
    return push(s, (op){.kind = GRAPH, .graph = g});
}
