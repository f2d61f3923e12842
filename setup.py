"""Builds what cannot be written down in pyproject.toml: the C extensions and the protobuf messages.

Switches, all from the environment: FQ_DEBUG=1 (counters and assertions), FQ_SANITIZE=1 (ASan and UBSan),
FQ_WERROR=1 (a compiler warning is an error).
Generated files go to the build directory, never beside the sources.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from glob import glob
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

INCLUDES = ["fastqueue/include", "service/codec", "service/frontend", "service/frontend/native"]
NATIVE = "service/frontend/native/_native.pyx"
EXTENSIONS = {  # the Cython file: the C files that are compiled into the same module
    **{pyx: [] for pyx in sorted(glob("fastqueue/*.pyx"))},
    "service/codec/_codec.pyx": ["service/codec/*.c"],
    "service/frontend/_dispatch.pyx": ["service/codec/*.c", "service/frontend/dispatch*.c"],
    NATIVE: [
        "service/codec/*.c",
        "service/frontend/dispatch*.c",
        "service/frontend/native/*.c",
    ],
}
LIBRARIES = {NATIVE: ["nghttp2", "z"]}


def compiler_flags() -> tuple[list[str], list[str]]:
    on = [name for name in ("DEBUG", "SANITIZE", "WERROR") if os.getenv(f"FQ_{name}", "0") not in ("", "0")]
    sanitize = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"] if "SANITIZE" in on else []
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-g", *sanitize]
    flags += ["-Og", "-DFQ_DEBUG=1", "-UNDEBUG"] if "DEBUG" in on else ["-O2"]
    return flags + (["-Werror"] if "WERROR" in on else []), sanitize


def extension(pyx: str, patterns: list[str]) -> Extension:
    flags, link = compiler_flags()
    sources = [pyx, *sorted({path for pattern in patterns for path in glob(pattern)})]
    headers = sorted(path for folder in INCLUDES for path in glob(f"{folder}/*.h"))
    name = pyx.removesuffix(".pyx").replace("/", ".")
    return Extension(
        name,
        sources,
        INCLUDES,
        libraries=LIBRARIES.get(pyx, []),
        extra_compile_args=flags,
        extra_link_args=link,
        depends=headers,
    )


class BuildPyWithMessages(build_py):
    """Adds to service/_pb the descriptor set, a type stub for each .proto file, and the .proto files."""

    def run(self) -> None:
        super().run()
        target = Path("." if self.editable_mode else self.build_lib, "service", "_pb")
        (target / "proto").mkdir(parents=True, exist_ok=True)
        protos = sorted(glob("proto/*.proto"))
        compile_protos(protos, target)
        for path in protos:
            shutil.copy(path, target / "proto")


def compile_protos(protos: list[str], target: Path) -> None:
    from grpc_tools import protoc

    outputs = [f"--descriptor_set_out={target}/messages.binpb", f"--pyi_out={target}"]
    if protoc.main(["protoc", "-Iproto", "--include_imports", *outputs, *protos]) != 0:
        raise SystemExit("protoc refused proto/*.proto: its messages are above")
    for stub in target.glob("*_pb2.pyi"):  # name_pb2.pyi, as protoc calls it, describes our module name.py
        text = stub.read_text().replace("import model_config_pb2", "from service._pb import model_config")
        stub.with_name(stub.name.replace("_pb2", "")).write_text(text)
        stub.unlink()


def native_can_be_built() -> bool:
    """Whether the headers that the native front end needs are there. Without them the other one serves."""
    compiler = os.getenv("CC") or sysconfig.get_config_var("CC") or "cc"
    text = "#include <nghttp2/nghttp2.h>\n#include <zlib.h>\n"
    command = [*shlex.split(compiler), "-E", "-x", "c", "-"]
    try:
        found = subprocess.run(command, input=text, text=True, capture_output=True).returncode == 0
    except OSError:
        found = False
    if not found:
        words = "the native front end is left out: it needs the headers of libnghttp2 and zlib"
        print(f"headrace: {words} (Debian: libnghttp2-dev, zlib1g-dev)", file=sys.stderr)
    return found


if not native_can_be_built():
    del EXTENSIONS[NATIVE]
present = [extension(pyx, patterns) for pyx, patterns in EXTENSIONS.items() if Path(pyx).exists()]
modules = cythonize(present, build_dir="build/cython", language_level=3)
setup(ext_modules=modules, cmdclass={"build_py": BuildPyWithMessages})
