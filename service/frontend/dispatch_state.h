/* dispatch_state.h: the private state of a front-end thread; for dispatch*.c alone. */
#ifndef HR_DISPATCH_STATE_H
#define HR_DISPATCH_STATE_H

#include "dispatch.h"
#include "dispatch_deadlines.h"
#include "fq_fill.h"
#include "fq_grow.h"
#include "fq_lane.h"
#include "fq_policy.h"
#include "hr_scan.h"
#include "hr_strings.h"
#include "hr_validate.h"

enum { HR_ID_INLINE = 64 }; /* bytes of an id that need no memory of their own */

enum hr_pending_state {
    HR_IDLE,
    HR_WAITING, /* published, and a client waits */
    HR_GONE,    /* published, and the client was answered or has left */
    HR_TAKEN,   /* FINAL came, and the caller has the answer */
    HR_ASIDE    /* its lane was closed: nothing is left of it but its memory, which its worker may still read */
};

/* What this thread remembers of a slot's request. */
typedef struct hr_pending {
    hr_timer timer; /* first: a timer is its request */
    uint64_t token;
    uint64_t sequence; /* of the handle */
    int64_t arrival_ns;
    hr_spec *spec; /* held */
    uint8_t *id;   /* id_inline, or memory of its own */
    size_t id_length;
    uint32_t block_count;
    uint64_t bytes;       /* of the input arena's head */
    uint64_t spill_bytes; /* or behind it */
    uint32_t slot;
    uint8_t lane;
    uint8_t state;
    uint8_t output_count;
    bool stream;
    uint8_t outputs[HR_MAX_TENSORS];
    uint32_t classes[HR_MAX_TENSORS];
    uint8_t id_inline[HR_ID_INLINE];
    fq_extent blocks[FQ_FILL_BLOCKS + 1]; /* and the message itself, if it was received here */
} hr_pending;

typedef struct hr_lane {
    bool open;
    bool closed;   /* and not freed yet */
    bool attached; /* a worker answers on it */
    bool unrung;   /* requests were submitted since its worker's bell was looked at */
    int fd;
    void *memory;
    uint64_t bytes;
    fq_worker_page *page;
    uint64_t page_bytes;
    const uint8_t *output;
    uint64_t output_bytes;
    fq_front_lane front;
    hr_pending *pending; /* by slot */
    uint32_t *free_slots;
    unsigned char *states;
} hr_lane;

struct hr_dispatch {
    uint32_t slots; /* of each lane */
    int arena_fd;
    int eventfd;
    bool armed; /* bells are armed */
    uint32_t lane_count; /* no lane above these was ever open */
    uint32_t turn; /* the lane that is polled next */
    uint32_t outstanding;
    uint64_t sequence;
    uint64_t max_message; /* bytes */
    bool refuse_oversize; /* more rows than the maximum batch are an error, not a split */
    uint8_t *arena;
    uint64_t arena_bytes;
    void *arena_private;
    void *spill_private;
    fq_input input;
    hr_table *table;
    hr_deadlines deadlines;
    hr_request request; /* scratch of submit */
    hr_bound bound;
    hr_arriving *arrived; /* where the message in hand lies in the arena, or NULL */
    hr_lane lanes[HR_MAX_LANES];
};

/* Forgets a request whose slot is given back: the spec, the id, the timer. Its blocks are the caller's to free. */
void hr_pending_clear(hr_dispatch *d, hr_pending *p);

void hr_dispatch_disarm(hr_dispatch *d);

/* Puts the request in hand into the arena, and points the slot at it: 0, or -1 with *err. */
int hr_fill(hr_dispatch *d, hr_pending *p, fq_slot *slot, hr_error *err);

/* May one more request of this model, with `bytes` of tensors, be in flight? 0, or -1 with *err. */
int hr_bounds_check(const hr_dispatch *d, const hr_spec *spec, uint64_t bytes, hr_error *err);

/* Why there was no slot, and no memory: -1, with *err. */
int hr_bounds_slots(const hr_dispatch *d, hr_error *err);
int hr_bounds_arena(const hr_dispatch *d, uint64_t bytes, hr_error *err);

/* Fills in what every response to this request says: its names and id. */
void hr_answer_names(hr_answer *out, const hr_pending *p);

/* The last touch to every answer: what a response that is too large is told, and how an error on a stream is a message. */
void hr_answer_finish(hr_answer *out, const hr_pending *p);

/* Fills in the outputs of a completion without an error; out->code says when the worker wrote nonsense. */
void hr_answer_outputs(hr_answer *out, const hr_lane *lane, const hr_pending *p, fq_extent at);

/* Puts the best classes in place of the output that was added last, at most `most` per row. 0, or -1 with out->code. */
int hr_answer_classes(hr_answer *out, const hr_pending *p, const hr_tensor_spec *spec, uint32_t most);
void hr_answer_free_texts(const hr_answer *answer);

#endif
