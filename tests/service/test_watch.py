"""Batches that run for too long: what the watch makes of them, and what a hung one costs a service."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
from lifecycle import Server
from waiting import LIMIT_S, wait_until
from wire import Wire, infer_request, output, rows, status_of

from fastqueue import Running
from service.worker.watch import Findings, Watch, Watched, look

SECOND = 1_000_000_000
MODELS = {1: Watched("model 'a' version 1", 300.0), 2: Watched("model 'b' version 3", None)}


def running(age_s: float, *, model: int = 1, slow_after_s: float = 10.0, slow: bool = False) -> Running:
    return Running(model, 8, 77, int(age_s * SECOND), int(slow_after_s * SECOND), slow)


# ---- what is to be done: a pure function ----


def test_nothing_runs() -> None:
    assert look([], MODELS) == Findings((), "", 10.0)


def test_it_looks_again_when_the_first_batch_can_have_come_to_its_limit() -> None:
    assert look([running(4)], MODELS).next_s == 6.0
    assert look([running(4), running(9.5)], MODELS).next_s == 0.5
    assert look([running(20), running(299.75)], MODELS).next_s == 0.25
    assert look([], {1: Watched("a", 2.0)}).next_s == 2.0, "a batch that starts now may come to it then"
    assert look([running(0.5, slow_after_s=30)], {1: Watched("a", 2.0)}).next_s == 1.5


def test_a_slow_batch_is_one_warning() -> None:
    found = look([running(12.5, slow=True)], MODELS)
    assert found.warnings == (
        "model 'a' version 1 has been executing a batch of 8 rows for 12.5 s; that is slow",
    )
    assert (found.fatal, found.next_s) == ("", 10.0)
    assert look([running(13)], MODELS).warnings == ()
    (warning,) = look([running(61, slow_after_s=60, slow=True)], MODELS).warnings
    assert warning.endswith("for 61 s; it was expected to take at most a twentieth of 60 s")


def test_a_batch_at_its_limit_ends_the_worker_and_the_line_says_which_and_why() -> None:
    assert look([running(299.999)], MODELS).fatal == ""
    assert look([running(300)], MODELS).fatal == (
        "model 'a' version 1 has been executing a batch of 8 rows for 300 s (execution_timeout_s is 300): "
        "the worker is ended and started again"
    )


def test_an_engine_that_ends_its_own_processes_is_warned_about_and_no_more() -> None:
    found = look([running(5000, model=2, slow=True)], MODELS)
    assert (len(found.warnings), found.fatal) == (1, "")


def test_a_batch_of_a_model_that_has_just_gone_is_nobodys() -> None:
    assert look([running(5000, model=9, slow=True)], MODELS) == look([], MODELS)


def test_the_thread_says_what_is_slow_and_ends_the_process_once(capfd: pytest.CaptureFixture[str]) -> None:
    looks = iter([[running(0)], [running(12, slow=True)], [running(300)]])
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    soon = {1: Watched("model 'a' version 1", 300.0), 2: Watched("short", 0.001)}
    watch = Watch(lambda: next(looks), lambda: soon, ended.put)
    watch.start()
    assert "execution_timeout_s is 300" in ended.get(timeout=LIMIT_S)
    watch.stop()
    assert ended.empty()
    warned = "warning: model 'a' version 1 has been executing a batch of 8 rows for 12 s"
    assert warned in capfd.readouterr().err


# ---- a whole service ----


def test_a_hung_batch_costs_the_worker_and_what_it_held(tmp_path: Path, frontend: str) -> None:
    with Server(tmp_path, execution_timeout_s=0.5, frontend=frontend) as server:
        wire = Wire(server.address)
        first = server.worker().pid
        server.shut()
        held = [wire.infer_later(infer_request("affine", x=rows(1))) for _ in range(3)]
        assert {status_of(call) for call in held} == {"UNAVAILABLE"}
        server.open()
        wait_until(lambda: server.get("/readyz")[0] == 200, "ready again")
        assert server.worker().pid != first
        y = output(wire.infer(infer_request("affine", x=rows(2))))
        assert (y == 2 * rows(2) + 1).all()
        log = server.log()
        assert "model 'affine' version 1 has been executing a batch of " in log
        assert " (execution_timeout_s is 0.5): the worker is ended and started again" in log
        assert "ended with exit code 1; it is started again" in log
        wire.close()
