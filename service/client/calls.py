"""The two clients: one method per RPC, blocking or asyncio.

``AsyncClient.raw_unary`` and ``raw_stream`` work on serialized messages, for load generators that must not
pay for building the same message ten thousand times.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from service._pb import inference as pb
from service._pb import model_config as config_pb
from service.client.address import UNIX, Tls, target_of
from service.client.errors import ClientError, explain
from service.client.tensors import Array, InferResult, ModelInfo, TensorInfo, infer_request, infer_result

SERVICE = "/inference.GRPCInferenceService/"
Answer = TypeVar("Answer", bound=Message)
RawInfer = Callable[[bytes, float], Awaitable[bytes]]

# Loopback must not go through an HTTP proxy named in the environment; gRPC would otherwise try it.
_LOOPBACK = ("localhost:", "127.", "[::1]:")


def _options(target: str) -> list[tuple[str, int | str]]:
    options: list[tuple[str, int | str]] = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
    ]
    if target.startswith(_LOOPBACK):
        options.append(("grpc.enable_http_proxy", 0))
    if target.startswith(UNIX):
        options.append(("grpc.default_authority", "localhost"))  # whose certificate TLS shall expect
    return options


def _model_info(response: pb.ModelMetadataResponse) -> ModelInfo:
    inputs, outputs = _tensors(response.inputs), _tensors(response.outputs)
    return ModelInfo(response.name, tuple(response.versions), response.platform, inputs, outputs)


def _tensors(items: Iterable[pb.ModelMetadataResponse.TensorMetadata]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(t.name, t.datatype, tuple(t.shape)) for t in items)


class _Caller:
    """What both clients know. ``tls`` None: the server is spoken to in plain text."""

    def __init__(self, url: str, *, timeout_s: float = 30.0, tls: Tls | None = None) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._tls = tls

    def _open(self, library: Any) -> Any:
        """A channel of ``grpc`` or ``grpc.aio``. Raises ClientError for an address or files that are none."""
        target = target_of(self.url)
        if self._tls is None:
            return library.insecure_channel(target, options=_options(target))
        return library.secure_channel(target, self._tls.credentials(), options=_options(target))

    def explain(self, error: grpc.RpcError) -> ClientError:
        """What an error of gRPC's means to a person."""
        return explain(self.url, error, self._tls is not None)


class Client(_Caller):
    """The blocking client. A context manager; ``timeout_s`` is the deadline of every call."""

    def __init__(self, url: str, *, timeout_s: float = 30.0, tls: Tls | None = None) -> None:
        super().__init__(url, timeout_s=timeout_s, tls=tls)
        self._channel: grpc.Channel = self._open(grpc)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; calls in flight end as cancelled."""
        self._channel.close()

    def call(self, name: str, request: Message, response_type: type[Answer]) -> Answer:
        """One call of the service by RPC name, message in, message out. Raises ClientError."""
        method = self._channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self.explain(error) from None

    def server_metadata(self) -> pb.ServerMetadataResponse:
        """Name, version and extensions of the server."""
        return self.call("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse)

    def model_ready(self, name: str, version: str = "") -> bool:
        """Whether the model can take requests; false also for a model that does not exist."""
        request = pb.ModelReadyRequest(name=name, version=version)
        return self.call("ModelReady", request, pb.ModelReadyResponse).ready

    def model_metadata(self, name: str, version: str = "") -> ModelInfo:
        """Inputs and outputs of a model."""
        request = pb.ModelMetadataRequest(name=name, version=version)
        return _model_info(self.call("ModelMetadata", request, pb.ModelMetadataResponse))

    def model_config(self, name: str, version: str = "") -> config_pb.ModelConfig:
        """The configuration of a model."""
        request = pb.ModelConfigRequest(name=name, version=version)
        return self.call("ModelConfig", request, pb.ModelConfigResponse).config

    def model_statistics(self, name: str = "", version: str = "") -> list[pb.ModelStatistics]:
        """The statistics of one model, or of all when the name is empty."""
        request = pb.ModelStatisticsRequest(name=name, version=version)
        return list(self.call("ModelStatistics", request, pb.ModelStatisticsResponse).model_stats)

    def repository_index(self) -> list[pb.RepositoryIndexResponse.ModelIndex]:
        """Every model the server knows, also those not loaded."""
        request = pb.RepositoryIndexRequest()
        return list(self.call("RepositoryIndex", request, pb.RepositoryIndexResponse).models)

    def load_model(self, name: str) -> None:
        """Loads a model, or loads it again; returns when it serves."""
        request = pb.RepositoryModelLoadRequest(model_name=name)
        self.call("RepositoryModelLoad", request, pb.RepositoryModelLoadResponse)

    def unload_model(self, name: str) -> None:
        """Unloads a model; returns when it is gone."""
        request = pb.RepositoryModelUnloadRequest(model_name=name)
        self.call("RepositoryModelUnload", request, pb.RepositoryModelUnloadResponse)

    def infer(self, model: str, inputs: Mapping[str, Array], **options: Any) -> InferResult:
        """One ModelInfer; the options are those of ``infer_request``."""
        request = infer_request(model, inputs, **options)
        return infer_result(self.call("ModelInfer", request, pb.ModelInferResponse))


class AsyncClient(_Caller):
    """The asyncio client. An async context manager; ``timeout_s`` is the deadline of every unary call."""

    def __init__(self, url: str, *, timeout_s: float = 30.0, tls: Tls | None = None) -> None:
        super().__init__(url, timeout_s=timeout_s, tls=tls)
        self._channel: grpc.aio.Channel = self._open(grpc.aio)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def call(self, name: str, request: Message, response_type: type[Answer]) -> Answer:
        """One call of the service by RPC name, message in, message out. Raises ClientError."""
        method = self._channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        try:
            return await method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self.explain(error) from None

    async def model_metadata(self, name: str, version: str = "") -> ModelInfo:
        """Inputs and outputs of a model."""
        request = pb.ModelMetadataRequest(name=name, version=version)
        return _model_info(await self.call("ModelMetadata", request, pb.ModelMetadataResponse))

    async def model_config(self, name: str, version: str = "") -> config_pb.ModelConfig:
        """The configuration of a model."""
        request = pb.ModelConfigRequest(name=name, version=version)
        return (await self.call("ModelConfig", request, pb.ModelConfigResponse)).config

    async def model_statistics(self, name: str = "", version: str = "") -> list[pb.ModelStatistics]:
        """The statistics of one model, or of all when the name is empty."""
        request = pb.ModelStatisticsRequest(name=name, version=version)
        return list((await self.call("ModelStatistics", request, pb.ModelStatisticsResponse)).model_stats)

    async def infer(self, model: str, inputs: Mapping[str, Array], **options: Any) -> InferResult:
        """One ModelInfer; the options are those of ``infer_request``."""
        request = infer_request(model, inputs, **options)
        return infer_result(await self.call("ModelInfer", request, pb.ModelInferResponse))

    def raw_unary(self) -> RawInfer:
        """A ModelInfer call on bytes: ``await f(serialized_request, timeout_s)`` is the serialized response.

        It raises ClientError like the other methods.
        """
        method: Any = self._channel.unary_unary(SERVICE + "ModelInfer")

        async def infer(request: bytes, timeout_s: float) -> bytes:
            try:
                return cast(bytes, await method(request, timeout=timeout_s))
            except grpc.RpcError as error:
                raise self.explain(error) from None

        return infer

    def raw_stream(self) -> Any:
        """The bare gRPC ModelStreamInfer call on bytes; ``InferStream`` is what makes it usable."""
        return self._channel.stream_stream(SERVICE + "ModelStreamInfer")
