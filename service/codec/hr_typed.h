/* hr_typed.h: the values of an input's typed `contents`, as the bytes that raw_input_contents would have.
 *
 *   datatype             field              an element of it
 *   BOOL                 bool_contents      0 or 1
 *   INT8, INT16, INT32   int_contents       32 bits with a sign; a value that INT8 or INT16 cannot hold is refused
 *   UINT8, 16, 32        uint_contents      32 bits; a value that UINT8 or UINT16 cannot hold is refused
 *   INT64, UINT64        int64_, uint64_    64 bits
 *   FP32, FP64           fp32_, fp64_       as they lie
 *   BYTES                bytes_contents     behind its length of 4 bytes (see hr_strings.h)
 *   FP16, BF16           none               only raw
 *
 * (Triton takes the low bytes of a value that is too large; a model then computes with a number that nobody sent.)
 *
 * The values of one field lie in runs: a packed occurrence is a run, and so is a value that stands alone, which looks
 * the same without a length. An input may have its contents several times, and each any number of runs; protobuf
 * appends them all. Strings are never packed: each is a run. hr_typed walks over the runs of a scanned input and writes
 * elements wherever it is told to, piece by piece, so that they go into the input arena without a copy in between.
 * Nothing is allocated.
 */
#ifndef HR_TYPED_H
#define HR_TYPED_H

#include "hr_scan.h"
#include "hr_spec.h"

enum { HR_STRING_HEAD = 4 }; /* bytes of the length before a string */

/* The field that has the elements of a datatype; 0: none has. */
enum hr_contents hr_contents_of(enum hr_datatype datatype);
const char *hr_contents_name(enum hr_contents field);

/* Where the walk is. */
typedef struct hr_typed {
    hr_view input;    /* what is left of the InferInputTensor */
    hr_view contents; /* what is left of its present `contents` */
    const uint8_t *p; /* what is left of the present run */
    const uint8_t *end;
    uint32_t length; /* of the present string; */
    uint32_t head;   /* and how many bytes of that length are still to be written */
    enum hr_datatype datatype;
} hr_typed;

/* At the first element. `input` was scanned, and `datatype` has a field. */
hr_typed hr_typed_at(const hr_input *input, enum hr_datatype datatype);

/* The bytes of all elements. `input` has no elements in other fields than that of the datatype. */
uint64_t hr_typed_bytes(const hr_input *input, enum hr_datatype datatype);

/* Writes the next `length` bytes: of whole elements, but for strings. `walk` is an hr_typed. Behind the last element come
 * zeros. */
void hr_typed_write(void *walk, void *to, uint64_t length);

/* Passes over the next string: its length; false at the end. Of a walk that writes nothing. */
bool hr_typed_next_string(hr_typed *walk, uint32_t *length);

/* Whether every string is UTF-8. If not: which is the first that is not. */
bool hr_typed_is_text(const hr_input *input, uint64_t *element);

/* Whether the datatype can hold every value. If not: which element is the first that it cannot, and its value. */
bool hr_typed_fits(const hr_input *input, enum hr_datatype datatype, uint64_t *element, int64_t *value);

#endif
