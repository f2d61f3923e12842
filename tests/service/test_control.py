"""Messages and descriptors over sockets: whole or not at all, in order, no descriptor left behind."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading

import pytest

from service import control
from service.control import AsyncChannel, Channel, Decoder, Message, ProtocolError


def frame(kind: str, fds: int = 0, **body: object) -> bytes:
    return control.encode(kind, dict(body), fds)


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture
def pair():
    left, right = (Channel(sock) for sock in control.socket_pair())
    yield left, right
    left.close()
    right.close()


def test_a_message_arrives_with_its_kind_and_body(pair):
    left, right = pair
    assert left.send("hello", {"lanes": [{"slots": 8}], "text": "ü"})
    message = right.receive()
    assert (message.kind, message.body) == ("hello", {"lanes": [{"slots": 8}], "text": "ü"})


def test_descriptors_arrive_open_in_order_and_not_inheritable(pair, tmp_path):
    left, right = pair
    files = [open(tmp_path / str(i), "w+") for i in range(5)]
    left.send("files", fds=[f.fileno() for f in files])
    fds = right.receive().take_fds()
    for i, (mine, theirs) in enumerate(zip(files, fds, strict=True)):
        mine.write(f"file {i}")
        mine.flush()
        assert os.pread(theirs, 100, 0) == f"file {i}".encode()
        assert not os.get_inheritable(theirs)
        os.close(theirs)
        mine.close()


def test_each_message_takes_its_own_descriptors(pair):
    left, right = pair
    pipes = [os.pipe() for _ in range(3)]
    left.send("one", fds=[pipes[0][1]])
    left.send("none")
    left.send("two", fds=[pipes[1][1], pipes[2][1]])
    for expected in (["one", 1], ["none", 0], ["two", 2]):
        message = right.receive()
        fds = message.take_fds()
        assert [message.kind, len(fds)] == expected
        for fd in fds:
            os.write(fd, message.kind.encode())
            os.close(fd)
    assert [os.read(pipes[i][0], 10) for i in range(3)] == [b"one", b"two", b"two"]
    for reader, writer in pipes:
        os.close(reader)
        os.close(writer)


def test_a_message_larger_than_the_socket_buffer_arrives(pair):
    left, right = pair
    text = "x" * (4 << 20)
    received: list[Message | None] = []
    reader = threading.Thread(target=lambda: received.append(right.receive()))
    reader.start()
    assert left.send("big", {"text": text}, fds=[0])
    reader.join(30)
    assert received[0].body["text"] == text
    assert len(received[0].take_fds()) == 1


def test_end_of_file_is_none_and_sending_to_nobody_is_false(pair):
    left, right = pair
    left.send("last words")
    left.close()
    assert right.receive().kind == "last words"
    assert right.receive() is None
    assert right.receive() is None
    assert right.send("anybody?") is False


class LastWords(socket.socket):
    """Its peer is gone as soon as it has everything."""

    peer: socket.socket

    def sendmsg(self, *arguments) -> int:
        sent = super().sendmsg(*arguments)
        self.peer.close()
        return sent


def last_words() -> LastWords:
    ours, peer = socket.socketpair()
    sock = LastWords(fileno=ours.detach())
    sock.peer = peer
    return sock


def test_what_a_peer_that_dies_of_it_has_received_was_sent():
    channel = Channel(last_words())
    assert channel.send("execute", {"rows": 1})
    channel.close()


def test_the_same_of_the_async_face():
    async def send() -> bool:
        channel = AsyncChannel(last_words())
        try:
            return await channel.send("execute", {"rows": 1})
        finally:
            channel.close()

    assert asyncio.run(send())


def test_shutdown_ends_a_receive_in_another_thread(pair):
    _, right = pair
    received: list[object] = ["nothing yet"]
    reader = threading.Thread(target=lambda: received.append(right.receive()))
    reader.start()
    right.shutdown()
    reader.join(30)
    assert received[1:] == [None]


def test_descriptors_nobody_took_are_closed(pair):
    left, right = pair
    before = open_fds()
    left.send("dropped", fds=[0, 1])
    left.send("half")
    message = right.receive()
    assert len(open_fds()) == len(before) + 2
    message.close()
    assert open_fds() == before


def test_descriptors_of_a_message_that_never_became_whole_are_closed():
    before = open_fds()
    left, right = control.socket_pair()
    whole = frame("never", fds=1)
    socket.send_fds(left, [whole[:5]], [0])
    left.close()
    channel = Channel(right)
    assert channel.receive() is None
    channel.close()
    assert open_fds() == before


def test_frames_cut_anywhere_decode_alike():
    data = frame("a", x=1) + frame("b") + frame("c", y=[1, 2])
    for cut in range(len(data)):
        decoder = Decoder()
        got = []
        for part in (data[:cut], data[cut:]):
            decoder.feed(part)
            while (message := decoder.next()) is not None:
                got.append((message.kind, message.body))
        assert got == [("a", {"x": 1}), ("b", {}), ("c", {"y": [1, 2]})]


@pytest.mark.parametrize(
    "text",
    [b"not json", b"[]", b"{}", b'{"kind": "a"}', b'{"kind": 1, "fds": 0}', b'{"kind": "a", "fds": 1}',
     b'{"kind": "a", "fds": -1}', b'{"kind": "a", "fds": "0"}', b"\xff"],
)  # fmt: skip
def test_what_is_no_message_is_refused(text):
    decoder = Decoder()
    decoder.feed(struct.pack("<I", len(text)) + text)
    with pytest.raises(ProtocolError):
        decoder.next()


def test_an_announced_length_beyond_the_bound_is_refused_before_it_is_awaited():
    decoder = Decoder()
    decoder.feed(struct.pack("<I", control.MAX_BODY_BYTES + 1))
    with pytest.raises(ProtocolError, match="announces"):
        decoder.next()


def test_too_many_descriptors_are_refused_by_the_sender(pair):
    left, _ = pair
    with pytest.raises(ProtocolError, match="at most"):
        left.send("many", fds=[0] * (control.MAX_FDS + 1))


def test_the_async_face_speaks_the_same_language():
    async def scenario() -> None:
        left_sock, right_sock = control.socket_pair()
        left, right = AsyncChannel(left_sock), AsyncChannel(right_sock)
        reader, writer = os.pipe()
        text = "y" * (1 << 20)
        sends = [left.send(f"m{i}", {"text": text}, fds=[writer]) for i in range(4)]
        sending = asyncio.gather(*sends)
        for i in range(4):
            message = await right.receive()
            assert message.kind == f"m{i}"
            assert message.body == {"text": text}
            message.close()
        assert await sending == [True] * 4
        left.close()
        assert await right.receive() is None
        assert await right.send("anybody?") is False
        right.close()
        os.close(reader)
        os.close(writer)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_cancelled_async_receive_loses_nothing():
    async def scenario() -> None:
        left_sock, right_sock = control.socket_pair()
        left, right = AsyncChannel(left_sock), AsyncChannel(right_sock)
        waiting = asyncio.create_task(right.receive())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await left.send("still here", {"n": 1})
        assert (await right.receive()).body == {"n": 1}
        left.close()
        right.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_bodies_are_plain_json():
    assert json.loads(frame("a", x=1)[4:]) == {"kind": "a", "fds": 0, "x": 1}
