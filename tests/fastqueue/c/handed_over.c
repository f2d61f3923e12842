/* A library for test_t1_handed_over.py: what C does with a batch that Python has handed over. */
#include "fq_batch.h"
#include "fq_copies.h"

uint32_t copies(const fq_batch *b, uint32_t input, fq_copy *out, uint32_t room);
int answer(fq_batch *b, uint32_t input);
void refuse(fq_batch *b, uint32_t status, const char *text);

uint32_t copies(const fq_batch *b, uint32_t input, fq_copy *out, uint32_t room) {
    return fq_batch_copies(b, input, out, room);
}

/* Every output is the input's bytes: what was reserved for it has their size. */
int answer(fq_batch *b, uint32_t input) {
    fq_shape shapes[FQ_MAX_TENSORS];
    for (uint32_t o = 0; o < b->model->outputs; o++) {
        shapes[o].rank = (uint32_t)fq_batch_shape(b, input, shapes[o].dims);
        if (fq_batch_gather(b, input, fq_batch_output(b, o), b->sizes[o].row_bytes * b->rows)) return -1;
    }
    return fq_batch_complete(b, shapes);
}

void refuse(fq_batch *b, uint32_t status, const char *text) { fq_batch_fail(b, status, FQ_AGAIN, text); }
