"""What all parts of a front end ask: is it ready, is it draining, and how many requests were turned away.

    starting --every worker ready once--> ready <--a worker or a model dies, comes back--> not ready ...
    --drain--> draining

Draining is for ever. It is a flag here and nothing else: who has to act on it is told by the process.
"""

from __future__ import annotations

from collections import Counter

from service.errors import NOT_READY, Code, Unavailable
from service.frontend.catalog import Catalog

SHUTTING_DOWN_REASON = "shutting_down"
# Every reason there is, so that each is seen at 0 before it is seen at 1: a rate needs both.
REASONS = (
    SHUTTING_DOWN_REASON,
    *(
        code.name.lower()
        for code in (
            Code.INVALID_ARGUMENT,
            Code.DEADLINE_EXCEEDED,
            Code.NOT_FOUND,
            Code.RESOURCE_EXHAUSTED,
            Code.UNIMPLEMENTED,
            Code.INTERNAL,
            Code.UNAVAILABLE,
        )
    ),
)


class State:
    """Written by the front end's thread, read by any."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.draining = False
        self.rejected: Counter[str] = Counter(dict.fromkeys(REASONS, 0))

    @property
    def ready(self) -> bool:
        """What readiness probes are told."""
        return self._catalog.all_up and not self.draining

    def check_started(self) -> None:
        """Raises Unavailable before every worker has been ready once: until then no model can be called
        unknown.
        """
        if not self._catalog.started:
            raise Unavailable(NOT_READY)

    def count_rejected(self, reason: str) -> None:
        """A request that never got a slot. Reasons come from this program, never from a client."""
        self.rejected[reason] += 1

    def count_rejected_code(self, code: int) -> None:
        """The same, for a reason that is a status code."""
        self.rejected[Code(code).name.lower()] += 1
