"""The front end's side of a link: one conversation with one incarnation of a worker
(`service.worker.links` has the words).

    1. open lanes, say hello with their descriptors
    2. the worker says ready, with its page, its output arena and its models: they can be used from now on
    3. whenever it says that it serves other models, they take the place of those before, and it is told so:
       from then on nothing is sent to what it does not serve any more
    4. loads and unloads are asked of it, and it says what became of each
    5. the link ends: the worker is gone, its lanes are closed, and whoever waited for it is told UNAVAILABLE
    6. its process ends, which the pidfd that came with ready tells: only now is the input memory of what it
       had used again, since a device may have been reading it

A worker that says what makes no sense is treated as gone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

from fastqueue import QueueError, WorkerPage
from service.codec.errors import RequestError
from service.control import AsyncChannel, Message, ProtocolError
from service.errors import NOT_READY, Code, ServiceError, Unavailable, error_of
from service.frontend.catalog import Catalog, Served
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
        """The worker behind `lane` is gone: whoever waits for it is told. What its requests had of the input
        arena stays as it is.
        """

    def free_lanes(self, lane: int) -> None:
        """The process behind a closed lane has ended: nothing reads that memory any more."""

    def set_models(self, models: list[tuple[int, int, ModelSpec]], known: list[tuple[str, str, str]]) -> None:
        """What is served from now on: (model id, lane, spec) each; and (name, version, why) of each version
        that is known and is not.
        """


class Link:
    """A conversation that has come to ready. `calls` are what was asked and is not done."""

    def __init__(self, worker: int, channel: AsyncChannel) -> None:
        self.worker = worker
        self.channel = channel
        self.process_fd = -1  # readable when the worker's process has ended; -1: none is waited for
        self.calls: dict[int, asyncio.Future[None]] = {}


class Links:
    """The links to all workers. `changed` is called after every change of what can be used."""

    def __init__(self, lanes: Lanes, catalog: Catalog, changed: Callable[[], None]) -> None:
        self._lanes = lanes
        self._catalog = catalog
        self._changed = changed
        self._lane_of: dict[int, int] = {}
        self._links: dict[int, Link] = {}
        self._ending: set[int] = set()  # pidfds of workers that are gone and whose processes are not yet
        self._numbers = itertools.count(1)

    # What is asked of a worker.

    def current(self, worker: int) -> Link:
        """The link to a worker. Raises Unavailable while there is none."""
        link = self._links.get(worker)
        if link is None:
            raise Unavailable(NOT_READY)
        return link

    async def ask(self, link: Link, kind: str, body: dict[str, Any]) -> None:
        """Has a worker do something; returns when it is done. Raises ServiceError when it was not."""
        number = next(self._numbers)
        done = link.calls[number] = asyncio.get_running_loop().create_future()
        try:
            if self._links.get(link.worker) is not link:
                raise gone(kind)
            await link.channel.send(kind, {"call": number, **body})
            await done
        finally:
            link.calls.pop(number, None)

    # A link's life.

    async def serve(self, worker: int, sock: socket.socket) -> str:
        """One link, from hello to its end. A worker has one link at a time. Returns what was wrong, or ""."""
        link = Link(worker, AsyncChannel(sock))
        channel = link.channel
        why = ""
        lane, fds = self._lanes.open_lanes()
        try:
            if await channel.send("hello", {"lanes": len(fds) // FDS_PER_LANE}, fds):
                ready = await channel.receive()
                if ready is not None:
                    self._on_ready(link, lane, ready)
                    await self._listen(link)
        except (ProtocolError, QueueError, RequestError, OSError) as error:
            why = str(error)
        finally:
            self._on_end(link, lane)
            channel.close()
        return why

    async def _listen(self, link: Link) -> None:
        while (message := await link.channel.receive()) is not None:
            body = message.body
            if message.kind == "models":
                self._catalog.worker_serves(link.worker, models_of(body))
                self._swap()
                self._changed()
                await link.channel.send("swapped", {"swap": body["swap"]})
            elif message.kind == "state":
                self._catalog.worker_tells(link.worker, body["model"], body["versions"])
                self._swap()
                self._changed()
            elif message.kind == "done":
                finish(link.calls.get(body["call"]), body["code"], body["message"])
            else:
                raise ProtocolError(f"expected models, state or done, got {message!r}")

    def _on_ready(self, link: Link, lane: int, ready: Message) -> None:
        fds = ready.take_fds()
        try:
            if ready.kind != "ready" or len(fds) not in (2, 3):
                raise ProtocolError(f"expected ready with two or three descriptors, got {ready!r}")
            if len(fds) == 3:
                link.process_fd = fds.pop()
            self._lanes.attach_lanes(lane, *fds)
            page = WorkerPage(fds[0])
        finally:
            for fd in fds:
                os.close(fd)
        body = ready.body
        self._catalog.worker_ready(link.worker, models_of(body), body["states"], body["devices"], page)
        self._lane_of[link.worker] = lane
        self._swap()
        self._links[link.worker] = link
        self._changed()

    def _swap(self) -> None:
        """Makes what the catalog has what the front-end threads send to."""
        entries = self._catalog.entries
        models = [(e.id, self._lane_of.get(e.worker, NO_LANE), e.spec) for e in entries]
        self._lanes.set_models(models, self._catalog.not_served())

    def _on_end(self, link: Link, lane: int) -> None:
        """Whoever waits is told last: who then asks whether the service is ready must not hear that it is."""
        if self._links.get(link.worker) is link:
            del self._links[link.worker]
        for done in link.calls.values():
            if not done.done():
                done.set_exception(gone("do"))
        if self._lane_of.get(link.worker) == lane:
            del self._lane_of[link.worker]
            self._catalog.worker_gone(link.worker)
            self._changed()
        self._lanes.close_lanes(lane)
        if link.process_fd < 0:
            self._lanes.free_lanes(lane)
            return
        self._ending.add(link.process_fd)
        loop = asyncio.get_running_loop()
        loop.add_reader(link.process_fd, self._on_process_end, lane, link.process_fd)

    def _on_process_end(self, lane: int, process_fd: int) -> None:
        self._forget(process_fd)
        self._lanes.free_lanes(lane)

    def _forget(self, process_fd: int) -> None:
        asyncio.get_running_loop().remove_reader(process_fd)
        os.close(process_fd)
        self._ending.discard(process_fd)

    def close(self) -> None:
        """Waits for no process any more; every link has ended, and the front-end threads are about to."""
        for process_fd in list(self._ending):
            self._forget(process_fd)


def models_of(body: dict[str, Any]) -> list[Served]:
    """Each model that a worker says it serves."""
    return [
        Served(row["id"], ModelSpec.from_json(row["spec"]), row.get("device"), row.get("bytes", 0))
        for row in body["models"]
    ]


def finish(done: asyncio.Future[None] | None, code: int, text: str) -> None:
    """Tells whoever asked, unless they have left."""
    if done is None or done.done():
        return
    if code == Code.OK:
        done.set_result(None)
    else:
        done.set_exception(error_of(code, text))


def gone(what: str) -> ServiceError:
    """Why what was asked has come to nothing: the worker's end."""
    return Unavailable(f"the worker ended before it could {what} this; it is starting again, try later")
