"""What a plan is asked to be: options of a build, and the ranges of shapes that they give its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.cuda.model import Shape
from service.models.spec import DYNAMIC

Range = tuple[Shape, Shape, Shape]  # the least, the usual and the largest shape of an input


class BuildError(Exception):
    """No plan was built. The text says what was expected, what came, and what to do."""


@dataclass(frozen=True)
class BuildOptions:
    """How a plan is built.

    Attributes:
        batch: the least, the usual and the largest number of rows. may_batch: a model of fixed sizes is built
        as it is, in place of being refused. shapes: ranges of inputs by name, batch
        first, for those with more open sizes. fp16, int8: layers may be computed so, where the library can
        choose.
        calibration: a .npz with an array of rows per input, or a .npy where there is one input, for INT8
        without Q/DQ nodes; empty: none. calibration_cache: where what was found is kept. workspace_mb: device
        memory that a layer may take while it computes; 0: as much as there is. timing_cache: a file; empty:
        none. plugins: libraries with layers of your own. compute_capability: "8.9" builds with TensorRT-RTX
        for such devices; empty: TensorRT, for the device that is here.
    """

    batch: tuple[int, int, int] | None = None
    may_batch: bool = False
    shapes: Mapping[str, Range] = field(default_factory=dict)
    fp16: bool = False
    int8: bool = False
    calibration: str = ""
    calibration_cache: str = ""
    workspace_mb: int = 0
    timing_cache: str = ""
    plugins: tuple[str, ...] = ()
    compute_capability: str = ""


@dataclass(frozen=True)
class Tensor:
    """An input or output: its name, datatype (Triton's name for it) and dims, -1 where they are open."""

    name: str
    datatype: str
    dims: Shape


def ranges_of(inputs: Sequence[Tensor], options: BuildOptions) -> dict[str, Range]:
    """The range of every input with an open size. Raises BuildError."""
    names = [tensor.name for tensor in inputs]
    if unknown := [name for name in options.shapes if name not in names]:
        raise BuildError(f"there is no input '{unknown[0]}'; the model has {', '.join(names)}")
    found = {tensor.name: shapes for tensor in inputs if (shapes := _range(tensor, options))}
    if options.batch and not found and not options.may_batch:
        told = "; ".join(f"'{tensor.name}' {list(tensor.dims)}" for tensor in inputs)
        raise BuildError(f"a batch was asked for, and every size of the inputs is fixed in the file: {told}")
    return found


def _range(tensor: Tensor, options: BuildOptions) -> Range | None:
    kind = f"input '{tensor.name}' {list(tensor.dims)}"
    if given := options.shapes.get(tensor.name):
        _check_range(kind, tensor, given)
        return given
    if DYNAMIC not in tensor.dims:
        return None
    first, *rest = tensor.dims
    if first != DYNAMIC or DYNAMIC in rest:
        raise BuildError(
            f"{kind} has open sizes: give its least, usual and largest shape, as in --min-shapes "
            f"{tensor.name}:{_example(tensor.dims, 1)} --opt-shapes {tensor.name}:{_example(tensor.dims, 8)} "
            f"--max-shapes {tensor.name}:{_example(tensor.dims, 32)}"
        )
    if options.batch is None:
        raise BuildError(f"{kind} has an open number of rows: say how many, as in --batch 1,8,32")
    shapes = tuple((rows, *rest) for rows in options.batch)
    _check_range(kind, tensor, shapes)  # type: ignore[arg-type]
    return shapes  # type: ignore[return-value]


def _example(dims: Shape, size: int) -> str:
    return "x".join(str(size if dim == DYNAMIC else dim) for dim in dims)


def _check_range(kind: str, tensor: Tensor, shapes: Range) -> None:
    for shape in shapes:
        fits = len(shape) == len(tensor.dims) and all(
            dim in (DYNAMIC, size) for dim, size in zip(tensor.dims, shape, strict=True)
        )
        if not fits or min(shape, default=1) < 1:
            raise BuildError(f"{kind} cannot have the shape {list(shape)}")
    least, usual, most = shapes
    if not all(a <= b <= c for a, b, c in zip(least, usual, most, strict=True)):
        raise BuildError(
            f"{kind}: expected min <= opt <= max in every size, got {list(least)}, {list(usual)} and "
            f"{list(most)}"
        )
