"""What an engine whose models run on a device and the executor are to each other.

A DeviceModel is an engine with contexts in place of instances. The executor owns streams, buffers, copies,
graphs and the answers; the engine knows how its computation is enqueued, nothing else:

    open_context(place)   once per stream and launch slot, while the model is loaded
    prepare(...)          the shapes and addresses of the next run
    enqueue(stream)       the computation, and no copies; perhaps in a capture

All models that use a stream share its scratch memory: work on one stream runs in order. Contexts of one
place are used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from service.models.probe import Array
from service.models.spec import ModelSpec

if TYPE_CHECKING:
    from service.cuda.memory import ModelMemory

Shape = tuple[int, ...]
UNBATCHED = (0,)  # the `sizes` of a model that does not batch


@dataclass(frozen=True)
class Place:
    """Where a context runs: a CUDA stream (its handle), and memory for its activations, on the device. The
    memory is as large as the model's `scratch_bytes` at least; what is in it is lost between runs.
    """

    stream: int
    scratch: int
    scratch_bytes: int


class Settled(NamedTuple):
    """An output of a run: its shape, and its address on the device."""

    shape: Shape
    address: int


@dataclass(frozen=True)
class WarmUp:
    """A batch to run before a model is served: an array per input, of `size` rows each, `count` times."""

    arrays: Sequence[Array]
    size: int
    count: int = 1


class DeviceContext(Protocol):
    """What runs one batch at a time at one place."""

    def prepare(self, shapes: Sequence[Shape], inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Of the next run: the whole shapes of its inputs (padded batch first), and addresses on the device.
        An output's address is 0 where its size is not known yet: `output_shapes` says it, and `prepare` comes
        again, or it depends on data, and the engine finds memory for it. Raises EngineError: a shape that the
        model does not take; nothing is enqueued then.
        """

    def output_shapes(self) -> Sequence[Shape]:
        """Of what was prepared. A dim of -1 depends on data, and `settled_shapes` says what it was."""

    def settled_shapes(self) -> Sequence[Settled]:
        """Of the last run, which has ended, where `output_shapes` had a dim of -1."""

    def enqueue(self, stream: int) -> None:
        """Issues the computation on the stream. Raises EngineError."""

    def close(self) -> None:
        """Nothing of it is running."""


@runtime_checkable
class DeviceModel(Protocol):
    """A loaded model that runs on a device."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def sample(self) -> Sequence[Array]:
        """As an Engine's."""

    @property
    def memory(self) -> ModelMemory:
        """What it has on the device, and its cap; from `Device.model_memory`. The model closes it."""

    @property
    def scratch_bytes(self) -> int:
        """Activations of its hungriest context."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Padded batch sizes that run, ascending, the last is max_batch_size; UNBATCHED for one that does not
        batch.
        """

    @property
    def capturable(self) -> bool:
        """Whether `enqueue` may be captured in a graph: it allocates nothing, and waits for nothing."""

    def open_context(self, place: Place) -> DeviceContext:
        """A context for one stream and launch slot. Raises what `service.errors.StartError` is for."""

    def close(self) -> None:
        """Frees the model. Its contexts are closed already."""
