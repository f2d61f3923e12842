"""Python models that are not served: what the person who gave them is told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from python_rig import AFFINE, Rig, X, Y, write_model

from service.engines.base import ModelLoadError
from service.engines.python import open_python, open_python_model
from service.models import modelconfig
from service.models.spec import ModelSpec, TensorSpec
from service.models.wanted import Wanted


def refusal(folder: Path, source: str, *tensors, **parameters: str) -> str:
    before = threading.active_count()
    with pytest.raises(ModelLoadError) as raised:
        Rig(folder, source, *tensors, **parameters)
    assert threading.active_count() == before
    text = str(raised.value)
    assert text.startswith(f"model 'm' ({folder / 'model.py'})") and "\n" not in text
    return text


def in_initialize(statement: str) -> str:
    return f"""
    import os, sys
    class Model:
        def initialize(self, config):
            {statement}
        def execute(self, inputs):
            return inputs
    """


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (in_initialize("raise OSError('no weights')"), "was not loaded: OSError: no weights"),
        (in_initialize("config['nothing']"), "was not loaded: KeyError: 'nothing'"),
        (in_initialize("sys.exit(3)"), "was not loaded: SystemExit: 3"),
        (in_initialize("os._exit(3)"), "its process ended while the model was loaded (exit code 3)"),
        (in_initialize("os.kill(os.getpid(), 9)"), "while the model was loaded (signal SIGKILL)"),
        ("class Model", "was not loaded: SyntaxError: expected ':' (model.py, line 1)"),
        ("import nowhere", "was not loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("model = 1", "was not loaded: TypeError: it has no class 'Model'"),
        ("class Model: pass", "was not loaded: TypeError: its class 'Model' has no method 'execute'"),
    ],
)
def test_a_model_that_does_not_load(tmp_path: Path, source: str, message: str) -> None:
    assert message in refusal(tmp_path, source)


def test_a_traceback_of_loading_is_in_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refusal(tmp_path, in_initialize("raise OSError('no weights')"))
    said = capfd.readouterr().err
    assert "model 'm' version 1 instance 0: could not be loaded" in said
    assert "line 5, in initialize" in said


def test_a_missing_file(tmp_path: Path) -> None:
    path = str(tmp_path / "model.py")
    with pytest.raises(ModelLoadError, match="cannot be read: expected a file with a class 'Model'"):
        open_python(path, ModelSpec("m", "1", "python", "python", 8, X, Y))


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", "1e7", ""])
def test_an_execution_timeout_that_is_none(tmp_path: Path, value: str) -> None:
    text = refusal(tmp_path, AFFINE, execution_timeout_s=value)
    assert f"execution_timeout_s is '{value}'; expected a number of seconds above 0" in text


def wanted(text: str) -> Wanted:
    return modelconfig.wanted_from(modelconfig.parse(text.encode()), modelconfig.Defaults(max_batch_size=32))


def test_a_config_must_say_what_a_file_cannot(tmp_path: Path) -> None:
    path = write_model(tmp_path, AFFINE)
    with pytest.raises(ModelLoadError, match="config.pbtxt must name its inputs and outputs"):
        open_python_model(path, name="m", version="1", wanted=wanted(""))
    text = 'input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 }'
    with pytest.raises(ModelLoadError, match="output 'y' needs a data_type and dims in config.pbtxt"):
        open_python_model(path, name="m", version="1", wanted=wanted(text))


@pytest.mark.parametrize(("line", "size"), [("", 0), ("max_batch_size: 0", 0), ("max_batch_size: 6", 6)])
def test_what_a_config_says_is_what_is_served(tmp_path: Path, line: str, size: int) -> None:
    text = (
        line
        + """
        input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] }
        instance_group { count: 2 }
        parameters { key: "execution_timeout_s" value: { string_value: "7" } }
    """
    )
    path = write_model(tmp_path, AFFINE)
    engine = open_python_model(path, name="m", version="3", wanted=wanted(text))
    engine.close()
    spec = engine.spec
    assert (spec.version, spec.max_batch_size, spec.instances) == ("3", size, 2)
    assert spec.inputs == (TensorSpec("x", "FP32", (-1, 4)),) and spec.outputs[0].dims == (-1, 4)
    assert engine.timeout_s == 7
    assert bool(spec.why_unbatched) == (size == 0)
