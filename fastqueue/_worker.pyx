"""The worker's side: the batch former, and the batches it hands to launchers."""
import os
from collections import namedtuple

cimport cython
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from fastqueue cimport _c
from fastqueue._map cimport map_memory

from fastqueue._page import REASONS, WorkerPage
from fastqueue.errors import ForkedHandle, LayoutMismatch, OutputTooLarge, QueueError, QueueFull

cdef extern from "<sys/mman.h>" nogil:
    int munmap(void *, size_t)

_c.fq_fork_watch()

MAX_LEVELS = _c.FQ_MAX_LEVELS

Level = namedtuple("Level", "timeout_ns delay max_queue", defaults=(0, False, 0))
Running = namedtuple("Running", "model rows number age_ns slow_after_ns slow")


cdef class Batch:
    """A launched batch. It ends with `complete`, `fail` or `hand_over`; after that every call raises QueueError."""
    cdef BatchFormer former
    cdef _c.fq_batch *batch
    cdef list row_ends

    cdef int alive(self) except -1:
        if self.batch == NULL:
            raise QueueError("this batch is done: it was completed, failed, handed over, or had nothing left to run")
        return self.former.alive()

    @property
    def model(self) -> int:
        """Id of the model."""
        self.alive()
        return self.batch.model.id

    @property
    def number(self) -> int:
        """Counts the worker's batches from 1."""
        self.alive()
        return self.batch.number

    @property
    def rows(self) -> int:
        """Rows along the batch axis; 1 for a model that does not batch."""
        self.alive()
        return self.batch.rows

    @property
    def request_count(self) -> int:
        """Requests, or parts of them, in the batch."""
        self.alive()
        return self.batch.part_count

    @property
    def reason(self) -> str:
        """Why it closed: full, wait or deadline."""
        self.alive()
        return REASONS[self.batch.reason]

    def check(self) -> bool:
        """Drops requests that were cancelled or whose deadline passed. False: nothing is left, the batch is done."""
        self.alive()
        if _c.fq_batch_check(self.batch):
            return True
        self.batch = NULL
        return False

    cdef int input_index(self, uint32_t index) except -1:
        self.alive()
        if index >= self.batch.model.signature.inputs:
            raise ValueError(f"input {index}: the model has {self.batch.model.signature.inputs} inputs")
        return 0

    def input_shape(self, uint32_t index):
        """Shape of the input for the whole batch, or None when the requests do not have this input."""
        cdef int64_t dims[8]
        self.input_index(index)
        cdef int rank = _c.fq_batch_shape(self.batch, index, dims)
        return None if rank < 0 else tuple([dims[i] for i in range(rank)])

    def input_bytes(self, uint32_t index) -> int:
        """Bytes of the input for the whole batch."""
        self.input_index(index)
        return _c.fq_batch_input_bytes(self.batch, index)

    def input_pointer(self, uint32_t index) -> int:
        """Address of the whole batch's input where it lies, 64-byte aligned, read-only; 0: it must be gathered."""
        self.input_index(index)
        return <size_t>_c.fq_batch_view(self.batch, index)

    def gather(self, uint32_t index, size_t address, uint64_t capacity) -> None:
        """Copies the rows of the batch to `address`, without the GIL. ValueError when `capacity` bytes do not suffice."""
        cdef int failed
        self.input_index(index)
        with nogil:
            failed = _c.fq_batch_gather(self.batch, index, <void *>address, capacity)
        if failed:
            raise ValueError(f"input {index}: the batch has {self.input_bytes(index)} bytes, the buffer {capacity}")

    def gather_rows(self, uint32_t index, uint32_t first, uint32_t rows, size_t address, uint64_t capacity) -> None:
        """Copies `rows` rows of the batch from `first` on, as `gather` does; ValueError also when it has not as many."""
        cdef int failed
        self.input_index(index)
        if not self.batch.model.signature.batched or first + <uint64_t>rows > self.batch.rows:
            raise ValueError(f"expected rows within the batch's {self.batch.rows}, got {rows} from {first} on")
        with nogil:
            failed = _c.fq_batch_gather_rows(self.batch, index, first, rows, <void *>address, capacity)
        if failed:
            raise ValueError(f"input {index}: {rows} rows do not fit into the buffer's {capacity} bytes")

    def mark_input_done(self, uint32_t padding=0) -> None:
        """The inputs are in place: the time counts as copy-in until now, as compute from now on.

        `padding`: rows that the model runs behind the batch's own. The size it is counted under has them.
        """
        self.alive()
        self.batch.padding = padding
        self.batch.input_ns = self.batch.compute_ns = _c.fq_now(self.former.former)

    def mark_compute_done(self) -> None:
        """The outputs are computed: the time counts as copy-out from now on."""
        self.alive()
        self.batch.compute_ns = _c.fq_now(self.former.former)

    def count(self, uint32_t which, uint64_t n=1) -> None:
        """Adds to a number of the engine's own, which is in the model's statistics (`ModelStats.engine`) when the batch is
        complete. `which`: 0 to 3, and the engine knows what it is."""
        self.alive()
        if which >= _c.FQ_ENGINE_COUNTS:
            raise ValueError(f"an engine has {_c.FQ_ENGINE_COUNTS} numbers of its own, and none is {which}")
        self.batch.counts[which] += n

    def reserve(self, outputs, bint wait=True):
        """Memory in the output arena for the whole batch's outputs: their addresses.

        Of each output the bytes per row (per request for a model that does not batch); or, where rows differ in
        size, a buffer of a u64 per row: where it ends, in bytes. Sleeps without the GIL while the arena is full; with
        wait=False returns None then. OutputTooLarge: it can never fit. QueueFull: nothing is left that it
        could wait for.
        """
        cdef _c.fq_sizes sizes[64]
        cdef int result
        self.alive()
        cdef uint32_t count = self.batch.model.outputs
        if len(outputs) != count:
            raise ValueError(f"the model has {count} outputs, not {len(outputs)}")
        self.row_ends = [self.set_size(&sizes[i], i, size) for i, size in enumerate(outputs)]
        with nogil:
            result = _c.fq_batch_reserve(self.batch, sizes, wait)
        if result == _c.FQ_RESERVED:
            return [<size_t>_c.fq_batch_output(self.batch, i) for i in range(count)]
        if result == _c.FQ_RESERVE_NEVER:
            raise OutputTooLarge(
                f"the outputs of {self.batch.rows} rows, or of the request they are a part of, do not fit into the output "
                f"arena: {_c.fq_output_most(&self.former.former.output, 1)} bytes at most, half of that for a request in "
                "parts; send fewer rows or raise --output-arena-mb or --spill-mb")
        if result == _c.FQ_RESERVE_VAIN:
            raise QueueFull("the output arena is full of the collected outputs of requests in parts, which wait for each "
                            "other; send fewer rows, try later or raise --output-arena-mb or --spill-mb")
        if result == _c.FQ_RESERVE_CHANGED:
            raise QueueError("the outputs of one request's parts differ in size per row, so they cannot be joined")
        if wait:
            raise QueueError("the worker is closing")
        return None

    cdef object set_size(self, _c.fq_sizes *out, int index, size):
        """Fills in an output's size; returns what must live as long as the batch."""
        out.row_ends = NULL
        if isinstance(size, int):
            out.row_bytes = size
            return None
        cdef const uint64_t[::1] ends = memoryview(size).cast("B").cast("Q")
        if ends.shape[0] != self.batch.rows:
            raise ValueError(f"output {index}: {self.batch.rows} row ends expected, got {ends.shape[0]}")
        for i in range(1, ends.shape[0]):
            if ends[i] < ends[i - 1]:
                raise ValueError(f"output {index}: row {i} ends at {ends[i]}, before row {i - 1} at {ends[i - 1]}")
        out.row_bytes = 0
        if ends.shape[0]:
            out.row_ends = &ends[0]
        return ends

    def complete(self, shapes) -> None:
        """Answers every request with its rows. `shapes`: of each output for the whole batch, in model order."""
        cdef _c.fq_shape all_shapes[64]
        self.alive()
        cdef uint32_t count = self.batch.model.outputs
        if len(shapes) != count:
            raise ValueError(f"the model has {count} outputs, not {len(shapes)}")
        for i, shape in enumerate(shapes):
            if len(shape) > _c.FQ_MAX_RANK:
                raise ValueError(f"output {i}: at most {_c.FQ_MAX_RANK} dimensions, not {len(shape)}")
            all_shapes[i].rank = <uint32_t>len(shape)
            for d, n in enumerate(shape):
                all_shapes[i].dims[d] = n
            if self.batch.model.signature.batched and (not shape or shape[0] != self.batch.rows):
                raise ValueError(f"output {i}: {self.batch.rows} rows expected along axis 0, shape is {tuple(shape)}")
        if not self.batch.reserved:
            raise QueueError("complete before reserve: there is no output memory yet")
        with nogil:
            _c.fq_batch_complete(self.batch, all_shapes)
        self.batch = NULL

    def fail(self, uint32_t status, str message, bint again=False) -> None:
        """Fails every request of the batch with a gRPC status code and a message. `again`: the same requests may well
        succeed a little later, and their clients are told so."""
        self.alive()
        data = message.encode("utf-8", "replace")
        cdef const char *text = data
        with nogil:
            _c.fq_batch_fail(self.batch, status, _c.FQ_AGAIN if again else 0, text)
        self.batch = NULL

    @property
    def address(self) -> int:
        """Of the fq_batch, for C that reads it while this object lives."""
        self.alive()
        return <size_t>self.batch

    def hand_over(self) -> int:
        """Address of the fq_batch, for C that ends the batch in its own time (fq_batch_complete or fq_batch_fail of
        fq_batch.h), before the BatchFormer is gone; this object is done. QueueError: its outputs' row ends are a
        buffer of `reserve`, which lives only as long as this object."""
        self.alive()
        if self.row_ends is not None and any(ends is not None for ends in self.row_ends):
            raise QueueError("a batch whose output rows differ in size cannot be handed over; complete it")
        cdef size_t address = <size_t>self.batch
        self.batch = NULL
        return address

    def __reduce__(self):
        raise TypeError("a Batch belongs to its worker and cannot be pickled")


@cython.internal
@cython.final
cdef class Attached:
    """What a lane holds on the worker's side: its mappings and private memory."""
    cdef void *lane
    cdef void *arena
    cdef void *private_memory
    cdef uint64_t lane_size, arena_size, head_size
    cdef int eventfd
    cdef unsigned generation

    def __cinit__(self):
        self.eventfd = -1
        self.generation = _c.fq_generation

    def __dealloc__(self):
        if self.generation != _c.fq_generation:
            return
        if self.lane != NULL:
            munmap(self.lane, self.lane_size)
        if self.arena != NULL:
            munmap(self.arena, self.arena_size)
        if self.eventfd >= 0:
            os.close(self.eventfd)
        free(self.private_memory)


cdef class BatchFormer:
    """A worker's queue: lanes in, batches out. `output_mb` is the output arena's size, `spill_mb` what it
    may have more, for large outputs; that takes memory only while they are there.

    One thread runs `run()`, one per stream asks `next_batch(stream)`; all other calls may come from any thread. With
    `clock_ns` the former lives on a test's clock, which `set_clock` moves, and `step()` and `try_batch()` take the place
    of threads. Errors: OSError, LayoutMismatch, ForkedHandle, QueueError.
    """
    cdef _c.fq_former *former
    cdef void *page
    cdef void *output
    cdef void *output_private
    cdef uint64_t page_size, output_size
    cdef unsigned generation
    cdef dict lanes
    cdef readonly int page_fd
    cdef readonly int output_fd

    def __cinit__(self, output_mb=256, clock_ns=None, spill_mb=0):
        self.page_fd = self.output_fd = -1
        self.generation = _c.fq_generation
        self.lanes = {}
        if output_mb < 1:
            raise ValueError(f"an output arena has at least 1 MB, not {output_mb}")
        cdef uint64_t spill = <uint64_t>spill_mb << 20
        cdef uint64_t size = (<uint64_t>output_mb << 20) + spill
        self.page_fd = _c.fq_map_create(b"headrace-worker", sizeof(_c.fq_worker_page))
        self.output_fd = _c.fq_map_create(b"headrace-output", size)
        if self.page_fd < 0 or self.output_fd < 0:
            raise OSError(errno, f"an output arena of {output_mb} MB: {os.strerror(errno)}")
        self.page = map_memory(self.page_fd, 1, &self.page_size, "worker page")
        self.output = map_memory(self.output_fd, 1, &self.output_size, "output arena")
        self.former = <_c.fq_former *>calloc(1, sizeof(_c.fq_former))
        self.output_private = calloc(1, _c.fq_output_private_bytes(size // 4096))
        if self.former == NULL or self.output_private == NULL:
            raise MemoryError()
        _c.fq_former_init(self.former, <_c.fq_worker_page *>self.page, self.output, size, self.output_private)
        _c.fq_former_set_spill(self.former, spill, self.output_fd, _c.fq_map_punch)
        if clock_ns is not None:
            self.former.fixed_ns = clock_ns

    def __dealloc__(self):
        if self.generation != _c.fq_generation:
            return
        if self.page != NULL:
            munmap(self.page, self.page_size)
        if self.output != NULL:
            munmap(self.output, self.output_size)
        for fd in (self.page_fd, self.output_fd):
            if fd >= 0:
                os.close(fd)
        free(self.former)
        free(self.output_private)

    cdef int alive(self) except -1:
        if self.generation != _c.fq_generation:
            raise ForkedHandle("this BatchFormer was made before a fork; start processes with spawn")
        return 0

    def attach_lane(self, int lane_fd, int arena_fd, int eventfd) -> int:
        """A front-end thread's lane. The descriptors stay the caller's (the eventfd is duplicated). Its number."""
        self.alive()
        cdef Attached a = Attached()
        a.lane = map_memory(lane_fd, 1, &a.lane_size, "lane")
        cdef _c.fq_lane_header header = (<_c.fq_lane_header *>a.lane)[0]
        cdef int broken = 6 if a.lane_size < sizeof(header) else _c.fq_lane_check_header(&header, a.lane_size)
        if broken:
            raise LayoutMismatch(f"lane: rule {broken} of fq_lane_check_header is broken (version {header.version}, expected "
                                 f"{_c.FQ_ABI_VERSION}); restart the service with one build")
        a.arena = map_memory(arena_fd, 0, &a.arena_size, "input arena")
        if a.arena_size < 4096 or (<_c.fq_arena_header *>a.arena).magic != _c.FQ_MAGIC_INPUT:
            raise LayoutMismatch("input arena: the descriptor holds something else")
        a.head_size = (<_c.fq_arena_header *>a.arena).head_bytes
        if a.head_size > a.arena_size or a.head_size % 4096:
            raise LayoutMismatch(f"input arena: a head of {a.head_size} bytes in {a.arena_size}; expected whole pages within it")
        a.private_memory = calloc(1, _c.fq_attached_private_bytes(header.slots))
        if a.private_memory == NULL:
            raise MemoryError()
        a.eventfd = os.dup(eventfd)
        cdef int number = _c.fq_former_attach(self.former, a.lane, header.slots, header.completions, a.arena, a.arena_size,
                                              a.eventfd, a.private_memory)
        if number < 0:
            raise QueueError("a worker has at most 64 lanes")
        self.lanes[number] = a
        return number

    def lane_memory(self, uint32_t number):
        """The lane's input arena as it is mapped here, read-only: (address, bytes of its head, bytes). The head
        is always backed by memory, what lies behind it only while a large request does. ValueError: no such lane."""
        self.alive()
        cdef Attached a = self.lanes.get(number)
        if a is None:
            raise ValueError(f"lane {number} is not attached")
        return <size_t>a.arena, a.head_size, a.arena_size

    def output_memory(self):
        """The output arena as it is mapped here: (address, bytes of its head, bytes). Outputs lie in it."""
        self.alive()
        return <size_t>self.output, self.former.output.head * 4096, self.output_size

    def detach_lane(self, uint32_t number, drained=None) -> None:
        """The front end of a lane is gone. Waits, without the GIL, for what is launched. `drained` is called when
        nothing reads the lane's memory any more and before it is unmapped."""
        self.alive()
        # Out of the table before the number is free: another thread may attach a lane under it at once.
        attached = self.lanes.pop(number, None)
        if attached is None:
            raise ValueError(f"lane {number} is not attached")
        with nogil:
            _c.fq_former_detach(self.former, number)
        if drained is not None:
            drained()
        del attached  # unmapped only now

    def add_model(self, uint32_t id, *, uint32_t group, uint32_t max_batch, element_bytes, output_row_bytes,
                  int64_t max_wait_ns=0, int64_t head_start_ns=0, bint batched=True, uint32_t max_streams=1, levels=(Level(),),
                  uint32_t default_level=0) -> None:
        """Registers a model: `element_bytes` per input (0: variable), `output_row_bytes` per output (-1: known after the
        run only). max_batch in rows; 1 and batched=False for a model that does not batch. `levels`: a Level per priority,
        the highest first; `default_level` counts from 0."""
        cdef _c.fq_model_config config
        self.alive()
        if id == 0 or max_batch == 0 or not (len(element_bytes) <= _c.FQ_MAX_TENSORS >= len(output_row_bytes)):
            raise ValueError(f"model {id}: id and max_batch ({max_batch}) are positive, with at most "
                             f"{_c.FQ_MAX_TENSORS} inputs and outputs")
        if not default_level < len(levels) <= _c.FQ_MAX_LEVELS:
            raise ValueError(f"model {id}: 1 to {_c.FQ_MAX_LEVELS} levels with a default among them, not {len(levels)} with "
                             f"{default_level}")
        memset(&config, 0, sizeof(config))
        config.id, config.group, config.max_streams = id, group, max_streams
        config.policy.max_batch, config.policy.max_wait_ns = max_batch, max_wait_ns
        config.policy.head_start_ns = head_start_ns
        config.signature.inputs, config.signature.batched = len(element_bytes), batched
        config.outputs = len(output_row_bytes)
        for i, size in enumerate(element_bytes):
            config.signature.element_bytes[i] = size
        for i, size in enumerate(output_row_bytes):
            config.output_row_bytes[i] = size
        config.level_count, config.default_level = len(levels), default_level
        for i, (timeout_ns, delay, max_queue) in enumerate(levels):
            config.levels[i].timeout_ns, config.levels[i].delay = timeout_ns, delay
            config.levels[i].max_queue = max_queue
        if _c.fq_former_add_model(self.former, &config) < 0:
            raise QueueError(f"a worker has at most {_c.FQ_MAX_MODELS} models loaded")

    def remove_model(self, uint32_t id) -> None:
        """Waits, without the GIL, until all that was sent to the model is answered, then forgets it. Nothing more may be
        sent to it."""
        self.alive()
        with nogil:
            _c.fq_former_remove_model(self.former, id)

    def add_stream(self, uint32_t group) -> int:
        """A stream with two launch slots, for the models of `group`. Its number."""
        self.alive()
        cdef int number = _c.fq_former_add_stream(self.former, group)
        if number < 0:
            raise QueueError(f"a worker has at most {_c.FQ_MAX_STREAMS} streams")
        return number

    def remove_stream(self, uint32_t number) -> None:
        """Its launcher's next_batch returns None. The number may be given again at once: add no stream before it has."""
        self.alive()
        _c.fq_former_remove_stream(self.former, number)

    def run(self) -> None:
        """The former thread, without the GIL, until `close`."""
        self.alive()
        with nogil:
            _c.fq_former_run(self.former)

    def close(self) -> None:
        """Ends `run` and every `next_batch`. What waits stays unanswered: end the lanes."""
        self.alive()
        with nogil:
            _c.fq_former_close(self.former)

    def next_batch(self, uint32_t stream):
        """The stream's next batch, launched; waits without the GIL. None: the stream was removed or the worker closes."""
        cdef _c.fq_batch *batch
        self.alive()
        with nogil:
            batch = _c.fq_stream_next(self.former, stream)
        return self.wrap(batch)

    def try_batch(self, uint32_t stream):
        """The stream's next closed batch, launched, or None."""
        self.alive()
        return self.wrap(_c.fq_stream_try(self.former, stream))

    cdef Batch wrap(self, _c.fq_batch *batch):
        if batch == NULL:
            return None
        cdef Batch wrapped = Batch()
        wrapped.former = self
        wrapped.batch = batch
        return wrapped

    def step(self) -> int:
        """Everything that can be done now, on this thread. When to step again if nothing comes, in ns."""
        self.alive()
        return _c.fq_former_step_now(self.former)

    def watch(self) -> list:
        """A Running per launched batch. `slow` is True once per batch, when it has run for `slow_after_ns`; it is then
        counted. Ages are without the time that a batch waited for output memory."""
        cdef _c.fq_running running[_c.FQ_MAX_RUNNING]
        self.alive()
        return [
            Running(running[i].model, running[i].rows, running[i].number, running[i].age_ns, running[i].slow_after_ns,
                    running[i].slow != 0)
            for i in range(_c.fq_former_watch(self.former, running))
        ]

    def set_clock(self, int64_t ns) -> None:
        """Moves a test's clock."""
        self.alive()
        self.former.fixed_ns = ns

    def stats(self) -> list:
        """A ModelStats per model."""
        self.alive()
        return WorkerPage(self.page_fd).stats()

    @property
    def free_output_bytes(self) -> int:
        """Bytes of the output arena that nobody holds."""
        self.alive()
        return self.former.output.free_granules * 4096

    def check(self) -> int:
        """The number of the broken invariant of fq_output.h, 0 when all hold. Only while no launcher runs."""
        self.alive()
        return _c.fq_output_check(&self.former.output)

    def __reduce__(self):
        raise TypeError("a BatchFormer is shared by its descriptors, not by pickle")
