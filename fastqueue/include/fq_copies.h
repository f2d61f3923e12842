/* fq_copies.h: where the rows of a launched batch lie, for whoever has them copied by something other than the processor.
 *
 * A device copies rows straight from the input arenas: what it is given is a list of pieces. The pieces of an input, one
 * after the other, are the bytes that fq_batch_gather would write. Pieces that touch are one piece: the rows of
 * one request nearly always are, and so are those of requests that lie behind each other in an arena.
 */
#ifndef FQ_COPIES_H
#define FQ_COPIES_H

#include "fq_gather.h"

typedef struct fq_copy {
    const void *from;
    uint64_t bytes;
} fq_copy;

typedef struct fq_copies {
    fq_copy *out;
    uint32_t room;
    uint32_t count;           /* may exceed room: those that did not fit are counted */
    const unsigned char *end; /* behind the last piece, written or not; NULL: there is none */
} fq_copies;

static inline void fq_copies_add(fq_copies *c, const unsigned char *from, uint64_t bytes) {
    if (bytes == 0) return;
    if (c->end == from) {
        if (c->count <= c->room) c->out[c->count - 1].bytes += bytes;
    } else {
        if (c->count < c->room) c->out[c->count] = (fq_copy){from, bytes};
        c->count++;
    }
    c->end = from + bytes;
}

/* The pieces of a range of a tensor's bytes. */
static inline void fq_copies_range(fq_copies *c, const unsigned char *arena, const fq_extent *e, fq_extent range) {
    for (; range.length > 0; e++) {
        if (range.offset >= e->length) {
            range.offset -= e->length;
            continue;
        }
        uint64_t n = e->length - range.offset < range.length ? e->length - range.offset : range.length;
        fq_copies_add(c, arena + e->offset + range.offset, n);
        range = (fq_extent){0, range.length - n};
    }
}

/* The pieces of the batch's rows of one input, in order: how many there are. At most `room` of them are written to `out`. */
static inline uint32_t fq_batch_copies(const fq_batch *b, uint32_t input, fq_copy *out, uint32_t room) {
    fq_copies c = {.out = out, .room = room};
    for (uint32_t i = 0; i < b->part_count; i++) {
        const fq_part *part = &b->parts[i];
        const fq_tensor *t = fq_request_tensor(part->request, input);
        if (!t) continue;
        const fq_extent *extents = fq_request_extents(part->request) + t->first_extent;
        fq_copies_range(&c, fq_part_arena(b, part), extents, fq_part_range(b, part, t));
    }
    return c.count;
}

#endif
