/* fq_atomic.h: the only file that names C11 atomics.
 *
 * Every atomic access in fastqueue goes through one of the macros below and carries a label. The label's
 * row in FQ_LABELS says what ordering the access has, which access it pairs with, and what breaks without it.
 * A lint holds every use to its row. The explorer (tests/fastqueue/explorer) compiles these same headers with
 * FQ_MODEL, runs every interleaving of small scenarios under stale reads, then weakens one row at a time:
 * a row whose weakening goes unnoticed is a row that is too strong or a scenario that is missing.
 *
 * Orderings stand on the operations; there is no stand-alone fence anywhere (ThreadSanitizer misreads them).
 * The doorbell is the store-then-load pattern on two words (publish, then look for a sleeper; announce
 * sleep, then look for work): acquire and release do not order a store before a later load of another
 * word, so these four accesses are sequentially consistent, on both sides.
 *
 *      label  order    partner  what it orders
 */
#ifndef FQ_ATOMIC_H
#define FQ_ATOMIC_H

#include <stdint.h>

#define FQ_LABELS(X)                                                                                          \
    X(R0, rlx, "none", "attach reads both indices: the mapping was handed over through a socket")             \
    X(R1, sc, "R2 R3", "producer publishes entries; sc, because the bell is looked at next (D2)")             \
    X(R2, acq, "R1", "consumer observes entries before it reads them")                                        \
    X(R3, sc, "R1", "the sleeper's last look at a ring, after D1")                                            \
    X(R4, rel, "R5", "consumer frees entries after it has read them")                                         \
    X(R5, acq, "R4", "producer observes freed entries before it overwrites them")                             \
    X(D1, sc, "D2", "the sleeper announces that it will sleep; then it looks at every ring (R3, X5)")         \
    X(D2, sc, "D1", "the ringer looks for a sleeper, after it has published (R1, X3)")                        \
    X(D3, rlx, "D1", "one ringer takes the announcement; atomicity alone decides who wakes")                  \
    X(D4, rlx, "D1", "the sleeper is awake; a late ringer then wakes nobody, which is harmless")              \
    X(X0, rlx, "X2", "a claimed slot starts uncancelled; R1 of its publication orders it")                    \
    X(X1, rlx, "X2", "the front end cancels a slot; X3 orders it")                                            \
    X(X2, rlx, "X1", "the worker reads a cancel word, after X4 or as an early hint before launch")            \
    X(X3, sc, "X4 X5", "the front end announces that a cancel word changed; then it looks at the bell (D2)")  \
    X(X4, acq, "X3", "the worker observes the announcement before it reads cancel words")                     \
    X(X5, sc, "X3", "the sleeper's last look at the announcement, after D1")                                  \
    X(X6, rlx, "X3", "the front end reads its own count: it is the only writer")                              \
    X(S1, rlx, "S2", "a counter grows: one writer at a time, readers need no order between counters")         \
    X(S2, rlx, "S1", "a counter is read for a report")

#ifndef FQ_MODEL

#include <stdatomic.h>
#include <string.h>

typedef struct fq_a32 {
    _Atomic uint32_t v;
} fq_a32;
typedef struct fq_a64 {
    _Atomic uint64_t v;
} fq_a64;

#define fq_load_rlx(a, label) atomic_load_explicit(&(a)->v, memory_order_relaxed)
#define fq_load_acq(a, label) atomic_load_explicit(&(a)->v, memory_order_acquire)
#define fq_load_sc(a, label) atomic_load_explicit(&(a)->v, memory_order_seq_cst)
#define fq_store_rlx(a, x, label) atomic_store_explicit(&(a)->v, (x), memory_order_relaxed)
#define fq_store_rel(a, x, label) atomic_store_explicit(&(a)->v, (x), memory_order_release)
#define fq_store_sc(a, x, label) atomic_store_explicit(&(a)->v, (x), memory_order_seq_cst)
#define fq_xchg_rlx(a, x, label) atomic_exchange_explicit(&(a)->v, (x), memory_order_relaxed)

/* Plain data that the orderings above protect: the explorer checks these for races. */
#define fq_data_put(dst, src, n) memcpy((dst), (src), (n))
#define fq_data_get(dst, src, n) memcpy((dst), (src), (n))

#else
/* The explorer's own definitions of the same names, types fq_a32 and fq_a64 included. */
#include "fq_model.h"
#endif

#endif
