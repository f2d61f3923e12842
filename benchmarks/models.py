"""The model that ``overhead.py`` serves, made with the ``onnx`` package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 16


def affine(path: Path) -> Path:
    """Writes y = 2x + 1 on FP32 [-1, 16]: next to no work, so that all but the engine is measured."""
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "two"], ["double"]),
            helper.make_node("Add", ["double", "one"], ["y"]),
        ],
        "affine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDTH])],
        [numpy_helper.from_array(np.array(n, np.float32), name) for n, name in ((2, "two"), (1, "one"))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path
