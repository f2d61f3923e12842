"""The client commands against the real service, in processes of its own: what they say must add up there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import trustme
from fake_server import Run
from onnx import TensorProto, helper, numpy_helper

from service.config import FRONTENDS
from service.demo.server import Server, running, started

UPPER = """
import numpy as np

class Model:
    def initialize(self, config): pass
    def execute(self, inputs):
        x = inputs["x"]
        y = np.empty(x.shape, object)
        y.ravel()[:] = [element.upper() for element in x.ravel()]
        return {"y": y}
    def finalize(self): pass
"""
UPPER_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "y" data_type: TYPE_STRING dims: [ -1 ] }
"""


def affine(path: Path) -> Path:
    """y = 2x + 1 on FP32 [-1, 4]."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["t"]), helper.make_node("Add", ["t", "one"], ["y"])],
        "affine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])],
        [numpy_helper.from_array(np.float32(2), "two"), numpy_helper.from_array(np.float32(1), "one")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = affine(tmp_path_factory.mktemp("model") / "anything.onnx")
    with running(model, "affine", ["--max-batch-size", "8"]) as server:
        yield server


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A repository with `upper`, which is written in Python."""
    repository = tmp_path_factory.mktemp("repository")
    (repository / "upper" / "1").mkdir(parents=True)
    (repository / "upper" / "config.pbtxt").write_text(UPPER_CONFIG)
    (repository / "upper" / "1" / "model.py").write_text(UPPER)
    with started([sys.executable, "-P", "-m", "service", "serve", str(repository)]) as server:
        yield server


def test_strings_go_through_a_model_and_come_back(run: Run, words: Server, tmp_path: Path) -> None:
    strings = [["a", "\udcff\udcfeb", ""]] + [[f"row {i}", "x" * i, "\0"] for i in range(10)]
    (tmp_path / "x.json").write_text(json.dumps(strings))
    result = run("infer", "upper", tmp_path / "x.json", "--url", words.url, "--json")
    assert result.exit_code == 0, result.output
    (output,) = json.loads(result.stdout)["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [11, 3])
    assert output["data"] == [element.upper() for row in strings for element in row]


def test_bench_sends_strings(run: Run, words: Server) -> None:
    flags = ["--url", words.url, "-n", 100, "-c", 8, "--shape", "x:3", "--json"]
    report = json.loads(run("bench", "upper", *flags).stdout)
    assert report["failures"] == {} and report["server"]["rows"] == 100


@pytest.fixture(params=FRONTENDS)
def mutual(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Path, list[str]]]:
    """A server that wants a certificate of its clients, its Unix-domain socket, and the flags of one."""
    if request.param == "native" and find_spec("service.frontend.native._native") is None:
        pytest.skip("needs the native front end: libnghttp2-dev, libssl-dev, zlib1g-dev at installation")
    ca = trustme.CA()
    own, client = ca.issue_cert("localhost", "127.0.0.1"), ca.issue_cert("client@example.org")
    root, cert, key = (str(tmp_path / name) for name in ("root", "cert", "key"))
    mine, my_key, path = (str(tmp_path / name) for name in ("mine", "my_key", "grpc.sock"))
    ca.cert_pem.write_to_path(root)
    own.cert_chain_pems[0].write_to_path(cert)
    own.private_key_pem.write_to_path(key)
    client.cert_chain_pems[0].write_to_path(mine)
    client.private_key_pem.write_to_path(my_key)
    flags = ["--grpc-use-ssl-mutual", "--grpc-server-cert", cert, "--grpc-server-key", key]
    flags += ["--grpc-root-cert", root, "--grpc-unix-socket", path, "--frontend", request.param]
    shown = ["--ssl-root-cert", root, "--ssl-client-cert", mine, "--ssl-client-key", my_key]
    with running(affine(tmp_path / "anything.onnx"), "affine", flags) as server:
        yield server, Path(path), shown


def test_mutual_tls_on_the_port_and_on_the_socket(
    run: Run, mutual: tuple[Server, Path, list[str]], tmp_path: Path
) -> None:
    server, path, flags = mutual
    (tmp_path / "x.json").write_text("[[1, 2, 3, 4]]")
    for url in (server.url, f"unix:{path}"):
        result = run("infer", "affine", tmp_path / "x.json", "--url", url, *flags)
        assert result.stdout.splitlines() == ["y  FP32  [1, 4]", "[[3. 5. 7. 9.]]"], result.output
        report = json.loads(
            run("bench", "affine", "--url", url, *flags, "-n", 4, "--stream", "--json").stdout
        )
        assert report["latency_us"]["count"] == 4
        for less, words in (([], "it may speak TLS"), (flags[:2], "--ssl-client-cert FILE and")):
            result = run("models", "--url", url, *less)
            assert result.exit_code == 1
            assert f"nothing answers at {url} (" in result.stderr and words in result.stderr


def test_models_lists_what_is_served(run: Run, real: Server) -> None:
    (row,) = json.loads(run("models", "--url", real.url, "--json").stdout)
    assert (row["model"], row["version"], row["state"], row["max_batch"]) == ("affine", "1", "READY", 8)
    assert row["inputs"] == ["x FP32 [-1, 4]"] and row["outputs"] == ["y FP32 [-1, 4]"]


@pytest.mark.parametrize("rows", [1, 8, 20], ids=["one", "full batch", "split and joined"])
def test_infer_prints_what_the_model_computes(run: Run, real: Server, tmp_path: Path, rows: int) -> None:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    np.save(tmp_path / "x.npy", x)
    (output,) = json.loads(run("infer", "affine", tmp_path / "x.npy", "--url", real.url, "--json").stdout)[
        "outputs"
    ]
    assert output["shape"] == [rows, 4] and output["data"] == (2 * x + 1).ravel().tolist()


def test_a_refusal_names_tensor_expected_and_got(run: Run, real: Server, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[[1, 2, 3]]")
    result = run("infer", "affine", tmp_path / "x.json", "--url", real.url)
    assert result.exit_code == 1
    assert "INVALID_ARGUMENT" in result.stderr and "'x'" in result.stderr and "[-1,4]" in result.stderr


@pytest.mark.parametrize("way", [[], ["--stream"]], ids=["unary", "stream"])
def test_bench_accounts_for_every_row(run: Run, real: Server, way: list[str]) -> None:
    result = run(
        "bench",
        "affine",
        "--url",
        real.url,
        "-n",
        400,
        "-c",
        32,
        "--rows",
        3,
        "--pid",
        real.pid,
        "--json",
        *way,
    )
    report = json.loads(result.stdout)
    assert report["failures"] == {} and report["latency_us"]["count"] == 400
    work = report["server"]
    assert (work["requests"], work["failed"], work["rows"]) == (400, 0, 1200)
    by_size = {int(size): count for size, count in work["by_size"].items()}
    assert sum(by_size.values()) == work["batches"]
    assert sum(size * count for size, count in by_size.items()) == 1200
    assert max(by_size) <= 8
    assert report["server_cpu_s"] > 0
