"""How an error of ours becomes a gRPC status: the one place where this front end words a refusal.

A handler that fails sets the status on its context and returns: gRPC then sends a status without a message.
That is cheaper than `context.abort`, which raises, and overload is when refusing has to be cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from service.codec.errors import RequestError
from service.errors import PUSHBACK_MS, SHUTTING_DOWN, Code, ServiceError, code_of, status_message
from service.log import say_exception

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext

STATUS = {code.value[0]: code for code in grpc.StatusCode}
_PUSHBACK = (("grpc-retry-pushback-ms", str(PUSHBACK_MS)),)


def set_status(context: Context, code: int, message: str, retry: bool = False) -> bytes:
    """Ends a call with an error; `retry`: with a hint when to come back. Returns what the handler returns."""
    context.set_code(STATUS[code])
    context.set_details(status_message(message))
    if retry:
        context.set_trailing_metadata(_PUSHBACK)
    return b""


def set_shutting_down(context: Context) -> bytes:
    return set_status(context, Code.UNAVAILABLE, SHUTTING_DOWN)


def status_of(error: Exception) -> tuple[int, str]:
    """Code and words of an error. A defect of ours shows its insides to our log, not to clients."""
    if isinstance(error, RequestError):
        return error.code, error.message
    if isinstance(error, ServiceError):
        return code_of(error), str(error)
    say_exception(error)
    return Code.INTERNAL, "internal error; the server's log says more"
