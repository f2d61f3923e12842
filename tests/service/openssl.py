"""A TLS client on OpenSSL itself, for what Python's ssl module cannot say: new keys (TLS 1.3's KeyUpdate)."""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import struct

import pytest
from waiting import LIMIT_S

UPDATE_NOT_REQUESTED, UPDATE_REQUESTED = 0, 1  # SSL_KEY_UPDATE_...: the server shall change its keys too
POINTER = ctypes.c_void_p
CALLS = {  # name: (result, arguments)
    "TLS_client_method": (POINTER, []),
    "SSL_CTX_new": (POINTER, [POINTER]),
    "SSL_CTX_free": (None, [POINTER]),
    "SSL_new": (POINTER, [POINTER]),
    "SSL_free": (None, [POINTER]),
    "SSL_set_alpn_protos": (ctypes.c_int, [POINTER, ctypes.c_char_p, ctypes.c_uint]),
    "SSL_set_fd": (ctypes.c_int, [POINTER, ctypes.c_int]),
    "SSL_connect": (ctypes.c_int, [POINTER]),
    "SSL_key_update": (ctypes.c_int, [POINTER, ctypes.c_int]),
    "SSL_do_handshake": (ctypes.c_int, [POINTER]),
    "SSL_read": (ctypes.c_int, [POINTER, ctypes.c_char_p, ctypes.c_int]),
    "SSL_write": (ctypes.c_int, [POINTER, ctypes.c_char_p, ctypes.c_int]),
}


def library() -> ctypes.CDLL:
    name = ctypes.util.find_library("ssl")
    if name is None:
        pytest.skip("needs OpenSSL as a library that the loader finds (libssl.so)")
    found = ctypes.CDLL(name)
    for call, (result, arguments) in CALLS.items():
        function = getattr(found, call)
        function.restype, function.argtypes = result, arguments
    return found


class OpenSsl:
    """One connection that offers h2 and trusts anybody."""

    def __init__(self, client: socket.socket) -> None:
        client.setblocking(True)  # OpenSSL has the descriptor, of which Python's time limits know nothing
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            client.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", round(LIMIT_S), 0))
        self._library = library()
        self._context = self._library.SSL_CTX_new(self._library.TLS_client_method())
        self._ssl = self._library.SSL_new(self._context)
        assert self._library.SSL_set_alpn_protos(self._ssl, b"\x02h2", 3) == 0
        assert self._library.SSL_set_fd(self._ssl, client.fileno()) == 1
        assert self._library.SSL_connect(self._ssl) == 1

    def close(self) -> None:
        """Frees the memory; the socket is the caller's."""
        self._library.SSL_free(self._ssl)
        self._library.SSL_CTX_free(self._context)

    def send(self, data: bytes) -> bool:
        """False: the connection has ended."""
        return self._library.SSL_write(self._ssl, data, len(data)) == len(data)

    def receive(self) -> bytes:
        """Some of what comes; empty: the connection has ended."""
        room = ctypes.create_string_buffer(64 << 10)
        count = self._library.SSL_read(self._ssl, room, len(room))
        return room.raw[: max(count, 0)]

    def update_keys(self, kind: int) -> bool:
        """False: the connection has ended."""
        assert self._library.SSL_key_update(self._ssl, kind) == 1
        return self._library.SSL_do_handshake(self._ssl) == 1
