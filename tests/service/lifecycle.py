"""A whole service of real processes for the tests of its life: the real supervisor and front end, a gated
worker.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psutil
from waiting import LIMIT_S, wait_until

HERE = Path(__file__).parent
SCRIPT = """
import resource, sys
from service.config import ServeConfig
from service.supervisor import COMMANDS, FRONTEND, WORKER, serve
if limit := int(sys.argv[3]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
commands = {**COMMANDS, WORKER: [sys.executable, sys.argv[2]]}
if sys.argv[4:]:
    commands[FRONTEND] = [sys.executable, *sys.argv[4:]]
sys.exit(serve(ServeConfig.from_json(sys.argv[1]), commands))
"""


class Server:
    """The service with the model `affine`, ready when entered and gone when left.

    `descriptors` is how many each of its processes may have; 0: as many as the tests. `others` are models of
    gated_worker.py that are served beside `affine`. `frontend_command` is a script with its arguments that is
    the front-end process instead of the real one.
    """

    def __init__(
        self,
        folder: Path,
        execution_timeout_s: float = 300.0,
        descriptors: int = 0,
        others: Sequence[str] = (),
        frontend_command: Sequence[str] = (),
        **settings,
    ) -> None:
        self._descriptors = descriptors
        self._frontend_command = frontend_command
        self.model = folder / "affine.onnx"
        self._paths = [self.model, *(folder / f"{name}.onnx" for name in others)]
        for path in self._paths:
            path.write_text(str(execution_timeout_s))  # what gated_worker.py has to know, and its lock
        self._log = open(folder / "log", "w+")
        self._settings = settings
        self._locks = {path.stem: open(path) for path in self._paths}

    def __enter__(self) -> Server:
        from service.config import ServeConfig

        reader, writer = os.pipe()
        paths = tuple(map(str, self._paths))
        config = ServeConfig(paths, **{"grpc_port": 0, "metrics_port": 0, "arena_mb": 16,
                             "output_arena_mb": 16, "ready_fd": writer, **self._settings})  # fmt: skip
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                SCRIPT,
                config.to_json(),
                str(HERE / "gated_worker.py"),
                str(self._descriptors),
                *self._frontend_command,
            ],
            pass_fds=[writer],
            stdout=self._log,
            stderr=self._log,
            process_group=0,
        )
        os.close(writer)
        with os.fdopen(reader) as file:
            line = file.readline()
        assert line, self.log()
        self.ready = json.loads(line)
        self.address = f"127.0.0.1:{self.ready['grpc_port']}"
        return self

    def __exit__(self, *_) -> None:
        children = self.children()
        self.process.kill()
        self.process.wait(LIMIT_S)
        wait_until(lambda: not any(alive(child.pid) for child in children), "the end of every process")
        self._log.close()
        for lock in self._locks.values():
            lock.close()

    def log(self) -> str:
        """Everything the service has said."""
        return Path(self._log.name).read_text()

    def shut(self, model: str = "affine") -> None:
        """The model's batches wait from now on."""
        fcntl.flock(self._locks[model], fcntl.LOCK_EX)

    def open(self, model: str = "affine") -> None:
        """They run again."""
        fcntl.flock(self._locks[model], fcntl.LOCK_UN)

    def signal(self, signum: int = signal.SIGTERM) -> None:
        self.process.send_signal(signum)

    def exit_code(self) -> int:
        """Waits for the end."""
        return self.process.wait(LIMIT_S)

    def children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def child(self, words: str) -> psutil.Process:
        """The child whose command line has these words."""
        (found,) = [child for child in self.children() if words in " ".join(child.cmdline())]
        return found

    def worker(self) -> psutil.Process:
        return self.child("gated_worker.py")

    def frontend(self) -> psutil.Process:
        return self.child("service.frontend")

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a request to the metrics port."""
        url = f"http://127.0.0.1:{self.ready['metrics_port']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, series: str) -> int:
        """What a series (with its labels) of `/metrics` says now."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{series} "):
                return int(float(line.split()[-1]))
        raise AssertionError(f"no {series}")

    def in_flight(self) -> int:
        """Requests whose clients wait, as the metrics say."""
        return self.metric("headrace_requests_in_flight")


def alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
