"""Keepalive pings are welcome: a client may ping as often as it likes, with or without calls, and keeps its
connection.

A bare HTTP/2 client is used, since gRPC's own would need minutes to be annoying.
"""

from __future__ import annotations

import struct

import pytest
from http2 import ACK, DATA, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, Http2
from scripted import affine

from service._pb import inference as pb

PINGS = 200


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
