"""Which worker has which model, where a service has several devices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from service.config import ServeConfig
from service.models.placement import THE_ONLY_WORKER, Placement, gpus_of, home_for, homes_of, misplaced
from service.models.repository import Found
from service.models.wanted import Wanted


@pytest.mark.parametrize(
    ("gpus", "devices", "taken", "worker"),
    [
        ((), (0,), [], 0),
        ((), (0, 1), [], 0),
        ((), (0, 1), [0], 1),
        ((), (0, 1), [0, 1], 0),
        ((), (0, 1, 2), [0, 0, 1, 1], 2),
        ((1,), (0, 1), [1, 1, 1], 1),
        ((5,), (4, 5), [], 1),
        ((0, 1), (0, 1), [0], 1),
        ((1, 7), (0, 1), [], 1),
        ((7,), (0, 1), [0], 1),  # it is refused there
    ],
)
def test_a_model_goes_where_its_config_says_and_fewest_are(gpus, devices, taken, worker) -> None:
    assert home_for(gpus, devices, taken) == worker


def repository(folder: Path, **configs: str) -> ServeConfig:
    for name, config in configs.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.plan").write_bytes(b"")
        (folder / name / "config.pbtxt").write_text(config)
    return ServeConfig((str(folder),), devices=(0, 1))


def test_what_is_there_at_the_start_is_placed_once(tmp_path: Path) -> None:
    gpu_0 = "instance_group { kind: KIND_GPU gpus: [ 0 ] }"
    config = repository(tmp_path, a=gpu_0, b=gpu_0, c="", d="", e="", f="no config {")
    homes = homes_of(config)
    assert homes == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 0, "f": 1}
    assert homes_of(replace(config, devices=(3,))) == {}
    first, second = Placement(0, homes), Placement(1, homes)
    assert [name for name in "abcdef" if first.owns(name)] == ["a", "b", "e"]
    assert [name for name in "abcdef" if second.owns(name)] == ["c", "d", "f"]
    assert first.owns("a new one") and not second.owns("a new one"), "one of them has it"
    assert THE_ONLY_WORKER.owns("a")


def test_a_models_own_gpus_are_read_from_its_config_or_from_the_one_that_comes_with_a_load(
    tmp_path: Path,
) -> None:
    two = "backend: 'onnxruntime' default_model_filename: 'model.plan' instance_group { gpus: [ 1 ] }"
    repository(tmp_path, a="instance_group [ { gpus: [ 1, 0 ] }, { gpus: [ 1, 3 ] } ]", cpu=two)
    paths = (str(tmp_path),)
    assert gpus_of(paths, "a") == (1, 0, 3)
    assert gpus_of(paths, "cpu") == (), "a hint that is not used"
    assert gpus_of(paths, "nobody") == ()
    assert gpus_of(paths, "a", json.dumps({"instance_group": [{"gpus": [5]}]})) == (5,)
    assert gpus_of(paths, "a", "{") == ()


def test_a_device_that_the_config_does_not_name_is_refused() -> None:
    plan = Found("m", "1", "m.plan", Wanted(gpus=(2, 3)), "tensorrt")
    assert misplaced(plan, 3, (0, 3)) == ""
    assert (
        misplaced(plan, 0, (0, 1)) == "its config says gpus 2, 3, and it would run on device 0 (--device 0,1)"
    )
    assert misplaced(replace(plan, backend="onnxruntime"), 0, (0, 1)) == ""
    assert misplaced(replace(plan, wanted=Wanted()), 0, (0, 1)) == ""
