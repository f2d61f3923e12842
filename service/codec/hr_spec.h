/* hr_spec.h: what the codec knows of a model, and the table of models that a front-end thread serves.
 *
 * A spec is made once, when a model is loaded, and never changes. It is one allocation: the struct and behind it its
 * strings. It belongs to one front-end thread, which counts who holds it without atomics: the thread's
 * table, and every request in flight, whose answer needs the names. So a model may leave the table while its last
 * requests are still being answered. The thread also counts there what the model has in flight.
 *
 * A table is made whole and swapped whole, so that loading and unloading never show a state in between. It also knows
 * what is not served and was, or will be: whoever asks for that is told so in Triton's words.
 */
#ifndef HR_SPEC_H
#define HR_SPEC_H

#include "hr_error.h"
#include "hr_reshape.h"
#include "hr_wire.h"

enum hr_datatype {
    HR_NO_DATATYPE,
    HR_BOOL,
    HR_UINT8,
    HR_UINT16,
    HR_UINT32,
    HR_UINT64,
    HR_INT8,
    HR_INT16,
    HR_INT32,
    HR_INT64,
    HR_FP16,
    HR_FP32,
    HR_FP64,
    HR_BYTES_DATATYPE,
    HR_BF16,
    HR_DATATYPES
};

enum hr_datatype hr_datatype_of(hr_view name); /* HR_NO_DATATYPE: not one of the protocol's */
hr_view hr_datatype_name(enum hr_datatype datatype);
uint32_t hr_datatype_bytes(enum hr_datatype datatype); /* of an element; 0 for BYTES */

typedef struct hr_tensor_spec {
    hr_view name;
    enum hr_datatype datatype;
    uint32_t rank; /* without the batch axis */
    int64_t dims[HR_MAX_RANK]; /* -1: any size */
    bool text;                 /* BYTES that have to be UTF-8 */
    bool reshaped;             /* the model has another form than the wire: */
    hr_form model;
    hr_view labels;     /* of an output's classes, one behind the other */
    hr_view label_ends; /* where in `labels` each ends: a uint32_t for each */
} hr_tensor_spec;

/* The label of a class; empty where it has none. */
hr_view hr_label(const hr_tensor_spec *t, uint64_t index);

static inline hr_form hr_wire_form(const hr_tensor_spec *t) {
    hr_form form = {.rank = t->rank};
    memcpy(form.dims, t->dims, sizeof form.dims);
    return form;
}

typedef struct hr_spec {
    hr_view name;
    hr_view version;  /* a decimal number above 0 */
    uint64_t number;  /* that number; hr_spec_new fills it in */
    uint32_t id;      /* of the loaded model, never reused */
    uint32_t worker;  /* which lane it is reached through */
    uint32_t max_batch_size; /* 0: the model does not batch */
    uint32_t levels;         /* of priority, at least 1 */
    uint32_t default_level;  /* from 0 */
    uint32_t fixed_timeouts; /* bit l: on level l the queue policy's time-out stands, whatever `timeout` a request has */
    uint32_t input_count;
    uint32_t output_count;
    uint32_t holders;
    uint32_t requests; /* in flight, and */
    uint64_t bytes;    /* what they have of the input arena's head, */
    uint64_t spill_bytes; /* and behind it */
    hr_tensor_spec inputs[HR_MAX_TENSORS];
    hr_tensor_spec outputs[HR_MAX_TENSORS];
} hr_spec;

/* A copy of `draft` with strings of its own, held once; NULL with *err when the draft is no spec, or memory is out. */
hr_spec *hr_spec_new(const hr_spec *draft, hr_error *err);
hr_spec *hr_spec_hold(hr_spec *spec);
void hr_spec_drop(hr_spec *spec); /* NULL is allowed */

/* The index of a tensor by name, or -1. `hint` is looked at first. */
int hr_tensor_find(const hr_tensor_spec *tensors, uint32_t count, hr_view name, uint32_t hint);

/* A version of a model that is not served; `version` is empty where no number is known yet. */
typedef struct hr_known {
    hr_view name;
    hr_view version;
    hr_view why; /* for the client: "it is being loaded" */
} hr_known;

typedef struct hr_table {
    uint32_t count;
    uint32_t known_count;
    hr_known *known;  /* one allocation, with what it points to */
    hr_spec *specs[]; /* by name, then by number */
} hr_table;

/* Holds each spec. NULL with *err: two of one name and version, or memory is out. */
hr_table *hr_table_new(hr_spec *const *specs, uint32_t count, hr_error *err);
void hr_table_drop(hr_table *table); /* NULL is allowed */

/* The table's copy of what is known and not served, once in its life; -1 with *err when memory is out. */
int hr_table_know(hr_table *table, const hr_known *known, uint32_t count, hr_error *err);

/* The spec that a request names, version "" being the highest one; NULL with the words of Triton in *err, and what
 * is served instead. */
hr_spec *hr_table_find(const hr_table *table, hr_view name, hr_view version, hr_error *err);

#endif
