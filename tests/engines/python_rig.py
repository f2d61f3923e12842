"""Python models on fastqueue's own batches: a model's source, a queue in this process, an engine with its
child processes.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from engine_queue import ModelQueue

from fastqueue import Batch
from service.engines.python import PythonInstance, open_python
from service.models.spec import ModelSpec, TensorSpec
from service.worker.launcher import run_batch

AFFINE = """
    class Model:
        def execute(self, inputs):
            return {"y": 2 * inputs["x"] + 1}
"""
BUSY = """
    import os
    class Model:
        def initialize(self, config):
            self.directory = config["directory"]
        def execute(self, inputs):
            open(os.path.join(self.directory, "spins"), "w").close()
            while not os.path.exists(os.path.join(self.directory, "stop")):
                pass
            return {"y": inputs["x"]}
"""
X = (TensorSpec("x", "FP32", (4,)),)
Y = (TensorSpec("y", "FP32", (4,)),)


def alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def rows(count: int, first: float = 0.0, width: int = 4) -> np.ndarray:
    return np.arange(first, first + count * width, dtype=np.float32).reshape(count, width)


def write_model(folder: Path, source: str) -> str:
    path = folder / "model.py"
    path.write_text(textwrap.dedent(source))
    return str(path)


class Rig(ModelQueue):
    """A model with its instances, each on a stream. Close it."""

    def __init__(
        self,
        folder: Path,
        source: str,
        inputs: Sequence[TensorSpec] = X,
        outputs: Sequence[TensorSpec] = Y,
        *,
        max_batch_size: int = 8,
        instances: int = 1,
        **parameters: str,
    ) -> None:
        spec = ModelSpec(
            "m", "1", "python", "python", max_batch_size, tuple(inputs), tuple(outputs), instances=instances
        )
        super().__init__(spec, 16, instances)
        self.engine = open_python(write_model(folder, source), self.spec, parameters)
        self.instances = [self.engine.create_instance(i) for i in range(instances)]

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_) -> None:
        for instance in self.instances:
            instance.close()
        self.engine.close()

    def run(self) -> list[int]:
        """Executes batches until none is left, as a launcher does: their rows."""
        sizes = []
        self.former.step()
        while (taken := self._take()) is not None:
            batch, instance = taken
            assert batch.check()
            sizes.append(batch.rows)
            run_batch(batch, instance, "m")
            self.former.step()
        return sizes

    def _take(self) -> tuple[Batch, PythonInstance] | None:
        for stream, instance in zip(self.streams, self.instances, strict=True):
            if (batch := self.former.try_batch(stream)) is not None:
                return batch, instance
        return None

    def infer(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs of one request, alone in its batch."""
        slot = self.submit(*inputs)
        self.run()
        return self.answers()[slot]

    def failure(self, *inputs: np.ndarray) -> tuple[int, str]:
        """Status code and message of one request, which fails."""
        self.submit(*inputs)
        self.run()
        return self.next_failure()

    def next_failure(self) -> tuple[int, str]:
        done = self.lane.poll()
        assert done is not None and done.status != 0
        return done.status, done.message

    def pid(self, index: int = 0) -> int:
        """The process of an instance, waited for."""
        process = self.instances[index]._keeper.wait_up()
        assert process is not None
        return process.pid


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
