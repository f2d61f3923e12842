"""What gRPC's own words for a connection that did not come about are told as."""

from __future__ import annotations

import grpc
import pytest

from service.client.errors import HungUp, Unreachable, explain

FAILED = "failed to connect to all addresses; last error: UNKNOWN: unix:/h.sock: "


class Error(grpc.RpcError):
    def __init__(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize("words", ["Socket closed", "Connection reset by peer (104)", "Broken pipe (32)"])
def test_however_a_connection_ends_that_was_taken(words: str) -> None:
    told = explain("unix:/h.sock", Error(FAILED + words), tls=True)
    assert isinstance(told, HungUp)
    assert words in str(told) and "--ssl-client-cert FILE and" in str(told)
    assert "it may speak TLS" in str(explain("unix:/h.sock", Error(FAILED + words)))


def test_where_nobody_listens_it_is_not_tls() -> None:
    told = explain("localhost:1", Error(FAILED + "Connection refused (111)"), tls=True)
    assert type(told) is Unreachable and "--ssl" not in str(told)
