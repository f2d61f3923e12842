/* fake.h: a CUDA driver for tests, without a device.
 *
 *   state.c     pieces of memory, what every call begins with, controls
 *   devices.c   devices, their primary contexts, errors' names, how functions are found
 *   memory.c    address ranges, allocations, pools, pinned memory
 *   streams.c   streams and events
 *   work.c      copies, fills, computations, graphs of them
 *   nvml.c      libnvidia-ml.so.1: how much of a device is in use
 *
 * "Device memory" is memory of this process, and what is put on a stream is done by a thread of the stream, in order, so
 * results are real. What the driver would refuse is refused with its code. It keeps RULES besides; whoever breaks one is
 * named by a sentence, which the test's fixture finds (fake_violation):
 *
 *   - nothing on the default stream, and a context current in every thread that calls
 *   - never more than two batches on a stream; one begins with the first copy to the device after a computation
 *   - after fake_serving(1) memory comes from pools alone
 *   - a copy's host side lies in registered memory (but after fake_pageable(1)), and is not written where it was registered
 *     as read-only; its device side in memory that is mapped, and opened to the stream's device
 *   - a place's scratch is used by one stream alone
 *   - what a captured graph uses is neither unmapped nor freed while the graph lives, nor is what is on a stream
 *
 * A test's computation is cuLaunchHostFunc. Where its data begins with a fake_compute the driver keeps a copy of that, and
 * checks what it names, when it is put on the stream and when it is done; otherwise the function gets the data as it is.
 *
 * One lock is over everything: `fake_lock`; functions whose comment says so are called with it.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_WRONG_THREAD = 908,
};
enum { FAKE_DEVICES = 8, FAKE_PIECES = 4096, FAKE_PAGE = 2 << 20, FAKE_MAGIC = 0x46414b45, FAKE_NODES = 64 };

typedef struct fake_compute { /* `count` floats at x and at y */
    uint64_t magic, scratch, scratch_bytes, x, y, count;
} fake_compute;

/* ---- state ---- */

#pragma GCC visibility push(hidden) /* nobody else in the process sees these names */

typedef struct context {
    int device, retained;
} context;

typedef struct piece {
    uint64_t start, bytes;
    void *owner; /* a pool, an allocation that is mapped, or the stream of a scratch */
    int device, open, freed, read_only;
} piece;

typedef struct pieces {
    piece all[FAKE_PIECES];
    int top;
} pieces;

extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;
extern pieces fake_reserved, fake_mapped, fake_pinned, fake_scratches;
extern size_t fake_bytes, fake_taken[FAKE_DEVICES];
extern int fake_device_count, fake_is_serving, fake_lost, fake_is_pageable;
extern __thread context *fake_current;

void violation(const char *format, ...) __attribute__((format(printf, 1, 2))); /* lock held */
CUresult take(int device, size_t bytes);                                       /* lock held */
void not_while_serving(const char *what);                                      /* lock held */

void drop_contexts(void);                                                      /* lock held */

/* Lists of memory; lock held. */
piece *put(pieces *list, uint64_t start, uint64_t bytes);
piece *at(pieces *list, uint64_t start);
piece *overlapping(pieces *list, uint64_t start, uint64_t bytes);
typedef int accepts(const piece *p, int device);
int within(pieces *list, uint64_t start, uint64_t bytes, accepts *accept, int device); /* pieces that touch are one */

/* What a call returns at once: a failure that the test planned, or the loss of the device; OK. */
CUresult enter(const char *name);
/* The same for a call that needs a context. */
CUresult enter_current(const char *name);
/* The same for one that a thread must not make while it captures. */
CUresult enter_uncaptured(const char *name);
#define ENTER(kind) do { CUresult code_ = kind(__func__); if (code_) return code_; } while (0)

/* ---- streams ---- */

typedef struct event {
    int recorded, done, waited; /* waited: operations on streams that have yet to look at it */
    unsigned flags;
    int destroyed;
    int64_t ns;
} event;

typedef struct graph graph;

typedef enum { COPY, FILL, COMPUTE, CALL, RECORD, WAIT, GRAPH, FREE } kind;

typedef struct op {
    struct op *next;
    kind kind;
    uint64_t to, from;
    size_t bytes;
    int value, to_device, from_device; /* which sides of a copy the device has */
    long batch;
    event *event;
    graph *graph;
    void (*fn)(void *);
    void *data;
    fake_compute compute;
    int dropped;
} op;

struct graph {
    op nodes[FAKE_NODES];
    int count;
    struct graph *next; /* of those that can be launched */
};

typedef struct stream {
    pthread_t thread, capturer;
    context *context;
    op *first, *last, *running;
    graph *capture;
    int capture_lost;
    long batch;
    int computed, held, closing;
    struct stream *next;
} stream;

extern stream *fake_streams;
extern graph *fake_graphs;
extern __thread stream *fake_capturing;

/* Puts an operation on a stream, or into what is captured there. */
CUresult push(stream *s, op what);
/* Does an operation of a stream, on its thread; without the lock. */
void perform(stream *s, op *o);
void drop_streams(void); /* lock held: what is on streams is not done any more, and nothing is held */

/* ---- who uses memory; lock held ---- */

/* What an operation does with memory is allowed; otherwise what is wrong is recorded. `begins`: it is not on a stream yet. */
int allowed(const stream *s, const op *o, int begins);
/* Records that memory goes away under a captured graph, or under work on a stream. `how`: "unmapped", "freed". */
void check_unused(uint64_t start, uint64_t bytes, const char *how);
void give_back(uint64_t start);

#pragma GCC visibility pop

#endif
