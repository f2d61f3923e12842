"""The worker's device, made by the first model that runs on one, and the memory that it reads straight.

    executor    makes the device, its streams and their launchers, once; or returns them
    add, remove a model
    attached    a lane of a front end is there: its input arena is pinned, now or when the device is made
    detached    nothing reads the lane's arena any more, and it is about to be unmapped

A batch that a stream cannot launch is answered as a launcher on a CPU answers it (`launcher.py`). When the
device is lost to this process, the process ends, with a sentence: what was in flight is answered UNAVAILABLE
by the front ends, and the supervisor starts another worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from service.cuda.model import DeviceModel, WarmUp
from service.errors import StartError
from service.log import say
from service.worker.configured import configured_warm_ups
from service.worker.launcher import answer_failure
from service.worker.watch import end_process

if TYPE_CHECKING:
    from fastqueue import BatchFormer
    from service.cuda.executor import Executor

CPU = "cpu"
DEVICE_GROUP = (1 << 32) - 1  # of the device's streams; other groups are ids of models, which count from 1
HEAD_START_NS = 300_000  # a busy stream's second slot takes what is ready when the first will end so soon


class Devices:
    """What a worker has beside its CPU: at most one device. `names` is what readiness tells of it."""

    def __init__(self, former: BatchFormer, end: Callable[[str], None] = end_process) -> None:
        self._former = former
        self._end = end
        self._lock = threading.Lock()
        self._lanes: set[int] = set()
        self._executor: Executor | None = None
        self.names = [CPU]

    def executor(self) -> Executor:
        """Of the device of this process. Raises StartError where there is none."""
        with self._lock:
            if self._executor is None:
                self._executor = self._made()
                for lane in self._lanes:
                    self._pin(lane)
            return self._executor

    def _made(self) -> Executor:
        from service.cuda.device import the_device
        from service.cuda.driver import DriverError, NoDriver
        from service.cuda.executor import Executor

        try:
            device = the_device()
            device.on_broken = self._end
            executor = Executor(device, self._former, DEVICE_GROUP, answer_failure)
        except (NoDriver, DriverError) as error:
            raise StartError(str(error)) from error
        self.names[:] = [device.name]
        return executor

    def add(self, id: int, model: DeviceModel) -> None:
        """Has the model ready on the device, warmed as its config asks. Raises StartError; nothing of it is
        there then.
        """
        asked = [
            WarmUp(_repeated(entry.rows, entry.size, model.spec.batches), entry.size, entry.count)
            for entry in configured_warm_ups(model.spec)
        ]
        self.executor().add(id, model, asked)

    def remove(self, id: int) -> None:
        """Ends what a model has on the device; its batches are answered."""
        if self._executor is not None:
            self._executor.remove(id)

    def attached(self, lane: int) -> None:
        with self._lock:
            self._lanes.add(lane)
            if self._executor is not None:
                self._pin(lane)

    def _pin(self, lane: int) -> None:
        """An arena that cannot be pinned is copied from all the same, more slowly."""
        from service.cuda.driver import DriverError

        assert self._executor is not None
        try:
            self._executor.attach_lane(lane)
        except DriverError as error:
            say(f"warning: an input arena is not pinned, and copies from it are slower: {error}")

    def detached(self, lane: int) -> None:
        with self._lock:
            self._lanes.discard(lane)
            if self._executor is not None:
                self._executor.detach_lane(lane)

    def launchers(self) -> list[threading.Thread]:
        with self._lock:
            return self._executor.launchers() if self._executor is not None else []

    def close(self) -> None:
        """The former has closed, and its launchers have left; every model was removed."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            from service.cuda.device import close_device

            executor.close()
            close_device()


def _repeated(rows: Sequence[Any], size: int, batched: bool) -> list[Any]:
    return [np.repeat(row, size, axis=0) if batched else row for row in rows]
