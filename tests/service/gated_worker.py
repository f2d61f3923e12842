"""A real worker process whose models wait for the test: they run only while nobody holds the model's file
locked. A model is what its name says (MODELS), and y = 2x + 1 when that says nothing.

The test's side is an exclusive flock on the model file (`lifecycle.Server.shut` and `open`). The file says
how long a batch may run, in seconds.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path, PurePath

import numpy as np
from scripted import ScriptedEngine, affine, model_spec, tensor

from service.models.scheduling import Scheduling
from service.worker.__main__ import main

MB = 1 << 20
ENGINE_S = 0.05


def summing(name: str, **settings) -> ScriptedEngine:
    """1 MB a row in, its sum out."""
    spec = model_spec(name, [tensor("x", "FP32", MB // 4)], [tensor("y", "FP32", 1)], **settings)
    return ScriptedEngine(spec, lambda x: [x.sum(axis=1, keepdims=True)])


def widening(name: str, **settings) -> ScriptedEngine:
    """Four bytes in, 1 MB a row out, all of it the byte that came."""
    spec = model_spec(name, [tensor("x", "FP32", 1)], [tensor("y", "UINT8", MB)], **settings)
    return ScriptedEngine(spec, lambda x: [np.repeat(x.astype(np.uint8), MB, axis=1)])


def slow(name: str, **settings) -> ScriptedEngine:
    """1 MB in and out, one row at a time, as a device that needs ENGINE_S for each."""
    tensors = [tensor("x", "FP32", MB // 4)], [tensor("y", "FP32", MB // 4)]

    def compute(x):
        time.sleep(ENGINE_S)
        return [x]

    return ScriptedEngine(model_spec(name, *tensors, max_batch_size=1, **settings), compute)


MODELS = {"sum": summing, "widen": widening, "slow": slow}


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
        name = PurePath(path).stem
        engine = MODELS.get(name, affine)(name, scheduling=scheduling)
        engine.gate = FileGate(path)
        loaded.append(engine)
    return loaded


os._exit(main(sys.argv[1:], engines))
