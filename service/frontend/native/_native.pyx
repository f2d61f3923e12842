"""The native front end's C with Python's types: threads and lanes for the links, calls for Python's own handlers."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from fastqueue cimport _c
from service.codec._codec cimport (
    Known, Spec, hr_error, hr_spec, hr_table, hr_table_drop, hr_table_know, hr_table_new, hr_view,
)

from fastqueue.errors import ForkedHandle, LayoutMismatch

from service.codec.errors import RequestError

cdef extern from "native.h" nogil:
    ctypedef struct hr_native:
        pass
    ctypedef struct hr_rpc:
        pass
    ctypedef struct hr_lifetime:
        uint32_t handshake_ms
        uint32_t headers_ms
        uint32_t keepalive_ms
        uint32_t keepalive_timeout_ms
        bint keepalive_without_calls
        uint32_t ping_interval_ms
        uint32_t ping_strikes
        uint32_t max_age_ms
        uint32_t max_age_grace_ms
        uint32_t notice_ms
        uint32_t linger_ms
    ctypedef struct hr_native_options:
        uint32_t threads
        uint32_t arena_mb
        uint32_t spill_mb
        uint32_t slots
        uint32_t max_calls
        uint32_t max_connections
        uint64_t max_message_bytes
        uint64_t answer_bytes
        uint64_t held_bytes
        hr_lifetime lifetime
        bint triton
        int compression
    ctypedef struct hr_pem:
        hr_view cert
        hr_view key
        hr_view root
    ctypedef struct hr_header:
        hr_view name
        hr_view value
    cdef enum hr_encoding:
        HR_IDENTITY
        HR_GZIP
        HR_DEFLATE
    cdef enum hr_event_kind:
        HR_RPC_STARTED
        HR_RPC_MESSAGE
        HR_RPC_HALF_CLOSED
        HR_RPC_WRITTEN
        HR_RPC_ENDED
    ctypedef struct hr_event:
        hr_event_kind kind
        bint compressed
        hr_rpc *rpc
        hr_view path
        int64_t deadline_ns
        uint32_t header_count
        hr_header *headers
        uint8_t *data
        size_t length
    hr_native *hr_native_new(const hr_native_options *options, hr_error *err) noexcept
    int hr_native_listen(hr_native *n, int fd, hr_error *err) noexcept
    int hr_native_set_tls(hr_native *n, const hr_pem *pem, hr_error *err) noexcept
    void hr_native_free(hr_native *n) noexcept
    uint32_t hr_native_threads(const hr_native *n) noexcept
    int hr_native_open_lane(hr_native *n, uint32_t thread, int *lane_fd, hr_error *err) noexcept
    void hr_native_fds(const hr_native *n, uint32_t thread, int *arena_fd, int *eventfd) noexcept
    int hr_native_attach(hr_native *n, uint32_t thread, uint32_t lane, int page_fd, int output_fd, hr_error *err) noexcept
    void hr_native_close_lane(hr_native *n, uint32_t thread, uint32_t lane) noexcept
    void hr_native_free_lane(hr_native *n, uint32_t thread, uint32_t lane) noexcept
    void hr_native_set_table(hr_native *n, uint32_t thread, hr_table *table) noexcept
    void hr_native_started(hr_native *n) noexcept
    void hr_native_drain(hr_native *n) noexcept
    void hr_native_go(hr_native *n) noexcept
    void hr_native_hang_up(hr_native *n) noexcept
    uint64_t hr_native_calls(const hr_native *n) noexcept
    uint64_t hr_native_in_flight(const hr_native *n) noexcept
    uint64_t hr_native_streams(const hr_native *n) noexcept
    uint64_t hr_native_unsent(hr_native *n) noexcept
    uint64_t hr_native_rejected(const hr_native *n, int code) noexcept
    uint64_t hr_native_refused_draining(const hr_native *n) noexcept
    uint64_t hr_native_outstanding(hr_native *n) noexcept
    uint64_t hr_native_arena_used(hr_native *n) noexcept
    uint64_t hr_native_answer_bytes(const hr_native *n) noexcept
    int hr_native_check(hr_native *n) noexcept
    int hr_native_event_fd(const hr_native *n) noexcept
    hr_event *hr_native_next_event(hr_native *n) noexcept
    void hr_event_free(hr_event *event) noexcept
    int hr_rpc_read(hr_rpc *rpc) noexcept
    int hr_rpc_send_headers(hr_rpc *rpc, const hr_header *headers, uint32_t count) noexcept
    int hr_rpc_send(hr_rpc *rpc, const uint8_t *data, size_t length, hr_encoding encoding) noexcept
    int hr_rpc_finish(hr_rpc *rpc, int code, hr_view text, const hr_header *trailers, uint32_t count) noexcept
    void hr_rpc_drop(hr_rpc *rpc) noexcept

_c.fq_fork_watch()

STARTED, MESSAGE, HALF_CLOSED, WRITTEN, ENDED = (
    HR_RPC_STARTED, HR_RPC_MESSAGE, HR_RPC_HALF_CLOSED, HR_RPC_WRITTEN, HR_RPC_ENDED
)
IDENTITY, GZIP, DEFLATE = HR_IDENTITY, HR_GZIP, HR_DEFLATE


cdef str text_of(hr_error *err):
    return err.text.decode("utf-8", "replace")


cdef bytes bytes_of(hr_view view):
    return PyBytes_FromStringAndSize(<const char *>view.data, <Py_ssize_t>view.length)


cdef hr_view view(bytes data):
    return hr_view(<const uint8_t *>PyBytes_AS_STRING(data), <size_t>len(data))


cdef hr_lifetime lifetime_of(times) except *:
    return hr_lifetime(
        times.handshake_ms, times.headers_ms, times.keepalive_ms, times.keepalive_timeout_ms,
        times.keepalive_without_calls, times.ping_interval_ms, times.ping_strikes, times.max_age_ms,
        times.max_age_grace_ms, times.notice_ms, times.linger_ms,
    )


@cython.no_gc_clear  # its end needs `native`
cdef class Rpc:
    """One call that Python answers. What is said to a call that has ended is dropped without a word."""

    cdef Native native
    cdef hr_rpc *rpc

    def __dealloc__(self):
        if self.rpc != NULL and self.native.n != NULL:
            hr_rpc_drop(self.rpc)

    cdef int said(self, int failed) except -1:
        if failed:
            raise MemoryError("no memory for what a call is to be told")
        return 0

    cdef int alive(self) except -1:
        if self.native.n == NULL:
            raise ValueError("the front end is closed")
        return self.native.alive()

    def read(self) -> None:
        """Asks for the next message, which comes as an event."""
        self.alive()
        self.said(hr_rpc_read(self.rpc))

    def send_headers(self, headers) -> None:
        """Initial metadata: (name, value) in bytes each. Only before the first message."""
        self.say(-1, b"", headers)

    def send(self, bytes message not None, hr_encoding encoding=HR_IDENTITY) -> None:
        """One message, compressed where that makes it smaller; WRITTEN follows when it is on its way."""
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(message)
        cdef size_t length = <size_t>len(message)
        cdef int failed
        self.alive()
        with nogil:
            failed = hr_rpc_send(self.rpc, data, length, encoding)
        self.said(failed)

    def finish(self, int code, bytes text not None, trailers) -> None:
        """The status, behind what was sent; trailers as in `send_headers`."""
        self.say(code, text, trailers)

    cdef int say(self, int code, bytes text, pairs) except -1:
        self.alive()
        cdef uint32_t count = <uint32_t>len(pairs)
        cdef hr_header *headers = <hr_header *>PyMem_Malloc(max(1, count) * sizeof(hr_header))
        cdef int failed
        if headers == NULL:
            raise MemoryError()
        try:
            for i, (name, value) in enumerate(pairs):
                headers[i].name, headers[i].value = view(name), view(value)
            if code < 0:
                failed = hr_rpc_send_headers(self.rpc, headers, count)
            else:
                failed = hr_rpc_finish(self.rpc, code, view(text), headers, count)
        finally:
            PyMem_Free(headers)
        return self.said(failed)


cdef class Native:
    """I/O threads and their dispatchers. Errors: RequestError is for clients; OSError, LayoutMismatch, ForkedHandle."""

    cdef hr_native *n
    cdef unsigned generation
    cdef dict rpcs
    cdef readonly uint32_t threads

    def __cinit__(self, *, uint32_t threads, uint32_t arena_mb, uint32_t spill_mb, uint32_t slots_per_lane,
                  uint32_t max_calls, uint32_t max_connections, uint64_t max_message_bytes, uint64_t answer_bytes,
                  uint64_t held_bytes, lifetime, bint triton, int compression=0):
        cdef hr_error err
        cdef hr_native_options options
        memset(&options, 0, sizeof(options))
        options.threads, options.arena_mb, options.spill_mb = threads, arena_mb, spill_mb
        options.slots = slots_per_lane
        options.max_calls, options.max_message_bytes = max_calls, max_message_bytes
        options.max_connections = max_connections
        options.answer_bytes, options.held_bytes, options.triton = answer_bytes, held_bytes, triton
        options.compression = compression
        options.lifetime = lifetime_of(lifetime)
        if threads < 1:
            raise ValueError(f"expected at least 1 I/O thread, got {threads}")
        self.generation = _c.fq_generation
        self.rpcs = {}
        self.threads = threads
        self.n = hr_native_new(&options, &err)
        if self.n == NULL:
            raise OSError(text_of(&err))

    def __dealloc__(self):
        if self.n != NULL and self.generation == _c.fq_generation:
            with nogil:
                hr_native_free(self.n)

    cdef int alive(self) except -1:
        if self.generation != _c.fq_generation:
            raise ForkedHandle("this Native was made before a fork; start processes with spawn")
        if self.n == NULL:
            raise ValueError("the front end is closed")
        return 0

    def close(self) -> None:
        """Ends connections and threads."""
        cdef hr_native *n = self.n
        self.alive()
        self.n = NULL
        self.rpcs.clear()
        with nogil:
            hr_native_free(n)

    def set_tls(self, bytes cert not None, bytes key not None, bytes root not None) -> None:
        """New connections speak TLS from now on, with these PEM texts; `root` may be empty: clients need no certificate.
        ValueError: they cannot be used, and nothing has changed."""
        cdef hr_error err
        cdef hr_pem pem
        cdef int failed
        self.alive()
        pem.cert, pem.key, pem.root = view(cert), view(key), view(root)
        with nogil:
            failed = hr_native_set_tls(self.n, &pem, &err)
        if failed:
            raise ValueError(text_of(&err))

    def listen(self, int fd) -> None:
        """Accepts connections from a listening socket too, which is taken over."""
        cdef hr_error err
        cdef int failed
        self.alive()
        with nogil:
            failed = hr_native_listen(self.n, fd, &err)
        if failed:
            raise OSError(text_of(&err))

    # ---- workers and models: what `service.frontend.links` asks of front-end threads ----

    def open_lanes(self) -> tuple:
        """A lane of each thread to a new worker: its number, and [lane, arena, eventfd] of each, which stay ours."""
        cdef hr_error err
        cdef int fd, arena, eventfd, lane, first = -1
        cdef list fds = []
        self.alive()
        for i in range(self.threads):
            fd = -1
            with nogil:
                lane = hr_native_open_lane(self.n, i, &fd, &err)
            if lane < 0:
                for opened in range(i):
                    hr_native_close_lane(self.n, opened, first)
                    hr_native_free_lane(self.n, opened, first)
                raise OSError(text_of(&err))
            first = lane  # every thread opens and closes the same lanes, so they have the same numbers
            hr_native_fds(self.n, i, &arena, &eventfd)
            fds += [fd, arena, eventfd]
        return first, fds

    def attach_lanes(self, uint32_t lane, int page_fd, int output_fd) -> None:
        """The worker of a lane is ready, and sent these. The descriptors stay the caller's."""
        cdef hr_error err
        cdef int failed
        self.alive()
        for i in range(self.threads):
            with nogil:
                failed = hr_native_attach(self.n, i, lane, page_fd, output_fd, &err)
            if failed:
                raise LayoutMismatch(text_of(&err))

    def close_lanes(self, uint32_t lane) -> None:
        """The worker is gone: whoever waits for it is told."""
        self.alive()
        for i in range(self.threads):
            with nogil:
                hr_native_close_lane(self.n, i, lane)

    def free_lanes(self, uint32_t lane) -> None:
        """The process of the worker that was behind `lane` has ended."""
        self.alive()
        for i in range(self.threads):
            with nogil:
                hr_native_free_lane(self.n, i, lane)

    def set_models(self, models, known=()) -> None:
        """Replaces the tables: (model id, lane, ModelSpec) each, and (name, version, why) of each version that is not
        served. RequestError: a spec is beyond the codec's limits, or two have one name and version; the tables are then
        as they were."""
        cdef list tables = []
        cdef hr_table *table
        self.alive()
        for i in range(self.threads):  # a spec's holders are counted by its thread alone: each has specs of its own
            tables.append(<uintptr_t>self.table_of(models, Known(known)))
        for i in range(self.threads):
            table = <hr_table *><uintptr_t>tables[i]
            with nogil:
                hr_native_set_table(self.n, i, table)

    cdef hr_table *table_of(self, models, Known also) except NULL:
        cdef hr_error err
        cdef list specs = [Spec(model, id, lane) for id, lane, model in models]
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
        return table

    # ---- state ----

    def set_started(self) -> None:
        """Every worker has been ready once: a model may be called unknown from now on."""
        self.alive()
        hr_native_started(self.n)

    def drain(self) -> None:
        """New calls are refused; streams are read no further."""
        self.alive()
        with nogil:
            hr_native_drain(self.n)

    def go(self) -> None:
        """Listens no longer; connections are told to go when their calls are over."""
        self.alive()
        with nogil:
            hr_native_go(self.n)

    def hang_up(self) -> None:
        """Ends every connection."""
        self.alive()
        with nogil:
            hr_native_hang_up(self.n)

    @property
    def calls(self) -> int:
        """ModelInfer and ModelStreamInfer calls in progress."""
        self.alive()
        return hr_native_calls(self.n)

    @property
    def in_flight(self) -> int:
        """Requests whose clients wait."""
        self.alive()
        return hr_native_in_flight(self.n)

    @property
    def streams(self) -> int:
        """ModelStreamInfer calls in progress."""
        self.alive()
        return hr_native_streams(self.n)

    @property
    def unsent(self) -> int:
        """Calls of every kind whose end has not been sent."""
        cdef uint64_t count
        self.alive()
        with nogil:
            count = hr_native_unsent(self.n)
        return count

    @property
    def outstanding(self) -> int:
        """Requests that hold a slot."""
        cdef uint64_t count
        self.alive()
        with nogil:
            count = hr_native_outstanding(self.n)
        return count

    @property
    def arena_used(self) -> int:
        """Bytes of the input arenas in use, the spill's among them."""
        cdef uint64_t count
        self.alive()
        with nogil:
            count = hr_native_arena_used(self.n)
        return count

    @property
    def answer_bytes(self) -> int:
        """Bytes of answers that clients have not read, and of what TLS has made of them."""
        self.alive()
        return hr_native_answer_bytes(self.n)

    def check(self) -> int:
        """The number of a broken invariant of dispatch.h, 0 when all hold."""
        cdef int broken
        self.alive()
        with nogil:
            broken = hr_native_check(self.n)
        return broken

    def rejected(self) -> dict:
        """Requests that were refused here, by status code; -1: because the server was ending."""
        self.alive()
        cdef dict found = {code: hr_native_rejected(self.n, code) for code in range(17)}
        found[-1] = hr_native_refused_draining(self.n)
        return {code: count for code, count in found.items() if count}

    # ---- calls that Python answers ----

    def event_fd(self) -> int:
        """Readable while `events` has some."""
        self.alive()
        return hr_native_event_fd(self.n)

    def events(self) -> list:
        """What has happened: (STARTED, rpc, path, headers, deadline in ns or None), (MESSAGE, rpc, bytes,
        whether they came compressed), and (HALF_CLOSED | WRITTEN | ENDED, rpc)."""
        cdef hr_event *event
        cdef list found = []
        self.alive()
        while (event := hr_native_next_event(self.n)) != NULL:
            try:
                found.append(self.event_of(event))
            finally:
                hr_event_free(event)
        return found

    cdef tuple event_of(self, hr_event *event):
        cdef uintptr_t key = <uintptr_t>event.rpc
        cdef Rpc rpc
        if event.kind == HR_RPC_STARTED:
            rpc = Rpc.__new__(Rpc)
            rpc.native, rpc.rpc = self, event.rpc
            self.rpcs[key] = rpc
            headers = [(bytes_of(event.headers[i].name), bytes_of(event.headers[i].value))
                       for i in range(event.header_count)]
            deadline = None if event.deadline_ns == INT64_MAX else event.deadline_ns
            return STARTED, rpc, bytes_of(event.path), headers, deadline
        rpc = self.rpcs[key]
        if event.kind == HR_RPC_MESSAGE:
            message = PyBytes_FromStringAndSize(<const char *>event.data, <Py_ssize_t>event.length)
            return MESSAGE, rpc, message, event.compressed
        if event.kind == HR_RPC_ENDED:
            del self.rpcs[key]
        return event.kind, rpc

    def __reduce__(self):
        raise TypeError("a Native belongs to its process and cannot be pickled")
