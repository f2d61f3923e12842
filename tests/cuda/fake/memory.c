#include "fake.h"

#include <stdlib.h>
#include <sys/mman.h>

typedef struct location {
    int type, id;
} location;

typedef struct allocation { /* of cuMemCreate */
    int device, mapped, released;
    size_t bytes;
} allocation;

typedef struct pool {
    int device;
    size_t most, used, high;
    uint64_t threshold;
} pool;

typedef struct allocation_props { /* the beginning of CUmemAllocationProp */
    int type, handles;
    location location;
} allocation_props;

typedef struct pool_props { /* the beginning of CUmemPoolProps */
    int type, handles;
    location location;
    void *security;
    size_t most;
} pool_props;

typedef struct access {
    location location;
    int flags;
} access;

enum { HOST_PAGE = 4096 };
enum { POOL_THRESHOLD = 4, POOL_RESERVED, POOL_RESERVED_HIGH, POOL_USED, POOL_USED_HIGH };

static size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static void *pages(size_t bytes, int protection) {
    void *place = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return place == MAP_FAILED ? NULL : place;
}

/* ---- address ranges ---- */

CUresult cuMemGetAllocationGranularity(size_t *out, const void *prop, int option) {
    ENTER(enter);
    (void)prop, (void)option;
    *out = FAKE_PAGE;
    return OK;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr address, unsigned long long flags) {
    ENTER(enter);
    (void)alignment, (void)address, (void)flags;
    if (!bytes || bytes % FAKE_PAGE) return INVALID_VALUE;
    *out = (uintptr_t)pages(bytes, PROT_NONE);
    if (!*out) return OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    put(&fake_reserved, *out, bytes);
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    ENTER(enter);
    pthread_mutex_lock(&fake_lock);
    piece *p = at(&fake_reserved, address), *scratch;
    int wrong = !p || p->bytes != bytes || overlapping(&fake_mapped, address, bytes);
    if (wrong) {
        violation("addresses are freed that were not reserved as one range, or have memory");
    } else {
        p->bytes = 0;
        while ((scratch = overlapping(&fake_scratches, address, bytes))) scratch->bytes = 0;
        munmap((void *)(uintptr_t)address, bytes);
    }
    pthread_mutex_unlock(&fake_lock);
    return wrong ? INVALID_VALUE : OK;
}

CUresult cuMemCreate(allocation **out, size_t bytes, const allocation_props *props, unsigned long long flags) {
    ENTER(enter_uncaptured);
    (void)flags;
    if (!bytes || bytes % FAKE_PAGE) return INVALID_VALUE;
    if (props->location.id < 0 || props->location.id >= fake_device_count) return INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    not_while_serving("cuMemCreate");
    CUresult code = take(props->location.id, bytes);
    pthread_mutex_unlock(&fake_lock);
    if (code) return code;
    *out = calloc(1, sizeof **out);
    **out = (allocation){.device = props->location.id, .bytes = bytes};
    return OK;
}

/* An allocation lives until it is neither mapped nor held; lock held. */
static void settle(allocation *a) {
    if (a->mapped || !a->released) return;
    fake_taken[a->device] -= a->bytes;
    free(a);
}

CUresult cuMemRelease(allocation *a) {
    ENTER(enter);
    pthread_mutex_lock(&fake_lock);
    a->released = 1;
    settle(a);
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, allocation *a, unsigned long long flags) {
    ENTER(enter);
    (void)flags;
    pthread_mutex_lock(&fake_lock);
    int wrong = offset || a->bytes != bytes || a->mapped || !within(&fake_reserved, address, bytes, NULL, 0) ||
                overlapping(&fake_mapped, address, bytes);
    if (wrong) {
        violation("memory is mapped outside of reserved addresses, or over other memory");
    } else {
        piece *p = put(&fake_mapped, address, bytes);
        p->owner = a;
        p->device = a->device;
        a->mapped = 1;
    }
    pthread_mutex_unlock(&fake_lock);
    return wrong ? INVALID_VALUE : OK;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const access *who, size_t count) {
    ENTER(enter);
    pthread_mutex_lock(&fake_lock);
    piece *p = at(&fake_mapped, address);
    int right = p && p->bytes == bytes && count == 1 && who->location.id == p->device && who->flags == 3 &&
                !mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE);
    if (right) p->open = 1;
    pthread_mutex_unlock(&fake_lock);
    return right ? OK : INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    ENTER(enter);
    pthread_mutex_lock(&fake_lock);
    check_unused(address, bytes, "unmapped");
    piece *p = at(&fake_mapped, address);
    int wrong = !p || p->bytes != bytes;
    if (wrong) {
        violation("what is unmapped was not mapped");
    } else {
        allocation *a = p->owner;
        p->bytes = 0;
        a->mapped = 0;
        settle(a);
        madvise((void *)(uintptr_t)address, bytes, MADV_DONTNEED);
        mprotect((void *)(uintptr_t)address, bytes, PROT_NONE);
    }
    pthread_mutex_unlock(&fake_lock);
    return wrong ? INVALID_VALUE : OK;
}

/* ---- allocations ---- */

static CUresult room_in(const pool *from, size_t bytes) {
    return from && from->most && from->used + bytes > from->most ? OUT_OF_MEMORY : OK;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, int device, pool *from) { /* lock held */
    if (!bytes) return INVALID_VALUE;
    bytes = rounded(bytes, from ? HOST_PAGE : FAKE_PAGE); /* a pool cuts its memory in small pieces */
    CUresult code = room_in(from, bytes);
    if (!code) code = take(device, bytes);
    if (code) return code;
    *out = (uintptr_t)pages(bytes, PROT_READ | PROT_WRITE);
    piece *p = put(&fake_mapped, *out, bytes);
    p->owner = from;
    p->device = device;
    p->open = 1;
    if (!from) return OK;
    from->used += bytes;
    if (from->used > from->high) from->high = from->used;
    return OK;
}

void give_back(uint64_t start) {
    piece *p = at(&fake_mapped, start);
    if (!p) {
        violation("memory is freed that is not there");
        return;
    }
    pool *from = p->owner;
    if (from) from->used -= p->bytes;
    fake_taken[p->device] -= p->bytes;
    munmap((void *)(uintptr_t)p->start, p->bytes);
    p->bytes = 0;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    ENTER(enter_uncaptured);
    pthread_mutex_lock(&fake_lock);
    not_while_serving("cuMemAlloc");
    CUresult code = allocate(out, bytes, fake_current->device, NULL);
    pthread_mutex_unlock(&fake_lock);
    return code;
}

static void check_freed(CUdeviceptr address) { /* lock held */
    piece *p = at(&fake_mapped, address);
    if (p) check_unused(address, p->bytes, "freed");
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER(enter_uncaptured);
    pthread_mutex_lock(&fake_lock);
    check_freed(address);
    give_back(address);
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *all) {
    ENTER(enter_current);
    *all = fake_bytes;
    *free_bytes = fake_bytes - fake_taken[fake_current->device];
    return OK;
}

/* ---- pools ---- */

CUresult cuMemPoolCreate(pool **out, const pool_props *props) {
    ENTER(enter);
    if (props->location.id < 0 || props->location.id >= fake_device_count) return INVALID_DEVICE;
    *out = calloc(1, sizeof **out);
    (*out)->device = props->location.id;
    (*out)->most = props->most;
    return OK;
}

CUresult cuMemPoolDestroy(pool *p) {
    ENTER(enter);
    pthread_mutex_lock(&fake_lock);
    size_t left = p->used;
    if (left) violation("a pool of %zu bytes is ended", left);
    pthread_mutex_unlock(&fake_lock);
    if (!left) free(p);
    return OK;
}

CUresult cuMemPoolTrimTo(pool *p, size_t keep) {
    ENTER(enter);
    (void)p, (void)keep; /* what is freed is given back at once */
    return OK;
}

CUresult cuMemPoolSetAttribute(pool *p, int which, void *value) {
    ENTER(enter);
    if (which != POOL_THRESHOLD) return INVALID_VALUE;
    p->threshold = *(uint64_t *)value;
    return OK;
}

CUresult cuMemPoolGetAttribute(pool *p, int which, void *value) {
    ENTER(enter);
    if (which < POOL_THRESHOLD || which > POOL_USED_HIGH) return INVALID_VALUE;
    const uint64_t values[] = {p->threshold, p->used, p->high, p->used, p->high};
    *(uint64_t *)value = values[which - POOL_THRESHOLD];
    return OK;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, pool *p, stream *s) {
    ENTER(enter_uncaptured);
    pthread_mutex_lock(&fake_lock);
    int by_default = (uintptr_t)s < 16;
    if (by_default) violation("an allocation on the default stream");
    CUresult code = by_default ? INVALID_HANDLE : allocate(out, bytes, p->device, p);
    pthread_mutex_unlock(&fake_lock);
    return code;
}

CUresult cuMemFreeAsync(CUdeviceptr address, stream *s) {
    ENTER(enter_uncaptured);
    pthread_mutex_lock(&fake_lock);
    piece *p = at(&fake_mapped, address);
    int wrong = !p || p->freed;
    if (wrong) violation("memory is freed that is not there");
    pthread_mutex_unlock(&fake_lock);
    return wrong ? INVALID_VALUE : push(s, (op){.kind = FREE, .to = address, .bytes = p->bytes});
}

/* ---- memory here ---- */

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    ENTER(enter_uncaptured);
    (void)flags;
    bytes = rounded(bytes, HOST_PAGE);
    if (!(*out = pages(bytes, PROT_READ | PROT_WRITE))) return OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    not_while_serving("cuMemHostAlloc");
    put(&fake_pinned, (uintptr_t)*out, bytes);
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

static CUresult unpin(void *address, int unmap) {
    pthread_mutex_lock(&fake_lock);
    piece *p = at(&fake_pinned, (uintptr_t)address);
    if (!p) {
        violation("memory is unpinned that is not pinned");
    } else {
        check_unused(p->start, p->bytes, "unpinned");
        if (unmap) munmap(address, p->bytes);
        p->bytes = 0;
    }
    pthread_mutex_unlock(&fake_lock);
    return p ? OK : unmap ? INVALID_VALUE : NOT_REGISTERED;
}

CUresult cuMemFreeHost(void *address) {
    ENTER(enter_uncaptured);
    return unpin(address, 1);
}

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    ENTER(enter_uncaptured);
    if (!bytes || flags & ~15u) return INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    int twice = overlapping(&fake_pinned, (uintptr_t)address, bytes) != NULL;
    if (!twice) put(&fake_pinned, (uintptr_t)address, bytes)->read_only = (flags & 8) != 0;
    pthread_mutex_unlock(&fake_lock);
    return twice ? ALREADY_REGISTERED : OK;
}

CUresult cuMemHostUnregister(void *address) {
    ENTER(enter_uncaptured);
    return unpin(address, 0);
}
