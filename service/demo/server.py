"""The real service as a child of the demo: ``headrace serve`` on free ports.

Ready is what ``--ready-fd`` says: one line of JSON with the ports; if the pipe closes without one, the
service has failed to start, and what it said on standard error is the reason. The model is given under a
name of its own, by a link in a folder that exists as long as the service.

The child has a session of its own, so that Ctrl-C reaches the demo alone, which can then still print what
it has; and it ends by itself should the demo be killed (``--end-with-parent``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

STOP_TIMEOUT_S = 20.0


class ServerFailed(Exception):
    """The service did not start; the text has what it said."""


@dataclass(frozen=True)
class Server:
    """A service that is ready: where it is, and the process id of its supervisor."""

    url: str
    pid: int


@contextmanager
def running(model: Path, name: str, flags: Sequence[str] = ()) -> Iterator[Server]:
    """Starts ``headrace serve`` with one model, yields it when ready, and stops it at the end.

    Raises ServerFailed. Call it in the main thread: the child ends when the thread that started it does.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        link = Path(folder, f"{name}.onnx")
        link.symlink_to(model.resolve())
        with started([sys.executable, "-P", "-m", "service", "serve", str(link), *flags]) as server:
            yield server


@contextmanager
def started(command: Sequence[str]) -> Iterator[Server]:
    """The same for any command that takes the flags of ``headrace serve`` for ports, readiness and end."""
    with tempfile.TemporaryFile() as log:
        process, ready = _start(command, log)
        try:
            yield Server(_url(ready, process, log), process.pid)
        finally:
            _stop(process)


def _start(command: Sequence[str], log: IO[bytes]) -> tuple[subprocess.Popen[bytes], int]:
    """Starts the service; returns it and the descriptor on which it says that it is ready."""
    ready, tell = os.pipe()
    ports = ["--grpc-port", "0", "--metrics-port", "0", "--ready-fd", str(tell), "--end-with-parent"]
    try:
        process = subprocess.Popen(
            [*command, *ports],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[tell],
            start_new_session=True,
        )
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(tell)
    return process, ready


def _url(ready: int, process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    with open(ready) as file:
        line = file.readline()
    if not line:
        code = process.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip() or f"exit code {code}, and not a word"
        raise ServerFailed(f"the service did not start:\n{said}")
    return f"127.0.0.1:{json.loads(line)['grpc_port']}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM drains; a service that does not end in good time is killed, and its children with it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
