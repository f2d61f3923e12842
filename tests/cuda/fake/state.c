#include "fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXTS = 64, TEXT = 256, CALLS = 128, NAME = 64, PLANS = 16 };

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;
pieces fake_reserved, fake_mapped, fake_pinned, fake_scratches;
size_t fake_bytes = (size_t)1 << 30, fake_taken[FAKE_DEVICES];
int fake_device_count = 1, fake_is_serving, fake_lost, fake_is_pageable;
__thread context *fake_current;

static char texts[TEXTS][TEXT];
static int text_count;
static struct {
    const char *name;
    int count;
} calls[CALLS];
static struct {
    char name[NAME];
    int code;
} plans[PLANS];

void violation(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    if (text_count < TEXTS) (void)vsnprintf(texts[text_count++], TEXT, format, rest);
    va_end(rest);
}

/* ---- lists of memory ---- */

piece *put(pieces *list, uint64_t start, uint64_t bytes) {
    int i = 0;
    while (i < list->top && list->all[i].bytes) i++;
    if (i == FAKE_PIECES) abort();
    if (i == list->top) list->top++;
    list->all[i] = (piece){.start = start, .bytes = bytes};
    return &list->all[i];
}

piece *at(pieces *list, uint64_t start) {
    for (int i = 0; i < list->top; i++)
        if (list->all[i].bytes && list->all[i].start == start) return &list->all[i];
    return NULL;
}

piece *overlapping(pieces *list, uint64_t start, uint64_t bytes) {
    for (int i = 0; i < list->top; i++) {
        piece *p = &list->all[i];
        if (p->bytes && p->start < start + bytes && start < p->start + p->bytes) return p;
    }
    return NULL;
}

int within(pieces *list, uint64_t start, uint64_t bytes, accepts *accept, int device) {
    while (bytes) {
        piece *p = overlapping(list, start, 1);
        if (!p || (accept && !accept(p, device))) return 0;
        uint64_t here = p->start + p->bytes - start;
        if (here > bytes) here = bytes;
        start += here;
        bytes -= here;
    }
    return 1;
}

CUresult take(int device, size_t bytes) {
    if (fake_taken[device] + bytes > fake_bytes) return OUT_OF_MEMORY;
    fake_taken[device] += bytes;
    return OK;
}

void not_while_serving(const char *what) {
    if (fake_is_serving) violation("%s while serving", what);
}

/* ---- what every call begins with ---- */

static void count_call(const char *name) {
    int i = 0;
    while (i < CALLS - 1 && calls[i].name && strcmp(calls[i].name, name)) i++;
    calls[i].name = name;
    calls[i].count++;
}

static CUresult planned(const char *name) {
    for (int i = 0; i < PLANS; i++) {
        int code = plans[i].code;
        if (!code || strcmp(plans[i].name, name)) continue;
        plans[i].code = 0;
        return code;
    }
    return fake_lost;
}

CUresult enter(const char *name) {
    pthread_mutex_lock(&fake_lock);
    count_call(name);
    CUresult code = planned(name);
    pthread_mutex_unlock(&fake_lock);
    return code;
}

CUresult enter_current(const char *name) {
    CUresult code = enter(name);
    if (code) return code;
    if (fake_current && fake_current->retained) return OK;
    pthread_mutex_lock(&fake_lock);
    violation("no context is current in a thread that launches or allocates: %s", name);
    pthread_mutex_unlock(&fake_lock);
    return INVALID_CONTEXT;
}

CUresult enter_uncaptured(const char *name) {
    CUresult code = enter_current(name);
    if (code || !fake_capturing) return code;
    fake_capturing->capture_lost = 1;
    return CAPTURE_UNSUPPORTED;
}

/* ---- controls ---- */

void fake_reset(void) {
    pthread_mutex_lock(&fake_lock);
    if (fake_lost) drop_contexts(); /* the process that had them would have ended */
    text_count = fake_is_serving = fake_lost = fake_is_pageable = 0;
    fake_device_count = 1;
    fake_bytes = (size_t)1 << 30;
    fake_reserved.top = fake_mapped.top = fake_pinned.top = fake_scratches.top = 0;
    fake_graphs = NULL;
    memset(fake_taken, 0, sizeof fake_taken);
    memset(calls, 0, sizeof calls);
    memset(plans, 0, sizeof plans);
    drop_streams();
    pthread_mutex_unlock(&fake_lock);
}

void fake_devices(int count) { fake_device_count = count < FAKE_DEVICES ? count : FAKE_DEVICES; }
void fake_memory(size_t bytes) { fake_bytes = bytes; } /* of each device */
void fake_serving(int on) { fake_is_serving = on; }
void fake_pageable(int on) { fake_is_pageable = on; }
int fake_is_lost(void) { return fake_lost; }
size_t fake_total(void) { return fake_bytes; }
size_t fake_used_of(int device) { return fake_taken[device]; }
size_t fake_used(void) {
    size_t sum = 0;
    for (int i = 0; i < FAKE_DEVICES; i++) sum += fake_taken[i];
    return sum;
}

void fake_sticky(int code) {
    pthread_mutex_lock(&fake_lock);
    fake_lost = code;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

void fake_fail_next(const char *name, int code) {
    pthread_mutex_lock(&fake_lock);
    int i = 0;
    while (i < PLANS - 1 && plans[i].code) i++;
    (void)snprintf(plans[i].name, NAME, "%s", name);
    plans[i].code = code;
    pthread_mutex_unlock(&fake_lock);
}

/* How often the function was called since the last reset. */
int fake_calls(const char *name) {
    int count = 0;
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < CALLS && calls[i].name; i++)
        if (!strcmp(calls[i].name, name)) count = calls[i].count;
    pthread_mutex_unlock(&fake_lock);
    return count;
}

const char *fake_violation(int number) { return number < text_count ? texts[number] : NULL; }
