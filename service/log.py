"""What a process says on standard error, and that saying it never costs a request.

One line each, whatever a name in it contains. Nobody may be there to read it, or the disk under it may be
full: that is no reason for a service to end.
"""

from __future__ import annotations

import contextlib
import sys
import traceback


def say(text: str) -> None:
    """One line for the person who started the service."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed
        print(f"headrace: {one_line(text)}", file=sys.stderr, flush=True)


def say_exception(error: BaseException) -> None:
    """The stack trace of what nobody foresaw."""
    with contextlib.suppress(OSError, ValueError):
        traceback.print_exception(error, file=sys.stderr)
        sys.stderr.flush()


def one_line(text: str) -> str:
    """`text` with what could break or recolour a line written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
