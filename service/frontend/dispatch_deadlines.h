/* dispatch_deadlines.h: which request's deadline comes next: a binary heap of pointers to timers that know their place,
 * so that an answered request leaves it at once. Memory is made when a lane is opened, never for a request.
 */
#ifndef HR_DISPATCH_DEADLINES_H
#define HR_DISPATCH_DEADLINES_H

#include <stdint.h>
#include <stdlib.h>

typedef struct hr_timer {
    int64_t at_ns;
    uint32_t place; /* in the heap, from 1; 0: not in it */
    uint32_t kind;  /* of what it is a part of, where a heap has several */
} hr_timer;

typedef struct hr_deadlines {
    hr_timer **heap; /* heap[1] is the earliest */
    uint32_t count;
    uint32_t room;
} hr_deadlines;

/* Room for `more` timers in addition: 0, or -1 when memory is out. */
static inline int hr_deadlines_grow(hr_deadlines *h, uint32_t more) {
    hr_timer **heap = realloc(h->heap, ((size_t)h->room + more + 1) * sizeof(hr_timer *));
    if (heap == NULL) return -1;
    h->heap = heap;
    h->room += more;
    return 0;
}

static inline void hr_deadlines_put(hr_deadlines *h, hr_timer *timer, uint32_t place) {
    h->heap[place] = timer;
    timer->place = place;
}

static inline void hr_deadlines_up(hr_deadlines *h, hr_timer *timer, uint32_t place) {
    for (; place > 1 && h->heap[place / 2]->at_ns > timer->at_ns; place /= 2)
        hr_deadlines_put(h, h->heap[place / 2], place);
    hr_deadlines_put(h, timer, place);
}

static inline void hr_deadlines_down(hr_deadlines *h, hr_timer *timer, uint32_t place) {
    for (uint32_t child = 2 * place; child <= h->count; child = 2 * place) {
        if (child < h->count && h->heap[child + 1]->at_ns < h->heap[child]->at_ns) child++;
        if (h->heap[child]->at_ns >= timer->at_ns) break;
        hr_deadlines_put(h, h->heap[child], place);
        place = child;
    }
    hr_deadlines_put(h, timer, place);
}

/* A time of INT64_MAX is none and needs no place. */
static inline void hr_deadlines_add(hr_deadlines *h, hr_timer *timer, int64_t at_ns) {
    timer->at_ns = at_ns;
    timer->place = 0;
    if (at_ns != INT64_MAX) hr_deadlines_up(h, timer, ++h->count);
}

static inline void hr_deadlines_remove(hr_deadlines *h, hr_timer *timer) {
    uint32_t place = timer->place;
    if (place == 0) return;
    hr_timer *last = h->heap[h->count--];
    timer->place = 0;
    if (last == timer) return;
    hr_deadlines_up(h, last, place);
    hr_deadlines_down(h, last, last->place);
}

static inline hr_timer *hr_deadlines_first(const hr_deadlines *h) { return h->count > 0 ? h->heap[1] : NULL; }

#endif
