"""One call that Python answers, with the face of a grpc.aio.ServicerContext, as handlers know it.

    events of the call ----> Call: messages, half-close, end ----> handler (a task)
    read, write, status <---- Call <---- handler

The handler runs as a task of its own. The call's end (cancelled, expired, broken off) cancels it.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NoReturn

import grpc

from service.errors import status_message
from service.frontend.native._native import DEFLATE, GZIP, IDENTITY, Rpc

Pairs = list[tuple[bytes, bytes]]

ENCODINGS = {grpc.Compression.Gzip: (b"gzip", GZIP), grpc.Compression.Deflate: (b"deflate", DEFLATE)}


class Aborted(Exception):
    """`abort` was called: the status is set, and the handler is to go no further."""


class Call:
    """A call, and the context that its handler is given."""

    def __init__(self, rpc: Rpc, headers: Pairs, deadline_ns: int | None) -> None:
        self._rpc = rpc
        self._headers = headers
        self._deadline_ns = deadline_ns
        self._messages: deque[tuple[bytes, bool]] = deque()
        self._read_compressed = False
        self._half_closed = False
        self._asked = False
        self._ended = False
        self._changed: asyncio.Event = asyncio.Event()
        self._unwritten = 0
        self._headers_sent = False
        self._encoding = IDENTITY
        self._encoding_header: Pairs = []
        self._next_as_it_is = False
        self._code = grpc.StatusCode.OK
        self._details = ""
        self._trailers: Pairs = []
        self.task: asyncio.Task[None] | None = None

    # What happens to the call.

    def on_message(self, message: bytes, compressed: bool) -> None:
        self._messages.append((message, compressed))
        self._asked = False
        self._changed.set()

    def on_half_closed(self) -> None:
        self._half_closed = True
        self._changed.set()

    def on_written(self) -> None:
        self._unwritten -= 1
        self._changed.set()

    def on_ended(self) -> None:
        self._ended = True
        self._changed.set()
        if self.task is not None:
            self.task.cancel()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # What the handler does.

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF."""
        while not self._messages:
            if self._half_closed or self._ended:
                return grpc.aio.EOF
            if not self._asked:
                self._asked = True
                self._rpc.read()
            await self._wait()
        message, self._read_compressed = self._messages.popleft()
        return message

    def read_compressed(self) -> bool:
        """Whether the message that was read last came compressed."""
        return self._read_compressed

    async def write(self, message: bytes) -> None:
        """Sends a message; returns when it is on its way: who does not read slows the handler."""
        if self._encoding_header and not self._headers_sent:
            self._send_headers([])
        self._headers_sent = True
        encoding = IDENTITY if self._next_as_it_is else self._encoding
        self._next_as_it_is = False
        self._unwritten += 1
        self._rpc.send(message, encoding)
        while self._unwritten and not self._ended:
            await self._wait()

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._send_headers(encoded(metadata))

    def _send_headers(self, pairs: Pairs) -> None:
        self._headers_sent = True
        self._rpc.send_headers(self._encoding_header + pairs)

    def set_compression(self, compression: grpc.Compression) -> None:
        """How messages are compressed, if the client reads that, and where it makes them smaller.

        RuntimeError: the initial metadata, which says so, has been sent.
        """
        if self._headers_sent:
            raise RuntimeError("expected set_compression before the initial metadata and the first message")
        name, encoding = ENCODINGS.get(compression, (b"identity", IDENTITY))
        if encoding == IDENTITY or not accepts(self._headers, name):
            self._encoding, self._encoding_header = IDENTITY, []
        else:
            self._encoding, self._encoding_header = encoding, [(b"grpc-encoding", name)]

    def disable_next_message_compression(self) -> None:
        """The next message is sent as it is."""
        self._next_as_it_is = True

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._trailers = encoded(metadata)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        self._code, self._details = code, details
        self._trailers = encoded(trailing_metadata) or self._trailers
        raise Aborted

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return tuple(decoded(self._headers))

    def time_remaining(self) -> float | None:
        if self._deadline_ns is None:
            return None
        return max(0.0, (self._deadline_ns - time.monotonic_ns()) / 1e9)

    def cancelled(self) -> bool:
        return self._ended

    def done(self) -> bool:
        return self._ended

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    # Its end.

    def finish(self) -> None:
        """Sends the status that was set."""
        number: int = self._code.value[0]
        self._rpc.finish(number, status_message(self._details).encode(), self._trailers)

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details
        self.finish()


def encoded(metadata: Iterable[tuple[str, str | bytes]]) -> Pairs:
    """Metadata as headers: values of names that end in -bin in base64, without padding, as gRPC has it."""
    pairs: Pairs = []
    for name, value in metadata:
        data = value.encode() if isinstance(value, str) else value
        if name.endswith("-bin"):
            data = base64.b64encode(data).rstrip(b"=")
        pairs.append((name.lower().encode(), data))
    return pairs


def accepts(headers: Pairs, encoding: bytes) -> bool:
    """Whether a client reads messages that are compressed like this."""
    said = b",".join(value for name, value in headers if name == b"grpc-accept-encoding")
    return encoding in (word.strip() for word in said.split(b","))


def decoded(headers: Pairs) -> Iterable[tuple[str, str | bytes]]:
    """Headers as metadata. A -bin header may hold several values, separated by commas."""
    for raw_name, raw_value in headers:
        name = raw_name.decode("ascii", "replace")
        if not name.endswith("-bin"):
            yield name, raw_value.decode("utf-8", "replace")
            continue
        for value in raw_value.split(b","):
            yield name, base64.b64decode(value + b"=" * (-len(value) % 4))
