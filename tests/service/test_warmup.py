"""Warm-up: every instance has run at its sizes before anybody hears of the model, and nobody counts it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import triton_repository as repositories
from scripted import ScriptedEngine, affine, model_spec, tensor
from waiting import LIMIT_S
from wire import hold, infer_request, queue, rows

from service._pb import inference as pb
from service.config import ServeConfig
from service.engines.base import EngineError
from service.errors import StartError
from service.worker import __main__ as worker_main
from service.worker import warmup
from service.worker.worker import Worker

SAMPLE = (np.arange(4, dtype=np.float32).reshape(1, 4),)


class Recording(ScriptedEngine):
    """Records the rows of each batch by instance."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.sizes: dict[int, list[int]] = {}

    def create_instance(self, index: int):
        instance = super().create_instance(index)
        execute, sizes = instance.execute, self.sizes.setdefault(index, [])

        def record(batch) -> None:
            execute(batch)
            sizes.append(batch.rows)

        instance.execute = record
        return instance


def recording(**settings) -> Recording:
    spec = model_spec("m", [tensor("x", "FP32", 4)], [tensor("y", "FP32", 4)], **settings)
    engine = Recording(spec, lambda x: [2 * x + 1])
    engine.sample = SAMPLE
    return engine


def test_every_instance_runs_at_every_size_while_there_is_time():
    engine = recording(instances=3, max_batch_size=8)
    warmup.start_instances(engine, clock=lambda: 0.0)
    assert engine.sizes == dict.fromkeys(range(3), [8, 1, 4, 2, 7, 6, 5, 3])


def test_a_slow_model_runs_its_largest_batch_and_one_row():
    engine = recording(max_batch_size=8)
    ticks = iter(range(100))
    warmup.start_instances(engine, clock=lambda: float(next(ticks)))
    assert engine.sizes == {0: [8, 1]}


def test_a_model_that_is_padded_runs_at_each_of_its_sizes_however_slow():
    engine = recording(max_batch_size=8, batch_sizes=(1, 4, 8))
    ticks = iter(range(100))
    warmup.start_instances(engine, clock=lambda: float(next(ticks)))
    assert engine.sizes == {0: [8, 4, 1]}


def test_a_model_that_does_not_batch_runs_its_sample_once():
    spec = model_spec("m", [tensor("x", "FP32", 2, -1)], [tensor("y", "FP32", -1)], max_batch_size=0,
                      why_unbatched="a reason")  # fmt: skip
    shapes = []

    def compute(x):
        shapes.append(x.shape)
        return [x.sum(axis=0)]

    engine = ScriptedEngine(spec, compute)
    engine.sample = (np.ones((2, 5), np.float32),)
    warmup.start_instances(engine)
    assert shapes == [(2, 5)]


def test_sizes_end_where_a_batch_is_larger_than_an_input_arena():
    spec = model_spec("m", [tensor("x", "FP32", -1)], [tensor("y", "FP32", -1)], max_batch_size=32)
    assert warmup.sizes_to_warm(spec, warmup.MOST_BYTES // 4) == ([4, 1], [2, 3])
    assert warmup.sizes_to_warm(spec, 2 * warmup.MOST_BYTES) == ([1], [])


def test_instances_are_warmed_at_once():
    engine = recording(instances=2, max_batch_size=1)
    together = threading.Barrier(2)

    def compute(x):
        together.wait(LIMIT_S)
        return [x]

    engine.compute = compute
    warmup.start_instances(engine)
    assert engine.sizes == {0: [1], 1: [1]}


def test_rows_of_strings_come_as_clients_send_them():
    batch = warmup.WarmBatch([np.array([[b"ab", b""]], object)], 2, batched=True)
    assert (batch.input_shape(0), batch.input_bytes(0)) == ((2, 2), 20)
    memory = np.zeros(20, np.uint8)
    batch.gather(0, memory.ctypes.data, 20)
    assert memory.tobytes() == b"\2\0\0\0ab\0\0\0\0" * 2


def test_what_fails_in_warm_up_is_not_served():
    engine = recording(max_batch_size=8)

    def compute(x):
        if len(x) == 8:
            raise EngineError("no room for 8")
        return [x]

    engine.compute = compute
    with pytest.raises(StartError) as caught:
        Worker([engine], output_arena_mb=1)
    for words in ("'m'", "warm-up", "8 rows", "no room for 8", "smaller max_batch_size"):
        assert words in str(caught.value)


def test_an_instance_that_does_not_answer_is_not_served():
    engine = recording()
    engine.create_instance = lambda index: type(
        "Silent", (), {"execute": lambda *_: None, "close": lambda _: None}
    )()
    with pytest.raises(StartError, match="without an answer"):
        warmup.start_instances(engine)


def test_nothing_of_it_is_counted_and_a_backlog_runs_in_full_batches(serve):
    engine = affine(max_batch_size=8)
    engine.sample = SAMPLE
    service, wire = serve(engine)
    warmed = len(engine.batches)
    assert warmed == 8
    stats = wire.call("ModelStatistics", pb.ModelStatisticsRequest(name="affine")).model_stats[0]
    assert (stats.inference_count, stats.execution_count, len(stats.batch_stats)) == (0, 0, 0)
    first = hold(engine, wire, infer_request("affine", x=rows(1)))
    waiting = queue(service, wire, [infer_request("affine", x=rows(1)) for _ in range(64)])
    engine.gate.open()
    for future in (first, *waiting):
        future.result(LIMIT_S)
    assert engine.batches[warmed:] == [1] + [8] * 8


def test_an_onnx_model_gives_its_sample_and_runs_padded(tmp_path: Path, monkeypatch):
    repositories.put(tmp_path, "plus", {1: 1.0},
                     "parameters { key: 'allowed_batch_sizes' value { string_value: '2,4' } }")  # fmt: skip
    (engine,) = worker_main.open_engines(ServeConfig((str(tmp_path),)))
    assert [array.shape[1:] for array in engine.sample] == [(4,)]
    executed = []
    run = warmup._run

    def watched(spec, index, instance, rows, size) -> None:
        run(spec, index, instance, rows, size)
        executed.append(size)

    monkeypatch.setattr(warmup, "_run", watched)
    for instance in warmup.start_instances(engine):
        instance.close()
    engine.close()
    assert executed == [4, 2]
