"""A bare client of the protocol: raw gRPC and this project's own messages, so that tests see what is on the
wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
from waiting import LIMIT_S, wait_until

from service._pb import inference as pb
from service.engines.strings import packed, unpacked
from service.models.spec import datatype_of_numpy

SERVICE = "/inference.GRPCInferenceService/"


def infer_request(model: str, outputs: Iterable[str] = (), version: str = "", id: str = "", **arrays) -> Any:
    """A ModelInferRequest with these arrays, by input name, as raw contents."""
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=id)
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype=datatype_of_numpy(array.dtype), shape=array.shape)
        request.raw_input_contents.append(
            packed(array, 1).wire if array.dtype.kind == "O" else array.tobytes()
        )
    for name in outputs:
        request.outputs.add(name=name)
    return request


def output(response: Any, index: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """An output of a response, from its raw contents."""
    return np.frombuffer(response.raw_output_contents[index], dtype).reshape(response.outputs[index].shape)


def strings(values: Any) -> np.ndarray:
    """An array of BYTES."""
    return np.array(values, object)


def string_output(response: Any, index: int = 0) -> np.ndarray:
    """An output of BYTES of a response."""
    raw, shape = response.raw_output_contents[index], tuple(response.outputs[index].shape)
    return unpacked(memoryview(raw), shape)


def rows(count: int, first: float = 0.0, width: int = 4) -> np.ndarray:
    """`count` distinct FP32 rows."""
    return np.arange(count * width, dtype=np.float32).reshape(count, width) + np.float32(first)


class Wire:
    """A channel to a server."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.address = address
        options = [*unlimited, ("grpc.enable_http_proxy", 0)]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options)

    def close(self) -> None:
        self.channel.close()

    def call(self, method: str, request: Any = None, metadata: Any = None) -> Any:
        """One unary call of the service; method "ModelReady" takes a ModelReadyRequest, and so on."""
        request = getattr(pb, f"{method}Request")() if request is None else request
        answer = self.raw(f"{SERVICE}{method}", request.SerializeToString(), metadata)
        return getattr(pb, f"{method}Response").FromString(answer)

    def raw(self, path: str, data: bytes, metadata: Any = None) -> bytes:
        return self.channel.unary_unary(path)(data, timeout=LIMIT_S, metadata=metadata)

    def infer(self, request: Any) -> Any:
        return pb.ModelInferResponse.FromString(self.raw(f"{SERVICE}ModelInfer", request.SerializeToString()))

    def infer_later(self, request: Any, timeout_s: float = LIMIT_S) -> Any:
        """The call as a future; `done_response` reads it."""
        return self.channel.unary_unary(f"{SERVICE}ModelInfer").future(
            request.SerializeToString(), timeout=timeout_s
        )

    def error(self, request: Any) -> tuple[str, str]:
        """Status name and message of an Infer call that must fail. A request may be bytes."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        try:
            self.raw(f"{SERVICE}ModelInfer", data)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError("the call did not fail")

    def stream(self, metadata: Any = None) -> StreamCall:
        return StreamCall(self.channel, metadata)


def done_response(future: Any) -> Any:
    """The response of an infer_later; raises grpc.RpcError."""
    return pb.ModelInferResponse.FromString(future.result(LIMIT_S))


def status_of(future: Any) -> str:
    """The status name of an infer_later, whatever it is."""
    try:
        future.result(LIMIT_S)
    except grpc.RpcError as error:
        return error.code().name
    except grpc.FutureCancelledError:
        return "CANCELLED"
    return "OK"


class StreamCall:
    """One ModelStreamInfer call: send when you like, receive in order."""

    def __init__(self, channel: grpc.Channel, metadata: Any = None) -> None:
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self.sent = 0
        method = channel.stream_stream(f"{SERVICE}ModelStreamInfer")
        self.call = method(self._messages(), timeout=LIMIT_S, metadata=metadata)

    def _messages(self) -> Iterator[bytes]:
        while (message := self._requests.get()) is not None:
            self.sent += 1
            yield message

    def send(self, *requests: Any) -> StreamCall:
        for request in requests:
            self._requests.put(request if isinstance(request, bytes) else request.SerializeToString())
        return self

    def half_close(self) -> StreamCall:
        self._requests.put(None)
        return self

    def next(self) -> Any:
        return pb.ModelStreamInferResponse.FromString(next(self.call))

    def rest(self) -> list[Any]:
        """All answers until the stream ends OK."""
        return [pb.ModelStreamInferResponse.FromString(message) for message in self.call]

    def end(self) -> tuple[str, str]:
        """Waits for the end of the stream; its status."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        return self.call.code().name, self.call.details()

    def cancel(self) -> None:
        self.call.cancel()
        self._requests.put(None)


def hold(engine: Any, wire: Wire, request: Any) -> object:
    """Shuts the engine's gate and puts one request into it, so that what follows has to queue."""
    engine.gate.shut()
    first = wire.infer_later(request)
    engine.gate.wait_until_held()
    return first


def queue(service: Any, wire: Wire, requests: Iterable[Any]) -> list:
    """Sends requests that have to wait; returns when all of them are with the worker."""
    before = service.in_flight
    futures = [wire.infer_later(request) for request in requests]
    wait_until(lambda: service.in_flight == before + len(futures), "everything in flight")
    return futures
