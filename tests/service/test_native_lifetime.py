"""How connections of the native front end end: what clients are told, and in which order."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from threading import Thread

import numpy as np
import pytest
from http2 import (
    ACK,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    SETTINGS,
    WINDOW_UPDATE,
    Http2,
    answer,
    frame,
    frames_of_call,
)
from scripted import ScriptedEngine, affine, model_spec, tensor
from waiting import LIMIT_S, wait_until
from wire import SERVICE, infer_request, rows

from service.frontend.native import lifetime

pytestmark = pytest.mark.parametrize("frontend", ["native"], indirect=True)

EVERY_STREAM = 2**31 - 1
NO_ERROR = 0
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
    engine = wide(MB // 2)
    service, _ = serve(engine)
    client = Http2(service.grpc_port)
    client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    client.send(SETTINGS, 0, 0, struct.pack(">HI", 4, MB))
    client.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", MB))
    client.call(1, INFER, infer_request("wide", x=np.ones((1, 1), np.float32)).SerializeToString())
    wait_until(lambda: len(engine.batches) == 1 and service.in_flight == 0, "the answer")
    service.frontend.server.lanes.go()
    wait_until(lambda: has_ended(service.grpc_port), "the end of the connection")
    assert sum(map(len, answering(client))) > MB // 2
    client.close()


def test_a_connection_without_a_greeting_is_closed_at_once(serve):
    service, _ = serve(affine())
    with socket.create_connection(("127.0.0.1", service.grpc_port), LIMIT_S) as client:
        assert client.recv(1), "the server's greeting"
        service.frontend.server.lanes.go()
        while client.recv(MB):
            pass
