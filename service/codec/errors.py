"""The error of a request that the codec, or the queue behind it, refused."""

from __future__ import annotations


class RequestError(Exception):
    """What a client is told.

    Attributes:
        code: gRPC status code, never 0.
        message: one sentence that names the tensor or parameter, what was expected and what came.
        transient: the same request may succeed a little later.
    """

    def __init__(self, code: int, message: str, transient: bool = False) -> None:
        self.code = code
        self.message = message
        self.transient = transient
        super().__init__(code, message)

    def __str__(self) -> str:
        return self.message
