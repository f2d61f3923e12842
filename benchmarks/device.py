"""The real service with a stand-in for a device: y = 2x + 1 on FP32 [-1, WIDTH], a fixed time per batch.

What a batching server is for is a device that works on its own while the CPU does something else. A busy
loop would take that CPU from the front end and from the load generator, and be slowed down by them in turn;
a timer does neither. Everything else is what ``headrace serve`` starts: supervisor, front-end process,
worker process, queue.

    python device.py serve ENGINE_MS MAX_BATCH_SIZE WIDTH [flags of headrace serve]   what ``running`` starts
    python device.py work ENGINE_MS WIDTH --control-fd N                              the worker it starts
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from service.cli.serve import end_with_parent_process
from service.config import ServeConfig
from service.demo.server import Server, started
from service.engines.base import Engine
from service.models.spec import ModelSpec, TensorSpec
from service.supervisor import COMMANDS, FRONTEND, WORKER, Supervisor
from service.worker.__main__ import main as work

if TYPE_CHECKING:
    from fastqueue import Batch

WIDTH = 16
DEFAULT_FRONTEND = ServeConfig(()).frontend


class Device:
    """The engine and, since nothing differs between them, every instance of it."""

    sample = ()

    def __init__(self, spec: ModelSpec, engine_ms: float) -> None:
        self.spec = spec
        self._seconds = engine_ms / 1e3
        self._width = spec.inputs[0].dims[0]
        self._x = np.empty((max(1, spec.max_batch_size), self._width), np.float32)

    def create_instance(self, index: int) -> Device:
        return Device(self.spec, self._seconds * 1e3)

    def execute(self, batch: Batch) -> None:
        rows = batch.rows
        batch.gather(0, self._x.ctypes.data, self._x.nbytes)
        batch.mark_input_done()
        (address,) = batch.reserve([self._width * 4]) or [0]
        y = np.ctypeslib.as_array((ctypes.c_float * (rows * self._width)).from_address(address)).reshape(
            rows, self._width
        )
        np.multiply(self._x[:rows], 2, out=y)
        y += 1
        time.sleep(self._seconds)
        batch.mark_compute_done()
        batch.complete([(rows, self._width)])

    def close(self) -> None:
        pass


def engines(config: ServeConfig, engine_ms: float, width: int) -> list[Engine]:
    """One device for each model of the configuration, whose files are only names here."""
    return [
        Device(
            ModelSpec(
                name=name,
                version="1",
                platform="timer",
                backend="timer",
                max_batch_size=config.max_batch_size or 1,
                inputs=(TensorSpec("x", "FP32", (width,)),),
                outputs=(TensorSpec("y", "FP32", (width,)),),
                max_batch_wait_us=config.max_batch_wait_us,
                instances=config.instances or 1,
            ),
            engine_ms,
        )
        for name in (Path(path).stem for path in config.model_paths)
    ]


@contextmanager
def running(
    engine_ms: float, max_batch_size: int, width: int = WIDTH, frontend: str = DEFAULT_FRONTEND
) -> Iterator[Server]:
    """The service with one model, ``device``, in processes of its own."""
    words = ["serve", str(engine_ms), str(max_batch_size), str(width), "--frontend", frontend]
    with started([sys.executable, __file__, *words]) as server:
        yield server


def serve(engine_ms: str, max_batch_size: int, width: str, **settings: Any) -> int:
    """Runs the service in this process; returns its exit code."""
    commands = {FRONTEND: COMMANDS[FRONTEND], WORKER: [sys.executable, __file__, "work", engine_ms, width]}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "device.onnx")
        model.touch()
        config = ServeConfig(
            model_paths=(str(model),),
            max_batch_size=max_batch_size,
            **settings,
        )
        config.check()
        return asyncio.run(Supervisor(config, commands).run())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine_ms")
    parser.add_argument("max_batch_size", type=int)
    parser.add_argument("width")
    for flag in ("--grpc-port", "--metrics-port", "--ready-fd"):
        parser.add_argument(flag, type=int, required=True)
    parser.add_argument("--frontend", default=DEFAULT_FRONTEND)
    parser.add_argument("--end-with-parent", action="store_true")
    arguments = vars(parser.parse_args(sys.argv[2:]))
    if arguments.pop("end_with_parent"):
        end_with_parent_process()
    return serve(**arguments)


if __name__ == "__main__" and sys.argv[1] == "work":
    ms, columns = float(sys.argv[2]), int(sys.argv[3])
    os._exit(work(sys.argv[4:], lambda config: engines(config, ms, columns)))
elif __name__ == "__main__":
    sys.exit(main())
