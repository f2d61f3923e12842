"""The demo's features, rules and labels against magika's own, on real files and on the edges of its rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from service.demo.features import examine
from service.demo.model import DemoModelError, FileTypeModel, find_model, read_model

magika = pytest.importorskip("magika", reason="needs magika")


@pytest.fixture(scope="session")
def model() -> FileTypeModel:
    return find_model()


@pytest.fixture(scope="session")
def tool() -> Any:
    return magika.Magika()


@pytest.fixture(scope="session")
def session(model: FileTypeModel) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.path, providers=["CPUExecutionProvider"])


def real_files() -> list[Path]:
    """Files of many types that are on any machine that runs this: programs, sources, archives, texts."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    site = Path(magika.__file__).parents[1]
    wanted = [
        Path(sys.executable).resolve(),
        Path(os.__file__),
        *sorted(stdlib.glob("*.py"))[:12],
        *sorted(stdlib.glob("lib-dynload/*.so"))[:3],
        *sorted(stdlib.glob("__pycache__/*.pyc"))[:3],
        *sorted(site.glob("*.dist-info/METADATA"))[:3],
        *sorted(site.glob("*.dist-info/RECORD"))[:3],
        *sorted(site.glob("numpy/**/*.h"))[:3],
        *sorted(site.glob("**/*.json"))[:5],
        *sorted(stdlib.glob("**/*.whl"))[:1],
        *sorted(site.glob("numpy/**/*.npy"))[:2],
        *sorted(site.glob("**/*.proto"))[:2],
        Path("/etc/passwd"),
        Path("/etc/os-release"),
    ]
    return [path for path in wanted if path.is_file()]


EDGES: dict[str, bytes] = {
    "empty": b"",
    "seven bytes of text": b"1234567",
    "seven bytes of nothing": b"\xff\xfe\x00\x01\x02\x03\x04",
    "eight bytes": b"12345678",
    "seven after blanks": b" \n\t 1234567",
    "eight after blanks": b" \n\t 12345678",
    "blanks alone": b" " * 5000,
    "blanks, then not UTF-8": b" " * 20 + b"\xff\xff",
    "four bytes of UTF-8 cut at the block": b" " * 4094 + "\u20ac".encode() + b"abc" * 2,
    "blanks fill the first block": b"\n" * 4096 + b"import os\n" * 400,
    "blanks at the end": b"import os\nprint(os.getcwd())\n" * 40 + b"\n" * 3000,
    "one block exactly": (b"#include <stdio.h>\n" * 300)[:4096],
    "one more than a block": (b"#include <stdio.h>\n" * 300)[:4097],
    "1024 exactly": b"x = 1\n" * 170 + b"abcd",
    "vertical tab and form feed are blanks": b"\x0b\x0c\r" + b"SELECT 1;" * 9 + b"\x0b\x0c\r",
    "random bytes": bytes(np.random.default_rng(1).integers(0, 256, 9000, dtype=np.uint8)),
    "random text": "".join(chr(97 + n) for n in np.random.default_rng(2).integers(0, 26, 4000)).encode(),
    "low confidence": b"a b c d e f g h 1 2 3 4",
    "short markdown": b"# Title\n\nSome *text*.\n",
}


@pytest.fixture(params=[*EDGES, pytest.param("real files", marks=pytest.mark.slow)])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Path]]:
    if request.param == "real files":
        yield real_files()
        return
    (tmp_path / "file").write_bytes(EDGES[request.param])
    yield [tmp_path / "file"]


def test_rows_and_rules_are_magikas_own(files: list[Path], model: FileTypeModel, tool: Any) -> None:
    for path in files:
        by_rule, features = tool._get_result_or_features_from_path(path)
        found = examine(path, model)
        if features is None:
            assert found == str(by_rule.prediction.output.label), path
        else:
            assert not isinstance(found, str), path
            assert found.dtype == np.int32 and found.tolist() == [*features.beg, *features.end], path


def test_labels_are_magikas_own(
    files: list[Path], model: FileTypeModel, tool: Any, session: onnxruntime.InferenceSession
) -> None:
    asked = 0
    for path in files:
        found = examine(path, model)
        if isinstance(found, str):
            continue
        asked += 1
        (scores,) = session.run(["target_label"], {"bytes": found.reshape(1, -1)})[0]
        label, confidence = model.labels[int(np.argmax(scores))], float(np.max(scores))
        prediction = tool.identify_path(path).prediction
        assert label == str(prediction.dl.label), path
        assert confidence == pytest.approx(prediction.score, abs=1e-5), path
        assert model.trusted_label(label, confidence) == str(prediction.output.label), path
    assert asked or len(files) == 1


@pytest.mark.slow
def test_the_real_files_are_of_many_types(model: FileTypeModel, tool: Any) -> None:
    labels = {str(tool.identify_path(path).prediction.dl.label) for path in real_files()}
    assert {"python", "elf"} <= labels and len(labels) >= 6


def test_the_tool_renames_and_distrusts_by_the_models_own_table(model: FileTypeModel) -> None:
    assert model.trusted_label("python", 0.9) == "python"
    assert (
        model.trusted_label("randombytes", 0.9) == "unknown"
        and model.trusted_label("randomtxt", 0.9) == "txt"
    )
    limit = model.thresholds["markdown"]
    assert model.trusted_label("markdown", limit) == "markdown"
    assert model.trusted_label("markdown", limit - 0.01) == "txt"  # a text type
    assert model.trusted_label("elf", model.default_threshold - 0.01) == "unknown"


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DemoModelError, match=r"pip install 'headrace\[demo\]'"):
        find_model()


def test_a_model_that_looks_elsewhere_in_a_file_is_refused(model: FileTypeModel, tmp_path: Path) -> None:
    config = json.loads((model.path.parent / "config.min.json").read_text())
    types = model.path.parents[2] / "config" / "content_types_kb.min.json"
    (tmp_path / "config.min.json").write_text(json.dumps({**config, "mid_size": 512}))
    with pytest.raises(ValueError, match="parts of a file other than"):
        read_model(tmp_path, types)
    (tmp_path / "config.min.json").write_text(json.dumps(config))
    assert read_model(tmp_path, types).labels == model.labels


def test_the_package_is_found_without_importing_it() -> None:
    code = "import sys, service.demo.model as m; m.find_model(); print('magika' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
