"""A bare HTTP/2 client, for what gRPC's own would not do. RFC 9113 frames, no HPACK beyond literals."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator

from hpack import Decoder
from waiting import LIMIT_S

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(6, 10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
Answered = tuple[dict[str, str], list[tuple[int, bytes]]]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """A frame as it is sent."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literals(headers: dict[str, str]) -> bytes:
    """A header block without compression, of values shorter than 127 bytes."""
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )


def call_headers(path: str, **others: str) -> bytes:
    """The header block of a gRPC call."""
    headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test",
               "content-type": "application/grpc", "te": "trailers"}  # fmt: skip
    return literals(headers | {name.replace("_", "-"): value for name, value in others.items()})


def frames_of_call(stream: int, path: str, message: bytes = b"", flags: int = END_STREAM) -> bytes:
    """A gRPC call with its first message, which is its last one unless `flags` is 0."""
    data = struct.pack(">BI", 0, len(message)) + message
    return frame(HEADERS, END_HEADERS, stream, call_headers(path)) + frame(DATA, flags, stream, data)


class Http2:
    """One connection: sends frames, receives frames."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # many small sends are our way
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
        self._file = self._socket.makefile("rb")
        self.decoder = Decoder()
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.send(SETTINGS)
        # Acknowledged: until then the server's windows are small.
        assert next(self.frames())[0] == SETTINGS

    def send(self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> None:
        self.write(frame(kind, flags, stream, payload))

    def write(self, data: bytes) -> None:
        """Bytes of any number of frames. OSError: the server has hung up."""
        self._socket.sendall(data)

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
        """Sends `frames_of_call`."""
        self.write(frames_of_call(stream, path, message, flags))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def answer(client: Http2, stream: int = 1) -> dict[str, str]:
    """All headers and trailers of a call's answer."""
    found: dict[str, str] = {}
    for kind, flags, number, payload in client.frames():
        if kind == HEADERS:
            found |= dict(client.decoder.decode(payload))
        if number == stream and (kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM)):
            return found
    raise AssertionError(f"the connection ended after {found}")


def framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(flag, message) of each."""
    while data:
        flag, length = struct.unpack(">BI", data[:5])
        yield flag, data[5 : 5 + length]
        data = data[5 + length :]


def answered(client: Http2) -> Answered:
    """The headers and trailers of the call, and its messages as they came."""
    headers: dict[str, str] = {}
    data = b""
    for kind, flags, stream, payload in client.frames():
        if kind == HEADERS and stream == 1:
            headers |= dict(client.decoder.decode(payload))
        if kind == DATA and stream == 1:
            data += payload
        if stream == 1 and flags & END_STREAM:
            break
    return headers, list(messages(data))
