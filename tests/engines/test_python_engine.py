"""The python engine on fastqueue's own batches: what a model gets, and what becomes of its answers."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from engine_fakes import FakeBatch
from python_rig import AFFINE, Rig, X, rows

from service.models.spec import DATATYPES, TensorSpec, numpy_dtype

NUMERIC = [name for name in DATATYPES if name not in ("BYTES", "BF16")]
IDENTITY = """
    class Model:
        def execute(self, inputs):
            return {"y": inputs["x"]}
"""


@pytest.mark.parametrize("sizes", [[1], [1] * 20, [3, 1, 2, 8, 1], [30], [1, 19, 1]])
def test_every_request_gets_its_own_rows(tmp_path: Path, sizes: list[int]) -> None:
    with Rig(tmp_path, AFFINE) as rig:
        sent = {rig.submit(x): x for x in (rows(count, 1000 * n) for n, count in enumerate(sizes))}
        batches = rig.run()
        assert sum(batches) == sum(sizes) and max(batches) <= 8
        answers = rig.answers()
        assert answers.keys() == sent.keys()
        for slot, x in sent.items():
            assert np.array_equal(answers[slot][0], 2 * x + 1)


def test_every_datatype_crosses_both_ways(tmp_path: Path) -> None:
    """One model with an input and an output of each, sent back as they came."""
    source = """
        class Model:
            def execute(self, inputs):
                return {name.replace("x", "y"): array for name, array in inputs.items()}
    """
    inputs = [TensorSpec(f"x{name}", name, (3,)) for name in NUMERIC]
    outputs = [TensorSpec(f"y{name}", name, (3,)) for name in NUMERIC]
    numbers = np.random.default_rng(5).integers(0, 256, (len(NUMERIC), 2, 3))
    arrays = [n.astype(numpy_dtype(name)) for n, name in zip(numbers, NUMERIC, strict=True)]
    with Rig(tmp_path, source, inputs, outputs) as rig:
        for sent, got in zip(arrays, rig.infer(*arrays), strict=True):
            assert got.dtype == sent.dtype and np.array_equal(got, sent)


def test_what_initialize_is_told(tmp_path: Path) -> None:
    source = """
        import json, os
        class Model:
            def initialize(self, config):
                with open(os.path.join(config["directory"], "told.json"), "w") as file:
                    json.dump(config, file)
            def execute(self, inputs):
                return {}
    """
    with Rig(tmp_path, source, instances=1, threshold="0.5"):
        assert json.loads((tmp_path / "told.json").read_text()) == {
            "name": "m",
            "version": "1",
            "parameters": {"threshold": "0.5"},
            "inputs": [{"name": "x", "datatype": "FP32", "dims": [4]}],
            "outputs": [{"name": "y", "datatype": "FP32", "dims": [4]}],
            "max_batch_size": 8,
            "directory": str(tmp_path),
        }


def test_a_batch_larger_than_any_before(tmp_path: Path) -> None:
    """Both memories grow; what the model kept of an earlier batch is still there to read."""
    source = """
        class Model:
            kept = []
            def execute(self, inputs):
                self.kept.append(inputs["x"])
                return {"y": inputs["x"] + sum(float(kept.size > 0) for kept in self.kept)}
    """
    tensor = TensorSpec("x", "FP32", (-1,)), TensorSpec("y", "FP32", (-1,))
    with Rig(tmp_path, source, tensor[:1], tensor[1:]) as rig:
        for count, width in enumerate((1, 5000, 300_000, 3), 1):
            x = rows(2, width=width)
            assert np.array_equal(rig.infer(x)[0], x + count)


def test_a_model_that_does_not_batch(tmp_path: Path) -> None:
    inputs, outputs = [TensorSpec("x", "FP32", (-1, 4))], [TensorSpec("y", "FP32", (-1, 4))]
    with Rig(tmp_path, AFFINE, inputs, outputs, max_batch_size=0) as rig:
        sent = {rig.submit(x): x for x in (rows(n, 10 * n) for n in (1, 4, 2, 0))}
        assert rig.run() == [1, 1, 1, 1]
        answers = rig.answers()
        for slot, x in sent.items():
            assert answers[slot][0].shape == x.shape and np.array_equal(answers[slot][0], 2 * x + 1)


def test_outputs_need_not_lie_in_one_piece(tmp_path: Path) -> None:
    source = """
        class Model:
            def execute(self, inputs):
                return {"b": inputs["x"][:, 0], "a": inputs["x"][:, ::-2]}
    """
    outputs = [TensorSpec("a", "FP32", (2,)), TensorSpec("b", "FP32", ())]
    with Rig(tmp_path, source, X, outputs) as rig:
        a, b = rig.infer(rows(3))
        assert a.tolist() == [[3, 1], [7, 5], [11, 9]] and b.tolist() == [0, 4, 8]


def test_a_model_may_write_into_its_inputs(tmp_path: Path) -> None:
    source = """
        class Model:
            def execute(self, inputs):
                inputs["x"] *= 2
                return {"y": inputs["x"]}
    """
    with Rig(tmp_path, source) as rig:
        x = rows(2)
        assert np.array_equal(rig.infer(x)[0], 2 * x)
        assert np.array_equal(x, rows(2))


def test_requests_without_rows(tmp_path: Path) -> None:
    """A model whose outputs are all of known size is not asked about nothing."""
    source = """
        class Model:
            def execute(self, inputs):
                assert len(inputs["x"])
                return {"y": inputs["x"]}
    """
    with Rig(tmp_path, source) as rig:
        assert rig.infer(rows(0))[0].shape == (0, 4)
        sent = [rows(2), rows(0), rows(3, 100)]
        slots = [rig.submit(x) for x in sent]
        assert rig.run() == [5]
        answers = rig.answers()
        assert all(np.array_equal(answers[slot][0], x) for slot, x in zip(slots, sent, strict=True))


def test_requests_without_rows_where_sizes_are_open(tmp_path: Path) -> None:
    outputs = [TensorSpec("y", "FP32", (-1,))]
    with Rig(tmp_path, IDENTITY, X, outputs) as rig:
        assert rig.infer(rows(0))[0].shape == (0, 4)
        assert rig.infer(rows(1))[0].shape == (1, 4)


def test_modules_beside_the_model(tmp_path: Path) -> None:
    """They are found, as when a script is run; and the model's folder gets nothing written into it."""
    (tmp_path / "beside.py").write_text("factor = 3\n")
    source = """
        import beside
        class Model:
            def execute(self, inputs):
                return {"y": inputs["x"] * beside.factor}
    """
    with Rig(tmp_path, source) as rig:
        assert np.array_equal(rig.infer(rows(1))[0], 3 * rows(1))
    assert sorted(os.listdir(tmp_path)) == ["beside.py", "model.py"]


def test_every_instance_has_a_process_of_its_own(tmp_path: Path) -> None:
    with Rig(tmp_path, AFFINE, instances=3) as rig:
        pids = {rig.pid(index) for index in range(3)}
        assert len(pids) == 3 and os.getpid() not in pids
        for instance in rig.instances:
            batch = FakeBatch([rows(2)])
            instance.execute(batch)
            assert np.array_equal(batch.output(0, np.float32), 2 * rows(2) + 1)


def test_what_a_model_prints_goes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = """
        import os, sys
        class Model:
            def execute(self, inputs):
                print("said by print")
                sys.stderr.write("said on stderr\\n")
                os.write(1, b"said by a library\\n")
                return {"y": inputs["x"]}
    """
    with Rig(tmp_path, source) as rig:
        rig.infer(rows(1))
        said = capfd.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["said by print", "said on stderr", "said by a library"]


def test_finalize_is_the_last_thing_a_model_does(tmp_path: Path) -> None:
    source = """
        import os
        class Model:
            batches = 0
            def initialize(self, config):
                self.directory = config["directory"]
            def execute(self, inputs):
                self.batches += 1
                return {"y": inputs["x"]}
            def finalize(self):
                with open(os.path.join(self.directory, "finalized"), "a") as file:
                    file.write(f"{self.batches} batches\\n")
    """
    with Rig(tmp_path, source) as rig:
        rig.infer(rows(1))
        rig.infer(rows(2))
        pid = rig.pid()
    assert (tmp_path / "finalized").read_text() == "2 batches\n"
    assert not os.path.exists(f"/proc/{pid}")


def test_the_lock_of_the_workers_interpreter_is_free_meanwhile(tmp_path: Path) -> None:
    """The model holds its own interpreter's lock, in C, until this process has run on."""
    source = """
        import ctypes, os
        class Model:
            def initialize(self, config):
                self.directory = config["directory"]
            def execute(self, inputs):
                fd = os.open(os.path.join(self.directory, "gate"), os.O_RDWR)
                ctypes.PyDLL(None).read(fd, ctypes.create_string_buffer(1), 1)
                os.close(fd)
                return {"y": inputs["x"]}
    """
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    with Rig(tmp_path, source) as rig:
        slot = rig.submit(rows(1))
        launcher = threading.Thread(target=rig.run)
        launcher.start()
        assert rig.lane.poll() is None  # this thread runs while the model holds its lock
        os.write(gate, b"x")
        launcher.join(60)
        assert np.array_equal(rig.answers()[slot][0], rows(1))
    os.close(gate)


def test_an_answer_is_exact_after_thousands_of_batches(tmp_path: Path) -> None:
    with Rig(tmp_path, AFFINE) as rig:
        for number in range(2000):
            x = rows(1 + number % 8, number)
            assert np.array_equal(rig.infer(x)[0], 2 * x + 1)
        assert rig.former.check() == 0


def test_a_model_loads_where_numpy_is_all_there_is(tmp_path: Path) -> None:
    """A child imports neither gRPC nor another engine: its memory is the model's."""
    source = """
        import sys
        import numpy as np
        class Model:
            def execute(self, inputs):
                heavy = {"grpc", "google.protobuf", "onnxruntime", "fastqueue"} & set(sys.modules)
                assert not heavy, heavy
                return {"y": inputs["x"]}
    """
    with Rig(tmp_path, source) as rig:
        rig.infer(rows(1))


def test_the_memory_of_a_batch_cannot_be_cut_off(tmp_path: Path) -> None:
    """Or a model could end the worker with one call: an access beyond the end of a file is a SIGBUS."""
    source = """
        import os
        class Model:
            def execute(self, inputs):
                refused = 0
                for fd in os.listdir("/proc/self/fd"):
                    try:
                        if "memfd:outputs" in os.readlink(f"/proc/self/fd/{fd}"):
                            os.ftruncate(int(fd), 0)
                    except PermissionError:
                        refused += 1
                    except OSError:
                        pass
                inputs["x"][:] = refused > 0
                return {"y": inputs["x"]}
    """
    with Rig(tmp_path, source) as rig:
        rig.infer(rows(1))
        assert rig.infer(rows(1))[0].tolist() == [[1, 1, 1, 1]]
