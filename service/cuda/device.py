"""The device of this process: its primary context, its health, and the lock on loads.

A process has one device at most, made by the first model that runs on one:

    choose(index)     before that: which one it will be; NO_DEVICE: none
    the_device()      makes it, or returns it; raises NoDriver
    close_device()    at the end, when nothing runs on it

The primary context is retained as long as the device lives, and is current in every thread that calls the
driver (`make_current`); other devices get no context. Everything runs on streams of our own, none of which
waits for the legacy default stream (CU_STREAM_NON_BLOCKING).

After a sticky error nothing runs on the context any more. It is said in one place (`fail`), which tells
whoever the worker has put there (`on_broken`), once: the worker ends, and another one takes its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from service.cuda.driver import NoDriver, api, check, name_of, result_name, text_of
from service.cuda.memory import Meter, ModelMemory
from service.log import say

DEFAULT_STREAMS = 4
NO_DEVICE = -1  # models that can do without one run on the CPU


class Device:
    """Device number `index` of this process, with room for `stream_count` streams. Raises NoDriver."""

    def __init__(self, index: int = 0, stream_count: int = DEFAULT_STREAMS) -> None:
        driver = api()
        count = int(check(driver.cuDeviceGetCount(), "counting devices"))
        if not 0 <= index < count:
            expected = f"expected a number from 0 to {count - 1}" if count else "this machine has none"
            raise NoDriver(f"there is no device {index}: {expected}; see nvidia-smi -L")
        self.index = index
        self.stream_count = stream_count
        self.broken = ""
        self.on_broken: Callable[[str], None] = say
        self._failing = threading.Lock()
        self._handle = check(driver.cuDeviceGet(index), f"opening device {index}")
        self.name = f"cuda:{index} {name_of(self._handle)}"
        self.context = check(driver.cuDevicePrimaryCtxRetain(self._handle), f"opening {self.name}")
        self.make_current()
        self.total_bytes = int(check(driver.cuDeviceTotalMem(self._handle), "asking for its memory"))
        bus_id = text_of(check(driver.cuDeviceGetPCIBusId(32, self._handle), "asking for its bus id"))
        self._meter = Meter(bus_id)
        self._loading = threading.RLock()

    def make_current(self) -> None:
        """Makes the context current in this thread, which then may call the driver."""
        check(api().cuCtxSetCurrent(self.context), f"making {self.name}'s context current")

    def new_stream(self) -> int:
        """A stream that waits for no other. The context is current."""
        flag = api().CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(check(api().cuStreamCreate(int(flag)), "making a stream"))

    def new_event(self) -> int:
        """An event that a thread can wait for asleep. The context is current."""
        flags = api().CUevent_flags
        what = int(flags.CU_EVENT_BLOCKING_SYNC) | int(flags.CU_EVENT_DISABLE_TIMING)
        return int(check(api().cuEventCreate(what), "making an event"))

    def pinned(self, size: int) -> int:
        """The address of `size` bytes that the device reads and writes by itself. The context is current."""
        return int(check(api().cuMemHostAlloc(size, 0), "taking pinned memory"))

    def free_pinned(self, address: int) -> None:
        check(api().cuMemFreeHost(address), "freeing pinned memory")

    def model_memory(self, name: str, limit: int = 0) -> ModelMemory:
        """The account of a model that is about to be loaded; `limit` as in its config."""
        return ModelMemory(self.index, name, limit, self._meter, self._loading)

    def used_bytes(self) -> int:
        """Bytes of the device that are in use, by whomever."""
        return self._meter.read().used

    def fail(self, code: int) -> None:
        """A sticky error was met, with this CUresult. Only the first one is told."""
        with self._failing:
            if self.broken:
                return
            self.broken = (
                f"{self.name} is lost to this process: {result_name(code)} ({code}); "
                "the worker is ended and started again"
            )
        self.on_broken(self.broken)

    def close(self) -> None:
        """Nothing runs on it, and everything on it was closed. After a sticky error nothing can be freed."""
        self._meter.close()
        if not self.broken:
            check(api().cuDevicePrimaryCtxRelease(self._handle), f"releasing {self.name}'s context")


_lock = threading.Lock()
_chosen: dict[str, Any] = {}
_made: list[Device] = []  # one at most


def choose(index: int = 0, stream_count: int = DEFAULT_STREAMS) -> None:
    """Which device `the_device` will make, and with how many streams."""
    with _lock:
        _chosen.update(index=index, stream_count=stream_count)


def chosen() -> int:
    """The number of the device that was chosen; NO_DEVICE: none is to be made."""
    with _lock:
        return int(_chosen.get("index", 0))


def the_device() -> Device:
    """The device of this process; its context is current in this thread, unless it is lost. NoDriver."""
    with _lock:
        if _chosen.get("index") == NO_DEVICE:
            raise NoDriver("no device is to be used here (--device cpu)")
        if not _made:
            _made.append(Device(**_chosen))
        device = _made[0]
    if not device.broken:
        device.make_current()
    return device


def close_device() -> None:
    """Closes the device of this process, where there is one; another may be made afterwards."""
    with _lock:
        if _made:
            _made.pop().close()
