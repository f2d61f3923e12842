/* fq_request.h: the worker's private record of one request, and the check of what the front end wrote.
 *
 * A slot number that arrives on the submission ring is only the name of memory that another process can write. So the
 * worker copies the slot and its header here, checks the copy against the arena's bounds and the model's inputs, and
 * from then on reads nothing but the copy (and the cancel word, which is meant to change). The tensors' bytes alone stay
 * in the arena: whatever they hold, they are data.
 *
 * A request of more rows than fit into a batch is taken in parts: `next_row` says how many rows have been taken,
 * `parts` how many parts are on their way. It is done when all rows have been taken, or an error ended it, and no part
 * is out any more.
 */
#ifndef FQ_REQUEST_H
#define FQ_REQUEST_H

#include <string.h>

#include "fq_lane.h"

enum fq_request_state {
    FQ_IDLE,    /* the slot is not ours */
    FQ_WAITING, /* in a queue, with rows left to take */
    FQ_RUNNING  /* every row is taken, or an error ended it; parts are out */
};

struct fq_queue;
struct fq_model;

typedef struct fq_request {
    struct fq_request *next;
    struct fq_request *prev;
    struct fq_queue *queue;
    struct fq_model *model;
    unsigned char *header; /* private copy: fq_header, tensors, extents; FQ_HEADER_MAX bytes */
    uint32_t lane;
    uint32_t number; /* of the slot */
    int state;
    uint32_t level;
    uint32_t rank;   /* fq_rank */
    uint32_t queued; /* counts as one that waits (fq_request_leaves) */
    uint32_t flags;  /* of its completion, beside FQ_FINAL */
    int64_t queue_until_ns; /* the end of its queue time-out, FQ_NEVER: none, or it has had its effect */
    uint32_t next_row;
    uint32_t parts;
    uint32_t rows_done;
    uint32_t status; /* gRPC code of the first error, 0: none */
    uint32_t text_bytes;
    uint64_t key; /* hash of what must agree within a batch */
    uint64_t join;       /* offset of the block that collects the parts' outputs, 0: none */
    uint64_t join_bytes;
    uint64_t join_key;   /* hash of the row sizes it was laid out for */
    uint64_t chain;      /* offset of the first part's answer, while rows that differ in size are collected; 0: none */
    int64_t taken_ns;    /* launch of its first part */
    int64_t input_ns;
    int64_t compute_ns;
    int64_t output_ns;
    uint64_t batch;
    uint32_t batch_rows;
    uint32_t reason;
    fq_extent answer;
    fq_slot slot; /* private copy */
} fq_request;

static inline const fq_header *fq_request_header(const fq_request *r) { return (const fq_header *)r->header; }

static inline const fq_tensor *fq_request_tensors(const fq_request *r) {
    return (const fq_tensor *)(r->header + sizeof(fq_header));
}

static inline const fq_extent *fq_request_extents(const fq_request *r) {
    return (const fq_extent *)(fq_request_tensors(r) + fq_request_header(r)->tensor_count);
}

/* The tensor of input `index`, or NULL. */
static inline const fq_tensor *fq_request_tensor(const fq_request *r, uint32_t index) {
    const fq_tensor *tensors = fq_request_tensors(r);
    uint32_t count = fq_request_header(r)->tensor_count;
    if (index < count && tensors[index].index == index) return &tensors[index];
    for (uint32_t i = 0; i < count; i++)
        if (tensors[i].index == index) return &tensors[i];
    return NULL;
}

static inline uint64_t fq_header_bytes(uint32_t tensors, uint32_t extents) {
    return sizeof(fq_header) + tensors * sizeof(fq_tensor) + extents * sizeof(fq_extent);
}

static inline int fq_extent_within(const fq_extent *e, uint64_t bytes) {
    return e->offset >= FQ_PAGE && e->offset <= bytes && e->length <= bytes - e->offset;
}

/* What a model's requests must look like. */
typedef struct fq_signature {
    uint32_t inputs;
    uint32_t batched;                        /* 0: every request is a batch of its own, axis 0 is like the others */
    uint32_t element_bytes[FQ_MAX_TENSORS];  /* of each input; 0: elements of variable size */
} fq_signature;

/* dims times element size, or -1 when a dimension is negative or the product does not fit. */
static inline int64_t fq_tensor_bytes(const fq_tensor *t, uint32_t element_bytes) {
    int64_t n = (int64_t)element_bytes;
    for (uint32_t i = 0; i < t->rank; i++)
        if (t->dims[i] < 0 || __builtin_mul_overflow(n, t->dims[i], &n)) return -1;
    return n;
}

/* Whether a table of row ends has `bytes` bytes, all of them words within the arena. */
static inline int fq_table_check(const fq_extent *extents, uint32_t count, uint64_t bytes, uint64_t arena_bytes) {
    for (uint32_t i = 0; i < count; i++) {
        if (!fq_extent_within(&extents[i], arena_bytes) || extents[i].length > bytes) return 0;
        if (extents[i].offset % sizeof(uint64_t) != 0 || extents[i].length % sizeof(uint64_t) != 0) return 0;
        bytes -= extents[i].length;
    }
    return bytes == 0;
}

static inline int fq_tensor_check(const fq_tensor *t, const fq_extent *extents, const fq_signature *signature,
                                  uint32_t rows, uint64_t arena_bytes) {
    uint64_t sum = 0;
    if (t->index >= signature->inputs || t->rank > FQ_MAX_RANK) return 11;
    for (uint32_t i = 0; i < t->extent_count; i++) {
        if (!fq_extent_within(&extents[t->first_extent + i], arena_bytes)) return 12;
        sum += extents[t->first_extent + i].length;
    }
    if (sum != t->length) return 13;
    if (signature->batched && (t->rank == 0 || t->dims[0] != (int64_t)rows)) return 14;
    uint32_t element_bytes = signature->element_bytes[t->index];
    uint64_t table = element_bytes == 0 && signature->batched ? rows * sizeof(uint64_t) : 0;
    if (!fq_table_check(&extents[t->first_extent + t->extent_count], t->table_extents, table, arena_bytes)) return 17;
    if (element_bytes != 0 && fq_tensor_bytes(t, element_bytes) != (int64_t)t->length) return 15;
    return 0;
}

/* Copies the header of a request whose slot is copied already and checks both: the number of the broken rule, or 0. */
static inline int fq_request_load(fq_request *r, const unsigned char *arena, uint64_t arena_bytes) {
    const fq_extent *at = &r->slot.header;
    if (!fq_extent_within(at, arena_bytes) || at->offset % 8 != 0) return 1;
    if (at->length < sizeof(fq_header) || at->length > FQ_HEADER_MAX) return 2;
    fq_data_get(r->header, arena + at->offset, at->length);
    const fq_header *h = fq_request_header(r);
    if (h->tensor_count > FQ_MAX_TENSORS || h->extent_count > FQ_MAX_EXTENTS) return 3;
    if (h->bytes != at->length || h->bytes != fq_header_bytes(h->tensor_count, h->extent_count)) return 4;
    return 0;
}

static inline int fq_request_check(const fq_request *r, const fq_signature *signature, uint64_t arena_bytes) {
    const fq_header *h = fq_request_header(r);
    const fq_tensor *tensors = fq_request_tensors(r);
    uint32_t extents = 0;
    if (!signature->batched && r->slot.rows != 1) return 5;
    for (uint32_t i = 0; i < h->tensor_count; i++) {
        if (i > 0 && tensors[i].index <= tensors[i - 1].index) return 6;
        if (tensors[i].first_extent != extents || tensors[i].extent_count > h->extent_count - extents) return 7;
        extents += tensors[i].extent_count;
        if (tensors[i].table_extents > h->extent_count - extents) return 7;
        extents += tensors[i].table_extents;
        int broken = fq_tensor_check(&tensors[i], fq_request_extents(r), signature, r->slot.rows, arena_bytes);
        if (broken) return broken;
    }
    return extents == h->extent_count ? 0 : 8;
}

static inline uint64_t fq_request_bytes(const fq_request *r) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < fq_request_header(r)->tensor_count; i++) bytes += fq_request_tensors(r)[i].length;
    return bytes;
}

/* ---- the batch key: which inputs are there, and their dimensions behind the batch axis ---- */

static inline uint64_t fq_mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 29);
}

static inline uint64_t fq_request_key(const fq_request *r) {
    const fq_tensor *t = fq_request_tensors(r);
    uint64_t hash = fq_request_header(r)->tensor_count;
    for (uint32_t i = 0; i < fq_request_header(r)->tensor_count; i++) {
        hash = fq_mix(hash, ((uint64_t)t[i].index << 32) | t[i].rank);
        for (uint32_t d = 1; d < t[i].rank; d++) hash = fq_mix(hash, (uint64_t)t[i].dims[d]);
    }
    return hash;
}

static inline int fq_tensor_same_key(const fq_tensor *a, const fq_tensor *b) {
    if (a->index != b->index || a->rank != b->rank) return 0;
    return a->rank < 2 || memcmp(a->dims + 1, b->dims + 1, (a->rank - 1) * sizeof(int64_t)) == 0;
}

/* Equal hashes are a hint; this is the truth. */
static inline int fq_request_same_key(const fq_request *a, const fq_request *b) {
    uint32_t count = fq_request_header(a)->tensor_count;
    if (a->key != b->key || count != fq_request_header(b)->tensor_count) return 0;
    for (uint32_t i = 0; i < count; i++)
        if (!fq_tensor_same_key(&fq_request_tensors(a)[i], &fq_request_tensors(b)[i])) return 0;
    return 1;
}

#endif
