/* Rings and bell with real threads: two producers, each with a ring, and one sleeper. Written for ThreadSanitizer. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "fq_bell.h"
#include "fq_ring.h"

enum { RINGS = 2, CAPACITY = 4, ENTRIES = 300000 };

static fq_bell bell;
static fq_ring_control controls[RINGS];
static uint64_t entries[RINGS][CAPACITY];
static fq_ring consumers[RINGS];

static void *produce(void *argument) {
    size_t me = (size_t)((fq_ring_control *)argument - controls);
    fq_ring ring;
    fq_ring_attach(&ring, &controls[me], entries[me], CAPACITY, sizeof entries[me][0], 1);
    for (uint64_t i = 0; i < ENTRIES; i++) {
        while (!fq_ring_push(&ring, &i)) sched_yield();
        fq_bell_ring(&bell, FQ_WANT_SUBMIT);
    }
    return NULL;
}

static uint64_t drain(uint64_t next[RINGS]) {
    uint64_t value, taken = 0;
    for (int i = 0; i < RINGS; i++)
        for (; fq_ring_pop(&consumers[i], &value); taken++)
            if (value != next[i]++) exit(1);
    return taken;
}

int main(void) {
    pthread_t threads[RINGS];
    uint64_t next[RINGS] = {0}, taken = 0;
    for (int i = 0; i < RINGS; i++) {
        fq_ring_attach(&consumers[i], &controls[i], entries[i], CAPACITY, sizeof entries[i][0], 0);
        if (pthread_create(&threads[i], NULL, produce, &controls[i]) != 0) return 2;
    }
    while ((taken += drain(next)) < RINGS * ENTRIES) {
        fq_bell_arm(&bell, FQ_WANT_SUBMIT);
        if (!fq_ring_waiting(&consumers[0]) && !fq_ring_waiting(&consumers[1])) fq_bell_sleep(&bell, FQ_WANT_SUBMIT, FQ_NEVER);
        fq_bell_disarm(&bell);
    }
    for (int i = 0; i < RINGS; i++) (void)pthread_join(threads[i], NULL);
    printf("%llu entries, each once and in order\n", (unsigned long long)taken);
    return 0;
}
