"""Model control of much: labels and configs of many models, which processes have to tell each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import triton_repository as repositories
from test_model_control import Control, refused
from wire import infer_request, string_output

from service.config import ServeConfig
from service.control import encode
from service.inprocess import running
from service.models.labels import MAX_LABEL_BYTES
from service.models.repository import MAX_CONFIG_BYTES, MAX_MODELS

LABELLED = {"output": [{"name": "y", "label_filename": "labels.txt"}]}
NAMES = [f"m{number:02}" for number in range(MAX_MODELS)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        repositories.put(tmp_path / "repository", name, {1: 1.0})
    return tmp_path / "repository"


@pytest.fixture
def control(frontend: str, folder: Path) -> Iterator[Control]:
    settings = {"arena_mb": 16, "output_arena_mb": 16, "grpc_port": 0, "metrics_port": 0}
    config = ServeConfig((str(folder),), frontend=frontend, model_control_mode="explicit", **settings)
    with running([], config) as service:
        control = Control(service)
        yield control
        control.wire.close()


def best_class(control: Control, name: str) -> bytes:
    request = infer_request(name, outputs=["y"], x=np.eye(1, 4, dtype=np.float32))
    request.outputs[0].parameters["classification"].int64_param = 1
    return bytes(string_output(control.wire.infer(request))[0, 0])


def test_a_config_in_place_of_the_models_own_names_labels(control: Control, folder: Path) -> None:
    (folder / "m00" / "labels.txt").write_text("zero\none\n")
    control.load("m00", LABELLED)
    assert best_class(control, "m00") == b"2.000000:0:zero"
    missing = {"output": [{"name": "y", "label_filename": "nothing"}]}
    code, text = refused(control.load, "m00", missing)
    assert (code, "label_filename 'nothing' of output 'y' cannot be read" in text) == ("INTERNAL", True)
    outside = {"output": [{"name": "y", "label_filename": "../m01/labels.txt"}]}
    assert "must be a name inside the model's folder" in refused(control.load, "m00", outside)[1]
    assert best_class(control, "m00") == b"2.000000:0:zero"


def test_labels_of_all_models_are_bounded_whenever_they_are_loaded(control: Control, folder: Path) -> None:
    for name in NAMES[:2]:
        (folder / name / "labels.txt").write_bytes(b"\xff" * (MAX_LABEL_BYTES // 2 + 1))
    control.load("m00", LABELLED)
    code, text = refused(control.load, "m01", LABELLED)
    assert (code, "bytes of labels in all; a worker has room for 2097152" in text) == ("INTERNAL", True)
    control.load("m00", LABELLED)  # in its own place there is room
    control.unload("m00")
    control.load("m01", LABELLED)
    assert [row[0] for row in control.index(ready=True)] == ["m01"]


def test_as_many_models_as_may_be_with_as_much_config_as_may_be(control: Control) -> None:
    """Of what takes most in JSON that is in JSON."""
    worst = {
        "max_batch_size": 1,
        "parameters": {"p": {"string_value": "\x01" * (MAX_CONFIG_BYTES // 6 - 30)}},
    }
    for name in NAMES:
        control.load(name, worst)
    assert [row[0] for row in control.index(ready=True)] == NAMES
    assert encode("keep", control.service._kept, 0)
    control.service.stop_worker()
    control.service.start_worker([])
    assert control.adds(NAMES[-1]) == 1.0


def test_a_config_is_bounded_in_bytes(control: Control) -> None:
    code, text = refused(control.load, "m00", '{"name": "' + "\U0001f600" * (MAX_CONFIG_BYTES // 4) + '"}')
    assert (code, "its 'config' has more than 64 KiB" in text) == ("INVALID_ARGUMENT", True)
