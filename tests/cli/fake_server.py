"""A small server of the Open Inference Protocol for tests of clients: real gRPC and protobuf, no engine.

``affine`` answers y = 2x + 1 on FP32 [-1, 4], ``same`` y = x on BYTES [-1, -1]. The statistics follow a
script that a test can predict: every ``batch_of`` requests count as one batch, with fixed times. What a test
puts in ``missing`` answers UNIMPLEMENTED.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from typer.testing import Result

from service._pb import inference as pb
from service._pb import model_config as config_pb

QUEUE_NS, COPY_IN_NS, COMPUTE_NS, COPY_OUT_NS = 2_000_000, 100_000, 5_000_000, 50_000
WIDTH = 4
MODELS = {"affine": ("FP32", [-1, WIDTH]), "same": ("BYTES", [-1, -1])}

Run = Callable[..., Result]  # the fixture ``run``: a command line in, its result out


class FakeServer:
    """Serves until ``stop``. ``url`` is where."""

    def __init__(
        self, address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None
    ) -> None:
        self.missing: set[str] = {"RepositoryIndex"}
        self.batch_of = 1
        self.compute_ns = COMPUTE_NS
        self.queue_ns = QUEUE_NS
        self.statistics_fail = False
        self.rows = 0
        self.requests = 0
        self.batches = 0
        self.seen: list[pb.ModelInferRequest] = []
        self.refuse: Callable[[pb.ModelInferRequest], str] = lambda request: ""
        self.answer_in_order = True
        self.errors_name_their_request = True
        self.ends_streams = True
        self.requests_by_stream: list[int] = []
        self.not_ready: set[str] = set()
        self.controlled: list[str] = []
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=32))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        if credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, credentials)
        self.url = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return pb.ServerMetadataResponse(name="fake", version="1")

    def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=request.name in MODELS and request.name not in self.not_ready)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        self._known(request.name, context)
        answer = pb.ModelMetadataResponse(name=request.name, versions=["1"], platform="fake_platform")
        datatype, shape = MODELS[request.name]
        answer.inputs.add(name="x", datatype=datatype, shape=shape)
        answer.outputs.add(name="y", datatype=datatype, shape=shape)
        return answer

    def ModelConfig(self, request: Any, context: Any) -> Any:
        self._known(request.name, context)
        return pb.ModelConfigResponse(config=config_pb.ModelConfig(name=request.name, max_batch_size=8))

    def ModelStatistics(self, request: Any, context: Any) -> Any:
        if request.name:
            self._known(request.name, context)
        if self.statistics_fail:
            context.abort(grpc.StatusCode.INTERNAL, "told to")
        stats = pb.ModelStatistics(
            name="affine", version="1", inference_count=self.rows, execution_count=self.batches
        )
        for phase, ns in (
            ("success", self.queue_ns + COPY_IN_NS + self.compute_ns + COPY_OUT_NS),
            ("queue", self.queue_ns),
            ("compute_input", COPY_IN_NS),
            ("compute_infer", self.compute_ns),
            ("compute_output", COPY_OUT_NS),
        ):
            duration = getattr(stats.inference_stats, phase)
            duration.count, duration.ns = self.requests, self.requests * ns
        if self.batches:
            entry = stats.batch_stats.add(batch_size=self.batch_of)
            entry.compute_infer.count, entry.compute_infer.ns = self.batches, self.batches * self.compute_ns
        return pb.ModelStatisticsResponse(model_stats=[stats])

    def RepositoryIndex(self, request: Any, context: Any) -> Any:
        answer = pb.RepositoryIndexResponse()
        answer.models.add(name="affine", version="1", state="READY")
        answer.models.add(name="asleep", version="3", state="UNAVAILABLE", reason="unloaded")
        return answer

    def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        self.controlled.append(f"load {request.model_name}")
        return pb.RepositoryModelLoadResponse()

    def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        self.controlled.append(f"unload {request.model_name}")
        return pb.RepositoryModelUnloadResponse()

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self._known(request.model_name, context)
        if reason := self.refuse(request):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        return self._compute(request)

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        held = []
        number = len(self.requests_by_stream)
        self.requests_by_stream.append(0)
        for request in requests:
            self.requests_by_stream[number] += 1
            reason = self.refuse(request)
            answer = pb.ModelStreamInferResponse(error_message=reason)
            if reason and self.errors_name_their_request:
                answer.infer_response.id = request.id
            elif not reason:
                answer.infer_response.CopyFrom(self._compute(request))
            held.append(answer)
            if self.answer_in_order or len(held) == 2:
                yield from reversed(held)
                held = []
        if not self.ends_streams:
            over = threading.Event()
            if context.add_callback(over.set):
                over.wait()

    def _compute(self, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
        datatype, x = MODELS[request.model_name][0], request.raw_input_contents[0]
        shape = list(request.inputs[0].shape)
        with self._lock:
            self.seen.append(request)
            self.rows += shape[0]
            self.requests += 1
            self.batches += self.requests % self.batch_of == 0
        answer = pb.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
        answer.outputs.add(name="y", datatype=datatype, shape=shape)
        y = x if datatype == "BYTES" else (2 * np.frombuffer(x, "<f4") + 1).tobytes()
        answer.raw_output_contents.append(y)
        return answer

    def _known(self, name: str, context: Any) -> None:
        if name not in MODELS:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")


class _Handlers(grpc.GenericRpcHandler):
    """Finds the method of FakeServer and the message classes by the RPC's name."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        name = details.method.rpartition("/")[2]
        if name in self._server.missing or not hasattr(self._server, name):
            return None
        stream = name == "ModelStreamInfer"
        request_type = pb.ModelInferRequest if stream else getattr(pb, f"{name}Request")
        response_type = getattr(pb, f"{name}Response")
        make = grpc.stream_stream_rpc_method_handler if stream else grpc.unary_unary_rpc_method_handler
        return make(getattr(self._server, name), request_type.FromString, response_type.SerializeToString)
