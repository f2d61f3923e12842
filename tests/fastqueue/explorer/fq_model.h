/* fq_model.h: the seam. fq_atomic.h includes this file instead of <stdatomic.h> when FQ_MODEL is defined, so that the
 * shipped headers, not a copy of them, run inside the explorer.
 *
 * The types have the size and the layout of the real ones: a lane lies in memory as it does in production. Every atomic
 * access becomes a call that carries its ordering and its label; the label's ordering can be weakened at run
 * time. What the calls do is told in explorer.h.
 */
#ifndef FQ_MODEL_H
#define FQ_MODEL_H

#include <stddef.h>
#include <stdint.h>

typedef struct fq_a32 {
    uint32_t v;
} fq_a32;
typedef struct fq_a64 {
    uint64_t v;
} fq_a64;

enum fq_model_order { FQ_RLX, FQ_ACQ, FQ_REL, FQ_SC };

#define FQ_MODEL_ENUM(label, order, partner, why) FQ_LABEL_##label,
enum fq_model_label { FQ_LABEL_NONE, FQ_LABELS(FQ_MODEL_ENUM) FQ_LABEL_COUNT };
#undef FQ_MODEL_ENUM

uint64_t fq_model_load(const void *word, size_t bytes, int order, int label);
void fq_model_store(void *word, size_t bytes, uint64_t value, int order, int label);
uint64_t fq_model_xchg(void *word, size_t bytes, uint64_t value, int order, int label);

/* Plain data in shared memory; two accesses that are not ordered are a race, and a race is a failure. */
void fq_model_put(void *shared, const void *from, size_t bytes);
void fq_model_get(void *to, const void *shared, size_t bytes);

/* A futex on the 32-bit word: sleeps when its newest value is `wanted`, until a wake. Nothing else ends the sleep: no time
 * passes. But until when it would have slept can be asked at the end (ex_asleep_until). */
void fq_model_sleep(const void *word, uint32_t wanted, int64_t until_ns);
void fq_model_wake(const void *word);

#define FQ_MODEL_SIZE(a) sizeof((a)->v)
#define fq_load_rlx(a, label) fq_model_load(&(a)->v, FQ_MODEL_SIZE(a), FQ_RLX, FQ_LABEL_##label)
#define fq_load_acq(a, label) fq_model_load(&(a)->v, FQ_MODEL_SIZE(a), FQ_ACQ, FQ_LABEL_##label)
#define fq_load_sc(a, label) fq_model_load(&(a)->v, FQ_MODEL_SIZE(a), FQ_SC, FQ_LABEL_##label)
#define fq_store_rlx(a, x, label) fq_model_store(&(a)->v, FQ_MODEL_SIZE(a), (x), FQ_RLX, FQ_LABEL_##label)
#define fq_store_rel(a, x, label) fq_model_store(&(a)->v, FQ_MODEL_SIZE(a), (x), FQ_REL, FQ_LABEL_##label)
#define fq_store_sc(a, x, label) fq_model_store(&(a)->v, FQ_MODEL_SIZE(a), (x), FQ_SC, FQ_LABEL_##label)
#define fq_xchg_rlx(a, x, label) fq_model_xchg(&(a)->v, FQ_MODEL_SIZE(a), (x), FQ_RLX, FQ_LABEL_##label)
#define fq_data_put(dst, src, n) fq_model_put((dst), (src), (n))
#define fq_data_get(dst, src, n) fq_model_get((dst), (src), (n))

#endif
