/* hr_strings.h: the elements of a BYTES tensor, which are strings of bytes and differ in size.
 *
 * In raw_input_contents, in both arenas and in raw_output_contents a BYTES tensor lies in one form: its elements in
 * row-major order, one behind the other, each
 *
 *   4 bytes         its length, without a sign, little-endian
 *   length bytes    whatever they are: a zero ends nothing, and there may be none at all
 *
 * A tensor has as many elements as its shape says; hr_strings_in counts them. Nothing in it says where a row begins, so
 * the queue, which cuts requests into rows, gets a table with the end of each: hr_row_ends_write makes it, from raw contents
 * or from typed ones (hr_typed.h writes those in this form), wherever it is told to. Nothing is allocated.
 */
#ifndef HR_STRINGS_H
#define HR_STRINGS_H

#include "hr_typed.h"

/* What there is in some bytes. */
typedef struct hr_strings {
    uint64_t count;  /* of whole elements */
    size_t left;     /* bytes behind them: 0, or the beginning of one that is cut off */
    uint32_t length; /* of that one; 0 where not even its length is whole */
} hr_strings;

/* The bytes may change meanwhile (a worker's memory): nothing is read at or behind their end. */
hr_strings hr_strings_in(hr_view data);

/* Whether every element is UTF-8. If not: which is the first that is not. There are whole elements only. */
bool hr_strings_are_text(hr_view data, uint64_t *element);

/* A walk over the rows of a tensor whose first axis is the batch axis. */
typedef struct hr_row_ends {
    bool is_typed;
    hr_typed typed;
    hr_view raw;       /* what is left of it */
    uint64_t elements; /* of each row */
    uint64_t end;      /* of the rows that were written, in bytes of the form above */
} hr_row_ends;

/* Before the first row. The input was validated; `raw` is its data, unless it is typed. */
hr_row_ends hr_row_ends_at(const hr_input *input, hr_view raw, bool is_typed);

/* Writes where the next rows end, a word of 8 bytes each: `length` bytes of them. `walk` is an hr_row_ends. */
void hr_row_ends_write(void *walk, void *to, uint64_t length);

#endif
