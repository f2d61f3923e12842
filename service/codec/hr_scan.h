/* hr_scan.h: what a ModelInferRequest says, found in place.
 *
 * hr_scan reads the whole message once. It accepts what the protobuf library accepts and refuses what that
 * refuses (see hr_wire.h), and leaves views into the message: it copies nothing and allocates nothing, and the message
 * must outlive what was found. Fields may come in any order, repeated and split:
 *
 *   a string or contents field     the last one wins; contents merge, so their elements add up
 *   inputs, outputs, raw contents  every occurrence is one more element
 *   shape                          packed and single values in any mixture add up
 *   a parameter                    the last entry of a key wins. Within one entry the last key wins, and its values
 *                                  merge: a value is a oneof, whose last member wins. An entry without a key has "",
 *                                  one without a value has a value with no member. An entry that holds anything
 *                                  unknown is as a whole unknown, and is dropped: so upb does
 *   anything else                  skipped, also a known number with an unexpected wire type
 *
 * BOUNDS. The first 64 inputs, outputs and raw contents, and the first 8 dimensions of a shape, are kept; all are
 * counted. A message beyond that is well-formed, and hr_validate says what is wrong with it: no model has more.
 * Parameters are not kept at all, since a message may hold millions in few bytes: hr_params walks over them.
 */
#ifndef HR_SCAN_H
#define HR_SCAN_H

#include <stdbool.h>

#include "hr_error.h"
#include "hr_wire.h"

enum hr_contents { /* numbers of the fields of InferTensorContents */
    HR_BOOL_CONTENTS = 1,
    HR_INT_CONTENTS,
    HR_INT64_CONTENTS,
    HR_UINT_CONTENTS,
    HR_UINT64_CONTENTS,
    HR_FP32_CONTENTS,
    HR_FP64_CONTENTS,
    HR_BYTES_CONTENTS,
    HR_CONTENTS_FIELDS
};

enum { HR_INPUT_CONTENTS = 5 }; /* number of the field of InferInputTensor that has them */

/* The wire type of one value of a contents field that stands alone. Packed ones are HR_BYTES. */
static inline uint32_t hr_contents_alone(uint32_t field) {
    if (field == HR_FP32_CONTENTS) return HR_FIXED32;
    if (field == HR_FP64_CONTENTS) return HR_FIXED64;
    return field == HR_BYTES_CONTENTS ? HR_BYTES : HR_VARINT;
}

typedef struct hr_input {
    hr_view name;
    hr_view datatype;
    hr_view body; /* the whole InferInputTensor: hr_params walks over it */
    uint32_t rank;
    bool has_contents;
    uint64_t parameters;                /* entries, with those that a later one replaces */
    uint64_t typed[HR_CONTENTS_FIELDS]; /* elements of each contents field */
    uint64_t string_bytes;              /* of all elements of bytes_contents together */
    int64_t dims[HR_MAX_RANK];
} hr_input;

typedef struct hr_requested {
    hr_view name;
    hr_view body;
    uint64_t parameters;
} hr_requested;

typedef struct hr_request {
    hr_view body;
    hr_view model_name;
    hr_view model_version;
    hr_view id;
    uint64_t parameters;
    uint64_t input_count; /* counts may exceed what is kept */
    uint64_t output_count;
    uint64_t raw_count;
    hr_input inputs[HR_MAX_TENSORS];
    hr_requested outputs[HR_MAX_TENSORS];
    hr_view raw[HR_MAX_TENSORS];
} hr_request;

/* 0, or -1 with INVALID_ARGUMENT in *err. After -1 *out holds nothing of use. */
int hr_scan(const uint8_t *message, size_t length, hr_request *out, hr_error *err);

/* Where the first raw contents of a message begin, of which `head` is all that has come; 0 when that cannot be told. A guess to
 * place it by: nothing is checked. */
size_t hr_find_raw(hr_view head);

/* ---- parameters ---- */

enum hr_kind { HR_KIND_NONE, HR_KIND_BOOL, HR_KIND_INT64, HR_KIND_STRING, HR_KIND_DOUBLE, HR_KIND_UINT64 };

typedef struct hr_param {
    hr_view key;
    enum hr_kind kind;
    hr_view text;    /* HR_KIND_STRING */
    uint64_t number; /* the others, as 64 bits: bool 0 or 1, int64 and double reinterpreted */
} hr_param;

/* A walk over the parameters of a scanned request, input or requested output, in the order of the message. */
typedef struct hr_params {
    const uint8_t *p;
    const uint8_t *end;
    uint32_t field;
} hr_params;

static inline hr_params hr_params_at(hr_view body, uint32_t field) {
    return (hr_params){body.data, body.data + body.length, field};
}
static inline hr_params hr_request_params(const hr_request *r) { return hr_params_at(r->body, 4); }
static inline hr_params hr_input_params(const hr_input *i) { return hr_params_at(i->body, 4); }
static inline hr_params hr_requested_params(const hr_requested *o) { return hr_params_at(o->body, 2); }

/* false at the end. */
bool hr_params_next(hr_params *walk, hr_param *out);

#endif
