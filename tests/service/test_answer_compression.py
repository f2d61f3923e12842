"""Answers to inference, compressed as --grpc-infer-response-compression-level says: what is on the wire."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    SETTINGS,
    WINDOW_UPDATE,
    Answered,
    Http2,
    answered,
    call_headers,
    framed,
)
from scripted import ScriptedEngine, affine, model_spec, tensor
from wire import infer_request, output, rows

from service._pb import inference as pb

WIDTH = 2048  # of zeros, which say little
INFER, STREAM = (
    "/inference.GRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/ModelStreamInfer",
)
Ask = Callable[..., Answered]


@pytest.fixture
def ask(serve) -> Iterator[Ask]:
    """ask(path, *requests, level, width, **headers): what a bare client is answered."""
    clients = []

    def call(
        path: str, *requests: bytes, level: str = "medium", width: int = WIDTH, **headers: str
    ) -> Answered:
        service, _ = serve(affine(width=width), grpc_infer_response_compression_level=level)
        client = Http2(service.grpc_port)
        clients.append(client)
        client.send(HEADERS, END_HEADERS, 1, call_headers(path, **headers))
        for request in requests:
            client.send(DATA, 0, 1, framed(request))
        client.send(DATA, END_STREAM, 1)
        return answered(client)

    yield call
    for client in clients:
        client.close()


def request_of(x: np.ndarray, model: str = "affine") -> bytes:
    return infer_request(model, x=x).SerializeToString()


ZEROS = np.zeros((1, WIDTH), np.float32)


@pytest.mark.parametrize("level", ["low", "medium", "high"])
def test_an_answer_is_compressed_for_who_reads_gzip(ask, level):
    headers, [(flag, message)] = ask(
        INFER, request_of(ZEROS), level=level, grpc_accept_encoding="identity,deflate,gzip"
    )
    assert (headers["grpc-status"], headers["grpc-encoding"], flag) == ("0", "gzip", 1)
    assert len(message) < 500
    response = pb.ModelInferResponse.FromString(gzip.decompress(message))
    assert np.array_equal(output(response), np.ones(WIDTH, np.float32).reshape(1, WIDTH))


def test_every_answer_of_a_stream_is(ask):
    x = [np.full((1, WIDTH), i, np.float32) for i in range(3)]
    headers, answers = ask(STREAM, *map(request_of, x), grpc_accept_encoding="gzip")
    assert (headers["grpc-status"], headers["grpc-encoding"]) == ("0", "gzip")
    assert [flag for flag, _ in answers] == [1, 1, 1]
    for sent, (_, message) in zip(x, answers, strict=True):
        response = pb.ModelStreamInferResponse.FromString(gzip.decompress(message))
        assert np.array_equal(output(response.infer_response), 2 * sent + 1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"grpc_accept_encoding": "identity"},
        {"grpc_accept_encoding": "identity,gzipped"},
        {"level": "none", "grpc_accept_encoding": "gzip"},
    ],
)
def test_who_does_not_read_it_and_who_was_not_promised_it_is_answered_as_it_is(ask, settings):
    headers, [(flag, message)] = ask(INFER, request_of(ZEROS), **settings)
    assert (headers["grpc-status"], flag) == ("0", 0)
    assert headers.get("grpc-encoding", "identity") == "identity"
    response = pb.ModelInferResponse.FromString(message)
    assert np.array_equal(output(response), 2 * ZEROS + 1)


def test_what_would_get_no_smaller_is_sent_as_it_is(ask):
    headers, [(flag, _)] = ask(INFER, request_of(rows(1)), width=4, grpc_accept_encoding="gzip")
    assert (headers["grpc-status"], flag) == ("0", 0)


@pytest.mark.parametrize("frontend", ["native"], indirect=True)
@pytest.mark.parametrize("size, flag", [((4 << 20) - 1000, 1), (4 << 20, 0)])
def test_large_answers_go_as_they_are(serve, size, flag):
    spec = model_spec("wide", [tensor("x", "FP32", 1)], [tensor("y", "UINT8", size)], max_batch_size=1)
    engine = ScriptedEngine(spec, lambda x: [np.full((len(x), size), 7, np.uint8)])
    service, _ = serve(engine, grpc_infer_response_compression_level="low")
    client = Http2(service.grpc_port)
    client.send(SETTINGS, 0, 0, struct.pack(">HI", 4, 64 << 20))
    client.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", 64 << 20))
    client.send(HEADERS, END_HEADERS, 1, call_headers(INFER, grpc_accept_encoding="gzip"))
    client.send(DATA, END_STREAM, 1, framed(request_of(np.ones((1, 1), np.float32), "wide")))
    headers, [(found, message)] = answered(client)
    client.close()
    assert (headers["grpc-status"], found) == ("0", flag)
    response = pb.ModelInferResponse.FromString(gzip.decompress(message) if flag else message)
    assert response.raw_output_contents[0] == b"\7" * size


def test_a_failure_is_said_as_it_is(ask):
    headers, _ = ask(INFER, request_of(ZEROS, "nobody"), grpc_accept_encoding="gzip")
    assert headers["grpc-status"] == "5"
    assert "nobody" in headers["grpc-message"]


def test_grpcs_own_client_reads_them(serve):
    _, wire = serve(affine(width=WIDTH), grpc_infer_response_compression_level="high")
    x = rows(3, width=WIDTH)
    assert np.array_equal(output(wire.infer(infer_request("affine", x=x))), 2 * x + 1)
