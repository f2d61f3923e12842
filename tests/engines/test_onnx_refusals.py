"""Model files that are not served, or not batched: what the person who gave them is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import engine_models as models
import numpy as np
import pytest

from service.engines.base import ModelLoadError, open_engine
from service.models.wanted import Wanted

T = models.T


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def refusal(path: Path) -> str:
    with pytest.raises(ModelLoadError) as raised:
        open_engine(str(path), name="m")
    text = str(raised.value)
    assert text.startswith(f"model 'm' ({path})")
    assert "\n" not in text
    return text


def test_a_missing_file(path: Path) -> None:
    assert refusal(path).endswith("cannot be read: No such file or directory")


def test_a_directory(path: Path) -> None:
    path.mkdir()
    assert refusal(path).endswith("cannot be read: Is a directory")


def test_an_empty_file(path: Path) -> None:
    path.touch()
    assert refusal(path).endswith("is an empty file; expected an ONNX model")


def test_another_kind_of_file(tmp_path: Path) -> None:
    assert "expected *.onnx, *.plan, *.pt or *.pt2" in refusal(tmp_path / "model.pb")


@pytest.mark.parametrize("start", [b"cut off", b"not a model", b"\0" * 64])
def test_a_corrupt_file(path: Path, start: bytes) -> None:
    whole = Path(models.affine(path)).read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if start == b"cut off" else start + whole)
    text = refusal(path)
    assert "was not loaded by ONNX Runtime" in text
    assert "check that the file is a complete ONNX model" in text
    assert "ONNXRuntimeError" not in text


def test_an_unknown_operator_is_named(path: Path) -> None:
    models.one_node(path, "Sinister")
    assert "Sinister" in refusal(path)


def test_a_sequence_is_named(path: Path) -> None:
    node = models.h.make_node("SequenceConstruct", ["x"], ["y"])
    sequence = models.h.make_tensor_sequence_value_info("y", models.F, None)
    graph = models.h.make_graph(
        [node], "test", [models.h.make_tensor_value_info("x", models.F, ["N", 4])], [sequence]
    )
    model = models.h.make_model(graph, opset_imports=[models.h.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    assert "output 'y' has type seq(tensor(float)); expected a tensor of BOOL" in refusal(path)


def test_maps_are_named_and_how_to_be_without_them(path: Path) -> None:
    models.zip_map(path)
    text = refusal(path)
    assert "output 'y' has type seq(map(int64,tensor(float))); expected a tensor of BOOL" in text
    assert text.endswith("export the model without ZipMap (skl2onnx: zipmap=False)")


def test_strings_beside_bf16(path: Path) -> None:
    nodes = [models.h.make_node("Identity", [x], [y]) for x, y in (("s", "t"), ("b", "c"))]
    s, t = (("s", T.STRING, ["N", 1]), ("t", T.STRING, ["N", 1]))
    b, c = (("b", T.BFLOAT16, ["N", 1]), ("c", T.BFLOAT16, ["N", 1]))
    models.save(path, nodes, [s, b], [t, c])
    assert "it has tensors of both BYTES and BF16; expected one of them at most" in refusal(path)


def test_too_many_dimensions(path: Path) -> None:
    shape = [1] * 9
    x, y = ("x", models.F, shape), ("y", models.F, shape)
    models.save(path, [models.h.make_node("Cos", ["x"], ["y"])], [x], [y])
    assert "input 'x' has 9 dimensions; at most 8 are served" in refusal(path)


def test_too_many_outputs(path: Path) -> None:
    names = [f"y{number}" for number in range(65)]
    nodes = [models.h.make_node("Cos", ["x"], [name]) for name in names]
    models.save(path, nodes, [("x", models.F, ["N", 1])], [(name, models.F, ["N", 1]) for name in names])
    assert "it has 65 outputs; between 1 and 64 are served" in refusal(path)


def unbatched(path: Path, max_batch_size: int | None = None) -> str:
    spec = open_engine(str(path), name="m", wanted=Wanted(max_batch_size=max_batch_size)).spec
    assert spec.max_batch_size == 0
    return spec.why_unbatched


def softmax_over_rows(path: Path) -> str:
    return models.one_node(path, "Softmax", axis=0)


def centred(path: Path) -> str:
    nodes = [
        models.h.make_node("ReduceMean", ["x"], ["mean"], axes=[0]),
        models.h.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    return models.save(path, nodes, [("x", models.F, ["N", 4])], [("y", models.F, ["N", 4])])


def running_sum(path: Path) -> str:
    node = models.h.make_node("CumSum", ["x", "axis"], ["y"])
    x, y = ("x", models.F, ["N", 4]), ("y", models.F, ["M", 4])
    return models.save(path, [node], [x], [y], axis=np.int64(0))


def recurrent_over_axis_0(path: Path) -> str:
    """x [time, 1, 2] -> y [time, 1, 1, 3]: axis 0 counts time steps."""
    node = models.h.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=3)
    x, y = ("x", models.F, ["N", 1, 2]), ("y", models.F, ["N", 1, 1, 3])
    w, r = np.ones((1, 3, 2), np.float32), np.ones((1, 3, 3), np.float32)
    return models.save(path, [node], [x], [y], w=w, r=r)


@pytest.mark.parametrize("asked", [None, 16])
@pytest.mark.parametrize("make", [softmax_over_rows, centred, running_sum, recurrent_over_axis_0])
def test_models_that_mix_rows_do_not_batch(
    path: Path, make: Callable[[Path], str], asked: int | None
) -> None:
    make(path)
    assert "a row of output 'y' " in unbatched(path, asked)


def test_a_softmax_within_a_row_batches(path: Path) -> None:
    models.one_node(path, "Softmax", axis=1)
    assert open_engine(str(path), name="m").spec.max_batch_size == 32


def test_the_batch_on_axis_1_of_an_output(path: Path) -> None:
    models.one_node(path, "Transpose", out=(4, "N"), perm=[1, 0])
    assert unbatched(path, 16) == "the batch axis 'N' is axis 1 of output 'y'"


def test_the_batch_on_axis_1_under_another_name(path: Path) -> None:
    models.one_node(path, "Transpose", out=("a", "b"), perm=[1, 0])
    assert unbatched(path, 16) == "axis 0 of output 'y' is fixed at 4"


def test_a_batch_dimension_that_is_fixed_at_1_cannot_batch(path: Path) -> None:
    models.affine(path, axis0=1)
    assert unbatched(path, 16) == "axis 0 of input 'x' is fixed at 1"


def test_batch_dimensions_that_are_fixed_at_different_sizes(path: Path) -> None:
    models.one_node(path, "Transpose", perm=[1, 0], x=(6, 4), out=(4, 6))
    assert unbatched(path, 16) == "axis 0 of input 'x' is fixed at 6"


def test_a_fixed_batch_dimension_whose_rows_are_mixed(path: Path) -> None:
    models.one_node(path, "Softmax", axis=0, x=(6, 4), out=(6, 4))
    assert "a row of output 'y' changes" in unbatched(path, 16)


def test_a_constant_shape_inside_that_allows_one_row(path: Path) -> None:
    nodes = [
        models.h.make_node("Reshape", ["x", "one_row"], ["flat"]),
        models.h.make_node("Shape", ["x"], ["shape"]),
        models.h.make_node("Reshape", ["flat", "shape"], ["y"]),
    ]
    x, y = ("x", models.F, ["N", 4]), ("y", models.F, ["N", 4])
    models.save(path, nodes, [x], [y], one_row=np.array([1, 4], np.int64))
    assert unbatched(path, 16).startswith("it runs 1 row but not 2 (running Reshape node.")


def test_a_model_that_no_test_input_fits_batches_on_demand_alone(path: Path) -> None:
    """Two inputs whose dynamic lengths must differ by one."""
    node = models.h.make_node("MatMul", ["a", "b"], ["y"])
    pad = models.h.make_node("Slice", ["x", "start", "end", "axis"], ["b"])
    inputs = [("a", models.F, ["N", 1, "s"]), ("x", models.F, ["N", "t", 2])]
    constants = {
        "start": np.array([1], np.int64),
        "end": np.array([1 << 40], np.int64),
        "axis": np.array([1], np.int64),
    }
    models.save(path, [pad, node], inputs, [("y", models.F, ["N", 1, 2])], **constants)
    assert "no test input could be run" in unbatched(path)
    spec = open_engine(str(path), name="m", wanted=Wanted(max_batch_size=16)).spec
    assert spec.max_batch_size == 16
    assert "batched because max_batch_size 16 was asked for" in spec.warnings[0]


def test_nothing_is_said_on_stderr(path: Path) -> None:
    """Neither loading, nor inputs that fail, nor a corrupt file writes to the terminal of a service."""
    models.lookup(path, words=2, length=3)
    program = (
        "import sys\n"
        "from service.engines.base import ModelLoadError, open_engine\n"
        "assert 'onnxruntime' not in sys.modules, 'imported before a model needs it'\n"
        "assert open_engine(sys.argv[1], name='m').spec.max_batch_size == 32\n"
        "open(sys.argv[1], 'wb').write(b'x' * 100)\n"
        "try:\n"
        "    open_engine(sys.argv[1], name='m')\n"
        "except ModelLoadError:\n"
        "    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(path)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "refused\n", "")


def test_an_engine_writes_no_files_and_reports_to_nobody(path: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    program = "import sys\nfrom service.engines.base import open_engine\nopen_engine(sys.argv[1], name='m')"
    subprocess.run(
        [sys.executable, "-P", "-c", program, models.affine(path)],
        env={**os.environ, "HOME": str(home), "TMPDIR": str(home), "XDG_CACHE_HOME": str(home)},
        check=True,
        timeout=60,
    )
    assert list(home.iterdir()) == []


def test_a_name_that_is_not_text_is_a_damaged_file(path: Path) -> None:
    models.affine(path, axis0="NNNNNNNN")
    path.write_bytes(path.read_bytes().replace(b"NNNNNNNN", b"NNNN\x80NNN"))
    with pytest.raises(ModelLoadError, match="not UTF-8 text; the file is damaged"):
        open_engine(str(path), name="m")


@pytest.mark.parametrize("shape", [["N", 2**31], [2**31 - 1, 4], ["N", 2**62, 2**62]])
def test_an_input_that_no_request_can_hold_is_refused_before_anything_is_allocated(tmp_path, shape) -> None:
    path = models.one_node(tmp_path / "m.onnx", "Relu", x=shape, out=shape)
    with pytest.raises(ModelLoadError, match=f"input 'x' is declared as .* at most {2**31 - 1} elements"):
        open_engine(path, name="m")


def test_an_input_too_large_to_be_tried_is_served_unbatched(tmp_path) -> None:
    shape = ["N", 1 << 27]
    engine = open_engine(models.one_node(tmp_path / "m.onnx", "Relu", x=shape, out=shape), name="m")
    assert "more than 67108864 elements" in engine.spec.why_unbatched
    assert not engine.sample
    engine.close()


def test_words_of_onnx_runtime_come_without_the_names_of_its_exceptions(tmp_path) -> None:
    node = models.h.make_node("MatMul", ["x", "one"], ["y"])
    path = models.save(tmp_path / "m.onnx", [node], [("x", T.FLOAT, ["N", 4])], [("y", T.FLOAT, ["N", 4])],
                one=np.float32(1))  # fmt: skip
    with pytest.raises(ModelLoadError) as caught:
        open_engine(path, name="m")
    assert "Error]" not in str(caught.value) and "MatMul" in str(caught.value)
