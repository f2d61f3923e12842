"""Runs the methods that Python answers: grpc.RpcMethodHandler of all four kinds, by path.

Handlers are those of grpcio's asyncio server: coroutines that return the response or use `context.write`, and
asynchronous generators. A handler that fails costs its call an UNKNOWN, as with grpcio, and leaves a
traceback in the log.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from service.frontend.native._native import ENDED, HALF_CLOSED, MESSAGE, STARTED, WRITTEN, Native, Rpc
from service.frontend.native.context import Aborted, Call
from service.log import say_exception

Handler = Any  # grpc.RpcMethodHandler, whose attributes no stub has


class Methods:
    """The calls of one Native on the running loop."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self._handlers: dict[str, Handler] = {}
        self._calls: dict[Rpc, Call] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(native.event_fd(), self._on_events)

    def add(self, handlers: Mapping[str, Handler]) -> None:
        """Methods by path, "/package.Service/Method"."""
        self._handlers.update(handlers)

    def close(self) -> None:
        """Lets go of the loop; calls in progress are cancelled."""
        self._loop.remove_reader(self._native.event_fd())
        for call in list(self._calls.values()):
            call.on_ended()
        self._calls.clear()

    def _on_events(self) -> None:
        for kind, rpc, *rest in self._native.events():
            if kind == STARTED:
                self._start(rpc, *rest)
            elif (call := self._calls.get(rpc)) is None:
                continue
            elif kind == MESSAGE:
                call.on_message(*rest)
            elif kind == HALF_CLOSED:
                call.on_half_closed()
            elif kind == WRITTEN:
                call.on_written()
            elif kind == ENDED:
                call.on_ended()
                del self._calls[rpc]

    def _start(
        self, rpc: Rpc, path: bytes, headers: list[tuple[bytes, bytes]], deadline_ns: int | None
    ) -> None:
        call = Call(rpc, headers, deadline_ns)
        name = path.decode("utf-8", "replace")
        handler = self._handlers.get(name)
        if handler is None:
            call.fail(grpc.StatusCode.UNIMPLEMENTED, f"no method {name} here; reflection lists what there is")
            return
        self._calls[rpc] = call
        call.task = self._loop.create_task(self._run(handler, call))

    async def _run(self, handler: Handler, call: Call) -> None:
        try:
            await run(handler, call)
        except Aborted:
            call.finish()
        except asyncio.CancelledError:
            call.fail(grpc.StatusCode.CANCELLED, "the call was cancelled")
            raise
        except Exception as error:
            say_exception(error)
            call.fail(grpc.StatusCode.UNKNOWN, f"{type(error).__name__} in the method's handler")
        else:
            call.finish()


async def run(handler: Handler, call: Call) -> None:
    """Answers one call with its handler."""
    serialize = handler.response_serializer or (lambda message: message)
    if handler.request_streaming:
        argument: Any = requests(handler, call)
    else:
        message = await call.read()
        if message is grpc.aio.EOF:
            await call.abort(grpc.StatusCode.UNIMPLEMENTED, "expected one request, and the call had none")
        argument = deserialized(handler, message)
    result = function_of(handler)(argument, call)
    if inspect.isasyncgen(result):
        async for response in result:
            await call.write(serialize(response))
        return
    response = await result
    if handler.response_streaming:
        return  # it used context.write
    if call.code() is grpc.StatusCode.OK:
        await call.write(serialize(response))


def function_of(handler: Handler) -> Any:
    kind = f"{'stream' if handler.request_streaming else 'unary'}_"
    return getattr(handler, kind + ("stream" if handler.response_streaming else "unary"))


def deserialized(handler: Handler, message: bytes) -> Any:
    return handler.request_deserializer(message) if handler.request_deserializer else message


async def requests(handler: Handler, call: Call) -> AsyncIterator[Any]:
    while (message := await call.read()) is not grpc.aio.EOF:
        yield deserialized(handler, message)
