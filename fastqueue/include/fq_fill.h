/* fq_fill.h: puts a request whose tensors lie elsewhere into the input arena: header first, then each tensor on
 * its own 64-byte boundary. One copy of every byte. Tensors that lie in the arena already, because their message was received
 * there (fq_grow.h), stay where they are, on whatever boundary: the header refers to them.
 */
#ifndef FQ_FILL_H
#define FQ_FILL_H

#include "fq_input.h"
#include "fq_request.h"

enum { FQ_FILL_BLOCKS = 64 }; /* extents that one message is spread over at most */

/* Writes the next `length` bytes of a tensor to `to`. Every piece but a tensor's last is a multiple of FQ_ALIGN. */
typedef void fq_write(void *state, void *to, uint64_t length);

/* A tensor to copy; or to refer to: then `placed`, and no data; or to have written by whoever can make its bytes: then `write`
 * and `state`, and no data. */
typedef struct fq_source {
    uint32_t index; /* of the model's input; sources come in ascending order */
    uint32_t rank;
    const int64_t *dims;
    const void *data;
    uint64_t length;
    uint64_t placed; /* its offset in the arena, where it lies there; else 0 */
    fq_write *write;
    void *state;
    uint32_t rows;            /* of elements of variable size, where the model batches; else 0. Where each ends: */
    const uint64_t *row_ends; /* a word per row to copy, or to have written like the bytes */
    fq_write *write_ends;
    void *ends_state;
} fq_source;

/* Where the next byte goes. */
typedef struct fq_cursor {
    const fq_extent *blocks;
    uint64_t at; /* within *blocks */
} fq_cursor;

/* Copies a source's bytes behind the cursor, or has them written there: the number of extents written to `out`. */
static inline uint32_t fq_fill_copy(unsigned char *base, fq_cursor *c, const fq_source *source, fq_extent *out) {
    const unsigned char *from = (const unsigned char *)source->data;
    uint32_t count = 0;
    if (source->placed && source->length) {
        out[0] = (fq_extent){source->placed, source->length};
        return 1;
    }
    c->at = fq_round_up(c->at, FQ_ALIGN);
    for (uint64_t left = source->length; left > 0;) {
        if (c->at == c->blocks->length) *c = (fq_cursor){c->blocks + 1, 0};
        uint64_t n = c->blocks->length - c->at < left ? c->blocks->length - c->at : left;
        out[count] = (fq_extent){c->blocks->offset + c->at, n};
        if (source->write) source->write(source->state, base + out[count].offset, n);
        else fq_data_put(base + out[count].offset, from + (source->length - left), n);
        count++;
        left -= n;
        c->at += n;
    }
    return count;
}

static inline uint64_t fq_source_table_bytes(const fq_source *source) { return source->rows * sizeof(uint64_t); }

static inline uint64_t fq_fill_bytes(const fq_source *sources, uint32_t count, uint32_t extents) {
    uint64_t bytes = fq_header_bytes(count, extents);
    for (uint32_t i = 0; i < count; i++) {
        bytes = fq_round_up(bytes, FQ_ALIGN) + (sources[i].placed ? 0 : sources[i].length);
        bytes = fq_round_up(bytes, FQ_ALIGN) + fq_source_table_bytes(&sources[i]);
    }
    return bytes;
}

/* Allocates, copies, and points `slot` at the header: the number of extents taken, written to `blocks` (room for
 * FQ_FILL_BLOCKS) for fq_input_free after FINAL; 0 when the arena cannot give the memory now. `base` is the arena's mapping. */
static inline uint32_t fq_fill(fq_input *input, unsigned char *base, const fq_source *sources, uint32_t count,
                               fq_extent *blocks, fq_slot *slot) {
    uint32_t extents = count, taken = 1;
    for (uint32_t i = 0; i < count; i++) extents += sources[i].rows > 0;
    uint64_t bytes = fq_fill_bytes(sources, count, extents);
    if (bytes > FQ_LARGE) {
        extents += FQ_FILL_BLOCKS;
        bytes = fq_fill_bytes(sources, count, extents);
        taken = FQ_FILL_BLOCKS;
    }
    taken = fq_input_alloc(input, bytes, blocks, taken);
    if (taken == 0) return 0;
    /* Extents follow the tensors, and how many there are is known only at the end: room was left for the most. */
    fq_header *header = (fq_header *)(base + blocks[0].offset);
    fq_tensor *tensors = (fq_tensor *)(header + 1);
    fq_extent *out = (fq_extent *)(tensors + count);
    fq_cursor cursor = {blocks, fq_header_bytes(count, extents)};
    uint32_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        const fq_source *s = &sources[i];
        tensors[i] = (fq_tensor){.index = s->index, .rank = s->rank, .first_extent = used, .length = s->length};
        memcpy(tensors[i].dims, s->dims, s->rank * sizeof(int64_t));
        tensors[i].extent_count = fq_fill_copy(base, &cursor, s, out + used);
        used += tensors[i].extent_count;
        fq_source table = {.data = s->row_ends, .length = fq_source_table_bytes(s)};
        table.write = s->write_ends;
        table.state = s->ends_state;
        tensors[i].table_extents = fq_fill_copy(base, &cursor, &table, out + used);
        used += tensors[i].table_extents;
    }
    *header = (fq_header){.tensor_count = count, .extent_count = used};
    header->bytes = (uint32_t)fq_header_bytes(count, used);
    slot->header = (fq_extent){blocks[0].offset, header->bytes};
    return taken;
}

#endif
