"""Messages that arrive in pieces on the native front end: wherever they are cut they are the same.

They hold what has come of them, and who holds much does not stop the others.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2,
    call_headers,
)
from scripted import ScriptedEngine, model_spec, tensor
from waiting import wait_until
from wire import SERVICE, infer_request, output, strings

from service._pb import inference as pb

pytestmark = pytest.mark.parametrize("frontend", ["native"], indirect=True)

KB, MB = 1 << 10, 1 << 20
FRAME = 256 * KB
INITIAL_WINDOW_SIZE = 4
PUSHBACK = "grpc-retry-pushback-ms"


class Sender(Http2):
    """Sends calls in pieces, and reads what comes of each."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.send(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 1 << 30))
        self.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
        self._frames = self.frames()
        self.answers: dict[int, dict[str, str]] = {}  # headers and trailers, by stream
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.sync()  # the server's settings are known and acknowledged: frames and windows are large

    def begin(self, stream: int, method: str = "ModelInfer", **more: str) -> None:
        self.send(HEADERS, END_HEADERS, stream, call_headers(SERVICE + method, **more))

    def data(self, stream: int, payload: bytes, last: bool = False) -> None:
        for at in range(0, len(payload), FRAME):
            end = last and at + FRAME >= len(payload)
            self.send(DATA, END_STREAM if end else 0, stream, payload[at : at + FRAME])

    def take(self) -> tuple[int, int]:
        """Reads one frame: its kind and flags."""
        kind, flags, stream, payload = next(self._frames)
        if kind == HEADERS:
            self.answers.setdefault(stream, {}).update(self.decoder.decode(payload))
        if kind == DATA:
            self.bodies[stream] = self.bodies.get(stream, b"") + payload
        if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.ended.add(stream)
        return kind, flags

    def sync(self) -> None:
        """What was sent before has been read."""
        self.send(PING, 0, 0, b"are you?")
        while self.take() != (PING, ACK):
            pass

    def status(self, stream: int) -> dict[str, str]:
        """Headers and trailers of a call, once it is over."""
        while stream not in self.ended:
            self.take()
        return self.answers[stream]

    def messages(self, stream: int) -> list[bytes]:
        body, found = self.bodies.get(stream, b""), []
        while body:
            length = int.from_bytes(body[1:5], "big")
            found.append(body[5 : 5 + length])
            body = body[5 + length :]
        return found


def framed(message: bytes, announced: int = 0) -> bytes:
    return struct.pack(">BI", 0, announced or len(message)) + message


def same(rows: int = 8) -> ScriptedEngine:
    """Numbers and strings in, the same out."""
    both = [tensor("x", "FP32", -1), tensor("s", "BYTES", -1)]
    spec = model_spec("same", both, [tensor("y", "FP32", -1), tensor("t", "BYTES", -1)], max_batch_size=rows)
    return ScriptedEngine(spec, lambda x, s: [x, s])


def summing() -> ScriptedEngine:
    """Rows of any width in, their sums out."""
    spec = model_spec("sum", [tensor("x", "FP32", -1)], [tensor("y", "FP32", 1)], max_batch_size=8)
    return ScriptedEngine(spec, lambda x: [x.sum(axis=1, keepdims=True)])


def request_of(size: int, rows: int = 2):
    """About `size` bytes for "same", half of them strings of many sizes, one of which is long."""
    width = size // 2 // 4 // rows
    x = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    texts = [[b"%d" % i * (i % 40) for i in range(20)] + [b"a" * (size // 2 // rows)] for _ in range(rows)]
    return infer_request("same", id="the one", x=x, s=strings(texts))


def typed(request):
    """The same request, with typed contents."""
    copy = pb.ModelInferRequest.FromString(request.SerializeToString())
    for one, raw in zip(copy.inputs, copy.raw_input_contents, strict=True):
        if one.datatype == "FP32":
            one.contents.fp32_contents.extend(np.frombuffer(raw, np.float32).tolist())
        else:
            at = 0
            while at < len(raw):
                length = int.from_bytes(raw[at : at + 4], "little")
                one.contents.bytes_contents.append(raw[at + 4 : at + 4 + length])
                at += 4 + length
    del copy.raw_input_contents[:]
    return copy


def cuts(length: int, seed: int) -> list[int]:
    """Where a message is cut: within its first fields, and anywhere."""
    choose = random.Random(seed)
    places = {choose.randrange(1, min(length, 300)) for _ in range(seed % 4)}
    places |= {choose.randrange(1, length) for _ in range(choose.choice((0, 1, 3, 40)))}
    return [0, *sorted(places), length]


def pieces(message: bytes, seed: int) -> Iterator[bytes]:
    at = cuts(len(message), seed)
    for first, last in zip(at, at[1:], strict=False):
        yield message[first:last]


def body_of(sender: Sender, stream: int) -> bytes:
    assert sender.status(stream)["grpc-status"] == "0", sender.answers[stream]
    (message,) = sender.messages(stream)
    return message


@pytest.mark.parametrize("size", [20 * KB, 150 * KB, 700 * KB, 5 * MB])
@pytest.mark.parametrize("form", ["raw", "typed"])
def test_wherever_a_message_is_cut_its_answer_is_the_same(serve, size, form):
    service, wire = serve(same())
    request = typed(request_of(size)) if form == "typed" else request_of(size)
    expected = wire.infer(request)
    assert len(expected.raw_output_contents[0]) > size // 4
    sender = Sender(service.grpc_port)
    for seed in range(12):
        stream = 2 * seed + 1
        sender.begin(stream)
        for piece in pieces(framed(request.SerializeToString()), seed):
            sender.data(stream, piece)
            if seed % 3 == 0:
                sender.sync()
        sender.send(DATA, END_STREAM, stream)
        assert pb.ModelInferResponse.FromString(body_of(sender, stream)) == expected
    sender.close()
    wait_until(lambda: service.frontend.server.arena_used == 0, "all memory given back")


def test_streams_and_calls_that_take_turns_do_not_disturb_each_other(serve):
    """Eight at once on one connection, piece by piece in any order; half of them are streams of three."""
    service, wire = serve(same())
    sender = Sender(service.grpc_port)
    requests = [request_of(30 * KB + 50 * KB * i) for i in range(8)]
    expected = [wire.infer(request) for request in requests]
    left: dict[int, list[bytes]] = {}
    for i, request in enumerate(requests):
        stream, times = 2 * i + 1, 3 if i % 2 else 1
        sender.begin(stream, "ModelStreamInfer" if i % 2 else "ModelInfer")
        left[stream] = list(pieces(framed(request.SerializeToString()) * times, 4 * i + 3))
    choose = random.Random(8)
    while left:
        stream = choose.choice(list(left))
        sender.data(stream, left[stream].pop(0))
        if not left[stream]:
            sender.send(DATA, END_STREAM, stream)
            del left[stream]
    for i, response in enumerate(expected):
        if i % 2 == 0:
            assert pb.ModelInferResponse.FromString(body_of(sender, 2 * i + 1)) == response
            continue
        assert sender.status(2 * i + 1)["grpc-status"] == "0"
        answers = [pb.ModelStreamInferResponse.FromString(m) for m in sender.messages(2 * i + 1)]
        assert [a.infer_response.raw_output_contents for a in answers] == [response.raw_output_contents] * 3
    sender.close()
    wait_until(lambda: service.frontend.server.arena_used == 0, "all memory given back")


def test_the_largest_announcement_holds_what_has_come(serve):
    service, _ = serve(summing())
    server = service.frontend.server
    sender = Sender(service.grpc_port)
    sender.begin(1)
    sender.data(1, framed(b"", announced=1 << 30))
    sender.sync()
    assert server.arena_used == 0
    sent = 0
    for size in (1, 100, 5 * KB, 60 * KB, 300 * KB, 2 * MB):
        sender.data(1, bytes(size))
        sender.sync()
        sent += size
        assert sent <= server.arena_used <= max(4 * sent, 16 * KB) + 4 * KB
    sender.close()
    wait_until(lambda: server.arena_used == 0, "its memory given back")


@pytest.mark.parametrize("end", ["reset", "deadline", "hang up", "cut off"])
def test_half_a_message_is_forgotten_with_its_call(serve, end):
    service, wire = serve(summing())
    server = service.frontend.server
    sender = Sender(service.grpc_port)
    sender.begin(1, grpc_timeout="300m" if end == "deadline" else "60S")
    sender.data(1, framed(bytes(MB), announced=2 * MB))
    if end != "deadline":
        sender.sync()
        assert server.arena_used >= MB
    if end == "reset":
        sender.send(RST_STREAM, 0, 1, struct.pack(">I", 8))
    elif end == "deadline":
        assert sender.status(1)["grpc-status"] == "4"
        sender.data(1, bytes(MB))  # what is still on its way is dropped
    elif end == "cut off":
        sender.send(DATA, END_STREAM, 1)
        assert sender.status(1)["grpc-status"] == "13"
    else:
        sender.close()
    wait_until(lambda: server.arena_used == 0, "its memory given back")
    assert (
        output(wire.infer(infer_request("sum", x=np.ones((2, 50_000), np.float32)))).tolist()
        == [[50_000.0]] * 2
    )
    sender.close()


def half(sender: Sender, stream: int, size: int = 2 * MB - 128, method: str = "ModelInfer") -> None:
    """A message that lies in the arena's head and lacks its last byte."""
    sender.begin(stream, method)
    sender.data(stream, framed(bytes(size - 1), announced=size))


def large() -> bytes:
    """A request that lies in the arena's head."""
    return infer_request("sum", x=np.ones((1, MB // 4), np.float32)).SerializeToString()


def sums(message: bytes) -> list[list[float]]:
    return output(pb.ModelInferResponse.FromString(message)).tolist()


def test_a_connection_has_a_quarter_for_half_sent_messages_and_what_goes_beyond_waits(serve):
    service, wire = serve(summing())
    sender = Sender(service.grpc_port)
    for stream in (1, 3, 5):
        half(sender, stream)
    for stream in (7, 9):
        sender.begin(stream)
        sender.data(stream, framed(large()), last=True)
    sender.sync()
    assert service.frontend.server.arena_used <= 6 * MB, (
        "a quarter, and one more; those that wait hold nothing"
    )
    sender.begin(11)
    sender.data(
        11, framed(infer_request("sum", x=np.ones((1, 100), np.float32)).SerializeToString()), last=True
    )
    assert sums(body_of(sender, 11)) == [[100.0]], "small ones go on"
    assert output(wire.infer(pb.ModelInferRequest.FromString(large()))).tolist() == [[MB / 4]]
    assert not {7, 9} & sender.ended
    sender.send(RST_STREAM, 0, 1, struct.pack(">I", 8))
    assert sums(body_of(sender, 7)) == sums(body_of(sender, 9)) == [[MB / 4]]
    sender.close()
    wait_until(lambda: service.frontend.server.arena_used == 0, "all memory given back")


def test_messages_that_have_begun_do_not_wait_for_each_other(serve):
    """Four of 2 MB begin, in room for two, and go on in turns."""
    service, _ = serve(summing())
    sender = Sender(service.grpc_port)
    request = infer_request("sum", x=np.ones((1, MB // 2 - 100), np.float32))
    message = framed(request.SerializeToString())
    streams = (1, 3, 5, 7)
    for stream in streams:
        sender.begin(stream)
    for at in range(0, len(message), 100 * KB):
        for stream in streams:
            sender.data(stream, message[at : at + 100 * KB], last=at + 100 * KB >= len(message))
    assert [sums(body_of(sender, stream)) for stream in streams] == [[[MB / 2 - 100]]] * 4
    sender.close()
    wait_until(lambda: service.frontend.server.arena_used == 0, "all memory given back")


def test_messages_that_take_turns_and_have_too_little_room_are_all_received(serve):
    """Twelve of 1 MB on one connection that has room for four."""
    service, _ = serve(summing())
    sender = Sender(service.grpc_port)
    left = {stream: list(pieces(framed(large()), 4 * stream + 3)) for stream in range(1, 25, 2)}
    for stream in left:
        sender.begin(stream)
    choose = random.Random(12)
    while left:
        stream = choose.choice(list(left))
        sender.data(stream, left[stream].pop(0), last=len(left[stream]) == 0)
        left = {stream: rest for stream, rest in left.items() if rest}
    assert [sums(body_of(sender, stream)) for stream in range(1, 25, 2)] == [[[MB / 4]]] * 12
    sender.close()
    wait_until(lambda: service.frontend.server.arena_used == 0, "all memory given back")


def test_more_than_may_wait_are_told_to_come_back(serve):
    service, _ = serve(summing())
    sender = Sender(service.grpc_port)
    for stream in (1, 3, 5):
        half(sender, stream)
    for i in range(17):
        sender.begin(7 + 2 * i)
        sender.data(7 + 2 * i, framed(large()[: 100 * KB], announced=MB))
    refused = sender.status(7 + 2 * 16)
    assert (refused["grpc-status"], int(refused[PUSHBACK]) > 0) == ("8", True)
    assert "a quarter of --arena-mb" in refused["grpc-message"]
    assert len(sender.ended) == 1
    for stream in (1, 3):
        sender.send(RST_STREAM, 0, stream, struct.pack(">I", 8))
    sender.sync()
    assert service.frontend.server.arena_used > 3 * MB, "those that waited are received"
    sender.close()
    wait_until(lambda: service.frontend.server.arena_used == 0, "all memory given back")


def test_one_message_is_received_however_large(serve):
    """More than the share, more than the head."""
    service, wire = serve(summing())
    request = infer_request("sum", x=np.ones((8, 3 * MB // 4), np.float32))
    assert output(wire.infer(request)).tolist() == [[3 * MB / 4]] * 8
    wait_until(lambda: service.frontend.server.arena_used == 0, "all memory given back")


def test_connections_that_hold_all_they_may_keep_out_large_ones_alone(serve):
    service, wire = serve(summing())
    server = service.frontend.server
    senders = [Sender(service.grpc_port) for _ in range(6)]
    for sender in senders:
        for stream in (1, 3):
            half(sender, stream)
        sender.sync()
    told = [sender.answers.get(stream, {}).get("grpc-status") for sender in senders for stream in (1, 3)]
    assert told == [None] * 6 + ["8"] * 6, "the last quarter is not for half-sent messages"
    message = wire.error(infer_request("sum", x=np.ones((1, MB // 4), np.float32)))
    assert (message[0], "try later" in message[1]) == ("RESOURCE_EXHAUSTED", True)
    for width in (10, 4000, 20_000, 60_000):
        sums = output(wire.infer(infer_request("sum", x=np.ones((1, width), np.float32))))
        assert sums.tolist() == [[width]], "whole messages of up to 256 KB have it"
    for sender in senders:
        sender.close()
    wait_until(lambda: server.arena_used == 0, "all memory given back")
    assert output(wire.infer(infer_request("sum", x=np.ones((1, MB // 4), np.float32)))).tolist() == [
        [MB / 4]
    ]


def test_a_request_of_a_stream_that_finds_no_room_is_refused_in_its_turn(serve):
    service, _ = serve(summing())
    others = [Sender(service.grpc_port) for _ in range(3)]
    for other in others:
        for stream in (1, 3):
            half(other, stream)
        other.sync()
    small = infer_request("sum", x=np.ones((1, 10), np.float32)).SerializeToString()
    sender = Sender(service.grpc_port)
    sender.begin(1, "ModelStreamInfer")
    sender.data(1, framed(small) + framed(large()) + framed(small), last=True)
    assert sender.status(1)["grpc-status"] == "0"
    answers = [pb.ModelStreamInferResponse.FromString(message) for message in sender.messages(1)]
    assert [bool(answer.error_message) for answer in answers] == [False, True, False]
    assert "try later" in answers[1].error_message
    for one in (*others, sender):
        one.close()
    wait_until(lambda: service.frontend.server.arena_used == 0, "all memory given back")


def test_a_lone_request_is_computed_where_it_lies(serve):
    """Its tensor is put on a boundary for that, whatever comes before it."""
    spec = model_spec("aligned", [tensor("x", "FP32", -1)], [tensor("y", "UINT8", 1)], max_batch_size=8)
    engine = ScriptedEngine(spec, lambda x: [np.zeros((len(x), 1), np.uint8)])
    places: list[int] = []
    make = engine.create_instance

    def create_instance(index: int):
        instance = make(index)
        execute = instance.execute

        def watched(batch) -> None:
            places.append(batch.input_pointer(0))
            execute(batch)

        instance.execute = watched
        return instance

    engine.create_instance = create_instance
    service, wire = serve(engine)
    for length in range(0, 64, 7):
        wire.infer(infer_request("aligned", id="i" * length, x=np.ones((2, 50_000), np.float32)))
    assert len(places) == 10
    assert all(place and place % 64 == 0 for place in places)
    wait_until(lambda: service.frontend.server.arena_used == 0, "all memory given back")
