"""``headrace doctor``: what it finds here, and what it says where something is not as it should be."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from fake_server import FakeServer, Run

from service import __version__, installation
from service.cli import doctor, machine
from service.config import ServeConfig
from service.inprocess import running

NATIVE = find_spec("service.frontend.native._native") is not None


@pytest.fixture(autouse=True)
def free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults of this machine may be taken: port 0 never is."""
    monkeypatch.setattr(doctor, "default_ports", lambda: {"--grpc-port": 0, "--metrics-port": 0})


def text_of(found: list[doctor.Finding]) -> str:
    return "\n".join(doctor.lines(found, True))


def test_a_machine_that_serves_is_exit_code_0_and_a_line_each(run: Run) -> None:
    result = run("doctor")
    assert result.exit_code == 0, result.output
    *found, empty, end = result.stdout.splitlines()
    assert (empty, end) == ("", "Serving would work.")
    assert all(line.startswith(("ok     ", "note   ")) for line in found)
    subjects = ["headrace", "python", "front end", "engine onnxruntime", "engine python"]
    subjects += [
        "engine tensorrt",
        "engine torch",
        "gpu",
        "shared memory",
        "memory",
        "descriptors",
        "locked memory",
        "ports",
        "cpu",
    ]
    assert [line[7:25].strip() for line in found] == subjects
    assert __version__ in found[0] and sys.executable in found[1]
    assert "\x1b" not in result.stdout


def test_json_says_the_same(run: Run) -> None:
    told = json.loads(run("doctor", "--json").stdout)
    assert told["works"] is True
    assert told["findings"][0] == {"subject": "headrace", "state": "ok", "text": __version__}


@pytest.mark.skipif(not NATIVE, reason="needs the native front end: libnghttp2-dev, libssl-dev, zlib1g-dev")
def test_the_native_front_end_is_named_with_its_libraries() -> None:
    (finding,) = doctor.front_end()
    assert finding.state == "ok"
    assert finding.text.startswith(f"{ServeConfig(()).frontend} is taken; native is there (libnghttp2 1.")
    assert "OpenSSL 3." in finding.text


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installation without the native front end."""
    monkeypatch.setattr(installation, "PACKAGE", tmp_path)
    return tmp_path


def test_why_the_native_front_end_is_missing_is_what_the_build_left(package: Path) -> None:
    (package / "native_missing.txt").write_text("it was left out, for want of zlib.h\n")
    (finding,) = doctor.front_end()
    assert finding.state == "note"
    assert finding.text == "grpcio; the native one is not there: it was left out, for want of zlib.h"
    assert installation.default_frontend() == "grpcio"


def test_a_native_front_end_that_cannot_be_loaded_says_so(package: Path) -> None:
    folder = package / "frontend" / "native"
    folder.mkdir(parents=True)
    suffix = Path(installation.EXTENSION_SUFFIXES[0])
    (folder / f"_native{suffix}").write_bytes(b"no library")
    (finding,) = doctor.front_end()
    assert finding.state == "note" and "it cannot be loaded (" in finding.text
    assert installation.default_frontend() == "grpcio"


def test_a_port_that_is_taken_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen(1)
        port = busy.getsockname()[1]
        monkeypatch.setattr(doctor, "default_ports", lambda: {"--grpc-port": port, "--metrics-port": 0})
        result = run("doctor")
    assert result.exit_code == 1
    why = f"cannot listen on 127.0.0.1 port {port}: Address already in use; --grpc-port chooses another port"
    assert "wrong  ports " in result.stdout and why in result.stdout
    assert result.stdout.endswith("Serving would not work with its defaults: see what is wrong above.\n")


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("headrace", ["--grpc-port", "--metrics-port"]),
        ("another", ["--grpc-port", "--metrics-port"]),
        ("headrace", ["--grpc-port"]),
        ("headrace", ["--metrics-port"]),
    ],
)
def test_a_headrace_that_runs_is_told_from_what_is_wrong(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, flags: list[str]
) -> None:
    config = ServeConfig(
        (),
        grpc_port=0,
        metrics_port=0,
        arena_mb=16,
        output_arena_mb=16,
        server_name=name,
        model_control_mode="explicit",
    )
    with running([], config) as service:
        ports = {"--grpc-port": service.grpc_port, "--metrics-port": service.metrics_port}
        wanted = {flag: port if flag in flags else 0 for flag, port in ports.items()}
        monkeypatch.setattr(doctor, "default_ports", lambda: wanted)
        result = run("doctor")
    assert result.exit_code == 0, result.output
    has = " and ".join(str(wanted[flag]) for flag in flags)
    text = f"a Headrace runs here and has {has} of 127.0.0.1; another one needs {' and '.join(flags)}\n"
    assert text in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if "ports" in line]
    assert line.startswith("note   ports ") and "wrong" not in result.stdout


def test_another_server_of_the_protocol_is_no_headrace(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(server.url.rpartition(":")[2])
    monkeypatch.setattr(doctor, "default_ports", lambda: {"--grpc-port": port, "--metrics-port": 0})
    (finding,) = doctor.ports()
    assert (finding.subject, finding.state) == ("ports", "wrong")


def test_an_engine_that_crashes_costs_its_line_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    found = doctor.engines()
    assert (found[0].subject, found[0].state) == ("engine onnxruntime", "wrong")
    assert "signal SIGABRT" in found[0].text and "pip install" in found[0].text
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libfoo.so.1: no such file')\n")
    assert "ImportError: libfoo.so.1: no such file" in doctor.engines()[0].text


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine of files."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    put(tmp_path / "proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    4194304 kB\n")
    yield tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_container_has_less_than_its_machine(root: Path) -> None:
    assert machine.memory_limit() == (4096, "available in this machine")
    assert machine.cpu_quota() is None
    put(root / "proc/self/cgroup", "0::/a/b\n")
    put(root / "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    put(root / "sys/fs/cgroup/a/b/memory.max", "max\n")
    assert machine.cpu_quota() is None
    put(root / "sys/fs/cgroup/a/cpu.max", "150000 100000\n")
    put(root / "sys/fs/cgroup/a/memory.max", f"{256 << 20}\n")
    assert machine.cpu_quota() == 1.5
    assert machine.memory_limit() == (256, "the limit of a control group")
    assert [finding.state for finding in doctor.memory()] == ["ok", "note"]


def test_the_old_hierarchies_of_control_groups_are_read_too(root: Path) -> None:
    put(root / "proc/self/cgroup", "4:memory:/x\n1:cpu,cpuacct:/x\n0::/\n")
    put(root / "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "50000\n")
    put(root / "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n")
    put(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{1 << 30}\n")
    assert machine.cpu_quota() == 0.5
    assert machine.memory_limit() == (1024, "the limit of a control group")
    assert doctor.processors()[0].state == "note"


def test_a_driver_that_cannot_be_used_is_noted_with_the_reason(root: Path) -> None:
    assert doctor.gpu() == [doctor.Finding("gpu", "ok", "no NVIDIA driver; models run on the CPU")]
    words = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\nGCC version: gcc 12.2.0\n"
    put(root / "proc/driver/nvidia/version", words)
    put(root / "proc/driver/nvidia/gpus/0000:01:00.0/information", "")
    (finding,) = doctor.gpu()
    if finding.state == "note":  # this machine has no GPU: its libcuda is missing
        assert finding.text.startswith("NVIDIA driver 550.54.15 with 1 device, which cannot be used: ")
        assert "pip install" in finding.text or "libcuda.so.1 was not found" in finding.text
    else:
        assert "cuda:0 NVIDIA" in finding.text


def test_an_engine_that_is_not_there_says_how_to_have_it(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL", (("tensorrtless", "plans on a GPU"), ("numpy", "arrays")))
    missing, there = doctor.engines()[2:]
    assert missing.text == "not installed; it serves plans on a GPU: pip install 'headrace[tensorrtless]'"
    assert (missing.state, there.state) == ("ok", "ok")
    assert there.text == f"{version('numpy')}; serves arrays"


def test_few_descriptors_are_noted() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))\n"
        "from service.cli import doctor; print(doctor.limits()[0])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert "state='note'" in done.stdout and "300, and 300 when serving: 150 clients" in done.stdout
