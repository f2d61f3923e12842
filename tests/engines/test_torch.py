"""Models for torch on the CPU, on a fake batch: answers against torch itself, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_fakes import FakeBatch

from service.engines.base import EngineError, ModelLoadError, UnservedShape, open_engine
from service.engines.torch_library import moved
from service.models.wanted import Wanted, WantedTensor

torch = pytest.importorskip("torch", reason="torch brings gigabytes: install the extra by hand")

import torch_models as models  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")

from service.cuda import device  # noqa: E402


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch) -> None:
    monkeypatch.setattr(device, "_chosen", {"index": device.NO_DEVICE})


def said(name: str = "x", datatype: str = "FP32", dims: tuple[int, ...] = (16,)) -> WantedTensor:
    return WantedTensor(name, datatype, dims)


def load(path: str, *inputs: WantedTensor, size: int | None = 8, **wanted: Any) -> Any:
    firm = size is not None and bool(inputs)
    return open_engine(path, name="m", wanted=Wanted(inputs=inputs, max_batch_size=size, firm=firm, **wanted))


def run(engine: Any, *requests: list[np.ndarray], **batch: Any) -> FakeBatch:
    made = FakeBatch(*requests, **batch)
    engine.create_instance(0).execute(made)
    return made


def floats(rows: int, width: int = 16, start: int = 0) -> np.ndarray:
    return np.arange(start, start + rows * width, dtype=np.float32).reshape(rows, width)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


def test_torchscript_with_a_config(path) -> None:
    engine = load(models.script(models.Affine(), path), said())
    spec = engine.spec
    assert (spec.platform, spec.backend, spec.max_batch_size) == ("pytorch_libtorch", "pytorch", 8)
    assert [(t.name, t.datatype, t.dims) for t in (*spec.inputs, *spec.outputs)] == [
        ("x", "FP32", (16,)),
        ("OUTPUT__0", "FP32", (16,)),
    ]
    parts = [floats(1), floats(3, start=100), floats(2, start=500)]
    batch = run(engine, *[[part] for part in parts])
    assert batch.shapes == [(6, 16)]
    assert batch.calls == ["input done", "compute done", "reserve", "complete"]
    assert np.array_equal(batch.output(0, np.float32), 2 * np.concatenate(parts) + 1)


def test_torchscript_is_evaluated_and_answers_as_eager_torch(path) -> None:
    model = models.Layers()
    engine = load(models.script(model, path), said())
    x = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(run(engine, [x]).output(0, np.float32), expected, rtol=1e-5, atol=1e-6)


def test_an_exported_program_needs_no_config(path) -> None:
    model = models.Layers()
    engine = load(models.exported(model, path.with_suffix(".pt2"), torch.ones(3, 16)), size=None)
    spec = engine.spec
    assert spec.max_batch_size == 32
    assert [(t.name, t.datatype, t.dims) for t in (*spec.inputs, *spec.outputs)] == [
        ("x", "FP32", (16,)),
        ("OUTPUT__0", "FP32", (4,)),
    ]
    for rows in (1, 2, 32):
        x = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
        with torch.no_grad():
            expected = model(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(run(engine, [x]).output(0, np.float32), expected, rtol=1e-5, atol=1e-6)


def test_an_exported_program_is_moved_with_its_weights(path) -> None:
    """To a device without memory, which every machine has."""
    program = torch.export.load(models.exported(models.Layers(), path.with_suffix(".pt2"), torch.ones(3, 16)))
    assert {weight.device.type for weight in program.state_dict.values()} == {"cpu"}
    there = moved(program, "meta")
    assert {weight.device.type for weight in there.state_dict.values()} == {"meta"}


def test_an_exported_programs_bound_on_its_batch_holds(path) -> None:
    file = models.exported(models.Affine(), path, torch.ones(3, 16), most=5)
    assert load(file, size=None).spec.max_batch_size == 5
    with pytest.raises(ModelLoadError, match=r"max_batch_size 8, but the largest batch .* has 5 rows"):
        load(file, said(), size=8)


def test_an_exported_program_without_open_dims_runs_at_its_size(path) -> None:
    program = torch.export.export(models.Affine(), (torch.ones(4, 16),))
    torch.export.save(program, str(path.with_suffix(".pt2")))
    engine = load(str(path.with_suffix(".pt2")), size=None)
    assert (engine.spec.max_batch_size, engine.spec.batch_sizes) == (4, (4,))
    batch = run(engine, [floats(3)])
    assert batch.padding == 1
    assert np.array_equal(batch.output(0, np.float32), 2 * floats(3) + 1)


def test_outputs_with_names(path) -> None:
    for file in (
        models.script(models.Named(), path),
        models.exported(models.Named(), path, torch.ones(3, 16)),
    ):
        engine = load(file, said())
        assert [(t.name, t.datatype) for t in engine.spec.outputs] == [("twice", "FP32"), ("sign", "BOOL")]
        batch = run(engine, [floats(2)])
        assert np.array_equal(batch.output(0, np.float32), 2 * floats(2))
        assert np.array_equal(batch.output(1, np.bool_), floats(2) > 0)


def test_tritons_names(path) -> None:
    inputs = [said("INPUT__1", "INT64", (3,)), said("INPUT__0", "FP32", (2,))]
    outputs = (said("OUTPUT__1", "BOOL", (3,)), said("OUTPUT__0", "FP32", (1,)))
    example = (torch.ones(3, 2), torch.ones(3, 3, dtype=torch.int64))
    for file in (models.script(models.TwoByTwo(), path), models.exported(models.TwoByTwo(), path, *example)):
        engine = load(file, *inputs, outputs=outputs)
        assert [t.name for t in engine.spec.inputs] == ["INPUT__0", "INPUT__1"]
        assert [(t.name, t.dims) for t in engine.spec.outputs] == [("OUTPUT__0", (1,)), ("OUTPUT__1", (3,))]
        a, b = floats(2, 2), np.array([[1, 2, 3], [4, 5, -6]], np.int64)
        batch = run(engine, [a[:1], b[:1]], [a[1:], b[1:]])
        assert np.array_equal(batch.output(0, np.float32), a.sum(axis=1, keepdims=True))
        assert np.array_equal(batch.output(1, np.bool_), b > 2)


DTYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": np.uint16,
    "FP32": np.float32,
    "FP64": np.float64,
}


@pytest.mark.parametrize("name", DTYPES)
def test_every_datatype_bit_for_bit(path, name) -> None:
    engine = load(models.script(models.Same(), path), said(datatype=name, dims=(3,)))
    assert (engine.spec.inputs[0].datatype, engine.spec.outputs[0].datatype) == (name, name)
    dtype = np.dtype(DTYPES[name])
    raw = np.random.default_rng(1).integers(0, 2 if name == "BOOL" else 256, (4, 3 * dtype.itemsize))
    x = raw.astype(np.uint8).view(dtype).reshape(4, 3)
    assert run(engine, [x]).output(0, dtype).tobytes() == x.tobytes()


def test_dims_that_are_open(path) -> None:
    length = torch.export.Dim("length")
    file = models.exported(
        models.Doubled(), path.with_suffix(".pt2"), torch.ones(3, 5), open_dims={1: length}
    )
    for engine in (load(models.script(models.Doubled(), path), said(dims=(-1,))), load(file, size=None)):
        assert (engine.spec.inputs[0].dims, engine.spec.outputs[0].dims) == ((-1,), (-1,))
        instance = engine.create_instance(0)
        for rows, width in ((1, 5), (3, 700), (2, 1)):
            batch = FakeBatch([floats(rows, width)])
            instance.execute(batch)
            assert batch.shapes == [(rows, 2 * width)]
            twice = np.concatenate([floats(rows, width)] * 2, axis=1)
            assert np.array_equal(batch.output(0, np.float32), twice)


def test_a_model_that_does_not_batch_has_its_whole_shape(path) -> None:
    engine = load(models.script(models.Mean(), path), said(dims=(3, 4)), size=0)
    assert (engine.spec.max_batch_size, engine.spec.inputs[0].dims) == (0, (3, 4))
    x = floats(3, 4)
    assert np.array_equal(run(engine, [x], batched=False).output(0, np.float32), x - x.mean(0))


def test_without_max_batch_size_dims_are_whole_shapes_as_in_triton(path) -> None:
    engine = load(models.script(models.Affine(), path), said(dims=(1, 16)), size=None)
    assert (engine.spec.max_batch_size, engine.spec.inputs[0].dims) == (0, (1, 16))


def test_outputs_whose_size_depends_on_data(path) -> None:
    out = (said("found", "INT64", (-1, 2)),)
    engine = load(models.script(models.Found(), path), said(dims=(3, 4)), size=0, outputs=out)
    assert engine.spec.outputs[0].dims == (-1, 2)
    instance = engine.create_instance(0)
    for x in (np.eye(3, 4, dtype=np.float32), np.zeros((3, 4), np.float32)):
        batch = FakeBatch([x], batched=False)
        instance.execute(batch)
        assert np.array_equal(batch.output(0, np.int64), np.argwhere(x))


def test_rows_that_depend_on_each_other_are_not_batched(path) -> None:
    assert load(models.exported(models.Mean(), path, torch.ones(3, 4)), size=None).spec.max_batch_size == 0
    with pytest.raises(ModelLoadError, match="the config wants batches, but the model cannot batch"):
        load(models.script(models.Mean(), path), said(dims=(4,)))


def test_sizes_that_the_user_names(path) -> None:
    engine = load(models.script(models.Affine(), path), said(), batch_sizes=(4, 8))
    batch = run(engine, [floats(2)], [floats(1)])
    assert (batch.padding, batch.shapes) == (1, [(3, 16)])
    expected = 2 * np.concatenate([floats(2), floats(1)]) + 1
    assert np.array_equal(batch.output(0, np.float32), expected)


def test_a_model_may_write_to_its_input_which_is_a_copy(path) -> None:
    engine = load(models.script(models.Writes(), path), said())
    batch = FakeBatch([floats(2)], in_place=True)
    before = batch._views[0].tobytes()
    engine.create_instance(0).execute(batch)
    assert np.array_equal(batch.output(0, np.float32), 2 * floats(2) + 1)
    assert batch._views[0].tobytes() == before


def test_a_batch_without_rows(path) -> None:
    batch = run(load(models.script(models.Layers(), path), said()), [floats(0)])
    assert batch.shapes == [(0, 4)]


# ---- what is refused ----


def test_torchscript_without_a_config_shows_one(path) -> None:
    file = models.script(models.TwoByTwo(), path)
    with pytest.raises(ModelLoadError) as refusal:
        load(file, size=None)
    text = str(refusal.value)
    assert "TorchScript does not say the datatypes and shapes of its inputs" in text
    assert 'input { name: "a" data_type: TYPE_FP32' in text and 'input { name: "b"' in text
    with pytest.raises(ModelLoadError, match="config.pbtxt, such as"):
        load(file, WantedTensor("a", "FP32", (2,)), WantedTensor("b", "", (3,)))


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ([said("a")], r"the config has 1 inputs, the model takes 2 \(a, b\)"),
        ([said("a"), said("b"), said("c")], "the config has 3 inputs, the model takes 2"),
        ([said("a"), said("b", dims=(3,))], "no test input could be run.*size of tensor|output 'OUTPUT__0'"),
    ],
)
def test_a_config_that_is_not_the_models(path, inputs, expected) -> None:
    class Sum(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    torch.jit.trace(Sum(), (torch.ones(2, 16), torch.ones(2, 16))).save(str(path))
    with pytest.raises(ModelLoadError, match=expected):
        load(str(path), *inputs)


def test_outputs_that_are_not_as_the_config_has_them(path) -> None:
    file = models.script(models.Affine(), path)
    with pytest.raises(ModelLoadError, match="the config says INT64, the model has FP32"):
        load(file, said(), outputs=(said("OUTPUT__0", "INT64"),))
    with pytest.raises(ModelLoadError, match=r"the config says dims \[15\], the model has \[16\]"):
        load(file, said(), outputs=(said("OUTPUT__0", "FP32", (15,)),))


def test_arguments_that_are_no_tensors(path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, by: float) -> torch.Tensor:
            return x * by

    with pytest.raises(ModelLoadError, match="its argument 'by' is of type float; expected tensors"):
        load(models.script(Scaled(), path), said())


def test_damaged_files_are_refused_in_words(path) -> None:
    for file in (
        models.script(models.Layers(), path),
        models.exported(models.Layers(), path, torch.ones(3, 16)),
    ):
        whole = bytearray(Path(file).read_bytes())
        middle = len(whole) // 4
        whole[middle : middle + 400] = bytes(400)
        path.write_bytes(bytes(whole))
        with pytest.raises(ModelLoadError, match="model 'm'"):
            load(str(path), said(dims=(17,)))


def test_what_fails_in_a_run_is_told_in_torchs_words(path) -> None:
    instance = load(models.script(models.Picky(), path), said(dims=(2,))).create_instance(0)
    with pytest.raises(EngineError, match=r"^(builtins\.RuntimeError: )?13 brings bad luck$"):
        instance.execute(FakeBatch([np.array([[1, 13]], np.float32)]))
    batch = FakeBatch([np.array([[1, 12]], np.float32)])
    instance.execute(batch)
    assert np.array_equal(batch.output(0, np.float32), [[2, 24]])


def test_a_shape_that_the_program_was_not_exported_for_is_the_callers_fault(path) -> None:
    length = torch.export.Dim("length", max=9)
    file = models.exported(models.Doubled(), path, torch.ones(3, 5), open_dims={1: length})
    instance = load(file, size=None).create_instance(0)
    with pytest.raises(UnservedShape, match="not exported for inputs of this shape"):
        instance.execute(FakeBatch([floats(1, 10)]))


def test_instances_run_at_once_and_each_has_its_share_of_the_threads(path) -> None:
    engine = load(models.script(models.Layers(), path), said(), instances=2)
    model, wrong = models.Layers().eval(), []

    def work(index: int) -> None:
        instance = engine.create_instance(index)
        for number in range(50):
            x = np.random.default_rng([index, number]).normal(size=(1 + number % 8, 16)).astype(np.float32)
            batch = FakeBatch([x])
            instance.execute(batch)
            with torch.no_grad():
                expected = model(torch.from_numpy(x)).numpy()
            if not np.allclose(batch.output(0, np.float32), expected, rtol=1e-4, atol=1e-5):
                wrong.append((index, number))
        if torch.get_num_threads() != engine._threads:
            wrong.append((index, torch.get_num_threads()))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
