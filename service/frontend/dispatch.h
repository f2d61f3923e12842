/* dispatch.h: one front-end thread between its clients and the workers. No sockets, no Python: an event loop in any
 * language hands it messages and takes answers.
 *
 * A thread owns an input arena, one lane per worker, one eventfd that all its workers ring, and a table of
 * models. Everything here is called by that thread alone, and nothing here sleeps.
 *
 * THE LIFE OF A REQUEST, and who holds what
 *
 *   CLAIMED    hr_dispatch_submit   The message was scanned, bound to a model and found valid, and the model's
 *                                   lane gave it a slot. Its tensors are copied into the input arena, each on a
 *                                   64-byte boundary, behind the header the worker reads; the message itself is no
 *                                   longer needed. Raw contents of a message that was received into the arena
 *                                   (hr_dispatch_receive) stay where they are, and the header refers to them: its
 *                                   memory is then the request's. What the answer will need (names, id, which outputs) is
 *                                   remembered here. When slots or memory are out the caller gets
 *                                   RESOURCE_EXHAUSTED and nothing is held.
 *   PUBLISHED  hr_dispatch_submit   The worker has it. The client waits (WAITING). A worker that sleeps is woken by
 *              hr_dispatch_ring     hr_dispatch_ring, once for all that a wake-up of the caller brought: a system call
 *                                   for each would cost more than the request does.
 *   ANSWERED   hr_dispatch_next     By the worker's completion; or by the deadline; or by hr_dispatch_cancel; or
 *                                   because the lane closed. Just one of these is told, once for each token; of a
 *                                   cancelled one nothing is told, since it is the caller who knows. After a
 *                                   deadline or a cancel the slot lives on (GONE): the worker may be reading its
 *                                   input, and only its FINAL completion says that it does not.
 *   FINAL      hr_dispatch_next     The completion came. The input blocks are free. When the client still waits it gets
 *                                   the answer, whose slices lie in the worker's output arena (TAKEN).
 *   retired    hr_dispatch_retire   The answer was encoded, or sent from where it lies: the slices go back to the
 *                                   worker and the slot is free.
 *
 * A handle names a request for hr_dispatch_cancel. It holds a number that is never used again, so a late
 * cancel of a request that has ended meets nobody.
 *
 * A WORKER'S DEATH is the closing of its lane: all its outstanding tokens are reported at once. Their memory is kept
 * aside until the lane is freed, which is when the worker's process has ended: copies of a device from it may be running
 * as long as that lives. Between two incarnations its models answer UNAVAILABLE.
 *
 * WHAT THE WORKER WROTE is copied to private memory, checked, and only then used: a broken worker costs its
 * requests an INTERNAL, never this process.
 */
#ifndef HR_DISPATCH_H
#define HR_DISPATCH_H

#include <stdbool.h>

#include "fq_layout.h"
#include "hr_encode.h"
#include "hr_error.h"
#include "hr_spec.h"

enum {
    HR_MAX_LANES = 64,
    HR_MAX_CLASSES = 1 << 20 /* of one answer: this thread writes their texts, and others wait meanwhile */
};
#define HR_NO_LANE UINT32_MAX /* of a model whose worker is gone */

typedef struct hr_dispatch hr_dispatch;

/* ---- setting up ---- */

/* `arena_mb` MB for payloads (at least 1), `spill_mb` MB more for large ones (fq_spill.h; 0: none), `slots` requests in
 * flight on each lane at most (rounded up to a power of two, at most FQ_MAX_SLOTS). NULL with *err. */
hr_dispatch *hr_dispatch_new(uint32_t arena_mb, uint32_t spill_mb, uint32_t slots, hr_error *err);
void hr_dispatch_free(hr_dispatch *d); /* NULL is allowed */

int hr_dispatch_arena_fd(const hr_dispatch *d);
int hr_dispatch_eventfd(const hr_dispatch *d); /* readable: something may have come, see hr_dispatch_arm */

/* A new lane: its number, or -1 with *err. *lane_fd, the arena and the eventfd go to the worker; they stay ours. */
int hr_dispatch_open_lane(hr_dispatch *d, int *lane_fd, hr_error *err);

/* What the worker sent back; the descriptors stay the caller's. From now on its models can be used. 0, or -1 with
 * *err. */
int hr_dispatch_attach(hr_dispatch *d, uint32_t lane, int page_fd, int output_fd, hr_error *err);

/* The worker is gone. Writes the tokens of clients that still wait to `tokens`, which has room for
 * hr_dispatch_slots of them (or is NULL: nobody is told): their number. No answer of this lane may be held. */
uint32_t hr_dispatch_close_lane(hr_dispatch *d, uint32_t lane, uint64_t *tokens);

/* Nobody reads what the requests of a closed lane had in the input arena any more: it is free, and the lane's number too. */
void hr_dispatch_free_lane(hr_dispatch *d, uint32_t lane);
uint32_t hr_dispatch_slots(const hr_dispatch *d);

/* Takes the table over; `worker` of each spec is a lane's number. Requests in flight keep the spec they came with. */
void hr_dispatch_set_table(hr_dispatch *d, hr_table *table);

/* From now on a request of more rows than its model's maximum batch is refused, in Triton's words, and not split. */
void hr_dispatch_refuse_oversize(hr_dispatch *d);

/* From now on a message of more bytes is refused (--max-message-bytes); INT32_MAX, as much as protobuf has, at first. */
void hr_dispatch_limit_messages(hr_dispatch *d, uint64_t bytes);

/* ---- requests ---- */

typedef struct hr_call {
    uint64_t token;      /* the caller's name for the request, told back with its answer */
    int64_t arrival_ns;  /* CLOCK_MONOTONIC, as all times here */
    int64_t deadline_ns; /* INT64_MAX: none. The request's own `timeout` may bring it forward */
    bool stream;         /* the answer is one message of a stream */
    uint32_t trace_flags;
    unsigned char trace_id[16];
    unsigned char span_id[8];
    /* Called with 1 just before the worker can see the request, and with -1 if it cannot after all; may be NULL. */
    void (*in_flight)(void *counter, int by);
    void *counter;
} hr_call;

/* 0, or -1 with what the client is to be told in *err. The message is the caller's, and no longer needed. */
int hr_dispatch_submit(hr_dispatch *d, const uint8_t *message, size_t length, const hr_call *call, uint64_t *handle,
                       hr_error *err);

/* Wakes the workers that sleep and have been submitted to. To be called before the caller does anything that takes long;
 * hr_dispatch_arm does it too. */
void hr_dispatch_ring(hr_dispatch *d);

/* ---- messages that are received into the input arena ---- */

/* A message on its way in: all zeros before its first byte. Its bytes lie in one run of the arena, which grows. */
typedef struct hr_arriving {
    fq_extent run;
    uint64_t whole; /* bytes that the run has in the end */
    uint32_t shift; /* of the message within the run */
} hr_arriving;

/* Whether messages of `length` bytes may be received so at all; whether they lie in the spill; and how many bytes of messages that
 * lie where they do one client may have. */
bool hr_dispatch_can_receive(const hr_dispatch *d, uint64_t length);
bool hr_dispatch_spills(const hr_dispatch *d, uint64_t length);
uint64_t hr_dispatch_share(const hr_dispatch *d, uint64_t length);

/* Begins: `first` is what has come of a message that will have `length` bytes. It decides where the message is put, so that its
 * first raw contents lie on a boundary; it is not copied. */
void hr_dispatch_arrive(hr_arriving *a, uint64_t length, hr_view first);

/* Memory for the first `bytes` bytes of the message, of which *room may then be written; what was written before is there, but
 * may have moved. NULL: the arena has no room now, nothing has changed. */
uint8_t *hr_dispatch_receive(hr_dispatch *d, hr_arriving *a, uint64_t bytes, uint64_t *room);

/* Why it has none: *err. */
void hr_dispatch_no_room(const hr_dispatch *d, const hr_arriving *a, hr_error *err);

/* As hr_dispatch_submit, of a message of `length` bytes that has come. When it is accepted the memory is the request's, and *a all
 * zeros; tensors of raw contents are not copied. */
int hr_dispatch_submit_arrived(hr_dispatch *d, hr_arriving *a, size_t length, const hr_call *call, uint64_t *handle,
                               hr_error *err);

/* Gives back the memory of a message that will not be submitted. *a is all zeros then. */
void hr_dispatch_abandon(hr_dispatch *d, hr_arriving *a);

/* Of the request that was accepted last: whether it asked, by headrace_unordered, for its answer out of turn. */
bool hr_dispatch_unordered(const hr_dispatch *d);

/* The client no longer waits: nothing more is told of this request. */
void hr_dispatch_cancel(hr_dispatch *d, uint64_t handle);

/* ---- answers ---- */

typedef struct hr_answer {
    uint64_t token;
    int code;             /* 0, or an error whose words are in error.text */
    bool held;            /* it holds a slot, until hr_dispatch_retire */
    hr_response response; /* to encode. Of an error on a stream too; of another error it has the names alone */
    fq_completion completion; /* times and batch, where a worker answered */
    hr_error error;
    uint32_t lane;
    uint32_t slot;
    hr_output outputs[HR_MAX_TENSORS];
    int64_t dims[HR_MAX_TENSORS][HR_MAX_RANK];
    uint64_t classes; /* texts of classes in it; their memory is freed with the answer */
    uint32_t text_count;
    uint8_t *texts[HR_MAX_TENSORS];
} hr_answer;

/* The next answer: 1, and it must be retired; or 0 when there is none. `now_ns` decides which deadlines have passed. */
int hr_dispatch_next(hr_dispatch *d, int64_t now_ns, hr_answer *out);

/* The answer was encoded or sent. What its views point to is gone. */
void hr_dispatch_retire(hr_dispatch *d, const hr_answer *answer);

/* The same, for a caller that kept of a held answer its lane, its slot and whether completion.answer has bytes. */
void hr_dispatch_release(hr_dispatch *d, uint32_t lane, uint32_t slot, bool has_answer);

/* Before hr_dispatch_close_lane, for a caller that needs more than tokens: the next client that still waits for this lane,
 * with an answer that says that its worker is gone. 1, or 0 when there is none. It need not be retired. */
int hr_dispatch_next_lost(hr_dispatch *d, uint32_t lane, hr_answer *out);

/* The eventfd is readable: makes it quiet until a worker rings again. */
void hr_dispatch_heard(hr_dispatch *d);

/* Before the caller sleeps on the eventfd: 1 when it may, 0 when answers came in the meantime. It must not
 * sleep beyond hr_dispatch_next_deadline (INT64_MAX: there is none). */
int hr_dispatch_arm(hr_dispatch *d);
int64_t hr_dispatch_next_deadline(const hr_dispatch *d);

/* ---- for reports ---- */

uint32_t hr_dispatch_outstanding(const hr_dispatch *d); /* slots in use, also those whose client is gone */
uint64_t hr_dispatch_arena_used(const hr_dispatch *d);  /* bytes, the spill's among them */
uint64_t hr_dispatch_spill_used(const hr_dispatch *d);  /* bytes */
int hr_dispatch_check(const hr_dispatch *d); /* the number of the broken invariant, 0 when all hold */

#endif
