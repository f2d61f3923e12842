"""Models for torch on a real device: answers against eager torch on the CPU, graphs, memory, caps."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.client import Client, ClientError
from service.cuda.memory import NoRoom
from service.inprocess import running
from service.models.counts import GRAPH_HITS, GRAPH_MISSES

try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    pytest.skip("no NVIDIA driver on this machine", allow_module_level=True)

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch_models as models  # noqa: E402
from device_models import ask_from_threads, device_config  # noqa: E402

from service.cuda.device import close_device, the_device  # noqa: E402
from service.engines.base import open_engine  # noqa: E402
from service.engines.torch_device import TorchModel  # noqa: E402
from service.models.wanted import Wanted, WantedTensor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MB = 1 << 20


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """A device that is made by the test and closed after it."""
    yield
    close_device()


def said(name: str = "x", datatype: str = "FP32", dims: tuple[int, ...] = (16,)) -> WantedTensor:
    return WantedTensor(name, datatype, dims)


def opened(path: str, name: str, *inputs: WantedTensor, size: int | None = 8, **wanted: Any) -> Any:
    asked = Wanted(inputs=inputs, max_batch_size=size, firm=size is not None and bool(inputs), **wanted)
    engine = open_engine(path, name=name, wanted=asked)
    assert isinstance(engine, TorchModel)
    return engine


def affine(folder: Path, name: str = "affine", width: int = 4) -> Any:
    outputs = (said("y", dims=(width,)),)
    file = models.script(models.Affine(), folder / f"{name}.pt")
    return opened(file, name, said(dims=(width,)), outputs=outputs)


def test_answers_from_eight_threads_are_their_own(tmp_path) -> None:
    file = models.exported(models.Affine(), tmp_path / "exported.pt2", torch.ones(3, 4))
    exported = opened(file, "exported", size=None, outputs=(said("y", dims=(4,)),))
    with running([affine(tmp_path, "script"), exported], device_config()) as service:
        assert ask_from_threads(service.address, ["script", "exported"], requests=1000) == []
        for stats in service._worker._former.stats():
            assert stats.engine[GRAPH_HITS] > 0 and stats.engine[GRAPH_MISSES] == 0


def compare(address: str, name: str, model: Any, wrong: list[str], seed: int) -> None:
    source = np.random.default_rng(seed)
    with Client(address) as client:
        for number in range(100):
            x = source.normal(size=(1 + number % 8, 16)).astype(np.float32)
            with torch.no_grad():
                expected = model(torch.from_numpy(x)).numpy()
            got = client.infer(name, {"x": x}).outputs["OUTPUT__0"]
            if not np.allclose(got, expected, rtol=1e-2, atol=1e-2):
                wrong.append(f"{name}, {seed}, {number}: off by {np.abs(got - expected).max()}")


def test_layers_answer_as_on_the_cpu_from_eight_threads(tmp_path) -> None:
    """Convolution and matrices: cuDNN and cuBLAS with their workspaces, in graphs, and in TF32."""
    model = models.Layers()
    file = models.exported(model, tmp_path / "exported.pt2", torch.ones(3, 16))
    engines = [
        opened(models.script(models.Layers(), tmp_path / "script.pt"), "script", said()),
        opened(file, "exported", size=None),
    ]
    assert all(engine.capturable for engine in engines)
    wrong: list[str] = []
    with running(engines, device_config()) as service:
        names = ["script", "exported"] * 4
        threads = [
            threading.Thread(target=compare, args=(service.address, name, model, wrong, seed))
            for seed, name in enumerate(names)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        for stats in service._worker._former.stats():
            assert stats.engine[GRAPH_HITS] > 0 and stats.engine[GRAPH_MISSES] == 0


def test_graphs_of_one_model_outlive_another(tmp_path) -> None:
    """What a model leaves behind in torch is not another's memory: loaded beside, used, unloaded."""
    model = models.Layers().eval()
    script = models.script(models.Layers(), tmp_path / "layers.pt")
    stays = opened(script, "stays", said())
    with running([stays], device_config()) as service:
        served = service._worker._models
        wrong: list[str] = []
        for number in range(5):
            served.remove(served.add(opened(script, f"comes{number}", said())))
            compare(service.address, "stays", model, wrong, number)
        assert wrong == []


TYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


@pytest.mark.parametrize("datatype", TYPES)
def test_types_in_and_out(tmp_path, datatype) -> None:
    out = (said("y", datatype, (5,)),)
    file = models.script(models.Same(), tmp_path / "same.pt")
    engine = opened(file, "same", said(datatype=datatype, dims=(5,)), outputs=out)
    with running([engine], device_config()) as service, Client(service.address) as client:
        x = (np.arange(15).reshape(3, 5) % 2 if datatype == "BOOL" else np.arange(15).reshape(3, 5)).astype(
            TYPES[datatype]
        )
        y = client.infer("same", {"x": x}).outputs["y"]
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, x)


def test_bf16_inside(tmp_path) -> None:
    class Rounded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    engine = opened(models.script(Rounded(), tmp_path / "bf16.pt"), "bf16", said(datatype="BF16", dims=(4,)))
    assert (engine.spec.inputs[0].datatype, engine.spec.outputs[0].datatype) == ("BF16", "BF16")
    assert engine.capturable
    engine.close()


def test_shapes_that_vary(tmp_path) -> None:
    engine = opened(models.script(models.Doubled(), tmp_path / "doubled.pt"), "doubled", said(dims=(-1,)))
    with running([engine], device_config()) as service, Client(service.address) as client:
        for width in (1, 7, 1000, 3) * 5:
            x = np.random.default_rng(width).random((3, width), np.float32)
            y = client.infer("doubled", {"x": x}).outputs["OUTPUT__0"]
            np.testing.assert_array_equal(y, np.concatenate([x, x], axis=1))


def test_outputs_whose_size_depends_on_data(tmp_path) -> None:
    out = (said("found", "INT64", (-1, 2)),)
    file = models.script(models.Found(), tmp_path / "found.pt")
    engine = opened(file, "found", said(dims=(3, 4)), size=0, outputs=out)
    assert not engine.capturable
    with running([engine], device_config()) as service, Client(service.address) as client:
        for seed in range(5):
            x = np.random.default_rng(seed).integers(0, 2, (3, 4)).astype(np.float32)
            found = client.infer("found", {"x": x}).outputs["found"]
            np.testing.assert_array_equal(found, np.argwhere(x))


def test_a_model_that_cannot_be_captured_runs_without_graphs(tmp_path) -> None:
    out = (said("y", dims=(4,)),)
    file = models.script(models.Chooses(), tmp_path / "chooses.pt")
    engine = opened(file, "chooses", said(dims=(4,)), size=1, outputs=out)
    assert not engine.capturable
    with running([engine, affine(tmp_path)], device_config()) as service:
        assert ask_from_threads(service.address, ["affine"], requests=100) == []
        with Client(service.address) as client:
            x = np.ones((1, 4), np.float32)
            np.testing.assert_array_equal(client.infer("chooses", {"x": x}).outputs["y"], 2 * x + 1)
        stats = {s.model: s for s in service._worker._former.stats()}
        assert sum(s.engine[GRAPH_MISSES] for s in stats.values()) > 0


def test_a_run_that_fails_fails_its_batch_alone(tmp_path) -> None:
    out = (said("y", dims=(2,)),)
    file = models.script(models.Picky(), tmp_path / "picky.pt")
    engine = opened(file, "picky", said(dims=(2,)), size=1, outputs=out)
    with running([engine], device_config()) as service, Client(service.address) as client:
        with pytest.raises(ClientError, match="13 brings bad luck"):
            client.infer("picky", {"x": np.array([[1, 13]], np.float32)})
        y = client.infer("picky", {"x": np.array([[1, 12]], np.float32)}).outputs["y"]
        np.testing.assert_array_equal(y, [[2, 24]])


def test_load_infer_unload_twenty_times_returns_to_the_baseline(tmp_path) -> None:
    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Linear(16, 8 << 20)  # 544 MB
            self.last = torch.nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x)

    file = models.script(Large(), tmp_path / "large.pt")
    with running([affine(tmp_path, "stays")], device_config()) as service:
        served = service._worker._models
        served.remove(served.add(opened(file, "comes", said())))
        before = the_device().used_bytes()
        for _ in range(20):
            model = served.add(opened(file, "comes", said()))
            assert the_device().used_bytes() > before + 400 * MB
            served.remove(model)
        assert the_device().used_bytes() <= before * 1.05
        assert ask_from_threads(service.address, ["stays"], requests=20) == []


def test_a_cap_that_is_too_small_is_told_with_the_numbers_and_leaves_nothing(tmp_path) -> None:
    affine(tmp_path).close()
    before = the_device().used_bytes()
    file = models.script(torch.nn.Linear(1024, 8 << 10), tmp_path / "linear.pt")  # 32 MB
    for limit in (8 * MB, 40 * MB):  # less than its file, and less than it takes with its activations
        with pytest.raises(NoRoom, match=rf"needs .* MB.*gpu_memory_limit is {limit // MB} MB.*free"):
            engine = opened(file, "linear", said("input", dims=(1024,)), gpu_memory_limit=limit)
            with running([engine], device_config()):
                pass
    assert the_device().used_bytes() <= before * 1.05
