"""BYTES through the service: every byte comes back, alone, in batches, in parts and on streams."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from scripted import ScriptedEngine, model_spec, tensor
from wire import done_response, infer_request, queue, string_output, strings

from service._pb import inference as pb

NOT_TEXT = [[b"\xff\xfe", b"", b"a\0b", "größe".encode()]]


def same(*dims: int, **settings) -> ScriptedEngine:
    """y = x."""
    spec = model_spec("same", [tensor("x", "BYTES", *dims)], [tensor("y", "BYTES", *dims)], **settings)
    return ScriptedEngine(spec, lambda x: [x])


def simple_string() -> ScriptedEngine:
    """Sum and difference of numbers written as text, as Triton's example model."""
    names = [[tensor(f"{kind}{i}", "BYTES", 16) for i in range(2)] for kind in ("INPUT", "OUTPUT")]

    def compute(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        a, b = a.astype(int), b.astype(int)
        return [strings([[str(n).encode() for n in row] for row in found]) for found in (a + b, a - b)]

    return ScriptedEngine(model_spec("simple_string", *names), compute)


def typed(x: np.ndarray) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="same")
    contents = request.inputs.add(name="x", datatype="BYTES", shape=x.shape).contents
    contents.SetInParent()
    contents.bytes_contents.extend(x.ravel().tolist())
    return request


def random_strings(seed: int, rows: int, each: int = 2, longest: int = 30) -> np.ndarray:
    random = Random(seed)
    made = [[random.randbytes(random.randrange(longest)) for _ in range(each)] for _ in range(rows)]
    return strings(made)


@pytest.mark.parametrize("settings", [{}, {"max_batch_size": 0}], ids=["batched", "not batched"])
def test_bytes_stay_bytes(serve, settings):
    _, wire = serve(same(-1, **settings) if not settings else same(-1, -1, **settings))
    x = strings(NOT_TEXT)
    for request in (infer_request("same", x=x), typed(x)):
        response = wire.infer(request)
        assert response.outputs[0].datatype == "BYTES"
        assert not response.outputs[0].HasField("contents")
        assert string_output(response).tolist() == NOT_TEXT


def test_text_of_numbers_as_in_tritons_example(serve):
    _, wire = serve(simple_string())
    a, b = (strings([[str(n * k).encode() for n in range(16)]]) for k in (1, 10))
    response = wire.infer(infer_request("simple_string", INPUT0=a, INPUT1=b))
    assert string_output(response, 0).astype(int).tolist() == [[n * 11 for n in range(16)]]
    assert string_output(response, 1).astype(int).tolist() == [[-n * 9 for n in range(16)]]


@pytest.mark.parametrize(("batches", "shape"), [(0, (0,)), (0, (0, 16)), (8, (1, 0)), (8, (3, 0))])
def test_no_strings_are_an_entry_that_is_there_and_empty(serve, batches, shape):
    dims = (-1,) * (len(shape) - (batches > 0))
    _, wire = serve(same(*dims, max_batch_size=batches))
    for request in (infer_request("same", x=np.empty(shape, object)), typed(np.empty(shape, object))):
        response = wire.infer(request)
        assert list(response.outputs[0].shape) == list(shape)
        assert list(response.raw_output_contents) == [b""]


def test_requests_that_share_batches_get_their_own_strings(serve):
    engine = same(-1, max_batch_size=8)
    service, wire = serve(engine)
    engine.gate.shut()
    sent = [random_strings(seed, rows) for seed, rows in enumerate([1, 3, 2, 5, 20, 1, 1])]
    futures = queue(service, wire, [infer_request("same", x=x) for x in sent])
    engine.gate.open()
    for x, future in zip(sent, futures, strict=True):
        assert np.array_equal(string_output(done_response(future)), x)
    assert sum(engine.batches) == 33 and max(engine.batches) == 8


def test_strings_on_a_stream(serve):
    _, wire = serve(same(-1))
    sent = [random_strings(seed, 2, each=3) for seed in range(20)]
    stream = wire.stream().send(*(infer_request("same", id=str(i), x=x) for i, x in enumerate(sent)))
    answers = stream.half_close().rest()
    assert [answer.infer_response.id for answer in answers] == [str(i) for i in range(20)]
    for x, answer in zip(sent, answers, strict=True):
        assert not answer.error_message
        assert np.array_equal(string_output(answer.infer_response), x)


def test_a_string_of_five_megabytes_beside_one_of_none(serve):
    _, wire = serve(same(-1), arena_mb=32, output_arena_mb=32)
    x = strings([[Random(1).randbytes(5 << 20)], [b""]])
    assert np.array_equal(string_output(wire.infer(infer_request("same", x=x))), x)


def test_strings_that_do_not_add_up_are_named(serve):
    _, wire = serve(same(2))
    request = infer_request("same", x=strings([[b"a", b"b"]]))
    request.raw_input_contents[0] += b"\0\0\0\0"
    assert wire.error(request) == (
        "INVALID_ARGUMENT",
        "unexpected number of string elements 3 for inference input 'x' for model 'same', expecting 2",
    )
    request.raw_input_contents[0] = b"\xff\xff\xff\xffa"
    code, text = wire.error(request)
    assert code == "INVALID_ARGUMENT" and text.startswith("incomplete string data for inference input 'x'")
