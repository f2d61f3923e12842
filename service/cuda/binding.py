"""A model at one place: its context there, where its inputs and outputs lie, and its graphs.

Two kinds, by what is known before a batch comes:

    Fixed      every dim but the batch is in the spec. Inputs and outputs have their addresses in the launch
               slot's I/O range; where the model allows it the computation of each size is captured once, and
               a batch is one launch of a graph
    Variable   shapes are the batch's. It is prepared and enqueued, with memory from the model's own pool, in
               the order of the stream; outputs whose size depends on data are waited for

Everything here is called with the stream's lock held and the context current, but `reserve`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from service.cuda.driver import api, check
from service.cuda.model import DeviceContext, DeviceModel, Shape
from service.log import say
from service.models.counts import GRAPH_HITS, GRAPH_MISSES, PINNED_FALLBACKS
from service.models.spec import DYNAMIC, ModelSpec, TensorSpec

if TYPE_CHECKING:
    from fastqueue import Batch
    from service.cuda._launch import LaunchSlot


class Sample(NamedTuple):
    """Rows of an input, in pinned memory: as many as the largest batch has."""

    address: int
    shape: Shape


ALIGN = 256  # of every tensor on the device, as cuMemAlloc has it


def aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def is_fixed(spec: ModelSpec) -> bool:
    """Whether every shape is known but for the batch."""
    return all(tensor.row_bytes >= 0 for tensor in (*spec.inputs, *spec.outputs))


def io_bytes(model: DeviceModel) -> int:
    """What a model needs of a launch slot's I/O range."""
    if not is_fixed(model.spec):
        return 0
    most = max(1, model.sizes[-1])
    return sum(aligned(most * tensor.row_bytes) for tensor in (*model.spec.inputs, *model.spec.outputs))


class Binding(Protocol):
    """What a stream does with a model."""

    def reserve(self, batch: Batch) -> list[int] | None:
        """Output memory of the batch, where its size is known by now; without the stream's lock."""

    def issue(self, batch: Batch, slot: LaunchSlot, reserved: list[int] | None) -> None:
        """Puts the whole batch on the stream and hands it over. When it raises, the batch is still ours."""

    def warm(self, size: int, host: Sequence[Sample]) -> None:
        """Puts a run of `size` rows on the stream, with what `host` has of each input."""

    def capture(self, size: int) -> None:
        """Captures the run that was warmed last, of `size` rows, and runs the graph once."""

    def close(self) -> None:
        """Nothing of it is on the stream."""


class _Place:
    """What both kinds have."""

    def __init__(self, model: DeviceModel, context: DeviceContext, stream: int) -> None:
        self._model = model
        self._spec = model.spec
        self._context = context
        self._stream = stream

    def _padded(self, rows: int) -> int:
        """The size that runs for as many rows; 1 for a model that does not batch."""
        if not self._spec.batches:
            return 1
        return next(size for size in self._model.sizes if size >= rows)

    def _shapes(self, tensors: Sequence[TensorSpec], rows: int) -> list[Shape]:
        """Shapes of the whole batch, where they are fixed."""
        batch = (rows,) if self._spec.batches else ()
        return [(*batch, *tensor.model_dims) for tensor in tensors]

    def _copy(self, host: Sequence[Sample], inputs: Sequence[int], sizes: Sequence[int]) -> None:
        for source, target, size in zip(host, inputs, sizes, strict=True):
            copied = api().cuMemcpyHtoDAsync(target, source.address, size, self._stream)
            check(copied, "copying a sample")

    def _count_fallbacks(self, batch: Batch, pieces: int, copies: Sequence[tuple[int, int]]) -> None:
        """Pieces of the batch that were not pinned; a model's first ones are told."""
        batch.count(PINNED_FALLBACKS, pieces)
        if not pieces or self._model.memory.told_of_fallbacks:
            return
        self._model.memory.told_of_fallbacks = True
        size = sum(row_bytes for _, row_bytes in copies) * max(1, batch.rows)
        say(
            f"warning: model '{self._spec.name}': a batch of {size:,} bytes was not all in pinned memory, "
            "and its copy is slow; requests above an eighth of --arena-mb lie outside of it: raise --arena-mb"
        )

    def close(self) -> None:
        self._context.close()


class Fixed(_Place):
    """`io`: the address of the launch slot's I/O range, which has `io_bytes(model)`."""

    def __init__(self, model: DeviceModel, context: DeviceContext, stream: int, io: int) -> None:
        super().__init__(model, context, stream)
        most = max(1, model.sizes[-1])
        self._inputs, io = self._placed(self._spec.inputs, io, most)
        self._outputs, io = self._placed(self._spec.outputs, io, most)
        self._input_rows = [tensor.row_bytes for tensor in self._spec.inputs]
        self._output_rows = [tensor.row_bytes for tensor in self._spec.outputs]
        self._copies = list(zip(self._inputs, self._input_rows, strict=True))
        self._graphs: dict[int, Any] = {}

    @staticmethod
    def _placed(tensors: Sequence[TensorSpec], address: int, rows: int) -> tuple[list[int], int]:
        places = []
        for tensor in tensors:
            places.append(address)
            address += aligned(rows * tensor.row_bytes)
        return places, address

    def reserve(self, batch: Batch) -> list[int] | None:
        return batch.reserve(self._output_rows)

    def issue(self, batch: Batch, slot: LaunchSlot, reserved: list[int] | None) -> None:
        rows = batch.rows
        size = self._padded(rows)
        self._count_fallbacks(batch, slot.copy_in(batch, self._copies, size), self._copies)
        if size in self._graphs:
            slot.launch_graph(int(self._graphs[size]))
            batch.count(GRAPH_HITS)
        else:
            self._run(size)
            batch.count(GRAPH_MISSES)
        sizes = [rows * size for size in self._output_rows]
        outputs = list(zip(self._outputs, reserved or (), sizes, strict=True))
        slot.finish(batch, outputs, self._shapes(self._spec.outputs, rows))

    def _run(self, size: int) -> None:
        self._context.prepare(self._shapes(self._spec.inputs, size), self._inputs, self._outputs)
        self._context.enqueue(self._stream)

    def warm(self, size: int, host: Sequence[Sample]) -> None:
        self._copy(host, self._inputs, [max(1, size) * row for row in self._input_rows])
        self._run(max(1, size))

    def capture(self, size: int) -> None:
        driver, size = api(), max(1, size)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCapture(self._stream, mode), "beginning a capture")
        try:
            self._context.enqueue(self._stream)
        except BaseException:
            driver.cuStreamEndCapture(self._stream)  # its error is not the one to tell
            raise
        graph = check(driver.cuStreamEndCapture(self._stream), "ending a capture")
        try:
            self._graphs[size] = check(driver.cuGraphInstantiate(graph, 0), "making a graph")
        finally:
            check(driver.cuGraphDestroy(graph), "ending a graph's draft")
        check(driver.cuGraphLaunch(self._graphs[size], self._stream), "launching a graph")

    def close(self) -> None:
        for graph in self._graphs.values():
            check(api().cuGraphExecDestroy(graph), "ending a graph")
        self._graphs.clear()
        super().close()


class Variable(_Place):
    """`wait` returns when everything on the stream has ended."""

    def __init__(
        self, model: DeviceModel, context: DeviceContext, stream: int, wait: Callable[[], None]
    ) -> None:
        super().__init__(model, context, stream)
        self._wait = wait

    def reserve(self, batch: Batch) -> list[int] | None:
        return None  # it is known only when the batch is prepared

    def issue(self, batch: Batch, slot: LaunchSlot, reserved: list[int] | None) -> None:
        rows = batch.rows
        size = self._padded(rows)
        shapes = [
            self._whole(batch.input_shape(index) or (), size) for index in range(len(self._spec.inputs))
        ]
        batch.count(GRAPH_MISSES)
        with self._memory(self._spec.inputs, shapes) as inputs:
            self._context.prepare(shapes, inputs, [0] * len(self._spec.outputs))
            found = self._context.output_shapes()
            if any(DYNAMIC in shape for shape in found):
                self._issue_settling(batch, slot, shapes, inputs, size)
                return
            with self._memory(self._spec.outputs, found) as outputs:
                self._context.prepare(shapes, inputs, outputs)
                bytes_per_row = self._row_bytes(self._spec.outputs, found, size)
                reserved = batch.reserve(bytes_per_row)
                copies = self._copies(inputs, shapes, size)
                self._count_fallbacks(batch, slot.copy_in(batch, copies, size), copies)
                self._context.enqueue(self._stream)
                self._finish(batch, slot, outputs, reserved or [], bytes_per_row, found)

    def _issue_settling(
        self, batch: Batch, slot: LaunchSlot, shapes: Sequence[Shape], inputs: Sequence[int], size: int
    ) -> None:
        """The same for outputs whose shapes are known after the run: the launcher waits for it."""
        copies = self._copies(inputs, shapes, size)
        self._count_fallbacks(batch, slot.copy_in(batch, copies, size), copies)
        self._context.enqueue(self._stream)
        self._wait()
        settled = self._context.settled_shapes()
        found = [shape for shape, _ in settled]
        bytes_per_row = self._row_bytes(self._spec.outputs, found, size)
        reserved = batch.reserve(bytes_per_row)
        outputs = [address for _, address in settled]
        self._finish(batch, slot, outputs, reserved or [], bytes_per_row, found)

    def _finish(
        self,
        batch: Batch,
        slot: LaunchSlot,
        outputs: Sequence[int],
        reserved: Sequence[int],
        bytes_per_row: Sequence[int],
        found: Sequence[Shape],
    ) -> None:
        sizes = [batch.rows * size for size in bytes_per_row]
        copies = list(zip(outputs, reserved, sizes, strict=True))
        slot.finish(batch, copies, [self._whole(shape, batch.rows) for shape in found])

    def _whole(self, shape: Shape, rows: int) -> Shape:
        """The shape with as many rows."""
        return (rows, *shape[1:]) if self._spec.batches else shape

    def _row_bytes(self, tensors: Sequence[TensorSpec], shapes: Sequence[Shape], rows: int) -> list[int]:
        parts = rows if self._spec.batches else 1
        return [size // parts for size in _bytes(tensors, shapes)]

    def _copies(self, inputs: Sequence[int], shapes: Sequence[Shape], rows: int) -> list[tuple[int, int]]:
        return list(zip(inputs, self._row_bytes(self._spec.inputs, shapes, rows), strict=True))

    @contextmanager
    def _memory(self, tensors: Sequence[TensorSpec], shapes: Sequence[Shape]) -> Iterator[list[int]]:
        """Addresses for tensors of these shapes, until what is on the stream at the end is done."""
        sizes = [aligned(max(1, size)) for size in _bytes(tensors, shapes)]
        pool = self._model.memory.pool
        first = pool.allocate(sum(sizes), self._stream)
        try:
            yield [first + sum(sizes[:index]) for index in range(len(sizes))]
        finally:
            pool.free(first, self._stream)

    def warm(self, size: int, host: Sequence[Sample]) -> None:
        rows = max(1, size)
        shapes = [self._whole(shape, rows) for _, shape in host]
        with self._memory(self._spec.inputs, shapes) as inputs:
            self._copy(host, inputs, _bytes(self._spec.inputs, shapes))
            self._context.prepare(shapes, inputs, [0] * len(self._spec.outputs))
            found = self._context.output_shapes()
            if any(DYNAMIC in shape for shape in found):
                self._context.enqueue(self._stream)
                return
            with self._memory(self._spec.outputs, found) as outputs:
                self._context.prepare(shapes, inputs, outputs)
                self._context.enqueue(self._stream)

    def capture(self, size: int) -> None:
        """Its shapes are the batch's: there is nothing to capture."""


def _bytes(tensors: Sequence[TensorSpec], shapes: Sequence[Shape]) -> list[int]:
    """Of whole tensors of these shapes."""
    return [tensor.element_bytes * prod(shape) for tensor, shape in zip(tensors, shapes, strict=True)]


def bind(
    model: DeviceModel, context: DeviceContext, stream: int, io: int, wait: Callable[[], None]
) -> Binding:
    """The kind that the model is."""
    if is_fixed(model.spec):
        return Fixed(model, context, stream, io)
    return Variable(model, context, stream, wait)
