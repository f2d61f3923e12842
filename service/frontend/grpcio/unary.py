"""ModelInfer, and every other unary RPC of the service.

A ModelInfer call is one future: gRPC runs the handler in a task of its own, and nothing else is created for
it. gRPC cancels that task when the client cancels or its deadline passes; the slot is then cancelled too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from service.codec.errors import RequestError
from service.errors import Overloaded
from service.frontend.grpcio.calls import Answer, Calls
from service.frontend.grpcio.status import Context, set_shutting_down, set_status, status_of
from service.frontend.rpcs import Rpcs
from service.frontend.state import SHUTTING_DOWN_REASON, State

_NO_DEADLINE_S = (
    1e9  # what is this far away is none, and would not fit into 64 bits of nanoseconds much farther
)


def deadline_ns(context: Context) -> int | None:
    """The call's deadline in `time.monotonic_ns`, or None."""
    remaining_s = context.time_remaining()
    if remaining_s is None or remaining_s > _NO_DEADLINE_S:
        return None
    return time.monotonic_ns() + int(remaining_s * 1e9)


class Unary:
    """The handlers. `state` says whether new calls are taken, and counts those that are not."""

    def __init__(self, calls: Calls, state: State) -> None:
        self._calls = calls
        self._state = state
        self._loop = asyncio.get_running_loop()

    async def model_infer(self, request: bytes, context: Context) -> bytes:
        state = self._state
        if state.draining:
            state.count_rejected(SHUTTING_DOWN_REASON)
            return set_shutting_down(context)
        answered: asyncio.Future[Answer] = self._loop.create_future()
        try:
            state.check_started()
            ticket = self._calls.submit(request, answered, deadline_ns(context), False)
            del request
        except Exception as error:
            return self._refuse(context, error)
        try:
            _, code, payload, again = await answered
        except asyncio.CancelledError:
            self._calls.cancel(ticket)
            raise
        return payload if code == 0 else set_status(context, code, payload.decode(), again)

    def _refuse(self, context: Context, error: Exception) -> bytes:
        code, message = status_of(error)
        self._state.count_rejected_code(code)
        retry = isinstance(error, RequestError) and error.transient
        return set_status(context, code, message, retry)


def control(rpcs: Rpcs, method: str) -> Callable[[bytes, Context], Awaitable[bytes]]:
    """The handler of one of the other RPCs."""

    async def handler(request: bytes, context: Context) -> bytes:
        try:
            return await rpcs.call(method, request)
        except Exception as error:
            code, message = status_of(error)
            return set_status(context, code, message, retry=isinstance(error, Overloaded))

    return handler
