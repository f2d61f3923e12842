/* hr_validate.h: does a scanned request fit the model, and what exactly does it ask for?
 *
 * Checked in this order, and the first fault found is the one that is told:
 *
 *   parameters of the request, then of each input and each requested output (see hr_parameters.h)
 *   inputs by name: each once, all of them, none that the model does not have
 *   where the data is: one raw entry per input in the order of the request's inputs, or typed contents in every input
 *   each input, in the model's order: datatype, shape, rows (all inputs agree), bytes or elements (hr_typed.h,
 *   hr_strings.h)
 *   requested outputs by name; one that is named twice is answered once, as it was first asked for
 *
 * More rows than the model's maximum batch are fine: the queue splits and joins. A request whose rows hold no bytes at
 * all may not have more than that maximum, for nothing in the message pays for the work of more.
 *
 * An id has at most HR_MAX_ID bytes: it is kept beside the arena while the request waits.
 *
 * Where Triton has words for a fault, those are used: clients look for them.
 */
#ifndef HR_VALIDATE_H
#define HR_VALIDATE_H

#include "hr_scan.h"
#include "hr_spec.h"

enum { HR_MAX_ID = 64 << 10 };

typedef struct hr_bound_input {
    const hr_input *input; /* its shape on the wire */
    hr_view data;          /* of typed contents the length alone: hr_typed writes them */
    bool typed;
    uint32_t rank;       /* its shape in the model: */
    const int64_t *dims; /* the input's own, or `reshaped` */
    int64_t reshaped[HR_MAX_RANK];
} hr_bound_input;

/* A request, bound to the model. Views into the message, as those of hr_request. */
typedef struct hr_bound {
    uint32_t rows;        /* along the batch axis; 1 for a model that does not batch */
    uint32_t input_count; /* the model's */
    uint32_t output_count;
    uint32_t priority;  /* 0: the model's default */
    int64_t timeout_us; /* 0: none */
    bool empty_final;   /* triton_enable_empty_final_response */
    bool unordered;     /* headrace_unordered: on a stream, the answer need not wait for its turn */
    hr_bound_input inputs[HR_MAX_TENSORS]; /* in the model's order */
    uint8_t outputs[HR_MAX_TENSORS];       /* the model's indexes, in the order of the answer */
    uint32_t classes[HR_MAX_TENSORS]; /* of each of them: how many classes are asked for, 0: the output itself */
} hr_bound;

/* 0, or -1 with *err. */
int hr_validate(const hr_spec *spec, const hr_request *request, hr_bound *out, hr_error *err);

#endif
