"""Which model a request is for, and what is said when there is none."""

from __future__ import annotations

import pytest
from codec_models import Model

from service.codec import RequestError, _codec

INVALID, NOT_FOUND, UNAVAILABLE = 3, 5, 14


def test_finds_a_model_by_name_and_version() -> None:
    specs = [Model(name=n, version=v).spec() for n, v in [("b", "2"), ("a", "9"), ("b", "10"), ("ab", "1")]]
    assert [
        _codec.find(specs, *key) for key in [("b", ""), ("b", "2"), ("a", "9"), ("ab", ""), ("b", "010")]
    ] == [2, 0, 1, 3, 2]


@pytest.mark.parametrize(
    ("name", "version", "code", "text"),
    [
        ("c", "", NOT_FOUND, "Request for unknown model: 'c' is not found; served: 'b'"),
        ("c", "1", NOT_FOUND, "Request for unknown model: 'c' is not found; served: 'b'"),
        ("", "", NOT_FOUND, "Request for unknown model: '' is not found; served: 'b'"),
        ("b", "3", NOT_FOUND, "Request for unknown model: 'b' version 3 is not found; served: 2"),
        (
            "b",
            "x",
            INVALID,
            "failed to get model version from specified version string 'x' for model 'b': expected a "
            "whole number above 0, or an empty string for the highest version",
        ),
        ("b", "0", INVALID, "failed to get model version from specified version string '0'"),
        ("b", "-1", INVALID, "failed to get model version from specified version string '-1'"),
        ("b", "18446744073709551617", INVALID, "failed to get model version"),
    ],
)
def test_refuses_unknown_models_and_versions(name: str, version: str, code: int, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        _codec.find([Model(name="b", version="2").spec()], name, version)
    assert caught.value.code == code
    assert caught.value.message.startswith(text)


EIGHT = ", ".join(f"'{i}{'x' * 23}'" for i in range(8))
KNOWN = [
    ("b", "1", "it is being unloaded"),
    ("gone", "4", "unloaded"),
    ("new", "", "it is being loaded"),
    ("torn", "1", "é" * 4000),
]


@pytest.mark.parametrize(
    ("name", "version", "code", "text"),
    [
        ("b", "1", UNAVAILABLE, "'b' version 1 is not at ready state: it is being unloaded"),
        ("b", "01", UNAVAILABLE, "'b' version 01 is not at ready state: it is being unloaded"),
        ("b", "3", NOT_FOUND, "'b' version 3 is not found; served: 2"),
        ("gone", "", NOT_FOUND, "'gone' has no available versions: unloaded; served: 'b'"),
        ("gone", "4", UNAVAILABLE, "'gone' version 4 is not at ready state: unloaded"),
        ("gone", "5", NOT_FOUND, "'gone' is not found; served: 'b'"),
        ("new", "", NOT_FOUND, "'new' has no available versions: it is being loaded; served: 'b'"),
        ("new", "8", UNAVAILABLE, "'new' version 8 is not at ready state: it is being loaded"),
        ("torn", "", NOT_FOUND, f"'torn' has no available versions: {'é' * 48}; served: 'b'"),
        ("other", "", NOT_FOUND, "'other' is not found; served: 'b'"),
    ],
)
def test_what_is_known_and_not_served_is_told(name: str, version: str, code: int, text: str) -> None:
    specs = [Model(name="b", version="2").spec()]
    assert _codec.find(specs, "b", "", KNOWN) == 0
    with pytest.raises(RequestError) as caught:
        _codec.find(specs, name, version, KNOWN)
    assert (caught.value.code, caught.value.message) == (code, f"Request for unknown model: {text}")


def test_the_longest_of_these_messages_fits() -> None:
    specs = [Model(name=f"{i:02}{'x' * 200}").spec() for i in range(20)]
    with pytest.raises(RequestError) as caught:
        _codec.find(specs, "n" * 200, "", [("n" * 200, "", "w" * 200)])
    assert caught.value.message.endswith("' and 12 more")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], "; no model is served"),
        (["b", "a"], "; served: 'a', 'b'"),
        ("abcdefgh", "; served: 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'"),
        ("abcdefghij", "; served: 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h' and 2 more"),
        (["é" * 100], f"; served: '{'é' * 12}'"),
        ([f"{i}{'x' * 200}" for i in range(9)], f"; served: {EIGHT} and 1 more"),
    ],
)
def test_what_is_served_is_told_within_bounds(names: list[str], text: str) -> None:
    specs = [Model(name=name, version=v).spec() for name in names for v in ("1", "2")]
    with pytest.raises(RequestError) as caught:
        _codec.find(specs, "?", "")
    assert caught.value.message == f"Request for unknown model: '?' is not found{text}"


def test_the_versions_that_are_served_are_told_within_bounds() -> None:
    specs = [Model(name="b", version=str(v)).spec() for v in range(1, 12)]
    with pytest.raises(RequestError) as caught:
        _codec.find(specs, "b", "99")
    words = (
        "Request for unknown model: 'b' version 99 is not found; served: 1, 2, 3, 4, 5, 6, 7, 8 and 3 more"
    )
    assert caught.value.message == words


def test_one_spec_for_a_name_and_version() -> None:
    with pytest.raises(RequestError, match="expected one model 'm' of version 01, got two"):
        _codec.find([Model().spec(), Model(version="01").spec()], "m", "")
