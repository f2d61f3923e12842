"""Repositories of small models, in the layout that Triton's users have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def adds(path: Path, what: float, batch: Any = "N", width: Any = 4) -> None:
    """Writes a model y = x + `what` over FP32 [batch, width]."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, width]) for name in "xy")
    number = numpy_helper.from_array(np.float32(what), "number")
    graph = helper.make_graph([helper.make_node("Add", ["x", "number"], ["y"])], "adds", [x], [y], [number])
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def put(
    folder: Path,
    name: str,
    versions: Mapping[int, float],
    config: str | None = None,
    batch: Any = "N",
    width: Any = 4,
) -> None:
    """A model of the repository `folder`, whose every version adds its own number."""
    for version, what in versions.items():
        (folder / name / str(version)).mkdir(parents=True)
        adds(folder / name / str(version) / "model.onnx", what, batch, width)
    if config is not None:
        (folder / name / "config.pbtxt").write_text(config)
