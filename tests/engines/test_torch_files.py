"""Models for torch as far as torch is not needed: what a file is, what it is called, what is missing."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from service.engines.base import ModelLoadError, open_engine
from service.engines.torch_library import clean, library, named
from service.engines.torch_program import EXPORTED, SCRIPT, kind_of
from service.models.modelconfig import Defaults
from service.models.repository import find_in_repository


def archive(path: Path, *names: str) -> str:
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            file.writestr(f"model/{name}", b"")
    return str(path)


SCRIPT_FILES = ("data.pkl", "code/__torch__.py", "constants.pkl", "data/0")


def test_what_a_file_is_shows_in_it_not_in_its_name(tmp_path) -> None:
    assert kind_of(archive(tmp_path / "a.pt2", *SCRIPT_FILES), "m") == SCRIPT
    assert kind_of(archive(tmp_path / "b.pt", "models/model.json", "archive_format"), "m") == EXPORTED
    assert kind_of(archive(tmp_path / "c.pt", "serialized_exported_program.json"), "m") == EXPORTED


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("data.pkl", "data/0"), "weights, or a pickled module"),
        (("data/aotinductor/model/x.so", "models/model.json"), "AOTInductor"),
        (("word/document.xml",), "nothing that torch runs"),
    ],
)
def test_archives_of_something_else_are_named(tmp_path, names, expected) -> None:
    with pytest.raises(ModelLoadError, match=rf"model 'm' .*holds .*{expected}.*torch.export.save"):
        open_engine(archive(tmp_path / "m.pt", *names), name="m")


@pytest.mark.parametrize(("data", "expected"), [(b"", "empty file"), (b"\x80\x04K\x01.", "no archive")])
def test_files_that_are_no_archives(tmp_path, data, expected) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=rf"{expected}.*expected TorchScript"):
        open_engine(str(path), name="m")


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be read: No such file"):
        open_engine(str(tmp_path / "m.pt2"), name="m")


def test_without_torch_the_extra_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    library.cache_clear()
    with pytest.raises(ModelLoadError, match=r"model 'm' .*torch is not installed.*headrace\[torch\]"):
        open_engine(archive(tmp_path / "m.pt", *SCRIPT_FILES), name="m")
    library.cache_clear()


@pytest.mark.parametrize(
    ("said", "own", "names"),
    [
        ((), ("x", "y"), ["x", "y"]),
        (("y", "x"), ("x", "y"), ["x", "y"]),
        (("y",), ("x", "y"), ["x", "y"]),
        (("INPUT__1", "INPUT__0"), ("x", "y"), ["INPUT__0", "INPUT__1"]),
        (("a__0", "b__1"), ("x", "y"), ["a__0", "b__1"]),
        (("first", "second"), ("x", "y"), ["first", "second"]),
        (("a__0", "a__0"), ("x", "y"), ["a__0", "a__0"]),
        (("a__1", "b__2"), ("x", "y"), ["a__1", "b__2"]),
        (("INPUT__0",), ("x", "y"), ["INPUT__0", "y"]),
        (("a", "b", "c"), ("x", "y"), ["a", "b"]),
        (("a__\N{SUPERSCRIPT TWO}",), ("x",), ["a__\N{SUPERSCRIPT TWO}"]),
    ],
)
def test_names_are_the_models_own_or_numbers_or_come_in_order(said, own, names) -> None:
    assert named(said, own) == names


def test_what_torch_says_is_one_line() -> None:
    script = (
        "The following operation failed in the TorchScript interpreter.\n"
        "Traceback of TorchScript, serialized code (most recent call last):\n"
        '  File "code/__torch__.py", line 9, in forward\n'
        "    return torch.mm(x, w)\n"
        "           ~~~~~~~~ <--- HERE\n"
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x3 and 4x2)\n"
    )
    assert clean(RuntimeError(script)) == "mat1 and mat2 shapes cannot be multiplied (1x3 and 4x2)"
    assert clean(RuntimeError("first\nsecond")) == "first"
    assert clean(KeyError()) == "KeyError"
    assert len(clean(ValueError("x" * 1000))) == 400


def put(repository: Path, model: str, *files: str, config: str = "") -> None:
    folder = repository / model / "1"
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).write_bytes(b"")
    if config:
        (folder.parent / "config.pbtxt").write_text(config)


def test_a_repository_knows_them_by_file_platform_and_backend(tmp_path) -> None:
    put(tmp_path, "file", "model.pt")
    put(tmp_path, "newer", "model.pt2")
    put(tmp_path, "platform", "model.pt", config='platform: "pytorch_libtorch"')
    put(tmp_path, "backend", "model.pt", "model.pt2", "model.onnx", config='backend: "pytorch"')
    put(tmp_path, "both", "model.pt", "model.onnx")
    put(tmp_path, "said", "other.pt", config='backend: "pytorch" default_model_filename: "other.pt"')
    found, faults = find_in_repository(tmp_path, Defaults())
    assert faults == []
    assert {model.name: (model.backend, Path(model.path).name) for model in found} == {
        "file": ("pytorch", "model.pt"),
        "newer": ("pytorch", "model.pt2"),
        "platform": ("pytorch", "model.pt"),
        "backend": ("pytorch", "model.pt"),
        "both": ("onnxruntime", "model.onnx"),
        "said": ("pytorch", "other.pt"),
    }


def test_the_cap_is_a_parameter_of_this_backend(tmp_path) -> None:
    limit = 'parameters { key: "gpu_memory_limit" value { string_value: "2GB" } }'
    put(tmp_path, "capped", "model.pt", config=f'backend: "pytorch" {limit}')
    (model,), faults = find_in_repository(tmp_path, Defaults())
    assert (faults, model.wanted.warnings, model.wanted.gpu_memory_limit) == ([], (), 2 << 30)
