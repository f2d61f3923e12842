"""The file-type model that the PyPI package ``magika`` ships: its files and its configuration.

The package is located, never imported: importing it would load a second onnxruntime session into this
process, while the demo's point is that the service runs the model. Everything that depends on the model's
version (sizes, padding, labels, thresholds) is read from the configuration beside it.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOW_TO_INSTALL = (
    "the demo needs the file-type model of the 'magika' package, which is not installed: "
    "run  pip install 'headrace[demo]'"
)


class DemoModelError(Exception):
    """The model is not there or is not one that this demo knows how to feed; the text says what to do."""


@dataclass(frozen=True)
class FileTypeModel:
    """Everything the demo knows about the model. Sizes are in bytes of a file, one model input each."""

    path: Path
    beginning: int
    end: int
    block: int
    padding: int
    smallest: int
    labels: tuple[str, ...]
    thresholds: Mapping[str, float]
    default_threshold: float
    renamed: Mapping[str, str]
    text_labels: frozenset[str]

    @property
    def row_size(self) -> int:
        """INT32 values in a row of the model's input."""
        return self.beginning + self.end

    def trusted_label(self, label: str, confidence: float) -> str:
        """What the magika tool would say: another name, or a generic one where it distrusts the model."""
        renamed = self.renamed.get(label, label)
        if confidence >= self.thresholds.get(label, self.default_threshold):
            return renamed
        return "txt" if renamed in self.text_labels else "unknown"


def find_model() -> FileTypeModel:
    """Locates the model. Raises DemoModelError when the package is missing or is of another kind."""
    spec = importlib.util.find_spec("magika")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    if not places:
        raise DemoModelError(HOW_TO_INSTALL)
    package = Path(places[0])
    models = sorted(path.parent for path in package.glob("models/*/model.onnx"))
    if not models:
        raise DemoModelError(f"the 'magika' package in {package} has no model in it: {HOW_TO_INSTALL}")
    try:
        return read_model(models[-1], package / "config" / "content_types_kb.min.json")
    except (OSError, ValueError, KeyError) as error:
        raise DemoModelError(
            f"the model in {models[-1]} is not one this demo can feed ({error}): pip install 'magika~=1.0'"
        ) from None


def read_model(folder: Path, content_types: Path) -> FileTypeModel:
    """Reads the model's configuration. Raises OSError, ValueError or KeyError when it is of another kind."""
    config: dict[str, Any] = json.loads((folder / "config.min.json").read_text())
    if config["mid_size"] != 0 or config["use_inputs_at_offsets"]:
        raise ValueError("it looks at parts of a file other than its beginning and end")
    types: dict[str, Any] = json.loads(content_types.read_text())
    return FileTypeModel(
        path=folder / "model.onnx",
        beginning=config["beg_size"],
        end=config["end_size"],
        block=config["block_size"],
        padding=config["padding_token"],
        smallest=config["min_file_size_for_dl"],
        labels=tuple(config["target_labels_space"]),
        thresholds=config["thresholds"],
        default_threshold=config["medium_confidence_threshold"],
        renamed=config["overwrite_map"],
        text_labels=frozenset(name for name, info in types.items() if info["is_text"]),
    )
