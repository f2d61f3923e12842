"""The two services that every gRPC server is expected to have: health and reflection.

Health tells the truth that readiness tells: SERVING while every model can be used. It knows the server as a
whole (""), inference.GRPCInferenceService and headrace.v1.BatchInference. Reflection serves this program's
own descriptor pool; its two package names (v1 and v1alpha) have one wire form.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha._async import ReflectionServicer  # type: ignore[import-untyped]

from service._pb import POOL
from service.errors import Code
from service.frontend.grpcio.status import Context, set_status
from service.frontend.rpcs import SERVICE, UPLOAD_SERVICE

HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_KNOWN = ("", SERVICE, UPLOAD_SERVICE)
_STATUS = health_pb2.HealthCheckResponse


def set_unreadable(context: Context, error: DecodeError) -> bytes:
    return set_status(context, Code.INVALID_ARGUMENT, f"the request is no message of this method: {error}")


class Health:
    """The health service. `changed` must be called when what `is_ready` says may have changed."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._closed = False
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def changed(self) -> None:
        """Lets every watcher look again."""
        change, self._change = self._change, asyncio.get_running_loop().create_future()
        change.set_result(None)

    def close(self) -> None:
        """Ends every watch."""
        self._closed = True
        self.changed()

    def _status(self, service: str) -> Any:
        if service not in _KNOWN:
            return _STATUS.SERVICE_UNKNOWN
        return _STATUS.SERVING if self._is_ready() else _STATUS.NOT_SERVING

    async def check(self, request: bytes, context: Context) -> bytes:
        try:
            service = health_pb2.HealthCheckRequest.FromString(request).service
        except DecodeError as error:
            return set_unreadable(context, error)
        if service not in _KNOWN:
            return set_status(context, Code.NOT_FOUND, f"unknown service '{service}'; known: {SERVICE}")
        answer: bytes = _STATUS(status=self._status(service)).SerializeToString()
        return answer

    async def watch(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        """The status now, and whenever it changes. An unknown service is watched too, as the protocol
        wants.
        """
        try:
            service = health_pb2.HealthCheckRequest.FromString(request).service
        except DecodeError as error:
            set_unreadable(context, error)
            return
        last = None
        while True:
            change, closed, status = self._change, self._closed, self._status(service)
            if status != last:
                yield _STATUS(status=status).SerializeToString()
                last = status
            if closed:  # looked at only now: the last change is told even when the end follows at once
                return
            await asyncio.shield(change)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "Check": grpc.unary_unary_rpc_method_handler(self.check),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch),
        }


class Reflection:
    """The reflection service, over gRPC's own servicer."""

    def __init__(self) -> None:
        self._servicer = ReflectionServicer((SERVICE, UPLOAD_SERVICE, HEALTH, *REFLECTIONS), pool=Pools())

    async def info(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        async def parsed() -> AsyncIterator[Any]:
            async for request in requests:
                yield reflection_pb2.ServerReflectionRequest.FromString(request)

        try:
            async for response in self._servicer.ServerReflectionInfo(parsed(), context):
                yield response.SerializeToString()
        except DecodeError as error:
            set_unreadable(context, error)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(self.info)}


class Pools:
    """Our own pool, and gRPC's for the services that come from it, behind the three lookups of a pool."""

    def _first(self, method: str, *arguments: Any) -> Any:
        for pool in (POOL, health_pb2.DESCRIPTOR.pool):
            try:
                return getattr(pool, method)(*arguments)
            except KeyError:
                continue
        raise KeyError(arguments)

    def FindFileByName(self, name: str) -> Any:
        return self._first("FindFileByName", name)

    def FindFileContainingSymbol(self, name: str) -> Any:
        try:
            return self._first("FindFileContainingSymbol", name)
        except KeyError:  # a method is a symbol too, and ghz asks for one; the pool knows services alone
            service, _, method = name.rpartition(".")
            return self._first("FindServiceByName", service).methods_by_name[method].containing_service.file

    def FindMessageTypeByName(self, name: str) -> Any:
        return self._first("FindMessageTypeByName", name)

    def FindExtensionByNumber(self, message: Any, number: int) -> Any:
        return self._first("FindExtensionByNumber", message, number)

    def FindAllExtensions(self, message: Any) -> Any:
        return message.file.pool.FindAllExtensions(message)
