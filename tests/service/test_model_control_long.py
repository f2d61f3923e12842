"""Model control again and again: nothing is left of hundreds of loads, and no request fails of twenty."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import psutil
import pytest
import triton_repository as repositories
from test_model_control import Control, refused
from test_model_control_processes import CONFIG, Running, running
from waiting import LIMIT_S, wait_until
from wire import Wire, done_response, infer_request, output, rows

from service.config import ServeConfig
from service.inprocess import InProcess
from service.inprocess import running as in_process

WARM = 50  # turns after which nothing may grow any more
RSS_GROWTH = 8 << 20
SAME = 20  # readings in a row that are no coincidence
RATE = 500  # requests a second
UNANSWERED = 256  # a sender that finds as many does not add to them, however slow the machine is
PYTHON = "class Model:\n    def execute(self, inputs):\n        return {'y': inputs['x'] + 1}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    repositories.put(repository, "one", {1: 1.0})
    (repository / "snake" / "1").mkdir(parents=True)
    (repository / "snake" / "1" / "model.py").write_text(PYTHON)
    (repository / "snake" / "config.pbtxt").write_text(CONFIG)
    return repository


class Held:
    """What a process holds: descriptors, threads and children, and memory."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process

    def things(self) -> tuple[int, int, int]:
        process = self._process
        return process.num_fds(), process.num_threads(), len(process.children(recursive=True))

    def rss(self) -> int:
        return int(self._process.memory_info().rss)


def at_rest(held: list[Held]) -> list[tuple[int, int, int]]:
    """What they hold once it stays the same: threads of the last turn may be on their way out."""
    seen: list[list[tuple[int, int, int]]] = []

    def stays() -> bool:
        seen.append([one.things() for one in held])
        return len(seen) >= SAME and all(reading == seen[-1] for reading in seen[-SAME:])

    wait_until(stays, "rest")
    return seen[-1]


def come_and_go(service: Running, name: str, turns: int) -> None:
    for _ in range(turns):
        service.load(name)
        assert service.adds(name) == 1.0
        service.unload(name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "turns"), [("one", 200), ("snake", 70)])
def test_loads_and_unloads_leave_nothing_behind(folder: Path, frontend: str, name: str, turns: int) -> None:
    with running(folder, frontend) as service:
        held = [Held(service.child(f"service.{part}")) for part in ("worker", "frontend")]
        come_and_go(service, name, WARM)
        things, memory = at_rest(held), [one.rss() for one in held]
        come_and_go(service, name, turns - WARM)
        wait_until(lambda: [one.things() for one in held] == things, f"back to {things}")
        for one, before in zip(held, memory, strict=True):
            assert one.rss() - before < RSS_GROWTH


class Sender:
    """Calls model "one" at RATE, whatever becomes of them; `outcomes` counts that."""

    def __init__(self, url: str) -> None:
        self._wire = Wire(url)
        self._stop = threading.Event()
        self._done = threading.Condition()
        self._unanswered = 0
        self.outcomes: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        begin, sent = time.monotonic(), 0
        while not self._stop.wait(max(0.0, begin + sent / RATE - time.monotonic())):
            with self._done:
                self._done.wait_for(lambda: self._unanswered < UNANSWERED, LIMIT_S)
                self._unanswered += 1
            x = rows(1 + sent % 3, sent)
            future = self._wire.infer_later(infer_request("one", x=x))
            future.add_done_callback(lambda done, x=x: self._count(done, x))
            sent += 1

    def _count(self, done: object, x: np.ndarray) -> None:
        try:
            outcome = "right" if np.array_equal(output(done_response(done)), x + 1) else "wrong"
        except Exception as error:
            outcome = str(error)
        with self._done:
            self.outcomes[outcome] += 1
            self._unanswered -= 1
            self._done.notify_all()

    def wait_answers(self, count: int) -> None:
        """Returns when `count` more have come."""
        with self._done:
            goal = self.outcomes.total() + count
            assert self._done.wait_for(lambda: self.outcomes.total() >= goal, LIMIT_S)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        with self._done:
            assert self._done.wait_for(lambda: self._unanswered == 0, LIMIT_S)
        self._wire.close()


@pytest.mark.slow
def test_no_request_fails_while_the_model_is_loaded_again_twenty_times(folder: Path, frontend: str) -> None:
    """G 96."""
    with running(folder, frontend, "--load-model", "one") as service:
        sender = Sender(service.url)
        try:
            for turn in range(20):
                sender.wait_answers(100)
                size = (4, 8, 16, 32, 3)[turn % 5]
                service.load("one", {"max_batch_size": size})
                assert service.max_batch("one") == size
            sender.wait_answers(100)
        finally:
            sender.stop()
        assert set(sender.outcomes) == {"right"}
        assert service.state("one") == [("1", "READY", "")]


def series(service: InProcess) -> set[str]:
    """Names and labels of everything that is measured."""
    with urlopen(f"{service.metrics_url}/metrics", timeout=LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")}


@pytest.mark.slow
def test_what_is_measured_comes_back_to_where_it_was_after_hundreds_of_names(
    folder: Path, frontend: str
) -> None:
    """F 92."""
    model = (folder / "one" / "1" / "model.onnx").read_bytes()
    settings = {"arena_mb": 16, "output_arena_mb": 16, "grpc_port": 0, "metrics_port": 0}
    control_mode = {"model_control_mode": "explicit", "load_models": ("one",)}
    config = ServeConfig((str(folder),), frontend=frontend, **settings, **control_mode)
    with in_process([], config) as service:
        control = Control(service)
        before = series(service)
        for number in range(300):
            name = f"given {number}"
            control.load(name, {"max_batch_size": 1}, {"file:1/model.onnx": model})
            assert control.adds(name) == 1.0
            assert {f'model="{name}"' in line for line in series(service) - before} == {True}
            control.unload(name)
            assert refused(control.adds, name)[0] == "NOT_FOUND"
        assert series(service) == before
        assert [row[0] for row in control.index()] == ["one", "snake"]
        control.wire.close()
