"""ModelStreamInfer: many requests on one stream, answered in the order in which they came.

    reader   read a message, submit it, queue its entry          pauses while WINDOW entries are queued
    writer   wait for the oldest entry's answer, write it, drop the entry

An entry stays queued until its answer is written, so the window bounds what waits for its turn as well as
what waits for a worker. It holds its request's bytes until it is answered: an error must name the request's
id. (The bytes of all requests in flight are no more than the input arena, which has a copy of each.)

How a stream ends:

    the client half-closes      all entries are answered and written, then OK
    the server drains           reading stops, entries are answered and written, then UNAVAILABLE
    triton_grpc_error: true     (metadata) the first failed request ends the stream with its status
    the client cancels          gRPC cancels the writer; every entry that waits is cancelled
"""

from __future__ import annotations

import asyncio
from collections import deque

import grpc

from service.errors import Code
from service.frontend._dispatch import stream_error
from service.frontend.grpcio.calls import Answer, Calls, Ticket
from service.frontend.grpcio.status import Context, set_shutting_down, set_status, status_of
from service.frontend.grpcio.unary import deadline_ns
from service.frontend.state import State
from service.log import say_exception

WINDOW = 64


class Entry:
    """One request of a stream, and the sink of its answer."""

    __slots__ = ("error", "payload", "request", "stream", "ticket")

    def __init__(self, stream: Stream, request: bytes) -> None:
        self.stream = stream
        self.request = request
        self.ticket: Ticket | None = None
        self.payload: bytes | None = None  # the message to write; None: not answered yet
        self.error: tuple[int, str] | None = None  # of a failed request: its code, and what the message says

    def set_result(self, answer: Answer) -> None:
        _, code, payload = answer
        self.ticket = None
        if code:
            self.fail(code, payload.decode())
        else:
            self._finish(payload)

    def fail(self, code: int, message: str) -> None:
        self.error = code, message
        self._finish(stream_error(self.request, message))

    def _finish(self, payload: bytes) -> None:
        self.payload = payload
        self.request = b""
        self.stream.entry_finished(self)


class Stream:
    """One call of ModelStreamInfer."""

    def __init__(self, calls: Calls, state: State, context: Context) -> None:
        self._calls = calls
        self._state = state
        self._context = context
        self._entries: deque[Entry] = deque()
        self._half_closed = False
        self._reading_ended = False
        self._deadline_ns = deadline_ns(context)
        self._fail_fast = wants_status(context)
        self._reader: asyncio.Task[None] | None = None
        self._writer_waits: asyncio.Future[None] | None = None
        self._reader_waits: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """The handler: returns when the stream is over, with the status set."""
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(self._on_reading_ended)
        try:
            failed = await self._write()
        finally:
            self._reader.cancel()
            for entry in self._entries:
                if entry.ticket is not None:
                    self._calls.cancel(entry.ticket)
        if failed is not None:
            set_status(self._context, *failed)
        elif self._state.draining and not self._half_closed:
            set_shutting_down(self._context)
        elif not self._half_closed:
            set_status(self._context, Code.INTERNAL, "the stream could not be read any further")

    def drain(self) -> None:
        """The server ends: no more requests are read, those that were are answered."""
        if self._reader is not None:
            self._reader.cancel()

    def _on_reading_ended(self, reader: asyncio.Task[None]) -> None:
        self._reading_ended = True
        if not reader.cancelled() and (error := reader.exception()) is not None:
            say_exception(error)
        _wake(self._writer_waits)

    async def _read(self) -> None:
        read = self._context.read
        while (message := await read()) is not grpc.aio.EOF:
            entry = Entry(self, message)
            self._entries.append(entry)
            self._submit(entry)
            while len(self._entries) >= WINDOW:
                self._reader_waits = asyncio.get_running_loop().create_future()
                await self._reader_waits
        self._half_closed = True

    def _submit(self, entry: Entry) -> None:
        try:
            self._state.check_started()
            entry.ticket = self._calls.submit(entry.request, entry, self._deadline_ns, True)
        except Exception as error:
            code, message = status_of(error)
            self._state.count_rejected_code(code)
            entry.fail(code, message)

    async def _write(self) -> tuple[int, str] | None:
        """Writes answers until the stream is over; the error that ended it, if one did."""
        entries, write = self._entries, self._context.write
        while True:
            while not entries or (payload := entries[0].payload) is None:
                if not entries and self._reading_ended:
                    return None
                self._writer_waits = asyncio.get_running_loop().create_future()
                await self._writer_waits
            if self._fail_fast and entries[0].error is not None:
                return entries[0].error
            await write(payload)
            entries.popleft()
            _wake(self._reader_waits)

    def entry_finished(self, entry: Entry) -> None:
        """An entry has its answer; the writer cares when it is the oldest."""
        if self._entries[0] is entry:
            _wake(self._writer_waits)


def wants_status(context: Context) -> bool:
    """Whether the client asked for a failed request to end the stream with its status, as Triton's do."""
    metadata = context.invocation_metadata() or ()
    return any(key == "triton_grpc_error" and value == "true" for key, value in metadata)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
