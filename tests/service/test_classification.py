"""Best classes through the service, with labels from a file, and by the unmodified tritonclient."""

from __future__ import annotations

from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import triton_repository as repositories
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from waiting import LIMIT_S

from service._pb import inference as pb
from service.config import ServeConfig
from service.errors import StartError
from service.worker.__main__ import open_engines

NUMERIC = {
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "INT8": np.int8,
    "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32,
    "FP64": np.float64,
}  # fmt: skip
ONNX = {"FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE", "BF16": "BFLOAT16"}
LABELS = "output { name: 'y' label_filename: 'labels.txt' }"


def identity(path: Path, element_type: int) -> None:
    """A model y = x over [N, 3]."""
    x, y = (helper.make_tensor_value_info(name, element_type, ["N", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def labelled(folder: Path, labels: bytes = b"zero\none\r\ntwo\n\n") -> None:
    """Model 'plus', y = x + 0 over 4 classes, with labels."""
    repositories.put(folder, "plus", {1: 0.0}, LABELS)
    (folder / "plus" / "labels.txt").write_bytes(labels)


def asked(x: np.ndarray, classes: int) -> tuple[Any, Any]:
    tensor = triton.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    return [tensor], [triton.InferRequestedOutput("y", class_count=classes)]


X = np.array([[1, 4, 2, 3], [0, 0, 0, -1]], np.float32)
BEST = [[b"4.000000:1:one", b"3.000000:3"], [b"0.000000:0:zero", b"0.000000:1:one"]]


def test_the_clients_own_class_count(serve_paths, tmp_path: Path) -> None:
    labelled(tmp_path)
    with triton.InferenceServerClient(serve_paths(tmp_path).address) as client:
        assert "classification" in client.get_server_metadata().extensions
        found = client.infer("plus", *asked(X, 2)[:1], outputs=asked(X, 2)[1])
        assert found.as_numpy("y").tolist() == BEST
        assert found.get_output("y").datatype == "BYTES"
        assert client.infer("plus", *asked(X, 9)[:1], outputs=asked(X, 9)[1]).as_numpy("y").shape == (2, 4)
        plain = client.infer("plus", *asked(X, 0)[:1], outputs=asked(X, 0)[1])
        assert np.array_equal(plain.as_numpy("y"), X)
        config = client.get_model_config("plus").config
        assert config.output[0].label_filename == "labels.txt"


def test_on_a_stream(serve_paths, tmp_path: Path) -> None:
    labelled(tmp_path)
    answers: Queue[Any] = Queue()
    with triton.InferenceServerClient(serve_paths(tmp_path).address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(3):
            inputs, outputs = asked(X, 2)
            client.async_stream_infer("plus", inputs, outputs=outputs)
        for _ in range(3):
            result, error = answers.get(timeout=LIMIT_S)
            assert error is None
            assert result.as_numpy("y").tolist() == BEST
        client.stop_stream()


def test_more_rows_than_a_batch(serve_paths, tmp_path: Path) -> None:
    labelled(tmp_path)
    x = np.random.default_rng(0).permutation(400).astype(np.float32).reshape(100, 4)
    with triton.InferenceServerClient(serve_paths(tmp_path).address) as client:
        found = client.infer("plus", *asked(x, 1)[:1], outputs=asked(x, 1)[1]).as_numpy("y")
    assert [int(text.split(b":")[1]) for (text,) in found] == x.argmax(axis=1).tolist()


@pytest.mark.parametrize("datatype", [*NUMERIC, "BF16"])
def test_every_numeric_datatype(serve_paths, tmp_path: Path, datatype: str) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    identity(folder / "model.onnx", getattr(TensorProto, ONNX.get(datatype, datatype)))
    if datatype in NUMERIC:
        dtype = np.dtype(NUMERIC[datatype])
        info = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        x = np.array([[info.min, info.max, 5]], dtype)
        raw, values = x.tobytes(), [float(v) if dtype.kind == "f" else int(v) for v in x[0]]
    else:
        values = [-2.5, 2.0**100, 5.0]
        raw = (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[raw])
    request.inputs.add(name="x", datatype=datatype, shape=[1, 3])
    request.outputs.add(name="y").parameters["classification"].int64_param = 3
    said = serve_paths(tmp_path).infer(request)
    texts = [f"{values[i]:f}:{i}" if isinstance(values[i], float) else f"{values[i]}:{i}" for i in (1, 2, 0)]
    expected = b"".join(len(text).to_bytes(4, "little") + text.encode() for text in texts)
    assert said.raw_output_contents[0] == expected


def test_lines_beyond_the_classes_are_ignored(tmp_path: Path) -> None:
    labelled(tmp_path, b"a\nb\nc\nd\ne\nf")
    (engine,) = open_engines(ServeConfig((str(tmp_path),)))
    assert engine.spec.outputs[0].labels == ("a", "b", "c", "d")
    assert engine.spec.warnings == ()
    engine.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.txt", "cannot be read: No such file"),
        ("1", "is no file; expected one in the model's folder"),
        ("../labels.txt", "must be a name inside the model's folder"),
        ("/etc/hostname", "must be a name inside the model's folder"),
        ("large.txt", "has more than 2097152 bytes"),
    ],
)
def test_a_label_file_that_cannot_be_used_refuses_the_model(tmp_path: Path, name: str, words: str) -> None:
    labelled(tmp_path)
    (tmp_path / "plus" / "large.txt").write_bytes(b"\n" * ((2 << 20) + 1))
    (tmp_path / "plus" / "config.pbtxt").write_text(f"output {{ name: 'y' label_filename: '{name}' }}")
    with pytest.raises(StartError) as raised:
        open_engines(ServeConfig((str(tmp_path),)))
    text = str(raised.value)
    assert f"label_filename '{name}' of output 'y' {words}" in text and "'plus'" in text
