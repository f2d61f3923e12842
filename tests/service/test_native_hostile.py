"""Peers that mean harm, against the native front end: each is bounded, gets a GOAWAY if it floods, and others
are served meanwhile. `native_connection.c` lists the limits.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2,
    answer,
    call_headers,
    frame,
)
from scripted import ScriptedEngine, affine, model_spec, tensor
from silent import SilentClient
from waiting import LIMIT_S, wait_until
from wire import SERVICE, Wire, infer_request, output, rows, status_of

pytestmark = pytest.mark.parametrize("frontend", ["native"], indirect=True)

INTERNAL_ERROR, ENHANCE_YOUR_CALM, CANCEL = 2, 11, 8
KB, MB = 1 << 10, 1 << 20
INFER, STREAM_INFER = f"{SERVICE}ModelInfer", f"{SERVICE}ModelStreamInfer"
MOST_BYTES = 256 * MB  # that a flood sends before the test gives up
UNKNOWN = 0x77  # a type of frame that nobody knows
START = frame(HEADERS, END_HEADERS, 1, call_headers(INFER))


def anonymous() -> int:
    """Bytes of this process, the server's among them, without the arenas."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * KB


def check(wire: Wire) -> None:
    assert (output(wire.infer(infer_request("affine", x=rows(1)))) == 2 * rows(1) + 1).all()


def last_words(client: Http2) -> int | None:
    """The code of the GOAWAY that comes; None: none came before the end."""
    try:
        for kind, _, _, payload in client.frames():
            if kind == GOAWAY:
                return int.from_bytes(payload[4:8], "big")
    except OSError:
        pass
    return None


def acknowledged(client: Http2) -> int | None:
    """Reads until the server is as far as this; the code of a GOAWAY that comes before."""
    client.send(PING, 0, 0, b"progress")
    for kind, _, _, payload in client.frames():
        if kind == GOAWAY:
            return int.from_bytes(payload[4:8], "big")
        if kind == PING and payload == b"progress":
            return None
    raise ConnectionResetError


def flood(client: Http2, bursts: Iterator[bytes]) -> int | None:
    """Sends until the server has enough. The code of its GOAWAY; None: it sent none."""
    sent = 0
    try:
        for burst in bursts:
            client.write(burst)
            sent += len(burst)
            assert sent < MOST_BYTES, "the server takes it for ever"
            if (code := acknowledged(client)) is not None:
                return code
    except OSError:
        return last_words(client)
    raise AssertionError(f"{sent} bytes were no flood")


def again(data: bytes, times: int) -> Callable[[], Iterator[bytes]]:
    def bursts() -> Iterator[bytes]:
        while True:
            yield data * times

    return bursts


def rapid_resets() -> Iterator[bytes]:
    for first in range(3, 1 << 20, 200):
        yield b"".join(
            frame(HEADERS, END_HEADERS, stream, call_headers(INFER))
            + frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))
            for stream in range(first, first + 200, 2)
        )


def continuations() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 3, call_headers(INFER)) + frame(CONTINUATION, 0, 3) * 10_000


def large_settings() -> Iterator[bytes]:
    yield frame(SETTINGS, 0, 0, struct.pack(">HI", 0x99, 1) * 100)


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "ping": again(frame(PING, 0, 0, bytes(8)), 500),
    "empty data": again(frame(DATA, 0, 1), 5000),
    "settings": again(frame(SETTINGS), 500),
    "settings of many entries": large_settings,
    "window update": again(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)), 5000),
    "window update of a stream": again(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)), 5000),
    "priority": again(frame(PRIORITY, 0, 1, struct.pack(">IB", 0, 1)), 5000),
    "frames that nobody knows": again(frame(UNKNOWN, 0, 0, bytes(KB)), 1000),
    "rapid reset": rapid_resets,
    "continuation": continuations,
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_peer_that_floods_is_told_to_go_and_is_gone(serve, kind):
    service, wire = serve(affine())
    check(wire)
    client = Http2(service.grpc_port)
    client.write(START)
    before = anonymous()
    assert flood(client, FLOODS[kind]()) in (ENHANCE_YOUR_CALM, INTERNAL_ERROR)
    assert anonymous() - before < 8 * MB
    check(wire)
    client.close()


def unanswered_headers() -> Iterator[bytes]:
    """Calls that are reset, because their headers are too large: 600 bytes each."""
    many = call_headers(INFER, **{f"x{i}": "v" for i in range(500)})
    for first in range(3, 1 << 24, 200):
        yield b"".join(frame(HEADERS, END_HEADERS, stream, many) for stream in range(first, first + 200, 2))


UNREAD: dict[str, Callable[[], Iterator[bytes]]] = {
    "acknowledgements of pings": FLOODS["ping"],
    "acknowledgements of settings": FLOODS["settings"],
    "resets": unanswered_headers,
}


@pytest.mark.parametrize("kind", UNREAD)
def test_a_peer_that_does_not_read_what_it_brings_about_is_hung_up_on(serve, kind):
    service, wire = serve(affine())
    check(wire)
    before = anonymous()
    client = Http2(service.grpc_port)
    sent = 0
    with pytest.raises(OSError):
        for burst in UNREAD[kind]():
            client.write(burst)
            sent += len(burst)
            assert sent < MOST_BYTES
    assert anonymous() - before < 16 * MB
    check(wire)
    client.close()


def test_a_long_stream_is_no_flood(serve):
    """Ten times as many PINGs as are allowed in a row, with messages in between, as clients send them that
    measure the bandwidth."""
    service, wire = serve(affine())
    client = Http2(service.grpc_port)
    message = infer_request("affine", x=rows(1)).SerializeToString()
    framed = struct.pack(">BI", 0, len(message)) + message
    client.send(HEADERS, END_HEADERS, 1, call_headers(STREAM_INFER))
    for _ in range(20):
        client.send(DATA, 0, 1, framed)
        client.write(frame(PING, 0, 0, bytes(8)) * 900)
        assert acknowledged(client) is None
    client.send(DATA, END_STREAM, 1)
    assert answer(client)["grpc-status"] == "0"
    client.close()


def long_header(length: int) -> bytes:
    """A header of this many bytes that goes into the table."""
    rest, number = length - 127, bytearray()
    while rest >= 128:
        number.append(rest & 127 | 128)
        rest >>= 7
    number.append(rest)
    return b"\x40\x01x" + b"\x7f" + number + b"v" * length


def is_reset(client: Http2, stream: int) -> bool:
    return any(kind == RST_STREAM and number == stream for kind, _, number, _ in until_end(client, stream))


def until_end(client: Http2, stream: int) -> Iterator[tuple[int, int, int, bytes]]:
    for found in client.frames():
        yield found
        if found[0] == GOAWAY or (found[2] == stream and (found[0] == RST_STREAM or found[1] & END_STREAM)):
            return


def test_headers_that_unfold_cost_their_call_alone(serve):
    """One header of 3900 bytes in the table, and then its number 900,000 times: 3.5 GB."""
    service, wire = serve(affine())
    check(wire)
    client = Http2(service.grpc_port)
    before = anonymous()
    client.send(HEADERS, END_HEADERS | END_STREAM, 1, call_headers(INFER) + long_header(3900))
    assert answer(client)["grpc-status"] == "3", "a call without a request: its headers are not too large"
    for stream in range(3, 13, 2):
        client.send(HEADERS, END_HEADERS | END_STREAM, stream, call_headers(INFER) + b"\xbe" * 900_000)
        assert is_reset(client, stream)
    assert anonymous() - before < 16 * MB
    client.call(13, INFER, infer_request("affine", x=rows(1)).SerializeToString())
    assert answer(client, 13)["grpc-status"] == "0", "the connection goes on"
    client.close()


def test_connections_that_send_half_of_their_headers_cost_little(serve):
    service, wire = serve(affine())
    check(wire)
    before = anonymous()
    clients = [Http2(service.grpc_port) for _ in range(200)]
    for client in clients:
        head = struct.pack(">I", MB)[1:] + struct.pack(">BBI", HEADERS, END_HEADERS, 1)
        client.write(head + call_headers(INFER) + long_header(40_000)[:30_000])
    check(wire)
    assert (anonymous() - before) / len(clients) < 128 * KB
    for client in clients:
        client.close()


def test_messages_that_are_announced_and_do_not_come_cost_what_has_come(serve):
    """A thousand calls of 2 GB each, of which 100 bytes come."""
    service, wire = serve(affine())
    check(wire)
    before = anonymous()
    clients = [Http2(service.grpc_port) for _ in range(4)]
    for client in clients:
        for stream in range(1, 500, 2):
            client.send(HEADERS, END_HEADERS, stream, call_headers(INFER))
            client.send(DATA, 0, stream, struct.pack(">BI", 0, 2**31 - 1) + bytes(100))
        assert acknowledged(client) is None
    wait_until(lambda: service.frontend.server.calls == 1000, "all of them begun")
    assert anonymous() - before < 32 * MB
    check(wire)
    for client in clients:
        client.close()
    wait_until(lambda: service.frontend.server.calls == 0, "all of them gone")


def half_of(client: Http2, stream: int, length: int) -> None:
    """Sends half of a message of `length` bytes."""
    client.send(HEADERS, END_HEADERS, stream, call_headers(INFER))
    client.send(DATA, 0, stream, struct.pack(">BI", 0, length))
    for _ in range(length // 2 // (16 * KB)):
        client.send(DATA, 0, stream, bytes(16 * KB))


@pytest.mark.parametrize(
    ("connections", "calls", "length"), [(4, 1, 8 * MB), (1, 32, 2 * MB), (2, 8, 6 * MB)]
)
def test_large_messages_that_stop_in_the_middle_hold_up_no_small_ones(serve, connections, calls, length):
    """More than the input arena has, all of it half sent."""
    service, wire = serve(affine(), arena_mb=16, spill_mb=0)
    clients = [Http2(service.grpc_port) for _ in range(connections)]
    for client in clients:
        for number in range(calls):
            half_of(client, 2 * number + 1, length)
        assert acknowledged(client) is None
    assert service.frontend.server.arena_used > 0, "halves of them"
    for _ in range(50):
        check(wire)
    for client in clients:
        client.close()
    wait_until(lambda: service.frontend.server.calls == 0, "all of them gone")
    wait_until(lambda: service.frontend.server.arena_used == 0, "nothing of them left")
    check(wire)


def test_readers_that_stop_cost_their_own_answers(serve):
    """Answers of 1 MB: connections that read nothing, and others that are answered."""
    spec = model_spec("wide", [tensor("x", "FP32", 1)], [tensor("y", "UINT8", MB)], max_batch_size=1)
    wide = ScriptedEngine(spec, lambda x: [np.full((len(x), MB), int(x[0, 0]), np.uint8)])
    service, wire = serve(affine(), wide, answer_mb=32)
    request = infer_request("wide", x=np.ones((1, 1), np.float32))
    before = anonymous()
    silent = [SilentClient(service.address) for _ in range(4)]
    for _ in range(5):
        for client in silent:
            client.infer(request)
    wait_until(lambda: service.in_flight == 0 and sum(wide.batches) == 20, "all of them answered")
    for _ in range(20):
        check(wire)
        assert status_of(wire.infer_later(request)) == "OK"
    assert anonymous() - before < 2 * 32 * MB
    for client in silent:
        client.close()
    wait_until(lambda: service.frontend.server.outstanding == 0, "every slot given back")


def test_a_peer_of_another_protocol_is_told_so(serve):
    service, wire = serve(affine())
    with socket.create_connection(("127.0.0.1", service.grpc_port), LIMIT_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        said = b"".join(iter(lambda: client.recv(MB), b""))
    assert frame(GOAWAY)[3:4] in said, "whatever it makes of it"
    check(wire)


def test_idle_connections_are_small(serve):
    service, wire = serve(affine())
    message = infer_request("affine", x=rows(1)).SerializeToString()
    check(wire)
    before = anonymous()
    clients = [Http2(service.grpc_port) for _ in range(300)]
    for client in clients:
        client.call(1, INFER, message)
        assert answer(client)["grpc-status"] == "0"
    assert (anonymous() - before) / len(clients) < 64 * KB, "the client's side among it"
    for client in clients:
        client.close()
