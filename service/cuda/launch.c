#include "launch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define cuda hr_cuda_table

/* ---- pinned memory ---- */

typedef struct hr_range {
    const unsigned char *start, *end;
} hr_range;

static pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;
static hr_range pinned[HR_PINNED_MAX];
static uint32_t pinned_count;

/* A driver that pins nothing that is mapped read-only gets it writable for that moment. */
static CUresult pin(void *address, size_t bytes, int read_only) {
    if (!read_only) return cuda.cuMemHostRegister(address, bytes, HR_REGISTER_PORTABLE);
    CUresult code = cuda.cuMemHostRegister(address, bytes, HR_REGISTER_PORTABLE | HR_REGISTER_READ_ONLY);
    if (code != HR_CUDA_NOT_SUPPORTED || mprotect(address, bytes, PROT_READ | PROT_WRITE)) return code;
    code = cuda.cuMemHostRegister(address, bytes, HR_REGISTER_PORTABLE);
    (void)mprotect(address, bytes, PROT_READ);
    return code;
}

CUresult hr_pinned_register(void *address, size_t bytes, int read_only) {
    const unsigned char *start = address;
    pthread_mutex_lock(&pinned_lock);
    CUresult code = pinned_count < HR_PINNED_MAX ? pin(address, bytes, read_only) : HR_CUDA_OUT_OF_MEMORY;
    if (!code) pinned[pinned_count++] = (hr_range){start, start + bytes};
    pthread_mutex_unlock(&pinned_lock);
    return code;
}

CUresult hr_pinned_unregister(void *address) {
    pthread_mutex_lock(&pinned_lock);
    for (uint32_t i = 0; i < pinned_count; i++) {
        if (pinned[i].start != address) continue;
        pinned[i] = pinned[--pinned_count];
        break;
    }
    pthread_mutex_unlock(&pinned_lock);
    return cuda.cuMemHostUnregister(address);
}

static int is_within(const hr_range *range, const unsigned char *from, uint64_t bytes) {
    return from >= range->start && from < range->end && bytes <= (uint64_t)(range->end - from);
}

/* Whether memory is pinned; `last` is where it was found before. Pieces of one batch nearly always lie in one range, which stays
 * pinned while they are in use: so the lock is taken per input, not per row. */
static int is_pinned(hr_range *last, const unsigned char *from, uint64_t bytes) {
    int found = is_within(last, from, bytes);
    if (found) return 1;
    pthread_mutex_lock(&pinned_lock);
    for (uint32_t i = 0; i < pinned_count && !found; i++) {
        found = is_within(&pinned[i], from, bytes);
        if (found) *last = pinned[i];
    }
    pthread_mutex_unlock(&pinned_lock);
    return found;
}

/* ---- the list of copies ---- */

CUresult hr_launch_init(hr_launch *l, hr_completer *completer, CUstream stream, void *staging, size_t staging_bytes) {
    CUresult code;
    memset(l, 0, sizeof *l);
    l->completer = completer;
    l->stream = stream;
    l->staging = staging;
    l->staging_bytes = staging_bytes;
    if ((code = cuda.cuEventCreate(&l->input, HR_EVENT_BLOCKING_SYNC))) return code;
    if ((code = cuda.cuEventCreate(&l->computed, HR_EVENT_BLOCKING_SYNC))) return code;
    return cuda.cuEventCreate(&l->done, HR_EVENT_BLOCKING_SYNC);
}

void hr_launch_free(hr_launch *l) {
    CUevent events[] = {l->input, l->computed, l->done};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i]) (void)cuda.cuEventDestroy(events[i]);
    free(l->to);
    free(l->from);
    free(l->sizes);
    free(l->pieces);
    memset(l, 0, sizeof *l);
}

static int grow(void **list, size_t element, size_t count) {
    void *larger = realloc(*list, element * count);
    if (!larger) return -1;
    *list = larger;
    return 0;
}

static int add(hr_launch *l, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    if (l->count == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        if (grow((void **)&l->to, sizeof *l->to, room) || grow((void **)&l->from, sizeof *l->from, room) ||
            grow((void **)&l->sizes, sizeof *l->sizes, room))
            return -1;
        l->room = room;
    }
    l->to[l->count] = to;
    l->from[l->count] = from;
    l->sizes[l->count++] = bytes;
    return 0;
}

static CUdeviceptr host(const void *address) { return (CUdeviceptr)(uintptr_t)address; }

/* Issues the list in one call, or, where the driver has no such call or the list is short, one by one. */
static CUresult issue(hr_launch *l, int inwards) {
    hr_memcpy_attributes attributes = {.access_order = HR_ACCESS_ORDER_STREAM};
    size_t every = 0, failed = 0;
    CUresult code = HR_CUDA_SUCCESS;
    if (l->count > 1 && cuda.batch) return cuda.batch(l->to, l->from, l->sizes, l->count, &attributes, &every, 1, l->stream);
    if (l->count > 1 && cuda.batch_12)
        return cuda.batch_12(l->to, l->from, l->sizes, l->count, &attributes, &every, 1, &failed, l->stream);
    for (size_t i = 0; i < l->count && !code; i++)
        code = inwards ? cuda.cuMemcpyHtoDAsync(l->to[i], (const void *)(uintptr_t)l->from[i], l->sizes[i], l->stream)
                       : cuda.cuMemcpyDtoHAsync((void *)(uintptr_t)l->to[i], l->from[i], l->sizes[i], l->stream);
    return code;
}

/* ---- inputs ---- */

/* All pieces of an input, in l->pieces: how many; -1: no memory. */
static int64_t pieces_of(hr_launch *l, const fq_batch *b, uint32_t input) {
    for (;;) {
        uint32_t count = fq_batch_copies(b, input, l->pieces, l->piece_room);
        if (count <= l->piece_room) return count;
        if (grow((void **)&l->pieces, sizeof *l->pieces, count)) return -1;
        l->piece_room = count;
    }
}

/* Room in the staging memory; NULL: not as much is left. */
static unsigned char *stage(hr_launch *l, uint64_t bytes) {
    if (bytes > l->staging_bytes - l->staging_used) return NULL;
    unsigned char *place = l->staging + l->staging_used;
    l->staging_used += bytes;
    return place;
}

/* A piece of memory that is pinned, or not. */
static CUresult copy_piece(hr_launch *l, hr_range *last, const fq_copy *piece, CUdeviceptr to, uint32_t *fallbacks) {
    if (is_pinned(last, piece->from, piece->bytes)) return add(l, to, host(piece->from), piece->bytes);
    unsigned char *place = stage(l, piece->bytes);
    if (place) {
        memcpy(place, piece->from, piece->bytes);
        return add(l, to, host(place), piece->bytes);
    }
    ++*fallbacks;
    return cuda.cuMemcpyHtoDAsync(to, piece->from, piece->bytes, l->stream);
}

static CUresult copy_input(hr_launch *l, const fq_batch *b, uint32_t input, CUdeviceptr to, uint32_t *fallbacks) {
    uint64_t bytes = fq_batch_input_bytes(b, input);
    int64_t count = pieces_of(l, b, input);
    hr_range last = {NULL, NULL};
    if (count < 0) return -1;
    if (count > 1 && bytes / (uint64_t)count < HR_TINY) {
        unsigned char *place = stage(l, bytes);
        if (place && fq_batch_gather(b, input, place, bytes) == 0) return add(l, to, host(place), bytes);
    }
    for (int64_t i = 0; i < count; i++) {
        CUresult code = copy_piece(l, &last, &l->pieces[i], to, fallbacks);
        if (code) return code;
        to += l->pieces[i].bytes;
    }
    return HR_CUDA_SUCCESS;
}

static CUresult pad(hr_launch *l, const fq_batch *b, uint32_t input, const hr_input *place, uint32_t padded_rows) {
    uint64_t bytes = fq_batch_input_bytes(b, input), whole = place->row_bytes * padded_rows;
    if (whole <= bytes) return HR_CUDA_SUCCESS;
    return cuda.cuMemsetD8Async(place->to + bytes, 0, whole - bytes, l->stream);
}

hr_result hr_copy_in(hr_launch *l, fq_batch *b, const hr_input *inputs, uint32_t count, uint32_t padded_rows) {
    hr_result result = {HR_CUDA_SUCCESS, 0};
    l->count = l->staging_used = 0;
    b->padding = b->rows < padded_rows ? padded_rows - b->rows : 0;
    for (uint32_t i = 0; i < count && !result.code; i++)
        result.code = copy_input(l, b, i, inputs[i].to, &result.fallbacks);
    if (!result.code) result.code = issue(l, 1);
    for (uint32_t i = 0; i < count && !result.code; i++) result.code = pad(l, b, i, &inputs[i], padded_rows);
    if (!result.code) result.code = cuda.cuEventRecord(l->input, l->stream);
    return result;
}

/* ---- outputs ---- */

CUresult hr_finish(hr_launch *l, const hr_output *outputs, uint32_t count) {
    CUresult code = cuda.cuEventRecord(l->computed, l->stream);
    hr_range last = {NULL, NULL};
    l->count = 0;
    for (uint32_t i = 0; i < count && !code; i++) {
        const hr_output *o = &outputs[i];
        if (!o->bytes) continue;
        code = is_pinned(&last, o->to, o->bytes) ? add(l, host(o->to), o->from, o->bytes)
                                                 : cuda.cuMemcpyDtoHAsync(o->to, o->from, o->bytes, l->stream);
    }
    if (!code) code = issue(l, 0);
    return code ? code : cuda.cuEventRecord(l->done, l->stream);
}
