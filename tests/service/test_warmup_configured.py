"""`model_warmup` of a config: what it names runs on every instance before the model is ready."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import triton_repository as repositories
from scripted import ScriptedEngine, model_spec, tensor

from service.config import ServeConfig
from service.engines.base import EngineError
from service.errors import StartError
from service.models.modelconfig import Defaults, parse, wanted_from
from service.models.spec import ModelSpec, TensorSpec
from service.worker import __main__ as worker_main
from service.worker import warmup
from service.worker.configured import MOST_BYTES, MOST_RUNS, configured_warm_ups

X = [tensor("x", "FP32", 4)]


def entry(numbers: str, *inputs: str) -> str:
    """An entry of model_warmup; an input is "name: its fields"."""
    parts = [f"inputs {{ key: '{key}' value {{ {fields} }} }}" for key, _, fields in
             (text.partition(": ") for text in inputs)]  # fmt: skip
    return f"model_warmup {{ name: 'w' {numbers} {' '.join(parts)} }}"


def spec_with(text: str, inputs=X, **settings) -> ModelSpec:
    said = wanted_from(parse(text.encode()), Defaults())
    return model_spec("m", inputs, [tensor("y", "FP32", -1)], config_json=said.config_json, **settings)


def test_it_runs_as_often_as_it_says_on_every_instance_after_the_rest():
    text = entry("batch_size: 3 count: 2", "x: data_type: TYPE_FP32 dims: [ 4 ] zero_data: true")
    engine = ScriptedEngine(spec_with(text, max_batch_size=8, instances=2, batch_sizes=(8,)), lambda x: [x])
    engine.sample = (np.ones((1, 4), np.float32),)
    warmup.start_instances(engine)
    assert sorted(engine.batches) == [3, 3, 3, 3, 8, 8]


def test_a_model_without_a_sample_runs_what_its_config_says_and_nothing_else():
    seen = []

    def compute(x):
        seen.append(x)
        return [x]

    text = entry("batch_size: 2", "x: data_type: TYPE_FP32 dims: [ 4 ] random_data: true")
    warmup.start_instances(ScriptedEngine(spec_with(text, max_batch_size=8), compute))
    (batch,) = seen
    assert batch.shape == (2, 4) and np.array_equal(batch[0], batch[1])
    assert len(set(batch[0])) == 4 and 0 <= batch.min() <= batch.max() < 1


def test_a_batch_size_of_0_is_left_out():
    assert configured_warm_ups(spec_with(entry("count: 3"), max_batch_size=8)) == []


@pytest.mark.parametrize(
    ("datatype", "config", "zeros", "randoms"),
    [
        ("FP32", "TYPE_FP32", {0.0}, None),
        ("INT64", "TYPE_INT64", {0}, {0, 1}),
        ("BOOL", "TYPE_BOOL", {False}, {False, True}),
        ("BYTES", "TYPE_STRING", {b""}, {b"0", b"1"}),
        ("BF16", "TYPE_BF16", {0}, None),
    ],
)
def test_values_by_datatype(datatype: str, config: str, zeros: set, randoms: set | None):
    for kind, expected in (("zero_data", zeros), ("random_data", randoms)):
        text = entry("batch_size: 1", f"x: data_type: {config} dims: [ 64, 2 ] {kind}: true")
        (made,) = configured_warm_ups(spec_with(text, [tensor("x", datatype, -1, 2)], max_batch_size=8))
        assert (made.size, made.count, made.rows[0].shape) == (1, 1, (1, 64, 2))
        if expected is not None:
            assert set(made.rows[0].flat) == expected
    assert randoms is not None or len(set(made.rows[0].flat)) > 10


def test_bfloat16_comes_as_its_bits():
    text = entry("batch_size: 1", "x: data_type: TYPE_BF16 dims: [ 64 ] random_data: true")
    (made,) = configured_warm_ups(spec_with(text, [tensor("x", "BF16", 64)], max_batch_size=8))
    numbers = (made.rows[0].astype(np.uint32) << 16).view(np.float32)
    assert 0 <= numbers.min() < numbers.max() < 1


def test_inputs_come_in_the_models_order_and_form():
    inputs = [tensor("a", "FP32", 3), TensorSpec("b", "INT32", (1, -1), reshape=(-1,))]
    text = entry("batch_size: 1", "b: data_type: TYPE_INT32 dims: [ 1, 5 ] zero_data: true",
                 "a: data_type: TYPE_FP32 dims: [ 3 ] zero_data: true")  # fmt: skip
    for most, shapes in ((8, [(1, 3), (1, 5)]), (0, [(3,), (5,)])):
        (made,) = configured_warm_ups(spec_with(text, inputs, max_batch_size=most))
        assert [array.shape for array in made.rows] == shapes


GOOD = "x: data_type: TYPE_FP32 dims: [ 4 ] zero_data: true"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (entry("batch_size: 1"), "has the inputs []; expected every input of the model: ['x']"),
        (entry("batch_size: 1", GOOD, GOOD.replace("x", "z", 1)), "has the inputs ['x', 'z']"),
        (entry("batch_size: 9", GOOD), "has batch_size 9; expected at most 8, for max_batch_size 8"),
        (entry(f"batch_size: 1 count: {MOST_RUNS + 1}", GOOD), f"expected at most {MOST_RUNS}"),
        (entry("batch_size: 1", GOOD.replace("FP32", "INT8")), "data_type TYPE_INT8; expected TYPE_FP32"),
        (entry("batch_size: 1", GOOD.replace("data_type: TYPE_FP32", "")), "data_type TYPE_INVALID"),
        (entry("batch_size: 1", GOOD.replace("4", "5")), "input 'x' with dims [5]; expected sizes for [4]"),
        (entry("batch_size: 1", GOOD.replace("4", "4, 1")), "dims [4, 1]"),
        (entry("batch_size: 1", GOOD.replace("4", "-1")), "dims [-1]"),
        (entry("batch_size: 1", GOOD.replace("true", "false")), "zero_data: true or random_data: true"),
        (entry("batch_size: 1", GOOD.partition(" zero")[0]), "no data"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_model_keeps_it_from_being_served(text: str, words: str):
    engine = ScriptedEngine(spec_with(text, max_batch_size=8), lambda x: [x])
    with pytest.raises(StartError) as caught:
        warmup.start_instances(engine)
    assert "model 'm' version 1 cannot be served: model_warmup 'w' " in str(caught.value)
    assert words in str(caught.value)
    assert engine.batches == []


def test_a_model_that_does_not_batch_runs_one_request():
    with pytest.raises(StartError, match="expected at most 1, for a model that does not batch"):
        configured_warm_ups(spec_with(entry("batch_size: 2", GOOD), max_batch_size=0))


def test_its_inputs_are_no_larger_than_an_input_arena():
    text = entry("batch_size: 8", f"x: data_type: TYPE_FP32 dims: [ {MOST_BYTES // 32 + 1} ] zero_data: true")
    with pytest.raises(StartError, match=f"expected at most {MOST_BYTES}"):
        configured_warm_ups(spec_with(text, [tensor("x", "FP32", -1)], max_batch_size=8))


def test_what_fails_names_the_entry():
    def compute(x):
        raise EngineError("no zeros")

    engine = ScriptedEngine(spec_with(entry("batch_size: 2", GOOD), max_batch_size=8), compute)
    with pytest.raises(
        StartError, match="its warm-up by model_warmup 'w' failed on a batch of 2 rows .* no zeros"
    ):
        warmup.start_instances(engine)


PYTHON = """
import os
class Model:
    def initialize(self, config):
        self.directory = config["directory"]
    def execute(self, inputs):
        with open(os.path.join(self.directory, "ran"), "a") as log:
            log.write(f"{inputs['x'].shape} {inputs['x'].sum()}\\n")
        return {"y": inputs["x"]}
"""


def start(folder: Path) -> None:
    (engine,) = worker_main.open_engines(ServeConfig((str(folder),)))
    try:
        for instance in warmup.start_instances(engine):
            instance.close()
    finally:
        engine.close()


def test_a_python_model_runs_it(tmp_path: Path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text(PYTHON)
    tensors = "[ { name: '%s' data_type: TYPE_FP32 dims: [ 4 ] } ]"
    (tmp_path / "m" / "config.pbtxt").write_text(
        f"backend: 'python' max_batch_size: 4 input {tensors % 'x'} output {tensors % 'y'} "
        + entry("batch_size: 3 count: 2", GOOD)
    )
    start(tmp_path)
    assert (tmp_path / "m" / "1" / "ran").read_text() == "(3, 4) 0.0\n" * 2


def test_an_onnx_model_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = "max_batch_size: 2 " + entry("batch_size: 2 count: 3", GOOD.replace("zero", "random"))
    repositories.put(tmp_path, "plus", {1: 1.0}, config)
    executed = []
    run = warmup._run

    def watched(spec, index, instance, rows, size, source="") -> None:
        run(spec, index, instance, rows, size, source)
        executed.append((size, source))

    monkeypatch.setattr(warmup, "_run", watched)
    start(tmp_path)
    assert executed == [(2, ""), (1, "")] + [(2, " by model_warmup 'w'")] * 3
