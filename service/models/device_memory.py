"""A size in bytes as people write it in a config: the parameter `gpu_memory_limit`."""

from __future__ import annotations

import re
from typing import Any

GPU_MEMORY_LIMIT = "gpu_memory_limit"  # the name of the parameter in ModelConfig
_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_MOST = 1 << 50


def size_in_bytes(text: str) -> int:
    """ "500MB", "1.5 GB", "800000000": a whole number of bytes. Units are powers of 1024, as in every flag
    here; MiB is another name for MB. ValueError with a clause for what is none.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?)(B?)\s*", text, re.IGNORECASE)
    unit = f"{match[2].upper()}B" if match and match[2] else ""
    size = int(float(match[1]) * _UNITS[unit]) if match else 0
    if not 0 < size <= _MOST:
        raise ValueError(
            f"is '{text}'; expected bytes above 0, with or without a unit, such as '500MB' or '2GB'"
        )
    return size


def memory_limit_from(config: Any, faults: list[str]) -> int:
    """A model's cap in bytes; 0: none. A clause for a fault is added to `faults`."""
    if GPU_MEMORY_LIMIT not in config.parameters:
        return 0
    try:
        return size_in_bytes(config.parameters[GPU_MEMORY_LIMIT].string_value)
    except ValueError as error:
        faults.append(f"parameter {GPU_MEMORY_LIMIT} {error}")
        return 0
