"""The first bytes of plans, as TensorRT 10.6 and TensorRT-RTX 1.7 write them."""

from __future__ import annotations

import pytest

from service.engines.tensorrt_plan import built_with, foreign, why_refused

PLAN = bytes.fromhex("6674727400000000 0200000000000000 1c331f0300000000 0a06001a72747274 4e474e4500000000")
RTX = bytes.fromhex("7674727400000000 0200000000000000 c428000000000000 0107017476747274 0800000000000000")


def test_a_plan_says_what_built_it() -> None:
    assert built_with(PLAN) == ("TensorRT", "10.6.0.26")
    assert built_with(RTX) == ("TensorRT-RTX", "1.7.1.116")


@pytest.mark.parametrize("data", [b"", b"ftrt", PLAN[:27], b"\x08\x09\x12\x07pytorch" + bytes(64), bytes(64)])
def test_other_bytes_say_nothing(data: bytes) -> None:
    assert built_with(data) == ("", "")
    assert foreign(data) == ""
    assert "does not begin as a plan does" in why_refused(data, "10.6.0")


def test_a_plan_of_tensorrt_rtx_is_for_another_library() -> None:
    assert foreign(PLAN) == ""
    assert "built with TensorRT-RTX 1.7.1.116, and is served with TensorRT" in foreign(RTX)


def test_both_versions_are_named() -> None:
    older = PLAN[:25] + b"\x03" + PLAN[26:]
    assert why_refused(older, "10.6.0").startswith("built with TensorRT 10.3.0.26, running 10.6.0: ")
    assert why_refused(PLAN, "10.6.0.26").startswith("a plan runs on the version and the kind of device")
    assert why_refused(PLAN, "10.6.0").startswith("a plan runs on the version and the kind of device")
