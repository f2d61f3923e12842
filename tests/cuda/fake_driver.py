"""The driver of the tests (fake/fake.h): built once, loaded in place of libcuda and libnvidia-ml."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from service.cuda.driver import check
from service.cuda.model import Place

HERE = Path(__file__).parent / "fake"
MAGIC = 0x46414B45
FLAGS = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-Bsymbolic"]
CUDA = ("state.c", "devices.c", "memory.c", "streams.c", "work.c")
LIBRARIES = {"libcuda.so.1": CUDA, "libnvidia-ml.so.1": ("nvml.c",)}


class FakeCompute(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("magic", "scratch", "scratch_bytes", "x", "y", "count")]


def build(folder: Path, *flags: str) -> None:
    """Both libraries. "-DFAKE_CUDA_12": as of CUDA 12.8. CalledProcessError, after what the compiler says."""
    for name, sources in LIBRARIES.items():
        target = [
            "-o",
            str(folder / name),
            f"-Wl,-soname,{name}",
            *(str(HERE / source) for source in sources),
        ]
        subprocess.run(["gcc", *FLAGS, *flags, *target, "-lpthread", "-ldl"], check=True)


def load(folder: Path) -> ctypes.CDLL:
    """Whoever opens these libraries by name from now on gets ours."""
    first, *rest = [ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL) for name in LIBRARIES]
    first.fake_violation.restype = ctypes.c_char_p
    first.fake_used.restype = first.fake_used_of.restype = ctypes.c_size_t
    first.fake_hold.argtypes = [ctypes.c_void_p, ctypes.c_int]
    first.fake_memory.argtypes = [ctypes.c_size_t]
    first.cuLaunchHostFunc.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return first


@cache
def driver() -> ctypes.CDLL:
    folder = Path(mkdtemp(prefix="headrace-fake-driver-"))
    build(folder)
    return load(folder)


def violations() -> list[str]:
    found = []
    while text := driver().fake_violation(len(found)):
        found.append(text.decode())
    return found


class HostCompute:
    """y = 2x + 1 on the stream's thread; it says which memory it uses, and the driver checks that."""

    def enqueue(self, stream: int, x: int, y: int, count: int, place: Place) -> None:
        scratch = (place.scratch, place.scratch_bytes) if place.scratch_bytes else (0, 0)
        what = FakeCompute(MAGIC, *scratch, x, y, count)
        function = ctypes.cast(driver().fake_affine, ctypes.c_void_p)
        check((driver().cuLaunchHostFunc(stream, function, ctypes.addressof(what)),), "launching")

    def close(self) -> None:
        pass
