"""`headrace build`: with real TensorRT-RTX, which needs no GPU, and what is said before TensorRT is asked."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import engine_models as models
import numpy as np
import pytest
from onnx import TensorProto

from service.cli.build import config_of, rows_of, shapes_of
from service.engines.tensorrt_build import Built, Tools, _Build, precision_of
from service.engines.tensorrt_calibration import CalibrationError, arrays_of
from service.engines.tensorrt_options import BuildError, BuildOptions, Tensor, ranges_of
from service.models.modelconfig import parse

RTX = Path(sys.prefix) / "judges" / "tensorrt-rtx"
CAPABILITY = ("--compute-capability", "8.9")
F = TensorProto.FLOAT


def build(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with TensorRT-RTX."""
    if not RTX.is_dir():
        pytest.skip("needs tensorrt-rtx, which `make judges` fetches")
    here = ":".join(str(path) for path in (RTX, *sys.path) if path)
    return subprocess.run(
        [sys.executable, "-P", "-m", "service", "build", *arguments],
        env={"PYTHONPATH": here, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_an_onnx_file_becomes_a_plan_with_a_config(tmp_path) -> None:
    path = models.affine(tmp_path / "affine.onnx")
    folder = tmp_path / "models" / "affine" / "1"
    folder.mkdir(parents=True)
    done = build(path, "--batch", "1,8,32", *CAPABILITY, "-o", str(folder / "model.plan"))
    assert done.returncode == 0, done.stderr
    plan, layers, config = done.stdout.splitlines()
    assert "built by TensorRT-RTX 1." in plan and plan.startswith(f"{folder}/model.plan: ")
    assert layers.startswith("layers: ") and " FP32" in layers
    assert (folder / "model.plan").read_bytes()[:4] == b"vtrt"
    assert config == f"{folder.parent}/config.pbtxt: written"
    told = parse((folder.parent / "config.pbtxt").read_bytes()).message
    assert (told.platform, told.max_batch_size) == ("tensorrt_plan", 32)
    assert [(t.name, list(t.dims)) for t in (*told.input, *told.output)] == [("x", [16]), ("y", [16])]


@pytest.mark.slow
def test_a_config_that_is_there_stays_as_it_is(tmp_path) -> None:
    path = models.affine(tmp_path / "affine.onnx")
    (tmp_path / "config.pbtxt").write_text("max_batch_size: 4")
    done = build(path, "--batch", "1,8,32", *CAPABILITY)
    assert done.returncode == 0, done.stderr
    assert "config.pbtxt is there already" in done.stdout
    assert (tmp_path / "config.pbtxt").read_text() == "max_batch_size: 4"
    assert (tmp_path / "affine.plan").stat().st_size > 1000


@pytest.mark.slow
def test_types_are_those_of_the_file(tmp_path) -> None:
    node = models.h.make_node("Add", ["x", "x"], ["y"])
    x, y = (("x", TensorProto.FLOAT16, ["N", 4]), ("y", TensorProto.FLOAT16, ["N", 4]))
    path = models.save(tmp_path / "half.onnx", [node], [x], [y])
    done = build(path, "--batch", "4", *CAPABILITY)
    assert done.returncode == 0, done.stderr
    assert "layers: 1 (1 FP16)" in done.stdout


REFUSED = {
    "no number of rows": (
        [],
        "input 'x' [-1, 16] has an open number of rows: say how many, as in --batch 1,8,32",
    ),
    "rows in the wrong order": (
        ["--batch", "8,2,1"],
        "expected 1 <= min <= opt <= max, as in --batch 1,8,32, got",
    ),
    "rows twice": (["--batch", "1", "--min", "1"], "--batch says all of --min, --opt and --max"),
    "no such input": (
        ["--min-shapes", "z:1x16", "--opt-shapes", "z:1x16", "--max-shapes", "z:1x16"],
        "there is no input 'z'; the model has x",
    ),
    "another width": (
        ["--min-shapes", "x:1x16", "--opt-shapes", "x:1x17", "--max-shapes", "x:1x17"],
        "input 'x' [-1, 16] cannot have the shape [1, 17]",
    ),
    "min above max": (
        ["--min-shapes", "x:4x16", "--opt-shapes", "x:2x16", "--max-shapes", "x:8x16"],
        "expected min <= opt <= max in every size, got [4, 16], [2, 16] and [8, 16]",
    ),
    "a device it does not build for": (["--batch", "1", "--compute-capability", "9.0"], "8.6, 8.9"),
    "types that it does not choose": (["--batch", "1", "--fp16"], "computes in the types of the ONNX file"),
    "calibration": (
        ["--batch", "1", "--int8", "--calibration", "x.npz"],
        "has no calibrator",
    ),
    "a plugin that is not there": (
        ["--batch", "1", "--plugin", "no.so"],
        "library no.so is not there",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_said_in_a_sentence(tmp_path, case) -> None:
    path = models.affine(tmp_path / "affine.onnx")
    arguments, words = REFUSED[case]
    done = build(path, *CAPABILITY, *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "affine.plan").exists()


@pytest.mark.slow
def test_files_that_are_no_models_are_refused_with_the_parsers_reason(tmp_path) -> None:
    unknown = models.one_node(tmp_path / "unknown.onnx", "NoSuchOperator")
    corrupt = tmp_path / "corrupt.onnx"
    corrupt.write_bytes(Path(models.affine(tmp_path / "affine.onnx")).read_bytes()[:40])
    (tmp_path / "text.onnx").write_text("this is no model")
    for path, words in (
        (unknown, "(NoSuchOperator)"),
        (str(corrupt), "was not understood"),
        (str(tmp_path / "text.onnx"), "it is no whole ONNX model"),
        (str(tmp_path / "missing.onnx"), "is not there; expected an ONNX file"),
    ):
        done = build(path, "--batch", "1", *CAPABILITY)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a driver on this machine")
def test_without_a_driver_there_is_a_sentence_and_no_crash(tmp_path) -> None:
    done = build(models.affine(tmp_path / "affine.onnx"), "--batch", "1")
    assert done.returncode == 2
    assert "a plan is built on the device that it is for: there is no NVIDIA driver" in done.stderr
    assert "--compute-capability 8.9" in done.stderr


def test_flags_of_rows_and_shapes() -> None:
    assert rows_of("1,8,32", (0, 0, 0)) == (1, 8, 32)
    assert rows_of("", (1, 2, 4)) == (1, 2, 4)
    assert rows_of("8", (0, 0, 0)) == (8, 8, 8)
    assert rows_of("", (0, 0, 0)) is None
    assert shapes_of("a:1x2,b:3", "a:2x2,b:3", "a:4x2,b:3") == {
        "a": ((1, 2), (2, 2), (4, 2)),
        "b": ((3,), (3,), (3,)),
    }
    for least, words in (
        ("a:1xy", "expected NAME:1x3x224x224, got 'a:1xy'"),
        ("", "has no shape in --min-shapes"),
    ):
        with pytest.raises(BuildError, match=words):
            shapes_of(least, "a:1x1", "a:1x1")


def test_other_open_sizes_are_asked_for_with_an_example() -> None:
    ids = Tensor("ids", "INT64", (-1, -1))
    with pytest.raises(BuildError, match="--min-shapes ids:1x1 --opt-shapes ids:8x8 --max-shapes ids:32x32"):
        ranges_of([ids], BuildOptions(batch=(1, 2, 4)))
    with pytest.raises(BuildError, match=r"every size of the inputs is fixed in the file: 'x' \[4, 2\]"):
        ranges_of([Tensor("x", "FP32", (4, 2))], BuildOptions(batch=(1, 2, 4)))


def test_precisions_are_read_from_the_inspector() -> None:
    line = (
        "conv1 + relu, LayerType: CaskConvolution, Inputs: [ { Name: x, Format/Datatype: Row major linear "
        "FP32 }], Outputs: [ { Name: y, Format/Datatype: Thirty-two wide channel vectorized row major Int8 "
        "format }]"
    )
    assert precision_of(line) == "INT8"
    assert precision_of(line.partition(", Outputs")[0]) == "FP32"
    assert precision_of("Outputs: [ { Name: y, Format/Datatype: Half NHWC8 } ]") == "FP16"
    assert precision_of("shuffle") == "other"


def test_the_config_of_a_model_that_does_not_batch() -> None:
    one = Tensor("x", "INT64", (2, 3))
    built = Built(b"", 1.0, "TensorRT 10", 1, Counter(), (one,), (one,), 0, ())
    told = parse(config_of(built).encode()).message
    assert (told.max_batch_size, list(told.input[0].dims)) == (0, [2, 3])


# ---- what only TensorRT 10 has, with a stand-in for the module ----


class Flags:
    """A config that notes what is set on it."""

    def __init__(self) -> None:
        self.flags: list[str] = []
        self.int8_calibrator = None

    def set_flag(self, flag: str) -> None:
        self.flags.append(flag)

    def set_calibration_profile(self, profile: object) -> None:
        self.profile = profile


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple] = {}

    def set_shape(self, name: str, *shapes: tuple) -> None:
        self.shapes[name] = shapes


class Ten:
    """The names of TensorRT 10 that choose precisions."""

    __version__ = "10.6.0"
    BuilderFlag = SimpleNamespace(FP16="FP16", INT8="INT8")

    class IInt8EntropyCalibrator2:
        def __init__(self) -> None:
            pass


def network_of(*kinds: str) -> SimpleNamespace:
    x = SimpleNamespace(name="x", dtype=SimpleNamespace(name="FLOAT"), shape=(-1, 4))
    layers = [SimpleNamespace(type=SimpleNamespace(name=kind)) for kind in kinds]
    return SimpleNamespace(
        num_layers=len(layers),
        get_layer=layers.__getitem__,
        num_inputs=1,
        get_input=lambda index: x,
    )


def precision(tmp_path: Path, options: BuildOptions, *kinds: str) -> Flags:
    found, config = Tools(Ten, None, None, "TensorRT"), Flags()  # type: ignore[arg-type]
    builder = SimpleNamespace(create_optimization_profile=Profile)
    ranges = {"x": ((1, 4), (8, 4), (32, 4))}
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    _Build(found, str(model), options)._set_precision(builder, network_of(*kinds), config, ranges)
    return config


def test_tensorrt_10_chooses_the_types_of_layers(tmp_path) -> None:
    assert precision(tmp_path, BuildOptions(), "CONVOLUTION").flags == []
    assert precision(tmp_path, BuildOptions(fp16=True), "CONVOLUTION").flags == ["FP16"]
    both = BuildOptions(fp16=True, int8=True)
    assert precision(tmp_path, both, "QUANTIZE", "CONVOLUTION").flags == ["FP16", "INT8"]


def test_int8_needs_ranges_from_somewhere_and_from_one_place(tmp_path) -> None:
    data = tmp_path / "rows.npy"
    np.save(data, np.zeros((20, 4), np.float32))
    with pytest.raises(BuildError, match="has no Q/DQ nodes, so --int8 needs data"):
        precision(tmp_path, BuildOptions(int8=True), "CONVOLUTION")
    with pytest.raises(BuildError, match="has Q/DQ nodes, which say it all"):
        precision(tmp_path, BuildOptions(int8=True, calibration=str(data)), "QUANTIZE")
    with pytest.raises(BuildError, match="--calibration is for --int8"):
        precision(tmp_path, BuildOptions(calibration=str(data)), "CONVOLUTION")
    config = precision(tmp_path, BuildOptions(int8=True, calibration=str(data)), "CONVOLUTION")
    assert config.flags == ["INT8"] and config.int8_calibrator.get_batch_size() == 8
    assert config.profile.shapes == {"x": ((8, 4), (8, 4), (8, 4))}


X = {"x": Tensor("x", "FP32", (-1, 4))}


def test_calibration_data_must_be_what_the_model_takes(tmp_path) -> None:
    path = tmp_path / "data.npz"
    for arrays, words in (
        ({"y": np.zeros((2, 4), np.float32)}, "has no array 'x'; it has y"),
        ({"x": np.zeros((2, 5), np.float32)}, r"input 'x' is FP32 \[-1, 4\], and its data float32 \[2, 5\]"),
        ({"x": np.zeros((2, 4))}, r"and its data float64 \[2, 4\]"),
        ({"x": np.zeros((0, 4), np.float32)}, r"and its data float32 \[0, 4\]"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(CalibrationError, match=words):
            arrays_of(str(path), X)
    path.write_bytes(b"nothing")
    with pytest.raises(CalibrationError, match="cannot be read"):
        arrays_of(str(path), X)
    two = {**X, "z": Tensor("z", "FP32", (-1, 1))}
    np.savez(path, x=np.zeros((2, 4), np.float32), z=np.zeros((3, 1), np.float32))
    with pytest.raises(CalibrationError, match="every input needs the same number of rows"):
        arrays_of(str(path), two)
