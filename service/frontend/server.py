"""What a front end is to the process around it: two implementations have this face (`grpcio`, `native`)."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from service.frontend.links import Lanes
from service.frontend.rpcs import Rpcs


class Server(Protocol):
    """A gRPC server on the running loop, with its front-end threads."""

    @property
    def lanes(self) -> Lanes:
        """The front-end threads, for the links to the workers."""

    @property
    def in_flight(self) -> int:
        """Requests whose clients wait. May be read from any thread."""

    @property
    def calls(self) -> int:
        """ModelInfer and ModelStreamInfer calls in progress."""

    @property
    def outstanding(self) -> int:
        """Requests that hold a slot."""

    @property
    def arena_used(self) -> int:
        """Bytes of the input arenas and of what lies behind them."""

    def check(self) -> int:
        """The number of a broken invariant of the front-end threads, 0 when all hold. For tests."""

    def rejected(self) -> Counter[str]:
        """Requests that were refused and that `State` does not count, by reason. From any thread."""

    async def start(self, rpcs: Rpcs, host: str, port: int) -> int:
        """Listens, on the configuration's Unix-domain socket too, and answers the other RPCs with these.

        The port, which is the system's choice when 0 was asked for. Raises StartError.
        """

    def set_started(self) -> None:
        """Every worker has been ready once: from now on a model may be called unknown."""

    def readiness_changed(self) -> None:
        """What health says may have changed."""

    async def drain(self, timeout_s: float) -> int:
        """Finishes what is accepted, then stops listening. The number of requests that did not make it in
        time.

        `State.draining` is set before: new calls are answered UNAVAILABLE until all others are finished.
        """

    async def stop(self) -> None:
        """Stops at once; what is in flight is cancelled."""

    def close(self) -> None:
        """The last word, when the links are closed too."""
