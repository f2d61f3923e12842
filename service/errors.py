"""What can go wrong, in three families, and the one table that maps them to gRPC status codes.

    caller's fault   the request can never succeed as it is        InvalidRequest NotFound NotBuilt
    capacity         the same request may succeed later            Overloaded Unavailable DeadlineExceeded
    ours             a defect, or a model that failed               EngineFailure InternalError

A message names what was expected, what came and, where there is something to do, what to do. This file
imports nothing of ours and nothing of gRPC: codes are numbers here, and only a front end turns them into a
status. Errors that the codec finds carry their code already (`service.frontend._dispatch.RequestError`).

Start-up has two errors of its own that never reach a client: ConfigError (every fault of a configuration at
once) and StartError (a busy port, a model that does not load). Both end `headrace serve` with
EXIT_BAD_START.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_START = 2


class Code(IntEnum):
    """gRPC status codes, by their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class ServiceError(Exception):
    """An error a client is told. Its class decides the status code; its text is the status message."""


class CallerFault(ServiceError):
    """The request can never succeed as it is."""


class InvalidRequest(CallerFault):
    pass


class NotFound(CallerFault):
    pass


class NotBuilt(CallerFault):
    """A known call or feature that this server does not have."""


class CapacityError(ServiceError):
    """The same request may succeed later."""


class Overloaded(CapacityError):
    """A bounded queue or arena is full. Clients are asked to wait `PUSHBACK_MS` before they try again."""


class Unavailable(CapacityError):
    pass


class DeadlineExceeded(CapacityError):
    pass


class OurFault(ServiceError):
    pass


class EngineFailure(OurFault):
    """The model failed on a valid request."""


class InternalError(OurFault):
    """A defect of this server."""


CODES: dict[type[ServiceError], Code] = {
    InvalidRequest: Code.INVALID_ARGUMENT,
    NotFound: Code.NOT_FOUND,
    NotBuilt: Code.UNIMPLEMENTED,
    Overloaded: Code.RESOURCE_EXHAUSTED,
    Unavailable: Code.UNAVAILABLE,
    DeadlineExceeded: Code.DEADLINE_EXCEEDED,
    EngineFailure: Code.INTERNAL,
    InternalError: Code.INTERNAL,
}

# What a refused client should wait before it tries again (trailing metadata `grpc-retry-pushback-ms`): long
# enough for a queue to move, short enough that a retry is still of use.
PUSHBACK_MS = 100

# What a status message may take on the wire, where a byte that is no printable ASCII takes three. It is a
# header, and clients take 8 KB of headers (gRPC's default): a larger one costs the client the whole answer.
MAX_STATUS_BYTES = 4096

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
NOT_READY = "Server not ready"


# What `--status-codes triton` says instead, where Triton has another code: (our code, may the same request
# succeed later) -> (its code, the words it begins with). None: a worker failed it, and did not say.
TRITON: dict[tuple[Code, bool | None], tuple[Code, str]] = {
    (Code.RESOURCE_EXHAUSTED, True): (Code.UNAVAILABLE, "Exceeds maximum queue size"),
    (Code.RESOURCE_EXHAUSTED, False): (Code.INVALID_ARGUMENT, ""),
    (Code.RESOURCE_EXHAUSTED, None): (Code.UNAVAILABLE, ""),
    (Code.DEADLINE_EXCEEDED, False): (Code.UNAVAILABLE, "Request timeout expired"),
    (Code.DEADLINE_EXCEEDED, None): (Code.UNAVAILABLE, "Request timeout expired"),
}


def as_triton(code: int, message: str, transient: bool | None) -> tuple[int, str]:
    """Code and message under `--status-codes triton`. What is not in the table stays as it is."""
    told, words = TRITON.get((Code(code), transient), (code, ""))
    return told, message if message.startswith(words) else f"{words}: {message}"


def status_message(text: str) -> str:
    """`text` as a client can be told it: cut where it takes more than MAX_STATUS_BYTES, and UTF-8 whatever
    files are called.
    """
    data = text.encode("utf-8", "backslashreplace")
    if 3 * len(data) <= MAX_STATUS_BYTES:
        return data.decode()
    room = MAX_STATUS_BYTES - len("...")
    for at, byte in enumerate(data[:MAX_STATUS_BYTES]):
        room -= 1 if 0x20 <= byte <= 0x7E and byte != ord("%") else 3
        if room < 0:
            return data[:at].decode(errors="ignore") + "..."
    return data.decode()


def code_of(error: BaseException) -> Code:
    """The status code of an error. Whatever has no row in the table is a defect of ours: INTERNAL."""
    for cls in type(error).__mro__:
        if cls in CODES:
            return CODES[cls]
    return Code.INTERNAL


def error_of(code: int, text: str) -> ServiceError:
    """The error of a status code; INTERNAL for one that no error here has. The inverse of `code_of`."""
    cls = next((cls for cls, own in CODES.items() if own == code), InternalError)
    return cls(text)


class StartError(Exception):
    """The service cannot start. The text is one sentence for a person at a terminal."""


class ConfigError(StartError):
    """Every fault of a configuration, found in one pass.

    Attributes:
        faults: one sentence per fault, never empty.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))
