"""Small ONNX models, each with one property that an engine must respect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

Tensor = tuple[str, int, Sequence[Any] | None]  # name, element type, shape

F = T.FLOAT
ML = "ai.onnx.ml"


def save(
    path: Path, nodes: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor], **constants: Any
) -> str:
    """Writes a model of `nodes`; `constants` are its initializers. Returns the path as text."""
    graph = h.make_graph(
        list(nodes),
        "test",
        [h.make_tensor_value_info(*tensor) for tensor in inputs],
        [h.make_tensor_value_info(*tensor) for tensor in outputs],
        [nh.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    domains = [h.make_opsetid("", 17), h.make_opsetid("com.microsoft", 1), h.make_opsetid(ML, 3)]
    path.write_bytes(h.make_model(graph, opset_imports=domains, ir_version=9).SerializeToString())
    return str(path)


def affine(path: Path, *, axis0: Any = "N", inner: Any = 16, out0: Any = None) -> str:
    """y = 2x + 1, elementwise."""
    nodes = [h.make_node("Mul", ["x", "two"], ["t"]), h.make_node("Add", ["t", "one"], ["y"])]
    y = ("y", F, [axis0 if out0 is None else out0, inner])
    return save(path, nodes, [("x", F, [axis0, inner])], [y], two=np.float32(2), one=np.float32(1))


def one_node(
    path: Path,
    operator: str,
    *,
    x: Sequence[Any] = ("N", 4),
    out: Sequence[Any] | None = ("N", 4),
    **attributes: Any,
) -> str:
    """y = operator(x) over x FP32 [N, 4]."""
    node = h.make_node(operator, ["x"], ["y"], **attributes)
    return save(path, [node], [("x", F, x)], [("y", F, out)])


def identity(path: Path, element_type: int) -> str:
    """y = x over [N, 3]."""
    x, y = ("x", element_type, ["N", 3]), ("y", element_type, ["N", 3])
    return save(path, [h.make_node("Identity", ["x"], ["y"])], [x], [y])


def reshaped(path: Path) -> str:
    """y = x FP32 [n] in the form that shape INT64 [r] says."""
    inputs = [("x", F, ["n"]), ("shape", T.INT64, ["r"])]
    return save(path, [h.make_node("Reshape", ["x", "shape"], ["y"])], inputs, [("y", F, None)])


def two_by_two(path: Path) -> str:
    """a FP32 [N, 2], b INT64 [N, 3] -> sum FP64 [N, 1], positive BOOL [N, 3]."""
    nodes = [
        h.make_node("Cast", ["a"], ["wide"], to=T.DOUBLE),
        h.make_node("ReduceSum", ["wide", "axes"], ["sum"], keepdims=1),
        h.make_node("Greater", ["b", "zero"], ["positive"]),
    ]
    inputs = [("a", F, ["N", 2]), ("b", T.INT64, ["N", 3])]
    outputs = [("sum", T.DOUBLE, ["N", 1]), ("positive", T.BOOL, ["N", 3])]
    return save(path, nodes, inputs, outputs, axes=np.array([1], np.int64), zero=np.int64(2))


def doubled_length(path: Path) -> str:
    """x FP32 [N, s] -> y FP32 [N, 2s]: x, then x again."""
    node = h.make_node("Concat", ["x", "x"], ["y"], axis=1)
    return save(path, [node], [("x", F, ["N", "s"])], [("y", F, ["N", "t"])])


def lookup(path: Path, words: int, length: int) -> str:
    """ids INT64 [N, length] -> y FP32 [N, length]: ids of `words` or more fail."""
    node = h.make_node("Gather", ["table", "ids"], ["y"], axis=0)
    table = np.arange(words, dtype=np.float32) * 10
    return save(path, [node], [("ids", T.INT64, ["N", length])], [("y", F, ["N", length])], table=table)


def keeps_small_rows(path: Path) -> str:
    """x FP32 [N, 4] -> y [N, 4], declared so; but rows that start above 1000 are left out."""
    nodes = [
        h.make_node("Slice", ["x", "zero", "one", "one"], ["first"]),
        h.make_node("Squeeze", ["first", "one"], ["flat"]),
        h.make_node("Less", ["flat", "limit"], ["small"]),
        h.make_node("Compress", ["x", "small"], ["y"], axis=0),
    ]
    constants = {
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "limit": np.float32(1000),
    }
    return save(path, nodes, [("x", F, ["N", 4])], [("y", F, ["N", 4])], **constants)


def strings(path: Path, shape: Sequence[Any] = ("N", 2)) -> str:
    """y = x, strings."""
    x, y = ("x", T.STRING, shape), ("y", T.STRING, shape)
    return save(path, [h.make_node("Identity", ["x"], ["y"])], [x], [y])


def labels(path: Path, axis0: Any = "N") -> str:
    """x strings [N, 1] -> y INT64 [N, 1]: cat 1, dog 2, snow-\N{SNOWMAN} 3, others -1."""
    numbers = {"cat": 1, "dog": 2, "snow-\N{SNOWMAN}": 3}
    attributes = {"keys_strings": list(numbers), "values_int64s": list(numbers.values()), "default_int64": -1}
    node = h.make_node("LabelEncoder", ["x"], ["y"], domain=ML, **attributes)
    return save(path, [node], [("x", T.STRING, [axis0, 1])], [("y", T.INT64, [axis0, 1])])


def names(path: Path, one: str | bytes = "cat") -> str:
    """x INT64 [N, 1] -> y strings [N, 1]: 1 is `one`, 2 is dog, others are empty."""
    attributes = {"keys_int64s": [1, 2], "values_strings": [one, "dog"], "default_string": ""}
    node = h.make_node("LabelEncoder", ["x"], ["y"], domain=ML, **attributes)
    return save(path, [node], [("x", T.INT64, ["N", 1])], [("y", T.STRING, ["N", 1])])


def strings_and_numbers(path: Path) -> str:
    """s strings [N, 2], x FP32 [N, 3] -> t strings [N, 2], y = 2x FP32 [N, 3]."""
    nodes = [h.make_node("Identity", ["s"], ["t"]), h.make_node("Add", ["x", "x"], ["y"])]
    inputs = [("s", T.STRING, ["N", 2]), ("x", F, ["N", 3])]
    return save(path, nodes, inputs, [("t", T.STRING, ["N", 2]), ("y", F, ["N", 3])])


def counted_words(path: Path) -> str:
    """x strings [N, s] -> y FP32 [N, 3]: how often red, green and blue are in a row."""
    attributes = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 1,
        "max_skip_count": 0,
        "ngram_counts": [0],
        "ngram_indexes": [0, 1, 2],
        "pool_strings": ["red", "green", "blue"],
    }
    node = h.make_node("TfIdfVectorizer", ["x"], ["y"], **attributes)
    return save(path, [node], [("x", T.STRING, ["N", "s"])], [("y", F, ["N", 3])])


def zip_map(path: Path) -> str:
    """x FP32 [N, 2] -> a sequence of maps, as classifiers of skl2onnx have it."""
    node = h.make_node("ZipMap", ["x"], ["y"], domain=ML, classlabels_int64s=[0, 1])
    map_type = h.make_map_type_proto(T.INT64, h.make_tensor_type_proto(F, []))
    y = h.make_value_info("y", h.make_sequence_type_proto(map_type))
    graph = h.make_graph([node], "test", [h.make_tensor_value_info("x", F, ["N", 2])], [y])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17), h.make_opsetid(ML, 3)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return str(path)
