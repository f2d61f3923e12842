"""One front-end thread for a front end in Python: `dispatch.h` with Python's types, errors and bytes."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from fastqueue cimport _c
from service.codec._codec cimport (
    Known, Spec, hr_encode, hr_encoded_bytes, hr_error, hr_request, hr_response, hr_scan, hr_spec, hr_table, hr_table_drop,
    hr_table_know, hr_table_new, hr_view,
)

from fastqueue.errors import ForkedHandle, LayoutMismatch

from service.codec.errors import RequestError

cdef extern from "dispatch.h" nogil:
    ctypedef struct hr_dispatch:
        pass
    ctypedef struct hr_call:
        uint64_t token
        int64_t arrival_ns
        int64_t deadline_ns
        bint stream
    ctypedef struct hr_answer:
        uint64_t token
        int code
        hr_response response
        hr_error error
    hr_dispatch *hr_dispatch_new(uint32_t arena_mb, uint32_t spill_mb, uint32_t slots, hr_error *err) noexcept
    void hr_dispatch_free(hr_dispatch *d) noexcept
    int hr_dispatch_arena_fd(const hr_dispatch *d) noexcept
    int hr_dispatch_eventfd(const hr_dispatch *d) noexcept
    int hr_dispatch_open_lane(hr_dispatch *d, int *lane_fd, hr_error *err) noexcept
    int hr_dispatch_attach(hr_dispatch *d, uint32_t lane, int page_fd, int output_fd, hr_error *err) noexcept
    uint32_t hr_dispatch_close_lane(hr_dispatch *d, uint32_t lane, uint64_t *tokens) noexcept
    void hr_dispatch_free_lane(hr_dispatch *d, uint32_t lane) noexcept
    uint32_t hr_dispatch_slots(const hr_dispatch *d) noexcept
    void hr_dispatch_set_table(hr_dispatch *d, hr_table *table) noexcept
    int hr_dispatch_submit(hr_dispatch *d, const uint8_t *message, size_t length, const hr_call *call, uint64_t *handle,
                           hr_error *err) noexcept
    void hr_dispatch_ring(hr_dispatch *d) noexcept
    void hr_dispatch_refuse_oversize(hr_dispatch *d) noexcept
    void hr_dispatch_limit_messages(hr_dispatch *d, uint64_t bytes) noexcept
    bint hr_dispatch_unordered(const hr_dispatch *d) noexcept
    void hr_dispatch_cancel(hr_dispatch *d, uint64_t handle) noexcept
    int hr_dispatch_next(hr_dispatch *d, int64_t now_ns, hr_answer *out) noexcept
    void hr_dispatch_retire(hr_dispatch *d, const hr_answer *answer) noexcept
    void hr_dispatch_heard(hr_dispatch *d) noexcept
    int hr_dispatch_arm(hr_dispatch *d) noexcept
    int64_t hr_dispatch_next_deadline(const hr_dispatch *d) noexcept
    uint32_t hr_dispatch_outstanding(const hr_dispatch *d) noexcept
    uint64_t hr_dispatch_arena_used(const hr_dispatch *d) noexcept
    uint64_t hr_dispatch_spill_used(const hr_dispatch *d) noexcept
    int hr_dispatch_check(const hr_dispatch *d) noexcept

_c.fq_fork_watch()

# What one drain gives at most, and one answer more: its room in the output arena is free at once and filled anew, so
# without an end the answers would be here before anybody could say that they are too many.
cdef size_t DRAINED = 32 << 20
cdef size_t LARGE = 64 << 10  # bytes from which a copy is worth letting go of the GIL


cdef str text_of(hr_error *err):
    return err.text.decode("utf-8", "replace")


cdef bytes encode(const hr_response *response):
    cdef size_t size = hr_encoded_bytes(response)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(out)
    if size < LARGE:
        hr_encode(response, to)
    else:
        with nogil:
            hr_encode(response, to)
    return out


cdef hr_view view(bytes data):
    return hr_view(<const uint8_t *>PyBytes_AS_STRING(data), <size_t>len(data))


cdef bytes encode_with_names(hr_response *response, bytes request):
    """Encodes `response` with the names and the id of `request`, as far as they can be read."""
    cdef hr_error err
    cdef hr_view wire = view(request)
    cdef hr_request *scanned = <hr_request *>PyMem_Malloc(sizeof(hr_request))
    if scanned == NULL:
        raise MemoryError()
    try:
        if hr_scan(wire.data, wire.length, scanned, &err) == 0:
            response.model_name, response.model_version = scanned.model_name, scanned.model_version
            response.id = scanned.id
        return encode(response)
    finally:
        PyMem_Free(scanned)


def stream_error(bytes request, str message) -> bytes:
    """A ModelStreamInferResponse that tells the client of `request` that it failed: the id and names are the request's,
    as far as they can be read."""
    cdef hr_response response
    cdef bytes text = message.encode()
    memset(&response, 0, sizeof(response))
    response.stream, response.error = True, view(text)
    return encode_with_names(&response, request)


def request_names(bytes request) -> bytes:
    """A ModelInferRequest of nothing but the model's name and version and the id of `request`: what `stream_error` needs.

    Empty when `request` cannot be read. The three fields have the same numbers in a ModelInferResponse.
    """
    cdef hr_response response
    memset(&response, 0, sizeof(response))
    return encode_with_names(&response, request)


cdef class Dispatcher:
    """A front-end thread: an input arena, a lane per worker, the models, and every request in flight.

    All calls belong to one thread. Times are `time.monotonic_ns()`. Errors: RequestError is for the client; ValueError,
    OSError, LayoutMismatch and ForkedHandle are ours.
    """

    cdef hr_dispatch *d
    cdef hr_answer answer
    cdef unsigned generation

    def __cinit__(self, uint64_t arena_bytes, uint32_t slots_per_lane, bint split=True, uint64_t max_message_bytes=0x7fffffff,
                  uint32_t spill_mb=0):
        cdef hr_error err
        self.generation = _c.fq_generation
        self.d = hr_dispatch_new(<uint32_t>min((arena_bytes + (1 << 20) - 1) >> 20, 0xffffffff), spill_mb,
                                 slots_per_lane, &err)
        if self.d == NULL:
            raise ValueError(text_of(&err)) if err.code == 3 else OSError(text_of(&err))
        hr_dispatch_limit_messages(self.d, max_message_bytes)
        if not split:
            hr_dispatch_refuse_oversize(self.d)

    def __dealloc__(self):
        if self.generation == _c.fq_generation:
            hr_dispatch_free(self.d)

    cdef int alive(self) except -1:
        if self.generation != _c.fq_generation:
            raise ForkedHandle("this Dispatcher was made before a fork; start processes with spawn")
        return 0

    # ---- workers and models ----

    def eventfd(self) -> int:
        """Readable when answers may have come, after `arm()` said True. It stays the dispatcher's."""
        self.alive()
        return hr_dispatch_eventfd(self.d)

    def open_lane(self) -> tuple:
        """A lane for a new worker: its index, and the descriptors [lane, input arena, eventfd] to send; they stay ours."""
        cdef hr_error err
        cdef int fd = -1
        self.alive()
        cdef int lane = hr_dispatch_open_lane(self.d, &fd, &err)
        if lane < 0:
            raise OSError(text_of(&err))
        return lane, [fd, hr_dispatch_arena_fd(self.d), hr_dispatch_eventfd(self.d)]

    def attach_worker(self, uint32_t lane, int page_fd, int output_fd) -> None:
        """The worker of a lane is ready, and sent these. The descriptors stay the caller's."""
        cdef hr_error err
        self.alive()
        if hr_dispatch_attach(self.d, lane, page_fd, output_fd, &err) < 0:
            raise LayoutMismatch(text_of(&err))

    def close_lane(self, uint32_t lane) -> list:
        """The worker is gone: the tokens whose clients still wait, to be answered UNAVAILABLE. Nothing more comes of them; their
        memory is kept aside until `free_lane`."""
        self.alive()
        cdef uint64_t *tokens = <uint64_t *>PyMem_Malloc(hr_dispatch_slots(self.d) * sizeof(uint64_t))
        if tokens == NULL:
            raise MemoryError()
        try:
            return [tokens[i] for i in range(hr_dispatch_close_lane(self.d, lane, tokens))]
        finally:
            PyMem_Free(tokens)

    def free_lane(self, uint32_t lane) -> None:
        """Nobody reads the input of a closed lane's requests any more: their memory is free."""
        self.alive()
        hr_dispatch_free_lane(self.d, lane)

    def set_models(self, models, known=()) -> None:
        """Replaces the table: (model id, lane, ModelSpec) each, and (name, version, why) of each version that is not served.
        RequestError: a spec is beyond the codec's limits, or two have one name and version; the table is then as it was."""
        cdef hr_error err
        self.alive()
        cdef list specs = [Spec(model, id, lane) for id, lane, model in models]
        cdef Known also = Known(known)
        cdef hr_spec **pointers = <hr_spec **>PyMem_Malloc(max(1, len(specs)) * sizeof(hr_spec *))
        if pointers == NULL:
            raise MemoryError()
        for i, spec in enumerate(specs):
            pointers[i] = (<Spec>spec).ptr
        cdef hr_table *table = hr_table_new(pointers, <uint32_t>len(specs), &err)
        PyMem_Free(pointers)
        if table == NULL or hr_table_know(table, also.rows, also.count, &err) != 0:
            hr_table_drop(table)
            raise RequestError(err.code, text_of(&err))
        hr_dispatch_set_table(self.d, table)

    # ---- requests ----

    def submit(self, bytes request not None, uint64_t token, deadline_ns=None, bint stream=False, arrival_ns=None) -> int:
        """Sends a ModelInferRequest to its model's worker; `request` may be forgotten afterwards. The handle for `cancel`.

        `token` comes back with the answer, which is one message of a stream if `stream`. deadline_ns None: none.
        """
        cdef hr_error err
        cdef hr_call call
        cdef uint64_t handle = 0
        cdef int failed
        cdef hr_view wire = view(request)
        self.alive()
        memset(&call, 0, sizeof(call))
        call.token, call.stream = token, stream
        call.arrival_ns = _c.fq_monotonic_ns() if arrival_ns is None else arrival_ns
        call.deadline_ns = INT64_MAX if deadline_ns is None else deadline_ns
        if wire.length < LARGE:
            failed = hr_dispatch_submit(self.d, wire.data, wire.length, &call, &handle, &err)
        else:
            with nogil:
                failed = hr_dispatch_submit(self.d, wire.data, wire.length, &call, &handle, &err)
        if failed:
            raise RequestError(err.code, text_of(&err), err.transient)
        hr_dispatch_ring(self.d)
        return handle

    @property
    def unordered(self) -> bool:
        """Whether the request that was accepted last asked for its answer out of turn (`headrace_unordered`)."""
        self.alive()
        return hr_dispatch_unordered(self.d)

    def cancel(self, uint64_t handle) -> None:
        """The client no longer waits: its token is not told any more. Late and repeated cancels do nothing."""
        self.alive()
        hr_dispatch_cancel(self.d, handle)

    # ---- answers ----

    def drain(self, now_ns=None) -> list:
        """Answers that have come, until they have DRAINED bytes; `arm` says whether there are more. Each is (token, 0, encoded
        response, False) or (token, gRPC status code, message as UTF-8, whether the same request may succeed a little
        later). A request whose deadline has passed is among them, with DEADLINE_EXCEEDED."""
        self.alive()
        cdef int64_t now = _c.fq_monotonic_ns() if now_ns is None else now_ns
        cdef list found = []
        cdef size_t size = 0
        hr_dispatch_heard(self.d)
        while size < DRAINED and hr_dispatch_next(self.d, now, &self.answer):
            try:
                payload = encode(&self.answer.response) if self.answer.code == 0 else <bytes>self.answer.error.text
                again = self.answer.code != 0 and self.answer.error.transient
                found.append((self.answer.token, self.answer.code, payload, again))
                size += <size_t>len(payload)
            finally:
                hr_dispatch_retire(self.d, &self.answer)
        return found

    def arm(self) -> bool:
        """True: nothing is pending, the eventfd will tell. False: something came in the meantime, drain again."""
        self.alive()
        return hr_dispatch_arm(self.d) != 0

    def next_deadline(self):
        """When `drain` must be called even if nothing comes, or None."""
        self.alive()
        cdef int64_t at = hr_dispatch_next_deadline(self.d)
        return None if at == INT64_MAX else at

    # ---- reports ----

    @property
    def outstanding(self) -> int:
        """Requests that hold a slot, with those whose client has left and that a worker has not let go of."""
        self.alive()
        return hr_dispatch_outstanding(self.d)

    @property
    def arena_used(self) -> int:
        """Bytes of the input arena in use, the spill's among them."""
        self.alive()
        return hr_dispatch_arena_used(self.d)

    @property
    def spill_used(self) -> int:
        """Bytes in use behind the input arena's head, by large requests."""
        self.alive()
        return hr_dispatch_spill_used(self.d)

    def check(self) -> int:
        """The number of the broken invariant, 0 when all hold."""
        self.alive()
        return hr_dispatch_check(self.d)

    def __reduce__(self):
        raise TypeError("a Dispatcher belongs to its thread and cannot be pickled")
