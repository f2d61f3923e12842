"""What clients may do with connections: Triton's flags, and the time for a greeting. Bare HTTP/2 clients."""

from __future__ import annotations

import socket
import struct

import pytest
from http2 import ACK, DATA, END_HEADERS, GOAWAY, HEADERS, PING, SETTINGS, Http2, answer, call_headers, frame
from scripted import affine
from waiting import LIMIT_S, wait_until
from wire import SERVICE, infer_request, rows

from service.frontend import tls

EVERY_STREAM = 2**31 - 1
NO_ERROR, ENHANCE_YOUR_CALM = 0, 11
STREAM_INFER, LIVE = f"{SERVICE}ModelStreamInfer", f"{SERVICE}ServerLive"
LONG_MS = 3_600_000
AGE_MS = 200  # enough to begin a call in
ESTABLISHED = "01"
SHORT_S = 0.05
MB = 1 << 20


def pings(client: Http2, count: int) -> None:
    """Reads until the server has asked so often, and answers each time."""
    for kind, flags, _, payload in client.frames():
        assert kind != GOAWAY, payload
        if kind == PING and not flags & ACK:
            client.send(PING, ACK, 0, payload)
            count -= 1
        if count == 0:
            return
    raise AssertionError("the connection ended")


def goaway(client: Http2) -> tuple[int, int, bytes]:
    """Last stream, code and words of the first GOAWAY."""
    payload = next(payload for kind, _, _, payload in client.frames() if kind == GOAWAY)
    return (*struct.unpack(">II", payload[:8]), payload[8:])


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


MESSAGE = framed(infer_request("affine", x=rows(1)).SerializeToString())


def open_stream(client: Http2) -> None:
    """A ModelStreamInfer call on stream 1 that has been answered once."""
    client.send(HEADERS, END_HEADERS, 1, call_headers(STREAM_INFER))
    client.send(DATA, 0, 1, MESSAGE)
    assert any(kind == DATA and stream == 1 for kind, _, stream, _ in client.frames())


def test_a_silent_client_is_asked_and_stays_while_it_answers(serve):
    service, _ = serve(affine(), grpc_keepalive_time_ms=10, grpc_keepalive_timeout_ms=60_000)
    client = Http2(service.grpc_port)
    pings(client, 3)
    client.call(1, LIVE)
    assert answer(client)["grpc-status"] == "0"
    client.close()


def test_a_client_that_does_not_answer_is_hung_up_on(serve):
    service, _ = serve(affine(), grpc_keepalive_time_ms=10, grpc_keepalive_timeout_ms=20)
    client = Http2(service.grpc_port)
    kinds = [kind for kind, flags, _, _ in client.frames() if not flags & ACK]
    assert PING in kinds, "and then the end"
    client.close()


def test_without_calls_nobody_is_asked_when_that_is_not_permitted(serve):
    service, _ = serve(
        affine(),
        grpc_keepalive_time_ms=10,
        grpc_keepalive_timeout_ms=60_000,
        grpc_keepalive_permit_without_calls=False,
    )
    idle = Http2(service.grpc_port)
    idle.call(1, LIVE)
    assert answer(idle)["grpc-status"] == "0"
    busy = Http2(service.grpc_port)
    open_stream(busy)
    pings(busy, 3)
    idle._socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        idle._socket.recv(1, socket.MSG_PEEK)
    idle.close()
    busy.close()


def test_pings_that_come_too_soon_are_strikes(serve):
    service, _ = serve(
        affine(), grpc_http2_max_ping_strikes=2, grpc_http2_min_recv_ping_interval_without_data_ms=LONG_MS
    )
    client = Http2(service.grpc_port)
    for _ in range(4):  # the first is none
        client.send(PING, 0, 0, bytes(8))
    assert goaway(client)[1:] == (ENHANCE_YOUR_CALM, b"too_many_pings")
    client.close()


def test_pings_with_data_between_them_are_none(serve):
    service, _ = serve(
        affine(), grpc_http2_max_ping_strikes=1, grpc_http2_min_recv_ping_interval_without_data_ms=LONG_MS
    )
    client = Http2(service.grpc_port)
    open_stream(client)
    for _ in range(5):
        client.send(PING, 0, 0, bytes(8))
        client.send(DATA, 0, 1, MESSAGE)
        kinds = [PING, DATA]
        for kind, flags, _, payload in client.frames():
            assert kind != GOAWAY, payload
            if kind in kinds and (kind == DATA or flags & ACK):
                kinds.remove(kind)
            if not kinds:
                break
    client.close()


def test_pings_without_calls_are_strikes_when_they_are_not_permitted(serve):
    service, _ = serve(
        affine(),
        grpc_keepalive_permit_without_calls=False,
        grpc_http2_max_ping_strikes=1,
        grpc_http2_min_recv_ping_interval_without_data_ms=0,
    )
    client = Http2(service.grpc_port)
    for _ in range(3):
        client.send(PING, 0, 0, bytes(8))
    assert goaway(client)[1:] == (ENHANCE_YOUR_CALM, b"too_many_pings")
    client.close()


def test_an_old_connection_is_told_to_go_and_its_calls_are_finished(serve):
    service, _ = serve(affine(), grpc_max_connection_age_ms=AGE_MS)
    client = Http2(service.grpc_port)
    open_stream(client)
    last = 0
    for kind, flags, _, payload in client.frames():
        if kind == PING and not flags & ACK:
            client.send(PING, ACK, 0, payload)
        if kind == GOAWAY:
            last, code = struct.unpack(">II", payload[:8])
            assert code == NO_ERROR
            if last != EVERY_STREAM:
                break
    assert last == 1
    client.send(DATA, 1, 1, MESSAGE)
    assert answer(client)["grpc-status"] == "0"
    assert list(client.frames()) == [], "and then it is closed"
    client.close()


def test_an_old_connection_is_closed_at_the_end_of_its_grace(serve):
    service, _ = serve(affine(), grpc_max_connection_age_ms=AGE_MS, grpc_max_connection_age_grace_ms=20)
    client = Http2(service.grpc_port)
    client.send(HEADERS, END_HEADERS, 1, call_headers(STREAM_INFER))
    kinds = {kind for kind, _, _, _ in client.frames()}
    assert kinds >= {SETTINGS, GOAWAY}, "and then the end, with the call open"
    client.close()


def clients_of(port: int) -> set[str]:
    """The addresses of clients that are connected."""
    lines = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # gRPC's library listens on the second
        with open(table) as sockets:
            lines += [line.split() for line in sockets]
    return {line[2] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == ESTABLISHED}


def test_an_old_connections_client_notices_nothing(serve):
    """gRPC's own goes to a new connection for its next call."""
    service, wire = serve(affine(), grpc_max_connection_age_ms=AGE_MS)
    seen: set[str] = set()

    def three_connections() -> bool:
        wire.infer(infer_request("affine", x=rows(1)))
        seen.update(clients_of(service.grpc_port))
        return len(seen) >= 3

    wait_until(three_connections, "the third connection")


def ended(client: socket.socket) -> bytes:
    """What the server says before it hangs up."""
    return b"".join(iter(lambda: client.recv(MB), b""))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", PREFACE[:9], PREFACE, PREFACE + frame(SETTINGS)[:5]])
def test_a_client_that_does_not_greet_is_hung_up_on(serve, monkeypatch, sent):
    monkeypatch.setattr(tls, "HANDSHAKE_S", SHORT_S)
    service, wire = serve(affine())
    wire.infer(infer_request("affine", x=rows(1)))
    with socket.create_connection(("127.0.0.1", service.grpc_port), LIMIT_S) as client:
        client.sendall(sent)
        ended(client)
    wire.infer(infer_request("affine", x=rows(1)))  # whose greeting was in time
