"""A stream of the device: its launcher, its scratch, and two launch slots.

    launcher    this thread, in Python: takes batches from the former and puts them on the stream; it never
                waits for the device, but for outputs whose size depends on data
    completer   a thread in C: waits for each batch's last event, and answers

Batches use the launch slots in turn. The former gives a stream no more than two at a time, and the completer
ends them in order, so a slot is free when its turn comes. A batch that could not be launched leaves its turn
to the next.

All models share the stream's scratch, and each slot's I/O range: what is on one stream runs in order.
Whatever is put on the stream, by the launcher or by somebody who loads a model, is put there in one piece,
under the stream's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from service.cuda._launch import Completer, LaunchSlot
from service.cuda.binding import Binding, Sample, bind, io_bytes
from service.cuda.driver import STICKY, DriverError, api, check
from service.cuda.memory import MB, AddressRange
from service.cuda.model import DeviceModel, Place
from service.log import say

if TYPE_CHECKING:
    from fastqueue import Batch, BatchFormer
    from service.cuda.device import Device

SLOTS = 2
STAGING_BYTES = 1 * MB  # of a launch slot: what is gathered there is small

Refuse = Callable[["Batch", Exception, str], None]


class _Slot:
    """Room for one batch: the I/O range of every model, pinned staging, and what launches from it."""

    def __init__(self, device: Device, completer: Completer, stream: int) -> None:
        self.io = AddressRange(device.index, device.total_bytes)
        self._staging = device.pinned(STAGING_BYTES)
        self.launch = LaunchSlot(completer, stream, (self._staging, STAGING_BYTES))
        self.bindings: dict[int, Binding] = {}

    def close(self, device: Device) -> None:
        self.launch.close()
        device.free_pinned(self._staging)
        self.io.close()


class DeviceStream:
    """Stream number `index` of the device; `number` is the former's. `refuse` answers a batch that could not
    be launched, with what was raised and the model's name.
    """

    def __init__(self, device: Device, former: BatchFormer, index: int, number: int, refuse: Refuse) -> None:
        self.index = index
        self.number = number
        self._device = device
        self._former = former
        self._refuse = refuse
        self._lock = threading.Lock()
        self._turn = 0
        self._models: dict[int, DeviceModel] = {}
        self._stream = device.new_stream()
        self._waiting = device.new_event()
        self.scratch = AddressRange(device.index, device.total_bytes)
        self._completer = Completer(int(device.context), device.fail, STICKY)
        self._slots = [_Slot(device, self._completer, self._stream) for _ in range(SLOTS)]
        self._thread = threading.Thread(target=self._run, name=f"device stream {index}", daemon=True)
        self._thread.start()

    # Batches.

    def _run(self) -> None:
        self._device.make_current()
        while (batch := self._former.next_batch(self.number)) is not None:
            if batch.check():
                self._launch(batch)

    def _launch(self, batch: Batch) -> None:
        slot = self._slots[self._turn]
        binding = slot.bindings[batch.model]
        try:
            reserved = binding.reserve(batch)  # may wait; a load must not wait with it
            with self._lock, self._settled():
                binding.issue(batch, slot.launch, reserved)
        except Exception as error:
            if isinstance(error, DriverError) and error.is_sticky:
                self._device.fail(error.code)
            self._refuse(batch, error, self._models[batch.model].spec.name)
        else:
            self._turn = (self._turn + 1) % SLOTS

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """What fails in here goes on when the stream has done what was put there: that may read memory which
        is freed then.
        """
        try:
            yield
        except Exception:
            with suppress(DriverError):  # the first error is the one to tell
                self._wait()
            raise

    def _wait(self) -> None:
        """Returns when everything that is on the stream now has ended, without burning a core."""
        check(api().cuEventRecord(self._waiting, self._stream), "recording an event")
        check(api().cuEventSynchronize(self._waiting), "waiting for a stream")

    # Models.

    def add(self, id: int, model: DeviceModel) -> None:
        """Opens the model's contexts here. Raises DriverError, or what the engine raises; then `remove`."""
        with self._lock:
            self._models[id] = model
            self.scratch.grow(model.scratch_bytes)
            for slot in self._slots:
                slot.io.grow(io_bytes(model))
                place = Place(self._stream, self.scratch.address, model.scratch_bytes)
                context = model.open_context(place)
                slot.bindings[id] = bind(model, context, self._stream, slot.io.address, self._wait)

    def warm(self, id: int, sizes: Sequence[int], host: Sequence[Sample], new: bool = True) -> None:
        """Runs the model in both slots at each size; `host` as in `Binding.warm`. `new`: these sizes have not
        run yet, and are captured where that can be done. The stream's batches go on in between. Raises
        DriverError, or what the engine raises.
        """
        for slot in self._slots:
            binding = slot.bindings[id]
            for size in sizes:
                with self._lock:
                    self._wait()  # beside the two batches that a stream may have there is no third
                    with self._settled():
                        binding.warm(size, host)
                    self._wait()
                if new and self._models[id].capturable:
                    self._capture(id, binding, size)

    def _capture(self, id: int, binding: Binding, size: int) -> None:
        try:
            with self._lock:
                binding.capture(size)
                self._wait()
        except DriverError as error:
            if error.is_sticky:
                raise
            name = self._models[id].spec.name
            say(f"model '{name}' runs without a graph for {size} rows on stream {self.index}: {error}")

    def remove(self, id: int) -> None:
        """Ends what a model has here; its batches are answered, and nobody sends more."""
        with self._lock:
            for slot in self._slots:
                if (binding := slot.bindings.pop(id, None)) is not None:
                    binding.close()
            self._wait()  # what its pool gave is given back in the order of the stream
            self._models.pop(id, None)
            rest = self._models.values()
            self.scratch.shrink(max((model.scratch_bytes for model in rest), default=0))
            for slot in self._slots:
                slot.io.shrink(max((io_bytes(model) for model in rest), default=0))

    @property
    def launcher(self) -> threading.Thread:
        return self._thread

    def stop(self) -> None:
        """Ends its threads, when all that was launched is answered; the former has closed."""
        self._thread.join()
        self._completer.close()

    def close(self) -> None:
        """It was stopped, and its models were removed."""
        for slot in self._slots:
            slot.close(self._device)
        self.scratch.close()
        check(api().cuEventDestroy(self._waiting), "ending an event")
        check(api().cuStreamDestroy(self._stream), "ending a stream")
