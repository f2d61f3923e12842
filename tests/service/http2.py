"""A bare HTTP/2 client, for what gRPC's own would not do. RFC 9113 frames, no HPACK beyond literals."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from waiting import LIMIT_S

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4


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

    def call(self, stream: int, path: str, message: bytes = b"", flags: int = END_STREAM) -> None:
        """A gRPC call with its first message, which is its last one unless `flags` is 0."""
        headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test",
                   "content-type": "application/grpc", "te": "trailers"}  # fmt: skip
        block = b"".join(
            b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in headers.items()
        )
        self.send(HEADERS, END_HEADERS, stream, block)
        self.send(DATA, flags, stream, struct.pack(">BI", 0, len(message)) + message)

    def close(self) -> None:
        self._file.close()
        self._socket.close()
