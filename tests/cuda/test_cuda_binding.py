"""A model at one place: what is copied where, which size runs, and what is answered."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from service.cuda.binding import Fixed, Variable, io_bytes
from service.cuda.model import Settled
from service.engines.base import UnservedShape
from service.models.counts import GRAPH_HITS, GRAPH_MISSES, PINNED_FALLBACKS
from service.models.spec import ModelSpec, TensorSpec

IO = 0x10000


class Recorder:
    """A context, a launch slot and a pool in one: everything that is asked of them, in order."""

    def __init__(self, shapes=None, settled=None) -> None:
        self.did: list[tuple] = []
        self._shapes = shapes
        self._settled = settled or []
        self._prepared: list = []
        self._next = 0x900000

    def prepare(self, shapes, inputs, outputs) -> None:
        self._prepared = list(shapes)
        self.did.append(("prepare", list(shapes), list(inputs), list(outputs)))

    def output_shapes(self):
        return self._shapes or self._prepared

    def settled_shapes(self):
        return self._settled

    def enqueue(self, stream) -> None:
        self.did.append(("enqueue", stream))

    def copy_in(self, batch, inputs, padded) -> int:
        self.did.append(("copy in", list(inputs), padded))
        return 0

    def launch_graph(self, graph) -> None:
        self.did.append(("graph", graph))

    def finish(self, batch, outputs, shapes) -> None:
        self.did.append(("finish", list(outputs), list(shapes)))

    def allocate(self, size, stream) -> int:
        self.did.append(("allocate", size))
        self._next += 0x100000
        return self._next

    def free(self, address, stream) -> None:
        self.did.append(("free", address))

    def wait(self) -> None:
        self.did.append(("wait",))

    def names(self) -> list[str]:
        return [what for what, *_ in self.did]


def batch_of(rows: int, *shape: int, host: int = 0x5000) -> SimpleNamespace:
    def reserve(sizes):
        found.reserved = list(sizes)
        return [host + 0x100 * index for index in range(len(sizes))]

    def count(which: int, n: int = 1) -> None:
        found.counts[which] = found.counts.get(which, 0) + n

    found = SimpleNamespace(rows=rows, input_shape=lambda index: (rows, *shape), reserve=reserve)
    found.count, found.counts = count, {}
    return found


def model_of(recorder: Recorder, *, dims=(4,), sizes=(1, 4, 8), inputs=1) -> SimpleNamespace:
    xs = tuple(TensorSpec(f"x{i}", "FP32", dims) for i in range(inputs))
    ys = (TensorSpec("y", "FP32", dims),)
    spec = ModelSpec("m", "1", "p", "b", sizes[-1], xs, ys)
    return SimpleNamespace(spec=spec, sizes=sizes, memory=SimpleNamespace(pool=recorder), sample=())


def test_tensors_lie_one_behind_the_other_and_aligned() -> None:
    recorder = Recorder()
    model = model_of(recorder, dims=(5,), inputs=2)
    assert io_bytes(model) == 3 * 256  # of 160 bytes each
    binding = Fixed(model, recorder, 7, IO)
    batch = batch_of(3, 5)
    binding.issue(batch, recorder, binding.reserve(batch))
    assert recorder.did == [
        ("copy in", [(IO, 20), (IO + 256, 20)], 4),
        ("prepare", [(4, 5), (4, 5)], [IO, IO + 256], [IO + 512]),
        ("enqueue", 7),
        ("finish", [(IO + 512, 0x5000, 60)], [(3, 5)]),
    ]
    assert batch.reserved == [20]
    assert batch.counts == {PINNED_FALLBACKS: 0, GRAPH_MISSES: 1}


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 4), (4, 4), (5, 8), (8, 8)])
def test_a_batch_is_padded_up_to_the_next_size(rows: int, size: int) -> None:
    recorder = Recorder()
    binding = Fixed(model_of(recorder), recorder, 7, IO)
    batch = batch_of(rows, 4)
    binding.issue(batch, recorder, binding.reserve(batch))
    assert recorder.did[0][2] == size
    assert recorder.did[-1][2] == [(rows, 4)]


def test_a_size_that_was_captured_is_one_launch() -> None:
    recorder = Recorder()
    binding = Fixed(model_of(recorder), recorder, 7, IO)
    binding._graphs[4] = 99
    batch = batch_of(3, 4)
    binding.issue(batch, recorder, binding.reserve(batch))
    assert recorder.names() == ["copy in", "graph", "finish"]
    assert recorder.did[1] == ("graph", 99)
    assert batch.counts == {PINNED_FALLBACKS: 0, GRAPH_HITS: 1}


def test_a_model_that_does_not_batch_has_its_own_shapes() -> None:
    recorder = Recorder()
    binding = Fixed(model_of(recorder, sizes=(0,)), recorder, 7, IO)
    batch = batch_of(1)
    binding.issue(batch, recorder, binding.reserve(batch))
    assert recorder.did[1][:2] == ("prepare", [(4,)])
    assert recorder.did[-1][2] == [(4,)]


def test_shapes_of_the_batch_get_memory_of_the_pool_until_the_stream_is_past_it() -> None:
    recorder = Recorder()
    binding = Variable(model_of(recorder, dims=(-1,)), recorder, 7, recorder.wait)
    batch = batch_of(3, 6)
    assert binding.reserve(batch) is None
    binding.issue(batch, recorder, None)
    first, second = 0xA00000, 0xB00000
    assert recorder.did == [
        ("allocate", 256),
        ("prepare", [(4, 6)], [first], [0]),
        ("allocate", 256),
        ("prepare", [(4, 6)], [first], [second]),
        ("copy in", [(first, 24)], 4),
        ("enqueue", 7),
        ("finish", [(second, 0x5000, 72)], [(3, 6)]),
        ("free", second),
        ("free", first),
    ]
    assert batch.reserved == [24]


def test_outputs_that_depend_on_data_are_waited_for() -> None:
    recorder = Recorder(shapes=[(4, -1)], settled=[Settled((4, 2), 0xC000)])
    binding = Variable(model_of(recorder, dims=(-1,)), recorder, 7, recorder.wait)
    batch = batch_of(3, 6)
    binding.issue(batch, recorder, None)
    assert recorder.names() == ["allocate", "prepare", "copy in", "enqueue", "wait", "finish", "free"]
    assert recorder.did[-2] == ("finish", [(0xC000, 0x5000, 24)], [(3, 2)])
    assert batch.reserved == [8]


def test_a_shape_that_is_refused_leaves_nothing_behind() -> None:
    recorder = Recorder()

    def refuse(shapes, inputs, outputs) -> None:
        raise UnservedShape("no profile takes it")

    recorder.prepare = refuse
    binding = Variable(model_of(recorder, dims=(-1,)), recorder, 7, recorder.wait)
    with pytest.raises(UnservedShape):
        binding.issue(batch_of(3, 6), recorder, None)
    assert recorder.names() == ["allocate", "free"]
