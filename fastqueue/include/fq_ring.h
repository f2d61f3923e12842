/* fq_ring.h: a bounded ring with one producer and one consumer, in memory shared by two processes.
 *
 *   control block, 256 bytes                      entries, `capacity` x `entry_bytes`
 *   +0    tail (u64)  written by the producer      [ 0 ][ 1 ] ... [ capacity - 1 ]
 *   +128  head (u64)  written by the consumer
 *
 * tail and head are free-running: they count entries since the ring was made, are compared only through
 * their unsigned difference, and never wrap in a lifetime. Entry i lives at i modulo capacity (a power of two).
 * An entry i is valid if and only if head <= i < tail.
 *
 * PRODUCER                                         CONSUMER
 *   1. room?  tail - head < capacity (R5)            1. entries?  head < tail (R2)
 *   2. write the entry                               2. copy the entry out
 *   3. publish: tail + 1 (R1)                        3. free it: head + 1 (R4)
 *
 * Each side keeps its own index and the last index it saw of its peer in private memory (fq_ring): it never
 * reads back what it wrote, and reads the peer's line only when the remembered index does not suffice. An index
 * that the peer wrote is believed only so far as it keeps 0 <= tail - head <= capacity: a peer gone mad can
 * stall its own ring or fill it with rubbish, and cannot lead this side outside the entries.
 *
 * There is no state between these steps that a death could leave: a producer that dies before R1 has
 * published nothing, a consumer that dies before R4 has freed nothing. What is left is read or dropped by the
 * survivor alone.
 */
#ifndef FQ_RING_H
#define FQ_RING_H

#include <stddef.h>
#include <stdint.h>

#include "fq_atomic.h"

#define FQ_LINE 128 /* two x86-64 lines: the prefetcher fetches them in pairs */

typedef struct fq_ring_control {
    fq_a64 tail;
    unsigned char pad0[FQ_LINE - sizeof(fq_a64)];
    fq_a64 head;
    unsigned char pad1[FQ_LINE - sizeof(fq_a64)];
} fq_ring_control;

#ifndef FQ_MODEL
_Static_assert(offsetof(fq_ring_control, head) == FQ_LINE, "tail and head must be a line apart");
_Static_assert(sizeof(fq_ring_control) == 2 * FQ_LINE, "the control block is part of the lane's layout");
#endif

/* One side's private view. */
typedef struct fq_ring {
    fq_ring_control *control;
    unsigned char *entries;
    uint64_t own;  /* the producer's tail, or the consumer's head */
    uint64_t peer; /* the other index, as last seen */
    uint32_t mask; /* capacity - 1 */
    uint32_t entry_bytes;
} fq_ring;

static inline uint32_t fq_ring_capacity(const fq_ring *ring) { return ring->mask + 1; }

static inline void fq_ring_attach(fq_ring *ring, fq_ring_control *control, void *entries, uint32_t capacity,
                                  uint32_t entry_bytes, int producer) {
    uint64_t tail = fq_load_rlx(&control->tail, R0);
    uint64_t head = fq_load_rlx(&control->head, R0);
    ring->control = control;
    ring->entries = (unsigned char *)entries;
    ring->own = producer ? tail : head;
    ring->peer = producer ? head : tail;
    ring->mask = capacity - 1;
    ring->entry_bytes = entry_bytes;
}

static inline unsigned char *fq_ring_entry(const fq_ring *ring, uint64_t index) {
    return ring->entries + (size_t)(index & ring->mask) * ring->entry_bytes;
}

/* Producer: how many entries may be pushed now. */
static inline uint32_t fq_ring_room(fq_ring *ring) {
    uint64_t used = ring->own - ring->peer;
    if (used > ring->mask) {
        uint64_t head = fq_load_acq(&ring->control->head, R5);
        if (ring->own - head <= (uint64_t)ring->mask + 1) ring->peer = head;
        used = ring->own - ring->peer;
    }
    return used > ring->mask ? 0 : (uint32_t)((uint64_t)ring->mask + 1 - used);
}

/* Producer: 1 when pushed, 0 when the ring is full. The caller rings the consumer's bell afterwards. */
static inline int fq_ring_push(fq_ring *ring, const void *entry) {
    if (fq_ring_room(ring) == 0) return 0;
    fq_data_put(fq_ring_entry(ring, ring->own), entry, ring->entry_bytes);
    ring->own++;
    fq_store_sc(&ring->control->tail, ring->own, R1);
    return 1;
}

static inline int fq_ring_believe(fq_ring *ring, uint64_t tail) {
    if (tail - ring->own > (uint64_t)ring->mask + 1) return 0;
    ring->peer = tail;
    return tail != ring->own;
}

/* Consumer: 1 when an entry was copied out, 0 when there is none. */
static inline int fq_ring_pop(fq_ring *ring, void *entry) {
    if (ring->peer == ring->own && !fq_ring_believe(ring, fq_load_acq(&ring->control->tail, R2))) return 0;
    fq_data_get(entry, fq_ring_entry(ring, ring->own), ring->entry_bytes);
    ring->own++;
    fq_store_rel(&ring->control->head, ring->own, R4);
    return 1;
}

/* Consumer about to sleep, after it has announced so (fq_bell_arm): 1 when there is something to do. Reads no
 * entry, and remembers nothing: the pop that follows observes the tail for itself. */
static inline int fq_ring_waiting(const fq_ring *ring) {
    uint64_t entries = fq_load_sc(&ring->control->tail, R3) - ring->own;
    return entries != 0 && entries <= (uint64_t)ring->mask + 1; /* what pop would not believe is nothing to wake for */
}

/* The number of the broken invariant, 0 when all hold. Only while neither side is at work. */
static inline int fq_ring_check(const fq_ring_control *control, uint32_t capacity) {
    uint64_t tail = fq_load_rlx(&control->tail, R0);
    uint64_t head = fq_load_rlx(&control->head, R0);
    if (capacity == 0 || (capacity & (capacity - 1)) != 0) return 1;
    if (tail - head > capacity) return 2;
    return 0;
}

#endif
