"""From what a model file declares, and what the model does, to what is served: batch axis, dims, why not.

    axis_fault   can axis 0 be the batch axis, by the declared shapes?  no: served unbatched, with the reason
    probe_rows   it runs; are its rows independent?                     no: served unbatched, with the reason
                 yes: max_batch_size as asked, or DEFAULT_MAX_BATCH_SIZE

This knows no engine: an engine hands in the declarations and a way to run the model. A model is never batched
on a claim alone. What the user asks for (`asked`) prevails over doubt, with a warning, and never over proof:

    nothing asked      batches when rows are INDEPENDENT
    0                  does not batch
    n                  batches when INDEPENDENT; when CLOSE or UNKNOWN too, with a warning

Symbols are claims as well, but one kind of claim is believed at once: where a symbol of somebody's axis 0 is
another axis of some tensor, the batch axis is not axis 0 everywhere.

A batch axis that is fixed in the file (the same size everywhere, above 1) is the one size that the engine
runs: smaller batches are padded up to it, and the probe compares rows at that size too. The user may name
such sizes for other models as well (`batch_sizes`).

Declared output shapes are sometimes wrong (ONNX Runtime only warns). Where a run contradicts them the dims
become dynamic and a warning says so; an engine may write outputs ahead of the run only where
`shapes_confirmed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.models.probe import (
    Array,
    Declared,
    Finding,
    Probe,
    Run,
    Shape,
    axis_symbols,
    is_dynamic,
    observe,
    padded,
    probe_rows,
    run_at_sizes,
)
from service.models.spec import DYNAMIC, TensorSpec

DEFAULT_MAX_BATCH_SIZE = 32


@dataclass(frozen=True)
class Derived:
    """What a model is served as; the fields of ModelSpec, and for the engine:

    Attributes:
        shapes_confirmed: a run has shown that the outputs have the shapes that `outputs` says. sample: inputs
        the model runs on, in model order; empty where none was found. batch_sizes: the sizes it runs at;
        empty: every size.
    """

    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    why_unbatched: str
    warnings: tuple[str, ...]
    shapes_confirmed: bool
    sample: tuple[Array, ...]
    batch_sizes: tuple[int, ...] = ()


def derive(
    inputs: Sequence[Declared],
    outputs: Sequence[Declared],
    run: Run,
    asked: int | None,
    batch_sizes: tuple[int, ...] = (),
) -> Derived:
    """Decides how a model is served.

    `asked`: the user's max_batch_size, None where the user said nothing. `batch_sizes`: the only sizes that
    may be run, ascending; empty: what the file says, which is any size unless its batch axis is fixed.
    """
    fixed = fixed_size(inputs, outputs, asked)
    if fixed and batch_sizes not in ((), (fixed,)):
        found = _derive(inputs, outputs, run, 0, ())
        return replace(found, why_unbatched=f"its batch axis is fixed at {fixed}")
    sizes = _up_to(asked, batch_sizes or ((fixed,) if fixed else ()))
    if asked == 0 or not sizes:
        return _derive(inputs, outputs, run, asked, ())
    most = min(asked or sizes[-1], sizes[-1])
    opened = _opened(inputs, fixed), _opened(outputs, fixed)
    found = _derive(*opened, run_at_sizes(run, sizes), most if asked or batch_sizes else None, sizes)
    if found.max_batch_size:
        return replace(found, sample=tuple(padded(found.sample, sizes[0])) if found.sample else ())
    return replace(_derive(inputs, outputs, run, 0, ()), why_unbatched=found.why_unbatched)


def fixed_size(inputs: Sequence[Declared], outputs: Sequence[Declared], asked: int | None) -> int:
    """The size of axis 0 where the file fixes it for every input, and for no output at another; else 0.

    A size of 1 counts only for who asks for it: nothing can be batched there.
    """
    first = {tensor.shape[0] if tensor.shape else None for tensor in inputs}
    of_outputs = {tensor.shape[0] for tensor in outputs if tensor.shape and not is_dynamic(tensor.shape[0])}
    size = first.pop() if len(first) == 1 else None
    if not isinstance(size, int) or of_outputs - {size}:
        return 0
    return size if size > 1 or asked == size == 1 else 0


def _up_to(asked: int | None, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that batches of at most `asked` rows need."""
    return tuple(
        size for number, size in enumerate(sizes) if not (asked and number and sizes[number - 1] >= asked)
    )


def _opened(tensors: Sequence[Declared], fixed: int) -> list[Declared]:
    """The tensors with their batch axis open where it is fixed."""
    return [t._replace(shape=(None, *t.shape[1:])) if t.shape[:1] == (fixed,) else t for t in tensors]


def _derive(
    inputs: Sequence[Declared],
    outputs: Sequence[Declared],
    run: Run,
    asked: int | None,
    sizes: tuple[int, ...],
) -> Derived:
    max_batch_size, why, warnings, probe = _decide(inputs, outputs, run, asked, sizes)
    axes = 1 if max_batch_size else 0
    specs, contradictions = _output_specs(outputs, probe.shapes, axes)
    return Derived(
        max_batch_size,
        tuple(TensorSpec(t.name, t.datatype, _dims(t.shape[axes:])) for t in inputs),
        specs,
        why,
        (*warnings, *contradictions),
        bool(probe.shapes) and not contradictions,
        probe.sample,
        sizes if max_batch_size else (),
    )


def _decide(
    inputs: Sequence[Declared],
    outputs: Sequence[Declared],
    run: Run,
    asked: int | None,
    sizes: tuple[int, ...],
) -> tuple[int, str, tuple[str, ...], Probe]:
    fault = "batching is turned off (max_batch_size 0)" if asked == 0 else axis_fault(inputs, outputs)
    if fault:
        return 0, fault, (), observe(inputs, run)
    most = sizes[-1] if sizes else DEFAULT_MAX_BATCH_SIZE
    probe = probe_rows(inputs, outputs, run, most)
    if probe.finding == Finding.INDEPENDENT:
        return asked or most, "", (), probe
    if probe.finding == Finding.DEPENDENT:
        return 0, probe.why, (), probe
    if asked:
        warning = f"batched because max_batch_size {asked} was asked for, although {probe.why}"
        return asked, "", (warning,), probe
    unless = "that is no harm" if probe.finding == Finding.CLOSE else "its rows are independent"
    return 0, f"{probe.why}; if {unless}, --max-batch-size N batches it", (), probe


def axis_fault(inputs: Sequence[Declared], outputs: Sequence[Declared]) -> str:
    """One clause on why axis 0 cannot be the batch axis; empty when it may be."""
    if not inputs:
        return "it has no inputs"
    symbols = axis_symbols(inputs)
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for tensor in tensors:
            if fault := _tensor_fault(tensor, kind, symbols):
                return fault
    return ""


def _tensor_fault(tensor: Declared, kind: str, symbols: set[str]) -> str:
    where = f"{kind} '{tensor.name}'"
    if not tensor.shape:
        return f"{where} is a scalar" if kind == "input" else ""  # an output's rank shows when it runs
    for axis, dim in enumerate(tensor.shape[1:], 1):
        if isinstance(dim, str) and dim in symbols:
            return f"the batch axis '{dim}' is axis {axis} of {where}"
    if not is_dynamic(tensor.shape[0]):
        return f"axis 0 of {where} is fixed at {tensor.shape[0]}"
    return ""


def _dims(shape: Sequence[int | str | None]) -> Shape:
    return tuple(dim if isinstance(dim, int) and dim >= 0 else DYNAMIC for dim in shape)


def _output_specs(
    outputs: Sequence[Declared], runs: Sequence[Sequence[Shape]], axes: int
) -> tuple[tuple[TensorSpec, ...], list[str]]:
    """The outputs without `axes` leading axes; a sentence for each whose declared shape a run contradicts."""
    specs, sentences = [], []
    for number, tensor in enumerate(outputs):
        declared = _dims(tensor.shape)
        dims = declared
        for shapes in runs:
            dims = _reconciled(dims, shapes[number])
        if dims != declared:
            seen = list(runs[0][number])
            sentences.append(f"output '{tensor.name}' is declared as {list(declared)} but came out as {seen}")
        specs.append(TensorSpec(tensor.name, tensor.datatype, dims[axes:]))
    return tuple(specs), sentences


def _reconciled(dims: Shape, seen: Shape) -> Shape:
    """`dims` with every dim that `seen` contradicts made dynamic."""
    if len(dims) != len(seen):
        return (DYNAMIC,) * len(seen)
    return tuple(dim if dim in (DYNAMIC, size) else DYNAMIC for dim, size in zip(dims, seen, strict=True))
