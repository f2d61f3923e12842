"""Responses, read back by the protobuf library."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from service._pb import inference
from service.codec import _codec

SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (2, 300), (-1, 2**62), (1, 2, 3, 4, 5, 6, 7, 8)]
SIZES = [0, 1, 127, 128, 4096, 16384, 300_000]


def output(random: Random, i: int) -> tuple[bytes, bytes, tuple[int, ...], bytes]:
    name = random.choice([f"output {i}", "ü" * 70, ""]).encode()
    datatype = random.choice([b"FP32", b"BYTES", b""])
    return (name, datatype, random.choice(SHAPES), random.randbytes(random.choice(SIZES)))


def fill(message: Any, given: dict[str, Any]) -> None:
    message.model_name = given["model_name"].decode()
    message.model_version = given["model_version"].decode()
    message.id = given["id"].decode()
    if given["final"] is not None:
        message.parameters["triton_final_response"].bool_param = given["final"]
    for name, datatype, shape, data in given["outputs"]:
        message.outputs.add(name=name.decode(), datatype=datatype.decode(), shape=shape)
        message.raw_output_contents.append(data)


def expected(given: dict[str, Any]) -> Any:
    if not given["stream"]:
        message = inference.ModelInferResponse()
        fill(message, given)
        return message
    wrapped = inference.ModelStreamInferResponse(error_message=given["error"].decode())
    wrapped.infer_response.SetInParent()
    fill(wrapped.infer_response, given)
    return wrapped


def random_response(random: Random) -> dict[str, Any]:
    stream = random.random() < 0.5
    error = random.choice([b"", b"", "größer als 5".encode(), b"e" * 500]) if stream else b""
    count = 0 if error else random.choice([0, 1, 2, 5, 64])
    return {
        "stream": stream,
        "final": random.choice([None, False, True]),
        "error": error,
        "model_name": random.choice([b"", b"m", b"model" * 40]),
        "model_version": random.choice([b"", b"1", b"12345"]),
        "id": random.choice([b"", b"7", "\u20ac".encode() * 99]),
        "outputs": [output(random, i) for i in range(count)],
    }


@pytest.mark.parametrize("seed", range(60))
def test_reads_back_the_same(seed: int) -> None:
    given = random_response(Random(seed))
    message = expected(given)
    wire = _codec.Response(**given).encode()
    assert type(message).FromString(wire) == message
    assert len(wire) == message.ByteSize()


@pytest.mark.parametrize("seed", range(60))
def test_segments_are_the_same_bytes(seed: int) -> None:
    given = random_response(Random(seed))
    response = _codec.Response(**given)
    pieces, head = response.segments()
    assert b"".join(pieces) == response.encode()
    assert all(pieces), "an empty segment is a system call's waste"
    assert head == len(response.encode()) - sum(len(data) for *_, data in given["outputs"])
    assert len(pieces) <= 2 * len(given["outputs"]) + 1


def test_one_raw_entry_for_each_output_also_an_empty_one() -> None:
    outputs = [(b"A", b"FP32", (0,), b""), (b"B", b"FP32", (1,), b"abcd"), (b"C", b"FP32", (0,), b"")]
    message = inference.ModelInferResponse.FromString(_codec.Response(outputs=outputs).encode())
    assert list(message.raw_output_contents) == [b"", b"abcd", b""]
    assert not any(tensor.HasField("contents") for tensor in message.outputs)


def test_an_error_on_a_stream_names_its_request() -> None:
    response = _codec.Response(stream=True, error=b"no", model_name=b"m", model_version=b"1", id=b"\xc3\xbc")
    message = inference.ModelStreamInferResponse.FromString(response.encode())
    assert (message.error_message, message.infer_response.id) == ("no", "ü")
    assert (message.infer_response.model_name, message.infer_response.model_version) == ("m", "1")


def test_an_ordinary_response_on_a_stream_has_no_error() -> None:
    message = inference.ModelStreamInferResponse.FromString(_codec.Response(stream=True, final=True).encode())
    assert message.error_message == "" and message.HasField("infer_response")
    assert message.infer_response.parameters["triton_final_response"].bool_param is True


def test_the_final_flag_is_said_also_when_it_is_false() -> None:
    message = inference.ModelInferResponse.FromString(_codec.Response(final=False).encode())
    assert message.parameters["triton_final_response"].WhichOneof("parameter_choice") == "bool_param"
