"""Models on one device: what one that wants more than its cap costs the others, and what they have together.

Two busy models are loaded at the same time, alone at first, and then beside a third one that is asked in
turns for what fits under its cap (`gpu_memory_limit`) and for what does not. The latter is to be refused with
RESOURCE_EXHAUSTED, and the others are not to notice: their 99th percentile with it, beside that without.

Memory is NVML's, less what a service with the third model alone has: the context, and that model.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from gpu import digest, used_bytes
from plans import generator, request_file
from results import Results, flags

from service.client import Client, RpcFailed
from service.demo.server import Server, started

MB = 1 << 20


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--busy", type=Path, nargs=2, required=True, help="two models, by file")
    parser.add_argument("--greedy", type=Path, required=True, help="the third: one input, with an open size")
    parser.add_argument("--cap-mb", type=int, default=256, help="of the third")
    parser.add_argument("--load", type=Path, required=True, help="the load generator, as in plans.py")
    parser.add_argument("--in-flight", type=int, default=32, help="of each busy model")
    arguments = parser.parse_args()
    results = Results("sharing", arguments.out)
    for path in (*arguments.busy, arguments.greedy):
        results.add(f"{path.name} {digest(path)}")
    with tempfile.TemporaryDirectory() as folder:
        sets = repositories(Path(folder), arguments)
        for line in memory(sets):
            results.add(**line)
        with serving(sets["all"]) as server:
            for line in latencies(server, arguments):
                results.add(**line)
    results.finish()


# ---- repositories ----


def repositories(folder: Path, arguments: argparse.Namespace) -> dict[str, list[Path]]:
    """Folders of models: "none" has the greedy one alone, "first" and "second" a busy one besides, "all" both
    of them.
    """
    models = {name: one_model(folder / name, path) for name, path in named(arguments).items()}
    config = models["greedy"] / "greedy" / "config.pbtxt"
    config.write_text(
        f'parameters {{ key: "gpu_memory_limit" value {{ string_value: "{arguments.cap_mb}MB" }} }}\n'
    )
    greedy = models["greedy"]
    return {
        "none": [greedy],
        "first": [greedy, models["first"]],
        "second": [greedy, models["second"]],
        "all": [greedy, models["first"], models["second"]],
    }


def named(arguments: argparse.Namespace) -> Mapping[str, Path]:
    first, second = arguments.busy
    return {"first": first, "second": second, "greedy": arguments.greedy}


def one_model(folder: Path, path: Path) -> Path:
    """A repository with one model, of the folder's name."""
    version = folder / folder.name / "1"
    version.mkdir(parents=True)
    (version / f"model{path.suffix}").symlink_to(path.resolve())
    return folder


@contextmanager
def serving(folders: Sequence[Path]) -> Iterator[Server]:
    command = [sys.executable, "-P", "-m", "service", "serve", *map(str, folders)]
    with started(command) as server:
        yield server


# ---- memory ----


def memory(sets: Mapping[str, Sequence[Path]]) -> Iterator[dict[str, Any]]:
    """What the busy models have together, beside the sum of each by itself."""
    used = {}
    for name, folders in sets.items():
        with serving(folders):
            used[name] = used_bytes()
    alone = [used[name] - used["none"] for name in ("first", "second")]
    together = used["all"] - used["none"]
    yield {
        "what": "memory of two busy models together, beside the sum of each alone",
        "figure": f"{together // MB:,} MB",
        "beside": " + ".join(f"{size // MB:,} MB" for size in alone),
        "ratio": together / max(1, sum(alone)),
    }


# ---- latencies ----


def latencies(server: Server, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The busy models' 99th percentiles, without and with what the greedy one is asked."""
    alone = loaded(server, arguments)
    with greed(server, arguments.cap_mb) as outcomes:
        beside = loaded(server, arguments)
    for name, before, after in zip(("first", "second"), alone, beside, strict=True):
        yield {
            "what": f"p99 of the {name} busy model, beside one that is asked for more than its cap",
            "figure": f"{after['p99'] / 1000:.2f} ms ({after['rps']:,.0f}/s, {after['err']} failed)",
            "beside": f"{before['p99'] / 1000:.2f} ms ({before['rps']:,.0f}/s) alone",
            "ratio": after["p99"] / before["p99"],
        }
    yield {"what": "what the greedy model was asked for", **outcomes}


def loaded(server: Server, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What the load generator says of both busy models, which have their load at the same time."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        processes = []
        for name in ("first", "second"):
            (where := Path(folder, name)).mkdir()
            load = SimpleNamespace(load=arguments.load, connections=4, threads=3, seconds=arguments.seconds)
            request = request_file(server, name, where)
            processes.append(stack.enter_context(generator(load, server, request, arguments.in_flight)))
        limit_s = 60 + 2 * arguments.seconds
        return [json.loads(process.communicate(timeout=limit_s)[0]) for process in processes]


@contextmanager
def greed(server: Server, cap_mb: int) -> Iterator[Counter[str]]:
    """Asks the greedy model, in turns, for little and for more than its cap, until the end."""
    outcomes: Counter[str] = Counter()
    over = threading.Event()
    thread = threading.Thread(target=ask_greedily, args=(server.url, cap_mb, outcomes, over), daemon=True)
    thread.start()
    try:
        yield outcomes
    finally:
        over.set()
        thread.join()


def ask_greedily(url: str, cap_mb: int, outcomes: Counter[str], over: threading.Event) -> None:
    with Client(url, timeout_s=60) as client:
        (tensor,) = client.model_metadata("greedy").inputs
        little, much = (np.ones((1, count), np.float32) for count in (1000, cap_mb * MB // 4))
        while not over.is_set():
            for rows in (little, much):
                try:
                    client.infer("greedy", {tensor.name: rows})
                    outcomes["answered"] += 1
                except RpcFailed as error:
                    outcomes[error.code] += 1


if __name__ == "__main__":
    main()
