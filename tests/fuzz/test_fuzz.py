"""What comes from outside and is nearly right, against real processes: no crash, no hang, no refusal without
words, and good requests in between get their answers.

    HEADRACE_FUZZ_SECONDS   how long all of them go on together, 60 unless said; `make fuzz` says 600
    HEADRACE_FUZZ_SEED      where the random numbers begin; every failure names it, and the case's number

A case is made from the seed and its number alone, so one that failed is seen again with the same seed. They
end by time and by count.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import grpc
import mutations
import numpy as np
import psutil
import pytest
from mutations import Requests

from service._pb import inference as pb
from service.config import FRONTENDS
from service.demo.server import Server, started

pytest.importorskip("onnx")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SECONDS = float(os.environ.get("HEADRACE_FUZZ_SECONDS", "60"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "1"))
MOST_CASES = 500_000
LIMIT_S = 60.0  # of one call, or of one load
SERVICE = "/inference.GRPCInferenceService/"
REFUSALS = {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED",
            "FAILED_PRECONDITION"}  # fmt: skip
OTHER_CALLS = [
    method.name
    for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    if method.name not in ("ModelInfer", "ModelStreamInfer")
]
# Triton's own codes for what is no defect: control where the start says what is loaded; a load that fails.
OF_CONTROL = (
    ("UNAVAILABLE", "explicit model load / unload is not allowed"),
    ("INTERNAL", "failed to load '"),
)
DEFECT = re.compile(r"Traceback|\b[A-Z]\w+(Error|Exception)\b|<class|0x[0-9a-f]{8}")
X = np.arange(4, dtype=np.float32).reshape(1, 4)


def cases(share: float) -> Iterator[int]:
    """Numbers, until the share of the time is over."""
    end = time.monotonic() + SECONDS * share
    for number in range(MOST_CASES):
        if time.monotonic() >= end:
            return
        yield number


def name(number: int) -> str:
    return f"HEADRACE_FUZZ_SEED={SEED}, case {number}"


def put_model(folder: Path) -> Path:
    """The model `plus`: y = x + 1 over FP32 [N, 4]. Its file."""
    from onnx import TensorProto, helper, numpy_helper

    x, y = (helper.make_tensor_value_info(side, TensorProto.FLOAT, ["N", 4]) for side in "xy")
    one = numpy_helper.from_array(np.float32(1), "one")
    graph = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "plus", [x], [y], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "plus" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(model.SerializeToString())
    return path


# ---- requests ----


class Client:
    """Sends what is made, and judges what comes back."""

    def __init__(self, server: Server) -> None:
        self.channel = grpc.insecure_channel(server.url, [("grpc.enable_http_proxy", 0)])
        self.supervisor = psutil.Process(server.pid)
        self.pids = self.processes()
        self.outcomes: Counter[str] = Counter()

    def processes(self) -> set[int]:
        return {process.pid for process in [self.supervisor, *self.supervisor.children(recursive=True)]}

    def unary(self, method: str, data: bytes) -> None:
        try:
            self.channel.unary_unary(SERVICE + method)(data, timeout=LIMIT_S)
        except grpc.RpcError as error:
            self._judge(error.code().name, error.details() or "")
        else:
            self.outcomes["OK"] += 1

    def stream(self, messages: list[bytes]) -> None:
        call = self.channel.stream_stream(f"{SERVICE}ModelStreamInfer")(iter(messages), timeout=LIMIT_S)
        try:
            for data in call:
                answer = pb.ModelStreamInferResponse.FromString(data)
                self.outcomes["answers on streams"] += 1
                assert not DEFECT.search(answer.error_message), answer.error_message
        except grpc.RpcError as error:
            self._judge(error.code().name, error.details() or "")

    def _judge(self, code: str, words: str) -> None:
        self.outcomes[code] += 1
        control = any(code == told and words.startswith(begin) for told, begin in OF_CONTROL)
        assert code in REFUSALS or control, f"{code}: {words}"
        assert words != "Deadline Exceeded", "no answer came"  # gRPC's own words, of this side
        assert len(words) > 10 and not DEFECT.search(words), f"{code}: {words!r}"

    def check_service(self) -> None:
        """Everybody lives, and a good request gets its answer."""
        request = pb.ModelInferRequest(model_name="plus", raw_input_contents=[X.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=X.shape)
        data = self.channel.unary_unary(f"{SERVICE}ModelInfer")(request.SerializeToString(), timeout=LIMIT_S)
        answer = pb.ModelInferResponse.FromString(data)
        assert answer.raw_output_contents[0] == (X + 1).tobytes()
        assert self.processes() == self.pids, "a process ended"


def one_case(client: Client, random: Random) -> None:
    requests = Requests(random)
    kind = random.random()
    if kind < 0.6:
        client.unary("ModelInfer", requests.infer())
    elif kind < 0.8:
        method = random.choice(OTHER_CALLS)
        client.unary(method, requests.control(method))
    else:
        client.stream([requests.infer() for _ in range(random.randint(0, 6))])


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_requests(tmp_path: Path, frontend: str) -> None:
    if frontend == "native":
        pytest.importorskip("service.frontend.native._native")
    put_model(tmp_path)
    command = [sys.executable, "-P", "-m", "service", "serve", str(tmp_path), "--frontend", frontend]
    with started(command) as server:
        client = Client(server)
        number = -1
        for number in cases(0.25):
            try:
                one_case(client, Random(f"{SEED} request {number}"))
                if number % 20 == 0:
                    client.check_service()
            except (AssertionError, grpc.RpcError) as error:
                raise AssertionError(f"{name(number)}: {error}") from error
        client.check_service()
        print(f"{number + 1} cases of requests: {dict(client.outcomes)}")
        assert number >= 0
        client.channel.close()


# ---- what is loaded ----


class Loader:
    """The process that loads, started again when it has died."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._start()

    def _start(self) -> None:
        self.log = tempfile.TemporaryFile()
        command = [sys.executable, "-P", str(Path(__file__).parent / "loader.py")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log
        )

    def load(self, folder: Path) -> str:
        """What the repository is refused with. AssertionError when nothing comes, or the process dies."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{folder}\n".encode())
        self.process.stdin.flush()
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            assert ready.select(LIMIT_S), "the load did not end"
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.log.seek(0)
            said = self.log.read()[-1500:].decode(errors="replace")
            raise AssertionError(f"the process died with {code}: {said}")
        words = json.loads(line)
        self.outcomes["refused" if words else "loaded"] += 1
        assert not words or (len(words) > 20 and not DEFECT.search(words)), words
        return str(words)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


@pytest.fixture
def loader() -> Iterator[Loader]:
    loader = Loader()
    yield loader
    loader.close()


def fuzz_loads(loader: Loader, path: Path, what: str, make, keep: Path) -> None:
    good = path.read_bytes() if path.exists() else b""
    number = -1
    for number in cases(0.25):
        data = make(Random(f"{SEED} {what} {number}"))
        path.write_bytes(data)
        try:
            loader.load(keep)
        except AssertionError as error:
            raise AssertionError(f"{name(number)}: {error}\n{data!r}") from error
    path.write_bytes(good)
    assert loader.load(keep) == ""
    print(f"{number + 1} cases of {what}: {dict(loader.outcomes)}")
    assert number >= 0


def test_configs(tmp_path: Path, loader: Loader) -> None:
    put_model(tmp_path)
    fuzz_loads(loader, tmp_path / "plus" / "config.pbtxt", "configs", mutations.config, tmp_path)


def test_model_files(tmp_path: Path, loader: Loader) -> None:
    path = put_model(tmp_path)
    whole = path.read_bytes()

    def make(random: Random) -> bytes:
        return mutations.model_file(random, whole)

    fuzz_loads(loader, path, "model files", make, tmp_path)
