"""How the plan of an ONNX file in a repository is built: parameters of its config.

`precision_mode` and `max_workspace_size_bytes` are called so in Triton's ONNX backend, where it hands a model
to TensorRT; `calibration` names data in the model's version folder, for INT8.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

PRECISION, WORKSPACE, CALIBRATION = "precision_mode", "max_workspace_size_bytes", "calibration"
PARAMETERS = frozenset([PRECISION, WORKSPACE, CALIBRATION])
PRECISIONS = ("FP32", "FP16", "INT8")


@dataclass(frozen=True)
class Building:
    """What a config says of a build.

    Attributes:
        precisions: in which layers may be computed besides FP32. workspace_bytes: of the device, that a layer
        may take while it computes; 0: all there is. calibration: a file in the version's folder; empty:
        none. usual_rows: of a batch that the plan is tuned for; 0: the largest.
    """

    precisions: tuple[str, ...] = ()
    workspace_bytes: int = 0
    calibration: str = ""
    usual_rows: int = 0


def building_from(config: Any, faults: list[str]) -> Building:
    """A clause for each fault is added to `faults`."""
    preferred = list(config.dynamic_batching.preferred_batch_size)
    return Building(
        _precisions(_said(config, PRECISION), faults),
        _workspace(_said(config, WORKSPACE), faults),
        _calibration(_said(config, CALIBRATION), faults),
        max(preferred, default=0),
    )


def _said(config: Any, parameter: str) -> str:
    return str(config.parameters[parameter].string_value) if parameter in config.parameters else ""


def _precisions(text: str, faults: list[str]) -> tuple[str, ...]:
    found = tuple(part.strip().upper() for part in text.split(",")) if text else ()
    if any(name not in PRECISIONS for name in found):
        faults.append(f"parameter {PRECISION} is '{text}'; expected {', '.join(PRECISIONS)}, or FP16,INT8")
        return ()
    return tuple(name for name in found if name != "FP32")


def _workspace(text: str, faults: list[str]) -> int:
    if text and not (text.isascii() and text.isdecimal()):
        faults.append(f"parameter {WORKSPACE} is '{text}'; expected a number of bytes")
        return 0
    return int(text or 0)


def _calibration(text: str, faults: list[str]) -> str:
    if text and (PurePath(text).is_absolute() or ".." in PurePath(text).parts):
        faults.append(
            f"parameter {CALIBRATION} is '{text}'; expected the name of a file in the version's folder"
        )
        return ""
    return text
