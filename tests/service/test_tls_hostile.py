"""Peers that mean harm to the native front end's TLS: what is sealed for them and not read is accounted for,
and new keys without end are not made for them. `native_tls.c` lists the limits.
"""

from __future__ import annotations

import numpy as np
import pytest
import trustme
from http2 import SETTINGS, Http2, frame, frames_of_call
from openssl import UPDATE_NOT_REQUESTED, UPDATE_REQUESTED, OpenSsl
from scripted import affine
from test_tls_peers import (  # noqa: F401 the fixtures
    INFER,
    KB,
    LARGE,
    ca,
    check,
    connect,
    context,
    files,
    is_hung_up_on,
    large,
    open_windows,
    payloads,
    secure,
)
from waiting import wait_until
from wire import infer_request, rows

from service.inprocess import InProcess

pytestmark = pytest.mark.parametrize("frontend", ["native"], indirect=True)

START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS)
SEALED = 128 * KB + 32 * KB  # HR_SEALED, and the record that goes beyond it
MOST_UPDATES = 20_000  # twice what is taken


def reads_nothing(service: InProcess, ca: trustme.CA) -> Http2:  # noqa: F811
    """A client whose answer fills the socket: some of it is sealed, and not sent."""
    client = Http2(service.grpc_port, context(ca, "h2"))
    open_windows(client)
    client.call(1, INFER, infer_request("large", n=np.array([[7]], np.uint8)).SerializeToString())
    unread = service.frontend.server
    wait_until(lambda: unread.answer_bytes > LARGE + KB, "more than the answer: records of it")
    return client


def test_sealed_bytes_that_are_not_read_are_counted_until_they_are(secure, ca):  # noqa: F811
    service, wire = secure(large())
    client = reads_nothing(service, ca)
    counted = service.frontend.server.answer_bytes
    message = sum(len(payload) for _, payload in payloads(client, 1))
    assert 0 < counted - message <= SEALED
    wait_until(lambda: service.frontend.server.answer_bytes == 0, "nothing that is not read")
    client.close()
    wire.close()


def test_sealed_bytes_of_a_peer_that_goes_are_counted_no_longer(secure, ca):  # noqa: F811
    service, wire = secure(affine(), large())
    client = reads_nothing(service, ca)
    client.close()
    wait_until(lambda: service.frontend.server.answer_bytes == 0, "nothing that is not read")
    check(wire)
    wire.close()


@pytest.mark.parametrize("kind", [UPDATE_NOT_REQUESTED, UPDATE_REQUESTED], ids=["its own", "both"])
def test_a_peer_that_changes_keys_without_end_is_hung_up_on(secure, kind):  # noqa: F811
    service, wire = secure(affine())
    with connect(service) as client:
        peer = OpenSsl(client)
        assert peer.send(START)
        updates = 0
        while updates < MOST_UPDATES and peer.update_keys(kind):
            updates += 1
        assert is_hung_up_on(client)
        peer.close()
    check(wire)
    wire.close()


@pytest.mark.parametrize("kind", [UPDATE_NOT_REQUESTED, UPDATE_REQUESTED], ids=["its own", "both"])
def test_keys_may_be_changed_between_calls(secure, kind):  # noqa: F811
    service, wire = secure(affine())
    expected = (2 * rows(1) + 1).tobytes()
    with connect(service) as client:
        peer = OpenSsl(client)
        assert peer.send(START)
        for stream in (1, 3, 5):
            for _ in range(50):
                assert peer.update_keys(kind)
            message = infer_request("affine", x=rows(1)).SerializeToString()
            assert peer.send(frames_of_call(stream, INFER, message))
            found = b""
            while expected not in found:
                data = peer.receive()
                assert data, f"the connection ended after {found!r}"
                found += data
        peer.close()
    wire.close()
