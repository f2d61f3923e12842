"""What is found in a repository: names, versions, policy, files; and every fault of it at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.models.modelconfig import Defaults
from service.models.repository import MAX_CONFIG_BYTES, MAX_MODELS, find


def put(folder: Path, name: str, *versions: object, config: str | None = None, file: str = "model.onnx"):
    """A model's folder with an empty file in each version."""
    model = folder / name
    model.mkdir(parents=True, exist_ok=True)
    for version in versions:
        (model / str(version)).mkdir()
        (model / str(version) / file).touch()
    if config is not None:
        (model / "config.pbtxt").write_text(config)
    return model


def found(folder: Path) -> list[tuple[str, str]]:
    models, faults = find([str(folder)], Defaults())
    assert faults == []
    return [(model.name, model.version) for model in models]


def fault(folder: Path) -> str:
    models, faults = find([str(folder)], Defaults())
    (only,) = faults
    return only


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository"


def test_models_by_name_with_their_highest_version(repository: Path) -> None:
    put(repository, "b", 1)
    put(repository, "a", 2, 10, 9, config="name: 'a'")
    (repository / ".git" / "1").mkdir(parents=True)
    (repository / "README").touch()
    assert found(repository) == [("a", "10"), ("b", "1")]
    models, _ = find([str(repository)], Defaults())
    assert models[0].path == str(repository / "a" / "10" / "model.onnx")
    assert models[0].backend == "onnxruntime"


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", ["10"]),
        ("version_policy { latest { num_versions: 2 } }", ["9", "10"]),
        ("version_policy { latest { num_versions: 9 } }", ["2", "9", "10"]),
        ("version_policy { all { } }", ["2", "9", "10"]),
        ("version_policy: { specific: { versions: [ 9, 2, 9 ] } }", ["2", "9"]),
    ],
)
def test_version_policy(repository: Path, policy: str, versions: list[str]) -> None:
    put(repository, "a", 2, 9, 10, "01", "0", "-3", "1x", "assets", config=policy)
    assert found(repository) == [("a", version) for version in versions]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("version_policy { latest { } }", "num_versions must be at least 1"),
        ("version_policy { specific { } }", "names no version"),
        ("version_policy { specific { versions: [ 1, 7, 8 ] } }", "names 7, 8; the folder has 1"),
        ("name: 'b'", "says name 'b'; expected the folder's name, 'a'"),
        ("backend: 'tensorflow'", "backend 'tensorflow' is not served; expected backend 'onnxruntime'"),
        ("platform: 'tensorflow_graphdef'", "platform 'tensorflow_graphdef' is not served"),
        ("platform: 'pytorch_libtorch' backend: 'onnxruntime'", "do not fit together"),
        ("default_model_filename: 'net.onnx'", "expected the model as 1/net.onnx"),
        ("default_model_filename: '../1/model.onnx'", "must be a name inside the version's folder"),
        ("default_model_filename: '/etc/passwd'", "must be a name inside the version's folder"),
        ("colour: 'blue'", "config.pbtxt: line 1, column 1: "),
    ],
)
def test_faults_of_a_model_name_it_and_say_what_was_expected(
    repository: Path, config: str, words: str
) -> None:
    put(repository, "a", 1, config=config)
    said = fault(repository)
    assert said.startswith(f"model 'a' ({repository / 'a'}): ")
    assert words in said


@pytest.mark.parametrize("config", ["", "max_batch_size: 4"])
def test_a_python_model_that_nothing_names_as_one_is_told_what_it_needs(
    repository: Path, config: str
) -> None:
    put(repository, "a", 1, config=config, file="model.py")
    assert fault(repository).endswith(
        "expected the model as 1/model.onnx (default_model_filename names another); in 1 is model.py; "
        'a model in Python needs a config.pbtxt with backend: "python", its inputs and its outputs'
    )


def test_backend_and_platform_may_both_be_named(repository: Path) -> None:
    put(repository, "a", 1, config="backend: 'onnxruntime' platform: 'onnxruntime_onnx'")
    put(repository, "b", 1, config="platform: 'onnxruntime_onnx'")
    assert found(repository) == [("a", "1"), ("b", "1")]


def test_a_file_of_another_name_and_a_model_in_a_folder(repository: Path) -> None:
    put(repository, "a", 1, config="default_model_filename: 'net.onnx'", file="net.onnx")
    (repository / "b" / "1" / "model.onnx").mkdir(parents=True)
    (repository / "b" / "1" / "model.onnx" / "model.onnx").touch()
    assert found(repository) == [("a", "1"), ("b", "1")]


def test_every_faulty_model_is_named_and_the_others_are_found(repository: Path) -> None:
    put(repository, "good", 1)
    put(repository, "empty")
    put(repository, "zero", "01")
    put(repository, "other", 1, file="model.graphdef")
    models, faults = find([str(repository), str(repository / "good")], Defaults())
    assert [model.name for model in models] == ["good"]
    assert ["empty" in faults[0], "other" in faults[1], "zero" in faults[2]] == [True] * 3
    assert "has no folder of a version" in faults[0]
    assert "in 1 is model.graphdef" in faults[1]
    assert "there is 01" in faults[2]
    assert f"give the repository that it is in: '{repository}'" in faults[3]


def test_a_folder_without_models_says_what_was_expected(repository: Path) -> None:
    assert f"{repository}/NAME/1/model.onnx" in fault(repository)
    (repository / "net.onnx").touch()
    assert f"to serve a file, give its path: '{repository}/net.onnx'" in fault(repository)


def test_a_config_that_is_no_file(repository: Path) -> None:
    put(repository, "a", 1)
    os.mkfifo(repository / "a" / "config.pbtxt")  # to open it would wait for ever
    assert "config.pbtxt is no file" in fault(repository)
    (repository / "a" / "config.pbtxt").unlink()
    (repository / "a" / "config.pbtxt").symlink_to("nowhere")
    assert "config.pbtxt is no file" in fault(repository)


def test_a_config_beyond_all_measure(repository: Path) -> None:
    put(repository, "a", 1, config="#" * (MAX_CONFIG_BYTES + 1))
    assert "has more than 64 KiB" in fault(repository)


def test_a_name_that_no_request_could_say(repository: Path) -> None:
    put(repository, os.fsdecode(b"caf\xe9"), 1)
    assert "the folder's name is not UTF-8" in fault(repository)


def test_more_versions_than_a_worker_has_room_for(repository: Path) -> None:
    put(repository, "a", *range(1, MAX_MODELS + 2), config="version_policy { all { } }")
    _, (said,) = find([str(repository)], Defaults())
    assert "65 models and versions were given; a worker has room for 64" in said


def test_one_name_in_two_places(tmp_path: Path, repository: Path) -> None:
    put(repository, "a", 1, 2, config="version_policy { all { } }")
    other = tmp_path / "other"
    put(other, "a", 3)
    (tmp_path / "a.onnx").touch()
    _, faults = find([str(repository), str(other), str(tmp_path / "a.onnx")], Defaults())
    assert faults == [
        f"{repository}/a and {other}/a would both be called 'a'; rename one",
        f"{repository}/a and {tmp_path}/a.onnx would both be called 'a'; rename one",
    ]


def test_model_files_take_the_flags(tmp_path: Path) -> None:
    models, faults = find([str(tmp_path / "x.v2.onnx")], Defaults(8, 100, 2))
    assert faults == []
    wanted = models[0].wanted
    assert (models[0].name, models[0].version, models[0].backend) == ("x.v2", "1", "")
    assert (wanted.max_batch_size, wanted.firm) == (8, False)
    assert (wanted.max_batch_wait_us, wanted.instances) == (100, 2)


def test_a_model_file_is_named_by_its_stem_and_not_opened() -> None:
    found, faults = find(["/elsewhere/affine.onnx", "/elsewhere/other.v2.onnx"], Defaults())
    assert not faults
    assert [(model.name, model.version) for model in found] == [("affine", "1"), ("other.v2", "1")]


def test_labels_that_are_no_file_hold_nothing_up(tmp_path: Path) -> None:
    config = "output { name: 'y' data_type: TYPE_FP32 dims: 4 label_filename: 'labels' }"
    os.mkfifo(put(tmp_path, "m", 1, config=config) / "labels")
    models, faults = find([str(tmp_path)], Defaults())
    assert models == []
    assert "label_filename 'labels' of output 'y' is no file" in faults[0]


def test_a_plan_is_known_by_its_name_or_by_its_config(repository: Path) -> None:
    put(repository, "both", 1)
    (repository / "both" / "1" / "model.plan").touch()
    put(repository, "named", 1, config="platform: 'tensorrt_plan'", file="model.plan")
    put(repository, "plan", 1, file="model.plan")
    models, faults = find([str(repository)], Defaults())
    assert not faults
    assert [(model.name, model.backend) for model in models] == [
        ("both", "onnxruntime"),
        ("named", "tensorrt"),
        ("plan", "tensorrt"),
    ]


def test_what_a_plan_uses_is_no_hint_of_its_config(repository: Path) -> None:
    """Also where the config does not say that it is a plan."""
    limit = "parameters { key: 'gpu_memory_limit' value { string_value: '1GB' } }"
    used = f"instance_group {{ kind: KIND_GPU gpus: [ 0 ] }} {limit}"
    put(repository, "plan", 1, config=used, file="model.plan")
    put(repository, "onnx", 1, config=used)
    found, faults = find([str(repository)], Defaults())
    assert faults == []
    by_name = {model.name: model for model in found}
    assert by_name["plan"].on_device and not by_name["onnx"].on_device
    assert by_name["plan"].wanted.warnings == ()
    assert by_name["plan"].wanted.gpus == (0,)
    assert len(by_name["onnx"].wanted.warnings) == 3
