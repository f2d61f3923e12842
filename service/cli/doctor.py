"""``headrace doctor``: what this machine and this installation have for serving, one line each.

A finding is one of three: `ok`; `note`, which costs something or may be wanted, and serving works without;
`wrong`, which keeps `headrace serve` with its defaults from starting. Ports that a running Headrace has
are a note: serving works here. Engines are imported in a process of their own: one that crashes costs its
line; so are the libraries of a GPU.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from service import __version__, installation
from service.cli.common import examples

EPILOG = examples(
    "headrace doctor                   # would serving work here, and with which front end?",
    "headrace doctor --json            # the same for a script",
    "headrace doctor || exit           # in a script that goes on to serve",
)
OK, NOTE, WRONG = "ok", "note", "wrong"
IMPORT_LIMIT_S = 60.0
FEW_DESCRIPTORS = 1024
OPTIONAL = (("tensorrt", "plans on a GPU"), ("torch", "TorchScript and torch.export files"))


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, one of OK, NOTE and WRONG, and a sentence."""

    subject: str
    state: str
    text: str


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what this machine and this installation have for serving, and what is missing.

    The exit code is 0 when 'headrace serve' would work with its defaults, or does already, and 1 when
    something is wrong.
    """
    found = [finding for check in CHECKS for finding in check()]
    works = all(finding.state != WRONG for finding in found)
    if as_json:
        typer.echo(json.dumps({"works": works, "findings": [asdict(finding) for finding in found]}, indent=2))
    else:
        for line in lines(found, works):
            typer.echo(line)
    if not works:
        raise typer.Exit(1)


def lines(found: list[Finding], works: bool) -> list[str]:
    """What a person reads: a line for each finding, and the sum of them."""
    width = max(len(finding.subject) for finding in found)
    told = [f"{f.state:<5}  {f.subject:<{width}}  {' '.join(f.text.split())}" for f in found]
    wrong = "Serving would not work with its defaults: see what is wrong above."
    return [*told, "", "Serving would work." if works else wrong]


def versions() -> list[Finding]:
    """Of headrace and of Python."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return [
        Finding("headrace", OK, __version__),
        Finding("python", OK, f"{platform.python_version()} ({sys.executable}), {system}"),
    ]


def front_end() -> list[Finding]:
    """Which front ends there are, and which one is taken."""
    if why := installation.why_no_native():
        return [Finding("front end", NOTE, f"grpcio; the native one is not there: {why}")]
    from service.config import ServeConfig

    taken = ServeConfig(()).frontend
    versions = ", ".join(installation.native_libraries())
    return [Finding("front end", OK, f"{taken} is taken; native is there ({versions}), and grpcio")]


def engines() -> list[Finding]:
    """Those that models are run by, and what the extras brought."""
    runtime = _imported("onnxruntime")
    state = OK if runtime.works else WRONG
    found = [
        Finding("engine onnxruntime", state, runtime.text),
        Finding("engine python", OK, "models in Python, each instance in a process of its own"),
    ]
    return found + [_optional(*engine) for engine in OPTIONAL]


def _optional(module: str, what: str) -> Finding:
    """An engine that an extra brings; it is not imported, since that takes seconds."""
    from importlib.metadata import packages_distributions, version
    from importlib.util import find_spec

    subject = f"engine {module}"
    if find_spec(module) is None:
        return Finding(subject, OK, f"not installed; it serves {what}: pip install 'headrace[{module}]'")
    distributions = packages_distributions().get(module)
    told = version(distributions[0]) if distributions else "there, without a version"
    return Finding(subject, OK, f"{told}; serves {what}")


@dataclass(frozen=True)
class _Imported:
    works: bool
    text: str


def _imported(module: str) -> _Imported:
    """Imports a module in a process of its own: its version, or why it cannot be."""
    tried = _tried(f"import {module} as it; print(it.__version__)")
    if tried.works:
        return tried
    return _Imported(False, f"{tried.text}; install it again: pip install --force-reinstall {module}")


def _tried(code: str) -> _Imported:
    """Runs code in a process of its own: what it prints, or why it ends."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=IMPORT_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return _Imported(False, f"importing it takes longer than {IMPORT_LIMIT_S:g} s")
    if done.returncode == 0:
        return _Imported(True, done.stdout.strip())
    from service.process import describe_exit

    last = f"its import ends with {describe_exit(done.returncode)}"
    if done.returncode > 0 and done.stderr.strip():
        last = done.stderr.strip().splitlines()[-1]
    return _Imported(False, last)


def gpu() -> list[Finding]:
    """The devices; where the kernel knows of a driver, it is asked, in a process of its own."""
    from service.cli.machine import gpu_driver

    driver = gpu_driver()
    if not driver:
        return [Finding("gpu", OK, "no NVIDIA driver; models run on the CPU")]
    tried = _tried("from service.cuda.driver import device_names; print('; '.join(device_names()))")
    if tried.works:
        return [Finding("gpu", OK, f"{driver}: {tried.text}")]
    why = tried.text.removeprefix("service.cuda.driver.NoDriver: ")
    return [Finding("gpu", NOTE, f"{driver}, which cannot be used: {why}")]


def memory() -> list[Finding]:
    """What requests and answers lie in: memfd; it counts as memory of the processes, not as /dev/shm."""
    from service.cli.machine import memory_limit, shm_free
    from service.config import ServeConfig

    try:
        os.close(os.memfd_create("headrace-doctor"))
    except OSError as error:
        why = f"memfd_create fails ({error.strerror}), and the queue's memory is made by it; allow that call"
        return [Finding("shared memory", WRONG, why)]
    config = ServeConfig(())
    arenas = config.arena_mb + config.output_arena_mb
    limit_mb, whose = memory_limit()
    text = f"memfd works; /dev/shm ({shm_free()}) is not used"
    room = (
        f"{limit_mb:,} MB ({whose}); the arenas have {arenas} MB by default (--arena-mb, --output-arena-mb)"
    )
    return [Finding("shared memory", OK, text), Finding("memory", OK if limit_mb > arenas else NOTE, room)]


def limits() -> list[Finding]:
    """Descriptors, of which each client connection takes one, and memory that may be locked."""
    import resource

    from service.process import RESERVED_DESCRIPTORS

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    clients = max(hard - RESERVED_DESCRIPTORS, hard // 2)
    text = f"{soft:,}, and {hard:,} when serving: {clients:,} clients at once (ulimit -Hn)"
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    told = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked >> 10:,} KB"
    return [
        Finding("descriptors", OK if hard >= FEW_DESCRIPTORS else NOTE, text),
        Finding("locked memory", OK, f"{told} (ulimit -l)"),
    ]


def default_ports() -> dict[str, int]:
    from service.config import DEFAULT_GRPC_PORT, DEFAULT_METRICS_PORT

    return {"--grpc-port": DEFAULT_GRPC_PORT, "--metrics-port": DEFAULT_METRICS_PORT}


def ports() -> list[Finding]:
    """Whether the default ones can be listened on, or a Headrace that runs has them."""
    from service.cli.ports import headraces
    from service.config import ServeConfig
    from service.frontend.addresses import why_not_bound

    host, wanted = ServeConfig(()).host, default_ports()
    busy = {flag: why for flag, port in wanted.items() if (why := why_not_bound(host, port, flag))}
    if not busy:
        return [Finding("ports", OK, f"{' and '.join(map(str, wanted.values()))} of {host} are free")]
    ours = headraces(host, {flag: wanted[flag] for flag in busy})
    found = [Finding("ports", WRONG, why) for flag, why in busy.items() if flag not in ours]
    if ours:
        has = " and ".join(str(wanted[flag]) for flag in ours)
        text = f"a Headrace runs here and has {has} of {host}; another one needs {' and '.join(ours)}"
        found.append(Finding("ports", NOTE, text))
    return found


def processors() -> list[Finding]:
    """How many there are, how many this process may use, and the share that a container has of them."""
    from service.cli.machine import cpu_quota

    there, usable, quota = os.cpu_count() or 1, len(os.sched_getaffinity(0)), cpu_quota()
    text = f"{there} in this machine, {usable} for this process (affinity)"
    if quota is None:
        return [Finding("cpu", OK, f"{text}, no quota of a control group")]
    state = NOTE if quota < usable else OK
    return [Finding("cpu", state, f"{text}; a control group allows the time of {quota:g} of them")]


CHECKS: tuple[Callable[[], list[Finding]], ...] = (
    versions,
    front_end,
    engines,
    gpu,
    memory,
    limits,
    ports,
    processors,
)
