"""Models for torch on the worker's device, through its executor.

    TorchModel      a DeviceModel: a program whose weights lie on the device
    TorchContext    the inputs and outputs of one place as tensors; runs the program there
    Memory          where torch finds memory for one model

Memory. A model has a pool of torch's own (MemPool): its weights, what it computes with, and what its graphs
use. A block of it belongs to the stream that it was made for, and what is on a stream runs in order. So a
graph may use blocks that other runs on its stream use as well, and nothing of the pool goes back to the
device while the model is there. Activations are there too: the stream's scratch is not used.

One run is issued at a time in a process (`_issuing`): torch keeps a workspace for cuBLAS by thread and
stream, whoever made it. It is dropped before and after each run, so that no graph and no other model is left
with one that lies in this model's pool. Graphs, which is how batches run where shapes are known, are launched
without torch, and wait for nobody.

A model that cannot be captured (it looks at its data on the CPU, or draws random numbers) is found out when
it is loaded, and runs without graphs.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from service.cuda.device import Device, the_device
from service.cuda.driver import OUT_OF_MEMORY, DriverError, api, check, is_sticky, result_name
from service.cuda.memory import ModelMemory
from service.cuda.model import UNBATCHED, Place, Settled, Shape
from service.engines.base import EngineError, ModelLoadError
from service.engines.bfloat16 import stored
from service.engines.torch_described import BACKEND, PLATFORM, described
from service.engines.torch_host import check_outputs, failure_of
from service.engines.torch_library import clean, dtype_of, library, tensor_of
from service.engines.torch_program import Program, open_program
from service.models.probe import Array
from service.models.spec import ModelSpec, TensorSpec
from service.models.wanted import Wanted, served

NOT_CAPTURED = 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

_issuing = threading.RLock()


# ---- loading ----


def open_on_device(
    path: str, where: str, name: str, version: str, wanted: Wanted, device: Device
) -> TorchModel:
    """Loads a program onto the device. Raises ModelLoadError, NoRoom."""
    memory = device.model_memory(name, wanted.gpu_memory_limit)
    model = None
    try:
        _begin(device)
        with memory.loading():
            memory.require(Path(path).stat().st_size)
            model = _open(path, where, name, version, wanted, device, memory)
        return model
    except BaseException as error:
        if model is not None:  # it took more than it may
            model.close()
        if isinstance(error, EngineError | DriverError):
            raise ModelLoadError(f"{where} was not loaded: {error}") from error
        raise


def _begin(device: Device) -> None:
    """What torch takes of a device for itself, at its first use there, is no model's."""
    torch = library()
    torch.cuda.init()
    stream = device.new_stream()
    with _issuing, _on(device.index, stream):
        some = torch.ones((16, 16), device=torch.device("cuda", device.index))
        torch.mm(some, some)
        torch._C._cuda_clearCublasWorkspaces()
    check(api().cuStreamSynchronize(stream), "waiting for torch")
    check(api().cuStreamDestroy(stream), "ending a stream")


def _open(
    path: str, where: str, name: str, version: str, wanted: Wanted, device: Device, memory: ModelMemory
) -> TorchModel:
    own = Memory(device)
    model = TorchModel(own, memory)
    try:
        with own.used(own.stream):
            model.program = open_program(path, where, f"cuda:{device.index}")
        model.arguments, found = described(model.program, where, wanted, own)
        sizes = found.batch_sizes or sizes_of(found.max_batch_size)
        spec, faults = served(
            wanted,
            replace(found, batch_sizes=sizes),
            name=name,
            version=version,
            platform=PLATFORM,
            backend=BACKEND,
            instances=wanted.instances if wanted.says_instances else device.stream_count,
        )
        if faults:
            raise ModelLoadError(f"{where} cannot be served: {'; '.join(faults)}")
        model.serve(spec, found.sample)
        return model
    except BaseException:
        model.close()
        raise


def sizes_of(most: int) -> tuple[int, ...]:
    """The batch sizes to run for batches of at most `most` rows: the powers of two, and `most`."""
    return tuple(sorted({most, *(1 << bit for bit in range(most.bit_length()))})) if most else ()


# ---- torch's memory and streams ----


@contextmanager
def _on(index: int, stream: int) -> Iterator[None]:
    """torch uses this stream of this device, in this thread."""
    torch = library()
    device = torch.device("cuda", index)
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
        yield


class Memory:
    """Where one model's tensors lie, and a stream for what is done while it is loaded."""

    def __init__(self, device: Device) -> None:
        self.index = device.index
        self.stream = device.new_stream()
        self._pool: Any = library().cuda.MemPool()

    @contextmanager
    def used(self, stream: int) -> Iterator[None]:
        """torch works on this stream, with this memory. Raises DriverError for want of memory, and where the
        device is lost.
        """
        torch = library()
        with _issuing, _on(self.index, stream), torch.cuda.use_mem_pool(self._pool):
            torch._C._cuda_clearCublasWorkspaces()
            try:
                yield
            except DriverError:
                raise
            except Exception as error:
                if (found := driver_error_of(error)) is not None:
                    raise found from error
                raise
            finally:
                torch._C._cuda_clearCublasWorkspaces()

    def run(self, program: Program, arguments: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """A run by itself, with tensors on the CPU. Raises whatever torch does, and DriverError."""
        with self.used(self.stream):
            there = [tensor.to(library().device("cuda", self.index)) for tensor in tensors]
            return [output.cpu() for output in program.run(arguments, there)]

    def view(self, address: int, shape: Shape, tensor: TensorSpec) -> Any:
        """A tensor over memory of the device that is not torch's."""
        torch, size = library(), tensor.element_bytes * prod(shape)
        device = torch.device("cuda", self.index)
        if not size:
            return torch.empty(shape, dtype=dtype_of(tensor.datatype), device=device)
        bytes_there = torch.as_tensor(_Bytes(address, size), device=device)
        return bytes_there.view(dtype_of(tensor.datatype)).view(shape)

    def close(self) -> None:
        """Nothing has tensors there any more."""
        torch = library()
        with _issuing:
            gc.collect()  # exported programs have cycles
            torch._C._cuda_clearCublasWorkspaces()
            self._pool = None
            torch.cuda.empty_cache()
        check(api().cuStreamDestroy(self.stream), "ending a stream")


class _Bytes:
    """Memory of the device, in the form in which libraries hand it to each other."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


def driver_error_of(error: Exception) -> DriverError | None:
    """What torch raised for want of memory, or because the device is lost, as the driver's; else None."""
    if isinstance(error, library().OutOfMemoryError):
        return DriverError(OUT_OF_MEMORY, result_name(OUT_OF_MEMORY), clean(error))
    code = getattr(error, "error_code", 0)  # of torch.AcceleratorError
    if isinstance(code, int) and is_sticky(code):
        return DriverError(code, result_name(code), clean(error))
    return None


# ---- the model ----


class TorchModel:
    """A loaded program: a DeviceModel."""

    scratch_bytes = 0

    def __init__(self, own: Memory, memory: ModelMemory) -> None:
        self.own = own
        self.memory = memory
        self.program: Program | None = None
        self.arguments: Sequence[str] = ()
        self.sample: Sequence[Array] = ()
        self.sizes: tuple[int, ...] = UNBATCHED
        self.capturable = False
        self._spec: ModelSpec | None = None

    def serve(self, spec: ModelSpec, sample: Sequence[Array]) -> None:
        """It is known how the model is served."""
        self._spec = spec
        self.sample = [stored(array, t.datatype) for array, t in zip(sample, spec.inputs, strict=False)]
        self.sizes = spec.batch_sizes or UNBATCHED
        fixed = all(tensor.is_fixed for tensor in (*spec.inputs, *spec.outputs))
        self.capturable = fixed and bool(self.sample) and self._is_captured()
        check(api().cuStreamSynchronize(self.own.stream), "waiting for what was loaded")

    def _is_captured(self) -> bool:
        """Whether a run can be captured: tried, and thrown away."""
        inputs = self._sample_there(max(1, self.sizes[0]))
        context = self.open_context(Place(self.own.stream, 0, 0))
        shapes = [tuple(tensor.shape) for tensor in inputs]
        context.prepare(shapes, [t.data_ptr() for t in inputs], [0] * len(self.spec.outputs))
        context.enqueue(self.own.stream)
        try:
            with captured(self.own.stream):
                context.enqueue(self.own.stream)
        except DriverError as error:
            if error.is_sticky or error.code == OUT_OF_MEMORY:
                raise
            return False
        finally:
            context.close()
        return True

    def _sample_there(self, rows: int) -> list[Any]:
        """The sample on the device, with as many rows."""
        device = library().device("cuda", self.own.index)
        arrays = [array[:1].repeat(rows, 0) if self.spec.batches else array for array in self.sample]
        with self.own.used(self.own.stream):
            return [
                tensor_of(array, tensor.datatype).to(device)
                for array, tensor in zip(arrays, self.spec.inputs, strict=True)
            ]

    @property
    def spec(self) -> ModelSpec:
        assert self._spec is not None
        return self._spec

    def open_context(self, place: Place) -> TorchContext:
        return TorchContext(self, place)

    def close(self) -> None:
        if the_device().broken:
            return
        if self.program is not None:
            self.program.close()
        self.own.close()
        self.memory.close()


@contextmanager
def captured(stream: int) -> Iterator[None]:
    """What is put on the stream in here is recorded, and forgotten. Raises DriverError where it cannot be."""
    driver = api()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    check(driver.cuStreamBeginCapture(stream, mode), "beginning a capture")
    try:
        yield
    except BaseException:
        driver.cuStreamEndCapture(stream)  # its error is not the one to tell
        raise
    graph = check(driver.cuStreamEndCapture(stream), "ending a capture")
    check(driver.cuGraphDestroy(graph), "ending a graph's draft")


class TorchContext:
    """A program at one place. What it puts out goes to the outputs' addresses; without such it is kept until
    the next run.
    """

    def __init__(self, model: TorchModel, place: Place) -> None:
        self._model = model
        self._stream = place.stream
        self._shapes: Sequence[Shape] = ()
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._kept: list[Any] = []

    def prepare(self, shapes: Sequence[Shape], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self._shapes = shapes
        self._inputs = self._views(self._model.spec.inputs, shapes, inputs)
        self._outputs = []
        if all(outputs):
            self._outputs = self._views(self._model.spec.outputs, self.output_shapes(), outputs)

    def _views(
        self, tensors: Sequence[TensorSpec], shapes: Sequence[Shape], addresses: Sequence[int]
    ) -> list[Any]:
        view = self._model.own.view
        return [view(at, shape, t) for at, shape, t in zip(addresses, shapes, tensors, strict=True)]

    @property
    def _rows(self) -> int:
        return self._shapes[0][0] if self._model.spec.batches else 1

    def output_shapes(self) -> Sequence[Shape]:
        spec = self._model.spec
        batch = (self._rows,) if spec.batches else ()
        return [(*batch, *tensor.model_dims) for tensor in spec.outputs]

    def settled_shapes(self) -> Sequence[Settled]:
        return [Settled(tuple(output.shape), output.data_ptr()) for output in self._kept]

    def enqueue(self, stream: int) -> None:
        with self._model.own.used(stream):
            try:
                self._run()
            except Exception as error:
                raise _failure_of(error) from error

    def _run(self) -> None:
        model = self._model
        assert model.program is not None
        found = model.program.run(model.arguments, self._inputs)
        check_outputs(model.spec, found, self._rows)
        with library().inference_mode():
            if not self._outputs:
                self._kept = [output.contiguous() for output in found]
            for target, output in zip(self._outputs, found, strict=False):
                target.copy_(output)

    def close(self) -> None:
        self._inputs, self._outputs, self._kept = [], [], []


def _failure_of(error: Exception) -> Exception:
    """What failed in a capture could not be captured: there is another way to run it."""
    if (found := driver_error_of(error)) is not None:
        return found
    if library().cuda.is_current_stream_capturing():
        return DriverError(NOT_CAPTURED, result_name(NOT_CAPTURED), clean(error))
    return error if isinstance(error, EngineError) else failure_of(error)
