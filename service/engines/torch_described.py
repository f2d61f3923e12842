"""How a program for torch is served: its inputs and outputs by name, from its file, its config and runs.

TorchScript has no datatypes and shapes, so a config says those of its inputs; outputs it may leave out: a
run shows them. The dims of a config are without the batch axis when it has a max_batch_size above 0, and the
whole shape otherwise, as in Triton. Names are the arguments' own, or Triton's INPUT__0 (`named`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from service.cuda.driver import DriverError
from service.engines.base import ModelLoadError
from service.engines.bfloat16 import stored, widened
from service.engines.torch_library import DTYPES, array_of, clean, datatype_of, named, tensor_of
from service.engines.torch_program import EXPORTED, Program
from service.models.derive import DEFAULT_MAX_BATCH_SIZE, Derived, derive
from service.models.probe import Array, Declared, RunFailed, Shape, observe
from service.models.wanted import Wanted, WantedTensor, asked_size, narrowed

BACKEND = "pytorch"
PLATFORM = "pytorch_libtorch"


class Place(Protocol):
    """Where a program is tried out."""

    def run(self, program: Program, arguments: Sequence[str], tensors: Sequence[Any]) -> list[Any]:
        """The outputs for tensors on the CPU. Raises whatever torch does, and DriverError."""


class Trial:
    """Runs of a program on numpy arrays, as `derive` wants them: BF16 is float32. Remembers the datatypes
    that came out.
    """

    def __init__(self, program: Program, arguments: Sequence[str], inputs: Sequence[Declared], at: Place):
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
        except DriverError:
            raise
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


def described(program: Program, where: str, wanted: Wanted, at: Place) -> tuple[Sequence[str], Derived]:
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
