"""The parameter gpu_memory_limit: sizes as people write them."""

from __future__ import annotations

import pytest

from service.models.device_memory import size_in_bytes
from service.models.modelconfig import ConfigFault, Defaults, parse, wanted_from


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500MB", 500 << 20),
        ("500 MiB", 500 << 20),
        ("2GB", 2 << 30),
        ("1.5g", 3 << 29),
        ("64k", 64 << 10),
        ("800000000", 800_000_000),
        ("7 B", 7),
        ("1 TB", 1 << 40),
    ],
)
def test_sizes_that_people_write(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "0", "-1MB", "1 PB", "1e9", "much", "1MB 2MB", "9999999TB", "1iB1"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes above 0"):
        size_in_bytes(text)


def _config(value: str, backend: str = "tensorrt") -> bytes:
    parameter = f"parameters {{ key: 'gpu_memory_limit' value {{ string_value: '{value}' }} }}"
    return f"backend: '{backend}' {parameter}".encode()


def test_a_config_sets_the_cap() -> None:
    wanted = wanted_from(parse(_config("500MB")), Defaults())
    assert wanted.gpu_memory_limit == 500 << 20
    assert wanted.warnings == ()


def test_a_config_without_a_cap_sets_none() -> None:
    assert wanted_from(parse(b""), Defaults()).gpu_memory_limit == 0


def test_a_cap_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigFault, match="parameter gpu_memory_limit is 'lots'; expected bytes above 0"):
        wanted_from(parse(_config("lots")), Defaults())


def test_a_model_that_runs_on_the_cpu_has_no_use_for_it() -> None:
    wanted = wanted_from(parse(_config("500MB", backend="onnxruntime")), Defaults())
    assert wanted.warnings == (
        "parameter 'gpu_memory_limit' in config.pbtxt is not one that this server uses",
    )
