/* memory.c: what a load may see, and which plain accesses race. The rules are in explorer.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "explorer.h"

enum { WORDS = 32, STORES = 48, ACCESSES = 256, LOCKS = 4 };

/* at[t]: how much of thread t's past is in mine. A thread's own entry counts its events. */
typedef struct clock {
    uint32_t at[EX_THREADS];
} clock;

typedef struct store {
    uint64_t value;
    clock release;              /* what an acquire load that sees it learns */
    uint32_t known[EX_THREADS]; /* when that thread first wrote or read it; 0: not yet */
} store;

typedef struct word {
    const void *address;
    int count;
    int newest_sc;
    store stores[STORES]; /* [0] is the initial value */
} word;

typedef struct access {
    const unsigned char *from;
    size_t bytes;
    int thread;
    uint32_t when;
    int writes;
} access;

#define LABEL_NAME(label, order, partner, why) #label,
const char *const ex_label_names[FQ_LABEL_COUNT] = {"-", FQ_LABELS(LABEL_NAME)};
const char *const ex_order_names[] = {"rlx", "acq", "rel", "sc", NULL};

int ex_weak_label, ex_weak_order;

typedef struct lock {
    const void *address;
    int holder;    /* -1: nobody */
    clock release; /* what the next holder learns */
} lock;

static clock clocks[EX_THREADS];
static lock locks[LOCKS];
static word words[WORDS];
static access accesses[ACCESSES];
static int word_count, access_count, lock_count;

void ex_memory_reset(void) {
    memset(clocks, 0, sizeof clocks);
    word_count = access_count = lock_count = 0;
}

static void too_small(const char *what) {
    fprintf(stderr, "explorer: a scenario needs more %s than memory.c has room for\n", what);
    exit(2);
}

/* ---- words ---- */

static uint64_t memory_read(const void *at, size_t bytes) {
    return bytes == 8 ? *(const uint64_t *)at : *(const uint32_t *)at;
}

/* Memory always holds the newest value: that is what set-up writes, and what the end reads. */
static void memory_write(void *at, size_t bytes, uint64_t value) {
    if (bytes == 8)
        *(uint64_t *)at = value;
    else
        *(uint32_t *)at = (uint32_t)value;
}

static word *word_at(const void *address, size_t bytes) {
    for (int i = 0; i < word_count; i++)
        if (words[i].address == address) return &words[i];
    if (word_count == WORDS) too_small("words");
    word *w = &words[word_count++];
    w->address = address;
    w->count = 1;
    w->newest_sc = 0;
    memset(&w->stores[0], 0, sizeof w->stores[0]);
    w->stores[0].value = memory_read(address, bytes);
    return w;
}

static uint32_t tick(void) { return ++clocks[ex_current].at[ex_current]; }

static void join(clock *mine, const clock *other) {
    for (int t = 0; t < EX_THREADS; t++)
        if (other->at[t] > mine->at[t]) mine->at[t] = other->at[t];
}

static int knows(const store *s) {
    for (int t = 0; t < EX_THREADS; t++)
        if (s->known[t] && clocks[ex_current].at[t] >= s->known[t]) return 1;
    return 0;
}

static int oldest_visible(const word *w, int order) {
    int oldest = order == FQ_SC ? w->newest_sc : 0;
    int i = w->count - 1;
    while (i > oldest && !knows(&w->stores[i])) i--;
    return i;
}

static int effective(int order, int label) {
    return label != FQ_LABEL_NONE && label == ex_weak_label ? ex_weak_order : order;
}

/* The counters of the worker page are written under one lock, and no other process decides anything by them: their
 * accesses are carried out and not explored. */
static int passive(int label) { return ex_current < 0 || label == FQ_LABEL_S1 || label == FQ_LABEL_S2; }

uint64_t fq_model_load(const void *address, size_t bytes, int order, int label) {
    if (passive(label)) return memory_read(address, bytes);
    ex_switch();
    order = effective(order, label);
    word *w = word_at(address, bytes);
    int seen = w->count - 1 - ex_choose(w->count - oldest_visible(w, order));
    store *s = &w->stores[seen];
    uint32_t when = tick();
    if (!s->known[ex_current]) s->known[ex_current] = when;
    if (order == FQ_ACQ || order == FQ_SC) join(&clocks[ex_current], &s->release);
    ex_trace("%-3s load  %-3s word %d -> %llu%s", ex_label_names[label], ex_order_names[order], (int)(w - words),
             (unsigned long long)s->value, seen < w->count - 1 ? "   (a newer store exists)" : "");
    return s->value;
}

static store *append(word *w, uint64_t value, int order) {
    if (w->count == STORES) too_small("stores");
    store *s = &w->stores[w->count++];
    memset(s, 0, sizeof *s);
    s->value = value;
    s->known[ex_current] = tick();
    if (order == FQ_REL || order == FQ_SC) s->release = clocks[ex_current];
    if (order == FQ_SC) w->newest_sc = w->count - 1;
    return s;
}

void fq_model_store(void *address, size_t bytes, uint64_t value, int order, int label) {
    if (!passive(label)) {
        ex_switch();
        order = effective(order, label);
        word *w = word_at(address, bytes);
        append(w, value, order);
        ex_trace("%-3s store %-3s word %d = %llu", ex_label_names[label], ex_order_names[order], (int)(w - words),
                 (unsigned long long)value);
    }
    memory_write(address, bytes, value);
}

uint64_t fq_model_xchg(void *address, size_t bytes, uint64_t value, int order, int label) {
    uint64_t old = memory_read(address, bytes);
    if (ex_current >= 0) {
        ex_switch();
        order = effective(order, label);
        word *w = word_at(address, bytes);
        clock carried = w->stores[w->count - 1].release;
        old = w->stores[w->count - 1].value;
        if (order == FQ_ACQ || order == FQ_SC) join(&clocks[ex_current], &carried);
        join(&append(w, value, order)->release, &carried);
        ex_trace("%-3s xchg  %-3s word %d = %llu, was %llu", ex_label_names[label], ex_order_names[order],
                 (int)(w - words), (unsigned long long)value, (unsigned long long)old);
    }
    memory_write(address, bytes, value);
    return old;
}

/* ---- locks ---- */

static lock *lock_at(const void *address) {
    for (int i = 0; i < lock_count; i++)
        if (locks[i].address == address) return &locks[i];
    if (lock_count == LOCKS) too_small("locks");
    locks[lock_count] = (lock){.address = address, .holder = -1};
    return &locks[lock_count++];
}

int ex_lock_holder(const void *address) { return lock_at(address)->holder; }

void ex_lock_taken(const void *address) {
    lock *l = lock_at(address);
    l->holder = ex_current;
    join(&clocks[ex_current], &l->release);
    (void)tick();
}

void ex_lock_left(const void *address) {
    lock *l = lock_at(address);
    (void)tick();
    l->holder = -1;
    l->release = clocks[ex_current];
}

/* ---- plain data ---- */

static int overlap(const access *a, const access *b) {
    return a->from < b->from + b->bytes && b->from < a->from + a->bytes;
}

static void plain(const void *from, size_t bytes, int writes) {
    if (ex_current < 0 || bytes == 0) return;
    if (access_count == ACCESSES) too_small("plain accesses");
    access *now = &accesses[access_count];
    *now = (access){(const unsigned char *)from, bytes, ex_current, tick(), writes};
    ex_trace("    plain %s of %zu bytes", writes ? "write" : "read", bytes);
    for (int i = 0; i < access_count; i++) {
        const access *then = &accesses[i];
        int ordered = clocks[ex_current].at[then->thread] >= then->when;
        if (ordered || !(then->writes || writes) || !overlap(then, now)) continue;
        ex_fail(then->writes && writes ? "data race: two unordered writes"
                : writes               ? "data race: a write over bytes that are still being read"
                                       : "data race: a read of bytes whose write is not ordered before it");
    }
    access_count++;
}

void fq_model_put(void *shared, const void *from, size_t bytes) {
    plain(shared, bytes, 1);
    memcpy(shared, from, bytes);
}

void fq_model_get(void *to, const void *shared, size_t bytes) {
    plain(shared, bytes, 0);
    memcpy(to, shared, bytes);
}
