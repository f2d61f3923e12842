"""Models for torch: TorchScript and exported programs, on the worker's device or on the CPU.

    open_torch       file -> program -> declared tensors -> derive (runs it) -> a model
    TorchEngine      on the CPU, with instances as ONNX Runtime's engine has them
    TorchModel       on the device, through its executor: `torch_device`

A model runs on the device where there is one, else on the CPU, and the log says why.

Inputs. TorchScript has no datatypes and shapes, so a config says those of its inputs; outputs it may leave
out: a run shows them. The dims of a config are without the batch axis when it has a max_batch_size above 0,
and the whole shape otherwise, as in Triton. Names are the arguments' own, or Triton's INPUT__0 (`named`).

The CPU. An instance copies its inputs, for a model may write to them and the input arena belongs to others,
and its outputs. Threads: torch gives every launcher a team of its own, so each gets its share of the cores.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from service.cores import available_cores
from service.engines.base import AnyEngine, EngineError, ModelLoadError, UnservedShape
from service.engines.bfloat16 import stored, widened
from service.engines.gathered import Gathered
from service.engines.onnx_strings import check_shapes
from service.engines.torch_library import (
    DTYPES,
    array_of,
    clean,
    datatype_of,
    dtype_of,
    library,
    named,
    tensor_at,
    tensor_of,
)
from service.engines.torch_program import EXPORTED, Program, open_program
from service.models.derive import DEFAULT_MAX_BATCH_SIZE, Derived, derive
from service.models.probe import Array, Declared, RunFailed, Shape, observe
from service.models.spec import ModelSpec
from service.models.wanted import Wanted, WantedTensor, asked_size, narrowed, served

if TYPE_CHECKING:
    from fastqueue import Batch

PLATFORM = "pytorch_libtorch"
BACKEND = "pytorch"


def open_torch(path: str, *, name: str, version: str, wanted: Wanted) -> AnyEngine:
    """Loads a model; parameters and errors as `service.engines.base.open_engine`."""
    where = f"model '{name}' ({path})"
    program = open_program(path, where)
    arguments, found = described(program, where, wanted, Host())
    spec, faults = served(
        wanted,
        found,
        name=name,
        version=version,
        platform=PLATFORM,
        backend=BACKEND,
        instances=wanted.instances,
    )
    if faults:
        raise ModelLoadError(f"{where} cannot be served: {'; '.join(faults)}")
    sample = [stored(array, t.datatype) for array, t in zip(found.sample, spec.inputs, strict=False)]
    return TorchEngine(program, arguments, spec, sample)


# ---- what a model is ----


class Host:
    """Where a program is tried out: on the CPU."""

    def run(self, program: Program, arguments: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        return program.run(arguments, tensors)


class Trial:
    """Runs of a program on numpy arrays, as `derive` wants them: BF16 is float32. Remembers the datatypes
    that came out.
    """

    def __init__(self, program: Program, arguments: Sequence[str], inputs: Sequence[Declared], at: Host):
        self._program = program
        self._arguments = arguments
        self._inputs = inputs
        self._at = at
        self.datatypes: list[str] = []

    def __call__(self, arrays: Sequence[Array]) -> Sequence[Array]:
        tensors = [
            tensor_of(stored(array, tensor.datatype), tensor.datatype)
            for array, tensor in zip(arrays, self._inputs, strict=True)
        ]
        try:
            outputs = self._at.run(self._program, self._arguments, tensors)
        except Exception as error:
            raise RunFailed(clean(error)) from error
        self.datatypes = [datatype_of(output.dtype) for output in outputs]
        if "" in self.datatypes:
            kinds = ", ".join(str(output.dtype) for output in outputs)
            raise RunFailed(f"its outputs are of {kinds}; expected {', '.join(DTYPES)}")
        return [
            widened(array) if datatype == "BF16" else array
            for array, datatype in zip(map(array_of, outputs, self.datatypes), self.datatypes, strict=True)
        ]


def described(program: Program, where: str, wanted: Wanted, at: Host) -> tuple[Sequence[str], Derived]:
    """The arguments that get inputs, and how the program is served. Raises ModelLoadError."""
    if program.kind == EXPORTED:
        arguments: Sequence[str] = program.arguments
        names = named([tensor.name for tensor in wanted.inputs], arguments)
        inputs = [t._replace(name=name) for t, name in zip(program.inputs, names, strict=True)]
        inputs = narrowed(inputs, wanted)
        outputs = _named_outputs(program, wanted)
        trial = Trial(program, arguments, inputs, at)
    else:
        arguments, inputs = _said_inputs(program, where, wanted)
        trial = Trial(program, arguments, inputs, at)
        outputs = _seen_outputs(program, where, wanted, inputs, trial)
    asked = _bounded(asked_size(wanted, inputs), program.most_rows)
    return arguments, derive(inputs, outputs, trial, asked, wanted.batch_sizes)


def _bounded(asked: int | None, most: int) -> int | None:
    """The max_batch_size to try where the file bounds it; 0: it does not."""
    if not most or asked == 0:
        return asked
    return min(asked, most) if asked else (None if most >= DEFAULT_MAX_BATCH_SIZE else most)


def _named_outputs(program: Program, wanted: Wanted) -> list[Declared]:
    names = _output_names(program, wanted)
    return [tensor._replace(name=name) for tensor, name in zip(program.outputs, names, strict=True)]


def _output_names(program: Program, wanted: Wanted) -> list[str]:
    own = [key or f"OUTPUT__{number}" for number, key in enumerate(program.keys)]
    return named([tensor.name for tensor in wanted.outputs], own)


def _said_inputs(program: Program, where: str, wanted: Wanted) -> tuple[tuple[str, ...], list[Declared]]:
    """The arguments that get inputs, and the inputs, of a program whose file does not declare them."""
    said = wanted.inputs
    least, most = len(program.arguments), len(program.arguments) + len(program.optional)
    if not said or any(not tensor.datatype or tensor.model_dims is None for tensor in said):
        raise ModelLoadError(
            f"{where}: {program.kind} does not say the datatypes and shapes of its inputs; expected them in "
            f"the model's config.pbtxt, such as: {example(program)}"
        )
    if not least <= len(said) <= most:
        takes = f"{least}" if least == most else f"{least} to {most}"
        raise ModelLoadError(
            f"{where} cannot be served: the config has {len(said)} inputs, the model takes {takes} "
            f"({', '.join((*program.arguments, *program.optional))})"
        )
    own = (*program.arguments, *program.optional)
    names = named([tensor.name for tensor in said], own)
    by_name = {tensor.name: tensor for tensor in said}
    used = [(argument, by_name[name]) for argument, name in zip(own, names, strict=True) if name in by_name]
    if missing := set(program.arguments) - {argument for argument, _ in used}:
        raise ModelLoadError(f"{where} cannot be served: the config has no input for {', '.join(missing)}")
    batched = _batched(wanted)
    inputs = [Declared(tensor.name, tensor.datatype, _whole(tensor, batched)) for _, tensor in used]
    return tuple(argument for argument, _ in used), inputs


def _whole(tensor: WantedTensor, batched: bool) -> tuple[int | None, ...]:
    """The shape of a tensor of a config: with its batch axis, which is open."""
    dims = tuple(dim if dim >= 0 else None for dim in tensor.model_dims or ())
    return (None, *dims) if batched else dims


def example(program: Program) -> str:
    """A config for a program, to fill in."""
    inputs = " ".join(
        f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }}' for name in program.arguments
    )
    output = 'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1000 ] }'
    return f'backend: "{BACKEND}" max_batch_size: 8 {inputs} {output} (dims are without the batch axis)'


def _seen_outputs(
    program: Program, where: str, wanted: Wanted, inputs: Sequence[Declared], trial: Trial
) -> list[Declared]:
    """The outputs of a program whose file does not declare them: as a run shows them, and the config."""
    seen = observe(inputs, trial)
    if not seen.shapes:
        raise ModelLoadError(f"{where} cannot be served: {seen.why}")
    axes = int(_batched(wanted))
    names = _output_names(program, wanted)
    said = {tensor.name: tensor for tensor in wanted.outputs}
    is_open = any(dim is None for tensor in inputs for dim in tensor.shape[axes:])
    return [
        Declared(name, datatype, _seen_shape(shape, said.get(name), axes, is_open))
        for name, datatype, shape in zip(names, trial.datatypes, seen.shapes[0], strict=True)
    ]


def _batched(wanted: Wanted) -> bool:
    """Whether the dims of a config are without the batch axis."""
    return bool(wanted.batch_sizes or (wanted.firm and wanted.max_batch_size))


def _seen_shape(shape: Shape, said: WantedTensor | None, axes: int, is_open: bool) -> tuple[int | None, ...]:
    """`is_open`: the inputs' dims are, and so may be what came out. The config may bind such dims, or open
    others.
    """
    dims = [None if is_open else dim for dim in shape[axes:]]
    if said is not None and said.model_dims is not None and len(said.model_dims) == len(dims):
        pairs = zip(dims, said.model_dims, strict=True)
        dims = [None if told < 0 else told if dim is None else dim for dim, told in pairs]
    return (None,) * min(axes, len(shape)) + tuple(dims)


# ---- on the CPU ----


class TorchEngine:
    """A loaded model on the CPU."""

    def __init__(
        self, program: Program, arguments: Sequence[str], spec: ModelSpec, sample: Sequence[Array]
    ) -> None:
        self.spec = spec
        self.sample = sample
        self._program = program
        self._arguments = arguments
        self._threads = max(1, available_cores() // spec.instances)

    def create_instance(self, index: int) -> TorchInstance:
        return TorchInstance(self._program, self._arguments, self.spec, self._threads)

    def close(self) -> None:
        self._program.close()


class TorchInstance:
    """One execution slot: memory for each input, and a number of threads."""

    def __init__(self, program: Program, arguments: Sequence[str], spec: ModelSpec, threads: int) -> None:
        self._program = program
        self._arguments = arguments
        self._spec = spec
        self._threads = threads
        self._told = 0  # the thread that knows how many it may have
        most = max(spec.max_batch_size, *spec.batch_sizes, 1)
        self._inputs = [Gathered(i, t.row_bytes * most) for i, t in enumerate(spec.inputs)]

    def execute(self, batch: Batch) -> None:
        """Runs a batch and completes it. Raises EngineError when the model failed; the batch is then open."""
        spec = self._spec
        size = next((size for size in spec.batch_sizes if size >= batch.rows), batch.rows)
        tensors = [self._tensor(batch, index, size - batch.rows) for index in range(len(spec.inputs))]
        batch.mark_input_done(size - batch.rows)
        if spec.batches and not batch.rows and all(tensor.is_fixed for tensor in spec.outputs):
            outputs = [library().empty((0, *t.model_dims), dtype=dtype_of(t.datatype)) for t in spec.outputs]
        else:
            outputs = self._run(tensors)
        batch.mark_compute_done()
        check_outputs(spec, outputs, size)
        self._answer(batch, outputs)

    def _tensor(self, batch: Batch, index: int, padding: int) -> Any:
        tensor, shape = self._spec.inputs[index], batch.input_shape(index) or ()
        row_bytes = prod(shape[1:]) * tensor.element_bytes
        address = self._inputs[index].rows(batch, padding * row_bytes)
        if padding:
            shape = (shape[0] + padding, *shape[1:])
        return tensor_at(address, shape, tensor.datatype, prod(shape) * tensor.element_bytes)

    def _run(self, tensors: Sequence[Any]) -> list[Any]:
        if self._told != threading.get_ident():
            library().set_num_threads(self._threads)  # of this thread's team
            self._told = threading.get_ident()
        try:
            return self._program.run(self._arguments, tensors)
        except Exception as error:
            raise failure_of(error) from error

    def _answer(self, batch: Batch, outputs: Sequence[Any]) -> None:
        """The batch's own rows, which come first."""
        batches, rows = self._spec.batches, batch.rows if self._spec.batches else 1
        shapes: list[Shape] = [tuple(output.shape) for output in outputs]
        sizes = [
            prod(shape[batches:]) * tensor.element_bytes
            for shape, tensor in zip(shapes, self._spec.outputs, strict=True)
        ]
        addresses = batch.reserve(sizes) or ()
        for output, size, address in zip(outputs, sizes, addresses, strict=True):
            if size * rows:
                held = output.contiguous()
                ctypes.memmove(address, held.data_ptr(), size * rows)
        batch.complete([(rows, *shape[1:]) if batches else shape for shape in shapes])

    def close(self) -> None:
        self._inputs = []


def failure_of(error: Exception) -> EngineError:
    """What a run's exception is to the caller."""
    text = clean(error)
    if isinstance(error, AssertionError) and "Guard failed" in text:  # an exported program's own words
        return UnservedShape(f"the program was not exported for inputs of this shape: {text}")
    return EngineError(text)


def check_outputs(spec: ModelSpec, outputs: Sequence[Any], rows: int) -> None:
    """Raises EngineError for outputs that are not as the spec has them; `rows` were run."""
    if len(outputs) != len(spec.outputs):
        raise EngineError(f"{len(outputs)} outputs came out, expected {len(spec.outputs)}")
    check_shapes(spec.outputs, [tuple(output.shape) for output in outputs], rows if spec.batches else None)
    for output, tensor in zip(outputs, spec.outputs, strict=True):
        if (datatype := datatype_of(output.dtype)) != tensor.datatype:
            came = datatype or str(output.dtype)
            raise EngineError(f"output '{tensor.name}' came out as {came}, expected {tensor.datatype}")
        dims = tuple(output.shape)[spec.batches :]
        pairs = zip(dims, tensor.model_dims, strict=False)
        if len(dims) != len(tensor.model_dims) or any(want not in (-1, dim) for dim, want in pairs):
            expected = f"expected {list(tensor.model_dims)}: its shape depends on the data"
            raise EngineError(f"output '{tensor.name}' came out with rows of {list(dims)}, {expected}")
