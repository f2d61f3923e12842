#include "hr_reshape.h"

/* The elements up to the next -1, or the end, and the place behind it. An overflow wraps: specs come from our own
 * worker, and two forms that agree modulo 2^64 have been compared without that limit when the model was loaded. */
static uint64_t elements(const hr_form *form, uint32_t *at) {
    uint64_t count = 1;
    while (*at < form->rank && form->dims[*at] >= 0) count *= (uint64_t)form->dims[(*at)++];
    ++*at;
    return count;
}

bool hr_forms_agree(const hr_form *a, const hr_form *b) {
    uint32_t i = 0, j = 0;
    do
        if (elements(a, &i) != elements(b, &j)) return false;
    while (i <= a->rank && j <= b->rank);
    return i > a->rank && j > b->rank;
}

bool hr_form_fits(const hr_form *form, const int64_t *dims, uint32_t rank) {
    if (rank != form->rank) return false;
    for (uint32_t d = 0; d < rank; d++)
        if (dims[d] < 0 || (form->dims[d] >= 0 && form->dims[d] != dims[d])) return false;
    return true;
}

void hr_form_translate(const hr_form *from, const int64_t *dims, const hr_form *to, int64_t *out) {
    uint32_t at = 0;
    for (uint32_t d = 0; d < to->rank; d++) {
        out[d] = to->dims[d];
        if (out[d] >= 0) continue;
        while (from->dims[at] >= 0) at++; /* the forms agree: there is one for each of ours */
        out[d] = dims[at++];
    }
}
