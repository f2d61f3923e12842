/* threads.c: threads as coroutines, and the choices that a run takes. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include "explorer.h"

enum { CHOICES = 4096, STACK = 1 << 16 };
enum { READY, ASLEEP, ENDED, DIED };

int ex_current = -1, ex_tracing;

/* ---- choices: a path through a tree that is walked depth first ---- */

static struct {
    int taken, of;
} path[CHOICES];
static int depth, known_depth;

void ex_choices_restart(void) { depth = known_depth = 0; }
void ex_choices_rewind(void) { depth = 0; }

int ex_choose(int count) {
    if (count <= 1) return 0;
    if (depth == CHOICES) {
        fprintf(stderr, "explorer: a run took %d choices; is a loop in it unbounded?\n", CHOICES);
        exit(2);
    }
    if (depth == known_depth) {
        path[known_depth].taken = 0;
        path[known_depth++].of = count;
    }
    return path[depth++].taken;
}

int ex_choices_next(void) {
    while (known_depth && path[known_depth - 1].taken + 1 == path[known_depth - 1].of) known_depth--;
    depth = 0;
    if (known_depth == 0) return 0;
    path[known_depth - 1].taken++;
    return 1;
}

/* ---- threads ---- */

static struct {
    ucontext_t context;
    int state;
    const void *sleeps_on;
    int64_t until_ns;
} threads[EX_THREADS];
static char stacks[EX_THREADS][STACK];
static ucontext_t home;
static const ex_scenario *running;
static int thread_count, preemptions_left;

void ex_trace(const char *format, ...) {
    va_list arguments;
    if (!ex_tracing) return;
    printf("      %-10s ", running->threads[ex_current].name);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

void ex_abandon(void) { setcontext(&home); }

/* Threads that may run now; the current one first, so that the first choice is to go on. */
static int runnable(int options[EX_THREADS]) {
    int count = 0, current_is = ex_current >= 0 && threads[ex_current].state == READY;
    if (current_is) options[count++] = ex_current;
    if (current_is && preemptions_left == 0) return count;
    for (int t = 0; t < thread_count; t++)
        if (t != ex_current && threads[t].state == READY) options[count++] = t;
    return count;
}

static void go_on(void) {
    int options[EX_THREADS], before = ex_current;
    int count = runnable(options);
    if (count == 0) ex_abandon();
    int next = options[ex_choose(count)];
    if (next == before) return;
    if (threads[before].state == READY) preemptions_left--;
    ex_current = next;
    swapcontext(&threads[before].context, &threads[next].context);
}

static void end_as(int state) {
    threads[ex_current].state = state;
    for (int t = 0; t < thread_count; t++)
        if (threads[t].state == ASLEEP && threads[t].sleeps_on == &threads[ex_current]) threads[t].state = READY;
    go_on();
}

/* Before every access: another thread may run first, or this one's process may die. */
void ex_switch(void) {
    if (ex_failed()) ex_abandon();
    go_on();
    if (running->threads[ex_current].mortal && ex_choose(2)) {
        ex_trace("    dies");
        end_as(DIED);
    }
}

static void sleep_on(const void *what) {
    threads[ex_current].state = ASLEEP;
    threads[ex_current].sleeps_on = what;
    ex_trace("    sleeps");
    go_on();
    ex_trace("    is awake");
}

static void wake_from(const void *what) {
    for (int t = 0; t < thread_count; t++)
        if (threads[t].state == ASLEEP && threads[t].sleeps_on == what) threads[t].state = READY;
}

/* The kernel compares the word and queues the sleeper in one step, as seen by whoever wakes: memory holds the newest
 * value. */
void fq_model_sleep(const void *word, uint32_t wanted, int64_t until_ns) {
    ex_switch();
    threads[ex_current].until_ns = until_ns;
    if (*(const uint32_t *)word == wanted) sleep_on(word);
}

void fq_model_wake(const void *word) {
    if (ex_current < 0) return;
    ex_switch();
    ex_trace("    wakes");
    wake_from(word);
}

void ex_lock(const void *lock) {
    if (ex_current < 0) return;
    ex_switch();
    while (ex_lock_holder(lock) >= 0) sleep_on(lock);
    ex_lock_taken(lock);
}

void ex_unlock(const void *lock) {
    if (ex_current < 0) return;
    ex_lock_left(lock);
    wake_from(lock);
}

void ex_condition_wait(const void *condition, const void *lock) {
    ex_unlock(lock);
    sleep_on(condition);
    ex_lock(lock);
}

void ex_condition_wake(const void *condition) {
    if (ex_current >= 0) wake_from(condition);
}

void ex_event_write(uint32_t *event) {
    ex_switch();
    ex_trace("    writes the eventfd");
    (*event)++;
    wake_from(event);
}

void ex_event_wait(uint32_t *event) {
    ex_switch();
    while (*event == 0) sleep_on(event);
    *event = 0;
}

int ex_asleep(int thread) { return threads[thread].state == ASLEEP; }
int64_t ex_asleep_until(int thread) { return threads[thread].until_ns; }
int ex_died(int thread) { return threads[thread].state == DIED; }

void ex_wait_end(int thread) {
    while (threads[thread].state == READY || threads[thread].state == ASLEEP) sleep_on(&threads[thread]);
}

static void enter(int thread) {
    running->threads[thread].body();
    end_as(ENDED);
}

void ex_run(const ex_scenario *scenario, int preemptions) {
    volatile int started = 0;
    running = scenario;
    preemptions_left = preemptions;
    for (thread_count = 0; thread_count < EX_THREADS && scenario->threads[thread_count].body; thread_count++) {
        ucontext_t *context = &threads[thread_count].context;
        getcontext(context);
        context->uc_stack.ss_sp = stacks[thread_count];
        context->uc_stack.ss_size = STACK;
        context->uc_link = NULL;
        makecontext(context, (void (*)(void))enter, 1, thread_count);
        threads[thread_count].state = READY;
    }
    getcontext(&home); /* ex_abandon comes back here */
    if (started) {
        ex_current = -1;
        return;
    }
    started = 1;
    ex_current = ex_choose(thread_count);
    setcontext(&threads[ex_current].context);
}
