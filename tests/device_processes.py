"""A service of real processes whose worker runs a model on a device: the driver of the tests, or a real one.

The worker is a script that calls `worker_main` with an engine of its own. It says its process id in the file
`pid` beside the model's, which has the name of the model and nothing in it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from waiting import LIMIT_S, wait_until

from service.client import Client, ClientError, RpcFailed
from service.config import ServeConfig

SCRIPT = """
import sys
from service.config import ServeConfig
from service.supervisor import COMMANDS, WORKER, serve
sys.exit(serve(ServeConfig.from_json(sys.argv[1]), {**COMMANDS, WORKER: [sys.executable, sys.argv[2]]}))
"""


def worker_main(engine: Callable[[Path], Any]) -> None:
    """A worker process with the one engine that `engine` makes; it is given the model's folder."""
    from service.worker.__main__ import main

    def engines(config: ServeConfig) -> list[Any]:
        folder = Path(config.model_paths[0]).parent
        made = engine(folder)
        (folder / "pid.new").write_text(str(os.getpid()))
        (folder / "pid.new").rename(folder / "pid")
        return [made]

    os._exit(main(sys.argv[1:], engines))


@dataclass
class Service:
    """A running one. `text` is what it has said, `returncode` its exit code, both at the
    end.
    """

    folder: Path
    address: str = ""
    text: str = ""
    returncode: int | None = None

    @property
    def worker_pid(self) -> int:
        """Of the worker that has loaded its model last."""
        return int((self.folder / "pid").read_text())


@contextmanager
def serving(worker: Path, folder: Path, model: str = "affine.onnx", **settings: Any) -> Iterator[Service]:
    """A service that is ready, and ended in good order afterwards. `model`: a file in `folder`, or a
    repository.
    """
    if not (folder / model).exists():
        (folder / model).touch()
    ready, ours = os.pipe()
    sizes = {"arena_mb": 16, "output_arena_mb": 16, "grpc_port": 0, "metrics_port": 0, **settings}
    config = ServeConfig((str(folder / model),), ready_fd=ours, **sizes)
    service = Service(folder)
    with open(folder / "log", "w+") as log:
        command = [sys.executable, "-P", "-c", SCRIPT, config.to_json(), str(worker)]
        server = subprocess.Popen(command, pass_fds=[ours], stdout=log, stderr=log)
        os.close(ours)
        try:
            with open(ready) as line:
                said = line.readline()
            assert said, f"it did not become ready: {(folder / 'log').read_text()}"
            service.address = f"127.0.0.1:{json.loads(said)['grpc_port']}"
            yield service
        finally:
            server.send_signal(signal.SIGTERM)
            service.returncode = server.wait(LIMIT_S)
            log.seek(0)
            service.text = log.read()


def wait_until_served(address: str, x: np.ndarray[Any, Any]) -> None:
    """Returns once a worker answers, rightly."""

    def serves() -> bool:
        with Client(address) as client:
            try:
                y = client.infer("affine", {"x": x}).outputs["y"]
            except ClientError:
                return False
        assert np.array_equal(y, 2 * x + 1)
        return True

    wait_until(serves, "the next worker")


def ask_at_once(
    address: str, inputs: Sequence[np.ndarray[Any, Any]]
) -> tuple[list[threading.Thread], list[str]]:
    """Sends all of them, a thread each. What became of each, when the threads have ended: "" of a right
    answer, a code of an error."""
    told = ["?"] * len(inputs)

    def ask(number: int) -> None:
        with Client(address) as client:
            try:
                y = client.infer("affine", {"x": inputs[number]}).outputs["y"]
                told[number] = "" if np.array_equal(y, 2 * inputs[number] + 1) else "a wrong answer"
            except RpcFailed as error:
                told[number] = error.code

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    return threads, told


def all_told(address: str, inputs: Sequence[np.ndarray[Any, Any]]) -> list[str]:
    """The same, when all of them are told."""
    threads, told = ask_at_once(address, inputs)
    for thread in threads:
        thread.join()
    return told
