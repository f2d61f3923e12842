/* hr_reshape.h: a tensor that has one form on the wire and another in the model (`reshape` in a model's config).
 *
 * The elements are the same in the same order, so that only dimensions are translated, never data. What stands between
 * two dims of -1 has as many elements on both sides, and the sizes of these dims go over in their order:
 *
 *   dims [4,-1,6]  reshape [2,2,-1,6,1]   4 = 2 x 2 and 6 = 6 x 1
 *   dims [1]       reshape []             a scalar: the product of nothing is 1
 *
 * All of this is without the batch axis, which stays what it is.
 */
#ifndef HR_RESHAPE_H
#define HR_RESHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "hr_wire.h"

typedef struct hr_form {
    uint32_t rank;
    int64_t dims[HR_MAX_RANK]; /* -1: any size */
} hr_form;

/* Whether tensors of one form can be told as the other: the rule above. */
bool hr_forms_agree(const hr_form *a, const hr_form *b);

/* Whether `dims` are of this form. */
bool hr_form_fits(const hr_form *form, const int64_t *dims, uint32_t rank);

/* What dims that fit `from` are in the form `to`: to->rank of them. */
void hr_form_translate(const hr_form *from, const int64_t *dims, const hr_form *to, int64_t *out);

#endif
