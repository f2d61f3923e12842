"""Python models that fail: in a batch, with their process, without an end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from engine_fakes import FakeBatch
from python_rig import BUSY, Rig, X, alive, descriptors, rows
from waiting import wait_until

from service.engines import python_process
from service.engines.python_process import InstanceProcess, backoff_s
from service.errors import Code
from service.models.spec import TensorSpec

BY_COMMAND = """
    import ctypes, os, signal, sys, time
    class Model:
        def execute(self, inputs):
            x = inputs["x"]
            command = int(x.max())
            if command == -1:
                raise ValueError("no\\nluck")
            if command == -2:
                sys.exit("enough")
            if command == -3:
                os._exit(7)
            if command == -4:
                ctypes.string_at(0)
            if command == -5:
                os.kill(os.getpid(), signal.SIGKILL)
            if command == -6:
                while True:
                    pass
            if command == -7:
                raise KeyboardInterrupt
            if command == -8:
                class Wordless(Exception):
                    def __str__(self):
                        raise RuntimeError("not even this")
                raise Wordless
            return {"y": x}
"""


def order(command: int) -> np.ndarray:
    return np.full((1, 4), -command, np.float32)


def kill(pid: int) -> None:
    """Returns when it has ended with all its threads, also when nobody has noticed yet."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def works(rig: Rig) -> bool:
    return np.array_equal(rig.infer(rows(2))[0], rows(2))


# ---- in a batch ----


@pytest.mark.parametrize(
    ("command", "message"),
    [(1, "ValueError: no\\nluck"), (2, "SystemExit: enough"), (7, "KeyboardInterrupt"), (8, "Wordless")],
)
def test_what_the_model_raises_fails_its_batch_alone(tmp_path: Path, command: int, message: str) -> None:
    with Rig(tmp_path, BY_COMMAND) as rig:
        pid = rig.pid()
        assert rig.failure(order(command)) == (Code.INTERNAL, f"model 'm' failed: {message}")
        assert works(rig) and rig.pid() == pid


def test_a_traceback_is_in_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Rig(tmp_path, BY_COMMAND) as rig:
        rig.failure(order(1))
        said = capfd.readouterr().err
    assert "model 'm' version 1 instance 0: execute failed" in said
    assert "in execute\n" in said and "ValueError: no\nluck" in said


WRONG = {
    "None": "execute returned None; expected a dict of name to numpy array",
    "[x]": "execute returned a list; expected a dict of name to numpy array",
    "{}": "output 'y' is missing; got nothing",
    "{'y': x, 'z': x}": "output 'z' is not an output of the model; expected 'y'",
    "{'y': x.tolist()}": "output 'y' is a list; expected a numpy array of float32",
    "{'y': None}": "output 'y' is None; expected a numpy array of float32",
    "{'y': x.astype('f8')}": "output 'y' has dtype float64; expected float32 (FP32)",
    "{'y': x.astype('>f4')}": "output 'y' has dtype >f4; expected float32 (FP32)",
    "{'y': x.astype(object)}": "output 'y' has dtype object; expected float32 (FP32)",
    "{'y': x[1:]}": "output 'y' has 1 rows (shape [1, 4]); expected 2, as many as the inputs",
    "{'y': x[:, 1:]}": "output 'y' has shape [2, 3]; expected [2, 4]",
    "{'y': x[0]}": "output 'y' has 4 rows (shape [4]); expected 2, as many as the inputs",
    "{'y': x[0, 0] + np.zeros((), 'f4')[()]}": "output 'y' has shape []; expected [2, 4]",
    "{'y': np.array(1, 'f4')}": "output 'y' has shape []; expected [2, 4]",
}


@pytest.mark.parametrize("answer", WRONG)
def test_an_answer_that_is_not_as_configured(tmp_path: Path, answer: str) -> None:
    source = f"""
        import numpy as np
        class Model:
            def execute(self, inputs):
                x = inputs["x"]
                return {answer} if x[0, 0] else {{"y": x}}
    """
    with Rig(tmp_path, source) as rig:
        message = f"model 'm' failed: a wrong answer: {WRONG[answer]}"
        assert rig.failure(rows(2, 1)) == (Code.INTERNAL, message)
        assert works(rig)


def test_an_output_that_can_never_fit(tmp_path: Path) -> None:
    source = """
        import numpy as np
        class Model:
            def execute(self, inputs):
                return {"y": np.zeros((len(inputs["x"]), int(inputs["x"].max())), np.float32)}
    """
    with Rig(tmp_path, source, X, [TensorSpec("y", "FP32", (-1,))]) as rig:
        code, message = rig.failure(np.full((1, 4), 16 << 20, np.float32))
        assert code == Code.RESOURCE_EXHAUSTED and "--output-arena-mb" in message
        assert rig.infer(np.full((1, 4), 3, np.float32))[0].shape == (1, 3)


# ---- with its process ----


@pytest.mark.parametrize(
    ("command", "end"), [(3, "exit code 7"), (4, "signal SIGSEGV"), (5, "signal SIGKILL")]
)
def test_a_crash_costs_what_the_instance_held(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: int, end: str
) -> None:
    with Rig(tmp_path, BY_COMMAND) as rig:
        first = rig.pid()
        code, message = rig.failure(order(command))
        assert code == Code.UNAVAILABLE
        what = f"lost its process in the middle of a batch of 1 row ({end})"
        assert message == f"model 'm' {what}; it is started again"
        assert works(rig)
        assert rig.pid() != first and not alive(first)
        assert f"model 'm' version 1 instance 0: its process ended ({end})" in capfd.readouterr().err


def test_a_process_that_dies_idle_costs_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path, BY_COMMAND) as rig:
        for _ in range(3):
            first = rig.pid()
            assert works(rig)
            kill(first)
            assert works(rig)
            assert rig.pid() != first


def test_a_batch_that_finds_its_process_dead_goes_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher may meet a death before the keeper does."""
    noticed = threading.Event()
    ends = InstanceProcess.wait_ended
    monkeypatch.setattr(InstanceProcess, "wait_ended", lambda process: (ends(process), noticed.wait(60)))
    with Rig(tmp_path, BY_COMMAND) as rig:
        first = rig.instances[0]._keeper.wait_up()
        assert first is not None
        kill(first.pid)
        slot = rig.submit(rows(2))
        launcher = threading.Thread(target=rig.run)
        launcher.start()
        wait_until(lambda: first.has_ended, "the launcher's discovery")
        noticed.set()
        launcher.join(60)
        assert np.array_equal(rig.answers()[slot][0], rows(2))


def test_a_process_is_started_again_without_a_request(tmp_path: Path) -> None:
    source = """
        import os
        class Model:
            def initialize(self, config):
                with open(os.path.join(config["directory"], "starts"), "a") as file:
                    file.write("x")
            def execute(self, inputs):
                return {"y": inputs["x"]}
    """
    with Rig(tmp_path, source) as rig:
        os.kill(rig.pid(), signal.SIGKILL)
        wait_until(lambda: (tmp_path / "starts").read_text() == "xx", "the second start")


HELD_BACK = """
    import fcntl, os
    class Model:
        def initialize(self, config):
            with open(os.path.join(config["directory"], "hold"), "a") as hold:
                fcntl.flock(hold, fcntl.LOCK_SH)
        def execute(self, inputs):
            if inputs["x"][0, 0] < 0:
                os._exit(1)
            return {"y": inputs["x"]}
"""


def test_other_instances_go_on_while_one_is_started_again(tmp_path: Path) -> None:
    """Its launcher waits, so that it takes no batches; the request that it had is answered before."""
    with Rig(tmp_path, HELD_BACK, instances=2) as rig, open(tmp_path / "hold") as hold:
        fcntl.flock(hold, fcntl.LOCK_EX)
        rig.submit(-rows(1, 1))
        rig.former.step()
        broken = next(i for i in (0, 1) if (batch := rig.former.try_batch(rig.streams[i])) is not None)
        batch.check()
        launcher = threading.Thread(target=rig.instances[broken].execute, args=(batch,))
        launcher.start()
        wait_until(lambda: (done := rig.lane.poll()) is not None and done.status == 14, "the answer")
        for number in range(5):
            other = FakeBatch([rows(2, number)])
            rig.instances[1 - broken].execute(other)
            assert np.array_equal(other.output(0, np.float32), rows(2, number))
        assert launcher.is_alive()
        fcntl.flock(hold, fcntl.LOCK_UN)
        launcher.join(60)
        batch = FakeBatch([rows(2)])
        rig.instances[broken].execute(batch)
        assert np.array_equal(batch.output(0, np.float32), rows(2))


def test_a_model_that_cannot_be_started_again_says_why_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_process, "BACKOFF_MAX_S", 0.01)
    with Rig(tmp_path, BY_COMMAND) as rig:
        text = (tmp_path / "model.py").read_text()
        (tmp_path / "model.py").write_text("raise OSError('weights are gone')")
        assert rig.failure(order(3))[0] == Code.UNAVAILABLE
        assert rig.failure(rows(1)) == (Code.UNAVAILABLE, "model 'm' is down: OSError: weights are gone")
        (tmp_path / "model.py").write_text(text)
        wait_until(lambda: rig.instances[0]._keeper.wait_up() is not None, "a process")
        assert works(rig)


def test_delays_between_starts() -> None:
    assert [backoff_s(failures) for failures in range(5)] == [0, 0.1, 0.2, 0.4, 0.8]
    assert backoff_s(9) == 25.6
    assert backoff_s(10) == backoff_s(10_000) == 30


def test_only_work_makes_deaths_be_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(python_process, "backoff_s", lambda failures: asked.append(failures) or 0.0)
    with Rig(tmp_path, BY_COMMAND) as rig:
        for _ in range(2):
            rig.failure(order(3))
            rig.pid()
        assert works(rig)
        rig.failure(order(3))
        rig.pid()
    assert asked[:3] == [1, 2, 0]


def test_what_a_model_has_started_ends_with_it(tmp_path: Path) -> None:
    source = """
        import os, signal
        class Model:
            def initialize(self, config):
                self.helper = os.fork()
                if self.helper == 0:
                    while True:
                        signal.pause()
                with open(os.path.join(config["directory"], "helpers"), "a") as file:
                    file.write(f"{self.helper} ")
            def execute(self, inputs):
                os._exit(1)
    """
    with Rig(tmp_path, source) as rig:
        assert rig.failure(rows(1))[0] == Code.UNAVAILABLE
        rig.pid()
        first, *_ = map(int, (tmp_path / "helpers").read_text().split())
        wait_until(lambda: not alive(first), "the end of the helper")


def test_descriptors_and_threads_are_given_back(tmp_path: Path) -> None:
    with Rig(tmp_path, BY_COMMAND):
        pass  # what is made once for all is there now
    threads = threading.active_count()
    with Rig(tmp_path, BY_COMMAND) as rig:
        assert works(rig)
        before = descriptors()
        for _ in range(3):
            rig.failure(order(3))
            assert works(rig)
        assert descriptors() == before
    assert threading.active_count() == threads


def test_a_child_ends_with_its_worker(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from python_rig import BUSY, Rig, rows
rig = Rig(Path(sys.argv[1]), BUSY)
print(rig.pid(), flush=True)
rig.submit(rows(1))
rig.run()
"""
    command = [sys.executable, "-P", "-c", program, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        wait_until((tmp_path / "spins").exists, "the model's work")
        assert alive(pid)
        worker.kill()
    wait_until(lambda: not alive(pid), "the end of the child")


# ---- without an end ----


def test_a_batch_that_takes_too_long(tmp_path: Path) -> None:
    """The limit is shorter than it takes to load the model, which has none."""
    with Rig(tmp_path, BY_COMMAND, execution_timeout_s="0.05") as rig:
        first = rig.pid()
        code, message = rig.failure(order(6))
        assert code == Code.DEADLINE_EXCEEDED
        what = "did not finish a batch of 1 row within execution_timeout_s = 0.05 s"
        assert message == f"model 'm' {what}; its process is started again"
        assert not alive(first) and rig.pid() != first


def test_a_model_that_does_not_finalize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(python_process, "FINALIZE_GRACE_S", 0.05)
    source = """
        import signal
        class Model:
            def execute(self, inputs):
                return {"y": inputs["x"]}
            def finalize(self):
                signal.pause()
    """
    with Rig(tmp_path, source) as rig:
        pid = rig.pid()
    assert not alive(pid)
    assert "finalize took more than 0.05 s; its process was killed" in capfd.readouterr().err


def test_a_model_that_is_closed_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    with Rig(tmp_path, BUSY, instances=2) as rig:
        rig.submit(rows(1))
        launcher = threading.Thread(target=rig.run)
        launcher.start()
        wait_until((tmp_path / "spins").exists, "the model's work")
        rig.engine.close()
        launcher.join(60)
        code, message = rig.next_failure()
        assert code == Code.UNAVAILABLE and "lost its process in the middle of a batch" in message
