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
