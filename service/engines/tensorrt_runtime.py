"""TensorRT's runtime: the library itself, its log, and where its memory comes from.

TensorRT is imported here alone, after the driver was asked. The classes that it calls back are made of its
own, so they exist once it is imported (`..._of`).

    Words       what TensorRT has said lately on this thread: the reason behind a None or a False
    Allocator   memory of the device while a model is loaded, afterwards of the model's pool. What it was
                asked for and could not give is refused, and TensorRT says so
    Outputs     memory for outputs whose size depends on data, one for each place that has such
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from service.cuda.device import the_device
from service.cuda.driver import NoDriver, api, check
from service.cuda.memory import ModelMemory
from service.cuda.model import Settled, Shape
from service.engines.base import EngineError, ModelLoadError
from service.engines.tensorrt_plan import foreign, why_refused

OLDEST = 10  # the major version from which the calls used here exist
KEPT_LINES = 4

DATATYPES = {  # of TensorRT's DataType, by its name
    "BOOL": "BOOL",
    "UINT8": "UINT8",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "HALF": "FP16",
    "BF16": "BF16",
    "FLOAT": "FP32",
}


def library() -> Any:
    """The module `tensorrt`. Raises NoDriver where it cannot be used."""
    api()  # without a driver TensorRT would end the process
    try:
        import tensorrt
    except ImportError as error:
        raise NoDriver(f"TensorRT is not installed ({error}): pip install 'headrace[tensorrt]'") from error
    if int(tensorrt.__version__.partition(".")[0]) < OLDEST:
        raise NoDriver(f"TensorRT {tensorrt.__version__} is too old; expected {OLDEST} or newer")
    return tensorrt


class Words:
    """What TensorRT says, by thread."""

    def __init__(self) -> None:
        self._said = threading.local()

    def add(self, line: str) -> None:
        if not hasattr(self._said, "lines"):
            self._said.lines = deque(maxlen=KEPT_LINES)
        self._said.lines.append(" ".join(line.split()))

    def last(self) -> str:
        """Its errors and warnings since the last time, on this thread."""
        lines = list(getattr(self._said, "lines", ()))
        if lines:
            self._said.lines.clear()
        return "; ".join(lines) or "it does not say why"


def log_of(trt: Any, words: Words) -> Any:
    """A logger that keeps errors and warnings in `words`."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity.value <= trt.ILogger.Severity.WARNING.value:
                words.add(message)

    return Log()


def device_allocator_of(trt: Any, allocator: Allocator) -> Any:
    """What TensorRT asks for memory of the device."""

    class DeviceAllocator(trt.IGpuAsyncAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IGpuAsyncAllocator.__init__(self)

        def allocate(self, size: int, alignment: int, flags: int) -> int | None:
            return allocator.allocate(size, 0)

        def allocate_async(self, size: int, alignment: int, flags: int, stream: int) -> int | None:
            return allocator.allocate(size, stream)

        def reallocate(self, address: int, alignment: int, size: int) -> int | None:
            return None  # it then allocates anew, and copies

        def deallocate(self, memory: int) -> bool:
            return allocator.free(memory, 0)

        def deallocate_async(self, memory: int, stream: int) -> bool:
            return allocator.free(memory, stream)

    return DeviceAllocator()


def output_allocator_of(trt: Any, outputs: Outputs) -> Any:
    """What TensorRT asks for memory of outputs whose size depends on data."""

    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            return outputs.room(name, size)

        def reallocate_output_async(
            self, name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return outputs.room(name, size)

        def notify_shape(self, name: str, shape: Any) -> None:
            outputs.shapes[name] = tuple(shape)

    return OutputAllocator()


class Library:
    """TensorRT, and its log, of which it takes one in a process. Raises NoDriver."""

    def __init__(self) -> None:
        self.trt = library()
        self.words = Words()
        self.log = log_of(self.trt, self.words)


@cache
def known() -> Library:
    """Made once. Raises NoDriver; a failure is not remembered."""
    return Library()


class Allocator:
    """Memory for TensorRT. `serving`: the model is loaded, and what work on a stream needs is the pool's.

    What is asked for without a stream is the device's while the model is loading, which is counted against
    its cap; later it is the pool's too, on a stream of the allocator's own. Memory of the pool goes back on
    the stream that it came on, unless TensorRT names one.
    """

    def __init__(self, memory: ModelMemory, words: Words) -> None:
        self._memory = memory
        self._words = words
        self._of_load: set[int] = set()
        self._of_pool: dict[int, int] = {}  # streams
        self._own_stream = 0
        self.serving = False

    def allocate(self, size: int, stream: int) -> int | None:
        """The address, or None. `stream`: 0 where TensorRT says none."""
        if size == 0:
            return None
        try:
            if self.serving and (stream or not self._memory.is_loading):
                return self._pooled(size, stream)
            address = int(check(api().cuMemAlloc(size), f"allocating {size} bytes"))
        except Exception as error:  # TensorRT is C++, and must not see it
            self._words.add(str(error))
            return None
        self._of_load.add(address)
        return address

    def _pooled(self, size: int, stream: int) -> int:
        on = stream or self._without_stream()
        address = self._memory.pool.allocate(size, on)
        if not stream:  # whatever uses it need not wait for a stream that it does not know
            check(api().cuStreamSynchronize(on), "waiting for memory")
        self._of_pool[address] = on
        return address

    def _without_stream(self) -> int:
        self._own_stream = self._own_stream or the_device().new_stream()
        return self._own_stream

    def free(self, address: int, stream: int) -> bool:
        try:
            if address in self._of_load:
                self._of_load.discard(address)
                check(api().cuMemFree(address), "freeing memory")
            else:
                came_on = self._of_pool.pop(address)
                self._memory.pool.free(address, stream or came_on)
        except Exception as error:
            self._words.add(str(error))
            return False
        return True

    def close(self) -> None:
        """TensorRT has given everything back."""
        if self._own_stream:  # what was freed on it is free before its pool ends
            check(api().cuStreamSynchronize(self._own_stream), "waiting until all memory is free")
            check(api().cuStreamDestroy(self._own_stream), "ending a stream")
            self._own_stream = 0


class Runtime:
    """A runtime for one model. Raises NoDriver."""

    def __init__(self, memory: ModelMemory) -> None:
        here = known()
        self.memory = memory
        self.words = here.words
        self.version: str = here.trt.__version__
        self.strategy = here.trt.ExecutionContextAllocationStrategy
        self.allocator = Allocator(memory, here.words)
        self._callback = device_allocator_of(here.trt, self.allocator)
        self._runtime = here.trt.Runtime(here.log)
        if self._runtime is None:
            raise NoDriver(f"TensorRT {self.version} does not start: {self.words.last()}")
        self._runtime.gpu_allocator = self._callback

    def load_plugins(self, paths: Sequence[str], where: str) -> None:
        """NVIDIA's own, where they are installed, and these libraries. Raises ModelLoadError."""
        here = known()
        if (register := getattr(here.trt, "init_libnvinfer_plugins", None)) is not None:
            register(here.log, "")
        registry = self._runtime.get_plugin_registry()
        for path in paths:
            if not Path(path).is_file():
                raise ModelLoadError(f"{where} needs the plugin library {path}, which is not there")
            self.words.last()
            if registry.load_library(path) is None:
                raise ModelLoadError(f"{where}: plugin library {path} was not loaded: {self.words.last()}")

    def deserialize(self, plan: bytes, where: str, device: str) -> Any:
        """The engine. Raises ModelLoadError with TensorRT's reason."""
        if why := foreign(plan):
            raise ModelLoadError(f"{where} was not loaded: {why}")
        self.words.last()
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise ModelLoadError(
                f"{where} was not loaded by TensorRT {self.version} on {device}: {self.words.last()}; "
                f"{why_refused(plan, self.version)}"
            )
        return engine

    def close(self) -> None:
        """Its engine is gone."""
        self._runtime = None
        self.allocator.close()


class Outputs:
    """Memory for the outputs of one place whose size depends on data; it is kept, and grows."""

    def __init__(self, runtime: Runtime, stream: int) -> None:
        self._owner = runtime
        self._stream = stream
        self._rooms: dict[str, tuple[int, int]] = {}  # address and bytes
        self.shapes: dict[str, Shape] = {}
        self.allocator = output_allocator_of(known().trt, self)

    def room(self, name: str, size: int) -> int:
        """The address of at least `size` bytes; 0: there is no such room."""
        address, bytes_there = self._rooms.get(name, (0, 0))
        if size <= bytes_there:
            return address
        pool = self._owner.memory.pool
        try:
            more = pool.allocate(size, self._stream)
            if address:
                pool.free(address, self._stream)
        except Exception as error:  # TensorRT is C++, and must not see it
            self._owner.words.add(str(error))
            return 0
        self._rooms[name] = more, size
        return more

    def settled(self, name: str, shape: Shape, context: Any) -> Settled:
        """An output of the last run: its shape where `shape` has a dim of -1, and its address."""
        if name in self._rooms and name in self.shapes:
            return Settled(self.shapes[name], self._rooms[name][0])
        if any(dim < 0 for dim in shape):
            why = self._owner.words.last()
            raise EngineError(f"TensorRT did not say the shape of output '{name}': {why}")
        return Settled(shape, int(context.get_tensor_address(name)))

    def close(self) -> None:
        """Nothing of it is running."""
        for address, _ in self._rooms.values():
            self._owner.memory.pool.free(address, self._stream)
        self._rooms.clear()
