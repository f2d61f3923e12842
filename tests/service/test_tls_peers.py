"""Clients of the TLS port that are slow, wrong or gone in the middle: others are served meanwhile."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme
from http2 import (
    ACK,
    DATA,
    END_STREAM,
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
from wire import SERVICE, Wire, infer_request, output, rows

from service._pb import inference as pb
from service.frontend import tls
from service.inprocess import InProcess

KB, MB = 1 << 10, 1 << 20
INFER = f"{SERVICE}ModelInfer"
LARGE = 4 * MB  # an answer
SHORT_S = 0.2


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, ca: trustme.CA) -> dict[str, object]:
    cert = ca.issue_cert("localhost", "127.0.0.1")
    (tmp_path / "cert").write_bytes(b"".join(pem.bytes() for pem in cert.cert_chain_pems))
    (tmp_path / "key").write_bytes(cert.private_key_pem.bytes())
    (tmp_path / "root").write_bytes(ca.cert_pem.bytes())
    names = {"grpc_server_cert": "cert", "grpc_server_key": "key"}
    return {"grpc_use_ssl": True} | {field: str(tmp_path / name) for field, name in names.items()}


@pytest.fixture
def secure(serve, files, ca) -> Callable[..., tuple[InProcess, Wire]]:
    """As `serve`, with TLS."""

    def start(*engines: ScriptedEngine, **settings) -> tuple[InProcess, Wire]:
        service, _ = serve(*engines, **files, **settings)
        return service, Wire(service.address, grpc.ssl_channel_credentials(ca.cert_pem.bytes()))

    return start


def context(ca: trustme.CA, *protocols: str) -> ssl.SSLContext:
    """Of a client that offers these by ALPN."""
    made = ssl.create_default_context(cadata=ca.cert_pem.bytes().decode())
    if protocols:
        made.set_alpn_protocols(list(protocols))
    return made


def check(wire: Wire) -> None:
    assert (output(wire.infer(infer_request("affine", x=rows(1)))) == 2 * rows(1) + 1).all()


def connect(service: InProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.grpc_port), LIMIT_S)


def hello(ca: trustme.CA) -> bytes:
    """The first bytes of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context(ca, "h2").wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def is_hung_up_on(client: socket.socket) -> bool:
    """Reads to the end, which comes."""
    try:
        while client.recv(64 * KB):
            pass
    except ConnectionError:
        pass
    return True


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def anonymous() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * KB


@pytest.mark.parametrize("part", ["nothing", "half a hello", "all but the end"])
def test_a_handshake_that_stops_is_ended_after_a_time(secure, ca, monkeypatch, part):
    monkeypatch.setattr(tls, "HANDSHAKE_S", SHORT_S)
    service, wire = secure(affine())
    first = hello(ca)
    sent = {"nothing": b"", "half a hello": first[: len(first) // 2], "all but the end": first}[part]
    with connect(service) as client:
        client.sendall(sent)
        assert is_hung_up_on(client)
    check(wire)
    wire.close()


def test_a_handshake_that_is_over_has_no_limit(secure, monkeypatch):
    monkeypatch.setattr(tls, "HANDSHAKE_S", SHORT_S)
    engine = affine()
    service, wire = secure(engine)
    check(wire)
    with connect(service) as other:  # which began later, and is ended by the limit
        assert is_hung_up_on(other)
    stream = wire.stream().send(infer_request("affine", x=rows(1))).half_close()
    assert len(stream.rest()) == 1
    wire.close()


@pytest.mark.parametrize("frontend", ["native"], indirect=True)
def test_stalled_handshakes_have_little_memory(secure, ca):
    service, wire = secure(affine())
    check(wire)
    first, before, clients = hello(ca), anonymous(), []
    for _ in range(200):
        clients.append(connect(service))
        clients[-1].sendall(first)
        assert clients[-1].recv(1)  # the server has said its part
    assert anonymous() - before < 200 * 96 * KB  # of which this test's own sockets have none
    check(wire)
    for client in clients:
        client.close()
    wire.close()


@pytest.mark.parametrize("protocols", [("http/1.1",), ("h3", "h2c"), ()], ids=str)
def test_who_does_not_offer_h2_is_refused(secure, ca, frontend, protocols):
    service, wire = secure(affine())
    words = ""
    try:
        client = context(ca, *protocols).wrap_socket(connect(service), server_hostname="localhost")
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert client.recv(1) == b""
    except ssl.SSLError as error:
        words = str(error)
    except ConnectionError:
        pass
    if frontend == "native":  # the other one hangs up without a word
        assert "no application protocol" in words.lower().replace("_", " ")
    check(wire)
    wire.close()


def test_h2_is_chosen_among_others(secure, ca):
    service, wire = secure(affine())
    client = context(ca, "http/1.1", "h2").wrap_socket(connect(service), server_hostname="localhost")
    assert client.selected_alpn_protocol() == "h2"
    client.close()
    wire.close()


def test_a_unix_domain_socket_speaks_tls_too(secure, ca, tmp_path):
    path = str(tmp_path / "s")
    _, wire = secure(affine(), grpc_unix_socket=path)
    bare = socket.socket(socket.AF_UNIX)
    bare.settimeout(LIMIT_S)
    bare.connect(path)
    client = context(ca, "h2").wrap_socket(bare, server_hostname="localhost")
    assert client.selected_alpn_protocol() == "h2"
    client.close()
    wire.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_tls_1_1_is_refused_and_1_2_is_not(secure, ca):
    service, wire = secure(affine())
    old, older = context(ca, "h2"), context(ca, "h2")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    client = old.wrap_socket(connect(service), server_hostname="localhost")
    assert client.version() == "TLSv1.2"
    client.close()
    older.set_ciphers("ALL:@SECLEVEL=0")
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        older.wrap_socket(connect(service), server_hostname="localhost")
    check(wire)
    wire.close()


def test_clients_that_go_in_the_middle_of_a_handshake_leave_nothing(secure, ca):
    service, wire = secure(affine())
    check(wire)
    first, before = hello(ca), descriptors()
    for number in range(60):
        client = connect(service)
        client.sendall(first[: len(first) * (number % 3) // 2])
        if number % 2:  # with a reset
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    wait_until(lambda: descriptors() <= before, "descriptors as before")
    check(wire)
    wire.close()


@pytest.mark.parametrize(
    "junk", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(64 * KB)], ids=["http2", "zeros"]
)
def test_what_is_no_tls_is_hung_up_on(secure, junk):
    service, wire = secure(affine())
    with connect(service) as client:
        client.sendall(junk)
        assert is_hung_up_on(client)
    check(wire)
    wire.close()


class Slowly:
    """TLS whose bytes go out one at a time."""

    def __init__(self, client: socket.socket, made: ssl.SSLContext) -> None:
        self._socket = client
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = made.wrap_bio(self._in, self._out, server_hostname="localhost")

    def run(self, what: Callable[[], object]) -> object:
        while True:
            try:
                return what()
            except ssl.SSLWantReadError:
                self._pump()
                self._in.write(self._socket.recv(64 * KB))

    def _pump(self) -> None:
        for byte in self._out.read():
            self._socket.sendall(bytes([byte]))

    def shake_hands(self) -> None:
        self.run(self._tls.do_handshake)

    def send(self, data: bytes) -> None:
        self._tls.write(data)
        self._pump()

    def receive(self) -> bytes:
        found = self.run(lambda: self._tls.read(64 * KB))
        assert isinstance(found, bytes)
        return found


def test_records_may_come_a_byte_at_a_time(secure, ca):
    service, wire = secure(affine())
    with connect(service) as client:
        peer = Slowly(client, context(ca, "h2"))
        peer.shake_hands()
        message = infer_request("affine", x=rows(1)).SerializeToString()
        call = frames_of_call(1, INFER, message)
        peer.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS) + call)
        found = b""
        while (2 * rows(1) + 1).tobytes() not in found:
            data = peer.receive()
            assert data, f"the connection ended after {found!r}"
            found += data
    wire.close()


def open_windows(client: Http2) -> None:
    """The server may send as much as the sockets take."""
    client.send(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**30))
    client.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**30))


def payloads(client: Http2, streams: int) -> Iterator[tuple[int, bytes]]:
    """What comes of so many calls, until all have ended."""
    for kind, flags, stream, payload in client.frames():
        if kind == DATA:
            yield stream, payload
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            streams -= 1
            if streams == 0:
                return
    raise AssertionError("the connection ended")


def large() -> ScriptedEngine:
    spec = model_spec("large", [tensor("n", "UINT8", 1)], [tensor("y", "UINT8", LARGE)], max_batch_size=1)
    return ScriptedEngine(spec, lambda n: [np.full((1, LARGE), n[0, 0], np.uint8)])


def test_a_client_that_does_not_read_holds_up_nobody_and_gets_it_all_later(secure, ca):
    sizes = {"arena_mb": 16, "output_arena_mb": 32, "answer_mb": 256}
    service, wire = secure(affine(), large(), **sizes)
    client = Http2(service.grpc_port, context(ca, "h2"))
    open_windows(client)
    numbers = range(8)  # 32 MB, more than sockets hold
    for number in numbers:
        request = infer_request("large", n=np.array([[number]], np.uint8))
        client.call(2 * number + 1, INFER, request.SerializeToString())
    check(wire)
    found: dict[int, bytearray] = {2 * number + 1: bytearray() for number in numbers}
    for stream, payload in payloads(client, len(numbers)):
        found[stream] += payload
    for number in numbers:
        response = pb.ModelInferResponse.FromString(bytes(found[2 * number + 1][5:]))
        assert response.raw_output_contents[0] == bytes([number]) * LARGE
    client.close()
    check(wire)
    wire.close()


@pytest.mark.parametrize("frontend", ["native"], indirect=True)
def test_the_end_of_a_connection_that_goes_is_the_end_of_tls_too(secure, ca):
    service, _ = secure(affine())
    client = Http2(service.grpc_port, context(ca, "h2"))
    client.call(1, f"{SERVICE}ServerLive")
    assert answer(client)["grpc-status"] == "0"
    service.frontend.server.lanes.go()
    said = []
    for kind, flags, _, payload in client.frames():
        said.append(kind)
        if kind == PING and not flags & ACK:
            client.send(PING, ACK, 0, payload)
    assert said == [GOAWAY, PING, GOAWAY]
    client._socket.unwrap()  # it has said so: otherwise this is an error
    client.close()


def test_an_answer_over_bare_http2(secure, ca):
    service, wire = secure(affine())
    client = Http2(service.grpc_port, context(ca, "h2"))
    client.call(1, INFER, infer_request("affine", x=rows(1)).SerializeToString())
    assert answer(client)["grpc-status"] == "0"
    client.close()
    wire.close()
