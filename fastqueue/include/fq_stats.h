/* fq_stats.h: what the worker counts, in its page, and the execution times it learns.
 *
 * Counters are written under the worker's lock and read by other processes at any time. They only grow; each is
 * right by itself, and a reader that needs two of them to agree reads them when nothing runs.
 */
#ifndef FQ_STATS_H
#define FQ_STATS_H

#include "fq_worker.h"

static inline void fq_add(fq_a64 *counter, uint64_t n) {
    fq_store_rlx(counter, fq_load_rlx(counter, S2) + n, S1);
}

static inline void fq_count_one(fq_count *c, int64_t ns) {
    fq_add(&c->count, 1);
    fq_add(&c->ns, ns > 0 ? (uint64_t)ns : 0);
}

/* A gauge: it may go down. */
static inline void fq_stats_pending(fq_model_stats *stats, int64_t rows) { fq_add(&stats->pending_rows, (uint64_t)rows); }

static inline fq_size_stats *fq_stats_size(fq_model_stats *stats, uint32_t rows) {
    for (uint32_t i = 0; i < FQ_MAX_SIZES; i++) {
        fq_size_stats *size = &stats->sizes[(rows + i) % FQ_MAX_SIZES];
        uint64_t have = fq_load_rlx(&size->rows, S2);
        if (have == 0) fq_store_rlx(&size->rows, rows, S1);
        if (have == 0 || have == rows) return size;
    }
    return NULL; /* more sizes than entries: counted in the sums only */
}

static inline void fq_stats_batch(const fq_batch *b, int64_t now, uint64_t unix_ms) {
    fq_model_stats *stats = b->model->stats;
    fq_size_stats *size = fq_stats_size(stats, b->rows + b->padding);
    fq_add(&stats->rows, b->rows);
    fq_add(&stats->executions, 1);
    fq_add(&stats->padding_rows, b->padding);
    for (uint32_t i = 0; i < FQ_ENGINE_COUNTS; i++) fq_add(&stats->engine[i], b->counts[i]);
    fq_add(&stats->batches[b->reason], 1);
    fq_store_rlx(&stats->last_unix_ms, unix_ms, S1);
    if (!size) return;
    fq_count_one(&size->input, b->input_ns - b->launched_ns);
    fq_add(&size->compute_ns, (uint64_t)(b->compute_ns - b->input_ns));
    fq_add(&size->output_ns, (uint64_t)(now - b->compute_ns));
}

static inline void fq_stats_success(fq_model_stats *stats, const fq_request *r, int64_t now) {
    fq_count_one(&stats->success, now - r->slot.arrival_ns);
    fq_count_one(&stats->queue, r->taken_ns - r->slot.arrival_ns);
    fq_count_one(&stats->input, r->input_ns);
    fq_count_one(&stats->compute, r->compute_ns);
    fq_count_one(&stats->output, r->output_ns);
}

static inline void fq_stats_failure(fq_model_stats *stats, const fq_request *r, int64_t now) {
    fq_count_one(&stats->fail, now - r->slot.arrival_ns);
    if (r->status == FQ_CANCELLED) fq_add(&stats->cancelled, 1);
    if (r->status == FQ_DEADLINE) fq_add(&stats->expired, 1);
}

/* ---- execution times, by powers of two of the batch size ---- */

static inline uint32_t fq_bucket(uint32_t rows) {
    return rows <= 1 ? 0 : 32u - (uint32_t)__builtin_clz(rows - 1);
}

/* A moving average that forgets a batch in eight. */
static inline void fq_learn(fq_model *model, uint32_t rows, int64_t ns) {
    int64_t *known = &model->predicted_ns[fq_bucket(rows)];
    if (ns < 1) ns = 1;
    *known = *known == 0 ? ns : *known + (ns - *known) / 8;
}

/* Predicted execution time of a batch: that of the nearest known size, larger sizes first; 0 when nothing is known. */
static inline int64_t fq_predict(const fq_model *model, uint32_t rows) {
    uint32_t bucket = fq_bucket(rows);
    for (uint32_t i = bucket; i < FQ_BUCKETS; i++)
        if (model->predicted_ns[i]) return model->predicted_ns[i];
    for (uint32_t i = bucket; i-- > 0;)
        if (model->predicted_ns[i]) return model->predicted_ns[i];
    return 0;
}

#endif
