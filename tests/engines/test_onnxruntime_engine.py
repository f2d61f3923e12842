"""The onnxruntime engine on a fake batch: every row comes back right, by as few copies as there can be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import engine_models as models
import numpy as np
import pytest
from engine_fakes import FakeBatch

from service.engines.base import EngineError, Instance, open_engine
from service.engines.onnxruntime import OnnxEngine, clean
from service.models.wanted import Wanted

DTYPES = {
    "BOOL": (models.T.BOOL, np.bool_),
    "UINT8": (models.T.UINT8, np.uint8),
    "UINT16": (models.T.UINT16, np.uint16),
    "UINT32": (models.T.UINT32, np.uint32),
    "UINT64": (models.T.UINT64, np.uint64),
    "INT8": (models.T.INT8, np.int8),
    "INT16": (models.T.INT16, np.int16),
    "INT32": (models.T.INT32, np.int32),
    "INT64": (models.T.INT64, np.int64),
    "FP16": (models.T.FLOAT16, np.float16),
    "FP32": (models.T.FLOAT, np.float32),
    "FP64": (models.T.DOUBLE, np.float64),
}


def load(path: str, max_batch_size: int | None = None, instances: int = 1) -> OnnxEngine:
    wanted = Wanted(max_batch_size=max_batch_size, instances=instances)
    engine = open_engine(path, name="m", wanted=wanted)
    assert isinstance(engine, OnnxEngine)
    return engine


def execute(instance: Instance, batch: FakeBatch) -> FakeBatch:
    instance.execute(batch)  # type: ignore[arg-type]
    return batch


def floats(rows: int, width: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + rows * width, dtype=np.float32).reshape(rows, width)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def test_the_rows_of_several_requests_come_back_in_order(path: Path) -> None:
    engine = load(models.affine(path))
    assert (engine.spec.max_batch_size, engine.ahead) == (32, True)
    parts = [floats(1, 16), floats(3, 16, 100), floats(2, 16, 500)]
    batch = execute(engine.create_instance(0), FakeBatch(*[[part] for part in parts]))
    assert batch.shapes == [(6, 16)]
    assert np.array_equal(batch.output(0, np.float32), 2 * np.concatenate(parts) + 1)


def test_the_order_of_a_batch_in_an_instance(path: Path) -> None:
    known = execute(load(models.affine(path)).create_instance(0), FakeBatch([floats(1, 16)]))
    assert known.calls == ["input done", "reserve", "compute done", "complete"]
    unknown = execute(load(models.doubled_length(path)).create_instance(0), FakeBatch([floats(1, 16)]))
    assert unknown.calls == ["input done", "compute done", "reserve", "complete"]


def test_an_input_in_one_piece_is_used_where_it_lies(path: Path) -> None:
    x = floats(4, 16)
    batch = execute(load(models.affine(path)).create_instance(0), FakeBatch([x], in_place=True))
    assert batch.gathered == []
    assert np.array_equal(batch.output(0, np.float32), 2 * x + 1)


def test_batches_of_all_sizes_reuse_one_buffer_and_do_not_mix(path: Path) -> None:
    instance = load(models.affine(path)).create_instance(0)
    addresses = set()
    for rows in (3, 32, 1, 7, 7, 32, 2):
        for in_place in (False, True):
            x = floats(rows, 16, rows)
            batch = execute(instance, FakeBatch([x], in_place=in_place))
            addresses.update(batch.gathered)
            assert np.array_equal(batch.output(0, np.float32), 2 * x + 1)
    assert len(addresses) == 1


def test_outputs_may_lie_at_any_multiple_of_their_element(path: Path) -> None:
    x = floats(5, 16)
    batch = execute(load(models.affine(path)).create_instance(0), FakeBatch([x], offset=4))
    assert np.array_equal(batch.output(0, np.float32), 2 * x + 1)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("in_place", [False, True])
def test_every_datatype_bit_for_bit(path: Path, name: str, in_place: bool) -> None:
    element_type, dtype = DTYPES[name]
    engine = load(models.identity(path, element_type))
    assert (engine.spec.inputs[0].datatype, engine.spec.outputs[0].datatype) == (name, name)
    assert engine.spec.max_batch_size == 32
    width = 3 * np.dtype(dtype).itemsize
    raw = np.random.default_rng(1).integers(0, 2 if name == "BOOL" else 256, (4, width))
    x = raw.astype(np.uint8).view(dtype).reshape(4, 3)
    batch = execute(engine.create_instance(0), FakeBatch([x], in_place=in_place))
    assert batch.output(0, dtype).tobytes() == x.tobytes()


def test_several_inputs_and_outputs_of_different_datatypes(path: Path) -> None:
    engine = load(models.two_by_two(path))
    assert engine.spec.max_batch_size == 32
    a, b = floats(2, 2), np.array([[1, 2, 3], [4, 5, -6]], np.int64)
    batch = execute(engine.create_instance(0), FakeBatch([a[:1], b[:1]], [a[1:], b[1:]]))
    assert np.array_equal(batch.output(0, np.float64), a.sum(axis=1, keepdims=True, dtype=np.float64))
    assert np.array_equal(batch.output(1, np.bool_), b > 2)


def test_dynamic_dims_differ_from_batch_to_batch(path: Path) -> None:
    engine = load(models.doubled_length(path))
    assert (engine.spec.max_batch_size, engine.ahead) == (32, False)
    assert (engine.spec.inputs[0].dims, engine.spec.outputs[0].dims) == ((-1,), (-1,))
    instance = engine.create_instance(0)
    for rows, length in ((1, 5), (3, 700), (3, 5), (2, 1), (1, 0), (4, 5)):
        x = floats(rows, length)
        batch = execute(instance, FakeBatch([x[:1]], [x[1:]]) if rows > 1 else FakeBatch([x]))
        assert batch.shapes == [(rows, 2 * length)]
        assert np.array_equal(batch.output(0, np.float32), np.concatenate([x, x], axis=1))


@pytest.mark.parametrize("in_place", [False, True])
def test_tensors_without_elements(path: Path, in_place: bool) -> None:
    engine = load(models.affine(path, inner=0), max_batch_size=4)
    batch = execute(engine.create_instance(0), FakeBatch([floats(2, 0)], in_place=in_place))
    assert batch.output(0, np.float32).shape == (2, 0)


def test_a_model_that_does_not_batch_gets_whole_requests(path: Path) -> None:
    engine = load(models.affine(path, axis0=10), max_batch_size=0)
    assert engine.spec.max_batch_size == 0
    assert engine.spec.inputs[0].dims == (10, 16)
    assert engine.ahead
    batch = execute(engine.create_instance(0), FakeBatch([floats(10, 16)], batched=False))
    assert batch.shapes == [(10, 16)]
    assert np.array_equal(batch.output(0, np.float32), 2 * floats(10, 16) + 1)


def test_an_unbatched_dynamic_axis_0_is_a_dimension_like_others(path: Path) -> None:
    engine = load(models.affine(path), max_batch_size=0)
    assert (engine.spec.inputs[0].dims, engine.ahead) == ((-1, 16), False)
    instance = engine.create_instance(0)
    for rows in (1, 5, 0, 2):
        batch = execute(instance, FakeBatch([floats(rows, 16)], batched=False))
        assert np.array_equal(batch.output(0, np.float32), 2 * floats(rows, 16) + 1)


def test_a_scalar_output(path: Path) -> None:
    engine = load(models.one_node(path, "ReduceSum", out=(), keepdims=0))
    assert engine.spec.outputs[0].dims == ()
    assert "output 'y' is a scalar" in engine.spec.why_unbatched
    batch = execute(engine.create_instance(0), FakeBatch([floats(3, 4)], batched=False))
    assert (batch.shapes, batch.output(0, np.float32)) == ([()], 66)


def test_an_output_that_is_an_input_of_the_graph(path: Path) -> None:
    """ONNX Runtime does not write such an output to the address that it was bound to."""
    x, y = ("x", models.F, ["N", 4]), ("y", models.F, ["N", 4])
    node = models.h.make_node("Neg", ["x"], ["y"])
    engine = load(models.save(path, [node], [x], [y, x]))
    assert (engine.spec.max_batch_size, engine.ahead) == (32, False)
    batch = execute(engine.create_instance(0), FakeBatch([floats(2, 4)]))
    assert np.array_equal(batch.output(0, np.float32), -floats(2, 4))
    assert np.array_equal(batch.output(1, np.float32), floats(2, 4))


def test_a_declared_output_shape_that_is_wrong_is_not_believed(path: Path) -> None:
    """The file says 6 columns; a Reshape with a shape that is computed hides that there are 4."""
    nodes = [
        models.h.make_node("Shape", ["x"], ["shape"]),
        models.h.make_node("Identity", ["shape"], ["same"]),
        models.h.make_node("Reshape", ["x", "same"], ["y"]),
    ]
    engine = load(models.save(path, nodes, [("x", models.F, ["N", "C"])], [("y", models.F, ["N", 6])]))
    assert engine.spec.outputs[0].dims == (-1,)
    assert "output 'y' is declared as [-1, 6] but came out as [1, 64]" in engine.spec.warnings[0]
    batch = execute(engine.create_instance(0), FakeBatch([floats(2, 4)]))
    assert np.array_equal(batch.output(0, np.float32), floats(2, 4))


def test_a_failing_batch_is_an_error_and_the_next_batch_is_as_before(path: Path) -> None:
    instance = load(models.lookup(path, words=3, length=2)).create_instance(0)
    with pytest.raises(EngineError, match=r"Gather.*indices element out of data bounds, idx=7") as raised:
        execute(instance, FakeBatch([np.array([[1, 7]], np.int64)]))
    assert "ONNXRuntimeError" not in str(raised.value)
    batch = execute(instance, FakeBatch([np.array([[1, 2]], np.int64)]))
    assert batch.output(0, np.float32).tolist() == [[10.0, 20.0]]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_wrong_number_of_rows_fails_the_batch_and_names_the_output(path: Path, ahead: bool) -> None:
    engine = load(models.keeps_small_rows(path))
    assert (engine.spec.max_batch_size, engine.ahead) == (32, True)
    engine.ahead = ahead
    instance = engine.create_instance(0)
    batch = FakeBatch([floats(2, 4)], [floats(1, 4, 5000)])
    with pytest.raises(EngineError, match=r"output 'y' came out .*\[2, ?4\], expected"):
        execute(instance, batch)
    assert "complete" not in batch.calls
    good = execute(instance, FakeBatch([floats(3, 4)]))
    assert np.array_equal(good.output(0, np.float32), floats(3, 4))


def test_instances_run_at_the_same_time_on_one_session(path: Path) -> None:
    engine = load(models.affine(path), instances=4)
    failures: list[str] = []

    def work(index: int) -> None:
        instance = engine.create_instance(index)
        for number in range(200):
            x = floats(1 + number % 5, 16, index * 10000 + number)
            batch = execute(instance, FakeBatch([x]))
            if not np.array_equal(batch.output(0, np.float32), 2 * x + 1):
                failures.append(f"instance {index}, batch {number}")

    run_in_threads(work, 4)
    assert failures == []


def run_in_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_closed_engine_creates_no_instance(path: Path) -> None:
    engine = load(models.affine(path))
    instance = engine.create_instance(0)
    instance.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.create_instance(0)


def test_what_the_spec_says_beside_its_tensors(path: Path) -> None:
    engine = open_engine(models.affine(path), name="m", wanted=Wanted(max_batch_wait_us=70, instances=3))
    spec = engine.spec
    assert (spec.name, spec.version) == ("m", "1")
    assert (spec.platform, spec.backend) == ("onnxruntime_onnx", "onnxruntime")
    assert (spec.max_batch_wait_us, spec.instances) == (70, 3)


@pytest.mark.parametrize(
    ("said", "cleaned"),
    [
        ("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load\n failed.", "Load failed."),
        (
            "Error in execution: Non-zero status code returned while running Reshape node. Name:'r' Status "
            "Message: /onnxruntime_src/reshape_helper.h:47 onnxruntime::ReshapeHelper::ReshapeHelper(const "
            "onnxruntime::TensorShape&, bool) sizes differ",
            "running Reshape node. Name:'r' Status Message: sizes differ",
        ),
        ("", "RuntimeError"),
        ("x" * 1000, "x" * 397 + "..."),
    ],
)
def test_what_onnx_runtime_says_is_trimmed(said: str, cleaned: str) -> None:
    assert clean(RuntimeError(said)) == cleaned
