"""libFuzzer on the native front end, with ASan and UBSan: messages, frames, and calls out of order.

    HEADRACE_FUZZ_SECONDS   of each target, 60 unless said; `make fuzz-native` says 1800

The targets are fuzz/fuzz_*.c. What is found is written down in fuzz/found.txt.
"""

from __future__ import annotations

import base64
import os
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service._pb import inference as pb

SECONDS = int(os.environ.get("HEADRACE_FUZZ_SECONDS", "60"))
ROOT = Path(__file__).resolve().parents[2]
FUZZ = ROOT / "tests" / "frontend" / "fuzz"
FOLDERS = ["fastqueue/include", "service/codec", "service/frontend", "service/frontend/native"]
TARGETS = ["codec", "frames", "calls"]
FLAGS = ["-g", "-O1", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread",
         "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]  # fmt: skip
HEADERS, BLOCK, DATA, MESSAGE, END, RESET, WINDOW, SETTINGS, GOAWAY, PING, TURN, STEPS = range(12)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 300)]


def sources() -> list[str]:
    """Without native_thread.c, which the rig includes."""
    patterns = ["service/codec/*.c", "service/frontend/dispatch*.c", "service/frontend/native/*.c"]
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [str(path) for path in found if path.name != "native_thread.c"]


def can_fuzz(folder: Path) -> bool:
    program = "#include <nghttp2/nghttp2.h>\nint LLVMFuzzerTestOneInput(void) { return 0; }"
    command = ["clang", "-fsanitize=fuzzer,address", "-x", "c", "-", "-lnghttp2", "-o", str(folder / "empty")]
    if shutil.which("clang") is None:
        return False
    return subprocess.run(command, input=program, text=True, capture_output=True).returncode == 0


@pytest.fixture(scope="session")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """fuzzer(target): its program, compiled once."""
    folder = tmp_path_factory.mktemp("fuzzers")

    def build(target: str) -> Path:
        program = folder / target
        if program.exists():
            return program
        includes = [f"-I{ROOT / name}" for name in FOLDERS]
        files = [str(FUZZ / f"fuzz_{target}.c"), str(FUZZ / "fuzz_rig.c"), *sources()]
        command = [
            "clang",
            *FLAGS,
            *includes,
            *files,
            "-lnghttp2",
            "-lssl",
            "-lcrypto",
            "-lz",
            "-o",
            str(program),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return program

    if not can_fuzz(folder):
        pytest.skip("needs clang with libFuzzer (Debian: clang, libclang-rt-dev), and libnghttp2-dev")
    return build


# ---- where to begin: what is right ----


def messages() -> Iterator[bytes]:
    def request(model: str, **others) -> pb.ModelInferRequest:
        return pb.ModelInferRequest(model_name=model, id="7", **others)

    raw = request("f")
    raw.inputs.add(name="x", datatype="FP32", shape=(2, 4))
    raw.raw_input_contents.append(struct.pack("8f", *range(8)))
    raw.parameters["priority"].uint64_param = 2
    raw.parameters["timeout"].int64_param = 5000
    yield raw.SerializeToString()
    raw.outputs.add(name="y").parameters["classification"].int64_param = 2
    raw.parameters["headrace_unordered"].bool_param = True
    yield raw.SerializeToString()
    text = request("t", model_version="1")
    text.inputs.add(name="x", datatype="BYTES", shape=(2, 1)).contents.bytes_contents.extend([b"a", b"bcd"])
    yield text.SerializeToString()
    text.inputs[0].ClearField("contents")
    text.raw_input_contents.append(b"\1\0\0\0a\3\0\0\0bcd")
    yield text.SerializeToString()
    wide = request("w")
    wide.inputs.add(name="x", datatype="UINT8", shape=(3, 1)).contents.uint_contents.extend([1, 2, 3])
    yield wide.SerializeToString()
    unbatched = request("u")
    unbatched.inputs.add(name="x", datatype="INT64", shape=(3,)).contents.int64_contents.extend([-1, 2, 3])
    unbatched.inputs.add(name="z", datatype="INT32", shape=(2,)).contents.int_contents.extend([-1, 2])
    yield unbatched.SerializeToString()


def counted(data: bytes) -> bytes:
    return struct.pack("<H", len(data)) + data


def calls() -> Iterator[bytes]:
    """Steps of fuzz_calls.c: unary, streamed and Python calls, compressed ones, windows that are shut."""
    sent = list(messages())
    for path in range(3):
        begin = bytes([HEADERS, path, 0])
        for message in sent:
            yield begin + bytes([MESSAGE, 1]) + counted(message) + bytes([TURN, TURN])
        whole = b"".join(bytes([MESSAGE, 0]) + counted(message) for message in sent)
        yield begin + whole + bytes([TURN, END, TURN])
        yield begin + whole + bytes([RESET, TURN])
        shut = bytes([SETTINGS]) + counted(struct.pack(">HI", 4, 0))
        yield shut + begin + whole + bytes([TURN, END, WINDOW, 1, 255, 16, TURN, GOAWAY, TURN])
        packed = zlib.compress(sent[0])
        yield bytes([HEADERS, path, 4, MESSAGE, 129]) + counted(packed) + bytes([TURN])
        yield bytes([HEADERS, path, 8]) + whole + bytes([MESSAGE, 0, 1, 0, 255, TURN, END])


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def frames() -> Iterator[bytes]:
    for path in ("/inference.GRPCInferenceService/ModelInfer", "/t.T/Python"):
        headers = {":method": "POST", ":scheme": "http", ":path": path, "content-type": "application/grpc"}
        block = b"".join(
            b"\x40" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in headers.items()
        )
        for cut in (0, 1 | 20 << 2):
            for message in messages():
                body = struct.pack(">BI", 0, len(message)) + message
                yield bytes([cut]) + frame(1, 4, 1, block) + frame(0, 1, 1, body)


SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {"codec": messages, "frames": frames, "calls": calls}


@pytest.mark.parametrize("target", TARGETS)
def test_it_runs_clean(fuzzer: Callable[[str], Path], target: str, tmp_path: Path) -> None:
    seeds, corpus = tmp_path / "seeds", tmp_path / "corpus"
    seeds.mkdir()
    corpus.mkdir()
    for number, seed in enumerate(SEEDS[target]()):
        (seeds / str(number)).write_bytes(seed)
    # Its own limit on memory counts what this process ever had, which a child inherits; ASan's does not.
    limits = [f"-max_total_time={SECONDS}", "-max_len=8192", "-timeout=20", "-rss_limit_mb=0"]
    environment = {**os.environ, "ASAN_OPTIONS": "hard_rss_limit_mb=2048"}
    command = [str(fuzzer(target)), *limits, f"-artifact_prefix={tmp_path}/", str(corpus), str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    assert done.returncode == 0, done.stderr[-8000:]


@pytest.mark.parametrize("target", TARGETS)
def test_what_was_found_stays_mended(fuzzer: Callable[[str], Path], target: str, tmp_path: Path) -> None:
    lines = [line.split() for line in (FUZZ / "found.txt").read_text().splitlines() if line[0] != "#"]
    inputs = [base64.b64decode(line[1]) for line in lines if line[0] == target]
    for number, data in enumerate(inputs):
        (tmp_path / str(number)).write_bytes(data)
        command = [str(fuzzer(target)), str(tmp_path / str(number))]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stderr[-8000:]
