"""What can go wrong in a call; every text is a sentence for a person."""

from __future__ import annotations

import grpc

# gRPC has no code of its own for "nobody is there": it is UNAVAILABLE with one of these in the text.
_NOBODY = ("failed to connect", "Connection refused", "DNS resolution failed", "Name resolution failure")
# What stands beside "failed to connect" when somebody took the connection: before gRPC was spoken, it ended.
_HUNG_UP = (
    "Socket closed",
    "Connection reset",
    "Broken pipe",
    "andshake",
    "TSI_",
    "Failed parsing HTTP/2",
    "SETTINGS",
)
_UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "not in peer certificate", "Hostname Verification")
_TLS_LIBRARY = "OPENSSL_internal:"  # what follows is the reason for a handshake's end
_WITHOUT_TLS = (
    "something listens there; it may speak TLS (--ssl, or --ssl-root-cert FILE), or be no gRPC server"
)
_WITH_TLS = (
    "something listens there; it may speak no TLS (leave the --ssl flags out), want its clients' certificate "
    "(--ssl-client-cert FILE and --ssl-client-key FILE), or be no gRPC server"
)


class ClientError(Exception):
    """Anything that can go wrong in a call; the text is meant for a person."""


class InvalidTensor(ClientError):
    """An array cannot travel as the datatype asked for, or an answer cannot be read as one."""


class Unreachable(ClientError):
    """Nobody answered at the address."""


class HungUp(Unreachable):
    """Somebody listens at the address, and ended the connection before a word of gRPC was said."""


class RpcFailed(ClientError):
    """The server answered with an error. ``code`` is the gRPC status name, ``details`` the server's text."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"{code}: {details}" if details else code)
        self.code = code
        self.details = details


class RequestRefused(ClientError):
    """One request of a stream was answered with an error, which is a text only; the stream goes on."""


def explain(url: str, error: grpc.RpcError, tls: bool = False) -> ClientError:
    """Turns a gRPC error into a ClientError: was nobody there, or did the server say no?

    ``tls``: whether the call went through TLS.
    """
    code, details = error.code(), error.details() or ""
    if code is not grpc.StatusCode.UNAVAILABLE:
        return RpcFailed(code.name, details)
    why = _last_words(details)
    if tls and any(text in details for text in _UNTRUSTED):
        hint = "--ssl-root-cert FILE names who signed it; it must be of the name in --url"
        return HungUp(f"the certificate of the server at {url} is not trusted ({why}): {hint}")
    if "failed to connect" in details and any(text in details for text in _HUNG_UP):
        return HungUp(f"nothing answers at {url} ({why}): {_WITH_TLS if tls else _WITHOUT_TLS}")
    if any(text in details for text in _NOBODY):
        return Unreachable(f"nothing answers at {url} ({why})")
    return RpcFailed(code.name, details)


def _last_words(details: str) -> str:
    """gRPC's connection errors are a paragraph; the reason is what follows the last colon, or what the TLS
    library says.
    """
    _, found, reason = details.partition(_TLS_LIBRARY)
    if found:
        return reason.removesuffix(": OK").removesuffix(": Invalid certificate verification context")
    return details.rsplit(": ", 1)[-1].strip() or details
