"""The models that the benchmarks serve, made with ``onnx``. Both answer y = 2x + 1 on FP32 [-1, 16].

``affine`` costs next to nothing, so that what is measured is everything but the engine. ``busy`` takes a
chosen time per batch whatever the batch's size, as a device does that is far from full: a loop of scalar
additions whose number of turns is found by trying, on one core, with no work that grows with the rows.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

WIDTH = 16
_OPSET, _IR = 17, 9
_TURNS_TO_START_WITH = 1000


def affine(path: Path) -> Path:
    """Writes y = 2x + 1."""
    return _save(path, [], "Identity")


def busy(path: Path, milliseconds: float) -> Path:
    """Writes y = 2x + 1 that takes about ``milliseconds`` a batch on this machine."""
    turns = _TURNS_TO_START_WITH
    for _ in range(
        4
    ):  # each time with the figure of the last, since the cost of a turn is not quite constant
        _write_busy(path, turns)
        turns = max(1, round(turns * milliseconds / _typical_ms(path)))
    return _write_busy(path, turns)


def _write_busy(path: Path, turns: int) -> Path:
    one = numpy_helper.from_array(np.float32(1), "step")
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum_in", "step"], ["sum_out"]),
            helper.make_node("Identity", ["go_in"], ["go_out"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("turn_number", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum_in", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum_out", TensorProto.FLOAT, []),
        ],
        [one],
    )
    nodes = [
        # The loop begins with the number of rows: nothing here is constant, so nothing is folded away.
        helper.make_node("Shape", ["x"], ["rows_1d"], start=0, end=1),
        helper.make_node("Squeeze", ["rows_1d"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["begin"], to=TensorProto.FLOAT),
        helper.make_node("Loop", ["turns", "", "begin"], ["sum"], body=body),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
    ]
    constants = [
        numpy_helper.from_array(np.int64(turns), "turns"),
        numpy_helper.from_array(np.float32(0), "zero"),
    ]
    return _save(path, nodes, "Add", "nothing", constants)


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    last: str,
    second_operand: str = "",
    constants: list[onnx.TensorProto] | None = None,
) -> Path:
    operands = ["line", second_operand] if second_operand else ["line"]
    graph = helper.make_graph(
        [
            *nodes,
            helper.make_node("Mul", ["x", "two"], ["double"]),
            helper.make_node("Add", ["double", "one"], ["line"]),
            helper.make_node(last, operands, ["y"]),
        ],
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDTH])],
        [
            numpy_helper.from_array(np.float32(2), "two"),
            numpy_helper.from_array(np.float32(1), "one"),
            *(constants or []),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def _typical_ms(path: Path) -> float:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.ones((4, WIDTH), np.float32)
    times = []
    for _ in range(25):
        begun = time.perf_counter()
        (y,) = session.run(["y"], {"x": x})
        times.append((time.perf_counter() - begun) * 1e3)
        assert (y == 3).all()
    return sorted(times)[len(times) // 4]  # the lower quartile: other work on the machine only adds
