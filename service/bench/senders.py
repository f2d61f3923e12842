"""How one request is sent: on a call of its own, or on one of several long-lived streams.

A sender is an async callable for ``service.bench.load``. The request is serialized once, before the run.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from service.bench.load import SendFailed
from service.client import AsyncClient, ClientError, InferStream

_REASON_CHARACTERS = 200


class UnarySender:
    """Each request is a ModelInfer call. ``timeout_s`` is its gRPC deadline."""

    def __init__(self, client: AsyncClient, request: bytes, timeout_s: float) -> None:
        self._infer = client.raw_unary()
        self._request = request
        self._timeout_s = timeout_s

    async def __call__(self) -> None:
        try:
            await self._infer(self._request, self._timeout_s)
        except ClientError as error:
            raise SendFailed(str(error)[:_REASON_CHARACTERS]) from None


class StreamSender:
    """Each request goes to the least busy of ``count`` ModelStreamInfer calls. An async context manager.

    A stream has one deadline for all its life, so ``timeout_s`` is counted here: the answer is given up,
    though the server may still be working on it.
    """

    def __init__(self, client: AsyncClient, request: bytes, timeout_s: float, count: int) -> None:
        self._client = client
        self._request = request
        self._timeout_s = timeout_s
        self._count = count
        self._streams: list[InferStream] = []
        self._pending: list[int] = []

    async def __aenter__(self) -> StreamSender:
        self._streams = [InferStream(self._client) for _ in range(self._count)]
        self._pending = [0] * self._count
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            await stream.__aexit__(kind, error, trace)

    async def __call__(self) -> None:
        chosen = self._pending.index(min(self._pending))
        self._pending[chosen] += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._streams[chosen].infer(self._request)
        except TimeoutError:
            raise SendFailed(f"no answer within {self._timeout_s:g} s") from None
        except ClientError as error:
            raise SendFailed(str(error)[:_REASON_CHARACTERS]) from None
        finally:
            self._pending[chosen] -= 1
