"""The models of one device between their links and their engines.

    link threads      one per link: attaches the front end's lanes, says what it serves, detaches at the end
    former thread     native: takes requests from all lanes and closes batches
    launcher threads  one per stream: see launcher.py
    watch thread      ends the process when a batch hangs: see watch.py

On a CPU each model has `instances` streams of its own, so that a slow model does not stop the others: a
model is a group of streams to the former. Model ids count from 1 and are never used again in a worker's
life.

What is said on a link (`service.control`), whose end is the death of whoever was at the other end:

    front end   hello {lanes} + [lane memfd, input arena memfd, eventfd] per lane
    worker      ready {models: [{id, spec}], devices} + [worker page memfd, output arena memfd]

When a front end is gone the worker drops what it had pending and waits for what is launched; its models, its
counters and other links stay.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastqueue import BatchFormer, Level, QueueError
from service.control import Channel, Message, ProtocolError
from service.engines.base import Engine, Instance
from service.errors import StartError
from service.log import say
from service.models.spec import ModelSpec
from service.worker.launcher import run_stream
from service.worker.warmup import start_instances
from service.worker.watch import Watch, Watched

MAX_STREAMS = 64
FDS_PER_LANE = 3
OWN_PROCESSES = "python"  # the backend whose engine ends what hangs itself


@dataclass
class LoadedModel:
    """A model with its id, and an instance for each of its streams."""

    id: int
    engine: Engine
    instances: list[Instance]
    streams: list[int] = field(default_factory=list)


class Worker:
    """Everything of a worker but its process. Takes the engines over and closes them in `stop`."""

    def __init__(self, engines: Sequence[Engine], output_arena_mb: int, spill_mb: int = 0) -> None:
        wanted = sum(engine.spec.instances for engine in engines)
        if wanted > MAX_STREAMS:
            raise StartError(
                f"{wanted} instances in all; a worker has room for {MAX_STREAMS}: lower --instances"
            )
        self.devices = ["cpu"]
        self._former = BatchFormer(output_arena_mb, spill_mb=spill_mb)
        self._threads: list[threading.Thread] = []
        self._links: dict[Channel, threading.Thread] = {}
        self._lock = threading.Lock()  # guards _links; never taken on the way of a request
        self._watch = Watch(self._former.watch, self._watched)
        self._models = [self._add(number, engine) for number, engine in enumerate(engines, 1)]

    def _add(self, number: int, engine: Engine) -> LoadedModel:
        spec = engine.spec
        self._former.add_model(
            number,
            group=number,
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
        return LoadedModel(number, engine, start_instances(engine))

    @property
    def specs(self) -> list[ModelSpec]:
        """The models, in the order of their ids."""
        return [model.engine.spec for model in self._models]

    def start(self) -> None:
        """Starts the former and the launchers."""
        self._start_thread("former", self._former.run)
        self._watch.start()
        for model in self._models:
            for instance in model.instances:
                stream = self._former.add_stream(model.id)
                model.streams.append(stream)
                name = model.engine.spec.name
                self._start_thread(
                    f"stream {stream}: {name}", run_stream, self._former, stream, instance, name
                )

    def _watched(self) -> dict[int, Watched]:
        found = {}
        for model in self._models:
            spec = model.engine.spec
            limit_s = None if spec.backend == OWN_PROCESSES else spec.scheduling.execution_timeout_s
            found[model.id] = Watched(f"model '{spec.name}' version {spec.version}", limit_s)
        return found

    def _start_thread(self, name: str, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def open_link(self, channel: Channel) -> None:
        """Serves a link on a thread of its own; the channel is the worker's to close."""
        thread = threading.Thread(target=self._serve_link, args=(channel,), name="link", daemon=True)
        with self._lock:
            self._links[channel] = thread
            thread.start()

    def _serve_link(self, channel: Channel) -> None:
        lanes: list[int] = []
        try:
            if (hello := channel.receive()) is not None:
                self._attach(hello, lanes)
                channel.send("ready", self._ready_body(), [self._former.page_fd, self._former.output_fd])
                while channel.receive() is not None:
                    pass  # nothing more is said: what matters is the end
        except (ProtocolError, QueueError, OSError) as error:
            say(f"worker: a link was closed: {error}")
        finally:
            for lane in lanes:
                self._former.detach_lane(lane)
            with self._lock:
                del self._links[channel]
            channel.close()

    def _attach(self, hello: Message, lanes: list[int]) -> None:
        """Attaches the lanes of a hello, and notes each in `lanes`. The former keeps what it needs of the
        fds.
        """
        fds = hello.take_fds()
        try:
            if hello.kind != "hello" or len(fds) != hello.body.get("lanes", 0) * FDS_PER_LANE:
                raise ProtocolError(
                    f"expected a hello with {FDS_PER_LANE} descriptors per lane, got {hello!r}"
                )
            for i in range(0, len(fds), FDS_PER_LANE):
                lanes.append(self._former.attach_lane(*fds[i : i + FDS_PER_LANE]))
        finally:
            for fd in fds:
                os.close(fd)

    def _ready_body(self) -> dict[str, Any]:
        models = [{"id": model.id, "spec": model.engine.spec.to_json()} for model in self._models]
        return {"models": models, "devices": self.devices}

    def close_links(self) -> list[threading.Thread]:
        """Ends every link. Its front end sees that at once; the threads end when what is launched has
        ended.
        """
        with self._lock:
            for channel in self._links:
                channel.shutdown()
            return list(self._links.values())

    def stop(self) -> None:
        """Ends the links, waits for what is launched, then closes every engine."""
        for thread in self.close_links():
            thread.join()
        self._former.close()
        self._watch.stop()
        for thread in self._threads:
            thread.join()
        for model in self._models:
            for instance in model.instances:
                instance.close()
            model.engine.close()
