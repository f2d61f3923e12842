"""CPU time of a process and its descendants, from /proc.

The scheduler's own account (``schedstat``, ns) is used rather than ``stat``, whose user and system times
are sampled at the timer tick: a server that works in bursts of 50 us between ticks looks idle there. A
thread that ends between two readings takes its time with it; servers of the kind measured here keep theirs.
"""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")


class NoSuchProcess(Exception):
    """The process is not on this machine; the text says so."""


def cpu_seconds(pid: int, proc: Path = _PROC) -> float:
    """CPU seconds used so far by all threads of ``pid`` and its descendants. Raises NoSuchProcess."""
    if not (proc / str(pid)).is_dir():
        raise NoSuchProcess(f"--pid {pid}: there is no such process on this machine")
    return sum(_threads_ns(proc / str(member)) for member in family(pid, proc)) / 1e9


def family(pid: int, proc: Path = _PROC) -> list[int]:
    """``pid`` and its descendants that are alive now."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for member in found:
        found.extend(children.get(member, []))
    return found


def _parent(entry: Path) -> int | None:
    try:
        # The command in parentheses may hold blanks and parentheses itself: read from the last one.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _threads_ns(process: Path) -> int:
    total = 0
    try:
        tasks = list((process / "task").iterdir())
    except OSError:
        return 0
    for task in tasks:
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (OSError, IndexError, ValueError):
            continue
    return total
