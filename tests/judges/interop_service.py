"""grpc.testing.TestService, by the specification of gRPC's interoperability tests, in Python.

Messages are compiled from interop.proto here, into a descriptor pool of their own.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

PROTO = Path(__file__).with_name("interop.proto")
INITIAL, TRAILING = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"


def compiled() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    with tempfile.NamedTemporaryFile(suffix=".binpb") as found:
        arguments = ["protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={found.name}", str(PROTO)]
        assert protoc.main(arguments) == 0
        for file in descriptor_pb2.FileDescriptorSet.FromString(found.read()).file:
            pool.Add(file)
    return pool


POOL = compiled()
SERVICE = POOL.FindServiceByName("grpc.testing.TestService")


def message(name: str) -> Any:
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"grpc.testing.{name}"))


async def echo_metadata(context: Any) -> None:
    sent = dict(context.invocation_metadata())
    if INITIAL in sent:
        await context.send_initial_metadata([(INITIAL, sent[INITIAL])])
    if TRAILING in sent:
        context.set_trailing_metadata([(TRAILING, sent[TRAILING])])


async def expect_compressed(request: Any, context: Any) -> None:
    """The request's word about itself: a client uses it to see whether the server can tell."""
    if request.HasField("expect_compressed") and request.expect_compressed.value != context.read_compressed():
        words = "compressed" if request.expect_compressed.value else "as it is"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"expected a message that comes {words}")


async def echo_status(request: Any, context: Any) -> None:
    status = request.response_status
    if status.code:
        code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
        await context.abort(code, status.message)


def payload(size: int) -> Any:
    return message("Payload")(body=bytes(size))


async def empty_call(request: Any, context: Any) -> Any:
    return message("Empty")()


async def unary_call(request: Any, context: Any) -> Any:
    await expect_compressed(request, context)
    if request.response_compressed.value:
        context.set_compression(grpc.Compression.Gzip)
    await echo_metadata(context)
    await echo_status(request, context)
    return message("SimpleResponse")(payload=payload(request.response_size))


async def responses(wanted: Iterable[Any], context: Any) -> AsyncIterator[Any]:
    for one in wanted:
        await asyncio.sleep(one.interval_us / 1e6)
        if not one.compressed.value:
            context.disable_next_message_compression()
        yield message("StreamingOutputCallResponse")(payload=payload(one.size))


async def streaming_output_call(request: Any, context: Any) -> AsyncIterator[Any]:
    if any(one.compressed.value for one in request.response_parameters):
        context.set_compression(grpc.Compression.Gzip)
    async for response in responses(request.response_parameters, context):
        yield response


async def streaming_input_call(requests: AsyncIterator[Any], context: Any) -> Any:
    size = 0
    async for request in requests:
        await expect_compressed(request, context)
        size += len(request.payload.body)
    return message("StreamingInputCallResponse")(aggregated_payload_size=size)


async def full_duplex_call(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    await echo_metadata(context)
    async for request in requests:
        await echo_status(request, context)
        async for response in responses(request.response_parameters, context):
            yield response


KINDS = {
    "EmptyCall": (grpc.unary_unary_rpc_method_handler, empty_call),
    "UnaryCall": (grpc.unary_unary_rpc_method_handler, unary_call),
    "StreamingOutputCall": (grpc.unary_stream_rpc_method_handler, streaming_output_call),
    "StreamingInputCall": (grpc.stream_unary_rpc_method_handler, streaming_input_call),
    "FullDuplexCall": (grpc.stream_stream_rpc_method_handler, full_duplex_call),
}


def handlers() -> dict[str, Any]:
    """The service's methods, by path."""
    found = {}
    for name, (kind, function) in KINDS.items():
        method = SERVICE.methods_by_name[name]
        found[f"/{SERVICE.full_name}/{name}"] = kind(
            function,
            request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
    return found
