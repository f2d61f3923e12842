"""Every instance of a model runs before anybody is told that the model is there.

Each instance executes batches of the model's own sample (`Engine.sample`), on the way that the batches of
clients go, at every size that will be used: the largest first, then one row, then halves of the largest,
then the rest. All instances run at once, as they will later. Nothing of it passes the queue, so nothing of it
is counted, timed out or seen by a client; outputs are thrown away. A model that fails here is not served.

Sizes. A model with `batch_sizes` runs at those alone: all are warmed. For others "every size" is 1 to
max_batch_size, which is minutes for a model of 400 ms a row. What ONNX Runtime has per shape on a CPU is
little once the largest has run: its arena has grown then, and the threads are there. First run against the
median of later ones at that size, one thread:

                                     nothing warmed    the largest warmed    and 1, and its halves
    file types, 13 ms a row            1.03 to 1.21          0.96 to 1.16             0.93 to 1.12
    text, int8, 3 ms a row             1.1  to 2.2           0.98 to 1.23             0.92 to 1.10
    y = 2x + 1, 20 us a batch         27    at first         1.4  to 3                1.4  to 1.7

The last row is 10 to 20 us, whatever was warmed but the size itself. So the largest and one row always run,
and the others while BUDGET_S lasts: a quick model is warmed at all sizes, a slow one has nothing to gain.

Dynamic dims have the size that the sample has, which is one that is known to run. A model that has no sample
(no test input could be run; or it is written in Python, where `execute` may do more than compute) is not
warmed of itself: a Python model has its `initialize`. What a config asks for (`model_warmup`) runs in any
case, after the rest.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from service.engines.base import Engine, Instance
from service.engines.strings import packed
from service.errors import StartError
from service.models.spec import ModelSpec
from service.worker.configured import MOST_BYTES, Configured, configured_warm_ups

if TYPE_CHECKING:
    from fastqueue import Batch

BUDGET_S = 1.0
_ALIGN = 64

Clock = Callable[[], float]


def start_instances(engine: Engine, clock: Clock = time.monotonic) -> list[Instance]:
    """Creates and warms the instances of a model. Raises StartError when it fails; the instances are closed
    then, the engine is not.
    """
    instances: list[Instance] = []
    try:
        for index in range(engine.spec.instances):
            instances.append(engine.create_instance(index))
        warm_up(engine, instances, clock)
    except BaseException:
        for instance in instances:
            instance.close()
        raise
    return instances


def warm_up(engine: Engine, instances: Sequence[Instance], clock: Clock = time.monotonic) -> None:
    """Runs every instance at the sizes it will be used at, and what the config asks for, all instances at
    once. Raises StartError.
    """
    configured = configured_warm_ups(engine.spec)
    if not engine.sample and not configured:
        return
    rows = [_one_row(engine.spec, array) for array in engine.sample]
    with ThreadPoolExecutor(len(instances), "warm-up") as pool:
        runs = [
            pool.submit(_warm_instance, engine.spec, index, instance, rows, configured, clock)
            for index, instance in enumerate(instances)
        ]
    for run in runs:
        run.result()


def sizes_to_warm(spec: ModelSpec, row_bytes: int) -> tuple[list[int], list[int]]:
    """Batch sizes that always run, and those that do while there is time, in this order each."""
    if not spec.batches:
        return [1], []
    if spec.batch_sizes:
        return sorted(spec.batch_sizes, reverse=True), []
    most = max(1, min(spec.max_batch_size, MOST_BYTES // max(1, row_bytes)))
    first = [most, 1] if most > 1 else [1]
    halves = [most >> n for n in range(1, most.bit_length())]
    return first, [size for size in dict.fromkeys([*halves, *range(most, 0, -1)]) if size not in first]


def _one_row(spec: ModelSpec, array: Any) -> Any:
    return array[:1] if spec.batches else array


def _warm_instance(
    spec: ModelSpec,
    index: int,
    instance: Instance,
    rows: Sequence[Any],
    configured: Sequence[Configured],
    clock: Clock,
) -> None:
    if rows:
        _run_sizes(spec, index, instance, rows, clock)
    for entry in configured:
        for _ in range(entry.count):
            _run(spec, index, instance, entry.rows, entry.size, f" by model_warmup '{entry.name}'")


def _run_sizes(spec: ModelSpec, index: int, instance: Instance, rows: Sequence[Any], clock: Clock) -> None:
    always, others = sizes_to_warm(spec, sum(array.nbytes for array in rows))
    until = clock() + BUDGET_S
    for size in always:
        _run(spec, index, instance, rows, size)
    for size in others:
        if clock() >= until:
            break
        _run(spec, index, instance, rows, size)


def _run(
    spec: ModelSpec, index: int, instance: Instance, rows: Sequence[Any], size: int, source: str = ""
) -> None:
    batch = WarmBatch(rows, size, spec.batches)
    try:
        instance.execute(cast("Batch", batch))
    except Exception as error:
        smaller = "; a smaller max_batch_size may help" if size > 1 and not source else ""
        where = f"model '{spec.name}' version {spec.version} cannot be served: its warm-up{source} failed"
        what = f"on a batch of {size} row{'s' * (size != 1)}" if spec.batches else "on one request"
        raise StartError(f"{where} {what} (instance {index}): {error}{smaller}") from error
    if not batch.answered:
        raise StartError(f"model '{spec.name}' version {spec.version} returned without an answer")


class WarmBatch:
    """What `fastqueue.Batch` is to an engine, made of one row that comes `size` times. Outputs go to memory
    that is freed with it.
    """

    def __init__(self, row: Sequence[Any], size: int, batched: bool) -> None:
        self.rows = size
        self.request_count = 1
        self.answered = False
        self._shapes = [(size, *array.shape[1:]) if batched else array.shape for array in row]
        self._row = [_wire(array) for array in row]
        self._outputs: list[Any] = []

    def input_shape(self, index: int) -> tuple[int, ...]:
        return self._shapes[index]

    def input_bytes(self, index: int) -> int:
        return len(self._row[index]) * self.rows

    def input_pointer(self, index: int) -> int:
        return 0  # not in one piece: the instance's own buffer is warmed too

    def gather(self, index: int, address: int, capacity: int) -> None:
        self.gather_rows(index, 0, self.rows, address, capacity)

    def gather_rows(self, index: int, first: int, rows: int, address: int, capacity: int) -> None:
        row = self._row[index]
        if len(row) * rows > capacity:
            raise ValueError(f"{capacity} bytes for {rows} rows of {len(row)} bytes")
        for number in range(rows):
            ctypes.memmove(address + number * len(row), row, len(row))

    def mark_input_done(self, padding: int = 0) -> None:
        """Nothing is counted."""

    def mark_compute_done(self) -> None:
        """Nothing is counted."""

    def reserve(self, outputs: Sequence[Any], wait: bool = True) -> list[int]:
        """`outputs`: bytes per row, or a table of row ends each."""
        sizes = [size * self.rows if isinstance(size, int) else _last_end(size) for size in outputs]
        self._outputs = [np.empty(size + _ALIGN, np.uint8) for size in sizes]
        return [-(-memory.ctypes.data // _ALIGN) * _ALIGN for memory in self._outputs]

    def complete(self, shapes: Sequence[Sequence[int]]) -> None:
        self.answered = True

    def fail(self, status: int, message: str, again: bool = False) -> None:
        raise RuntimeError(message)


def _wire(array: Any) -> bytes:
    """The bytes of a row, as clients send them."""
    if array.dtype != object:
        return bytes(np.ascontiguousarray(array).tobytes())
    return packed(array, 1).wire


def _last_end(ends: Any) -> int:
    table = np.frombuffer(ends, np.uint64)
    return int(table[-1]) if table.size else 0
