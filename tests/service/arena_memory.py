"""How much memory the arenas of a process have, as the system counts it."""

from __future__ import annotations

import os
from pathlib import Path

BLOCK = 512  # what st_blocks counts in


def allocated_bytes(arena: str, pid: int | str = "self") -> int:
    """Of all memfds `headrace-<arena>` open in the process: what they take, not how long they are."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(entry).startswith(f"/memfd:headrace-{arena} "):
                status = entry.stat()
                found[status.st_ino] = status.st_blocks * BLOCK
        except FileNotFoundError:
            pass  # closed in the meantime
    return sum(found.values())


def mapped_arenas(arena: str, pid: int) -> set[str]:
    """The inodes of all memfds `headrace-<arena>` that the process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if f"/memfd:headrace-{arena} " in line}
