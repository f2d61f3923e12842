"""fastqueue: requests from other processes become batches, without a lock and without Python on the way.

A `FrontLane` is one front-end thread's end of the channel to one worker, an `InputArena` its payload
memory. A `BatchFormer` is the worker's side: it takes requests from all lanes, closes batches when a launch
slot is free, and hands each as a `Batch` to the launcher that asks for it. Everything in between is C; the
headers (`get_include()`) can be used without Python. This package knows nothing of gRPC, models or CUDA.
"""

from __future__ import annotations

from pathlib import Path

from fastqueue._front import FrontLane, InputArena
from fastqueue._page import WorkerPage, next_step
from fastqueue._worker import MAX_LEVELS, Batch, BatchFormer, Level, Running
from fastqueue.errors import QueueError

__all__ = [
    "MAX_LEVELS",
    "Batch",
    "BatchFormer",
    "FrontLane",
    "InputArena",
    "Level",
    "QueueError",
    "Running",
    "WorkerPage",
    "get_include",
    "next_step",
]


def get_include() -> str:
    """The directory of the C headers (fq_lane.h, fq_control.h, ...), for a compiler's -I."""
    return str(Path(__file__).with_name("include"))
