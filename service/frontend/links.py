"""The front end's side of a link: one conversation with one incarnation of a worker
(`service.worker.worker`).

    1. open lanes, say hello with their descriptors 2. the worker says ready, with its page, its output
    arena and its models: they can be used from now on 3. nothing more is said; when the link ends the
    worker is gone, its lanes are closed, and whoever waited for it
       is told UNAVAILABLE

A worker that says what makes no sense is treated as gone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Protocol

from fastqueue import QueueError, WorkerPage
from service.codec.errors import RequestError
from service.control import AsyncChannel, Message, ProtocolError
from service.frontend.catalog import Catalog
from service.models.spec import ModelSpec

FDS_PER_LANE = 3
NO_LANE = 0xFFFFFFFF  # of a model whose worker is gone


class Lanes(Protocol):
    """The front-end threads, seen from here: each has a lane to every worker."""

    def open_lanes(self) -> tuple[int, list[int]]:
        """A lane of each thread to a new worker: its number, and three descriptors per lane, which stay
        theirs.
        """

    def attach_lanes(self, lane: int, page_fd: int, output_fd: int) -> None:
        """The worker behind `lane` is ready. Raises QueueError or OSError when its memory is not what it
        should be.
        """

    def close_lanes(self, lane: int) -> None:
        """The worker behind `lane` is gone: whoever waits for it is told."""

    def set_models(self, models: list[tuple[int, int, ModelSpec]]) -> None:
        """What is served from now on: (model id, lane, spec) each."""


class Links:
    """The links to all workers. `changed` is called after every change of what can be used."""

    def __init__(self, lanes: Lanes, catalog: Catalog, changed: Callable[[], None]) -> None:
        self._lanes = lanes
        self._catalog = catalog
        self._changed = changed
        self._lane_of: dict[int, int] = {}

    async def serve(self, worker: int, sock: socket.socket) -> str:
        """One link, from hello to its end. A worker has one link at a time. Returns what was wrong, or ""."""
        channel = AsyncChannel(sock)
        why = ""
        lane, fds = self._lanes.open_lanes()
        try:
            if await channel.send("hello", {"lanes": len(fds) // FDS_PER_LANE}, fds):
                ready = await channel.receive()
                if ready is not None:
                    self._on_ready(worker, lane, ready)
                    await channel.receive()
        except (ProtocolError, QueueError, RequestError, OSError) as error:
            why = str(error)
        finally:
            channel.close()
            self._on_end(worker, lane)
        return why

    def _on_ready(self, worker: int, lane: int, ready: Message) -> None:
        fds = ready.take_fds()
        try:
            if ready.kind != "ready" or len(fds) != 2:
                raise ProtocolError(f"expected ready with two descriptors, got {ready!r}")
            self._lanes.attach_lanes(lane, *fds)
            page = WorkerPage(fds[0])
        finally:
            for fd in fds:
                os.close(fd)
        models = [(row["id"], ModelSpec.from_json(row["spec"])) for row in ready.body["models"]]
        self._catalog.worker_ready(worker, models, ready.body["devices"], page)
        self._lane_of[worker] = lane
        entries = self._catalog.entries
        self._lanes.set_models([(e.id, self._lane_of.get(e.worker, NO_LANE), e.spec) for e in entries])
        self._changed()

    def _on_end(self, worker: int, lane: int) -> None:
        self._lanes.close_lanes(lane)
        if self._lane_of.get(worker) == lane:
            del self._lane_of[worker]
            self._catalog.worker_gone(worker)
            self._changed()
