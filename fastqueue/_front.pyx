"""The front end's side: an input arena, and lanes to workers. All of one thread: no call here may run beside another
on the same arena or lane."""
import os
from collections import namedtuple

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from fastqueue cimport _c
from fastqueue._map cimport map_memory

from fastqueue.errors import ForkedHandle, LayoutMismatch, QueueError, QueueFull

cdef extern from "<sys/mman.h>" nogil:
    int munmap(void *, size_t)

_c.fq_fork_watch()

NEVER = _c.FQ_NEVER

Completion = namedtuple(
    "Completion",
    "slot status again message outputs batch batch_rows reason queue_ns input_ns compute_ns output_ns done_ns",
)


cdef class InputArena:
    """Payload memory of one front-end thread: `megabytes` MB in a sealed memfd that workers map, and behind them
    `spill_mb` MB for large requests, which take memory only while one lies there (fq_spill.h).

    Errors: ValueError (no positive size), OSError (no memory), ForkedHandle.
    """
    cdef _c.fq_input input
    cdef unsigned char *base
    cdef void *private_memory
    cdef void *spill_memory
    cdef uint64_t size
    cdef unsigned generation
    cdef readonly int fd

    def __cinit__(self, megabytes=256, spill_mb=0):
        cdef uint64_t mapped = 0
        self.fd = -1
        self.generation = _c.fq_generation
        if megabytes < 1:
            raise ValueError(f"an input arena has at least 1 MB, not {megabytes}")
        cdef uint32_t blocks = <uint32_t>(megabytes * 4)
        cdef uint64_t spill = <uint64_t>spill_mb << 20
        self.size = _c.fq_input_arena_bytes(blocks) + spill
        self.fd = _c.fq_map_create(b"headrace-input", self.size)
        if self.fd < 0:
            raise OSError(errno, f"an input arena of {megabytes} MB: {os.strerror(errno)}")
        self.base = <unsigned char *>map_memory(self.fd, 1, &mapped, "input arena")
        self.private_memory = calloc(1, _c.fq_input_private_bytes(blocks))
        self.spill_memory = calloc(1, _c.fq_spill_private_bytes(spill) + 1)
        if self.private_memory == NULL or self.spill_memory == NULL:
            raise MemoryError()
        _c.fq_input_init(&self.input, blocks, self.private_memory)
        _c.fq_input_add_spill(&self.input, spill, self.fd, _c.fq_map_punch, self.spill_memory)
        header = <_c.fq_arena_header *>self.base
        header.version = _c.FQ_ABI_VERSION
        header.bytes = self.size
        header.head_bytes = self.size - spill
        header.magic = _c.FQ_MAGIC_INPUT

    def __dealloc__(self):
        if self.generation != _c.fq_generation:
            return  # a forked child: the mapping is not there
        if self.base != NULL:
            munmap(self.base, self.size)
        if self.fd >= 0:
            os.close(self.fd)
        free(self.private_memory)
        free(self.spill_memory)

    @property
    def used_bytes(self) -> int:
        """Bytes that are handed out, the spill's among them."""
        self.alive()
        return _c.fq_input_used(&self.input)

    def check(self) -> int:
        """The number of the broken invariant of fq_input.h, 0 when all hold."""
        self.alive()
        return _c.fq_input_check(&self.input)

    cdef int alive(self) except -1:
        if self.generation != _c.fq_generation:
            raise ForkedHandle("this InputArena was made before a fork; start processes with spawn")
        return 0

    def __reduce__(self):
        raise TypeError("an InputArena is shared by descriptor, not by pickle: send `fd` over a socket")


@cython.internal
@cython.final
cdef class Sources:
    """Tensors to send, as C sees them; holds the buffers until it goes."""
    cdef _c.fq_source sources[64]
    cdef int64_t dims[64][8]
    cdef Py_buffer buffers[128]
    cdef uint32_t count, buffer_count

    def __cinit__(self, tensors):
        self.count = self.buffer_count = 0
        if len(tensors) > _c.FQ_MAX_TENSORS:
            raise ValueError(f"a request has at most {_c.FQ_MAX_TENSORS} tensors, not {len(tensors)}")
        for index, dims, data, *row_ends in sorted(tensors, key=lambda tensor: tensor[0]):
            self.add(index, tuple(dims), data)
            if row_ends:
                self.add_row_ends(row_ends[0])

    cdef Py_buffer *hold(self, data) except NULL:
        cdef Py_buffer *buffer = &self.buffers[self.buffer_count]
        PyObject_GetBuffer(data, buffer, PyBUF_SIMPLE)
        self.buffer_count += 1
        return buffer

    cdef int add_row_ends(self, data) except -1:
        cdef Py_buffer *buffer = self.hold(data)
        self.sources[self.count - 1].row_ends = <const uint64_t *>buffer.buf
        self.sources[self.count - 1].rows = <uint32_t>(buffer.len // sizeof(uint64_t))
        return 0

    cdef int add(self, uint32_t index, tuple dims, data) except -1:
        cdef uint32_t i = self.count
        if len(dims) > _c.FQ_MAX_RANK:
            raise ValueError(f"tensor {index}: a tensor has at most {_c.FQ_MAX_RANK} dimensions, not {len(dims)}")
        cdef Py_buffer *buffer = self.hold(data)
        self.count += 1
        for d, n in enumerate(dims):
            self.dims[i][d] = n
        self.sources[i].index = index
        self.sources[i].rank = <uint32_t>len(dims)
        self.sources[i].dims = self.dims[i]
        self.sources[i].data = buffer.buf
        self.sources[i].length = <uint64_t>buffer.len
        return 0

    def __dealloc__(self):
        for i in range(self.buffer_count):
            PyBuffer_Release(&self.buffers[i])


cdef class FrontLane:
    """The front end's end of the lane to one worker, with `slots` (a power of two) requests in flight at most.

    `fds` (lane, arena, eventfd) go to the worker; what it sends back goes into `attach_worker`. `eventfd` may be shared by
    all lanes of a thread. Errors: QueueFull, LayoutMismatch, ForkedHandle, OSError.
    """
    cdef _c.fq_front_lane front
    cdef InputArena arena
    cdef void *memory
    cdef _c.fq_worker_page *page
    cdef unsigned char *output
    cdef uint64_t size, page_size, output_size
    cdef uint32_t *free_slots
    cdef unsigned char *states
    cdef _c.fq_extent *blocks
    cdef uint32_t *block_counts
    cdef unsigned generation
    cdef readonly int fd
    cdef readonly int eventfd
    cdef bint own_eventfd

    def __cinit__(self, InputArena arena not None, uint32_t slots=1024, eventfd=None):
        cdef uint64_t mapped = 0
        self.fd = self.eventfd = -1
        self.generation = _c.fq_generation
        if slots == 0 or slots & (slots - 1) or slots > 65536:
            raise ValueError(f"slots must be a power of two up to 65536, not {slots}")
        self.arena = arena
        self.size = _c.fq_lane_bytes(slots, slots)
        self.fd = _c.fq_map_create(b"headrace-lane", self.size)
        if self.fd < 0:
            raise OSError(errno, f"a lane of {slots} slots: {os.strerror(errno)}")
        self.memory = map_memory(self.fd, 1, &mapped, "lane")
        self.own_eventfd = eventfd is None
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if eventfd is None else eventfd
        self.free_slots = <uint32_t *>calloc(slots, 4)
        self.states = <unsigned char *>calloc(slots, 1)
        self.blocks = <_c.fq_extent *>calloc(slots * _c.FQ_FILL_BLOCKS, sizeof(_c.fq_extent))
        self.block_counts = <uint32_t *>calloc(slots, 4)
        if not (self.free_slots and self.states and self.blocks and self.block_counts):
            raise MemoryError()
        _c.fq_lane_format(self.memory, slots, slots)
        _c.fq_lane_attach(&self.front.lane, self.memory, slots, slots, 1)
        _c.fq_front_lane_init(&self.front, self.free_slots, self.states)

    def __dealloc__(self):
        if self.generation != _c.fq_generation:
            return
        for at, size in ((<size_t>self.memory, self.size), (<size_t>self.page, self.page_size),
                         (<size_t>self.output, self.output_size)):
            if at:
                munmap(<void *><size_t>at, size)
        if self.fd >= 0:
            os.close(self.fd)
        if self.own_eventfd and self.eventfd >= 0:
            os.close(self.eventfd)
        free(self.free_slots)
        free(self.states)
        free(self.blocks)
        free(self.block_counts)

    @property
    def fds(self) -> tuple[int, int, int]:
        """Descriptors for the worker: lane, input arena, eventfd."""
        return self.fd, self.arena.fd, self.eventfd

    @property
    def free_count(self) -> int:
        """Slots that are free."""
        return self.front.free_count

    cdef int alive(self) except -1:
        if self.generation != _c.fq_generation:
            raise ForkedHandle("this FrontLane was made before a fork; start processes with spawn")
        return 0

    def attach_worker(self, int page_fd, int output_fd) -> None:
        """Maps the worker's page and output arena. The descriptors stay the caller's."""
        self.alive()
        self.page = <_c.fq_worker_page *>map_memory(page_fd, 1, &self.page_size, "worker page")
        if self.page.magic != _c.FQ_MAGIC_WORKER or self.page.version != _c.FQ_ABI_VERSION:
            raise LayoutMismatch(f"worker page: expected version {_c.FQ_ABI_VERSION}, found {self.page.version} "
                                 f"(magic {self.page.magic:#x}); restart the service with one build")
        self.output = <unsigned char *>map_memory(output_fd, 0, &self.output_size, "output arena")
        if (<_c.fq_arena_header *>self.output).magic != _c.FQ_MAGIC_OUTPUT:
            raise LayoutMismatch("output arena: the descriptor holds something else")
        self.front.worker = &self.page.bell

    def submit(self, uint32_t model, uint32_t rows, tensors, deadline_ns=None, arrival_ns=None, uint32_t priority=0) -> int:
        """Sends a request: `tensors` are (input index, dims, buffer), and where rows differ in size a buffer of a u64 per
        row, its end in bytes. Times in ns of CLOCK_MONOTONIC. `priority`: 1 is the highest, 0 the model's default. Its slot
        number."""
        self.alive()
        if self.page == NULL:
            raise QueueError("submit before attach_worker")
        cdef Sources sources = Sources(tensors)
        cdef uint32_t number = 0
        cdef _c.fq_slot *slot = _c.fq_lane_claim(&self.front, &number)
        if slot == NULL:
            raise QueueFull(f"all {self.front.lane.slot_count} slots of the lane are in use")
        cdef _c.fq_extent *blocks = self.blocks + <size_t>number * _c.FQ_FILL_BLOCKS
        cdef uint32_t taken = _c.fq_fill(&self.arena.input, self.arena.base, sources.sources, sources.count, blocks, slot)
        if taken == 0:
            _c.fq_lane_free(&self.front, number)
            raise QueueFull("the input arena has no room for the request now")
        self.block_counts[number] = taken
        slot.model = model
        slot.rows = rows
        slot.priority = priority
        slot.arrival_ns = _c.fq_monotonic_ns() if arrival_ns is None else arrival_ns
        slot.deadline_ns = _c.FQ_NEVER if deadline_ns is None else deadline_ns
        if _c.fq_lane_publish(&self.front, number) > 0:
            _c.fq_bell_wake(self.front.worker)
        return number

    def cancel(self, uint32_t number) -> None:
        """Asks the worker to drop a request. Its completion still comes."""
        self.alive()
        if number >= self.front.lane.slot_count:
            raise ValueError(f"slot {number}: the lane has {self.front.lane.slot_count}")
        if _c.fq_lane_cancel(&self.front, number):
            _c.fq_bell_wake(self.front.worker)

    def poll(self):
        """The next Completion, or None. `outputs` are (dims, bytes), copied; the slot is free again."""
        self.alive()
        cdef _c.fq_completion done
        cdef int got = -1
        while got < 0:
            got = _c.fq_lane_poll(&self.front, &done)
        if got == 0:
            return None
        cdef uint32_t n = done.slot
        message = _c.fq_lane_text(&self.front.lane, n)[:done.text_bytes].decode("utf-8", "replace")
        outputs = self.outputs(done.answer) if done.answer.length else []
        _c.fq_input_free(&self.arena.input, self.blocks + <size_t>n * _c.FQ_FILL_BLOCKS, self.block_counts[n])
        if _c.fq_lane_retire(&self.front, n, done.answer.length != 0):
            _c.fq_bell_wake(self.front.worker)
        return Completion(n, done.status, done.flags & _c.FQ_AGAIN != 0, message, outputs, done.batch, done.batch_rows,
                          done.reason, done.queue_ns, done.input_ns, done.compute_ns, done.output_ns, done.done_ns)

    cdef list outputs(self, _c.fq_extent at):
        cdef const _c.fq_answer *answer
        cdef const _c.fq_slice *slices
        if at.offset > self.output_size or at.length > self.output_size - at.offset:
            raise LayoutMismatch(f"an answer at {at.offset} (+{at.length}) in an output arena of {self.output_size} bytes")
        answer = <const _c.fq_answer *>(self.output + at.offset)
        slices = <const _c.fq_slice *>(answer + 1)
        found = []
        for i in range(answer.slice_count):
            dims = tuple([slices[i].dims[d] for d in range(slices[i].rank)])
            data = <const char *>self.output + slices[i].data.offset
            found.append((dims, data[:slices[i].data.length]))
        return found

    def arm(self) -> bool:
        """True: the eventfd will be written on the next completion. False: there are some already, poll."""
        self.alive()
        return _c.fq_front_lane_arm(&self.front) != 0

    def __reduce__(self):
        raise TypeError("a FrontLane is shared by its fds, not by pickle")
