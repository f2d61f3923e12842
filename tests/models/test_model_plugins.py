"""The parameter plugins: libraries in a plan's folder."""

from __future__ import annotations

import pytest

from service.models.modelconfig import ConfigFault, Defaults, parse, wanted_from


def wanted(value: str, backend: str = "tensorrt"):
    parameter = f"parameters {{ key: 'plugins' value {{ string_value: '{value}' }} }}"
    return wanted_from(parse(f"backend: '{backend}' {parameter}".encode()), Defaults())


def test_libraries_are_named_in_their_order() -> None:
    found = wanted("libb.so, nested/liba.so")
    assert (found.plugins, found.warnings) == (("libb.so", "nested/liba.so"), ())
    assert wanted_from(parse(b""), Defaults()).plugins == ()


@pytest.mark.parametrize("value", ["", "/usr/lib/liba.so", "../liba.so", "a.so,,b.so", "a/../../b.so"])
def test_other_places_are_refused(value: str) -> None:
    with pytest.raises(ConfigFault, match="parameter plugins is .*names of files in the version's folder"):
        wanted(value)


def test_a_model_on_the_cpu_has_no_use_for_them() -> None:
    (told,) = wanted("liba.so", backend="onnxruntime").warnings
    assert told == "parameter 'plugins' in config.pbtxt is not one that this server uses"
