"""What of a client's doing may lie in this process: how many calls, and how many bytes of unread answers.

    calls       `max_calls` of ModelInfer and ModelStreamInfer together. One beyond is refused before its
                message is read: gRPC never collects more than that many messages.
    answers     `answer_bytes` of all answers that are finished and that gRPC has not taken yet, because
                their clients do not read. When so much lies here, new requests are refused, and so is an
                answer that is finished by then: its client gets RESOURCE_EXHAUSTED in its place.

An answer is kept as long as less than the bound lies here; the bound is passed by one answer at most, and an
answer that is larger than the bound is not refused for ever. One stream may have `stream_share` of it, so
that one client that does not read takes nothing from the others.

The worker is not made to wait for such clients: its output arena is everybody's.
"""

from __future__ import annotations

from service.codec.errors import RequestError
from service.errors import Code, as_triton

_SHARE = 4


class Admission:
    """Counts for one front end; all calls belong to its loop's thread."""

    def __init__(self, max_calls: int, answer_bytes: int, triton: bool = False) -> None:
        self.max_calls = max_calls
        self.answer_bytes = answer_bytes
        self.stream_share = answer_bytes // _SHARE
        self._triton = triton
        self.calls = 0
        self.held = 0

    def refusal(self, text: str) -> RequestError:
        """What is raised here: the same request may succeed later."""
        code, message = int(Code.RESOURCE_EXHAUSTED), text
        if self._triton:
            code, message = as_triton(code, message, True)
        return RequestError(code, message, True)

    def enter(self) -> None:
        """One more call, until `leave`. Raises RequestError, and then there is nothing to leave."""
        if self.calls >= self.max_calls:
            raise self.refusal(
                f"all {self.max_calls} calls that may be in progress at once (--max-calls) are, try later"
            )
        self.calls += 1

    def leave(self, _: object = None) -> None:
        self.calls -= 1

    def check_answers(self) -> None:
        """Raises RequestError while a request's answer would have nowhere to lie."""
        if self.held >= self.answer_bytes:
            raise self.refusal(
                f"{self.held} bytes of answers wait for clients that do not read them, and --answer-mb "
                f"allows {self.answer_bytes >> 20} MB: try later"
            )

    def add(self, size: int) -> None:
        """An answer of `size` bytes lies here from now on. Refusals on streams are answers, too: no check."""
        self.held += size

    def drop(self, size: int) -> None:
        self.held -= size
