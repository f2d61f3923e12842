"""A real worker process whose models wait for the test: y = 2x + 1, run only while nobody holds the model's
file locked.

The test's side is an exclusive flock on the model file (`lifecycle.Server.shut` and `open`). The file says
how long a batch may run, in seconds.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path, PurePath

from scripted import affine

from service.models.scheduling import Scheduling
from service.worker.__main__ import main


class FileGate:
    def __init__(self, path: str) -> None:
        self._path = path

    def enter(self) -> None:
        with open(self._path) as file:
            fcntl.flock(file, fcntl.LOCK_SH)


def engines(config):
    loaded = []
    for path in config.model_paths:
        scheduling = Scheduling(execution_timeout_s=float(Path(path).read_text()))
        engine = affine(PurePath(path).stem, scheduling=scheduling)
        engine.gate = FileGate(path)
        loaded.append(engine)
    return loaded


os._exit(main(sys.argv[1:], engines))
