/* launch.h: what is per row, and what waits, on a device's stream.
 *
 *   hr_pinned     memory that the device reads and writes by itself; copies look here which that is
 *   hr_launch     a launch slot: the events, the staging memory and the list of copies of one batch at a time
 *     hr_copy_in    the batch's rows to the device: one call for all pieces of all inputs
 *     hr_finish     the outputs to the output arena, and the event that says that all is done
 *   hr_completer  a thread that waits for the batches of one stream, in order, and answers each
 *
 * Rows go straight from the arenas where those are pinned. Tiny pieces are gathered into the slot's staging memory first:
 * one copy costs the device what a row of some hundred bytes does. What is not pinned goes through the staging memory too,
 * as long as there is room, and otherwise as it is, which the driver does slowly; that is counted.
 *
 * A slot belongs to the launcher until hr_completer_push, then to the completer until the batch is answered. The answer is
 * what lets the former give the launcher another batch, and batches are answered in order: so a slot is free when its
 * turn comes.
 */
#ifndef HR_LAUNCH_H
#define HR_LAUNCH_H

#include <pthread.h>

#include "cuda_api.h"
#include "fq_batch.h"
#include "fq_control.h"
#include "fq_copies.h"

enum {
    HR_PINNED_MAX = 256,
    HR_QUEUE = 4,       /* of a completer: more than a stream has launch slots */
    HR_STICKY_MAX = 32, /* codes after which the context is lost */
    HR_TINY = 2048,     /* bytes of a piece, on average, below which pieces are gathered */
};

/* The device reads `bytes` from `address` on by itself from now on; `read_only`: it never writes them. There are HR_PINNED_MAX
 * such ranges at most: one more is HR_CUDA_OUT_OF_MEMORY. */
CUresult hr_pinned_register(void *address, size_t bytes, int read_only);
CUresult hr_pinned_unregister(void *address);

typedef struct hr_completer hr_completer;
typedef void hr_failed(void *owner, int code);

typedef struct hr_launch {
    hr_completer *completer;
    CUstream stream;
    CUevent input, computed, done;
    unsigned char *staging;
    size_t staging_bytes, staging_used;
    CUdeviceptr *to, *from; /* copies of one call */
    size_t *sizes;
    size_t room, count;
    fq_copy *pieces;
    uint32_t piece_room;
    fq_batch *batch;
    fq_shape shapes[FQ_MAX_TENSORS];
} hr_launch;

/* Events and lists. HR_CUDA_SUCCESS, or what failed; then hr_launch_free, too. */
CUresult hr_launch_init(hr_launch *l, hr_completer *completer, CUstream stream, void *staging, size_t staging_bytes);
void hr_launch_free(hr_launch *l);

typedef struct hr_input {
    CUdeviceptr to;
    uint64_t row_bytes;
} hr_input;

typedef struct hr_result {
    CUresult code;
    uint32_t fallbacks; /* pieces that were copied from memory that is not pinned */
} hr_result;

/* Issues the batch's inputs, with zeros behind its rows up to `padded_rows`. -1 as a code: no memory for the list. */
hr_result hr_copy_in(hr_launch *l, fq_batch *b, const hr_input *inputs, uint32_t count, uint32_t padded_rows);

typedef struct hr_output {
    CUdeviceptr from;
    void *to;
    uint64_t bytes;
} hr_output;

CUresult hr_finish(hr_launch *l, const hr_output *outputs, uint32_t count);

struct hr_completer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    hr_launch *queue[HR_QUEUE];
    uint32_t first, count;
    int closing;
    CUcontext context;
    int sticky[HR_STICKY_MAX];
    uint32_t sticky_count;
    hr_failed *failed;
    void *owner;
};

int hr_completer_start(hr_completer *c);
void hr_completer_push(hr_completer *c, hr_launch *l); /* l->batch and l->shapes are set */
void hr_completer_stop(hr_completer *c);               /* what was pushed is answered */

#endif
