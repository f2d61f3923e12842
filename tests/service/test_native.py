"""The native front end where it is more than the suite that both pass: HTTP/2, methods in Python, memory."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import struct
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from http2 import DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, Http2, answer, call_headers
from scripted import ScriptedEngine, affine, model_spec, tensor
from silent import SilentClient
from waiting import wait_until
from wire import SERVICE, Wire, infer_request, rows, status_of

pytestmark = pytest.mark.parametrize("frontend", ["native"], indirect=True)

MB = 1 << 20
PATH = f"{SERVICE}ModelInfer"


def wide() -> ScriptedEngine:
    """Four bytes in, 1 MB out."""
    spec = model_spec("wide", [tensor("x", "FP32", 1)], [tensor("y", "UINT8", MB)], max_batch_size=1)
    return ScriptedEngine(spec, lambda x: [np.full((len(x), MB), int(x[0, 0]), np.uint8)])


def megabyte():
    return infer_request("wide", x=np.ones((1, 1), np.float32))


def block(**changes: str) -> bytes:
    """Headers of a call, without compression."""
    return call_headers(PATH, **changes)


# ---- HTTP/2 and gRPC's words ----


@pytest.mark.parametrize(
    "changes, status",
    [({"content_type": "text/html"}, "415"), ({"content_type": "application/grpcish"}, "415")],
)
def test_what_is_no_grpc_is_answered_in_http(bare, changes, status):
    bare.send(HEADERS, END_HEADERS | END_STREAM, 1, block(**changes))
    assert answer(bare)[":status"] == status


def test_a_subtype_of_grpc_is_grpc(bare):
    bare.send(HEADERS, END_HEADERS | END_STREAM, 1, block(content_type="application/grpc+proto"))
    assert answer(bare)["grpc-status"] == "3", "a call without a request"


@pytest.mark.parametrize(
    "payload, code, words",
    [
        (b"\x02" + bytes(4), "13", "flag of 0 or 1"),
        (b"\x00\x00\x00\x00\x09abc", "13", "ended within a message"),
        (b"\x00\x00", "13", "ended within a message"),
        (b"", "3", "expected one request"),
        (b"\x01\x00\x00\x00\x03abc", "13", "grpc-encoding"),
        (b"\x00\x00\x00\x00\x01\xff", "3", "ModelInferRequest"),
    ],
)
def test_a_message_that_is_none_is_refused_in_words(bare, payload, code, words):
    bare.send(HEADERS, END_HEADERS, 1, block())
    bare.send(DATA, END_STREAM, 1, payload)
    found = answer(bare)
    assert found["grpc-status"] == code
    assert words in found["grpc-message"]


def test_a_message_in_frames_of_one_byte_is_one_message(serve):
    service, wire = serve(affine())
    client = Http2(service.grpc_port)
    message = infer_request("affine", x=rows(1)).SerializeToString()
    client.send(HEADERS, END_HEADERS, 1, block())
    for byte in struct.pack(">BI", 0, len(message)) + message:
        client.send(DATA, 0, 1, bytes([byte]))
    client.send(DATA, END_STREAM, 1)
    assert answer(client)["grpc-status"] == "0"
    client.close()


def test_two_messages_of_a_unary_call_are_refused(bare):
    message = infer_request("affine", x=rows(1)).SerializeToString()
    bare.send(HEADERS, END_HEADERS, 1, block())
    framed = struct.pack(">BI", 0, len(message)) + message
    bare.send(DATA, END_STREAM, 1, framed * 2)
    assert answer(bare)["grpc-status"] == "3"


def test_headers_beyond_the_bound_cost_their_call_alone(serve):
    service, wire = serve(affine())
    client = Http2(service.grpc_port)
    long = b"".join(b"\x00\x02x" + bytes([97 + i]) + b"\x7f\x81\x01" + b"v" * 256 for i in range(24)) * 3
    client.send(HEADERS, END_HEADERS, 1, block() + long[: 1 << 14])
    kinds = {kind for kind, _, stream, _ in take(client, 1)}
    assert kinds & {RST_STREAM, GOAWAY}
    client.close()
    assert wire.infer(infer_request("affine", x=rows(1))).model_name == "affine"


def take(client: Http2, stream: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Frames up to the end of a stream, or of the connection."""
    for frame in client.frames():
        yield frame
        if frame[0] == GOAWAY or (frame[2] == stream and frame[0] == RST_STREAM):
            return


def test_connections_beyond_the_bound_are_hung_up_on_and_others_go_on(serve):
    service, wire = serve(affine())
    assert wire.infer(infer_request("affine", x=rows(1))).model_name == "affine"
    clients = [socket.create_connection(("127.0.0.1", service.grpc_port)) for _ in range(300)]
    for one in clients:
        one.close()
    assert wire.infer(infer_request("affine", x=rows(1))).model_name == "affine"


# ---- compression ----


def compressed(serve, data: bytes, **settings: int) -> dict[str, str]:
    service, _ = serve(affine(), **settings)
    client = Http2(service.grpc_port)
    client.send(HEADERS, END_HEADERS, 1, block(grpc_encoding="gzip"))
    message = struct.pack(">BI", 1, len(data)) + data
    for at in range(0, len(message), 1 << 14):
        client.send(DATA, 0, 1, message[at : at + (1 << 14)])
    client.send(DATA, END_STREAM, 1)
    found = answer(client)
    client.close()
    return found


def test_a_compressed_message_is_read(serve):
    found = compressed(serve, gzip.compress(infer_request("affine", x=rows(2)).SerializeToString()))
    assert found["grpc-status"] == "0"


def test_a_small_message_that_becomes_a_huge_one_is_refused(serve):
    found = compressed(serve, gzip.compress(bytes(64 * MB)), max_message_bytes=MB)
    assert (found["grpc-status"], "--max-message-bytes" in found["grpc-message"]) == ("8", True)


def test_what_a_compressed_message_becomes_is_bounded_by_default(serve):
    found = compressed(serve, gzip.compress(bytes(65 * MB)))
    assert (found["grpc-status"], "uncompressed" in found["grpc-message"]) == ("8", True)


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"\x00" + data, lambda data: b""])
def test_a_damaged_compressed_message_is_refused(serve, damage):
    data = damage(gzip.compress(infer_request("affine", x=rows(2)).SerializeToString()))
    found = compressed(serve, data)
    assert (found["grpc-status"], "damaged" in found["grpc-message"]) == ("13", True)


# ---- methods in Python, of all four kinds ----


async def unary(request, context):
    if request == b"abort":
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION, "größer \n als 100 %", (("why-bin", b"\xff\x00"),)
        )
    await context.send_initial_metadata((("first", "1"), ("raw-bin", b"\x80")))
    context.set_trailing_metadata((("last", "2"),))
    metadata = dict(context.invocation_metadata())
    return request + metadata.get("suffix", "").encode() + metadata.get("more-bin", b"")


async def unary_stream(request, context):
    for i in range(int(request)):
        yield b"%d" % i


async def stream_unary(requests, context):
    return b"+".join([request async for request in requests])


async def stream_stream(requests, context):
    async for request in requests:
        yield request * 2


async def broken(request, context):
    raise RuntimeError("secret")


class Forever:
    """A method that ends with its call alone."""

    def __init__(self) -> None:
        self.running = self.cancelled = 0

    async def __call__(self, request, context):
        self.running += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@pytest.fixture
def forever() -> Forever:
    return Forever()


@pytest.fixture
def channel(serve, forever) -> grpc.Channel:
    service, wire = serve(affine())
    service.frontend.server.methods.add(
        {
            "/t.T/Unary": grpc.unary_unary_rpc_method_handler(unary),
            "/t.T/UnaryStream": grpc.unary_stream_rpc_method_handler(unary_stream),
            "/t.T/StreamUnary": grpc.stream_unary_rpc_method_handler(stream_unary),
            "/t.T/StreamStream": grpc.stream_stream_rpc_method_handler(stream_stream),
            "/t.T/Broken": grpc.unary_unary_rpc_method_handler(broken),
            "/t.T/Forever": grpc.unary_unary_rpc_method_handler(forever),
        }
    )
    return wire.channel


def test_unary_with_metadata_both_ways(channel):
    metadata = (("suffix", "!"), ("more-bin", b"\xfe\xff"))
    response, call = channel.unary_unary("/t.T/Unary").with_call(b"hello", metadata=metadata, timeout=30)
    assert response == b"hello!\xfe\xff"
    assert dict(call.initial_metadata())["first"] == "1"
    assert dict(call.initial_metadata())["raw-bin"] == b"\x80"
    assert dict(call.trailing_metadata())["last"] == "2"


def test_an_abort_keeps_its_words_and_its_metadata(channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/t.T/Unary")(b"abort", timeout=30)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "größer \n als 100 %"
    assert dict(caught.value.trailing_metadata())["why-bin"] == b"\xff\x00"


def test_streams_of_three_kinds(channel):
    assert list(channel.unary_stream("/t.T/UnaryStream")(b"5", timeout=30)) == [b"0", b"1", b"2", b"3", b"4"]
    assert channel.stream_unary("/t.T/StreamUnary")(iter([b"a", b"b", b"c"]), timeout=30) == b"a+b+c"
    sent = [bytes([i]) * (i * 1000) for i in range(100)]
    assert list(channel.stream_stream("/t.T/StreamStream")(iter(sent), timeout=30)) == [x * 2 for x in sent]


def test_a_defect_of_a_handler_is_unknown_and_keeps_its_secret(channel, capfd):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/t.T/Broken")(b"", timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert "secret" not in caught.value.details()
    assert "secret" in capfd.readouterr().err


def test_a_method_that_nobody_has_is_unimplemented(channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/t.T/Nobody")(b"", timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_cancel_and_a_deadline_end_the_handler(channel, forever):
    call = channel.unary_unary("/t.T/Forever").future(b"")
    wait_until(lambda: forever.running == 1, "the handler")
    call.cancel()
    wait_until(lambda: forever.cancelled == 1, "its end")
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/t.T/Forever")(b"", timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: forever.cancelled == 2, "its end")


# ---- memory ----


def test_clients_that_do_not_read_hold_nothing_of_the_workers_arena_for_ever(serve):
    """32 MB may lie in output arenas; beyond that the oldest answers are copied out: others are served."""
    engine = wide()
    service, wire = serve(engine, output_arena_mb=64, spill_mb=0)
    silent = SilentClient(service.address)
    for _ in range(100):
        silent.infer(megabyte())
    wait_until(lambda: sum(engine.batches) == 100 and service.in_flight == 0, "all of them answered")
    assert status_of(wire.infer_later(megabyte())) == "OK"
    silent.close()
    wait_until(lambda: service.frontend.server.lanes.outstanding == 0, "every slot given back")


def test_an_answer_outlives_its_worker(serve):
    """A large answer that a slow client has not read yet when the worker goes is read to its end."""
    x = rows(1, width=4 * MB)
    service, wire = serve(affine(width=4 * MB), arena_mb=64, output_arena_mb=64)
    slow = Wire(service.address)
    future = slow.infer_later(infer_request("affine", x=x))
    wait_until(lambda: service.in_flight == 0 and future.done(), "its answer")
    service.cut_link()
    assert status_of(future) == "OK"
    assert wire.call("ServerLive").live
    slow.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
def test_connections_that_come_and_go_leave_nothing(serve):
    service, wire = serve(affine())
    message = infer_request("affine", x=rows(1)).SerializeToString()

    def cycle() -> None:
        client = Http2(service.grpc_port)
        client.call(1, PATH, message)
        assert answer(client)["grpc-status"] == "0"
        client.close()

    for _ in range(200):
        cycle()
    before = anonymous_kb()
    open_before = descriptors()
    for _ in range(10_000):
        cycle()
    assert descriptors() <= open_before + 4
    assert anonymous_kb() - before < 8 << 10


def anonymous_kb() -> int:
    """Without the arenas, which are touched one granule after the other until they come round."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
