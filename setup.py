"""Builds what cannot be written down in pyproject.toml: the C extensions and the protobuf messages.

Switches, all from the environment: FQ_DEBUG=1 (counters and assertions), FQ_SANITIZE=1 (ASan and UBSan),
FQ_WERROR=1 (a compiler warning is an error).
Generated files go to the build directory, never beside the sources. When the native front end is left out,
service/native_missing.txt says why: pip shows nothing of what a build says.
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

SERVICE_INCLUDES = ["service/codec", "service/cuda", "service/frontend", "service/frontend/native"]
INCLUDES = ["fastqueue/include", *SERVICE_INCLUDES]
NATIVE = "service/frontend/native/_native.pyx"
EXTENSIONS = {  # the Cython file: the C files that are compiled into the same module
    **{pyx: [] for pyx in sorted(glob("fastqueue/*.pyx"))},
    "service/codec/_codec.pyx": ["service/codec/*.c"],
    "service/frontend/_dispatch.pyx": ["service/codec/*.c", "service/frontend/dispatch*.c"],
    "service/cuda/_launch.pyx": ["service/cuda/*.c"],
    NATIVE: [
        "service/codec/*.c",
        "service/frontend/dispatch*.c",
        "service/frontend/native/*.c",
    ],
}
LIBRARIES = {NATIVE: ["nghttp2", "ssl", "crypto", "z"]}
HEADERS = {  # the native one's: what is looked for, how a missing one is called, Debian's name
    "nghttp2/nghttp2.h": ("nghttp2/nghttp2.h", "libnghttp2-dev"),
    "openssl/ssl.h": ("openssl/ssl.h of OpenSSL 3", "libssl-dev"),
    "zlib.h": ("zlib.h", "zlib1g-dev"),
}


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
    """Adds to service/_pb the descriptor set, a type stub for each .proto file, and the .proto files; and to
    service/ why the native front end is missing, when it is.
    """

    def run(self) -> None:
        super().run()
        package = Path("." if self.editable_mode else self.build_lib, "service")
        leave_word(package / "native_missing.txt")
        target = package / "_pb"
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


def is_found(header: str) -> bool:
    """Whether the compiler finds a header, of no version that is too old."""
    compiler = os.getenv("CC") or sysconfig.get_config_var("CC") or "cc"
    command, source = [*shlex.split(compiler), "-E", "-x", "c", "-"], f"#include <{header}>\n"
    source += "#if defined OPENSSL_VERSION_NUMBER && OPENSSL_VERSION_NUMBER < 0x30000000L\n#error\n#endif\n"
    try:
        return subprocess.run(command, input=source, text=True, capture_output=True).returncode == 0
    except OSError:
        return False


def leave_word(path: Path) -> None:
    """Says in a file why the native front end is left out; there is none when it is not."""
    path.unlink(missing_ok=True)
    if NATIVE_MISSING:
        path.write_text(f"{NATIVE_MISSING}\n")


def why_native_is_missing() -> str:
    """What the native front end needs and is not there, and what to do; empty when it can be built. Without
    it the other one serves.
    """
    missing = [names for header, names in HEADERS.items() if not is_found(header)]
    if not missing:
        return ""
    headers, packages = " and ".join(name for name, _ in missing), " ".join(package for _, package in missing)
    return (
        f"it was left out when headrace was built, for want of {headers}; install them "
        f"(Debian: apt-get install {packages}) and then headrace again, from its source "
        "(pip install --force-reinstall --no-deps --no-cache-dir .)"
    )


NATIVE_MISSING = why_native_is_missing()
if NATIVE_MISSING:
    print(f"headrace: no native front end: {NATIVE_MISSING}", file=sys.stderr)
    del EXTENSIONS[NATIVE]
present = [extension(pyx, patterns) for pyx, patterns in EXTENSIONS.items() if Path(pyx).exists()]
modules = cythonize(present, build_dir="build/cython", language_level=3)
setup(ext_modules=modules, cmdclass={"build_py": BuildPyWithMessages})
