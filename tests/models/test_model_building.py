"""How a config says that a plan is to be built of an ONNX file."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.models.building import Building
from service.models.modelconfig import ConfigFault, Defaults, parse, wanted_from
from service.models.repository import find_model


def config(**parameters: str) -> str:
    said = (
        f"parameters {{ key: '{key}' value {{ string_value: '{text}' }} }}"
        for key, text in parameters.items()
    )
    return " ".join(["backend: 'tensorrt' max_batch_size: 32", *said])


def wanted(text: str):
    return wanted_from(parse(text.encode()), Defaults())


def test_what_a_config_says_of_a_build() -> None:
    text = config(precision_mode="fp16, INT8", max_workspace_size_bytes="1048576", calibration="rows.npz")
    found = wanted(f"{text} dynamic_batching {{ preferred_batch_size: [4, 8] }}")
    assert found.building == Building(("FP16", "INT8"), 1 << 20, "rows.npz", 8)
    assert wanted(config()).building == Building()
    assert wanted(config(precision_mode="FP32")).building.precisions == ()


@pytest.mark.parametrize(
    ("parameter", "value", "told"),
    [
        ("precision_mode", "FP8", "expected FP32, FP16, INT8"),
        ("max_workspace_size_bytes", "1GB", "expected a number of bytes"),
        ("calibration", "../rows.npz", "expected the name of a file in the version's folder"),
    ],
)
def test_what_is_none_of_it_is_refused(parameter: str, value: str, told: str) -> None:
    with pytest.raises(ConfigFault, match=f"parameter {parameter} is '{value}'; {told}"):
        wanted(config(**{parameter: value}))


def found_in(folder: Path, text: str, *files: str) -> str:
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    (folder / "m" / "config.pbtxt").write_text(text)
    for file in files:
        (version / file).touch()
    (found,) = find_model(folder / "m", Defaults())
    return f"{found.backend}: {Path(found.path).name}"


def test_an_onnx_file_is_built_where_its_config_says_so_and_no_plan_is_there(tmp_path) -> None:
    assert found_in(tmp_path / "a", config(), "model.onnx") == "tensorrt: model.onnx"
    assert found_in(tmp_path / "b", config(), "model.onnx", "model.plan") == "tensorrt: model.plan"
    assert found_in(tmp_path / "c", "", "model.onnx") == "onnxruntime: model.onnx"
