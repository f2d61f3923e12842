"""The worker behind its links: rows in through a lane, answers out, and nothing an engine does stops it."""

from __future__ import annotations

import os
import select
import threading

import numpy as np
import pytest
from scripted import ScriptedEngine, affine, model_spec, tensor
from waiting import LIMIT_S, wait_until

from fastqueue import FrontLane, InputArena, WorkerPage
from service.control import Channel, socket_pair
from service.engines.base import EngineError
from service.errors import Code, StartError
from service.models.spec import ModelSpec
from service.worker.worker import Worker


class Front:
    """A front-end thread's end of a link: one lane, and calls that wait."""

    def __init__(self, worker: Worker) -> None:
        ours, theirs = socket_pair()
        worker.open_link(Channel(theirs))
        self.link = Channel(ours)
        self.lane = FrontLane(InputArena(1), 64)
        self.link.send("hello", {"lanes": 1}, self.lane.fds)
        self.ready = self.link.receive()
        page, output = self.ready.take_fds()
        self.lane.attach_worker(page, output)
        self.page = WorkerPage(page)
        os.close(page)
        os.close(output)

    def submit(self, *arrays: np.ndarray, model: int = 1) -> int:
        return self.lane.submit(model, arrays[0].shape[0], [(i, a.shape, a) for i, a in enumerate(arrays)])

    def next(self):
        """The next completion."""
        while (done := self.lane.poll()) is None:
            if self.lane.arm():
                ready, _, _ = select.select([self.lane.eventfd], [], [], LIMIT_S)
                assert ready, "no completion came"
                os.eventfd_read(self.lane.eventfd)
        return done


@pytest.fixture
def start():
    workers: list[tuple[Worker, list[ScriptedEngine]]] = []

    def start_worker(*engines: ScriptedEngine) -> Worker:
        worker = Worker(engines, output_arena_mb=1)
        worker.start()
        workers.append((worker, list(engines)))
        return worker

    yield start_worker
    for worker, engines in workers:
        for engine in engines:
            engine.gate.open()
        worker.stop()


def rows(count: int, first: float = 0.0) -> np.ndarray:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4) + first


def answer(done, index: int = 0, dtype=np.float32) -> np.ndarray:
    dims, data = done.outputs[index]
    return np.frombuffer(data, dtype).reshape(dims)


def test_it_says_what_it_serves(start):
    engine = affine(max_batch_wait_us=7)
    front = Front(start(engine))
    (model,) = front.ready.body["models"]
    assert model["id"] == 1
    assert ModelSpec.from_json(model["spec"]) == engine.spec
    assert front.ready.body["devices"] == ["cpu"]


def test_rows_come_back_computed(start):
    front = Front(start(affine()))
    x = rows(3)
    front.submit(x)
    done = front.next()
    assert done.status == Code.OK
    assert np.array_equal(answer(done), 2 * x + 1)


def test_what_waits_behind_a_busy_model_becomes_one_batch(start):
    engine = affine()
    front = Front(start(engine))
    engine.gate.shut()
    sent = {front.submit(rows(1, 100.0 * i)): 100.0 * i for i in range(1)}
    engine.gate.wait_until_held()
    sent.update({front.submit(rows(1, 100.0 * i)): 100.0 * i for i in range(1, 17)})
    engine.gate.open()
    for _ in range(17):
        done = front.next()
        assert np.array_equal(answer(done), 2 * rows(1, sent.pop(done.slot)) + 1)
    assert engine.batches == [1, 8, 8]


def test_a_slow_model_does_not_stop_another(start):
    slow, quick = affine("slow"), affine("quick")
    front = Front(start(slow, quick))
    slow.gate.shut()
    slow_slot = front.submit(rows(1), model=1)
    slow.gate.wait_until_held()
    quick_slot = front.submit(rows(1), model=2)
    assert front.next().slot == quick_slot
    slow.gate.open()
    assert front.next().slot == slow_slot


def test_instances_run_side_by_side(start):
    engine = affine(instances=2, max_batch_size=1)
    front = Front(start(engine))
    engine.gate.shut()
    front.submit(rows(1))
    front.submit(rows(1))
    engine.gate.wait_until_held(2)
    engine.gate.open()
    assert [front.next().status for _ in range(2)] == [Code.OK] * 2


def test_an_unbatched_model_gets_requests_one_by_one_in_full_shape(start):
    spec = model_spec(
        "whole",
        [tensor("x", "FP32", 2, -1)],
        [tensor("y", "FP32", -1)],
        max_batch_size=0,
        why_unbatched="a reason",
    )
    engine = ScriptedEngine(spec, lambda x: [x.sum(axis=0)])
    front = Front(start(engine))
    x = rows(2)
    front.lane.submit(1, 1, [(0, x.shape, x)])
    assert np.array_equal(answer(front.next()), x.sum(axis=0))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (EngineError, Code.INTERNAL, ["unwell"]),
        (ZeroDivisionError, Code.INTERNAL, ["'affine'", "ZeroDivisionError", "unwell"]),
    ],
)
def test_an_exception_fails_its_batch_and_nothing_else(start, capfd, error, code, words):
    engine = affine()
    front = Front(start(engine))
    healthy = engine.compute

    def fail(x):
        raise error("unwell")

    engine.compute = fail
    front.submit(rows(2))
    done = front.next()
    assert done.status == code
    for word in words:
        assert word in done.message
    engine.compute = healthy
    front.submit(rows(2))
    assert front.next().status == Code.OK


def test_an_engine_that_forgets_to_answer_is_an_error_not_a_hang(start):
    class Silent(ScriptedEngine):
        def create_instance(self, index):
            return self

        def execute(self, batch) -> None:
            pass

    front = Front(start(Silent(affine().spec, lambda x: [x])))
    front.submit(rows(1))
    done = front.next()
    assert done.status == Code.INTERNAL
    assert "without an answer" in done.message


def test_an_output_that_can_never_fit_names_the_setting(start):
    spec = model_spec("big", [tensor("x", "FP32", 4)], [tensor("y", "FP32", -1)])
    engine = ScriptedEngine(spec, lambda x: [np.zeros((len(x), 1 << 20), np.float32)])
    front = Front(start(engine))
    front.submit(rows(1))
    done = front.next()
    assert done.status == Code.RESOURCE_EXHAUSTED
    assert "--output-arena-mb" in done.message


def test_a_cancelled_request_is_dropped_before_it_runs(start):
    engine = affine(max_batch_size=1)
    front = Front(start(engine))
    engine.gate.shut()
    first = front.submit(rows(1))
    engine.gate.wait_until_held()
    second = front.submit(rows(1))
    front.lane.cancel(second)
    engine.gate.open()
    done = {completion.slot: completion.status for completion in (front.next(), front.next())}
    assert done == {first: Code.OK, second: Code.CANCELLED}
    assert engine.batches == [1]


def test_the_end_of_one_link_is_not_the_end_of_another(start):
    engine = affine()
    worker = start(engine)
    leaver, stayer = Front(worker), Front(worker)
    engine.gate.shut()
    leaver.submit(rows(1))
    engine.gate.wait_until_held()
    leaver.submit(rows(1))
    leaver.link.close()
    stayer.submit(rows(2))
    engine.gate.open()
    assert stayer.next().status == Code.OK
    wait_until(lambda: worker.link_count == 1)
    again = Front(worker)
    again.submit(rows(1))
    assert again.next().status == Code.OK


def test_lanes_come_and_go_without_leaving_descriptors(start):
    worker = start(affine())
    Front(worker).link.close()
    wait_until(lambda: worker.link_count == 0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        front = Front(worker)
        front.submit(rows(1))
        front.next()
        front.link.close()
        del front
    wait_until(lambda: worker.link_count == 0)
    assert len(os.listdir("/proc/self/fd")) <= before + 2


@pytest.mark.parametrize("lanes", [0, 2])
def test_a_hello_with_the_wrong_descriptors_ends_the_link_alone(start, capfd, lanes):
    worker = start(affine())
    ours, theirs = socket_pair()
    worker.open_link(Channel(theirs))
    link = Channel(ours)
    lane = FrontLane(InputArena(1), 64)
    link.send("hello", {"lanes": lanes}, lane.fds)
    assert link.receive() is None
    link.close()
    assert "descriptors per lane" in capfd.readouterr().err
    front = Front(worker)
    front.submit(rows(1))
    assert front.next().status == Code.OK


def test_counters_are_on_the_page_for_others_to_read(start):
    front = Front(start(affine()))
    for _ in range(3):
        front.submit(rows(2))
        front.next()
    (stats,) = front.page.stats()
    assert (stats.model, stats.rows, stats.executions, stats.success.count) == (1, 6, 3, 3)


def test_stopping_closes_engines_and_ends_links(start):
    engine = affine()
    worker = Worker([engine], output_arena_mb=1)
    worker.start()
    front = Front(worker)
    worker.stop()
    assert front.link.receive() is None
    assert engine.closed == 1
    assert not any(thread.name.startswith(("former", "stream")) for thread in threading.enumerate())


def test_more_instances_than_streams_are_refused_by_number():
    with pytest.raises(StartError, match="65 instances"):
        Worker([affine("a", instances=33), affine("b", instances=32)], output_arena_mb=1)
