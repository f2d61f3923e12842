"""What can go wrong with the queue. Every message says what was expected, what came, and what to do."""

from __future__ import annotations


class QueueError(Exception):
    """Base of all errors of this package."""


class QueueFull(QueueError):
    """No slot or no arena memory for the request now: refuse it, or try again after a completion."""


class LayoutMismatch(QueueError):
    """Shared memory that another build, or something else altogether, has written."""


class ForkedHandle(QueueError):
    """A handle was used in a forked child. It belongs to the process that made it: spawn instead."""


class OutputTooLarge(QueueError):
    """Outputs that can never fit into the output arena."""
