#include "fake.h"

#include <stdlib.h>
#include <time.h>

enum { NON_BLOCKING = 1, NO_TIMING = 2, FIRST_HANDLE = 16 /* below: names of default streams */ };

stream *fake_streams;
__thread stream *fake_capturing;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- a stream's thread ---- */

static void let_go(event *e) { /* lock held */
    if (e->destroyed && e->done == e->recorded && !e->waited) free(e);
}

/* What an operation does under the lock, when its turn has come. */
static void finish(op *o) {
    event *e = o->event;
    if (o->kind == FREE && !o->dropped) give_back(o->to);
    if (o->kind == RECORD) {
        e->ns = now_ns();
        e->done++;
    }
    if (o->kind == WAIT) {
        while (e->done < o->value && !fake_lost && !o->dropped) pthread_cond_wait(&fake_changed, &fake_lock);
        e->waited--;
    }
    if (e) let_go(e);
}

static void *run(void *argument) {
    stream *s = argument;
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        while ((!s->first && !s->closing) || s->held) pthread_cond_wait(&fake_changed, &fake_lock);
        if (!s->first) break;
        op *o = s->running = s->first;
        int skip = o->dropped || fake_lost;
        s->first = o->next;
        pthread_mutex_unlock(&fake_lock);
        if (!skip) perform(s, o);
        pthread_mutex_lock(&fake_lock);
        finish(o);
        s->running = NULL;
        free(o);
        pthread_cond_broadcast(&fake_changed);
    }
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

void drop_streams(void) {
    for (stream *s = fake_streams; s; s = s->next) {
        s->held = 0;
        s->capture = NULL;
        if (s->running) s->running->dropped = 1;
        for (op *o = s->first; o; o = o->next) o->dropped = 1;
    }
    pthread_cond_broadcast(&fake_changed);
}

/* ---- what is put on a stream; lock held ---- */

static int batches_on(const stream *s) {
    int count = 0;
    long seen = -1;
    if (s->running && s->running->kind != FREE) count++, seen = s->running->batch;
    for (const op *o = s->first; o; o = o->next) /* what is freed behind a batch is no part of it */
        if (o->kind != FREE && o->batch != seen) count++, seen = o->batch;
    return count;
}

static int is_computation(kind k) { return k == COMPUTE || k == CALL || k == GRAPH; }

static void count_batch(stream *s, const op *o) {
    if (o->kind == COPY && o->to_device && !o->from_device && s->computed) {
        s->batch++;
        s->computed = 0;
        if (batches_on(s) >= 2) violation("a third batch on a stream");
    }
    if (is_computation(o->kind)) s->computed = 1;
}

static CUresult capture(stream *s, const op *o) {
    graph *g = s->capture;
    if (o->kind == RECORD || o->kind == WAIT || o->kind == FREE) {
        violation("%s in a capture", o->kind == FREE ? "memory is freed" : "an event");
        s->capture_lost = 1;
        return CAPTURE_UNSUPPORTED;
    }
    if (g->count == FAKE_NODES) return OUT_OF_MEMORY;
    g->nodes[g->count++] = *o;
    return OK;
}

static void append(stream *s, const op *what) {
    op *o = malloc(sizeof *o);
    *o = *what;
    o->batch = s->batch;
    o->next = NULL;
    if (o->kind == RECORD) o->event->recorded++;
    if (o->kind == WAIT) o->event->waited++;
    if (o->kind == FREE) at(&fake_mapped, o->to)->freed = 1;
    if (s->first) s->last->next = o;
    else s->first = o;
    s->last = o;
    pthread_cond_broadcast(&fake_changed);
}

static int is_stream(const stream *which) {
    for (const stream *s = fake_streams; s; s = s->next)
        if (s == which) return 1;
    return 0;
}

static CUresult put_on(stream *s, const op *o) {
    if ((uintptr_t)s < FIRST_HANDLE || !is_stream(s)) {
        violation((uintptr_t)s < FIRST_HANDLE ? "work on the default stream" : "work on a stream that is not there");
        return INVALID_HANDLE;
    }
    if (fake_current != s->context) {
        violation("work on a stream of device %d in a thread whose context is of device %d", s->context->device,
                  fake_current->device);
        return INVALID_CONTEXT;
    }
    if (!allowed(s, o, 1)) return INVALID_VALUE;
    if (s->capture) return capture(s, o);
    count_batch(s, o);
    append(s, o);
    return OK;
}

CUresult push(stream *s, op what) {
    pthread_mutex_lock(&fake_lock);
    CUresult code = put_on(s, &what);
    pthread_mutex_unlock(&fake_lock);
    return code;
}

/* ---- streams ---- */

CUresult cuStreamCreate(stream **out, unsigned flags) {
    ENTER(enter_current);
    stream *s = *out = calloc(1, sizeof *s);
    s->computed = 1;
    s->context = fake_current;
    pthread_mutex_lock(&fake_lock);
    if (!(flags & NON_BLOCKING)) violation("a stream that waits for the default stream");
    s->next = fake_streams;
    fake_streams = s;
    pthread_mutex_unlock(&fake_lock);
    return pthread_create(&s->thread, NULL, run, s) ? OUT_OF_MEMORY : OK;
}

CUresult cuStreamDestroy_v2(stream *s) {
    ENTER(enter_current);
    pthread_mutex_lock(&fake_lock);
    stream **place = &fake_streams;
    while (*place && *place != s) place = &(*place)->next;
    int known = *place != NULL;
    if (known) {
        *place = s->next;
        s->closing = 1;
        s->held = 0;
        pthread_cond_broadcast(&fake_changed);
    } else {
        violation("a stream is destroyed that is not there");
    }
    pthread_mutex_unlock(&fake_lock);
    if (!known) return INVALID_HANDLE;
    pthread_join(s->thread, NULL);
    free(s);
    return OK;
}

/* Whether something of the stream can be waited for; lock held. */
static CUresult waitable(stream *s) {
    if ((uintptr_t)s < FIRST_HANDLE || !is_stream(s)) {
        violation("a thread waits for a stream that is not there, or the default one");
        return INVALID_HANDLE;
    }
    if (!s->capture) return OK;
    s->capture_lost = 1;
    return CAPTURE_UNSUPPORTED;
}

CUresult cuStreamSynchronize(stream *s) {
    ENTER(enter_current);
    pthread_mutex_lock(&fake_lock);
    CUresult code = waitable(s);
    while (!code && (s->first || s->running) && !fake_lost) pthread_cond_wait(&fake_changed, &fake_lock);
    if (!code) code = fake_lost;
    pthread_mutex_unlock(&fake_lock);
    return code;
}

CUresult cuStreamQuery(stream *s) {
    ENTER(enter_current);
    pthread_mutex_lock(&fake_lock);
    CUresult code = waitable(s);
    if (!code && (s->first || s->running)) code = NOT_READY;
    pthread_mutex_unlock(&fake_lock);
    return code;
}

/* The stream begins nothing more while it is held. */
void fake_hold(stream *s, int on) {
    pthread_mutex_lock(&fake_lock);
    s->held = on;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

/* ---- events ---- */

CUresult cuEventCreate(event **out, unsigned flags) {
    ENTER(enter_current);
    *out = calloc(1, sizeof **out);
    (*out)->flags = flags;
    return OK;
}

CUresult cuEventDestroy_v2(event *e) {
    ENTER(enter_current);
    pthread_mutex_lock(&fake_lock);
    e->destroyed = 1;
    let_go(e);
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

CUresult cuEventRecord(event *e, stream *s) {
    ENTER(enter_current);
    return push(s, (op){.kind = RECORD, .event = e});
}

CUresult cuStreamWaitEvent(stream *s, event *e, unsigned flags) {
    ENTER(enter_current);
    (void)flags;
    return push(s, (op){.kind = WAIT, .event = e, .value = e->recorded});
}

CUresult cuEventSynchronize(event *e) {
    ENTER(enter);
    pthread_mutex_lock(&fake_lock);
    int until = e->recorded;
    while (e->done < until && !fake_lost) pthread_cond_wait(&fake_changed, &fake_lock);
    CUresult code = fake_lost;
    pthread_mutex_unlock(&fake_lock);
    return code;
}

CUresult cuEventQuery(event *e) {
    ENTER(enter);
    pthread_mutex_lock(&fake_lock);
    CUresult code = e->done < e->recorded ? NOT_READY : OK;
    pthread_mutex_unlock(&fake_lock);
    return code;
}

CUresult cuEventElapsedTime(float *ms, event *from, event *to) {
    ENTER(enter);
    pthread_mutex_lock(&fake_lock);
    CUresult code = OK;
    if (!from->recorded || !to->recorded || (from->flags | to->flags) & NO_TIMING) code = INVALID_HANDLE;
    else if (from->done < from->recorded || to->done < to->recorded) code = NOT_READY;
    if (!code) *ms = (float)(to->ns - from->ns) / 1e6f;
    pthread_mutex_unlock(&fake_lock);
    return code;
}
#ifndef FAKE_CUDA_12
CUresult cuEventElapsedTime_v2(float *ms, event *from, event *to) { return cuEventElapsedTime(ms, from, to); }
#endif
