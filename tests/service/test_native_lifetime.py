"""How connections of the native front end end: by which time, and what clients are told, in which order."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from threading import Thread

import numpy as np
import pytest
from http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    SETTINGS,
    WINDOW_UPDATE,
    Http2,
    answer,
    call_headers,
    frame,
    frames_of_call,
)
from scripted import ScriptedEngine, affine, model_spec, tensor
from waiting import LIMIT_S, wait_until
from wire import SERVICE, infer_request, rows

from service.frontend import tls
from service.frontend.native import lifetime, server

pytestmark = pytest.mark.parametrize("frontend", ["native"], indirect=True)

EVERY_STREAM = 2**31 - 1
NO_ERROR, ENHANCE_YOUR_CALM = 0, 11
SHORT_S = 0.02
MB = 1 << 20
FIN_WAIT1 = "04"
INFER, LIVE = f"{SERVICE}ModelInfer", f"{SERVICE}ServerLive"


def greeted(port: int) -> Http2:
    """A client whose greeting has been read."""
    client = Http2(port)
    client.send(PING, 0, 0, b"progress")
    until(client, PING)
    return client


def until(client: Http2, kind: int) -> bytes:
    """The payload of the first frame of this kind."""
    return next(payload for found, _, _, payload in client.frames() if found == kind)


def goaway(payload: bytes) -> tuple[int, int]:
    """The last stream, and the code."""
    return struct.unpack(">II", payload[:8])


def noticed(client: Http2) -> bytes:
    """Reads the notice and the PING behind it, whose payload this is."""
    kinds = []
    for kind, flags, _, payload in client.frames():
        if kind in (GOAWAY, PING):
            kinds.append(kind)
        if kind == GOAWAY:
            assert goaway(payload) == (EVERY_STREAM, NO_ERROR)
        if kind == PING:
            assert kinds == [GOAWAY, PING] and not flags & ACK
            return payload
    raise AssertionError(f"the connection ended after {kinds}")


def rest(client: Http2) -> list[tuple[int, int, int, bytes]]:
    """Every frame up to the end of the connection, in order."""
    return list(client.frames())


def test_calls_that_come_before_the_notice_is_acknowledged_are_served(serve):
    service, _ = serve(affine())
    client = greeted(service.grpc_port)
    service.frontend.server.lanes.go()
    ping = noticed(client)
    client.write(frames_of_call(1, INFER, infer_request("affine", x=rows(1)).SerializeToString()))
    client.write(frames_of_call(3, LIVE) + frame(PING, ACK, 0, ping))
    found = rest(client)
    ended = {stream for kind, flags, stream, _ in found if kind == HEADERS and flags & 1}
    assert ended == {1, 3}
    assert [goaway(payload) for kind, _, _, payload in found if kind == GOAWAY] == [(3, NO_ERROR)]
    client.close()


def test_the_connection_goes_when_its_last_call_is_over(serve):
    engine = affine()
    engine.gate.shut()
    service, _ = serve(engine)
    client = greeted(service.grpc_port)
    client.call(1, INFER, infer_request("affine", x=rows(1)).SerializeToString())
    wait_until(lambda: service.in_flight == 1, "the request")
    service.frontend.server.lanes.go()
    client.send(PING, ACK, 0, noticed(client))
    assert goaway(until(client, GOAWAY)) == (1, NO_ERROR)
    client.call(3, LIVE)  # too late: it is not answered
    engine.gate.open()
    assert answer(client)["grpc-status"] == "0"
    assert [found for found in rest(client) if found[2] == 3] == []
    client.close()
    wait_until(lambda: service.frontend.server.lanes.unsent == 0, "the connection is gone")


def test_a_client_that_does_not_acknowledge_is_told_all_the_same(serve, monkeypatch):
    monkeypatch.setattr(lifetime, "NOTICE_S", SHORT_S)
    service, _ = serve(affine())
    client = greeted(service.grpc_port)
    service.frontend.server.lanes.go()
    noticed(client)
    client.send(PING, ACK, 0, b"whatever")
    assert [goaway(payload) for kind, _, _, payload in rest(client) if kind == GOAWAY] == [(0, NO_ERROR)]
    client.close()


def test_a_drain_ends_connections_in_two_steps(serve):
    service, _ = serve(affine())
    client = greeted(service.grpc_port)
    drained = Thread(target=service.drain)
    drained.start()
    ping = noticed(client)
    client.write(frames_of_call(1, INFER, infer_request("affine", x=rows(1)).SerializeToString()))
    client.send(PING, ACK, 0, ping)
    assert answer(client)["grpc-status"] == "14", "the server ends"
    assert [goaway(payload) for kind, _, _, payload in rest(client) if kind == GOAWAY] == [(1, NO_ERROR)]
    client.close()
    drained.join()


def last_code(client: Http2) -> int:
    """Of the GOAWAY with which the connection ends."""
    return [goaway(payload)[1] for kind, _, _, payload in rest(client) if kind == GOAWAY][-1]


HEAD = call_headers(INFER)
WHOLE = frame(HEADERS, END_HEADERS, 1, HEAD)
HALF = {
    "in a frame": WHOLE[:40],
    "at its beginning": WHOLE[:9],
    "between frames": frame(HEADERS, 0, 1, HEAD),
    "in a continuation": frame(HEADERS, 0, 1, HEAD) + frame(CONTINUATION, END_HEADERS, 1, HEAD)[:20],
    "behind others": frames_of_call(1, LIVE) + frame(HEADERS, 0, 3, HEAD),
}


@pytest.mark.parametrize("where", HALF)
def test_headers_that_stop_are_the_end(serve, monkeypatch, where):
    monkeypatch.setattr(lifetime, "HEADERS_S", SHORT_S)
    service, _ = serve(affine())
    client = greeted(service.grpc_port)
    client.write(HALF[where])
    assert last_code(client) == ENHANCE_YOUR_CALM
    client.close()


def test_headers_that_dribble_are_the_end(serve, monkeypatch):
    """A byte at a time, for as long as it is let."""
    monkeypatch.setattr(lifetime, "HEADERS_S", SHORT_S)
    service, _ = serve(affine())
    client = greeted(service.grpc_port)
    client.write(struct.pack(">I", MB // 2)[1:] + struct.pack(">BBI", HEADERS, END_HEADERS, 1) + HEAD)
    client.write(b"\x00\x01x\x7f\x80\x4e")  # and a header of 10111 bytes

    def hung_up_on() -> bool:
        try:
            client.write(b"v")
        except OSError:
            return True
        return False

    wait_until(hung_up_on, "the end")
    client.close()


def test_what_comes_after_whole_headers_has_its_own_time(serve, monkeypatch):
    monkeypatch.setattr(lifetime, "HEADERS_S", SHORT_S)
    service, _ = serve(affine())
    patient, other = greeted(service.grpc_port), greeted(service.grpc_port)
    patient.write(frame(HEADERS, 0, 1, HEAD))
    patient.write(frame(CONTINUATION, END_HEADERS, 1))
    other.write(HALF["in a frame"])
    assert last_code(other) == ENHANCE_YOUR_CALM, "which began later"
    message = infer_request("affine", x=rows(1)).SerializeToString()
    patient.send(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(message)) + message)
    assert answer(patient)["grpc-status"] == "0"
    patient.close()
    other.close()


def wide(size: int) -> ScriptedEngine:
    spec = model_spec("wide", [tensor("x", "FP32", 1)], [tensor("y", "UINT8", size)], max_batch_size=1)
    return ScriptedEngine(spec, lambda x: [np.full((len(x), size), 7, np.uint8)])


def answering(client: Http2) -> Iterator[bytes]:
    """The DATA of an answer, whose reader says something after each, as readers of large ones do."""
    for kind, _, _, payload in client.frames():
        if kind == DATA:
            client.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", max(1, len(payload))))
            yield payload
        if kind == HEADERS and dict(client.decoder.decode(payload)).get("grpc-status") == "0":
            return
    raise AssertionError("the answer broke off")


def has_ended(port: int) -> bool:
    """Whether the server of this port has ended a connection, to a client that does not know yet."""
    with open("/proc/net/tcp") as sockets:
        lines = [line.split() for line in sockets]
    return any(line[1].endswith(f":{port:04X}") and line[3] == FIN_WAIT1 for line in lines)


def test_an_answer_on_its_way_arrives_whole_when_the_connection_goes(serve, monkeypatch):
    """All of it is the kernel's, and the connection ended, before its client reads a byte."""
    monkeypatch.setattr(lifetime, "NOTICE_S", SHORT_S)
    engine = wide(MB // 8)
    service, _ = serve(engine)
    client = Http2(service.grpc_port)
    client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    client.send(SETTINGS, 0, 0, struct.pack(">HI", 4, MB))
    client.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", MB))
    client.call(1, INFER, infer_request("wide", x=np.ones((1, 1), np.float32)).SerializeToString())
    wait_until(lambda: len(engine.batches) == 1 and service.in_flight == 0, "the answer")
    service.frontend.server.lanes.go()
    wait_until(lambda: has_ended(service.grpc_port), "the end of the connection")
    assert sum(map(len, answering(client))) > MB // 8
    client.close()


def test_a_client_that_does_not_close_its_end_is_not_waited_for(serve, monkeypatch):
    monkeypatch.setattr(lifetime, "LINGER_S", SHORT_S)
    service, _ = serve(affine())
    client = greeted(service.grpc_port)
    service.frontend.server.lanes.go()
    client.send(PING, ACK, 0, noticed(client))
    assert GOAWAY in [kind for kind, _, _, _ in rest(client)]
    wait_until(lambda: service.frontend.server.lanes.unsent == 0, "the end")
    client.close()


def test_a_connection_without_a_greeting_is_closed_at_once(serve):
    service, _ = serve(affine())
    with socket.create_connection(("127.0.0.1", service.grpc_port), LIMIT_S) as client:
        assert client.recv(1), "the server's greeting"
        service.frontend.server.lanes.go()
        while client.recv(MB):
            pass


def is_closed(client: socket.socket) -> bool:
    """Whether nobody takes our bytes any more."""
    try:
        client.sendall(b"x")
    except OSError:
        return True
    return False


@pytest.mark.parametrize("handshake_s", [SHORT_S, 60.0])
def test_a_client_that_greets_wrongly_and_stays_is_not_kept(serve, monkeypatch, handshake_s):
    monkeypatch.setattr(lifetime, "LINGER_S", SHORT_S)
    monkeypatch.setattr(tls, "HANDSHAKE_S", handshake_s)
    service, _ = serve(affine())
    with socket.create_connection(("127.0.0.1", service.grpc_port), LIMIT_S) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(PING, 0, 0, bytes(8)))
        while client.recv(MB):  # what is wrong, and the end of what is said
            pass
        wait_until(lambda: is_closed(client), "the end of the connection")


class Hurried:
    """A clock on which a second passes whenever it is looked at."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 1
        return self.now_s


def test_a_drain_waits_for_answers_that_are_being_read(serve, monkeypatch):
    clock = Hurried()
    engine = wide(16 * MB)
    service, _ = serve(engine, arena_mb=64, output_arena_mb=64, drain_timeout_s=86400)
    client = Http2(service.grpc_port)
    client.send(SETTINGS, 0, 0, struct.pack(">HI", 4, 64 * MB))
    client.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", 64 * MB))
    client.call(1, INFER, infer_request("wide", x=np.ones((1, 1), np.float32)).SerializeToString())
    wait_until(lambda: len(engine.batches) == 1 and service.in_flight == 0, "the answer")
    monkeypatch.setattr(server, "time", clock)
    drained = Thread(target=service.drain)
    drained.start()
    wait_until(lambda: clock.now_s > 20, "a long time")
    assert sum(len(payload) for kind, _, _, payload in client.frames() if kind == DATA) > 16 * MB
    client.close()
    drained.join()
