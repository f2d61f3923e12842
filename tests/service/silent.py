"""A client that speaks just enough HTTP/2 to start calls and never reads an answer: its window is empty."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

from wire import SERVICE

_HEADERS, _SETTINGS = 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW_SIZE = 4


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class SilentClient:
    """One connection. What the server sends beside answers is taken and thrown away."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, settings))
        self._next = 1
        threading.Thread(target=self._discard, daemon=True).start()

    def _discard(self) -> None:
        try:
            while self._socket.recv(65536):
                pass
        except OSError:
            pass

    def begin(self, method: str = "ModelInfer") -> int:
        """Starts a call without a message; the number of its stream."""
        stream, self._next = self._next, self._next + 2
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"{SERVICE}{method}".encode()),
            (b":authority", b"silent"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
        block = b"".join(_literal(name, value) for name, value in headers)
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, stream, block))
        return stream

    def infer(self, request: Any) -> None:
        """A whole call, up to 16 KB."""
        stream = self.begin()
        message = request.SerializeToString()
        prefixed = b"\x00" + struct.pack(">I", len(message)) + message
        self._socket.sendall(_frame(0, _END_STREAM, stream, prefixed))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
