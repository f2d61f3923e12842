"""What can go wrong in a call; every text is a sentence for a person."""

from __future__ import annotations

import grpc

# gRPC has no code of its own for "nobody is there": it is UNAVAILABLE with one of these in the text.
_NOBODY = ("failed to connect", "Connection refused", "DNS resolution failed", "Name resolution failure")


class ClientError(Exception):
    """Anything that can go wrong in a call; the text is meant for a person."""


class InvalidTensor(ClientError):
    """An array cannot travel as the datatype asked for, or an answer cannot be read as one."""


class Unreachable(ClientError):
    """Nobody answered at the address."""


class RpcFailed(ClientError):
    """The server answered with an error. ``code`` is the gRPC status name, ``details`` the server's text."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}" if details else code)
        self.code = code
        self.details = details


class RequestRefused(ClientError):
    """One request of a stream was answered with an error, which is a text only; the stream goes on."""


def explain(url: str, error: grpc.RpcError) -> ClientError:
    """Turns a gRPC error into a ClientError: was nobody there, or did the server say no?"""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and any(text in details for text in _NOBODY):
        return Unreachable(f"nothing answers at {url} ({_last_words(details)})")
    return RpcFailed(code.name, details)


def _last_words(details: str) -> str:
    """gRPC's connection errors are a paragraph; the reason is what follows the last colon."""
    return details.rsplit(": ", 1)[-1].strip() or details
