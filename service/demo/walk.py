"""The files under some paths that are a person's own.

Left out: folders whose name begins with a dot, virtual environments (they have a ``pyvenv.cfg``), and what
tools make again on demand (``build``, ``node_modules``, ...). A path that was named is always entered,
whatever its name. Links to folders are not followed, and only regular files count: reading a pipe or a
device might never end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

SKIPPED = frozenset({"build", "dist", "node_modules", "__pycache__", "site-packages", "venv", "env"})


def files_under(paths: Iterable[Path]) -> Iterator[Path]:
    """Regular files, each once, in a fixed order. Raises FileNotFoundError for a path that is not there."""
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no '{path}'")
        for file in [path] if path.is_file() else _walk(path):
            if file not in seen:
                seen.add(file)
                yield file


def _walk(top: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if _is_own(Path(folder, name)))
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_file():
                yield file


def _is_own(folder: Path) -> bool:
    name = folder.name
    generated = name in SKIPPED or name.endswith(".egg-info")
    return not name.startswith(".") and not generated and not (folder / "pyvenv.cfg").exists()
