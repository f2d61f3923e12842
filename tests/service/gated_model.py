"""A model in Python whose loading waits for the test, in whatever process: as long as the gate is shut."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

import psutil

SOURCE = """
import fcntl
import os


class Model:
    def initialize(self, config):
        gate = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gate")
        open(f"{gate}.{os.getpid()}", "w").close()
        with open(gate, "a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)

    def execute(self, inputs):
        return {"y": inputs["x"] + 1}
"""


class Gate:
    """Of the model whose file lies in `folder`; it is open at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None

    def shut(self) -> None:
        if self._lock is None:
            self._lock = open(self.folder / "gate", "a")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def open(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def processes(self) -> set[int]:
        """Those that have come to it, and live."""
        found = {int(path.suffix[1:]) for path in self.folder.glob("gate.*")}
        return {pid for pid in found if psutil.pid_exists(pid)}
