"""What is known without TensorRT and without a driver: what it said last, and who answers for it then."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.engines import tensorrt_runtime
from service.engines.base import ModelLoadError
from service.engines.tensorrt_runtime import KEPT_LINES, Words


def test_what_was_said_last_is_told_once():
    words = Words()
    for number in range(KEPT_LINES + 1):
        words.add(f"line\n  {number}")
    assert words.last() == "; ".join(f"line {number}" for number in range(1, KEPT_LINES + 1))
    assert words.last() == "it does not say why"


def test_what_another_thread_was_told_is_not_mixed_in():
    words = Words()
    other = threading.Thread(target=words.add, args=("elsewhere",))
    other.start()
    other.join()
    assert words.last() == "it does not say why"


def test_without_a_driver_a_plan_is_refused_with_a_sentence_and_tensorrt_is_not_touched(tmp_path):
    """In a process of its own, where a `tensorrt` that ends the process stands for the real one."""
    (tmp_path / "tensorrt.py").write_text("import os\nos.abort()\n")
    (tmp_path / "model.plan").write_bytes(b"plan")
    script = tmp_path / "script.py"
    script.write_text(
        "import ctypes, sys\n"
        "from service.engines.base import ModelLoadError, open_engine\n"
        "try:\n"
        f"    open_engine({str(tmp_path / 'model.plan')!r}, name='m')\n"
        "except ModelLoadError as error:\n"
        "    print(error)\n"
        "    sys.exit(7)\n"
    )
    path = [str(tmp_path), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-P", str(script)],
        env={"PYTHONPATH": ":".join(path), "CUDA_VISIBLE_DEVICES": "", "LD_PRELOAD": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 7, done.stderr
    assert "model 'm'" in done.stdout and "was not loaded" in done.stdout
    assert "driver" in done.stdout


class Registry:
    """Takes every library but bad.so."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def load_library(self, path: str) -> object | None:
        self.loaded.append(Path(path).name)
        return None if path.endswith("bad.so") else object()


def test_plugin_libraries_are_loaded_in_their_order_and_a_failure_is_told(tmp_path, monkeypatch):
    registry, words, told = Registry(), Words(), []
    trt = SimpleNamespace(
        __version__="10.6.0",
        ExecutionContextAllocationStrategy=None,
        IGpuAsyncAllocator=type("IGpuAsyncAllocator", (), {}),
        Runtime=lambda log: SimpleNamespace(get_plugin_registry=lambda: registry),
        init_libnvinfer_plugins=lambda log, namespace: told.append(namespace),
    )
    stand_in = SimpleNamespace(trt=trt, words=words, log=None)
    monkeypatch.setattr(tensorrt_runtime, "known", lambda: stand_in)
    runtime = tensorrt_runtime.Runtime(None)
    paths = [str(tmp_path / name) for name in ("b.so", "a.so", "bad.so")]
    for path in paths:
        Path(path).touch()
    runtime.load_plugins(paths[:2], "model 'm'")
    assert (registry.loaded, told) == (["b.so", "a.so"], [""])
    with pytest.raises(ModelLoadError, match=r"'m': plugin library .*bad.so was not loaded: it does"):
        runtime.load_plugins(paths, "model 'm'")
    missing = str(tmp_path / "missing.so")
    with pytest.raises(ModelLoadError, match="needs the plugin library .*missing.so, which is not there"):
        runtime.load_plugins([missing], "model 'm'")
