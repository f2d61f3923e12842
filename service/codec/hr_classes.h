/* hr_classes.h: an output told as its best classes, which a request asks for with the parameter `classification`.
 *
 * The elements of a row are scores, one for each class. Of the k best, best first, the answer has a BYTES element each:
 *
 *   value:index          -0.500000:3     the score (floats with six places, as printf's %f), and which class it is of
 *   value:index:label    17:0:cat        where the model's config has a label for that class
 *
 * Of classes with the same score the one with the lower index comes first (0 and -0 are the same), and what is not a
 * number comes behind everything that is one. Every numeric datatype can be classified, BOOL and BYTES cannot.
 *
 * Nothing is allocated here: whoever calls brings the room for k classes.
 */
#ifndef HR_CLASSES_H
#define HR_CLASSES_H

#include "hr_spec.h"

enum { HR_CLASS_TEXT = 384 }; /* room for "value:index" of any datatype */

typedef struct hr_class {
    uint64_t key; /* larger is better */
    uint64_t index;
} hr_class;

bool hr_can_classify(enum hr_datatype datatype);

/* The k best of `count` elements, k <= count, in their order. */
void hr_best_classes(enum hr_datatype datatype, const uint8_t *data, uint64_t count, hr_class *best, uint64_t k);

/* Writes "value:index" of one element, and returns its length. */
size_t hr_class_text(enum hr_datatype datatype, const uint8_t *data, uint64_t index, char text[HR_CLASS_TEXT]);

#endif
