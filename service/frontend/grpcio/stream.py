"""ModelStreamInfer: many requests on one stream, answered in the order in which they came.

    reader   read a message, submit it                           pauses while too much is open, see below
    writer   wait until an answer may be written, write it

An entry is open from the time its request is read until its answer is written. An ordered entry's answer
may be written when those of all ordered entries before it may; an unordered one's (its request has the
parameter `headrace_unordered` = true) as soon as it is there. A request that is refused unread has its turn.
What may be written is written in the order in which that came about. So ordered answers keep their order
among themselves, whatever is between them.

What is open is bounded, whether its answers wait for a worker, for their turn or for a client that reads:

    WINDOW            entries
    READ_AHEAD_BYTES  of requests that are not answered; and of finished answers, plus what the others will
                      come to if they are as large as the latest one. Above either nothing more is read,
                      but one request always is
    a share           of the answers' memory (see `admission`): an answer that finds it used up is replaced
                      by an error, in its turn. One that is written next, with nobody writing, needs none: the
                      others lie here because of it

An entry keeps what an error must name, the request's id, and not its tensors: those lie in the arena.

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

from service.codec.errors import RequestError
from service.errors import Code
from service.frontend._dispatch import request_names, stream_error
from service.frontend.grpcio.admission import Admission
from service.frontend.grpcio.calls import Answer, Calls, Ticket
from service.frontend.grpcio.status import Context, set_shutting_down, set_status, status_of
from service.frontend.grpcio.unary import deadline_ns
from service.frontend.state import State
from service.log import say_exception

WINDOW = 64
READ_AHEAD_BYTES = 64 << 20  # a full window of answers of 1 MB each


class Entry:
    """One request of a stream, and the sink of its answer."""

    __slots__ = ("error", "payload", "request", "size", "stream", "ticket", "unordered")

    def __init__(self, stream: Stream, request: bytes) -> None:
        self.stream = stream
        self.request = request
        self.size = len(request)
        self.ticket: Ticket | None = None
        self.unordered = False
        self.payload: bytes | None = None  # the message to write; None: not answered yet
        self.error: tuple[int, str] | None = None  # when the message says that the request failed: how

    def set_result(self, answer: Answer) -> None:
        _, code, payload, _ = answer
        self.ticket = None
        if code:
            self.fail(code, payload.decode())
            return
        try:
            self.stream.check_share(self)
        except RequestError as error:
            self.stream.count_rejected(error)
            self.fail(error.code, error.message)
        else:
            self._finish(payload)

    def fail(self, code: int, message: str) -> None:
        self.error = code, message
        self._finish(stream_error(self.request, message))

    def _finish(self, payload: bytes) -> None:
        self.payload = payload
        self.stream.entry_finished(self, payload)
        self.request = b""


class Stream:
    """One call of ModelStreamInfer."""

    def __init__(self, calls: Calls, admission: Admission, state: State, context: Context) -> None:
        self._calls = calls
        self._admission = admission
        self._state = state
        self._context = context
        self._open: set[Entry] = set()
        self._turns: deque[Entry] = deque()  # ordered entries whose answers may not be written yet
        self._writable: deque[Entry] = deque()
        self._held = 0  # bytes of finished answers that are not written
        self._unfinished = 0
        self._kept = 0  # bytes of their requests
        self._latest = 0  # bytes of the answer that was finished last
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
            self._drop_all()
        if failed is not None:
            set_status(self._context, *failed)
        elif self._state.draining and not self._half_closed:
            set_shutting_down(self._context)
        elif not self._half_closed:
            set_status(self._context, Code.INTERNAL, "the stream could not be read any further")

    def _drop_all(self) -> None:
        for entry in self._open:
            if entry.ticket is not None:
                self._calls.cancel(entry.ticket)
        self._admission.drop(self._held)
        self._held = 0

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
            self._open.add(entry)
            self._unfinished += 1
            self._kept += len(message)
            self._submit(entry)
            del message, entry  # while the next one is waited for, nobody needs them here
            while self._is_full():
                self._reader_waits = asyncio.get_running_loop().create_future()
                await self._reader_waits
        self._half_closed = True

    def _is_full(self) -> bool:
        """Whether no request is to be read for now."""
        if len(self._open) >= WINDOW:
            return True
        expected = self._held + self._unfinished * self._latest
        return bool(self._open) and max(self._kept, expected) >= READ_AHEAD_BYTES

    def _submit(self, entry: Entry) -> None:
        try:
            self._state.check_started()
            self._admission.check_answers()
            entry.ticket = self._calls.submit(entry.request, entry, self._deadline_ns, True)
        except Exception as error:
            code, message = status_of(error)
            self._state.count_rejected_code(code)
            self._turns.append(entry)
            entry.fail(code, message)
            return
        entry.request = request_names(entry.request)
        entry.unordered = self._calls.unordered
        if not entry.unordered:
            self._turns.append(entry)

    async def _write(self) -> tuple[int, str] | None:
        """Writes answers until the stream is over; the error that ended it, if one did."""
        write = self._context.write
        while True:
            while not self._writable:
                if not self._open and self._reading_ended:
                    return None
                self._writer_waits = asyncio.get_running_loop().create_future()
                await self._writer_waits
            entry = self._writable.popleft()
            if self._fail_fast and entry.error is not None:
                return entry.error
            payload = entry.payload
            assert payload is not None
            await write(payload)
            self._written(entry, len(payload))
            del entry, payload

    def _written(self, entry: Entry, size: int) -> None:
        self._open.remove(entry)
        self._held -= size
        self._admission.drop(size)
        _wake(self._reader_waits)

    def _is_next(self, entry: Entry) -> bool:
        """Whether the writer waits for this entry's answer."""
        idle = self._writer_waits is not None and not self._writer_waits.done() and not self._writable
        return idle and (entry.unordered or self._turns[0] is entry)

    def count_rejected(self, error: RequestError) -> None:
        self._state.count_rejected_code(error.code)

    def check_share(self, entry: Entry) -> None:
        """Raises RequestError when the answer of this entry may not lie here."""
        if self._held >= self._admission.stream_share and not self._is_next(entry):
            raise self._admission.refusal(
                f"{self._held} bytes of answers wait on this stream for a client that does not read them; a "
                f"stream may have a quarter of --answer-mb, {self._admission.stream_share >> 20} MB"
            )
        self._admission.check_answers()

    def entry_finished(self, entry: Entry, payload: bytes) -> None:
        """An entry has its answer, which lies here from now on."""
        self._unfinished -= 1
        self._kept -= entry.size
        self._latest = len(payload)
        self._held += len(payload)
        self._admission.add(len(payload))
        if entry.unordered:
            self._writable.append(entry)
        while self._turns and self._turns[0].payload is not None:
            self._writable.append(self._turns.popleft())
        if self._writable:
            _wake(self._writer_waits)
        _wake(self._reader_waits)


def wants_status(context: Context) -> bool:
    """Whether the client asked for a failed request to end the stream with its status, as Triton's do."""
    metadata = context.invocation_metadata() or ()
    return any(key == "triton_grpc_error" and value == "true" for key, value in metadata)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
