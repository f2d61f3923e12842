"""One table maps every error a client can be told to its status code."""

from __future__ import annotations

import grpc

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
