"""The scanner against the protobuf library: random messages, whole and damaged. Same acceptance, same values.

CODEC_CASES sets how many messages each seed makes (default 250); a failure prints the message.
"""

from __future__ import annotations

import os
from random import Random

import codec_reference
import pytest
from codec_random import Maker
from google.protobuf import __version__ as protobuf_version
from google.protobuf.internal import api_implementation

from service._pb import inference
from service.codec import RequestError, _codec

CASES = int(os.environ.get("CODEC_CASES", "250"))


@pytest.fixture(scope="module", autouse=True)
def upb() -> None:
    if api_implementation.Type() != "upb":
        pytest.skip(f"needs protobuf's upb implementation, this is {api_implementation.Type()}")


def same(wire: bytes) -> bool:
    """Compares, and says whether the message was accepted."""
    try:
        ours = _codec.scan(wire)
    except RequestError:
        ours = None
    assert ours == codec_reference.expected(wire), f"message: {wire.hex()}"
    return ours is not None


@pytest.mark.parametrize("seed", range(8))
def test_random_messages(seed: int) -> None:
    maker = Maker(Random(seed))
    accepted = sum(same(maker.request()) for _ in range(CASES))
    assert accepted > CASES * 0.8, "the generator makes too few valid messages to mean anything"


@pytest.mark.parametrize("seed", range(8))
def test_damaged_messages(seed: int) -> None:
    if int(protobuf_version.split(".")[0]) >= 7:
        pytest.skip(
            "damage makes what protobuf 7 decides otherwise (see hr_wire.h); protobuf 6 is the reference"
        )
    maker = Maker(Random(1000 + seed))
    accepted = sum(same(maker.damage(maker.request())) for _ in range(CASES))
    assert CASES * 0.03 < accepted < CASES * 0.9, "damage that always or never shows does not mean much"


@pytest.mark.parametrize("seed", range(2))
def test_what_the_library_writes(seed: int) -> None:
    """Parsed, written again by the library, and scanned: the ordinary form of the same random messages."""
    maker = Maker(Random(2000 + seed))
    for _ in range(CASES):
        wire = maker.request()
        if codec_reference.expected(wire) is not None:
            assert same(inference.ModelInferRequest.FromString(wire).SerializeToString())


def test_random_bytes() -> None:
    random = Random(7)
    for _ in range(CASES * 4):
        same(random.randbytes(random.randrange(24)))


@pytest.mark.parametrize("seed", range(2))
def test_raw_contents_are_found_in_the_beginning_of_a_message(seed: int) -> None:
    """From every beginning: where the scanner finds them, or nowhere yet."""
    random, found = Random(3000 + seed), 0
    for _ in range(CASES):
        request = inference.ModelInferRequest.FromString(inference_request(random))
        raw = bytes(random.randrange(1, 300))
        first = request.SerializeToString()
        wire = first + inference.ModelInferRequest(raw_input_contents=[raw, b"more"]).SerializeToString()
        at = len(first) + 1 + (1 if len(raw) < 128 else 2)
        for length in range(len(wire) + 1):
            place = _codec.find_raw(wire[:length])
            assert place == (at if length >= at else 0), (wire.hex(), length)
            found += place > 0
    assert found > CASES


def test_of_random_bytes_the_place_lies_within_them() -> None:
    random = Random(8)
    for _ in range(CASES * 4):
        head = random.randbytes(random.randrange(24))
        assert 0 <= _codec.find_raw(head) <= len(head)


def inference_request(random: Random) -> bytes:
    """A request without raw contents."""
    request = inference.ModelInferRequest(
        model_name="m" * random.randrange(200), id="i" * random.randrange(70)
    )
    request.parameters["p"].int64_param = random.getrandbits(60)
    for i in range(random.randrange(3)):
        request.inputs.add(name=f"x{i}", datatype="FP32", shape=(random.randrange(1000), 2))
        request.outputs.add(name="y")
    return request.SerializeToString()
