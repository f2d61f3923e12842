"""Models that run only at some batch sizes: batches are padded up, and nobody sees the rows behind."""

from __future__ import annotations

from pathlib import Path

import engine_models as models
import numpy as np
import pytest
from engine_fakes import FakeBatch

from service.engines.base import ModelLoadError, open_engine
from service.engines.onnxruntime import OnnxEngine
from service.models.wanted import Wanted


def load(path: str, **wanted) -> OnnxEngine:
    engine = open_engine(path, name="m", wanted=Wanted(**wanted))
    assert isinstance(engine, OnnxEngine)
    return engine


def floats(rows: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + rows * 16, dtype=np.float32).reshape(rows, 16)


def execute(instance, batch: FakeBatch) -> FakeBatch:
    instance.execute(batch)
    return batch


class Watched:
    """A session that notes the shapes of what it ran; `sizes` are the rows of each run."""

    def __init__(self, session) -> None:
        self._session = session
        self.sizes: list[int] = []

    def io_binding(self):
        return self._session.io_binding()

    def run_with_iobinding(self, binding) -> None:
        self._session.run_with_iobinding(binding)
        self.sizes.append(binding.get_outputs()[0].shape()[0])


def watched(engine: OnnxEngine) -> tuple[OnnxEngine, Watched]:
    watch = Watched(engine._session)
    return OnnxEngine(watch, engine.spec, engine.ahead), watch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def test_a_fixed_batch_dimension_is_the_one_allowed_size(path: Path) -> None:
    engine, watch = watched(load(models.affine(path, axis0=4)))
    spec = engine.spec
    assert (spec.max_batch_size, spec.batch_sizes, spec.inputs[0].dims) == (4, (4,), (16,))
    assert spec.outputs[0].dims == (16,)
    assert spec.warnings == ()
    instance = engine.create_instance(0)
    for rows in (3, 4, 1, 4, 2, 0):
        for in_place in (False, True):
            x = floats(rows, rows)
            batch = execute(instance, FakeBatch([x], in_place=in_place))
            assert batch.shapes == [(rows, 16)]
            assert np.array_equal(batch.output(0, np.float32), 2 * x + 1)
    assert set(watch.sizes) == {4}


def test_several_requests_are_padded_together_and_keep_their_order(path: Path) -> None:
    engine = load(models.affine(path, axis0=4))
    parts = [floats(1), floats(2, 100)]
    batch = execute(engine.create_instance(0), FakeBatch(*[[part] for part in parts]))
    assert np.array_equal(batch.output(0, np.float32), 2 * np.concatenate(parts) + 1)


def test_a_full_batch_still_goes_straight_to_the_arena(path: Path) -> None:
    engine = load(models.affine(path, axis0=4))
    assert engine.ahead
    batch = execute(engine.create_instance(0), FakeBatch([floats(4)], in_place=True))
    assert batch.calls == ["input done", "reserve", "compute done", "complete"]
    assert batch.gathered == []


def test_the_padding_is_zeros_and_not_what_an_earlier_batch_left(path: Path) -> None:
    """The model returns the sum over its rows beside each row: with leftovers the sum would differ."""
    nodes = [
        models.h.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=1),
        models.h.make_node("Add", ["x", "sum"], ["y"]),
    ]
    tensor = ["x", models.F, [4, 16]], ["y", models.F, [4, 16]]
    models.save(path, nodes, [tensor[0]], [tensor[1]], axis=np.array([0], np.int64))
    engine = load(str(path))
    assert engine.spec.max_batch_size == 0  # such a model is never batched by itself ...
    spec = load(models.affine(path, axis0=4)).spec
    instance = OnnxEngine(engine._session, spec, False).create_instance(0)  # ... so it is made to be
    execute(instance, FakeBatch([floats(4, 1000)]))
    x = floats(1)
    batch = execute(instance, FakeBatch([x]))
    assert np.array_equal(batch.output(0, np.float32), 2 * x)


def test_sizes_of_the_users_choice(path: Path) -> None:
    engine, watch = watched(load(models.affine(path), batch_sizes=(1, 4, 8)))
    assert (engine.spec.max_batch_size, engine.spec.batch_sizes) == (8, (1, 4, 8))
    instance = engine.create_instance(0)
    for rows in (1, 2, 4, 5, 8):
        batch = execute(instance, FakeBatch([floats(rows)]))
        assert np.array_equal(batch.output(0, np.float32), 2 * floats(rows) + 1)
    sizes = [size for size in watch.sizes]
    assert sizes == [1, 4, 4, 8, 8]


def test_dynamic_dims_are_padded_too(path: Path) -> None:
    instance = load(models.doubled_length(path), batch_sizes=(8,)).create_instance(0)
    for rows, length in ((3, 5), (8, 700), (1, 2)):
        x = np.arange(rows * length, dtype=np.float32).reshape(rows, length)
        batch = execute(instance, FakeBatch([x]))
        assert np.array_equal(batch.output(0, np.float32), np.concatenate([x, x], axis=1))


@pytest.mark.parametrize(("asked", "most"), [(3, 3), (4, 4), (16, 4)])
def test_fewer_rows_than_the_fixed_size_may_be_asked_for(path: Path, asked: int, most: int) -> None:
    spec = load(models.affine(path, axis0=4), max_batch_size=asked).spec
    assert (spec.max_batch_size, spec.batch_sizes) == (most, (4,))


def test_sizes_beyond_what_is_needed_are_not_used(path: Path) -> None:
    spec = load(models.affine(path), batch_sizes=(1, 4, 8, 16), max_batch_size=5).spec
    assert (spec.max_batch_size, spec.batch_sizes) == (5, (1, 4, 8))


def test_a_fixed_size_of_1_batches_for_who_asks_for_it(path: Path) -> None:
    spec = load(models.affine(path, axis0=1), max_batch_size=1).spec
    assert (spec.max_batch_size, spec.inputs[0].dims) == (1, (16,))
    assert load(models.affine(path, axis0=1)).spec.max_batch_size == 0


def refused(path: str, **wanted) -> str:
    with pytest.raises(ModelLoadError) as raised:
        load(path, **wanted)
    return str(raised.value)


def test_what_the_model_cannot_do_is_refused_with_the_reason(path: Path) -> None:
    fixed = models.affine(path, axis0=4)
    assert "cannot batch: its batch axis is fixed at 4" in refused(fixed, batch_sizes=(1, 8))
    text = refused(fixed, max_batch_size=8, firm=True)
    assert "max_batch_size 8" in text and "the largest batch that the model takes has 4 rows" in text
    mixing = models.one_node(path, "Softmax", axis=0)
    assert "cannot batch: a row of output 'y'" in refused(mixing, max_batch_size=8, firm=True)
