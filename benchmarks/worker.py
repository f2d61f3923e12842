"""The worker by itself: native producers feed it through the queue, and no gRPC is there.

What it reaches is what the queue, the batches and the engine can do; what a benchmark through gRPC reaches
less is the front end's. The producers (producers.c, compiled here) are threads of this process, each with a
lane and an input arena of its own, in a closed loop: each copies every request into its arena, as a front end
does. The model has one input.

A setting is BATCH:STREAMS:IN_FLIGHT: rows of a batch at most, CUDA streams, requests in flight. The
rate is the growth of the worker's own count of rows over the time; beside it, what the producers saw.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from gpu import digest, utilization
from results import Results, flags

import fastqueue
from fastqueue import FrontLane, InputArena, WorkerPage
from service.bench.proc import cpu_seconds
from service.config import ServeConfig
from service.control import Channel, socket_pair
from service.models.spec import ModelSpec, numpy_dtype
from service.process import python_module, start_child

WARM_S = 1.0
SLOTS = 4096
LATENCIES = 1 << 21  # that a producer notes at most
WARMING, COUNTING, OVER = range(3)


@dataclass
class Setting:
    """What a worker is started with, and how it is loaded."""

    batch: int
    streams: int
    in_flight: int

    @classmethod
    def parse(cls, text: str) -> Setting:
        return cls(*(int(part) for part in text.split(":")))

    def __str__(self) -> str:
        return f"batch {self.batch}, streams {self.streams}, {self.in_flight} in flight"


class Producer(ctypes.Structure):
    """As in producers.c."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("lane_fd", "arena_fd", "event_fd", "page_fd", "output_fd")),
        *((name, ctypes.c_uint32) for name in ("slots", "blocks", "model", "rows", "rank")),
        *((name, ctypes.c_uint32) for name in ("in_flight", "room")),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_uint64),
        ("latencies_us", ctypes.POINTER(ctypes.c_uint32)),
        ("stage", ctypes.POINTER(ctypes.c_uint32)),
        ("answered", ctypes.c_uint64),
        ("failed", ctypes.c_uint64),
    ]


def compiled(folder: Path) -> Any:
    library = folder / "producers.so"
    source = Path(__file__).with_name("producers.c")
    command = ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", f"-I{fastqueue.get_include()}"]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library)).produce


@dataclass
class Reading:
    """What the worker had done by then."""

    at_s: float
    stats: Any
    cpu_s: float


class Served:
    """A worker process with one model, and a lane of each producer to it."""

    def __init__(self, model: Path, setting: Setting, producers: int, arena_mb: int, device: int) -> None:
        self.process, control = start_child(python_module("service.worker"))
        self._control = Channel(control)
        config = ServeConfig(
            model_paths=(str(model),),
            max_batch_size=setting.batch,
            streams=setting.streams,
            devices=(device,),
        )
        self._control.send("configure", {"config": config.to_json(), "worker": 0})
        self._expect(self._control, "loaded")
        ours, theirs = socket_pair()
        with theirs:
            self._control.send("link", {"worker": 0, "link": 1}, [theirs.fileno()])
        self._link = Channel(ours)
        self.arena_mb = arena_mb
        self.lanes = [FrontLane(InputArena(arena_mb), SLOTS) for _ in range(producers)]
        self._link.send("hello", {"lanes": producers}, [fd for lane in self.lanes for fd in lane.fds])
        ready = self._expect(self._link, "ready")
        self.page_fd, self.output_fd, *_ = ready.take_fds()  # behind them its pidfd
        (row,) = ready.body["models"]
        self.id, self.spec = int(row["id"]), ModelSpec.from_json(row["spec"])
        self.page = WorkerPage(self.page_fd)

    @staticmethod
    def _expect(channel: Channel, kind: str) -> Any:
        while (message := channel.receive()) is not None:
            if message.kind == kind:
                return message
            if message.kind == "failed":
                raise SystemExit(message.body["message"])
        raise SystemExit(f"the worker ended before it said {kind}")

    def now(self) -> Reading:
        return Reading(time.perf_counter(), self.page.stats_of(self.id), cpu_seconds(self.process.pid))

    def close(self) -> None:
        self._link.close()
        self._control.send("stop")
        self.process.wait(60)


@contextmanager
def served(*arguments: Any) -> Iterator[Served]:
    worker = Served(*arguments)
    try:
        yield worker
    finally:
        worker.close()


def one_row(spec: ModelSpec) -> Any:
    (tensor,) = spec.inputs
    dtype = np.dtype(numpy_dtype(tensor.datatype))
    rng, shape = np.random.default_rng(1), (1, *(max(1, dim) for dim in tensor.dims))
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 200, shape).astype(dtype)


class Load:
    """The producers, each in a thread."""

    def __init__(self, produce: Any, worker: Served, in_flight: int) -> None:
        self._array = one_row(worker.spec)
        self._stage = ctypes.c_uint32(WARMING)
        self._dims = (ctypes.c_int64 * self._array.ndim)(*self._array.shape)
        count = len(worker.lanes)
        self._noted = [(ctypes.c_uint32 * LATENCIES)() for _ in range(count)]
        self.producers = [
            Producer(
                *worker.lanes[i].fds,
                worker.page_fd,
                worker.output_fd,
                SLOTS,
                worker.arena_mb * 4,
                worker.id,
                1,
                self._array.ndim,
                in_flight // count + (i < in_flight % count),
                LATENCIES,
                self._dims,
                self._array.ctypes.data,
                self._array.nbytes,
                self._noted[i],
                ctypes.pointer(self._stage),
            )
            for i in range(count)
        ]
        self._results = [-2] * count
        self._threads = [threading.Thread(target=self._run, args=(produce, i)) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, produce: Any, i: int) -> None:
        self._results[i] = produce(ctypes.byref(self.producers[i]))

    def stage(self, stage: int) -> None:
        self._stage.value = stage

    def end(self) -> None:
        self.stage(OVER)
        for thread in self._threads:
            thread.join()
        if any(self._results):
            raise SystemExit(f"a producer gave up: {self._results}")

    def latencies_ms(self) -> Any:
        noted = [
            np.ctypeslib.as_array(n)[: min(p.answered, LATENCIES)]
            for n, p in zip(self._noted, self.producers, strict=True)
        ]
        return np.sort(np.concatenate(noted)) / 1000


def measure(produce: Any, worker: Served, setting: Setting, seconds: float) -> dict[str, float]:
    load = Load(produce, worker, setting.in_flight)
    time.sleep(WARM_S)
    with utilization() as busy:
        before = worker.now()
        load.stage(COUNTING)
        time.sleep(seconds)
        after = worker.now()
        load.end()
    rows, took = after.stats.rows - before.stats.rows, after.at_s - before.at_s
    latencies = load.latencies_ms()
    return {
        "rows_per_s": rows / took,
        "answered_per_s": sum(p.answered for p in load.producers) / took,
        "failed": sum(p.failed for p in load.producers),
        "mean_batch": rows / max(1, after.stats.executions - before.stats.executions),
        "p50_ms": float(latencies[len(latencies) // 2]),
        "p99_ms": float(latencies[len(latencies) * 99 // 100]),
        "worker_cpu_us_per_row": (after.cpu_s - before.cpu_s) * 1e6 / max(1, rows),
        "device_busy_percent": mean(busy) if busy else 0.0,
    }


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--setting", type=Setting.parse, nargs="+", default=[Setting(128, 4, 2048)])
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--arena-mb", type=int, default=1024, help="of each producer")
    parser.add_argument("--device", type=int, default=0)
    arguments = parser.parse_args()
    results = Results("worker", arguments.out)
    results.add(f"{arguments.model.name} {digest(arguments.model)}", producers=arguments.producers)
    with tempfile.TemporaryDirectory() as folder:
        produce = compiled(Path(folder))
        for setting in arguments.setting:
            what = (arguments.model, setting, arguments.producers, arguments.arena_mb, arguments.device)
            with served(*what) as worker:
                results.add(str(setting), **measure(produce, worker, setting, arguments.seconds))
    results.finish()


if __name__ == "__main__":
    main()
