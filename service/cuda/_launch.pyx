"""What is per row or waits, on a device's streams: launch.h for Python. Calls of the driver are made without the GIL."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from fastqueue cimport _c

from service.cuda.driver import DriverError, result_name

cdef extern from "launch.h" nogil:
    ctypedef struct hr_cuda:
        void *batch
        void *batch_12
    hr_cuda hr_cuda_table
    const char *hr_cuda_open(const char *path)
    const int HR_STICKY_MAX
    ctypedef unsigned long long CUdeviceptr
    ctypedef void hr_failed(void *owner, int code) noexcept
    ctypedef struct fq_batch:
        pass
    ctypedef struct fq_shape:
        uint32_t rank
        int64_t *dims
    ctypedef struct hr_completer:
        void *context
        int *sticky
        uint32_t sticky_count
        hr_failed *failed
        void *owner
    ctypedef struct hr_launch:
        void *stream
        fq_batch *batch
        fq_shape *shapes
    ctypedef struct hr_input:
        CUdeviceptr to
        uint64_t row_bytes
    ctypedef struct hr_output:
        CUdeviceptr source "from"
        void *to
        uint64_t bytes
    ctypedef struct hr_result:
        int code
        uint32_t fallbacks
    int hr_pinned_register(void *, size_t, int)
    int hr_pinned_unregister(void *)
    int hr_launch_init(hr_launch *, hr_completer *, void *stream, void *staging, size_t size)
    void hr_launch_free(hr_launch *)
    hr_result hr_copy_in(hr_launch *, fq_batch *, const hr_input *, uint32_t, uint32_t)
    int hr_finish(hr_launch *, const hr_output *, uint32_t)
    int hr_completer_start(hr_completer *)
    void hr_completer_push(hr_completer *, hr_launch *)
    void hr_completer_stop(hr_completer *)

cdef extern from *:
    """
    static int launch_graph(void *graph, void *stream) { return hr_cuda_table.cuGraphLaunch(graph, stream); }
    """
    int hr_launch_graph "launch_graph"(void *graph, void *stream) nogil


cdef int checked(int code, str what) except -1:
    if code == -1:
        raise MemoryError()
    if code:
        raise DriverError(code, result_name(code), what)
    return 0


def open_table(str path="libcuda.so.1") -> None:
    """Finds the driver's functions. OSError: a sentence on what is missing."""
    cdef const char *fault
    encoded = path.encode()
    cdef const char *name = encoded
    fault = hr_cuda_open(name)
    if fault != NULL:
        raise OSError(fault.decode(errors="replace"))


def has_batch_copy() -> bool:
    """Whether the driver takes many copies in one call."""
    return hr_cuda_table.batch != NULL or hr_cuda_table.batch_12 != NULL


class Pinned:
    """Memory that the device reads and writes by itself, which copies know. A context is current. DriverError."""

    def register(self, size_t address, size_t size, bint read_only=False) -> None:
        """`read_only`: it is mapped so, and the device never writes it."""
        cdef int code
        with nogil:
            code = hr_pinned_register(<void *>address, size, read_only)
        checked(code, "pinning memory")

    def unregister(self, size_t address) -> None:
        """Nothing reads or writes it any more."""
        cdef int code
        with nogil:
            code = hr_pinned_unregister(<void *>address)
        checked(code, "unpinning memory")


cdef void report(void *owner, int code) noexcept with gil:
    (<Completer>owner).failed(code)


cdef class Completer:
    """The thread that answers the batches of one stream. `failed` is called with the code of an error that is one of
    `sticky`, on that thread, after the batch that met it was answered.
    """
    cdef hr_completer completer
    cdef object failed
    cdef bint running

    def __cinit__(self, size_t context, failed, sticky):
        memset(&self.completer, 0, sizeof(self.completer))
        self.failed = failed
        self.completer.context = <void *>context
        self.completer.failed = report
        self.completer.owner = <void *>self
        codes = list(sticky)[:HR_STICKY_MAX]
        for i, code in enumerate(codes):
            self.completer.sticky[i] = code
        self.completer.sticky_count = <uint32_t>len(codes)
        if hr_completer_start(&self.completer):
            raise MemoryError("no thread could be started")
        self.running = True

    def __dealloc__(self):
        """One that was never closed: whoever made it failed before there was anything to answer."""
        if self.running:
            with nogil:
                hr_completer_stop(&self.completer)

    def close(self) -> None:
        """Ends the thread, when everything that was handed over is answered."""
        if self.running:
            self.running = False
            with nogil:
                hr_completer_stop(&self.completer)


cdef class LaunchSlot:
    """Room for one batch on a stream. `staging`: address and bytes of pinned memory. A context is current in every
    call. Errors: DriverError; the batch is then as it was, and the stream may have work that reads it.
    """
    cdef hr_launch slot
    cdef Completer completer

    def __cinit__(self, Completer completer, size_t stream, staging):
        cdef size_t address = staging[0], size = staging[1]
        self.completer = completer
        cdef int code = hr_launch_init(&self.slot, &completer.completer, <void *>stream, <void *>address, size)
        if code:
            hr_launch_free(&self.slot)
        checked(code, "making events")

    def close(self) -> None:
        """Nothing of it is on the stream."""
        hr_launch_free(&self.slot)

    def copy_in(self, batch, inputs, uint32_t padded_rows) -> int:
        """Issues the batch's inputs to (address on the device, bytes per row) each, and zeros behind its rows up to
        `padded_rows`. How many pieces were copied from memory that is not pinned.
        """
        cdef hr_input places[64]
        cdef hr_result result
        cdef size_t address = batch.address
        cdef uint32_t count = <uint32_t>len(inputs)
        if count > _c.FQ_MAX_TENSORS:
            raise ValueError(f"{count} inputs; at most {_c.FQ_MAX_TENSORS}")
        for i, (to, row_bytes) in enumerate(inputs):
            places[i].to, places[i].row_bytes = to, row_bytes
        with nogil:
            result = hr_copy_in(&self.slot, <fq_batch *>address, places, count, padded_rows)
        checked(result.code, "copying inputs")
        return result.fallbacks

    def launch_graph(self, size_t graph) -> None:
        """Launches an instantiated graph on the stream."""
        cdef int code
        with nogil:
            code = hr_launch_graph(<void *>graph, self.slot.stream)
        checked(code, "launching a graph")

    def finish(self, batch, outputs, shapes) -> None:
        """Issues the outputs, (address on the device, address here, bytes) each, and hands the batch over: it is answered
        with outputs of these shapes when all that is done.
        """
        cdef hr_output places[64]
        cdef int code
        cdef uint32_t count = <uint32_t>len(outputs)
        if count > _c.FQ_MAX_TENSORS or len(shapes) != count:
            raise ValueError(f"{count} outputs of {len(shapes)} shapes; at most {_c.FQ_MAX_TENSORS}")
        for i, (source, to, size) in enumerate(outputs):
            places[i].source, places[i].to, places[i].bytes = source, <void *><size_t>to, size
        for i, shape in enumerate(shapes):
            if len(shape) > _c.FQ_MAX_RANK:
                raise ValueError(f"output {i}: at most {_c.FQ_MAX_RANK} dimensions, not {len(shape)}")
            self.slot.shapes[i].rank = <uint32_t>len(shape)
            for d, n in enumerate(shape):
                self.slot.shapes[i].dims[d] = n
        with nogil:
            code = hr_finish(&self.slot, places, count)
        checked(code, "copying outputs")
        cdef size_t address = batch.hand_over()
        self.slot.batch = <fq_batch *>address
        with nogil:
            hr_completer_push(&self.completer.completer, &self.slot)
