"""Plans of ONNX files: what they are built with, and when they are built again."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.engines import tensorrt_cache
from service.engines.base import ModelLoadError
from service.engines.tensorrt_cache import key_of, options_of, plan_of
from service.engines.tensorrt_options import BuildError, BuildOptions, Tensor, ranges_of
from service.models.building import Building
from service.models.wanted import Wanted, WantedTensor

DEVICE = SimpleNamespace(name="cuda:1 NVIDIA H200")


class Builds:
    """Stands for TensorRT: a build gives the file and the options back."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = ""
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, path: str, options: BuildOptions) -> SimpleNamespace:
        self.count += 1
        assert self.may_end.wait(10)
        if self.fails:
            raise BuildError(self.fails)
        plan = Path(path).read_bytes() + repr(options.fp16).encode()
        return SimpleNamespace(plan=plan, version="TensorRT 10.6.0", seconds=1.0)


@pytest.fixture
def builds(tmp_path, monkeypatch) -> Builds:
    found = Builds()
    monkeypatch.setattr(tensorrt_cache, "build", found)
    trt = SimpleNamespace(__version__="10.6.0")
    monkeypatch.setattr(tensorrt_cache, "known", lambda: SimpleNamespace(trt=trt))
    monkeypatch.setenv("HEADRACE_PLANS", str(tmp_path / "plans"))
    return found


def plan(path: Path, **wanted) -> bytes:
    return plan_of(str(path), "model 'm'", Wanted(**wanted), DEVICE)


def test_a_plan_is_built_once_for_what_it_depends_on(tmp_path, builds) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"one")
    assert plan(model) == plan(model) == b"oneFalse"
    assert builds.count == 1
    half = {"building": Building(precisions=("FP16",))}
    assert plan(model, **half) == b"oneTrue"
    model.write_bytes(b"two")
    assert plan(model) == b"twoFalse"
    assert builds.count == 3
    model.write_bytes(b"one")
    assert (plan(model), plan(model, **half), builds.count) == (b"oneFalse", b"oneTrue", 3)
    assert sorted(path.suffix for path in (tmp_path / "plans").iterdir()) == [
        *[".lock"] * 3,
        *[".plan"] * 3,
    ]


def test_who_comes_while_it_is_built_waits_for_it(tmp_path, builds) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"one")
    builds.may_end.clear()
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(plan(model))) for _ in range(4)]
    for thread in threads:
        thread.start()
    builds.may_end.set()
    for thread in threads:
        thread.join(30)
    assert (found, builds.count) == ([b"oneFalse"] * 4, 1)


def test_a_build_that_fails_is_told_and_keeps_nothing(tmp_path, builds) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"one")
    builds.fails = "no such operator"
    with pytest.raises(ModelLoadError, match="model 'm' was not loaded: no such operator"):
        plan(model)
    builds.fails = ""
    assert plan(model) == b"oneFalse"
    with pytest.raises(ModelLoadError, match="missing.onnx: No such file"):
        plan(tmp_path / "missing.onnx")


def test_a_plan_is_for_any_device_of_the_name() -> None:
    def key(device: str, version: str = "10.6.0") -> str:
        return key_of("/dev/null", BuildOptions(), version, device)

    assert key("cuda:0 NVIDIA H200") == key("cuda:1 NVIDIA H200")
    assert len({key("cuda:0 NVIDIA H200"), key("cuda:0 NVIDIA L4"), key("cuda:0 NVIDIA H200", "10.7.0")}) == 3


def test_options_are_what_the_config_says() -> None:
    asked = Building(("FP16", "INT8"), 64 << 20, "rows.npz", 8)
    x = WantedTensor("x", "FP32", (3, 224, 224))
    said = Wanted(max_batch_size=32, firm=True, inputs=(x,), building=asked, plugins=("a.so",))
    options = options_of("/models/m/1/model.onnx", said)
    assert (options.batch, options.fp16, options.int8, options.workspace_mb) == ((1, 8, 32), True, True, 64)
    assert options.shapes == {"x": ((1, 3, 224, 224), (8, 3, 224, 224), (32, 3, 224, 224))}
    assert (options.calibration, options.plugins) == ("/models/m/1/rows.npz", ("/models/m/1/a.so",))
    assert options_of("model.onnx", Wanted()).batch == (1, 32, 32)
    assert options_of("model.onnx", Wanted(max_batch_size=0)).batch is None


def test_a_model_of_fixed_sizes_is_built_as_it_is() -> None:
    fixed = [Tensor("x", "FP32", (4, 2))]
    assert ranges_of(fixed, options_of("model.onnx", Wanted())) == {}
    with pytest.raises(BuildError, match="every size of the inputs is fixed"):
        ranges_of(fixed, BuildOptions(batch=(1, 2, 4)))
