"""Light models: large batches run in parts, on as few threads as will do."""

from __future__ import annotations

from pathlib import Path

import engine_models as models
import numpy as np
import pytest
from engine_fakes import FakeBatch
from engine_queue import OnnxQueue

from service.engines import onnx_inputs
from service.engines.base import EngineError, open_engine
from service.engines.onnx_inputs import has_few_weights
from service.engines.onnx_threads import lighter
from service.models.wanted import Wanted

INNER = 5
ROW_BYTES = 4 * INNER


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


@pytest.fixture(autouse=True)
def three_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_inputs, "PART_BYTES", 3 * ROW_BYTES + 1)


def floats(rows: int, start: int) -> np.ndarray:
    return np.arange(start, start + rows * INNER, dtype=np.float32).reshape(rows, INNER)


def opened(path: str, **wanted: int):
    return open_engine(path, name="m", wanted=Wanted(**wanted))


@pytest.mark.parametrize(
    "sizes", [[1], [3], [4], [1] * 8, [2, 2, 2, 2], [7, 1], [1, 7], [8], [0, 5, 0, 3], [20]]
)
def test_every_request_gets_its_own_rows(path: Path, sizes: list[int]) -> None:
    queue = OnnxQueue(models.affine(path, inner=INNER), max_batch_size=8)
    sent = {queue.submit(x): x for x in (floats(rows, 1000 * n) for n, rows in enumerate(sizes))}
    queue.run()
    answers = queue.answers()
    assert answers.keys() == sent.keys()
    for slot, x in sent.items():
        assert np.array_equal(answers[slot][0], 2 * x + 1)


def test_a_part_is_gathered_where_the_part_before_it_was(path: Path) -> None:
    engine = opened(models.affine(path, inner=INNER))
    assert engine.rows_at_once == 3
    batch = FakeBatch(*[[floats(rows, 100 * rows)] for rows in (2, 1, 4, 1)])
    engine.create_instance(0).execute(batch)
    assert len(batch.gathered) == 3 and len(set(batch.gathered)) == 1  # of 3, 3 and 2 rows
    assert batch.calls == ["reserve", "input done", "compute done", "complete"]
    x = np.concatenate([request[0] for request in batch.requests])
    assert np.array_equal(batch.output(0, np.float32), 2 * x + 1)


def test_what_lies_in_one_piece_is_copied_in_no_part(path: Path) -> None:
    engine = opened(models.affine(path, inner=INNER))
    x = floats(8, 0)
    batch = FakeBatch([x], in_place=True)
    engine.create_instance(0).execute(batch)
    assert batch.gathered == []
    assert np.array_equal(batch.output(0, np.float32), 2 * x + 1)


def test_a_batch_that_is_one_part_is_run_as_a_whole(path: Path) -> None:
    batch = FakeBatch([floats(1, 0)], [floats(2, 50)])
    opened(models.affine(path, inner=INNER)).create_instance(0).execute(batch)
    assert len(batch.gathered) == 1


def test_a_part_that_fails_fails_the_batch(path: Path) -> None:
    engine = opened(models.affine(path, inner=INNER))
    instance = engine.create_instance(0)
    instance._session = Failing(instance._session, after=1)
    batch = FakeBatch([floats(5, 0)])
    with pytest.raises(EngineError, match="out of order"):
        instance.execute(batch)
    assert batch.shapes is None


class Failing:
    """A session whose runs fail after the first few."""

    def __init__(self, session, after: int) -> None:
        self._session, self._left = session, after

    def run_with_iobinding(self, binding) -> None:
        if self._left == 0:
            raise RuntimeError("out of order")
        self._left -= 1
        self._session.run_with_iobinding(binding)


def test_heavy_models_are_run_as_a_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models.affine(path, inner=INNER)
    assert has_few_weights(str(path))
    monkeypatch.setattr(onnx_inputs, "FEW_WEIGHTS_BYTES", path.stat().st_size - 1)
    assert not has_few_weights(str(path))
    assert opened(str(path)).rows_at_once == 0


def test_weights_in_another_file_are_many(path: Path) -> None:
    import onnx

    model = onnx.load(models.affine(path, inner=INNER))
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    assert not has_few_weights(str(path))


# ---- threads ----


class Timed:
    """A session whose runs move the clock; the first takes three times as long."""

    def __init__(self, clock: list[float], run_s: float) -> None:
        self._clock, self._run_s = clock, run_s
        self.runs = 0

    def run(self, outputs, feed) -> None:
        self._clock[0] += self._run_s if self.runs else 3 * self._run_s
        self.runs += 1


@pytest.mark.parametrize(
    "one_ms, many_ms, keeps_one",
    [(0.5, 0.4, True), (0.5, 0.6, True), (1.9, 1, True), (2.1, 1, False), (6, 3.2, False)],
)
def test_threads_are_kept_where_they_save_a_millisecond(one_ms, many_ms, keeps_one) -> None:
    clock = [0.0]
    one, many = Timed(clock, one_ms / 1e3), Timed(clock, many_ms / 1e3)
    kept = lighter(many, lambda: one, {}, lambda: clock[0])
    assert kept is (one if keeps_one else many)


def test_a_heavy_run_is_not_looked_at_twice() -> None:
    clock = [0.0]
    many = Timed(clock, 0.1)
    assert lighter(many, lambda: pytest.fail("opened"), {}, lambda: clock[0]) is many
    assert many.runs == 1


def test_a_model_that_takes_no_zeros_keeps_its_threads() -> None:
    many = object()
    assert lighter(many, lambda: pytest.fail("opened"), {}) is many
