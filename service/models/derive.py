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

Declared output shapes are sometimes wrong (ONNX Runtime only warns). Where a run contradicts them the dims
become dynamic and a warning says so; an engine may write outputs ahead of the run only where
`shapes_confirmed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    probe_rows,
)
from service.models.spec import DYNAMIC, TensorSpec

DEFAULT_MAX_BATCH_SIZE = 32


@dataclass(frozen=True)
class Derived:
    """What a model is served as; the fields of ModelSpec, and for the engine:

    Attributes:
        shapes_confirmed: a run has shown that the outputs have the shapes that `outputs` says. sample: inputs
        the model runs on, in model order; empty where none was found.
    """

    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    why_unbatched: str
    warnings: tuple[str, ...]
    shapes_confirmed: bool
    sample: tuple[Array, ...]


def derive(inputs: Sequence[Declared], outputs: Sequence[Declared], run: Run, asked: int | None) -> Derived:
    """Decides how a model is served. `asked`: the user's max_batch_size, None where the user said nothing."""
    max_batch_size, why, warnings, probe = _decide(inputs, outputs, run, asked)
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
    )


def _decide(
    inputs: Sequence[Declared], outputs: Sequence[Declared], run: Run, asked: int | None
) -> tuple[int, str, tuple[str, ...], Probe]:
    fault = "batching is turned off (max_batch_size 0)" if asked == 0 else axis_fault(inputs, outputs)
    if fault:
        return 0, fault, (), observe(inputs, run)
    probe = probe_rows(inputs, outputs, run)
    if probe.finding == Finding.INDEPENDENT:
        return asked or DEFAULT_MAX_BATCH_SIZE, "", (), probe
    if probe.finding == Finding.DEPENDENT:
        return 0, probe.why, (), probe
    if asked:
        return asked, "", (f"batched because --max-batch-size says so, although {probe.why}",), probe
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
