"""Whether the rows of a model are independent, found out by running it; and the shapes its outputs really
have.

A file only claims things: a dynamic axis 0 may count rows, time steps or boxes, and a model may mix its rows
(softmax or mean over axis 0, batch statistics). Batching such a model would answer callers with each other's
data. So three rows are made, each run alone, then two and three of them together. The rows are independent
iff

    (1) every output has as many rows along axis 0 as went in, for 1, 2 and 3 rows,
    (2) the other dimensions do not depend on how many rows ran,
    (3) each row of a batch is the row that ran alone, and
    (4) at least one output is not the same for all three rows (else (3) would say nothing).

Kernels that sum in another order change a row a little, so (3) has a tolerance. It is a fraction of how much
the rows that ran alone differ from each other, per output: mixing rows moves them by about that much, however
small it is beside the numbers themselves.

Findings, from the best to the worst; only the first lets a model batch by itself:

    INDEPENDENT   all four hold
    CLOSE         (3) misses the tolerance by little: dynamic quantisation looks like that
    UNKNOWN       no test input could be run, or rows never differed enough for (3) to say anything
    DEPENDENT     (1) or (2) fails, a batch cannot be run, or (3) is far off

Test inputs are made from the declared shapes: dynamic dimensions get one size (the same everywhere), numbers
come from a seeded generator. Few models accept any input, so sizes and ranges are tried until one runs; token
ids must be small, masks 0 or 1, images large; strings are words that the model knows, numbers as text, or
sentences. The magnitude of floats grows from row to row, so that a scale
taken over the whole batch shows. A row's numbers do not depend on the batch it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.models.spec import numpy_dtype

Array = NDArray[Any]
Shape = tuple[int, ...]
Run = Callable[[Sequence[Array]], Sequence[Array]]  # inputs to outputs, in model order; raises RunFailed

ROWS = 3
SIZES = (64, 16, 1, 256, 1024, 16000)  # most likely to run first
MAX_ROW_ELEMENTS = 4 << 20  # of one input; larger test inputs would cost seconds
MAX_FIXED_ELEMENTS = 64 << 20  # of one whose size is not ours to choose; larger ones would cost gigabytes
TOO_LARGE = f"an input has more than {MAX_FIXED_ELEMENTS} elements"

# Largest difference of a row in a batch from the row alone, as a fraction of the rows' spread. Measured here:
# 4e-5 (magika), 2e-5 (a NHWC convolutional net), 0 (OCR, speech); dynamically quantised models 4e-3 and more.
TOLERANCE = {"BF16": 8e-2, "FP16": 2e-2, "FP32": 2e-3, "FP64": 2e-3}
FAR_OFF = 0.25
# What rounding may do, as a fraction of the largest magnitude: rows that differ by less cannot be compared.
NOISE = {"BF16": 3e-2, "FP16": 4e-3, "FP32": 1e-5, "FP64": 1e-5}


class RunFailed(Exception):
    """The model does not run on these inputs."""


def padded(arrays: Sequence[Array], rows: int) -> list[Array]:
    """`arrays` with their last row again behind their own, up to `rows` on axis 0.

    Zeros would tell less: a row beside its like and the same row beside others differ the most.
    """
    return [np.concatenate([array, np.repeat(array[-1:], rows - array.shape[0], axis=0)]) for array in arrays]


def run_at_sizes(run: Run, sizes: Sequence[int]) -> Run:
    """`run` for a model that takes only these batch sizes (ascending): pads the rows up to the next one, and
    cuts the outputs back to the rows. An output that has not the padded size is returned as it came.
    """

    def run_padded(arrays: Sequence[Array]) -> Sequence[Array]:
        rows = arrays[0].shape[0]
        size = next(size for size in sizes if size >= rows)
        outputs = run(padded(arrays, size))
        return [array[:rows] if array.shape[:1] == (size,) else array for array in outputs]

    return run_padded


class Declared(NamedTuple):
    """An input or output as the file declares it. A dimension is a size, a symbol, or None (dynamic).

    An empty shape is a scalar or, which ONNX Runtime does not tell apart, undeclared. `words`: what an input
    of BYTES is tried with, such as a vocabulary; empty: WORDS.
    """

    name: str
    datatype: str
    shape: tuple[int | str | None, ...]
    words: tuple[bytes, ...] = ()


class Range(NamedTuple):
    low: float
    high: float
    integers: int  # integers are in [0, integers)
    seed: int
    text: str  # what strings are: words, numbers or sentences


RANGES = (
    Range(-1.0, 1.0, 8, 0, "words"),
    Range(0.0, 1.0, 2, 1, "numbers"),
    Range(-1.0, 1.0, 50, 2, "sentences"),
    Range(0.0, 255.0, 256, 3, "words"),
)
WORDS = (
    b"the",
    b"Paris",
    b"a",
    b"b",
    b"red",
    b"blue",
    b"yes",
    b"no",
    b"M",
    b"F",
    b"dog",
    b"cat",
    b"water",
    b"7",
)
SENTENCE_WORDS = 5


class Trial(NamedTuple):
    size: int
    range: Range


class Finding(IntEnum):
    INDEPENDENT = 0
    CLOSE = 1
    UNKNOWN = 2
    DEPENDENT = 3


@dataclass(frozen=True)
class Probe:
    """What was found.

    Attributes:
        why: one clause on everything but INDEPENDENT. sample: inputs of one row that ran, in model order.
        shapes: output shapes of every run of one row. Both are empty where nothing ran.
    """

    finding: Finding
    why: str = ""
    sample: tuple[Array, ...] = ()
    shapes: tuple[tuple[Shape, ...], ...] = ()


def is_dynamic(dim: int | str | None) -> bool:
    return not isinstance(dim, int) or dim < 0


# ---- test inputs ----


def trials(inputs: Sequence[Declared]) -> Iterator[Trial]:
    """Everything to try, in order. One size suffices where only axis 0 is dynamic."""
    if any(prod(_sizes(tensor.shape, 1, set())) > MAX_FIXED_ELEMENTS for tensor in inputs):
        return
    inner = [tensor.shape[1:] for tensor in inputs if any(is_dynamic(dim) for dim in tensor.shape[1:])]
    for size in SIZES if inner else SIZES[:1]:
        if all(prod(_sizes(shape, size, set())) <= MAX_ROW_ELEMENTS for shape in inner):
            for numbers in RANGES:
                yield Trial(size, numbers)


def axis_symbols(inputs: Sequence[Declared]) -> set[str]:
    """The symbols that stand on axis 0 of an input."""
    return {tensor.shape[0] for tensor in inputs if tensor.shape and isinstance(tensor.shape[0], str)}


def _sizes(shape: Sequence[int | str | None], size: int, ones: set[str]) -> Shape:
    """`shape` with 1 for symbols in `ones` (they count rows, on any axis) and `size` for what is dynamic."""
    return tuple(dim if isinstance(dim, int) and dim >= 0 else 1 if dim in ones else size for dim in shape)


def make_row(inputs: Sequence[Declared], row: int, trial: Trial) -> tuple[Array, ...]:
    """Row number `row` of every input, with an axis 0 of its declared size, 1 where that is dynamic."""
    ones = axis_symbols(inputs)
    arrays = []
    for number, tensor in enumerate(inputs):
        shape = _sizes(tensor.shape[:1], 1, ones) + _sizes(tensor.shape[1:], trial.size, ones)
        if tensor.datatype == "BYTES":
            arrays.append(_strings(tensor.words or WORDS, shape, number, row, trial.range))
        else:
            arrays.append(_numbers(tensor.datatype, shape, number, row, trial.range))
    return tuple(arrays)


def _strings(words: Sequence[bytes], shape: Shape, number: int, row: int, numbers: Range) -> Array:
    """Rows walk through the words from the same places, so that two words suffice to tell rows apart."""
    random = np.random.default_rng([numbers.seed, number])
    length = SENTENCE_WORDS if numbers.text == "sentences" else 1
    places = random.integers(0, len(words), (prod(shape), length)) + row
    array = np.empty(prod(shape), object)
    for element, picked in enumerate(places.tolist()):
        if numbers.text == "numbers":
            array[element] = b"%d" % (picked[0] % 10)
        else:
            array[element] = b" ".join(words[place % len(words)] for place in picked)
    return array.reshape(shape)


def _numbers(datatype: str, shape: Shape, number: int, row: int, numbers: Range) -> Array:
    random = np.random.default_rng([numbers.seed, number, row])
    dtype = numpy_dtype("FP32" if datatype == "BF16" else datatype)  # the engine cuts what numpy has not
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return random.integers(0, min(numbers.integers, np.iinfo(dtype).max + 1), shape).astype(dtype)
    magnitude = (row + 1) / ROWS
    return np.asarray(random.uniform(numbers.low, numbers.high, shape) * magnitude).astype(dtype)


def _joined(rows: Sequence[tuple[Array, ...]]) -> list[Array]:
    return [np.concatenate(arrays) for arrays in zip(*rows, strict=True)]


# ---- finding out ----


def observe(inputs: Sequence[Declared], run: Run) -> Probe:
    """Runs one request of a model that does not batch, to see its outputs' shapes. The finding is UNKNOWN."""
    error = RunFailed(TOO_LARGE)
    for trial in trials(inputs):
        sample = make_row(inputs, 0, trial)
        try:
            outputs = run(sample)
        except RunFailed as failure:
            error = failure
            continue
        return Probe(Finding.UNKNOWN, "", sample, (tuple(array.shape for array in outputs),))
    return Probe(Finding.UNKNOWN, f"no test input could be run ({error})")


def probe_rows(inputs: Sequence[Declared], outputs: Sequence[Declared], run: Run, most: int = ROWS) -> Probe:
    """Finds out whether rows along axis 0, dynamic in every input, are independent.

    `most`: rows of the largest batch that the model takes.
    """
    failure: RunFailed | None = None
    unclear: Probe | None = None
    unclear_size = 0
    for trial in trials(inputs):
        if unclear and trial.size != unclear_size:
            break  # other numbers may tell rows apart, other sizes hardly
        rows = [make_row(inputs, row, trial) for row in range(ROWS)]
        try:
            alone = [run(row) for row in rows]
        except RunFailed as error:
            failure = failure or error
            continue
        probe = _judge(outputs, rows, alone, run, most)
        if probe.finding != Finding.UNKNOWN:
            return probe
        unclear, unclear_size = unclear or probe, trial.size
    return unclear or Probe(
        Finding.UNKNOWN, f"no test input could be run to compare rows ({failure or TOO_LARGE})"
    )


def _judge(
    outputs: Sequence[Declared],
    rows: Sequence[tuple[Array, ...]],
    alone: Sequence[Sequence[Array]],
    run: Run,
    most: int,
) -> Probe:
    shapes = tuple(tuple(array.shape for array in result) for result in alone)
    finding, why = _compare_all(outputs, rows, alone, run, most)
    return Probe(finding, why, rows[0], shapes)


def _compare_all(
    outputs: Sequence[Declared],
    rows: Sequence[tuple[Array, ...]],
    alone: Sequence[Sequence[Array]],
    run: Run,
    most: int,
) -> tuple[Finding, str]:
    worst = (Finding.INDEPENDENT, "")
    for result in alone:
        worst = max(worst, _compare_shapes(outputs, [result], result), key=_badness)
    for count in range(2, min(ROWS, most) + 1):
        try:
            batch = run(_joined(rows[:count]))
        except RunFailed as error:
            return Finding.DEPENDENT, f"it runs 1 row but not {count} ({error})"
        worst = max(worst, _compare_shapes(outputs, alone[:count], batch), key=_badness)
        if worst[0] == Finding.DEPENDENT:
            return worst
        worst = max(worst, _compare_values(outputs, alone, batch, count), key=_badness)
    if worst[0] == Finding.INDEPENDENT and not _told_apart(alone):
        return Finding.UNKNOWN, "its outputs are the same for every test input, so rows could not be compared"
    return worst


def _badness(result: tuple[Finding, str]) -> int:
    return result[0]


def _compare_shapes(
    outputs: Sequence[Declared], alone: Sequence[Sequence[Array]], batch: Sequence[Array]
) -> tuple[Finding, str]:
    count = len(alone)
    for number, (tensor, array) in enumerate(zip(outputs, batch, strict=True)):
        if array.ndim == 0:
            return Finding.DEPENDENT, f"output '{tensor.name}' is a scalar"
        rows = array.shape[0]
        if rows != count:
            return Finding.DEPENDENT, f"output '{tensor.name}' has size {rows} on axis 0 for {count} rows"
        if any(result[number].shape[1:] != array.shape[1:] for result in alone):
            return Finding.DEPENDENT, f"the shape of a row of output '{tensor.name}' depends on its batch"
    return Finding.INDEPENDENT, ""


def _compare_values(
    outputs: Sequence[Declared], alone: Sequence[Sequence[Array]], batch: Sequence[Array], count: int
) -> tuple[Finding, str]:
    worst = (Finding.INDEPENDENT, "")
    for number, tensor in enumerate(outputs):
        rows = [result[number] for result in alone]
        worst = max(worst, _compare_output(tensor, rows, batch[number], count), key=_badness)
    return worst


def _compare_output(
    tensor: Declared, alone: Sequence[Array], batch: Array, count: int
) -> tuple[Finding, str]:
    expected = np.concatenate(alone[:count])
    moved, spread = distance(expected, batch), spread_of(alone)
    if moved <= TOLERANCE.get(tensor.datatype, 0.0) * spread:
        return Finding.INDEPENDENT, ""
    if moved <= NOISE.get(tensor.datatype, 0.0) * _magnitude(expected):
        return Finding.UNKNOWN, f"the rows of output '{tensor.name}' are too much alike to be compared"
    part = moved / spread if spread else float("inf")
    by = f"differs by {part:.2g} of its range" if np.isfinite(part) else "changes"
    by += " when other rows are in the batch"
    why = f"a row of output '{tensor.name}' {by}"
    return Finding.DEPENDENT if part > FAR_OFF else Finding.CLOSE, why


def distance(expected: Array, got: Array) -> float:
    """Largest difference of two arrays of one shape; of integers, the share that differs.

    NaN equals NaN, an infinity itself; otherwise the distance is infinite where either is not finite.
    """
    if expected.dtype.kind == "f":
        finite = np.isfinite(expected) & np.isfinite(got)
        if not np.array_equal(expected[~finite], got[~finite], equal_nan=True):
            return float("inf")
    return _finite_distance(expected, got)


def spread_of(rows: Sequence[Array]) -> float:
    """Largest distance between any two of the rows, where both are finite."""
    return max(_finite_distance(a, b) for number, a in enumerate(rows) for b in rows[:number])


def _finite_distance(a: Array, b: Array) -> float:
    if a.dtype.kind != "f":
        return float(np.mean(a != b)) if a.size else 0.0
    finite = np.isfinite(a) & np.isfinite(b)
    return float(np.max(np.abs(a[finite].astype(np.float64) - b[finite]), initial=0.0))


def _magnitude(array: Array) -> float:
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0)) if array.dtype.kind == "f" else 0.0


def _told_apart(alone: Sequence[Sequence[Array]]) -> bool:
    """Whether some output is not the same for all rows."""
    return any(spread_of(rows) > 0 for rows in zip(*alone, strict=True))
