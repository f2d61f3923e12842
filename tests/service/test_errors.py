"""One table maps every error a client can be told to its status code."""

from __future__ import annotations

import grpc
import pytest

from service import errors


def leaves(cls: type[errors.ServiceError]) -> list[type[errors.ServiceError]]:
    below = cls.__subclasses__()
    return [leaf for sub in below for leaf in leaves(sub)] if below else [cls]


def test_every_error_has_its_row_and_no_row_is_for_nothing():
    assert set(leaves(errors.ServiceError)) == set(errors.CODES)


def test_every_error_belongs_to_one_family():
    families = (errors.CallerFault, errors.CapacityError, errors.OurFault)
    for error in errors.CODES:
        assert sum(issubclass(error, family) for family in families) == 1


def test_the_codes_are_grpcs():
    theirs = {code.name: code.value[0] for code in grpc.StatusCode}
    assert {code.name: int(code) for code in errors.Code} == theirs


def test_what_has_no_row_is_ours():
    assert errors.code_of(ZeroDivisionError()) == errors.Code.INTERNAL
    assert errors.code_of(errors.NotFound()) == errors.Code.NOT_FOUND


def on_the_wire(text: str) -> int:
    """Bytes of a status message in its header: gRPC's percent encoding."""
    return sum(1 if 0x20 <= byte <= 0x7E and byte != ord("%") else 3 for byte in text.encode())


@pytest.mark.parametrize("character", ["x", "%", "\n", "é", "\u20ac", "\U0001f600"])
@pytest.mark.parametrize("count", [1, 341, 342, 1365, 1366, 4096, 4097, 1_000_000])
def test_a_status_message_fits_the_headers_that_clients_take(character: str, count: int):
    text = character * count
    told = errors.status_message(text)
    assert on_the_wire(told) <= errors.MAX_STATUS_BYTES
    if told != text:
        assert on_the_wire(text) > errors.MAX_STATUS_BYTES - 3
        assert told.endswith("...") and text.startswith(told[:-3])
        assert on_the_wire(told) > errors.MAX_STATUS_BYTES - 12


def test_a_status_message_is_utf8_whatever_a_file_is_called():
    assert errors.status_message("in 1 is \udcff") == "in 1 is \\udcff"
