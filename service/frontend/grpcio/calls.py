"""Requests in flight: the C dispatcher of one front-end thread, on an asyncio loop.

    submit ----> dispatcher ----> lane ... worker ... lane ----> eventfd readable ----> collect ---->
    set_result

Whoever submits gives a sink, which is an asyncio.Future or anything with its `set_result`, and gets a
ticket to cancel with. The sink gets one Answer, once, unless it was cancelled before. Nothing here is a
task: a request costs a dictionary entry and one call each way.

Before the loop may sleep, the dispatcher is armed: it then rings the eventfd when something comes. It is
armed at the end of every collect, and the first one is at the start.

With `triton`, whatever was refused or failed is told in Triton's codes and words from here on.

The dispatcher keeps the deadlines. This file keeps one loop timer, for the earliest of them.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Protocol

from service.codec.errors import RequestError
from service.errors import Code, as_triton
from service.frontend._dispatch import Dispatcher
from service.log import say_exception
from service.models.spec import ModelSpec

# Token; status code; payload: a message when the code is 0, else UTF-8 text; may it succeed a little later?
Answer = tuple[int, int, bytes, bool]
Ticket = tuple[int, int]  # token, handle

WORKER_GONE = b"the worker of this model ended while it held the request; it is starting again, try later"
_TIMER_SLACK_S = 100e-6  # a timer that is late by this finds its deadline passed, whatever the rounding


class Sink(Protocol):
    def set_result(self, answer: Answer, /) -> None:
        """Takes the answer. Raises nothing but InvalidStateError, when whoever waited has left."""


def give(sink: Sink, answer: Answer) -> None:
    """One sink's answer. A future that is cancelled here has a handler that has not run yet to say so."""
    try:
        sink.set_result(answer)
    except asyncio.InvalidStateError:
        pass
    except Exception as error:  # a defect, and one caller's: the answers behind it are others'
        say_exception(error)


class Calls:
    """The front-end thread of the running loop. All calls belong to the loop's thread."""

    def __init__(self, dispatcher: Dispatcher, triton: bool = False) -> None:
        self._dispatcher = dispatcher
        self._triton = triton
        self._loop = asyncio.get_running_loop()
        self._sinks: dict[int, Sink] = {}
        self._tokens = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._idle: asyncio.Future[None] | None = None
        self._loop.add_reader(dispatcher.eventfd(), self._collect)
        self._collect()

    def close(self) -> None:
        """Lets go of the loop. What is in flight stays unanswered."""
        self._loop.remove_reader(self._dispatcher.eventfd())
        if self._timer is not None:
            self._timer.cancel()

    # Requests.

    @property
    def in_flight(self) -> int:
        """Requests whose clients wait. May be read from any thread."""
        return len(self._sinks)

    def submit(self, request: bytes, sink: Sink, deadline_ns: int | None, stream: bool) -> Ticket:
        """Sends a request. Raises RequestError, and then the sink gets nothing."""
        token = next(self._tokens)
        try:
            handle = self._dispatcher.submit(request, token, deadline_ns, stream)
        except RequestError as error:
            if not self._triton:
                raise
            told = as_triton(error.code, error.message, error.transient)
            raise RequestError(*told, error.transient) from error
        self._sinks[token] = sink
        self._set_timer()
        return token, handle

    @property
    def unordered(self) -> bool:
        """Whether the request that was submitted last asked for its answer out of turn."""
        return self._dispatcher.unordered

    def cancel(self, ticket: Ticket) -> None:
        """The client no longer waits. Harmless when the answer was first."""
        if self._sinks.pop(ticket[0], None) is not None:
            self._dispatcher.cancel(ticket[1])
            self._tell_if_idle()

    async def wait_idle(self) -> None:
        """Returns when nothing is in flight."""
        if self._sinks:
            if self._idle is None:
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)

    def _collect(self) -> None:
        dispatcher, sinks = self._dispatcher, self._sinks
        armed = False
        while not armed:
            for answer in dispatcher.drain():
                sink = sinks.pop(answer[0], None)
                if sink is not None:
                    give(sink, self._told(answer))
            armed = dispatcher.arm()
        self._set_timer()
        self._tell_if_idle()

    def _told(self, answer: Answer) -> Answer:
        token, code, payload, again = answer
        if code == 0 or not self._triton:
            return answer
        code, message = as_triton(code, payload.decode(), again or None)
        return token, code, message.encode(), again

    def _tell_if_idle(self) -> None:
        if self._idle is not None and not self._sinks:
            self._idle.set_result(None)
            self._idle = None

    def _set_timer(self) -> None:
        """Keeps the timer no later than the earliest deadline. One that comes too early costs a look."""
        at_ns = self._dispatcher.next_deadline()
        if at_ns is None or (self._timer is not None and self._timer_ns <= at_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = at_ns
        self._timer = self._loop.call_at(at_ns / 1e9 + _TIMER_SLACK_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._collect()

    # Lanes: what `service.frontend.links` asks of a front-end thread.

    def open_lanes(self) -> tuple[int, list[int]]:
        """A lane to a new worker: its number, and the descriptors to send, which stay the dispatcher's."""
        return self._dispatcher.open_lane()

    def attach_lanes(self, lane: int, page_fd: int, output_fd: int) -> None:
        """The worker behind `lane` is ready."""
        self._dispatcher.attach_worker(lane, page_fd, output_fd)

    def close_lanes(self, lane: int) -> None:
        """The worker behind `lane` is gone. What it has answered before is an answer; the rest is told."""
        self._collect()
        for token in self._dispatcher.close_lane(lane):
            sink = self._sinks.pop(token, None)
            if sink is not None:
                give(sink, (token, Code.UNAVAILABLE, WORKER_GONE, False))
        self._tell_if_idle()

    def free_lanes(self, lane: int) -> None:
        """The process of the worker that was behind `lane` has ended."""
        self._dispatcher.free_lane(lane)

    def set_models(self, models: list[tuple[int, int, ModelSpec]], known: list[tuple[str, str, str]]) -> None:
        """What is served from now on, and what is known and is not."""
        self._dispatcher.set_models(models, known)
