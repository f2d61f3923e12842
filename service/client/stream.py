"""Many requests in flight on one ModelStreamInfer call.

A server may answer a stream's requests in any order (Headrace and Triton keep the order for models that
give one answer per request), so answers are matched by id: each request is sent under a number of this
stream's own.

The id goes *behind* the caller's serialized request. Concatenating two serialized messages merges them,
field by field, the last scalar winning: so a request is serialized once and sent any number of times, each
with its own id.

States of a stream: open, then ended. It ends when the server closes it, when the connection breaks, or by
``close``; whatever is unanswered then fails with the same error, and so does every later request.
"""

from __future__ import annotations

import asyncio
import itertools
from types import TracebackType
from typing import Any

import grpc

from service._pb import inference as pb
from service.client.calls import AsyncClient
from service.client.errors import ClientError, RequestRefused, RpcFailed

_ID_FIELD = b"\x1a"  # field 3, length-delimited


def with_id(request: bytes, request_id: str) -> bytes:
    """A serialized ModelInferRequest with its id replaced. The id has at most 127 bytes."""
    encoded = request_id.encode()
    if len(encoded) > 127:
        raise ValueError(f"a request id of at most 127 bytes was expected, got {len(encoded)}")
    return request + _ID_FIELD + bytes((len(encoded),)) + encoded


class InferStream:
    """One ModelStreamInfer call. An async context manager; ``infer`` may run in many tasks at once."""

    def __init__(self, client: AsyncClient) -> None:
        self._explain = client.explain
        self._call: Any = client.raw_stream()()
        self._ids = (str(number) for number in itertools.count(1))
        self._waiting: dict[str, asyncio.Future[pb.ModelInferResponse]] = {}
        self._writing = asyncio.Lock()
        self._ended: ClientError | None = None
        self._reader = asyncio.create_task(self._read())

    async def __aenter__(self) -> InferStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._call.cancel()
        await self.close()

    async def infer(self, request: bytes) -> pb.ModelInferResponse:
        """Sends a serialized ModelInferRequest, under an id of this stream, and waits for its answer.

        Raises RequestRefused when the server refuses this request, another ClientError when the stream ends.
        """
        if self._ended is not None:
            raise self._ended
        request_id = next(self._ids)
        answer: asyncio.Future[pb.ModelInferResponse] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        try:
            await self._write(with_id(request, request_id))
            return await answer
        finally:
            self._waiting.pop(request_id, None)

    async def close(self) -> None:
        """Says that no more requests come; waits until the server has answered all and ended the stream."""
        try:
            async with self._writing:
                await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # it has ended already; the reader knows why
        await self._reader

    async def _write(self, body: bytes) -> None:
        # gRPC allows one write at a time on a call.
        try:
            async with self._writing:
                await self._call.write(body)
        except (grpc.RpcError, asyncio.InvalidStateError):
            await self._reader  # it learns the reason, which a failed write does not carry
            raise self._ended or ClientError("the stream has ended") from None

    async def _read(self) -> None:
        try:
            async for raw in self._call:
                self._settle(pb.ModelStreamInferResponse.FromString(raw))
        except grpc.RpcError as error:
            self._ended = self._explain(error)
        except asyncio.CancelledError:
            self._ended = RpcFailed("CANCELLED", "the stream was cancelled here")
        else:
            self._ended = RpcFailed("UNAVAILABLE", "the server has ended the stream")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._ended)

    def _settle(self, message: pb.ModelStreamInferResponse) -> None:
        request_id = message.infer_response.id
        if message.error_message and request_id not in self._waiting:
            # A server that names no request in its error answers in order: it means the oldest.
            request_id = next(iter(self._waiting), "")
        answer = self._waiting.get(request_id)
        if answer is None or answer.done():
            return
        if message.error_message:
            answer.set_exception(RequestRefused(message.error_message))
        else:
            answer.set_result(message.infer_response)
