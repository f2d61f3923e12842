"""Libraries that a plan's layers come from: the parameter `plugins` of its config."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

PLUGINS = "plugins"  # the name of the parameter in ModelConfig


def plugins_from(config: Any, faults: list[str]) -> tuple[str, ...]:
    """File names inside the version's folder, in the order in which they are to be loaded: "a.so, b.so". A
    clause for a fault is added to `faults`.
    """
    if PLUGINS not in config.parameters:
        return ()
    text = config.parameters[PLUGINS].string_value
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or any(PurePath(name).is_absolute() or ".." in PurePath(name).parts for name in names):
        faults.append(
            f"parameter {PLUGINS} is '{text}'; expected names of files in the version's folder, with commas, "
            "such as 'libmine.so'"
        )
        return ()
    return names
