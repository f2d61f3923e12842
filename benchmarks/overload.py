"""Ten times the load that the engine can take, in requests of 1 MB: who holds what, and who is told what?

A timer of 50 ms a request stands in for the engine: 20 requests a second are its capacity, and ten times as
many are sent, open loop, over several connections, whatever comes back; answers have 1 MB, too. Twice a
second the resident memory of the front end and of the worker is read: anonymous memory, and shared memory,
which is the arenas, and is counted in every process that maps them.

The front end's anonymous memory should stay below what the README's "Limits" say, and the worker's should not
grow; every refusal should be RESOURCE_EXHAUSTED with `grpc-retry-pushback-ms`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from device import running
from results import Results, flags

from service._pb import inference as pb
from service.config import FRONTENDS

ENGINE_MS = 50.0
FACTOR = 10
CONNECTIONS = 8
WIDTH = (1 << 20) // 4
METHOD = "/inference.GRPCInferenceService/ModelInfer"
PUSHBACK = "grpc-retry-pushback-ms"
MB = 1 << 20


def main() -> None:
    arguments = flags(__doc__).parse_args()
    results = Results("overload", arguments.out)
    for frontend in FRONTENDS:
        measure(results, frontend, arguments.seconds)
    results.finish()


def measure(results: Results, frontend: str, seconds: float) -> None:
    """Adds the lines of one front end."""
    with running(ENGINE_MS, 1, WIDTH, frontend) as server:
        processes = children(server.pid)
        before = {name: memory_mb(pid) for name, pid in processes.items()}
        outcomes, peaks = overload(server.url, processes, seconds)
        results.add(f"{frontend}: outcomes", **outcomes)
        time.sleep(2)
        for name, pid in processes.items():
            after = memory_mb(pid)
            for kind in ("anonymous", "shared"):
                results.add(
                    f"{frontend}: {name}, {kind} MB",
                    before=before[name][kind],
                    peak=peaks[name, kind],
                    after=after[kind],
                )


def overload(url: str, processes: dict[str, int], seconds: float) -> tuple[dict[str, int], dict[Any, int]]:
    """Sends; the count of each outcome, and the peak of each (process, kind of memory) in MB."""
    outcomes: Counter[str] = Counter()
    peaks: dict[Any, int] = {}
    done = threading.Semaphore(0)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    channels = [grpc.insecure_channel(url, options) for _ in range(CONNECTIONS)]
    calls: list[Any] = [channel.unary_unary(METHOD) for channel in channels]
    message = request()

    def finished(call: Any) -> None:
        outcomes[outcome(call)] += 1
        done.release()

    for number in arrivals(seconds, FACTOR * 1e3 / ENGINE_MS):
        calls[number % CONNECTIONS].future(message, timeout=60).add_done_callback(finished)
        outcomes["sent"] += 1
        if number % 100 == 0:
            sample(processes, peaks)
    for _ in range(outcomes["sent"]):
        done.acquire()
    for channel in channels:
        channel.close()
    return dict(outcomes), peaks


def arrivals(seconds: float, rate: float) -> Iterator[int]:
    """Numbers requests, each when it is due."""
    start = time.monotonic()
    for number in range(int(seconds * rate)):
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
        yield number


def request() -> bytes:
    message = pb.ModelInferRequest(model_name="device")
    message.inputs.add(name="x", datatype="FP32", shape=(1, WIDTH))
    message.raw_input_contents.append(np.ones(WIDTH, np.float32).tobytes())
    return message.SerializeToString()


def outcome(call: Any) -> str:
    """The name of the status, and whether a refusal says when to come back."""
    code = str(call.code().name)
    if code == "OK":
        return code
    return f"{code}_{'with' if PUSHBACK in dict(call.trailing_metadata() or ()) else 'without'}_pushback"


def children(supervisor: int) -> dict[str, int]:
    """The processes of the service by name."""
    pids = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_text() for pid in pids}
    return {"front end" if "frontend" in text else "worker": pid for pid, text in commands.items()}


def memory_mb(pid: int) -> dict[str, int]:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kinds = {"anonymous": "RssAnon", "shared": "RssShmem"}
    return {kind: int(lines[key].split()[0]) // 1024 for kind, key in kinds.items()}


def sample(processes: dict[str, int], peaks: dict[Any, int]) -> None:
    for name, pid in processes.items():
        for kind, now in memory_mb(pid).items():
            peaks[name, kind] = max(now, peaks.get((name, kind), 0))


if __name__ == "__main__":
    main()
