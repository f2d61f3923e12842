"""Messages with file descriptors between the processes of one service, over AF_UNIX stream sockets.

    frame   u32 little-endian length of the body | body: a JSON object {"kind": str, "fds": n, ...}
    fds     n descriptors, by SCM_RIGHTS, attached to the first byte of the frame

Two kinds of socket speak it: a control socket between the supervisor and a child, and a link between the
front end and one incarnation of a worker. Who may say what stands beside whoever says it; this file moves
messages.

Descriptors arrive in the order they were sent and never later than the first byte of their frame, so a
receiver keeps them in one queue and a message takes the n it announces from the head of it. A descriptor
belongs to the message until somebody takes it (`Message.take_fds`); a message that is dropped closes what
it still holds.

End of file is how a peer's death shows, and it is an answer, not an error: `receive` returns None. A frame
that is too long, is not JSON or announces descriptors that did not come is a ProtocolError: the peers are
of one build, so it is a defect, and the socket is of no further use.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

MAX_BODY_BYTES = 64 << 20  # all configs and labels of a worker, in JSON twice, take less than 48 MiB
MAX_FDS = 200  # the kernel takes 253 in one message
_RECEIVE_BYTES = 64 << 10
_LENGTH = struct.Struct("<I")


class ProtocolError(Exception):
    """The peer sent what no peer of this build sends."""


class Message:
    """One message. `kind` says what it is, `body` holds the rest of the JSON object."""

    def __init__(self, kind: str, body: dict[str, Any], fds: Iterable[int] = ()) -> None:
        self.kind = kind
        self.body = body
        self._fds = list(fds)

    def take_fds(self) -> list[int]:
        """The descriptors, which from now on are the caller's to close."""
        fds, self._fds = self._fds, []
        return fds

    def close(self) -> None:
        """Closes the descriptors that nobody took."""
        for fd in self.take_fds():
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Message({self.kind!r}, {self.body!r}, fds={self._fds})"


def encode(kind: str, body: dict[str, Any], fd_count: int) -> bytes:
    """The frame of a message; the caller sends its descriptors with the first byte."""
    if fd_count > MAX_FDS:
        raise ProtocolError(f"a message carries at most {MAX_FDS} descriptors, got {fd_count}")
    text = json.dumps({**body, "kind": kind, "fds": fd_count}).encode()
    if len(text) > MAX_BODY_BYTES:
        raise ProtocolError(f"a message has at most {MAX_BODY_BYTES} bytes, got {len(text)}")
    return _LENGTH.pack(len(text)) + text


class Decoder:
    """Turns what a socket delivers into messages. Does no I/O."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._fds: deque[int] = deque()

    def feed(self, data: bytes, fds: Iterable[int] = ()) -> None:
        self._data += data
        self._fds.extend(fds)

    def next(self) -> Message | None:
        """The next whole message, or None when more bytes are needed."""
        if len(self._data) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._data)
        if length > MAX_BODY_BYTES:
            raise ProtocolError(f"a message has at most {MAX_BODY_BYTES} bytes, the peer announces {length}")
        end = _LENGTH.size + length
        if len(self._data) < end:
            return None
        text = bytes(self._data[_LENGTH.size : end])
        del self._data[:end]
        return self._message(text)

    def _message(self, text: bytes) -> Message:
        try:
            body: dict[str, Any] = dict(json.loads(text))
            kind, fd_count = body.pop("kind"), body.pop("fds")
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"not a message: {text[:80]!r}") from error
        if not isinstance(kind, str) or not isinstance(fd_count, int) or not 0 <= fd_count <= len(self._fds):
            raise ProtocolError(f"'{kind}' announces {fd_count} descriptors, {len(self._fds)} came")
        return Message(kind, body, [self._fds.popleft() for _ in range(fd_count)])

    def close(self) -> None:
        """Closes the descriptors of messages that never became whole."""
        while self._fds:
            os.close(self._fds.popleft())


def _receive_some(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One recvmsg: bytes (empty at end of file) and descriptors. A reset is an end of file too."""
    fd_array = array.array("i")
    try:
        data, ancillary, flags, _ = sock.recvmsg(
            _RECEIVE_BYTES, socket.CMSG_SPACE(MAX_FDS * fd_array.itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except (ConnectionResetError, BrokenPipeError):
        return b"", []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fd_array.frombytes(payload[: len(payload) - len(payload) % fd_array.itemsize])
    fds = list(fd_array)
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise ProtocolError("descriptors were lost on the way: too many at once, or too many open here")
    return data, fds


def _rights(fds: Iterable[int]) -> list[tuple[int, int, array.array[int]]]:
    fd_array = array.array("i", fds)
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd_array)] if fd_array else []


class Channel:
    """A message socket for code that may block. Sending and receiving may be two threads' work, not three."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._decoder = Decoder()

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Takes over a descriptor that was passed to this process."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, kind: str, body: dict[str, Any] | None = None, fds: Iterable[int] = ()) -> bool:
        """Sends one message. False when the peer is gone; the descriptors stay the caller's."""
        fds = list(fds)
        frame = encode(kind, body or {}, len(fds))
        try:
            sent = self._sock.sendmsg([frame], _rights(fds), socket.MSG_NOSIGNAL)
            if sent < len(frame):  # to send nothing would fail when the peer has gone with all of it
                self._sock.sendall(frame[sent:], socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> Message | None:
        """The next message, or None when the peer is gone."""
        while (message := self._decoder.next()) is None:
            data, fds = _receive_some(self._sock)
            self._decoder.feed(data, fds)
            if not data:
                return None
        return message

    def receive_ready(self) -> tuple[list[Message], bool]:
        """After a poll: the messages that are whole by now, and whether the peer is still there."""
        data, fds = _receive_some(self._sock)
        self._decoder.feed(data, fds)
        messages = []
        while (message := self._decoder.next()) is not None:
            messages.append(message)
        return messages, bool(data)

    def shutdown(self) -> None:
        """Ends the conversation in both directions: whoever waits in receive, here or there, sees the end."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was first

    def close(self) -> None:
        self._decoder.close()
        self._sock.close()


class AsyncChannel:
    """A message socket on an asyncio loop. One task receives, any task sends; messages never interleave."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder = Decoder()
        self._sending = asyncio.Lock()

    @classmethod
    def from_fd(cls, fd: int) -> AsyncChannel:
        """Takes over a descriptor that was passed to this process."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._sock.fileno()

    async def send(self, kind: str, body: dict[str, Any] | None = None, fds: Iterable[int] = ()) -> bool:
        """Sends one message. False when the peer is gone; the descriptors stay the caller's."""
        fds = list(fds)
        frame = encode(kind, body or {}, len(fds))
        loop = asyncio.get_running_loop()
        async with self._sending:
            try:
                sent = await self._send_first(loop, frame, fds)
                if sent < len(frame):
                    await loop.sock_sendall(self._sock, frame[sent:])
            except (BrokenPipeError, ConnectionResetError, ValueError):
                return False
        return True

    async def _send_first(self, loop: asyncio.AbstractEventLoop, frame: bytes, fds: list[int]) -> int:
        while True:
            try:
                return self._sock.sendmsg([frame], _rights(fds), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                await wait_ready(loop.add_writer, loop.remove_writer, self._sock.fileno())

    async def receive(self) -> Message | None:
        """The next message, or None when the peer is gone or the channel was closed."""
        loop = asyncio.get_running_loop()
        while (message := self._decoder.next()) is None:
            try:
                data, fds = _receive_some(self._sock)
            except BlockingIOError:
                await wait_ready(loop.add_reader, loop.remove_reader, self._sock.fileno())
                continue
            self._decoder.feed(data, fds)
            if not data:
                return None
        return message

    def close(self) -> None:
        """Only when no task is in send or receive."""
        self._decoder.close()
        self._sock.close()


async def wait_ready(add: Callable[..., None], remove: Callable[[int], bool], fd: int) -> None:
    """Waits until the loop finds `fd` ready, by its `add_reader` and `remove_reader` or the writer's pair."""
    waiter = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    add(fd, wake)
    try:
        await waiter
    finally:
        remove(fd)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new message socket, not inheritable."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
