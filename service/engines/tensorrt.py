"""TensorRT plans on a device.

    open_plan       driver -> runtime -> engine -> declared tensors -> derive (runs it) -> PlanModel
    PlanContext     a context per optimization profile at one place, all with the stream's scratch

The driver is asked first: on a machine without one, TensorRT's runtime crashes the process at its first use.
TensorRT says what is wrong with a plan to its log, and returns None or False; `Words` keeps what it says, and
every such result becomes an error with it.

Batches. A plan runs at the batch sizes of its optimization profiles. Rows are padded up to the next size of
`sizes_of`: the profiles' own (min, opt, max) and the powers of two between, or `allowed_batch_sizes` of the
config. The plan's largest batch is the user's word that it batches; rows that prove to depend on each other
are refused all the same.

Memory. Weights are taken while the model is loaded (`Allocator`), activations lie in the stream's scratch
(USER_MANAGED), and what TensorRT allocates while it runs comes from the model's pool, in the stream's order.

The same calls serve TensorRT 10 and 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from service.cuda.device import Device, the_device
from service.cuda.driver import DriverError, NoDriver, api, check
from service.cuda.memory import ModelMemory
from service.cuda.model import UNBATCHED, Place, Settled, Shape
from service.engines.base import EngineError, ModelLoadError, UnservedShape
from service.engines.bfloat16 import stored, widened
from service.engines.tensorrt_cache import plan_of
from service.engines.tensorrt_runtime import DATATYPES, Outputs, Runtime
from service.models.derive import derive
from service.models.probe import Array, Declared, RunFailed
from service.models.spec import DYNAMIC, ModelSpec, numpy_dtype
from service.models.wanted import Wanted, asked_size, narrowed, served

PLATFORM = "tensorrt_plan"
BACKEND = "tensorrt"
ONNX = ".onnx"  # of such a file the plan is made here


@dataclass(frozen=True)
class Profile:
    """An optimization profile: per input, in model order, the least, the usual and the largest shape."""

    index: int
    least: tuple[Shape, ...]
    usual: tuple[Shape, ...]
    most: tuple[Shape, ...]

    def takes(self, shapes: Sequence[Shape]) -> bool:
        """Whether all of these shapes lie within it."""
        return all(
            len(shape) == len(low) and all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))
            for low, shape, high in zip(self.least, shapes, self.most, strict=True)
        )

    def __str__(self) -> str:
        return " and ".join(
            f"{list(low)} to {list(high)}" for low, high in zip(self.least, self.most, strict=True)
        )


# ---- loading ----


@dataclass(frozen=True)
class _Load:
    """A load: what was asked, what people are told it is, and the device it is for."""

    path: str
    name: str
    version: str
    wanted: Wanted
    where: str
    device: Device


def open_plan(path: str, *, name: str, version: str, wanted: Wanted) -> PlanModel:
    """Loads a plan; parameters and errors as `service.engines.base.open_engine`."""
    where = f"model '{name}' ({path})"
    try:
        device = the_device()
        plan = plan_of(path, where, wanted, device) if path.endswith(ONNX) else read(path, where)
        memory = device.model_memory(name, wanted.gpu_memory_limit)
        with memory.loading():
            return _open(_Load(path, name, version, wanted, where, device), plan, memory)
    except (NoDriver, DriverError) as error:
        raise ModelLoadError(f"{where} was not loaded: {error}") from error


def read(path: str, where: str) -> bytes:
    try:
        plan = Path(path).read_bytes()
    except OSError as error:
        raise ModelLoadError(f"{where} cannot be read: {error.strerror}") from error
    if not plan:
        raise ModelLoadError(f"{where} is an empty file; expected a TensorRT plan")
    return plan


def _open(load: _Load, plan: bytes, memory: ModelMemory) -> PlanModel:
    memory.require(len(plan))
    runtime = Runtime(memory)
    folder = Path(load.path).parent
    try:
        runtime.load_plugins([str(folder / plugin) for plugin in load.wanted.plugins], load.where)
        engine = runtime.deserialize(plan, load.where, load.device.name)
        del plan
        return _described(load, engine, runtime)
    except BaseException:
        runtime.close()
        raise


def _described(load: _Load, engine: Any, runtime: Runtime) -> PlanModel:
    wanted, device = load.wanted, load.device
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    sides = [[n for n in names if engine.get_tensor_mode(n).name == mode] for mode in ("INPUT", "OUTPUT")]
    faults = [fault for n in names if (fault := _tensor_fault(engine, n))]
    if faults:
        raise ModelLoadError(f"{load.where} cannot be served: {'; '.join(faults)}")
    inputs, outputs = ([_declared(engine, n) for n in side] for side in sides)
    inputs = narrowed(inputs, wanted)
    profiles = _profiles(engine, sides[0])
    model = PlanModel(engine, runtime, runtime.memory, sides[0], sides[1], profiles)
    asked = asked_size(wanted, inputs)
    most = most_rows(profiles, inputs)
    sizes = sizes_of(profiles, wanted.batch_sizes, asked or most) if most and asked != 0 else ()

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        try:
            return model.run_once(arrays, device)
        except (EngineError, DriverError) as error:
            raise RunFailed(str(error)) from error

    found = derive(inputs, outputs, run, min(asked or most, most) if sizes else 0, sizes)
    spec, faults = served(
        wanted,
        found,
        name=load.name,
        version=load.version,
        platform=PLATFORM,
        backend=BACKEND,
        instances=wanted.instances if wanted.says_instances else device.stream_count,
    )
    if faults:
        raise ModelLoadError(f"{load.where} cannot be served: {'; '.join(faults)}")
    model.serve(spec, found.sample)
    return model


def _tensor_fault(engine: Any, name: str) -> str:
    kind = f"{engine.get_tensor_mode(name).name.lower()} '{name}'"
    if engine.is_shape_inference_io(name) or engine.get_tensor_location(name).name == "HOST":
        return f"{kind} is a shape tensor, which lies on the host; expected tensors on the device"
    if (type_name := engine.get_tensor_dtype(name).name) not in DATATYPES:
        return f"{kind} has type {type_name}; expected one of {', '.join(DATATYPES)}"
    if (form := engine.get_tensor_format(name).name) != "LINEAR":
        return f"{kind} has format {form}; expected LINEAR: build the plan without formats of its own"
    return ""


def _declared(engine: Any, name: str) -> Declared:
    shape = tuple(dim if dim >= 0 else None for dim in engine.get_tensor_shape(name))
    return Declared(name, DATATYPES[engine.get_tensor_dtype(name).name], shape)


def _profiles(engine: Any, inputs: Sequence[str]) -> tuple[Profile, ...]:
    found = []
    for index in range(engine.num_optimization_profiles):
        shapes = [[tuple(s) for s in engine.get_tensor_profile_shape(name, index)] for name in inputs]
        found.append(Profile(index, *(tuple(shape[which] for shape in shapes) for which in range(3))))
    return tuple(found)


def most_rows(profiles: Sequence[Profile], inputs: Sequence[Declared]) -> int:
    """The largest batch of any profile; 0 where axis 0 of an input is no batch axis."""
    if not all(tensor.shape for tensor in inputs):
        return 0
    return max((min(shape[0] for shape in profile.most) for profile in profiles), default=0)


def sizes_of(profiles: Sequence[Profile], allowed: Sequence[int], most: int) -> tuple[int, ...]:
    """The batch sizes to run for batches of at most `most` rows, ascending: `allowed`, or each profile's own
    and the powers of two within it.
    """
    sizes = set(allowed)
    if not sizes:
        for profile in profiles:
            low, high = (max(s[0] for s in profile.least), min(s[0] for s in profile.most))
            own = {low, min(s[0] for s in profile.usual), high, most}
            powers = {1 << bit for bit in range(high.bit_length())}
            sizes |= {size for size in own | powers if low <= size <= high}
    enough = min((size for size in sizes if size >= most), default=0)
    return tuple(sorted(size for size in sizes if 0 < size <= (enough or max(sizes))))


# ---- the model ----


class PlanModel:
    """A loaded plan: a DeviceModel."""

    def __init__(
        self,
        engine: Any,
        runtime: Runtime,
        memory: ModelMemory,
        inputs: Sequence[str],
        outputs: Sequence[str],
        profiles: tuple[Profile, ...],
    ) -> None:
        self.engine = engine
        self.runtime = runtime
        self.memory = memory
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.profiles = profiles
        self.datatypes = {name: DATATYPES[engine.get_tensor_dtype(name).name] for name in (*inputs, *outputs)}
        self.scratch_bytes = int(engine.device_memory_size_v2)
        self.sample: Sequence[Array] = ()
        self.sizes: tuple[int, ...] = UNBATCHED
        self._spec: ModelSpec | None = None

    def serve(self, spec: ModelSpec, sample: Sequence[Array]) -> None:
        """It is known how the model is served."""
        self._spec = spec
        self.sample = [stored(array, t.datatype) for array, t in zip(sample, spec.inputs, strict=False)]
        self.sizes = spec.batch_sizes or ((spec.max_batch_size,) if spec.batches else UNBATCHED)
        self.runtime.allocator.serving = True

    @property
    def spec(self) -> ModelSpec:
        assert self._spec is not None
        return self._spec

    @property
    def capturable(self) -> bool:
        return all(tensor.is_fixed for tensor in (*self.spec.inputs, *self.spec.outputs))

    def open_context(self, place: Place) -> PlanContext:
        return PlanContext(self, place)

    def run_once(self, arrays: Sequence[Array], device: Device) -> Sequence[Array]:
        """A run by itself, on memory and a stream of its own; BF16 is float32 here. Raises EngineError,
        DriverError.
        """
        datatypes = [self.datatypes[name] for name in self.outputs]
        held = [stored(array, self.datatypes[n]) for array, n in zip(arrays, self.inputs, strict=True)]
        with OneRun(self, device) as run:
            found = run(held, datatypes)
        return [widened(a) if t == "BF16" else a for a, t in zip(found, datatypes, strict=True)]

    def close(self) -> None:
        the_device()
        self.engine = None
        self.runtime.close()
        self.memory.close()


class PlanContext:
    """The contexts of one place, one for each profile."""

    def __init__(self, model: PlanModel, place: Place) -> None:
        self._model = model
        self._words = model.runtime.words
        self._outputs = Outputs(model.runtime, place.stream)
        self._contexts: dict[int, Any] = {}
        self._now: Any = None
        for profile in model.profiles:
            self._contexts[profile.index] = self._opened(profile.index, place)

    def _opened(self, profile: int, place: Place) -> Any:
        strategy = self._model.runtime.strategy.USER_MANAGED
        context = self._model.engine.create_execution_context(strategy)
        if context is None:
            raise EngineError(f"TensorRT made no context: {self._words.last()}")
        if self._model.scratch_bytes:
            context.set_device_memory(place.scratch, place.scratch_bytes)
        if not context.set_optimization_profile_async(profile, place.stream):
            raise EngineError(f"profile {profile} cannot be used: {self._words.last()}")
        return context

    def prepare(self, shapes: Sequence[Shape], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Raises UnservedShape where no profile takes these shapes; nothing is enqueued then."""
        self._now = context = self._contexts[self._profile(shapes)]
        for name, shape, address in zip(self._model.inputs, shapes, inputs, strict=True):
            self._must(context.set_input_shape(name, shape), f"the shape {list(shape)} of input '{name}'")
            self._must(context.set_tensor_address(name, address), f"input '{name}'")
        if missing := context.infer_shapes():
            raise EngineError(f"TensorRT still wants {', '.join(missing)}: {self._words.last()}")
        for name, address in zip(self._model.outputs, outputs, strict=True):
            if address:
                self._must(context.set_tensor_address(name, address), f"output '{name}'")
            elif DYNAMIC in context.get_tensor_shape(name):
                self._must(context.set_output_allocator(name, self._outputs.allocator), f"output '{name}'")

    def _profile(self, shapes: Sequence[Shape]) -> int:
        for profile in self._model.profiles:
            if profile.takes(shapes):
                return profile.index
        got = " and ".join(str(list(shape)) for shape in shapes)
        known = ", or ".join(str(profile) for profile in self._model.profiles)
        raise UnservedShape(f"the plan was built for inputs of {known}, and got {got} (the batch is padded)")

    def output_shapes(self) -> Sequence[Shape]:
        return [tuple(self._now.get_tensor_shape(name)) for name in self._model.outputs]

    def settled_shapes(self) -> Sequence[Settled]:
        known = dict(zip(self._model.outputs, self.output_shapes(), strict=True))
        return [self._outputs.settled(name, known[name], self._now) for name in self._model.outputs]

    def enqueue(self, stream: int) -> None:
        self._must(self._now.execute_async_v3(stream), "the run")

    def _must(self, done: bool, what: str) -> None:
        if not done:
            raise EngineError(f"TensorRT refused {what}: {self._words.last()}")

    def close(self) -> None:
        self._now = None
        self._contexts.clear()
        self._outputs.close()


# ---- a run by itself, while the model is loaded ----


class OneRun:
    """A context with a stream and memory of its own; to be used in a `with`, for one run."""

    def __init__(self, model: PlanModel, device: Device) -> None:
        self._model = model
        self._device = device
        self._taken: list[int] = []

    def __enter__(self) -> OneRun:
        self._stream = self._device.new_stream()
        scratch = self._take(self._model.scratch_bytes)
        self._context = PlanContext(self._model, Place(self._stream, scratch, self._model.scratch_bytes))
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()
        for address in self._taken:
            check(api().cuMemFree(address), "freeing memory")
        check(api().cuStreamDestroy(self._stream), "ending a stream")

    def _take(self, size: int) -> int:
        self._taken.append(int(check(api().cuMemAlloc(max(1, size)), "taking memory")))
        return self._taken[-1]

    def __call__(self, arrays: Sequence[Array], datatypes: Sequence[str]) -> Sequence[Array]:
        inputs = [self._take(array.nbytes) for array in arrays]
        for address, array in zip(inputs, arrays, strict=True):
            copied = api().cuMemcpyHtoDAsync(address, array.ctypes.data, array.nbytes, self._stream)
            check(copied, "copying a test input")
        shapes = [array.shape for array in arrays]
        self._context.prepare(shapes, inputs, [0] * len(datatypes))
        self._context.prepare(shapes, inputs, self._places(datatypes))
        self._context.enqueue(self._stream)
        check(api().cuStreamSynchronize(self._stream), "waiting for a test run")
        settled = self._context.settled_shapes()
        return [self._copied(s, _host_type(t)) for s, t in zip(settled, datatypes, strict=True)]

    def _places(self, datatypes: Sequence[str]) -> list[int]:
        """An address per output; 0 for one whose size depends on data."""
        shapes = zip(self._context.output_shapes(), datatypes, strict=True)
        return [0 if DYNAMIC in s else self._take(prod(s) * _host_type(t).itemsize) for s, t in shapes]

    def _copied(self, settled: Settled, dtype: np.dtype[Any]) -> Array:
        array = np.empty(settled.shape, dtype)
        if array.nbytes:
            copied = api().cuMemcpyDtoHAsync(array.ctypes.data, settled.address, array.nbytes, self._stream)
            check(copied, "copying a test output")
            check(api().cuStreamSynchronize(self._stream), "copying a test output")
        return array


def _host_type(datatype: str) -> np.dtype[Any]:
    """What numpy has in its place: BF16 as its bits."""
    return np.dtype("uint16") if datatype == "BF16" else numpy_dtype(datatype)
