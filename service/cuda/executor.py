"""Models on the streams of the device.

    streams     K of them, all of one group of the former: a model's batch runs on whichever is free, on as
                many at a time as it has instances
    add         contexts for every stream and launch slot; every size runs on each, and is captured, before
                the former knows the model; others serve meanwhile
    remove      after the former has forgotten it; memory is what it was before

What is read by the device straight from the arenas is registered as pinned memory: an input arena's head
while its lane is attached, the output arena's as long as the executor lives.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from service.cuda._launch import Pinned, open_table
from service.cuda.binding import Sample
from service.cuda.driver import DriverError, NoDriver
from service.cuda.model import UNBATCHED, DeviceModel, WarmUp
from service.cuda.stream import DeviceStream, Refuse
from service.errors import StartError
from service.models.spec import numpy_dtype

if TYPE_CHECKING:
    from fastqueue import BatchFormer
    from service.cuda.device import Device


class Executor:
    """Everything on one device; its streams are the former's `group`. Raises NoDriver, DriverError."""

    def __init__(self, device: Device, former: BatchFormer, group: int, refuse: Refuse) -> None:
        try:
            open_table()
        except OSError as error:
            raise NoDriver(str(error)) from error
        self.device = device
        self._former = former
        self._pinned = Pinned()
        self._lock = threading.Lock()
        self._lanes: dict[int, int] = {}
        self._streams: list[DeviceStream] = []
        address, head, _ = former.output_memory()
        self._output = address
        self._pinned.register(address, head)
        for index in range(device.stream_count):
            number = former.add_stream(group)
            self._streams.append(DeviceStream(device, former, index, number, refuse))

    # Lanes.

    def attach_lane(self, number: int) -> None:
        """The lane's input arena may be read by the device from now on."""
        self.device.make_current()
        address, head, _ = self._former.lane_memory(number)
        self._pinned.register(address, head, read_only=True)
        with self._lock:
            self._lanes[number] = address

    def detach_lane(self, number: int) -> None:
        """Nothing reads the lane's arena any more, which is still mapped."""
        with self._lock:
            address = self._lanes.pop(number, None)
        if address is not None and not self.device.broken:
            self.device.make_current()
            self._pinned.unregister(address)

    # Models.

    def add(self, id: int, model: DeviceModel, asked: Sequence[WarmUp] = ()) -> None:
        """Raises StartError (NoRoom among them); then nothing of the model is left here. `asked`: what runs
        in every launch slot besides the model's own sample.
        """
        self.device.make_current()
        try:
            with model.memory.loading():
                for stream in self._streams:
                    stream.add(id, model)
            with model.memory.loading():  # a pool that is made here has what all that left
                self._warm(id, model, asked)
        except BaseException as error:
            if isinstance(error, DriverError) and error.is_sticky:
                self.device.fail(error.code)
            self.remove(id)
            if isinstance(error, StartError) or not isinstance(error, Exception):
                raise
            where = f"model '{model.spec.name}' version {model.spec.version} cannot be served"
            raise StartError(
                f"{where}: it failed when it was tried on {self.device.name}: {error}"
            ) from error

    def _warm(self, id: int, model: DeviceModel, asked: Sequence[WarmUp]) -> None:
        """All streams at once."""
        with self._pinned_copy(sample_batch(model)) as host:
            self._on_all_streams(lambda stream: stream.warm(id, sizes_to_warm(model), host))
        for entry in asked:
            size = next((size for size in model.sizes if size >= entry.size), 0)
            with self._pinned_copy([padded(array, size) for array in entry.arrays]) as host:
                sizes = [size] * entry.count
                self._on_all_streams(partial(DeviceStream.warm, id=id, sizes=sizes, host=host, new=False))

    def _on_all_streams(self, what: Callable[[DeviceStream], None]) -> None:
        with ThreadPoolExecutor(len(self._streams), "warm-up", self.device.make_current) as pool:
            runs = [pool.submit(what, stream) for stream in self._streams]
        for run in runs:
            run.result()

    @contextmanager
    def _pinned_copy(self, arrays: Sequence[Any]) -> Iterator[list[Sample]]:
        """The arrays in memory that the device reads by itself."""
        sizes = [-(-max(1, array.nbytes) // 64) * 64 for array in arrays]
        first = self.device.pinned(sum(sizes) or 64)
        try:
            places = [first + sum(sizes[:index]) for index in range(len(sizes))]
            for place, array in zip(places, arrays, strict=True):
                ctypes.memmove(place, np.ascontiguousarray(array).ctypes.data, array.nbytes)
            yield [Sample(place, array.shape) for place, array in zip(places, arrays, strict=True)]
        finally:
            self.device.free_pinned(first)

    def remove(self, id: int) -> None:
        """Ends what the model has here; all its batches are answered."""
        if self.device.broken:
            return  # nothing can be freed but by the end of the process
        self.device.make_current()
        for stream in self._streams:
            stream.remove(id)

    def launchers(self) -> list[threading.Thread]:
        return [stream.launcher for stream in self._streams]

    def close(self) -> None:
        """The former has closed, and every model was removed."""
        for stream in self._streams:
            stream.stop()
        if self.device.broken:
            return  # nothing can be freed
        self.device.make_current()
        for stream in self._streams:
            stream.close()
        for number in list(self._lanes):
            self.detach_lane(number)
        self._pinned.unregister(self._output)


def sizes_to_warm(model: DeviceModel) -> Sequence[int]:
    """Every size, the largest first; none where shapes are not known and no sample says one."""
    fixed = all(tensor.is_fixed for tensor in model.spec.inputs)
    return tuple(reversed(model.sizes)) if fixed or model.sample else ()


def padded(array: Any, rows: int) -> Any:
    """The array with its last row again until it has as many; as it is where it has no rows (0)."""
    missing = rows - len(array) if rows else 0
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing > 0 else array


def sample_batch(model: DeviceModel) -> list[np.ndarray[Any, Any]]:
    """The largest batch of the model's sample, one array per input; zeros where it has none and dims are
    known.
    """
    spec, rows = model.spec, max(1, model.sizes[-1])
    if model.sample:
        if model.sizes == UNBATCHED:
            return [np.ascontiguousarray(array) for array in model.sample]
        return [np.repeat(np.asarray(array)[:1], rows, axis=0) for array in model.sample]
    if not all(tensor.is_fixed for tensor in spec.inputs):
        return []
    dtypes = ["uint16" if t.datatype == "BF16" else numpy_dtype(t.datatype) for t in spec.inputs]
    batch = (rows,) if spec.batches else ()
    return [np.zeros((*batch, *t.model_dims), d) for t, d in zip(spec.inputs, dtypes, strict=True)]
