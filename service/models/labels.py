"""Label files: the names of an output's classes, one a line, beside a model's config.pbtxt.

The first line is class 0. An empty line is a class without a label, and lines beyond the output's classes are
ignored. A label is what the client gets, byte for byte: it need not be UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from service.models.modelconfig import ConfigFault
from service.models.wanted import WantedTensor

MAX_LABEL_BYTES = 2 << 20  # of all models: they cross a control socket, where a byte may become seven


def with_labels(
    folder: Path, said: Iterable[Any], outputs: Iterable[WantedTensor]
) -> tuple[WantedTensor, ...]:
    """`outputs` with the labels of the files that a config says (`said`: its outputs). Raises ConfigFault."""
    files = {tensor.name: tensor.label_filename for tensor in said if tensor.label_filename}
    return tuple(
        replace(tensor, labels=_read(folder, tensor.name, files[tensor.name]))
        if tensor.name in files
        else tensor
        for tensor in outputs
    )


def _read(folder: Path, output: str, name: str) -> tuple[str, ...]:
    where = f"label_filename '{name}' of output '{output}'"
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise ConfigFault(f"{where} must be a name inside the model's folder")
    try:
        if (folder / name).exists() and not (folder / name).is_file():  # whoever opens a pipe waits
            raise ConfigFault(f"{where} is no file; expected one in the model's folder")
        with open(folder / name, "rb") as file:
            data = file.read(MAX_LABEL_BYTES + 1)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise ConfigFault(f"{where} cannot be read: {what}; expected a file in the model's folder") from error
    if len(data) > MAX_LABEL_BYTES:
        raise ConfigFault(f"{where} has more than {MAX_LABEL_BYTES} bytes")
    lines = data.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
    return tuple(line.removesuffix("\r") for line in lines)
