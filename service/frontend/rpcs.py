"""Every RPC of inference.GRPCInferenceService but the Infer ones: functions from message to message.

Nothing here knows gRPC. A front end, in whatever language it receives bytes, gives them to `Rpcs.call` with
the method's name and gets bytes, or an error with the status code and the words for the client. `UNARY` and
`CONTROL` are the tables of what is built (what is in the second waits for a worker); `NOT_BUILT` of what
the protocol has and this server has not, with the sentence that says so. What stands in `NOT_BUILT` is not
among `EXTENSIONS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from fastqueue.stats import Count, ModelStats, SizeStats
from service import __version__
from service._pb import inference as pb
from service.codec.errors import RequestError
from service.errors import InvalidRequest, NotBuilt, Unavailable
from service.frontend.catalog import Catalog, Entry
from service.frontend.repository import Repository
from service.frontend.state import State
from service.models import spec as model_spec

SERVICE = "inference.GRPCInferenceService"
UPLOAD_SERVICE = "headrace.v1.BatchInference"
EXTENSIONS = (
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "model_configuration",
    "statistics",
    "binary_tensor_data",
)

_NO_SHARED_MEMORY = "shared memory regions are not built in this server; send tensors in raw_input_contents"
NOT_BUILT = {
    "SystemSharedMemoryStatus": f"SystemSharedMemoryStatus: {_NO_SHARED_MEMORY}",
    "SystemSharedMemoryRegister": f"SystemSharedMemoryRegister: {_NO_SHARED_MEMORY}",
    "SystemSharedMemoryUnregister": f"SystemSharedMemoryUnregister: {_NO_SHARED_MEMORY}",
    "CudaSharedMemoryStatus": f"CudaSharedMemoryStatus: {_NO_SHARED_MEMORY}",
    "CudaSharedMemoryRegister": f"CudaSharedMemoryRegister: {_NO_SHARED_MEMORY}",
    "CudaSharedMemoryUnregister": f"CudaSharedMemoryUnregister: {_NO_SHARED_MEMORY}",
    "TraceSetting": "TraceSetting is not built in this server",
    "LogSettings": "LogSettings is not built in this server",
}


class Rpcs:
    """The RPCs of one front end. `state` knows what a catalog alone does not: a server that drains is not
    ready, and none of its models is.
    """

    def __init__(self, catalog: Catalog, server_name: str, repository: Repository, state: State) -> None:
        self._catalog = catalog
        self._server_name = server_name
        self._repository = repository
        self._state = state

    async def call(self, method: str, data: bytes) -> bytes:
        """Answers one call. Raises ServiceError, or RequestError where the codec has the words."""
        if method in NOT_BUILT:
            raise NotBuilt(NOT_BUILT[method])
        request_class = (UNARY.get(method) or CONTROL[method])[0]
        try:
            request = request_class.FromString(data)
        except DecodeError as error:
            raise InvalidRequest(f"{method}: the request is no {request_class.__name__}: {error}") from error
        del data
        if method in UNARY:
            response = UNARY[method][1](self, request)
        else:
            response = await CONTROL[method][1](self._repository, request)
        answer: bytes = response.SerializeToString()
        return answer

    def server_live(self, _: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    def server_ready(self, _: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._state.ready)

    def server_metadata(self, _: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name=self._server_name, version=__version__, extensions=EXTENSIONS)

    def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """A model that is not served, or is down, is not ready, which is an answer and not an error."""
        try:
            entry = self._catalog.find(request.name, request.version)
        except (RequestError, Unavailable):
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._catalog.is_up(entry) and not self._state.draining)

    def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        entry = self._available(request.name, request.version)
        fields = model_spec.metadata(entry.spec, self._catalog.versions(entry.spec.name))
        return ParseDict(fields, pb.ModelMetadataResponse())

    def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        entry = self._available(request.name, request.version)
        return ParseDict({"config": model_spec.config(entry.spec, entry.device)}, pb.ModelConfigResponse())

    def model_statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        """Of one model, or of all where no name is given."""
        entries = self._catalog.select(request.name, request.version)
        return pb.ModelStatisticsResponse(model_stats=[statistics_of(entry) for entry in entries])

    def _available(self, name: str, version: str) -> Entry:
        entry = self._catalog.find(name, version)
        if not entry.available:
            spec = entry.spec
            raise Unavailable(
                f"Request for unknown model: '{spec.name}' version {spec.version} is not at ready state"
            )
        return entry


UNARY: dict[str, tuple[Any, Callable[[Rpcs, Any], Any]]] = {
    "ServerLive": (pb.ServerLiveRequest, Rpcs.server_live),
    "ServerReady": (pb.ServerReadyRequest, Rpcs.server_ready),
    "ServerMetadata": (pb.ServerMetadataRequest, Rpcs.server_metadata),
    "ModelReady": (pb.ModelReadyRequest, Rpcs.model_ready),
    "ModelMetadata": (pb.ModelMetadataRequest, Rpcs.model_metadata),
    "ModelConfig": (pb.ModelConfigRequest, Rpcs.model_config),
    "ModelStatistics": (pb.ModelStatisticsRequest, Rpcs.model_statistics),
}

CONTROL: dict[str, tuple[Any, Callable[[Repository, Any], Awaitable[Any]]]] = {
    "RepositoryIndex": (pb.RepositoryIndexRequest, Repository.index),
    "RepositoryModelLoad": (pb.RepositoryModelLoadRequest, Repository.load),
    "RepositoryModelUnload": (pb.RepositoryModelUnloadRequest, Repository.unload),
}


def statistics_of(entry: Entry) -> pb.ModelStatistics:
    """A model's counters in the protocol's words: inference_count counts rows, execution_count batches."""
    answer = pb.ModelStatistics(name=entry.spec.name, version=entry.spec.version)
    if entry.device is not None and entry.available:
        answer.memory_usage.add(type="GPU", id=entry.device, byte_size=entry.device_bytes)
    stats = entry.stats()
    if stats is None:
        return answer
    answer.last_inference = stats.last_unix_ms
    answer.inference_count = stats.rows
    answer.execution_count = stats.executions
    answer.inference_stats.CopyFrom(_inference_statistics(stats))
    answer.batch_stats.extend(_batch_statistics(size) for size in stats.sizes)
    return answer


def _inference_statistics(stats: ModelStats) -> pb.InferStatistics:
    return pb.InferStatistics(
        success=_duration(stats.success),
        fail=_duration(stats.fail),
        queue=_duration(stats.queue),
        compute_input=_duration(stats.input),
        compute_infer=_duration(stats.compute),
        compute_output=_duration(stats.output),
        cache_hit=pb.StatisticDuration(),
        cache_miss=pb.StatisticDuration(),
    )


def _batch_statistics(size: SizeStats) -> pb.InferBatchStatistics:
    count = size.executions
    return pb.InferBatchStatistics(
        batch_size=size.rows,
        compute_input=pb.StatisticDuration(count=count, ns=size.input_ns),
        compute_infer=pb.StatisticDuration(count=count, ns=size.compute_ns),
        compute_output=pb.StatisticDuration(count=count, ns=size.output_ns),
    )


def _duration(count: Count) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=count.count, ns=count.ns)
