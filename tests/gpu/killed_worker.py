"""A real worker process with a model on the device. It kills itself in the batch whose number stands in the
file `kill` beside the model's (1: the next one), when the batch's copies to the device were just issued.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from device_models import AffineModel
from device_processes import worker_main
from ptx import PtxCompute


def affine(folder: Path) -> AffineModel:
    class DeadlyCompute(PtxCompute):
        numbers = itertools.count(1)

        def enqueue(self, *arguments) -> None:
            kill = folder / "kill"
            if kill.exists() and next(self.numbers) == int(kill.read_text()):
                kill.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            super().enqueue(*arguments)

    return AffineModel(DeadlyCompute, dims=(-1,), longest=1 << 22)


worker_main(affine)
