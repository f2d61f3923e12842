"""The gRPC server of the native front end: listening, the method table, draining.

ModelInfer and ModelStreamInfer are C from the socket to the queue. Everything else is answered here, by the
same functions that the portable front end has.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter

import grpc

from service.config import COMPRESSION_LEVELS, ServeConfig
from service.errors import Code, StartError
from service.frontend import tls
from service.frontend.addresses import SocketFile, why_not_bound
from service.frontend.grpcio.standard import HEALTH, REFLECTIONS, Health, Reflection
from service.frontend.grpcio.unary import control
from service.frontend.native._native import Native
from service.frontend.native.certificates import Watch
from service.frontend.native.lifetime import lifetime
from service.frontend.native.methods import Handler, Methods
from service.frontend.rpcs import CONTROL, NOT_BUILT, SERVICE, UNARY, Rpcs
from service.frontend.state import SHUTTING_DOWN_REASON, State

BACKLOG = 1024
ZLIB_LEVELS = dict(zip(COMPRESSION_LEVELS, (0, 1, 6, 9), strict=True))
HELD_SHARE = 8  # of an output arena: what answers that clients have not read yet may have of it
LOOK_S = 0.01  # how often a server that drains looks whether it is done
LAST_WORDS_S = 2.0  # what is answered may still be on its way to a client that reads


class NativeServer:
    """One listening server on the running loop (`service.frontend.server`)."""

    def __init__(self, config: ServeConfig, state: State, max_connections: int) -> None:
        self._health = Health(lambda: state.ready)
        self._native = Native(
            threads=config.io_threads,
            arena_mb=config.arena_mb,
            spill_mb=config.spill_mb,
            slots_per_lane=config.slots_per_lane,
            max_calls=config.max_calls,
            max_connections=max_connections,
            max_message_bytes=config.max_message_bytes,
            answer_bytes=config.answer_mb << 20,
            held_bytes=(config.output_arena_mb << 20) // HELD_SHARE // config.io_threads,
            lifetime=lifetime(config),
            triton=config.status_codes == "triton",
            compression=ZLIB_LEVELS[config.grpc_infer_response_compression_level],
        )
        self.methods = Methods(self._native)
        self._socket_file = SocketFile(config.grpc_unix_socket)
        self._closed = False
        self._config = config
        self._watch: Watch | None = None

    async def start(self, rpcs: Rpcs, host: str, port: int) -> int:
        if why := why_not_bound(host, port, "--grpc-port"):
            raise StartError(why)
        try:
            listener = listen(host, port)
        except OSError as error:
            raise StartError(f"cannot listen on {host} port {port}: {error}") from error
        if self._config.tls:
            self._watch = Watch(self._native, tls.server_certificates(self._config))
        self.methods.add(handlers(rpcs, self._health))
        if self._socket_file.path:
            self._native.listen(listen_at(self._socket_file).detach())
        bound: int = listener.getsockname()[1]
        self._native.listen(listener.detach())
        return bound

    def set_started(self) -> None:
        self._native.set_started()

    def readiness_changed(self) -> None:
        self._health.changed()

    @property
    def lanes(self) -> Native:
        return self._native

    @property
    def in_flight(self) -> int:
        return 0 if self._closed else self._native.in_flight

    @property
    def calls(self) -> int:
        return self._native.calls

    @property
    def outstanding(self) -> int:
        return self._native.outstanding

    @property
    def arena_used(self) -> int:
        return self._native.arena_used

    @property
    def answer_bytes(self) -> int:
        return self._native.answer_bytes

    def check(self) -> int:
        return self._native.check()

    def rejected(self) -> Counter[str]:
        found: Counter[str] = Counter()
        if not self._closed:
            for code, count in self._native.rejected().items():
                found[SHUTTING_DOWN_REASON if code < 0 else Code(code).name.lower()] += count
        return found

    async def drain(self, timeout_s: float) -> int:
        native, end_s = self._native, time.monotonic() + timeout_s
        native.drain()
        while (native.in_flight or native.streams) and time.monotonic() < end_s:
            await asyncio.sleep(LOOK_S)
        unfinished = native.in_flight
        self._health.close()
        native.go()
        self._socket_file.remove()
        await self._say_last_words(end_s)
        native.hang_up()
        return unfinished

    async def _say_last_words(self, end_s: float) -> None:
        """Until nothing is unsent. Only answers are waited for longer than a moment: they were accepted."""
        now_s = time.monotonic()
        moment_s = now_s + LAST_WORDS_S
        while self._native.unsent and now_s < min(moment_s, end_s):
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            if self._native.answer_bytes:
                moment_s = now_s + LAST_WORDS_S

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._health.close()
        self._native.go()
        self._socket_file.remove()
        self._native.hang_up()

    def close(self) -> None:
        self.methods.close()
        self._closed = True
        self._native.close()


def handlers(rpcs: Rpcs, health: Health) -> dict[str, Handler]:
    """Every method but the two that are C, by path."""
    found: dict[str, Handler] = {
        f"/{SERVICE}/{method}": grpc.unary_unary_rpc_method_handler(control(rpcs, method))
        for method in (*UNARY, *CONTROL, *NOT_BUILT)
    }
    services = {HEALTH: health.handlers()} | {name: Reflection().handlers() for name in REFLECTIONS}
    for service, methods in services.items():
        found |= {f"/{service}/{name}": handler for name, handler in methods.items()}
    return found


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that does not block. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def listen_at(file: SocketFile) -> socket.socket:
    """A listening Unix-domain socket that does not block. Raises StartError."""
    if why := file.clear():
        raise StartError(why)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.bind(file.path)
        file.bound()
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {file.path}: {error.strerror}") from error
    return listener
