"""The front end as a whole, and the process around it.

    FrontEnd    catalog, state, front-end thread, gRPC server, metrics port: everything but the process
    Process     does what the control socket says (`service.supervisor` has the words)

The supervisor is told the truth about readiness as it changes: `ready` with the models when every worker is
there, `not_ready` when one is not any more.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastqueue import QueueError
from service.codec.errors import RequestError
from service.config import ServeConfig
from service.control import AsyncChannel, Message, ProtocolError
from service.errors import EXIT_BAD_START, EXIT_FAILED, EXIT_OK, StartError
from service.frontend.addresses import why_not_bound
from service.frontend.catalog import Catalog
from service.frontend.links import Links
from service.frontend.repository import Repository
from service.frontend.rpcs import Rpcs
from service.frontend.server import Server
from service.frontend.state import State
from service.installation import why_no_native
from service.log import say
from service.process import connections_allowed, control_fd, die_with_parent
from service.telemetry.http import MetricsPort
from service.telemetry.metrics import Metrics, Snapshot


class FrontEnd:
    """A front end on the running loop. `on_readiness` is called with every change of it, `on_link_end` with
    each link that ended and what was wrong with it ("": nothing but that it ended). `folder` is for files
    that clients send with a model ("": they may not).
    """

    def __init__(
        self,
        config: ServeConfig,
        on_readiness: Callable[[bool], None],
        on_link_end: Callable[[int, str], None] = lambda link, why: None,
        folder: str = "",
    ) -> None:
        self._config = config
        self._on_readiness = on_readiness
        self._on_link_end = on_link_end
        self._ready = False  # as was said last: other threads learn of it when all is in place
        self.catalog = Catalog(len(config.devices))
        self.state = State(self.catalog)
        connections, self._probes = connections_allowed()
        self.server = server_of(config, self.state, connections)
        self._links = Links(self.server.lanes, self.catalog, self._changed)
        repository = Repository(config, self.catalog, self._links, folder, lambda: self.state.draining)
        self._rpcs = Rpcs(self.catalog, config.server_name, repository, self.state)
        self._tasks: set[asyncio.Task[None]] = set()
        self._metrics_port: MetricsPort | None = None

    async def start(self) -> tuple[int, int]:
        """Listens on both ports; returns them. Raises StartError when one cannot be had."""
        config = self._config
        grpc_port = await self.server.start(self._rpcs, config.host, config.grpc_port)
        metrics = Metrics(self._snapshot)
        try:
            self._metrics_port = MetricsPort(
                config.host, config.metrics_port, metrics, lambda: self._ready, self._probes
            )
        except OSError as error:
            why = why_not_bound(config.host, config.metrics_port, "--metrics-port") or str(error)
            raise StartError(why) from error
        return grpc_port, self._metrics_port.port

    @property
    def in_flight(self) -> int:
        """Requests whose clients wait. May be read from any thread."""
        return self.server.in_flight

    def open_link(self, worker: int, sock: socket.socket, link: int = 0) -> None:
        """Serves the link to a worker until it ends. `link` is its number, for `on_link_end`."""
        task = asyncio.create_task(self._serve_link(worker, sock, link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_link(self, worker: int, sock: socket.socket, link: int) -> None:
        try:
            why = await self._links.serve(worker, sock)
        except (OSError, QueueError, RequestError) as error:  # not even a lane for it
            why = str(error)
        self._on_link_end(link, why)

    def rejected(self) -> Counter[str]:
        """Requests that were refused here, by reason. May be called from any thread."""
        counts = self.state.rejected.copy()  # with the reasons that have not occurred
        counts.update(self.server.rejected())
        return counts

    def models(self) -> list[dict[str, Any]]:
        """What the ready line says of each model."""
        specs = [entry.spec for entry in self.catalog.entries]
        return [
            {"name": spec.name, "version": spec.version, "max_batch_size": spec.max_batch_size}
            for spec in specs
        ]

    async def drain(self) -> int:
        """Not ready from now on; finishes what is accepted. The number of requests that did not make it."""
        self.state.draining = True
        self._readiness_changed()
        return await self.server.drain(self._config.drain_timeout_s)

    async def stop(self) -> None:
        """Stops at once, with whatever is in flight."""
        await self.server.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._links.close()
        if self._metrics_port is not None:
            self._metrics_port.close()
        self.server.close()

    def _changed(self) -> None:
        if self.catalog.started:
            self.server.set_started()
        self._readiness_changed()

    def _readiness_changed(self) -> None:
        ready = self.state.ready
        if ready != self._ready:
            self._ready = ready
            self.server.readiness_changed()
            self._on_readiness(ready)

    def _snapshot(self) -> Snapshot:
        entries = self.catalog.entries
        stats = [(entry.spec.name, entry.spec.version, entry.stats()) for entry in entries]
        models = tuple((name, version, found) for name, version, found in stats if found is not None)
        return Snapshot(self._ready, self.in_flight, models, dict(self.rejected()))


def server_of(config: ServeConfig, state: State, max_connections: int) -> Server:
    """The front end that was asked for; the other one is not imported. Raises StartError."""
    if config.frontend == "native":
        try:
            from service.frontend.native.server import NativeServer
        except ImportError as error:
            why = why_no_native() or str(error)
            raise StartError(f"--frontend native: {why}; or use --frontend grpcio") from error
        return NativeServer(config, state, max_connections)
    from service.frontend.grpcio.server import GrpcioServer

    return GrpcioServer(config, state, max_connections)


class Process:
    """The front-end process's side of its control socket."""

    def __init__(self, control: AsyncChannel, config: ServeConfig, folder: str = "") -> None:
        self._control = control
        self._frontend = FrontEnd(config, self._on_readiness, self._on_link_end, folder)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> int:
        """Listens, then does what it is told until the supervisor is gone. Returns the exit code.

        A control socket that makes no sense ends the process: its successor gets another one.
        """
        try:
            grpc_port, metrics_port = await self._frontend.start()
        except StartError as error:
            await self._control.send("failed", {"message": str(error)})
            return EXIT_BAD_START
        await self._control.send("listening", {"grpc_port": grpc_port, "metrics_port": metrics_port})
        try:
            while (message := await self._control.receive()) is not None:
                self._do(message)
        except ProtocolError as error:
            say(f"the front end cannot go on: {error}")
            return EXIT_FAILED
        return EXIT_OK

    def _do(self, message: Message) -> None:
        if message.kind == "link":
            (fd,) = message.take_fds()
            body = message.body
            self._frontend.open_link(body["worker"], socket.socket(fileno=fd), body["link"])
        elif message.kind == "drain":
            self._spawn(self._drain())

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_readiness(self, ready: bool) -> None:
        if ready:
            body = {"models": self._frontend.models(), "devices": self._frontend.catalog.devices}
            self._spawn(self._control.send("ready", body))
        else:
            self._spawn(self._control.send("not_ready"))

    def _on_link_end(self, link: int, why: str) -> None:
        self._spawn(self._control.send("link_ended", {"link": link, "why": why}))

    async def _drain(self) -> None:
        unfinished = await self._frontend.drain()
        await self._control.send("drained", {"unfinished": unfinished})


async def run(fd: int) -> int:
    """The life of a front-end process whose control socket is `fd`. Returns its exit code."""
    control = AsyncChannel.from_fd(fd)
    configure = await control.receive()
    if configure is None:
        return EXIT_OK
    config = ServeConfig.from_json(configure.body["config"])
    try:
        process = Process(control, config, configure.body.get("folder", ""))
    except StartError as error:
        await control.send("failed", {"message": str(error)})
        return EXIT_BAD_START
    return await process.run()


def main(arguments: Sequence[str]) -> None:
    """Runs the process to its end."""
    die_with_parent()
    exit_code = asyncio.run(run(control_fd(arguments)))
    sys.stderr.flush()
    os._exit(exit_code)  # the supervisor is gone or has let go: nobody waits for a tidy end
