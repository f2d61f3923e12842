#include "launch.h"

#include <stdio.h>
#include <string.h>

#define cuda hr_cuda_table

static int64_t elapsed_ns(CUevent from, CUevent to) {
    float ms = 0;
    return cuda.cuEventElapsedTime(&ms, from, to) ? 0 : (int64_t)(ms * 1e6f);
}

static int64_t not_before(int64_t ns, int64_t least) { return ns < least ? least : ns; }

/* The phases end as the device's own clock has it, counted back from now. */
static void set_times(const hr_launch *l, fq_batch *b) {
    int64_t now = fq_now(b->former);
    b->compute_ns = not_before(now - elapsed_ns(l->computed, l->done), b->launched_ns);
    b->input_ns = not_before(b->compute_ns - elapsed_ns(l->input, l->computed), b->launched_ns);
}

static int is_sticky(const hr_completer *c, int code) {
    for (uint32_t i = 0; i < c->sticky_count; i++)
        if (c->sticky[i] == code) return 1;
    return 0;
}

/* Nothing of the slot is used after the batch is answered: the launcher may have it by then. */
static void end_batch(hr_completer *c, hr_launch *l) {
    fq_batch *b = l->batch;
    char text[FQ_TEXT];
    CUresult code = cuda.cuEventSynchronize(l->done);
    if (!code) {
        set_times(l, b);
        (void)fq_batch_complete(b, l->shapes);
        return;
    }
    int lost = is_sticky(c, code);
    (void)snprintf(text, sizeof text, "the device failed while it ran the batch (CUDA error %d)%s", code,
                   lost ? "; it is started again" : "");
    fq_batch_fail(b, lost ? FQ_UNAVAILABLE : FQ_INTERNAL, 0, text);
    if (lost) c->failed(c->owner, code);
}

static void *run(void *argument) {
    hr_completer *c = argument;
    (void)cuda.cuCtxSetCurrent(c->context);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->count == 0 && !c->closing) pthread_cond_wait(&c->filled, &c->lock);
        if (c->count == 0) break;
        hr_launch *l = c->queue[c->first];
        c->first = (c->first + 1) % HR_QUEUE;
        c->count--;
        pthread_mutex_unlock(&c->lock);
        fq_former *former = l->batch->former;
        end_batch(c, l);
        fq_former_slot_freed(former);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

int hr_completer_start(hr_completer *c) {
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->filled, NULL);
    return pthread_create(&c->thread, NULL, run, c);
}

void hr_completer_push(hr_completer *c, hr_launch *l) {
    pthread_mutex_lock(&c->lock);
    c->queue[(c->first + c->count++) % HR_QUEUE] = l;
    pthread_cond_signal(&c->filled);
    pthread_mutex_unlock(&c->lock);
}

void hr_completer_stop(hr_completer *c) {
    pthread_mutex_lock(&c->lock);
    c->closing = 1;
    pthread_cond_signal(&c->filled);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->filled);
    pthread_mutex_destroy(&c->lock);
}
