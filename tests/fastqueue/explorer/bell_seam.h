/* bell_seam.h: sleep and wake of fq_bell.h, on the explorer's futex. */
#ifndef BELL_SEAM_H
#define BELL_SEAM_H

#include "fq_bell.h"

#ifndef FQ_BELL_SEAM
#define FQ_NEVER INT64_MAX
static inline int64_t fq_monotonic_ns(void) { return 0; }
static inline void fq_bell_wake(fq_bell *bell) { fq_model_wake(&bell->wanted); }
static inline void fq_bell_ring(fq_bell *bell, uint32_t event) {
    if (fq_bell_take(bell, event)) fq_bell_wake(bell);
}
static inline void fq_bell_kick(fq_bell *bell) {
    (void)fq_xchg_rlx(&bell->wanted, 0, D3);
    fq_bell_wake(bell);
}
static inline void fq_bell_sleep(fq_bell *bell, uint32_t wanted, int64_t until_ns) {
    fq_model_sleep(&bell->wanted, wanted, until_ns);
}
#endif

#endif
