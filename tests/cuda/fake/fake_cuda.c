/* A CUDA driver for tests, without a device. "Device memory" is memory of this process, and what is put on a stream is
 * done by a thread of the stream, in order, so results are real. It keeps RULES; whoever breaks one is named by a sentence,
 * which the test's fixture finds (fake_violation):
 *
 *   - nothing on the default stream, and a context current in every thread that calls
 *   - never more than two batches on a stream; one begins with a copy to the device
 *   - after fake_serving(1) memory comes from pools alone
 *   - a copy's host side lies in registered memory (but after fake_pageable(1)), its device side in memory that is mapped
 *   - a place's scratch is used by one stream alone
 *   - what a captured graph uses is not unmapped while the graph lives
 *
 * A test's computation is cuLaunchHostFunc with a fake_compute, of which the driver keeps a copy.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_FOUND = 500, CAPTURE_LOST = 901 };
enum { MAGIC = 0x46414b45, MAX = 4096, PAGE = 2 << 20 };

typedef struct fake_compute {
    uint64_t magic, scratch, scratch_bytes, x, y, count;
} fake_compute;

typedef enum { COPY, FILL, COMPUTE, RECORD, GRAPH, FREE } kind;
typedef struct event {
    int pending, used;
    int64_t ns;
} event;
typedef struct graph {
    fake_compute nodes[64];
    void (*fn[64])(void *);
    int count;
} graph;
typedef struct op {
    struct op *next;
    kind kind;
    void *to;
    const void *from;
    size_t bytes;
    int value;
    long batch;
    event *event;
    graph *graph;
    void (*fn)(void *);
    fake_compute compute;
} op;
typedef struct stream {
    pthread_t thread;
    op *first, *last;
    op *running;
    graph *capture;
    long batch;
    int computed, held, closing;
} stream;
typedef struct piece {
    uint64_t start, bytes;
    void *owner; /* a pool */
} piece;
typedef struct pool {
    size_t most, used;
} pool;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static size_t total = (size_t)1 << 30, used;
static int devices = 1, serving, sticky, pageable;
static char violations[64][256];
static int violation_count;
static piece mapped[MAX], pinned[MAX], scratches[MAX];
static graph *graphs[MAX];
static struct { char name[64]; int code; } fails[16];
static __thread void *current;

static void violation(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    if (violation_count < 64) (void)vsnprintf(violations[violation_count++], 256, format, rest);
    va_end(rest);
}

/* ---- lists of memory; lock held ---- */

static void put(piece *list, uint64_t start, uint64_t bytes, void *owner) {
    for (int i = 0; i < MAX; i++) {
        if (list[i].bytes) continue;
        list[i] = (piece){start, bytes, owner};
        return;
    }
    abort();
}

static piece *at(piece *list, uint64_t start) {
    for (int i = 0; i < MAX; i++)
        if (list[i].bytes && list[i].start == start) return &list[i];
    return NULL;
}

static int within(piece *list, uint64_t start, uint64_t bytes) {
    while (bytes) { /* pieces that touch are one */
        int found = 0;
        for (int i = 0; i < MAX && !found; i++) {
            if (!list[i].bytes || start < list[i].start || start >= list[i].start + list[i].bytes) continue;
            uint64_t here = list[i].start + list[i].bytes - start;
            if (here > bytes) here = bytes;
            start += here;
            bytes -= here;
            found = 1;
        }
        if (!found) return 0;
    }
    return 1;
}

/* Every call begins here: what it returns at once, or OK. */
static CUresult enter(const char *name) {
    CUresult code = OK;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 16 && !code; i++) {
        if (!fails[i].code || strcmp(fails[i].name, name)) continue;
        code = fails[i].code;
        fails[i].code = 0;
    }
    if (!code) code = sticky;
    pthread_mutex_unlock(&lock);
    return code;
}
#define ENTER() do { CUresult code_ = enter(__func__); if (code_) return code_; } while (0)

/* ---- streams ---- */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void check_compute(stream *s, const fake_compute *c) { /* lock held */
    piece *p = c->scratch ? at(scratches, c->scratch) : NULL;
    if (c->magic != MAGIC) { violation("a computation without its header"); return; }
    if (c->scratch && !p) put(scratches, c->scratch, 1, s);
    if (p && p->owner != s) violation("scratch %llx is used by two streams", (unsigned long long)c->scratch);
    if (!within(mapped, c->x, 4 * c->count) || !within(mapped, c->y, 4 * c->count) ||
        (c->scratch && !within(mapped, c->scratch, c->scratch_bytes)))
        violation("a computation uses memory that is not mapped");
}

static void compute(stream *s, void (*fn)(void *), fake_compute *c) {
    pthread_mutex_lock(&lock);
    check_compute(s, c);
    pthread_mutex_unlock(&lock);
    fn(c);
}

static void do_op(stream *s, op *o) {
    if (o->kind == COPY) memcpy(o->to, o->from, o->bytes);
    if (o->kind == FILL) memset(o->to, o->value, o->bytes);
    if (o->kind == COMPUTE) compute(s, o->fn, &o->compute);
    if (o->kind == GRAPH)
        for (int i = 0; i < o->graph->count; i++) compute(s, o->graph->fn[i], &o->graph->nodes[i]);
}

static void give_back(uint64_t start) { /* lock held */
    piece *p = at(mapped, start);
    if (!p) { violation("memory is freed that is not there"); return; }
    pool *owner = p->owner;
    used -= p->bytes;
    if (owner) owner->used -= p->bytes;
    munmap((void *)p->start, p->bytes);
    p->bytes = 0;
}

static void *run(void *argument) {
    stream *s = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while ((!s->first && !s->closing) || s->held) pthread_cond_wait(&changed, &lock);
        if (!s->first) break;
        op *o = s->running = s->first;
        s->first = o->next;
        pthread_mutex_unlock(&lock);
        if (!sticky) do_op(s, o);
        pthread_mutex_lock(&lock);
        if (o->kind == FREE) give_back((uint64_t)o->to);
        if (o->kind == RECORD) {
            o->event->ns = now_ns();
            o->event->pending--;
        }
        s->running = NULL;
        pthread_cond_broadcast(&changed);
        free(o);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static int batches_on(const stream *s) {
    int count = 0;
    long seen = -1;
    if (s->running && s->running->kind != FREE) count++, seen = s->running->batch;
    for (const op *o = s->first; o; o = o->next) /* what is freed behind a batch is no part of it */
        if (o->kind != FREE && o->batch != seen) count++, seen = o->batch;
    return count;
}

/* Puts an operation on a stream. `begins`: it is a copy to the device, which a batch begins with. */
static CUresult push(stream *s, op what, int begins) {
    if ((uintptr_t)s < 16) { violation("work on the default stream"); return INVALID; }
    pthread_mutex_lock(&lock);
    if (!current) violation("no context is current in a thread that launches");
    if (begins && s->computed) {
        s->batch++;
        s->computed = 0;
        if (batches_on(s) >= 2) violation("a third batch on a stream");
    }
    if (what.kind == COMPUTE || what.kind == GRAPH) s->computed = 1;
    if (what.kind == RECORD) what.event->pending++, what.event->used = 1;
    op *o = malloc(sizeof *o);
    *o = what;
    o->batch = s->batch;
    o->next = NULL;
    if (s->first) s->last->next = o; else s->first = o;
    s->last = o;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return OK;
}

static CUresult copy(stream *s, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    pthread_mutex_lock(&lock);
    int in = within(mapped, to, bytes), out = within(mapped, from, bytes);
    int host = within(pinned, in ? from : to, bytes);
    if (!in && !out) violation("a copy whose device side is not mapped");
    if (!host && !pageable && !(in && out)) violation("a copy of %zu bytes whose host side is not registered", bytes);
    if (s && (uintptr_t)s >= 16 && s->capture) violation("a copy in a capture");
    pthread_mutex_unlock(&lock);
    return push(s, (op){.kind = COPY, .to = (void *)to, .from = (const void *)from, .bytes = bytes}, in && !out);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, stream *s) { ENTER(); return copy(s, to, (CUdeviceptr)from, n); }
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, stream *s) { ENTER(); return copy(s, (CUdeviceptr)to, from, n); }
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *n, size_t count, void *attributes, size_t *which,
                               size_t attribute_count, stream *s) {
    ENTER();
    (void)attributes;
    if (attribute_count != 1 || which[0] != 0) return INVALID;
    for (size_t i = 0; i < count; i++) copy(s, to[i], from[i], n[i]);
    return OK;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, stream *s) {
    ENTER();
    pthread_mutex_lock(&lock);
    if (!within(mapped, to, n)) violation("zeros where nothing is mapped");
    pthread_mutex_unlock(&lock);
    return push(s, (op){.kind = FILL, .to = (void *)to, .bytes = n, .value = value}, 0);
}
CUresult cuLaunchHostFunc(stream *s, void (*fn)(void *), void *data) {
    ENTER();
    if ((uintptr_t)s >= 16 && s->capture) {
        s->capture->fn[s->capture->count] = fn;
        s->capture->nodes[s->capture->count++] = *(fake_compute *)data;
        return OK;
    }
    return push(s, (op){.kind = COMPUTE, .fn = fn, .compute = *(fake_compute *)data}, 0);
}
void fake_affine(void *data) {
    fake_compute *c = data;
    const float *x = (const float *)c->x;
    float *y = (float *)c->y;
    if (c->scratch) memcpy((void *)c->scratch, x, 4 * c->count < c->scratch_bytes ? 4 * c->count : c->scratch_bytes);
    for (uint64_t i = 0; i < c->count; i++) y[i] = 2 * x[i] + 1;
}

CUresult cuStreamCreate(stream **out, unsigned flags) {
    ENTER();
    if (!(flags & 1)) violation("a stream that waits for the default stream");
    stream *s = *out = calloc(1, sizeof *s);
    s->computed = 1;
    return pthread_create(&s->thread, NULL, run, s) ? INVALID : OK;
}
CUresult cuStreamDestroy_v2(stream *s) {
    ENTER();
    pthread_mutex_lock(&lock);
    s->closing = 1;
    s->held = 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(s->thread, NULL);
    free(s);
    return OK;
}
CUresult cuStreamSynchronize(stream *s) {
    ENTER();
    pthread_mutex_lock(&lock);
    while ((s->first || s->running) && !sticky) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return sticky;
}

/* ---- events ---- */

CUresult cuEventCreate(event **out, unsigned flags) { ENTER(); (void)flags; *out = calloc(1, sizeof **out); return OK; }
CUresult cuEventDestroy_v2(event *e) { ENTER(); free(e); return OK; }
CUresult cuEventRecord(event *e, stream *s) {
    ENTER();
    if ((uintptr_t)s >= 16 && s->capture) { violation("an event in a capture"); return CAPTURE_LOST; }
    return push(s, (op){.kind = RECORD, .event = e}, 0);
}
CUresult cuEventSynchronize(event *e) {
    ENTER();
    pthread_mutex_lock(&lock);
    while (e->pending && !sticky) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return sticky;
}
CUresult cuEventElapsedTime(float *ms, event *a, event *b) { ENTER(); *ms = (float)(b->ns - a->ns) / 1e6f; return a->used && b->used ? OK : INVALID; }

/* ---- graphs ---- */

CUresult cuStreamBeginCapture_v2(stream *s, int mode) {
    ENTER();
    if (mode != 1) violation("a capture that other threads can break");
    s->capture = calloc(1, sizeof(graph));
    return OK;
}
CUresult cuStreamEndCapture(stream *s, graph **out) { ENTER(); *out = s->capture; s->capture = NULL; return *out ? OK : CAPTURE_LOST; }
CUresult cuGraphInstantiateWithFlags(graph **out, graph *g, unsigned long long flags) {
    ENTER();
    (void)flags;
    *out = malloc(sizeof **out);
    **out = *g;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX; i++)
        if (!graphs[i]) { graphs[i] = *out; break; }
    pthread_mutex_unlock(&lock);
    return OK;
}
CUresult cuGraphDestroy(graph *g) { ENTER(); free(g); return OK; }
CUresult cuGraphExecDestroy(graph *g) {
    ENTER();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX; i++)
        if (graphs[i] == g) graphs[i] = NULL;
    pthread_mutex_unlock(&lock);
    free(g);
    return OK;
}
CUresult cuGraphLaunch(graph *g, stream *s) { ENTER(); return push(s, (op){.kind = GRAPH, .graph = g}, 0); }

/* ---- memory ---- */

static CUresult take(size_t bytes) { /* lock held */
    if (used + bytes > total) return NO_MEMORY;
    used += bytes;
    return OK;
}
static size_t rounded(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
static void not_while_serving(const char *what) { if (serving) violation("%s while serving", what); }

CUresult cuMemGetAllocationGranularity(size_t *out, const void *prop, int option) { ENTER(); (void)prop; (void)option; *out = PAGE; return OK; }
CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr address, unsigned long long flags) {
    ENTER();
    (void)alignment, (void)address, (void)flags;
    void *place = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *out = (CUdeviceptr)place;
    return place == MAP_FAILED ? NO_MEMORY : OK;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) { ENTER(); munmap((void *)address, bytes); return OK; }
CUresult cuMemCreate(unsigned long long *out, size_t bytes, const void *prop, unsigned long long flags) {
    ENTER();
    (void)prop, (void)flags;
    pthread_mutex_lock(&lock);
    not_while_serving("cuMemCreate");
    CUresult code = take(bytes);
    pthread_mutex_unlock(&lock);
    *out = 1;
    return code;
}
CUresult cuMemRelease(unsigned long long handle) { ENTER(); (void)handle; return OK; }
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags) {
    ENTER();
    (void)offset, (void)handle, (void)flags;
    pthread_mutex_lock(&lock);
    put(mapped, address, bytes, NULL);
    pthread_mutex_unlock(&lock);
    return OK;
}
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const void *access, size_t count) {
    ENTER();
    (void)access, (void)count;
    return mprotect((void *)address, bytes, PROT_READ | PROT_WRITE) ? INVALID : OK;
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    ENTER();
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX; i++)
        for (int n = 0; graphs[i] && n < graphs[i]->count; n++) {
            const fake_compute *c = &graphs[i]->nodes[n];
            const uint64_t places[] = {c->x, c->y, c->scratch}, sizes[] = {4 * c->count, 4 * c->count, c->scratch_bytes};
            for (int p = 0; p < 3; p++)
                if (places[p] && places[p] < address + bytes && places[p] + sizes[p] > address)
                    violation("memory of a captured graph is unmapped");
        }
    piece *p = at(mapped, address);
    if (!p || p->bytes != bytes) violation("what is unmapped was not mapped");
    else p->bytes = 0, used -= bytes;
    pthread_mutex_unlock(&lock);
    madvise((void *)address, bytes, MADV_DONTNEED);
    return mprotect((void *)address, bytes, PROT_NONE) ? INVALID : OK;
}
static CUresult allocate(CUdeviceptr *out, size_t bytes, pool *owner) {
    bytes = owner ? (bytes + 4095) / 4096 * 4096 : rounded(bytes);
    pthread_mutex_lock(&lock);
    CUresult code = owner && owner->most && owner->used + bytes > owner->most ? NO_MEMORY : take(bytes);
    if (!code) {
        *out = (CUdeviceptr)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        put(mapped, *out, bytes, owner);
        if (owner) owner->used += bytes;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) { ENTER(); not_while_serving("cuMemAlloc"); return allocate(out, bytes, NULL); }
CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER();
    pthread_mutex_lock(&lock);
    give_back(address);
    pthread_mutex_unlock(&lock);
    return OK;
}
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *all) { ENTER(); *free_bytes = total - used; *all = total; return OK; }

typedef struct pool_props {
    int type, handles, location_type, location_id;
    void *security;
    size_t most;
    unsigned char rest[56];
} pool_props;
CUresult cuMemPoolCreate(pool **out, const pool_props *props) { ENTER(); *out = calloc(1, sizeof **out); (*out)->most = props->most; return OK; }
CUresult cuMemPoolDestroy(pool *p) { ENTER(); if (p->used) violation("a pool of %zu bytes is ended", p->used); free(p); return OK; }
CUresult cuMemPoolTrimTo(pool *p, size_t keep) { ENTER(); (void)p, (void)keep; return OK; }
CUresult cuMemPoolSetAttribute(pool *p, int which, void *value) { ENTER(); (void)p, (void)which, (void)value; return OK; }
CUresult cuMemPoolGetAttribute(pool *p, int which, void *value) { ENTER(); (void)which; *(uint64_t *)value = p->used; return OK; }
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, pool *p, stream *s) {
    ENTER();
    if ((uintptr_t)s < 16) violation("an allocation on the default stream");
    return allocate(out, bytes, p);
}
CUresult cuMemFreeAsync(CUdeviceptr address, stream *s) { ENTER(); return push(s, (op){.kind = FREE, .to = (void *)address}, 0); }

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    ENTER();
    (void)flags;
    bytes = rounded(bytes);
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_mutex_lock(&lock);
    not_while_serving("cuMemHostAlloc");
    put(pinned, (uint64_t)*out, bytes, NULL);
    pthread_mutex_unlock(&lock);
    return OK;
}
static CUresult unpin(void *address, int unmap) {
    pthread_mutex_lock(&lock);
    piece *p = at(pinned, (uint64_t)address);
    if (!p) violation("memory is unpinned that is not pinned");
    else {
        if (unmap) munmap(address, p->bytes);
        p->bytes = 0;
    }
    pthread_mutex_unlock(&lock);
    return p ? OK : INVALID;
}
CUresult cuMemFreeHost(void *address) { ENTER(); return unpin(address, 1); }
CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    ENTER();
    (void)flags;
    pthread_mutex_lock(&lock);
    put(pinned, (uint64_t)address, bytes, NULL);
    pthread_mutex_unlock(&lock);
    return OK;
}
CUresult cuMemHostUnregister(void *address) { ENTER(); return unpin(address, 0); }

/* ---- devices ---- */

CUresult cuInit(unsigned flags) { (void)flags; return devices ? OK : 100; }
CUresult cuDriverGetVersion(int *out) { *out = 13000; return OK; }
CUresult cuDeviceGetCount(int *out) { ENTER(); *out = devices; return OK; }
CUresult cuDeviceGet(int *out, int index) { ENTER(); *out = index; return index < devices ? OK : 101; }
CUresult cuDeviceGetName(char *out, int room, int device) { ENTER(); (void)snprintf(out, (size_t)room, "Fake %d", device); return OK; }
CUresult cuDeviceGetPCIBusId(char *out, int room, int device) { ENTER(); (void)snprintf(out, (size_t)room, "0000:%02d:00.0", device + 1); return OK; }
CUresult cuDeviceTotalMem_v2(size_t *out, int device) { ENTER(); (void)device; *out = total; return OK; }
CUresult cuDevicePrimaryCtxRetain(void **out, int device) { ENTER(); *out = (void *)(uintptr_t)(0x1000 + device); return OK; }
CUresult cuDevicePrimaryCtxRelease_v2(int device) { ENTER(); (void)device; return OK; }
CUresult cuCtxSetCurrent(void *context) { ENTER(); current = context; return OK; }

#define ROW(name) {#name, (void *)(uintptr_t)name}
#define V2(name) {#name, (void *)(uintptr_t)name##_v2}
static const struct { const char *name; void *function; } table[] = {
    ROW(cuInit), ROW(cuDriverGetVersion), ROW(cuDeviceGetCount), ROW(cuDeviceGet), ROW(cuDeviceGetName), ROW(cuDeviceGetPCIBusId),
    V2(cuDeviceTotalMem), ROW(cuDevicePrimaryCtxRetain), V2(cuDevicePrimaryCtxRelease), ROW(cuCtxSetCurrent), ROW(cuStreamCreate),
    V2(cuStreamDestroy), ROW(cuStreamSynchronize), ROW(cuEventCreate), V2(cuEventDestroy), ROW(cuEventRecord), ROW(cuEventSynchronize),
    ROW(cuEventElapsedTime), V2(cuStreamBeginCapture), ROW(cuStreamEndCapture), ROW(cuGraphInstantiateWithFlags), ROW(cuGraphDestroy),
    ROW(cuGraphExecDestroy), ROW(cuGraphLaunch), ROW(cuMemGetAllocationGranularity), ROW(cuMemAddressReserve), ROW(cuMemAddressFree),
    ROW(cuMemCreate), ROW(cuMemRelease), ROW(cuMemMap), ROW(cuMemUnmap), ROW(cuMemSetAccess), V2(cuMemAlloc), V2(cuMemFree),
    V2(cuMemGetInfo), ROW(cuMemPoolCreate), ROW(cuMemPoolDestroy), ROW(cuMemPoolTrimTo), ROW(cuMemPoolSetAttribute),
    ROW(cuMemPoolGetAttribute), ROW(cuMemAllocFromPoolAsync), ROW(cuMemFreeAsync), ROW(cuMemHostAlloc), ROW(cuMemFreeHost),
    V2(cuMemHostRegister), ROW(cuMemHostUnregister), V2(cuMemcpyHtoDAsync), V2(cuMemcpyDtoHAsync), V2(cuMemcpyBatchAsync),
    ROW(cuMemsetD8Async), ROW(cuLaunchHostFunc),
};
CUresult cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags, int *status) {
    (void)version, (void)flags;
    *out = NULL;
    if (!strcmp(name, "cuGetProcAddress")) *out = (void *)(uintptr_t)cuGetProcAddress_v2;
    if (!strcmp(name, "cuGraphInstantiate")) *out = (void *)(uintptr_t)cuGraphInstantiateWithFlags;
    for (size_t i = 0; i < sizeof table / sizeof *table && !*out; i++)
        if (!strcmp(name, table[i].name)) *out = table[i].function;
    if (status) *status = *out ? 0 : 1;
    return *out ? OK : NOT_FOUND;
}

/* ---- controls ---- */

void fake_reset(void) {
    pthread_mutex_lock(&lock);
    used = 0;
    violation_count = serving = sticky = pageable = 0;
    devices = 1;
    total = (size_t)1 << 30;
    memset(scratches, 0, sizeof scratches);
    memset(fails, 0, sizeof fails);
    pthread_mutex_unlock(&lock);
}
void fake_devices(int count) { devices = count; }
void fake_memory(size_t bytes) { total = bytes; }
void fake_serving(int on) { serving = on; }
void fake_pageable(int on) { pageable = on; }
size_t fake_used(void) { return used; }
void fake_hold(stream *s, int on) { /* the stream begins nothing more while it is held */
    pthread_mutex_lock(&lock);
    s->held = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
int fake_is_lost(void) { return sticky; }
size_t fake_total(void) { return total; }
void fake_sticky(int code) {
    pthread_mutex_lock(&lock);
    sticky = code;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
void fake_fail_next(const char *name, int code) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 16; i++) {
        if (fails[i].code) continue;
        (void)snprintf(fails[i].name, sizeof fails[i].name, "%s", name);
        fails[i].code = code;
        break;
    }
    pthread_mutex_unlock(&lock);
}
const char *fake_violation(int number) { return number < violation_count ? violations[number] : NULL; }
