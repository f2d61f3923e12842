"""Keepalive pings are welcome: a client may ping as often as it likes, with or without calls, and keeps its
connection.

A bare HTTP/2 client is used, since gRPC's own would need minutes to be annoying. RFC 9113 frames, no HPACK
beyond literals.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from scripted import affine
from waiting import LIMIT_S

from service._pb import inference as pb

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PINGS = 200


class Http2:
    """One connection: sends frames, receives frames."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self._file = self._socket.makefile("rb")
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.send(SETTINGS)

    def send(self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> None:
        self._socket.sendall(
            struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
        )

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Every frame that comes, as (kind, flags, stream, payload); answers settings."""
        while head := self._file.read(9):
            length = int.from_bytes(head[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            payload = self._file.read(length)
            if kind == SETTINGS and not flags & ACK:
                self.send(SETTINGS, ACK)
            yield kind, flags, stream, payload

    def call(self, stream: int, path: str) -> None:
        """A gRPC call with an empty message."""
        headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test",
                   "content-type": "application/grpc", "te": "trailers"}  # fmt: skip
        block = b"".join(
            b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in headers.items()
        )
        self.send(HEADERS, END_HEADERS, stream, block)
        self.send(DATA, END_STREAM, stream, bytes(5))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def http2(serve):
    service, _ = serve(affine())
    connection = Http2(service.grpc_port)
    yield connection
    connection.close()


def test_many_pings_without_calls_and_then_a_call_on_the_same_connection(http2):
    for number in range(PINGS):
        http2.send(PING, payload=struct.pack(">Q", number))
    http2.call(1, "/inference.GRPCInferenceService/ServerLive")
    acknowledged, body = [], b""
    for kind, flags, stream, payload in http2.frames():
        assert kind not in (GOAWAY, RST_STREAM), payload
        if kind == PING and flags & ACK:
            acknowledged.append(struct.unpack(">Q", payload)[0])
        if stream == 1 and kind == DATA:
            body += payload
        if stream == 1 and kind == HEADERS and flags & END_STREAM:
            break
    assert acknowledged == list(range(PINGS))
    assert pb.ServerLiveResponse.FromString(body[5:]).live
