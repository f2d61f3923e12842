"""A whole service as threads of one process: for tests and debugging, not a way to serve.

    with running([engine], config) as service:
        channel = grpc.insecure_channel(service.address)

The front end and the worker are the real ones, over real lanes and a real link; only the supervisor is
missing. So `cut_link` and `start_worker` stand for a worker's death and its next incarnation, and `drain` for
SIGTERM. A worker's successor gets what it has left (`keep`). Engines are objects, so a test can give one
that waits on an event or records its batches. They belong to the worker, which closes them; a worker that
is started again needs new ones, or ones that do not mind.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from service.config import ServeConfig
from service.control import Channel, socket_pair
from service.engines.base import AnyEngine
from service.frontend.addresses import join_address
from service.frontend.process import FrontEnd
from service.models.repository import Found
from service.worker.__main__ import nothing_kept, open_worker
from service.worker.library import open_model
from service.worker.worker import Worker

T = TypeVar("T")
LIMIT_S = 60.0  # every wait here is bounded: a hang is an error


class InProcess:
    """A running service. Its methods may be called from any thread but its own."""

    def __init__(self, config: ServeConfig, open_one: Callable[[Found], AnyEngine] = open_model) -> None:
        self._config = config
        self._open_one = open_one
        self._kept = nothing_kept()
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-models-")
        os.mkdir(self.folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="front end", daemon=True)
        self._worker: Worker | None = None
        self._ready = threading.Event()
        self._not_ready = threading.Event()
        self._not_ready.set()

    def start(self) -> None:
        """Starts the front end. It is not ready before it has a worker."""
        self._thread.start()
        self._run(self._start())

    async def _start(self) -> None:
        self.frontend = FrontEnd(self._config, self._on_readiness, folder=self._folder.name)
        self.grpc_port, self.metrics_port = await self.frontend.start()

    @property
    def address(self) -> str:
        """Of the gRPC server."""
        return join_address(self._config.host, self.grpc_port)

    @property
    def metrics_url(self) -> str:
        return f"http://{join_address(self._config.host, self.metrics_port)}"

    @property
    def in_flight(self) -> int:
        """Requests whose clients wait."""
        return self.frontend.in_flight

    def start_worker(
        self, engines: Sequence[AnyEngine], wait: bool = True, process_fd: int | None = None
    ) -> None:
        """Starts a worker, and returns when the service is ready (at once without `wait`). Under explicit
        model control `engines` is empty, and the worker loads what the config says, or what was wanted
        last. `process_fd`: the pidfd of the process that is to be taken for the worker's.
        """
        self._worker = open_worker(
            self._config,
            self._kept,
            self._keep,
            lambda _: engines,
            self._open_one,
            process_fd=process_fd,
        )
        self._worker.start()
        ours, theirs = socket_pair()
        self._worker.open_link(Channel(theirs))
        self._loop.call_soon_threadsafe(self.frontend.open_link, 0, ours)
        if wait and not self._ready.wait(LIMIT_S):
            raise TimeoutError("the service did not become ready")

    def _keep(self, what: dict[str, Any]) -> None:
        self._kept = what

    @property
    def folder(self) -> str:
        """Where the files lie that came with loads."""
        return os.path.join(self._folder.name, "0")

    def cut_link(self) -> None:
        """What the front end sees of a worker's death; returns when it has seen it. The worker lives on."""
        if self._worker is None:
            return
        self._worker.close_links()
        if not self._not_ready.wait(LIMIT_S):
            raise TimeoutError("the front end did not notice the end of the link")

    def stop_worker(self) -> None:
        """Ends the worker, when it has one; what it has launched is waited for."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            worker.stop()

    def call_soon(self, what: Callable[[], object]) -> None:
        """Has it called on the front end's loop, which waits for it."""
        self._loop.call_soon_threadsafe(what)

    def drain(self) -> int:
        """What SIGTERM does; returns when all is finished. The number of requests that did not make it."""
        return self._run(self.frontend.drain())

    def begin_drain(self) -> None:
        """The same without the wait: new calls are refused when this returns."""
        asyncio.run_coroutine_threadsafe(self.frontend.drain(), self._loop)
        if not self._not_ready.wait(LIMIT_S):
            raise TimeoutError("the service did not begin to drain")

    def stop(self) -> None:
        """Ends everything at once."""
        self._run(self.frontend.stop())
        self.stop_worker()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()
        self._folder.cleanup()

    def _on_readiness(self, ready: bool) -> None:
        seen, unseen = (self._ready, self._not_ready) if ready else (self._not_ready, self._ready)
        unseen.clear()
        seen.set()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(LIMIT_S)


@contextmanager
def running(
    engines: Sequence[AnyEngine],
    config: ServeConfig | None = None,
    open_one: Callable[[Found], AnyEngine] = open_model,
) -> Iterator[InProcess]:
    """A service with these engines, ready, and ended afterwards. Ports are free ones unless the config
    says. Under explicit model control there are no engines, and `open_one` loads a version.
    """
    config = config or ServeConfig((), grpc_port=0, metrics_port=0, arena_mb=16, output_arena_mb=16)
    service = InProcess(config, open_one)
    service.start()
    try:
        if engines or config.explicit:
            service.start_worker(engines)
        yield service
    finally:
        service.stop()
