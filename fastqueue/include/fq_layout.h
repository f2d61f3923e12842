/* fq_layout.h: everything that two processes see, byte for byte. No functions but size arithmetic.
 *
 * Four kinds of shared memory, each a memfd that is sealed against resizing and passed over a control socket:
 *
 *   lane          one per (front-end thread, worker). Written by both, each its own part:
 *     fq_lane_header   sizes (creator, once); front bell; count of cancels (front end)
 *     submission ring  entries fq_submission   front end -> worker
 *     completion ring  entries fq_completion   worker -> front end
 *     release ring     entries fq_release      front end -> worker
 *     slots            fq_slot[slots]          front end writes, worker reads
 *     texts            char[slots][FQ_TEXT]    worker writes, front end reads
 *   input arena   one per front-end thread. That thread writes, workers read.
 *   output arena  one per worker. That worker writes, front ends map it read-only.
 *   worker page   one per worker: its bell and its models' counters.
 *
 * The layout is an ABI between processes that may run different builds for the length of a restart: magic,
 * version and sizes are checked at attach (fq_lane_check_header and friends), and no size that lies in shared memory
 * is used after that: each side keeps the checked values in private memory.
 *
 * Whoever reads a record that the peer wrote copies it to private memory first, then checks the copy, then uses it.
 */
#ifndef FQ_LAYOUT_H
#define FQ_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "fq_atomic.h"
#include "fq_bell.h"
#include "fq_ring.h"

#define FQ_ABI_VERSION 6u
#define FQ_PAGE 4096u

#define FQ_MAGIC_LANE 0x3130454e414c5146ull   /* "FQLANE01" */
#define FQ_MAGIC_INPUT 0x31305455504e4951ull  /* "QINPUT01" */
#define FQ_MAGIC_OUTPUT 0x313054555054554full /* "OUTPUT01" */
#define FQ_MAGIC_WORKER 0x31304752454b5257ull /* "WRKERG01" */

enum {
    FQ_MAX_RANK = 8,
    FQ_MAX_TENSORS = 64,     /* inputs or outputs of one model */
    FQ_MAX_EXTENTS = 256,    /* of one request, all its inputs together */
    FQ_TEXT = 512,           /* bytes of an error message, terminating zero included */
    FQ_ALIGN = 64,           /* every tensor starts on such a boundary, in both arenas */
    FQ_MAX_SLOTS = 1u << 16, /* of one lane */
};

/* A piece of an arena, in bytes from the start of its mapping. */
typedef struct fq_extent {
    uint64_t offset;
    uint64_t length;
} fq_extent;

/* ---- the request: a fixed slot in the lane, and a header of variable size in the input arena ---- */

/* One input tensor. Its bytes are `extent_count` extents of the header, from `first_extent` on, in order; the table of its
 * row ends, where it has one, the `table_extents` behind them. */
typedef struct fq_tensor {
    uint32_t index; /* of the model's input */
    uint32_t rank;
    uint32_t first_extent;
    uint32_t extent_count;
    uint64_t length; /* bytes: the sum of its extents */
    int64_t dims[FQ_MAX_RANK];
    uint32_t table_extents; /* the next ones, of elements of variable size where the model batches: a u64 per row, its end */
    uint32_t reserved;
} fq_tensor;

/* Followed by fq_tensor[tensor_count], strictly ascending by index, then fq_extent[extent_count]. */
typedef struct fq_header {
    uint32_t bytes; /* of the whole header */
    uint32_t tensor_count;
    uint32_t extent_count;
    uint32_t reserved;
} fq_header;

#define FQ_HEADER_MAX                                                                                        \
    (sizeof(fq_header) + FQ_MAX_TENSORS * sizeof(fq_tensor) + FQ_MAX_EXTENTS * sizeof(fq_extent))

/* Written by the front end before it publishes the slot's number, and not again before the FINAL completion;
 * only `cancelled` changes in between. */
typedef struct fq_slot {
    fq_a32 cancelled;
    uint32_t model; /* id, never reused */
    uint32_t rows;  /* along the batch axis; 1 for a model that does not batch */
    uint32_t flags; /* none yet */
    int64_t arrival_ns;
    int64_t deadline_ns; /* CLOCK_MONOTONIC; INT64_MAX: none */
    fq_extent header;    /* of the input arena */
    uint64_t tenant;
    uint32_t priority; /* as it was asked for: 1 is the highest, 0 the model's default (fq_level_of) */
    uint32_t trace_flags;
    unsigned char trace_id[16];
    unsigned char span_id[8];
    unsigned char pad[40];
} fq_slot;

typedef struct fq_submission {
    uint32_t slot;
} fq_submission;

/* ---- the answer ---- */

enum {
    FQ_FINAL = 1u,
    FQ_AGAIN = 2u,    /* an error that may be gone when the same request is sent a little later */
    FQ_UNLAUNCHED = 4u /* no part of the request has come to an engine */
};

/* `status` is a gRPC status code: 0, or an error whose message is the slot's text. */
typedef struct fq_completion {
    uint32_t slot;
    uint32_t flags;
    uint32_t status;
    uint32_t text_bytes;
    fq_extent answer; /* of the output arena: an fq_answer; length 0: none */
    uint64_t batch;   /* number of the (last) batch it was in, 0: none */
    uint32_t batch_rows;
    uint32_t reason; /* why that batch closed, fq_reason */
    int64_t queue_ns;
    int64_t input_ns;
    int64_t compute_ns;
    int64_t output_ns;
    int64_t done_ns;
    unsigned char batch_span_id[8];
    unsigned char pad[32];
} fq_completion;

/* One output tensor: one slice of the output arena. */
typedef struct fq_slice {
    uint32_t index; /* of the model's output */
    uint32_t rank;
    fq_extent data;
    int64_t dims[FQ_MAX_RANK];
} fq_slice;

/* Followed by fq_slice[slice_count]. Written by the worker only: it may believe what it reads back. */
typedef struct fq_answer {
    uint32_t slice_count;
    uint32_t row;  /* of a part that waits for the others: its first row within the request; */
    uint64_t next; /* and the offset of the next part's answer, 0: none. Of a delivered answer: nothing */
} fq_answer;

static inline uint64_t fq_answer_bytes(uint32_t outputs) { return sizeof(fq_answer) + outputs * sizeof(fq_slice); }

/* The front end has let go of the answer of this slot's last completion. */
typedef struct fq_release {
    uint32_t slot;
} fq_release;

/* ---- the lane ---- */

typedef struct fq_lane_header {
    uint64_t magic;
    uint32_t version;
    uint32_t slots;       /* a power of two; also the capacity of submission and release ring */
    uint32_t completions; /* capacity of the completion ring, a power of two */
    uint32_t reserved;
    uint64_t bytes; /* of the whole lane */
    unsigned char pad0[FQ_LINE - 32];
    fq_bell front; /* the front end's wish to be woken */
    unsigned char pad1[FQ_LINE - sizeof(fq_bell)];
    fq_a64 cancels; /* how many cancel words were ever set */
    unsigned char pad2[FQ_LINE - sizeof(fq_a64)];
    fq_ring_control submission;
    fq_ring_control completion;
    fq_ring_control release;
} fq_lane_header;

#ifndef FQ_MODEL
_Static_assert(sizeof(fq_header) == 16 && sizeof(fq_tensor) == 96 && sizeof(fq_extent) == 16, "header layout");
_Static_assert(sizeof(fq_slot) == FQ_LINE, "a slot has a line of its own: neighbours belong to other requests");
_Static_assert(offsetof(fq_slot, arrival_ns) == 16 && offsetof(fq_slot, header) == 32, "slot layout");
_Static_assert(sizeof(fq_completion) == FQ_LINE, "a completion is a line");
_Static_assert(sizeof(fq_answer) == 16 && sizeof(fq_slice) == 88, "answer layout");
_Static_assert(offsetof(fq_lane_header, front) == FQ_LINE, "the bell has a line of its own");
_Static_assert(offsetof(fq_lane_header, cancels) == 2 * FQ_LINE, "the count of cancels has a line of its own");
_Static_assert(sizeof(fq_lane_header) == 9 * FQ_LINE, "lane header layout");
#endif

/* Where things lie in a lane. Every array starts on a line. */
static inline uint64_t fq_round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
static inline uint64_t fq_lane_submissions_at(void) { return sizeof(fq_lane_header); }
static inline uint64_t fq_lane_completions_at(uint32_t slots) {
    return fq_lane_submissions_at() + fq_round_up((uint64_t)slots * sizeof(fq_submission), FQ_LINE);
}
static inline uint64_t fq_lane_releases_at(uint32_t slots, uint32_t completions) {
    return fq_lane_completions_at(slots) + (uint64_t)completions * sizeof(fq_completion);
}
static inline uint64_t fq_lane_slots_at(uint32_t slots, uint32_t completions) {
    return fq_lane_releases_at(slots, completions) + fq_round_up((uint64_t)slots * sizeof(fq_release), FQ_LINE);
}
static inline uint64_t fq_lane_texts_at(uint32_t slots, uint32_t completions) {
    return fq_lane_slots_at(slots, completions) + (uint64_t)slots * sizeof(fq_slot);
}
static inline uint64_t fq_lane_bytes(uint32_t slots, uint32_t completions) {
    return fq_round_up(fq_lane_texts_at(slots, completions) + (uint64_t)slots * FQ_TEXT, FQ_PAGE);
}

/* ---- arenas: one page of header, then memory ---- */

typedef struct fq_arena_header {
    uint64_t magic;
    uint32_t version;
    uint32_t reserved;
    uint64_t bytes;      /* of the whole mapping, this page included */
    uint64_t head_bytes; /* of what lies before the sparse tail, this page included */
} fq_arena_header;

#ifndef FQ_MODEL
_Static_assert(sizeof(fq_arena_header) == 32, "layout of an arena's header");
#endif

/* ---- the worker page ---- */

enum {
    FQ_MAX_MODELS = 128, /* loaded at once on one worker: those that are served, and their successors while they are swapped */
    FQ_MAX_SIZES = 128  /* distinct batch sizes that are counted one by one */
};

enum fq_reason { FQ_REASON_FULL, FQ_REASON_WAIT, FQ_REASON_DEADLINE, FQ_REASONS };

typedef struct fq_count {
    fq_a64 count;
    fq_a64 ns;
} fq_count;

/* Executed batches of one size. */
typedef struct fq_size_stats {
    fq_a64 rows; /* with padding; 0: unused entry */
    fq_count input;
    fq_a64 compute_ns;
    fq_a64 output_ns;
} fq_size_stats;

enum { FQ_ENGINE_COUNTS = 4 }; /* what an engine counts of its batches besides; it knows their names */

typedef struct fq_model_stats {
    fq_a64 model; /* id, 0: unused */
    fq_a64 rows;  /* inference_count: rows executed, without padding */
    fq_a64 executions;
    fq_a64 last_unix_ms;
    fq_count success;
    fq_count fail;
    fq_count queue;
    fq_count input;
    fq_count compute;
    fq_count output;
    fq_a64 cancelled;
    fq_a64 expired;
    fq_a64 slow; /* batches that ran for longer than fq_slow_after_ns */
    fq_a64 pending_rows;
    fq_a64 padding_rows; /* rows that ran behind those of clients */
    fq_a64 engine[FQ_ENGINE_COUNTS];
    fq_a64 batches[FQ_REASONS];
    fq_size_stats sizes[FQ_MAX_SIZES];
} fq_model_stats;

typedef struct fq_worker_page {
    uint64_t magic;
    uint32_t version;
    uint32_t reserved;
    uint64_t bytes;
    unsigned char pad0[FQ_LINE - 24];
    fq_bell bell;
    unsigned char pad1[FQ_LINE - sizeof(fq_bell)];
    fq_model_stats models[FQ_MAX_MODELS];
} fq_worker_page;

#ifndef FQ_MODEL
_Static_assert(offsetof(fq_worker_page, bell) == FQ_LINE, "the futex has a line of its own");
_Static_assert(offsetof(fq_worker_page, models) == 2 * FQ_LINE, "counters start after the futex's line");
#endif

#endif
