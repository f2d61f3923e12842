"""The gRPC server of the portable front end: options, the method table, listening, draining.

Handlers take and give raw bytes: the C codec reads requests, and nothing is parsed twice. A method that the
protocol has and this server has not is in the table all the same, to answer with a sentence.

ModelInfer is registered as a method whose client streams, the same on the wire: its handler then runs before
the message is read, and can refuse the call (see `admission`) instead of letting gRPC collect it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from functools import partial
from typing import Any

import grpc

from service.codec.errors import RequestError
from service.config import ServeConfig
from service.errors import Code, StartError
from service.frontend._dispatch import Dispatcher
from service.frontend.addresses import SocketFile, join_address, why_not_bound
from service.frontend.grpcio.admission import Admission
from service.frontend.grpcio.calls import Calls
from service.frontend.grpcio.lifetime import lifetime
from service.frontend.grpcio.standard import HEALTH, REFLECTIONS, Health, Reflection
from service.frontend.grpcio.status import Context, set_shutting_down, set_status
from service.frontend.grpcio.stream import Stream
from service.frontend.grpcio.tls import server_credentials
from service.frontend.grpcio.unary import Unary, control
from service.frontend.rpcs import CONTROL, NOT_BUILT, SERVICE, UNARY, Rpcs
from service.frontend.state import SHUTTING_DOWN_REASON, State

INT32_MAX = 2**31 - 1
OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", INT32_MAX),
    # Without this two servers may bind one port, and the second would never know.
    ("grpc.so_reuseport", 0),
    # What is too much is refused by the queue, with a reason and a time to come back. By default gRPC drops
    # calls at random once 1,000 wait for this loop, and tells their clients CANCELLED.
    ("grpc.server.max_pending_requests", INT32_MAX),
    ("grpc.server.max_pending_requests_hard_limit", INT32_MAX),
    # Of a call that is not let in yet, or is refused, HTTP/2's first window (64 KB) is taken and no more:
    # with the probe, gRPC widens it on a fast link until whole messages come in uncounted. A message that is
    # being read gets a window of its own size.
    ("grpc.http2.bdp_probe", 0),
)

# What is a little larger than a message may be is read all the same, for the dispatcher to refuse with the
# name of the flag. gRPC refuses the rest by its length, before it is read, in words of its own.
READ_TO_REFUSE_BYTES = 64 << 20

# What is answered may still be on its way to a client that reads. No longer is anything waited for that is no
# accepted request: a call whose request never came, or an open reflection stream.
LAST_WORDS_S = 2.0

# gRPC cancels the calls that no handler has seen when it stops. So it stops when none has come for this long.
QUIET_S = 0.05

Handlers = dict[str, "grpc.RpcMethodHandler[Any, Any]"]


class GrpcioServer:
    """One listening gRPC server on the running loop (`service.frontend.server`)."""

    def __init__(self, config: ServeConfig, state: State, max_connections: int) -> None:
        triton = config.status_codes == "triton"
        dispatcher = self._dispatcher = Dispatcher(
            config.arena_mb << 20,
            config.slots_per_lane,
            split=not triton,
            max_message_bytes=config.max_message_bytes,
            spill_mb=config.spill_mb,
        )
        calls = self._calls = Calls(dispatcher, triton)
        self.admission = Admission(config.max_calls, config.answer_mb << 20, triton)
        max_message_bytes = config.max_message_bytes
        self._state = state
        self._config = config
        self._unary = Unary(calls, state)
        self._health = Health(lambda: state.ready)
        self._socket_file = SocketFile(config.grpc_unix_socket)
        self._streams: dict[Stream, asyncio.Task[Any]] = {}
        self._seen = 0  # calls
        readable = min(INT32_MAX, max_message_bytes + min(max_message_bytes, READ_TO_REFUSE_BYTES))
        limits = [
            ("grpc.max_receive_message_length", readable),
            ("grpc.max_allowed_incoming_connections", max_connections),
        ]
        if config.grpc_infer_response_compression_level != "none":
            limits.append(("grpc.default_compression_level", 1))  # gzip where the client reads it
        self._server = grpc.aio.server(options=[*OPTIONS, *limits, *lifetime(config)])

    def _handlers(self, rpcs: Rpcs) -> Handlers:
        handlers: Handlers = {
            method: grpc.unary_unary_rpc_method_handler(control(rpcs, method))
            for method in (*UNARY, *CONTROL, *NOT_BUILT)
        }
        handlers["ModelInfer"] = grpc.stream_unary_rpc_method_handler(self._model_infer)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._model_stream_infer)
        return handlers

    def _enter(self, context: Context) -> asyncio.Task[Any] | None:
        """Lets a call in, until gRPC has sent its end; None: it is refused, and the status is set."""
        self._seen += 1
        try:
            self.admission.enter()
        except RequestError as error:
            self._refuse(context, error)
            return None
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(self.admission.leave)
        return task

    def _refuse(self, context: Context, error: RequestError) -> bytes:
        self._state.count_rejected_code(error.code)
        return set_status(context, error.code, error.message, retry=True)

    async def _model_infer(self, _: Any, context: Context) -> bytes:
        task = self._enter(context)
        if task is None:
            return b""
        request = await context.read()
        if request is grpc.aio.EOF:
            return set_status(context, Code.INVALID_ARGUMENT, "expected one request, and the call had none")
        try:
            self.admission.check_answers()
            inference = self._unary.model_infer(request, context)
            del request  # it is as large as clients like, and not needed as long as its answer takes
            answer = await inference
            self.admission.check_answers()
        except RequestError as error:
            return self._refuse(context, error)
        if answer:  # it lies here until gRPC has sent it and its status, which is when the task ends
            self.admission.add(len(answer))
            task.add_done_callback(partial(self._drop, len(answer)))
        return answer

    def _drop(self, size: int, _: object) -> None:
        self.admission.drop(size)

    async def _model_stream_infer(self, _: Any, context: Context) -> None:
        task = self._enter(context)
        if task is None:
            return
        if self._state.draining:
            self._state.count_rejected(SHUTTING_DOWN_REASON)
            set_shutting_down(context)
            return
        stream = Stream(self._calls, self.admission, self._state, context)
        self._streams[stream] = task
        try:
            await stream.run()
        finally:
            del self._streams[stream]

    @property
    def lanes(self) -> Calls:
        return self._calls

    @property
    def in_flight(self) -> int:
        return self._calls.in_flight

    @property
    def calls(self) -> int:
        return self.admission.calls

    @property
    def outstanding(self) -> int:
        return self._dispatcher.outstanding

    @property
    def arena_used(self) -> int:
        return self._dispatcher.arena_used

    def check(self) -> int:
        return self._dispatcher.check()

    def rejected(self) -> Counter[str]:
        return Counter()  # the state's are all

    def set_started(self) -> None:
        pass  # the state is asked for each request

    def _register(self, rpcs: Rpcs) -> None:
        self._server.add_registered_method_handlers(SERVICE, self._handlers(rpcs))
        self._server.add_registered_method_handlers(HEALTH, self._health.handlers())
        for name in REFLECTIONS:
            self._server.add_registered_method_handlers(name, Reflection().handlers())

    async def start(self, rpcs: Rpcs, host: str, port: int) -> int:
        if why := why_not_bound(host, port, "--grpc-port"):  # gRPC would say less, and log more
            raise StartError(why)
        try:
            bound = self._bind(join_address(host, port))
            self._bind_file()
        except RuntimeError as error:
            raise StartError(f"cannot listen on {host} port {port}: {error}") from error
        self._register(rpcs)
        await self._server.start()
        return bound

    def _bind_file(self) -> None:
        file = self._socket_file
        if not file.path:
            return
        if why := file.clear():  # gRPC would take it from a server that lives
            raise StartError(why)
        try:
            self._bind(f"unix:{file.path}")
            file.bound()
        except (RuntimeError, OSError) as error:
            raise StartError(f"cannot listen on {file.path}: {error}") from error

    def _bind(self, address: str) -> int:
        if not self._config.tls:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, server_credentials(self._config))

    def readiness_changed(self) -> None:
        self._health.changed()

    async def drain(self, timeout_s: float) -> int:
        end_s = time.monotonic() + timeout_s
        for stream in list(self._streams):
            stream.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._finished(), timeout_s)
        unfinished = self._calls.in_flight
        await self._quiet(min(end_s, time.monotonic() + LAST_WORDS_S))
        self._health.close()
        await self._server.stop(min(max(0.0, end_s - time.monotonic()), LAST_WORDS_S))
        self._socket_file.remove()
        return unfinished

    async def _quiet(self, end_s: float) -> None:
        """Until no call has come for QUIET_S: those that come are told that the server ends."""
        seen = -1
        while seen != self._seen and time.monotonic() < end_s:
            seen = self._seen
            await asyncio.sleep(QUIET_S)

    async def _finished(self) -> None:
        await self._calls.wait_idle()
        while self._streams:
            await asyncio.wait(list(self._streams.values()))

    async def stop(self) -> None:
        self._health.close()
        await self._server.stop(0)
        self._socket_file.remove()

    def close(self) -> None:
        self._calls.close()
