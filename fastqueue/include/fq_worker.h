/* fq_worker.h: the worker's state. All of it is private memory of the worker process, under one lock.
 *
 *   fq_former     the monitor: lock, output arena, and
 *     lanes[]     fq_attached: a lane's worker end, the input arena behind it, a record per slot
 *     models[]    fq_model: policy, signature, measured times, the queues of what waits
 *     queues[]    fq_queue: waiting requests of one model and one batch key, by rank (fq_policy.h), oldest first
 *     streams[]   fq_stream: two launch slots each, an fq_batch in each
 *
 * What launchers do with a batch (fq_batch.h) reads its parts and their requests without the lock: from FQ_BATCH_LAUNCHED
 * until it is done they belong to the launcher, and nobody else writes them.
 */
#ifndef FQ_WORKER_H
#define FQ_WORKER_H

#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <time.h>

#include "fq_output.h"
#include "fq_policy.h"
#include "fq_request.h"

enum {
    FQ_MAX_LANES = 64,
    FQ_MAX_STREAMS = 128,
    FQ_MAX_QUEUES = 1024, /* different shapes that wait at one time */
    FQ_MAX_PARTS = 1024,  /* of one batch */
    FQ_BUCKETS = 33,      /* of batch size, by powers of two */
    FQ_LAUNCH_SLOTS = 2
};

/* gRPC status codes that the queue itself gives. */
enum { FQ_OK = 0, FQ_CANCELLED = 1, FQ_DEADLINE = 4, FQ_NOT_FOUND = 5, FQ_EXHAUSTED = 8, FQ_INTERNAL = 13, FQ_UNAVAILABLE = 14 };

enum { FQ_RANKS = 2 * FQ_MAX_LEVELS };
_Static_assert(FQ_RANKS <= 64, "a queue has a bit for each rank");

typedef struct fq_queue {
    fq_request *head;
    struct fq_queue *next; /* of the same model; or in the free list */
    struct fq_model *model;
    uint64_t ranks;             /* bit r: requests of rank r are there */
    fq_request *last[FQ_RANKS]; /* of each rank whose bit is set */
} fq_queue;

typedef struct fq_model {
    uint32_t id; /* 0: unused */
    uint32_t group;
    uint32_t max_streams;
    uint32_t outputs;
    fq_policy policy;
    fq_signature signature;
    int64_t output_row_bytes[FQ_MAX_TENSORS]; /* -1: known only after the run */
    fq_queue *queues;
    uint32_t waiting; /* requests */
    uint32_t level_count;
    uint32_t default_level;
    fq_level levels[FQ_MAX_LEVELS];
    uint32_t queued[FQ_MAX_LEVELS]; /* requests that count against max_queue (fq_request_leaves) */
    uint32_t running; /* batches closed and not done */
    int64_t predicted_ns[FQ_BUCKETS];
    fq_share share;
    fq_model_stats *stats;
} fq_model;

/* The size of an output's rows: the same for all, or, when their ends are given (in bytes, one per row), each its own. */
typedef struct fq_sizes {
    uint64_t row_bytes;
    const uint64_t *row_ends;
} fq_sizes;

typedef struct fq_part {
    fq_request *request;
    uint32_t row; /* its first row within the request */
    uint32_t rows;
} fq_part;

enum fq_batch_state { FQ_BATCH_FREE, FQ_BATCH_CLOSED, FQ_BATCH_LAUNCHED };

typedef struct fq_batch {
    struct fq_former *former;
    struct fq_stream *stream;
    fq_model *model;
    int state;
    int reason;
    uint64_t number;
    uint32_t rows;
    uint32_t padding; /* rows that the model runs behind those: in the size that is counted, in no other number */
    uint32_t part_count;
    uint64_t counts[FQ_ENGINE_COUNTS]; /* added to the model's `engine` when the batch is complete */
    int64_t closed_ns;
    int64_t launched_ns;
    int64_t input_ns;   /* when the inputs were in place */
    int64_t compute_ns; /* when the outputs were computed */
    int64_t stalled_ns;    /* how long it waited for output memory, which is no fault of the model's */
    int64_t stalled_since; /* 0: it does not wait now */
    int slow;              /* it was counted as one */
    fq_extent block;    /* of the output arena; length 0: none */
    uint64_t answers;   /* where the answers start in it */
    int reserved;
    int stalled; /* it waits for output memory */
    int variable; /* some output's rows differ in size */
    uint64_t output_at[FQ_MAX_TENSORS]; /* offset of each output of the whole batch */
    fq_sizes sizes[FQ_MAX_TENSORS];
    fq_part parts[FQ_MAX_PARTS];
} fq_batch;

typedef struct fq_stream {
    int used;
    uint32_t group;
    uint32_t count; /* batches closed or launched: launch slots that are not FQ_BATCH_FREE */
    pthread_cond_t ready;
    fq_batch slots[FQ_LAUNCH_SLOTS];
} fq_stream;

typedef struct fq_attached {
    int used;
    int dead;             /* the front end is gone: nothing more is posted */
    uint32_t outstanding; /* requests that are not FQ_IDLE */
    int posted;           /* completions since the front bell was rung last */
    int eventfd;
    const unsigned char *arena;
    uint64_t arena_bytes;
    fq_request *requests; /* by slot */
    fq_extent *answers;   /* by slot: delivered and not released, length 0: none */
    fq_worker_lane end;
} fq_attached;

typedef struct fq_former {
    pthread_mutex_t lock;
    pthread_cond_t memory;  /* output memory was given back */
    pthread_cond_t drained; /* a request of a dead lane, or a batch of a removed model, ended */
    fq_worker_page *page;
    unsigned char *output_base;
    fq_output output;
    uint64_t joins_bytes[2];  /* output memory held by joins, of the head and of the tail: at most half of each */
    fq_punch *punch;          /* NULL: nothing is punched */
    int output_fd;            /* for `punch` */
    uint32_t memory_waiters;
    int closing;
    int64_t fixed_ns;         /* a test's clock; -1: CLOCK_MONOTONIC */
    int64_t sleep_until_ns;   /* what the former thread sleeps for; FQ_NEVER also while it is awake */
    int64_t next_deadline_ns; /* no deadline of a waiting request is earlier */
    uint64_t batch_count;
    uint32_t turn;
    uint32_t model_end;  /* no model or stream at or behind these has ever been used: what a step need not look at */
    uint32_t stream_end;
    fq_queue *free_queues;
    fq_attached lanes[FQ_MAX_LANES];
    fq_model models[FQ_MAX_MODELS];
    fq_stream streams[FQ_MAX_STREAMS];
    fq_queue queues[FQ_MAX_QUEUES];
} fq_former;

static inline int64_t fq_now(const fq_former *f) { return f->fixed_ns >= 0 ? f->fixed_ns : fq_monotonic_ns(); }

#endif
