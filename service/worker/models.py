"""The models of one batch former: each with its id, its streams, their launchers, and its engine.

    add       the former knows it, its launchers wait; nobody sends to it yet
    remove    after every front end has stopped sending to it: waits until all that was sent is answered, then
              ends the launchers and frees everything

A model that runs on a device has no streams of its own: it is added to the executor, whose streams belong to
the device (`service.cuda`).

Ids are never used again, streams and the former's rows are. A stream's number may be given to the next model
only when its launcher has left; so streams come and go under one lock, which is never held while a model
works.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from fastqueue import BatchFormer, Level, QueueError
from service.cuda.model import DeviceModel
from service.engines.base import AnyEngine, Instance
from service.errors import StartError
from service.models.labels import MAX_LABEL_BYTES
from service.worker.devices import DEVICE_GROUP, HEAD_START_NS, Devices
from service.worker.launcher import run_stream
from service.worker.warmup import start_instances
from service.worker.watch import Watched

MAX_INSTANCES = 64  # of all models that are served
MAX_MODELS = 64  # that are served; each version counts
OWN_PROCESSES = "python"  # the backend whose engine ends what hangs itself


@dataclass(eq=False)
class LoadedModel:
    """A version of a model with its id, and an instance, a stream and a launcher for each of its streams."""

    id: int
    engine: AnyEngine
    instances: list[Instance] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    launchers: list[threading.Thread] = field(default_factory=list)


def check_room(served: Iterable[AnyEngine]) -> None:
    """Raises StartError when these are more than one worker serves."""
    engines = list(served)
    if len(engines) > MAX_MODELS:
        raise StartError(f"{len(engines)} models and versions in all; a worker has room for {MAX_MODELS}")
    instances = sum(engine.spec.instances for engine in engines if not isinstance(engine, DeviceModel))
    if instances > MAX_INSTANCES:
        raise StartError(
            f"{instances} instances in all; a worker has room for {MAX_INSTANCES}: lower --instances"
        )
    labels = sum(len(label) for e in engines for tensor in e.spec.outputs for label in tensor.labels)
    if labels > MAX_LABEL_BYTES:
        what = f"{labels} bytes of labels in all; a worker has room for {MAX_LABEL_BYTES}"
        raise StartError(f"{what}: serve fewer models with labels")


class Models:
    """`first_id`: no id below it is given."""

    def __init__(self, former: BatchFormer, devices: Devices, first_id: int = 1) -> None:
        self._former = former
        self._devices = devices
        self._lock = threading.Lock()
        self.next_id = first_id
        self._loaded: set[LoadedModel] = set()

    def add(self, engine: AnyEngine) -> LoadedModel:
        """Takes the engine over, and warms it up. Raises StartError or what its instances raise, and then has
        closed it.
        """
        with self._lock:
            model = LoadedModel(self.next_id, engine)
            self.next_id += 1
        try:
            if isinstance(engine, DeviceModel):
                self._devices.add(model.id, engine)
            else:
                model.instances = start_instances(engine)
            self._register(model)
        except BaseException as error:
            self.free(model)
            if isinstance(error, QueueError):
                raise StartError(f"{error}; try again when what is being unloaded is gone") from error
            raise
        return model

    def _register(self, model: LoadedModel) -> None:
        spec = model.engine.spec
        on_device = isinstance(model.engine, DeviceModel)
        self._former.add_model(
            model.id,
            group=DEVICE_GROUP if on_device else model.id,
            head_start_ns=HEAD_START_NS if on_device else 0,
            max_batch=spec.max_batch_size or 1,
            batched=spec.max_batch_size > 0,
            element_bytes=[tensor.element_bytes for tensor in spec.inputs],
            output_row_bytes=[tensor.row_bytes for tensor in spec.outputs],
            max_wait_ns=spec.max_batch_wait_us * 1000,
            max_streams=spec.instances,
            levels=[
                Level(level.timeout_us * 1000, level.delay, level.max_queue_size)
                for level in spec.scheduling.levels
            ],
            default_level=spec.scheduling.default_level - 1,
        )
        try:
            with self._lock:
                self._loaded.add(model)
                for instance in model.instances:
                    self._launch(model, instance)
        except QueueError:
            self._unregister(model)
            raise

    def _launch(self, model: LoadedModel, instance: Instance) -> None:
        stream, name = self._former.add_stream(model.id), model.engine.spec.name
        model.streams.append(stream)
        thread = threading.Thread(
            target=run_stream,
            args=(self._former, stream, instance, name),
            name=f"stream {stream}: {name}",
            daemon=True,
        )
        thread.start()
        model.launchers.append(thread)

    def _unregister(self, model: LoadedModel) -> None:
        self._former.remove_model(model.id)
        with self._lock:
            for stream in model.streams:
                self._former.remove_stream(stream)
            for thread in model.launchers:
                thread.join()
            self._loaded.discard(model)

    def remove(self, model: LoadedModel) -> None:
        """Waits for its answers, then frees it. Nobody sends to it any more."""
        self._unregister(model)
        self.free(model)

    def launchers(self) -> list[threading.Thread]:
        """The threads of all models."""
        with self._lock:
            return [thread for model in self._loaded for thread in model.launchers]

    def watched(self) -> dict[int, Watched]:
        """What may run, by id: what is served, and what drains."""
        found = {}
        with self._lock:
            loaded = list(self._loaded)
        for model in loaded:
            spec = model.engine.spec
            limit_s = None if spec.backend == OWN_PROCESSES else spec.scheduling.execution_timeout_s
            found[model.id] = Watched(f"model '{spec.name}' version {spec.version}", limit_s)
        return found

    def free(self, model: LoadedModel) -> None:
        """Closes the instances and the engine of a model that runs nowhere."""
        if isinstance(model.engine, DeviceModel):
            self._devices.remove(model.id)
        for instance in model.instances:
            instance.close()
        model.engine.close()
