"""Answers of methods in Python, compressed: what is on the wire, and what grpcio makes of it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator

import grpc
import pytest
from http2 import DATA, END_HEADERS, END_STREAM, HEADERS, Answered, Http2, answered, call_headers, framed
from scripted import affine

pytestmark = pytest.mark.parametrize("frontend", ["native"], indirect=True)

LONG = b"a" * 20_000  # twice of it is within the window of a client that never widens it
GZIP, DEFLATE = grpc.Compression.Gzip, grpc.Compression.Deflate


async def gzipped(request, context):
    context.set_compression(GZIP)
    return request


async def deflated(request, context):
    context.set_compression(DEFLATE)
    await context.send_initial_metadata((("first", "1"),))
    return request


async def every_other(request, context):
    context.set_compression(GZIP)
    for i in range(4):
        if i % 2:
            context.disable_next_message_compression()
        yield request


async def how_it_came(requests, context):
    async for _ in requests:
        yield b"compressed" if context.read_compressed() else b"as it is"


async def too_late(request, context):
    await context.send_initial_metadata(())
    with pytest.raises(RuntimeError, match="expected set_compression before the initial metadata"):
        context.set_compression(GZIP)
    return request


METHODS = {
    "/t.T/Gzipped": grpc.unary_unary_rpc_method_handler(gzipped),
    "/t.T/Deflated": grpc.unary_unary_rpc_method_handler(deflated),
    "/t.T/EveryOther": grpc.unary_stream_rpc_method_handler(every_other),
    "/t.T/HowItCame": grpc.stream_stream_rpc_method_handler(how_it_came),
    "/t.T/TooLate": grpc.unary_unary_rpc_method_handler(too_late),
}

Ask = Callable[..., Answered]


@pytest.fixture
def ask(serve) -> Iterator[Ask]:
    """ask(path, *framed messages, **headers): what a bare client is answered."""
    service, _ = serve(affine())
    service.frontend.server.methods.add(METHODS)
    client = Http2(service.grpc_port)

    def call(path: str, *sent: bytes, **headers: str) -> Answered:
        client.send(HEADERS, END_HEADERS, 1, call_headers(path, **headers))
        data = b"".join(sent)
        for at in range(0, len(data), 1 << 14):
            client.send(DATA, 0, 1, data[at : at + (1 << 14)])
        client.send(DATA, END_STREAM, 1)
        return answered(client)

    yield call
    client.close()


def test_an_answer_is_compressed_for_who_reads_that(ask):
    headers, [(flag, message)] = ask("/t.T/Gzipped", framed(LONG), grpc_accept_encoding="deflate, gzip")
    assert (headers["grpc-status"], headers["grpc-encoding"], flag) == ("0", "gzip", 1)
    assert "gzip" in headers["grpc-accept-encoding"].split(",")
    assert len(message) < 1000
    assert gzip.decompress(message) == LONG


def test_deflate_is_said_beside_the_handlers_own_metadata(ask):
    headers, [(flag, message)] = ask("/t.T/Deflated", framed(LONG), grpc_accept_encoding="identity,deflate")
    assert (headers["grpc-encoding"], headers["first"], flag) == ("deflate", "1", 1)
    assert zlib.decompress(message) == LONG


@pytest.mark.parametrize("headers", [{}, {"grpc_accept_encoding": "identity,deflate,gzipped"}])
def test_who_does_not_read_it_is_answered_as_it_is(ask, headers):
    found, answer = ask("/t.T/Gzipped", framed(LONG), **headers)
    assert "grpc-encoding" not in found
    assert answer == [(0, LONG)]


@pytest.mark.parametrize("message", [b"", b"x", bytes(range(256))])
def test_what_would_get_no_smaller_is_sent_as_it_is(ask, message):
    headers, answer = ask("/t.T/Gzipped", framed(message), grpc_accept_encoding="gzip")
    assert headers["grpc-encoding"] == "gzip"
    assert answer == [(0, message)]


def test_single_messages_can_be_left_as_they_are(ask):
    headers, answer = ask("/t.T/EveryOther", framed(LONG), grpc_accept_encoding="gzip")
    assert headers["grpc-encoding"] == "gzip"
    assert [flag for flag, _ in answer] == [1, 0, 1, 0]
    assert answer[1][1] == LONG == gzip.decompress(answer[2][1])


def test_a_handler_can_see_whether_a_message_came_compressed(ask):
    sent = [framed(gzip.compress(LONG), 1), framed(LONG), framed(gzip.compress(b""), 1)]
    _, answer = ask("/t.T/HowItCame", *sent, grpc_encoding="gzip")
    assert answer == [(0, b"compressed"), (0, b"as it is"), (0, b"compressed")]


def test_compression_is_chosen_before_the_headers_are_sent(ask):
    assert ask("/t.T/TooLate", framed(b"x"), grpc_accept_encoding="gzip")[1] == [(0, b"x")]


def test_grpcio_reads_what_is_compressed(serve):
    service, wire = serve(affine())
    service.frontend.server.methods.add(METHODS)
    assert wire.raw("/t.T/Gzipped", LONG) == LONG
    assert wire.raw("/t.T/Deflated", LONG) == LONG
    assert list(wire.channel.unary_stream("/t.T/EveryOther")(LONG, timeout=60)) == [LONG] * 4
