"""The models of one device between their links and their engines.

    link threads      one per link: attaches the front end's lanes, says what is served, detaches: links.py
    former thread     native: takes requests from all lanes and closes batches
    launcher threads  one per stream: launcher.py; which model has which: models.py; a device's: devices.py
    watch thread      ends the process when a batch hangs: watch.py
    control threads   one per model that is being loaded or unloaded: control.py

On a CPU each model has `instances` streams of its own, so that a slow model does not stop the others: a
model is a group of streams to the former. Model ids are never used again in a service's life: a worker that
is started again begins behind those of the one before it.

When a front end is gone the worker drops what it had pending and waits for what is launched; its models, its
counters and other links stay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastqueue import BatchFormer
from service.control import Channel, Message
from service.engines.base import AnyEngine
from service.models.repository import Override
from service.models.spec import ModelSpec
from service.worker.control import Control, Keep
from service.worker.devices import Devices
from service.worker.library import Library
from service.worker.links import Link, Links
from service.worker.models import Models
from service.worker.watch import Watch, end_process


def _forget(_: dict[str, Any]) -> None:
    pass


class Worker:
    """Everything of a worker but its process. Takes the engines over and closes them in `stop`.

    `library`: what clients may load and unload; None: nothing. `first_id`: of its models. `keep` is told what
    whoever comes after this worker has to know: the models that are wanted, and the next id. `end` ends this
    process with a sentence; `process_fd` is its pidfd, where it is the worker's own.
    """

    def __init__(
        self,
        engines: Sequence[AnyEngine],
        output_arena_mb: int,
        spill_mb: int = 0,
        *,
        library: Library | None = None,
        first_id: int = 1,
        keep: Keep = _forget,
        end: Callable[[str], None] = end_process,
        process_fd: int | None = None,
    ) -> None:
        self._former = BatchFormer(output_arena_mb, spill_mb=spill_mb)
        self.devices = Devices(self._former, end)
        self._former_thread = threading.Thread(target=self._former.run, name="former", daemon=True)
        self._links = Links(self._former, self.devices, self._on_call, process_fd)
        self._models = Models(self._former, self.devices, first_id)
        self._watch = Watch(self._former.watch, self._models.watched, end)
        self._control = Control(self._models, self._links, library, keep)
        if engines:
            with self._stopped_by_errors():
                self._control.adopt(engines)

    def open_wanted(self, wanted: Mapping[str, Override], strict: bool) -> None:
        """Loads models by name, before the first link: `Control.open_wanted`. After a StartError the worker
        is stopped.
        """
        with self._stopped_by_errors():
            self._control.open_wanted(wanted, strict)

    @contextmanager
    def _stopped_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.stop()
            raise

    @property
    def specs(self) -> list[ModelSpec]:
        """What is served, in the order of their ids."""
        return [model.engine.spec for model in self._links.table]

    def start(self) -> None:
        """Starts the former. Launchers have been waiting for it since their model was added."""
        self._former_thread.start()
        self._watch.start()

    def open_link(self, channel: Channel) -> None:
        """Serves a link on a thread of its own; the channel is the worker's to close."""
        self._links.open(channel)

    def close_links(self) -> list[threading.Thread]:
        """Ends every link; the threads end when what is launched has ended."""
        return self._links.close()

    @property
    def link_count(self) -> int:
        """Links that have not come to their end."""
        return len(self._links)

    def _on_call(self, link: Link, message: Message) -> None:
        body = message.body

        def done(code: int, text: str) -> None:
            link.send("done", {"call": body["call"], "code": int(code), "message": text})

        if message.kind == "load":
            self._control.load(body["model"], Override(body["config"], body["folder"]), done)
        else:
            self._control.unload(body["model"], done)

    def stop(self) -> None:
        """Ends the links, waits for what is launched, then closes every engine."""
        for thread in self.close_links():
            thread.join()
        self._control.stop()
        launchers = self._models.launchers() + self.devices.launchers()
        self._former.close()
        self._watch.stop()
        for thread in [*launchers, *([self._former_thread] if self._former_thread.is_alive() else [])]:
            thread.join()
        self._control.close()
        self.devices.close()
