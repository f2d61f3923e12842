"""What others may know of a worker: the counters in its page, and the policy its batches close by."""
from collections import namedtuple

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastqueue cimport _c
from fastqueue._map cimport map_memory

from fastqueue.errors import ForkedHandle, LayoutMismatch

cdef extern from "<sys/mman.h>" nogil:
    int munmap(void *, size_t)

_c.fq_fork_watch()

NEVER = _c.FQ_NEVER
REASONS = ("full", "wait", "deadline")

Step = namedtuple("Step", "closes rows reason until_ns")
Count = namedtuple("Count", "count ns")
SizeStats = namedtuple("SizeStats", "rows executions input_ns compute_ns output_ns")
ModelStats = namedtuple(
    "ModelStats",
    "model rows executions last_unix_ms success fail queue input compute output cancelled expired slow "
    "pending_rows padding_rows engine reasons sizes",
)


def next_step(*, int64_t now, uint32_t rows, uint32_t requests, bint full, int64_t oldest_ns, uint32_t max_batch,
              int64_t max_wait_ns=0, int64_t head_start_ns=0, int64_t deadline_ns=_c.FQ_NEVER, int64_t predicted_ns=0, uint32_t idle=0,
              uint32_t behind=0, int64_t end_ns=_c.FQ_NEVER):
    """The policy of fq_policy.h for one model: what to do with what waits. Times in ns on one clock; NEVER: none."""
    cdef _c.fq_pending pending
    cdef _c.fq_free_slots slots
    cdef _c.fq_policy policy
    pending.rows, pending.requests, pending.full = rows, requests, full
    pending.oldest_ns, pending.deadline_ns, pending.predicted_ns = oldest_ns, deadline_ns, predicted_ns
    slots.idle, slots.behind, slots.end_ns = idle, behind, end_ns
    policy.max_batch, policy.max_wait_ns, policy.head_start_ns = max_batch, max_wait_ns, head_start_ns
    cdef _c.fq_step step = _c.fq_next_step(now, &pending, &slots, &policy)
    if step.kind == _c.FQ_STEP_CLOSE:
        return Step(True, step.rows, REASONS[step.reason], 0)
    return Step(False, 0, None, step.until_ns)


cdef list read_stats(const _c.fq_worker_page *page):
    return [model_stats(&page.models[i]) for i in range(_c.FQ_MAX_MODELS) if _c.fq_load_rlx(&page.models[i].model, _c.S2)]


cdef object read_count(const _c.fq_count *c):
    return Count(_c.fq_load_rlx(&c.count, _c.S2), _c.fq_load_rlx(&c.ns, _c.S2))


cdef object model_stats(const _c.fq_model_stats *m):
    sizes = [
        SizeStats(_c.fq_load_rlx(&m.sizes[i].rows, _c.S2), *read_count(&m.sizes[i].input),
                  _c.fq_load_rlx(&m.sizes[i].compute_ns, _c.S2), _c.fq_load_rlx(&m.sizes[i].output_ns, _c.S2))
        for i in range(_c.FQ_MAX_SIZES)
        if _c.fq_load_rlx(&m.sizes[i].input.count, _c.S2)
    ]
    return ModelStats(
        _c.fq_load_rlx(&m.model, _c.S2), _c.fq_load_rlx(&m.rows, _c.S2), _c.fq_load_rlx(&m.executions, _c.S2),
        _c.fq_load_rlx(&m.last_unix_ms, _c.S2), read_count(&m.success), read_count(&m.fail), read_count(&m.queue),
        read_count(&m.input), read_count(&m.compute), read_count(&m.output), _c.fq_load_rlx(&m.cancelled, _c.S2),
        _c.fq_load_rlx(&m.expired, _c.S2), _c.fq_load_rlx(&m.slow, _c.S2), _c.fq_load_rlx(&m.pending_rows, _c.S2),
        _c.fq_load_rlx(&m.padding_rows, _c.S2),
        tuple([_c.fq_load_rlx(&m.engine[i], _c.S2) for i in range(_c.FQ_ENGINE_COUNTS)]),
        {REASONS[i]: _c.fq_load_rlx(&m.batches[i], _c.S2) for i in range(_c.FQ_REASONS)},
        sorted(sizes),
    )


cdef class WorkerPage:
    """A worker's page, mapped to read its counters from another process. The descriptor stays the caller's."""
    cdef _c.fq_worker_page *page
    cdef uint64_t size
    cdef unsigned generation

    def __cinit__(self, int fd):
        self.generation = _c.fq_generation
        self.page = <_c.fq_worker_page *>map_memory(fd, 0, &self.size, "worker page")
        if self.page.magic != _c.FQ_MAGIC_WORKER or self.page.version != _c.FQ_ABI_VERSION:
            raise LayoutMismatch(f"worker page: expected version {_c.FQ_ABI_VERSION}, found {self.page.version}")

    def __dealloc__(self):
        if self.page != NULL and self.generation == _c.fq_generation:
            munmap(self.page, self.size)

    def stats(self) -> list:
        """A ModelStats per model that is loaded."""
        if self.generation != _c.fq_generation:
            raise ForkedHandle("this WorkerPage was mapped before a fork; start processes with spawn")
        return read_stats(self.page)

    def stats_of(self, uint32_t id):
        """The ModelStats of one model, or None when it is not loaded."""
        if self.generation != _c.fq_generation:
            raise ForkedHandle("this WorkerPage was mapped before a fork; start processes with spawn")
        for i in range(_c.FQ_MAX_MODELS):
            if id and _c.fq_load_rlx(&self.page.models[i].model, _c.S2) == id:
                return model_stats(&self.page.models[i])
        return None

    def __reduce__(self):
        raise TypeError("a WorkerPage is shared by descriptor, not by pickle")
