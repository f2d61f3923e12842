"""TensorRT's names as the engine uses them, against real runtimes of TensorRT 10 and 11.

What the engine calls is read from its source: attributes of the expressions in OBJECTS. A lean runtime has
the same classes as the whole one, and imports on a machine without a driver; nothing of it is called, which
would end the process.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from service.engines import tensorrt, tensorrt_runtime

JUDGES = Path(sys.prefix) / "judges"
VERSIONS = ("tensorrt-10", "tensorrt-11")
OBJECTS = {  # what is TensorRT's in the engine's files, and of which class
    "engine": "ICudaEngine",
    "self.engine": "ICudaEngine",
    "self._model.engine": "ICudaEngine",
    "context": "IExecutionContext",
    "self._now": "IExecutionContext",
    "self._runtime": "Runtime",
    "registry": "IPluginRegistry",
    "here.trt": "",
    "known().trt": "",
    "self.trt": "",
    "trt": "",
    "tensorrt": "",
}
ASKED_BY_TENSORRT = {  # methods of ours that it calls, and bindings show
    "IGpuAsyncAllocator": ("allocate", "allocate_async", "reallocate", "deallocate", "deallocate_async"),
    "ILogger": ("log",),
}


def used() -> dict[str, set[str]]:
    """Attributes by class; those of the module under ""."""
    found: dict[str, set[str]] = {name: set(methods) for name, methods in ASKED_BY_TENSORRT.items()}
    for module in (tensorrt, tensorrt_runtime):
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(node, ast.Attribute) and (owner := ast.unparse(node.value)) in OBJECTS:
                found.setdefault(OBJECTS[owner], set()).add(node.attr)
    return found


def test_what_is_read_from_the_source_is_what_the_engine_needs() -> None:
    found = used()
    assert {"deserialize_cuda_engine", "gpu_allocator", "get_plugin_registry"} <= found["Runtime"]
    assert found["IPluginRegistry"] == {"load_library"}
    assert {"get_tensor_profile_shape", "create_execution_context"} <= found["ICudaEngine"]
    assert {"execute_async_v3", "set_input_shape", "set_device_memory"} <= found["IExecutionContext"]
    assert {"Runtime", "IOutputAllocator", "ExecutionContextAllocationStrategy"} <= found[""]


SCRIPT = """
import json, sys
import tensorrt_lean_bindings as trt
used = json.loads(sys.argv[1])
missing = [name for name in used.pop("") if not hasattr(trt, name)]
for owner, names in used.items():
    missing += [f"{owner}.{name}" for name in names if not hasattr(getattr(trt, owner), name)]
print(json.dumps([trt.__version__, missing]))
"""


def runtime(version: str) -> Path:
    folder = JUDGES / version
    if not folder.is_dir():
        pytest.skip(f"needs {version}, which `make judges` fetches")
    return folder


def run(folder: Path, *arguments: str, shim: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A process and its children have the runtime, and before everything what lies in `shim`."""
    libraries = str(folder / "tensorrt_lean_libs")
    here = [str(path) for path in (shim, folder, *sys.path) if path]
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        env={"LD_LIBRARY_PATH": libraries, "PYTHONPATH": ":".join(here), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_name_is_there(version: str) -> None:
    names = json.dumps({owner: sorted(found) for owner, found in used().items()})
    done = run(runtime(version), "-c", SCRIPT, names)
    assert done.returncode == 0, done.stderr
    at, missing = json.loads(done.stdout)
    assert at.split(".")[0] == version.rpartition("-")[2]
    assert missing == []


@pytest.mark.slow
@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a driver on this machine")
@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_driver_the_service_ends_with_a_sentence(version: str, tmp_path: Path) -> None:
    """With a real runtime as `tensorrt`, whose first use without a driver would be a segmentation fault."""
    folder = runtime(version)
    (tmp_path / "tensorrt.py").write_text("from tensorrt_lean_bindings import *\n")
    (tmp_path / "model.plan").write_bytes(b"plan")
    ports = ("--grpc-port", "0", "--metrics-port", "0")
    done = run(folder, "-m", "service", "serve", str(tmp_path / "model.plan"), *ports, shim=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "model 'model'" in done.stderr and "no NVIDIA driver" in done.stderr
    assert "Traceback" not in done.stderr
