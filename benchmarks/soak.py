"""Half an hour of everything at once: does anything grow, stick, or answer wrongly?

Clients of every kind share one server: small and large requests, requests of more rows than a batch,
streams that are read to their end and streams that are left, deadlines that pass, mistakes, connections
that come and go, and the calls around inference. Every answer is compared with what it must be, bit by
bit, and every failure with the status that its kind of client may see; anything else is listed under
"unexpected", and makes the exit code 1.

Every ten seconds each process is looked at: anonymous and shared memory, descriptors, threads. What
matters is the median of the last third beside that of the first, and what is there ten seconds after the
last client has gone.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from models import WIDTH, affine
from overload import children, memory_mb
from results import Results, flags

from service._pb import inference as pb
from service.config import FRONTENDS
from service.demo.server import started

SERVICE = "/inference.GRPCInferenceService/"
LOOK_S = 10.0
SMALL, OVERSIZE, LARGE = 1, 100, 16384  # rows: alone, of several batches, 1 MB

Channel = grpc.Channel
Kind = Callable[[Channel, random.Random], str]


def request(rows: int, start: float, model: str = "affine") -> tuple[bytes, np.ndarray]:
    """A request, and what its answer must hold."""
    x = np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH) + np.float32(start)
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="x", datatype="FP32", shape=x.shape)
    message.raw_input_contents.append(x.tobytes())
    return message.SerializeToString(), 2 * x + 1


def check(answer: Any, expected: np.ndarray) -> None:
    y = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(answer.outputs[0].shape)
    if not np.array_equal(y, expected):
        raise AssertionError(f"a wrong answer for {expected.shape[0]} rows from {expected[0, 0]} on")


def infer(channel: Channel, message: bytes, timeout_s: float = 60.0) -> Any:
    call: Any = channel.unary_unary(SERVICE + "ModelInfer", None, pb.ModelInferResponse.FromString)
    return call(message, timeout=timeout_s)


def unary(rows: int) -> Kind:
    def one(channel: Channel, chance: random.Random) -> str:
        message, expected = request(rows, chance.randrange(1000))
        check(infer(channel, message), expected)
        return "OK"

    return one


def late(channel: Channel, chance: random.Random) -> str:
    message, expected = request(SMALL, chance.randrange(1000))
    try:
        check(infer(channel, message, chance.uniform(1e-4, 3e-3)), expected)
    except grpc.RpcError as error:
        return expect(error, "DEADLINE_EXCEEDED")
    return "OK"


def mistaken(channel: Channel, chance: random.Random) -> str:
    message, _ = request(SMALL, 0, model=chance.choice(["affine", "nobody"]))
    wrong = message if b"nobody" in message else message[: chance.randrange(1, len(message))]
    try:
        infer(channel, wrong)
    except grpc.RpcError as error:
        return expect(error, "INVALID_ARGUMENT", "NOT_FOUND")
    raise AssertionError("a mistake was answered with OK")


def expect(error: grpc.RpcError, *codes: str) -> str:
    name = str(error.code().name)
    if name not in codes:
        raise error
    return name


def stream(leaves: bool) -> Kind:
    def one(channel: Channel, chance: random.Random) -> str:
        pairs = [request(SMALL, chance.randrange(1000)) for _ in range(50)]
        method: Any = channel.stream_stream(
            SERVICE + "ModelStreamInfer", None, pb.ModelStreamInferResponse.FromString
        )
        call = method(iter([message for message, _ in pairs]), timeout=60)
        for number, (_, expected) in enumerate(pairs):
            if leaves and number == 20:
                call.cancel()
                return "left"
            answer = next(call)
            if answer.error_message:
                raise AssertionError(answer.error_message)
            check(answer.infer_response, expected)
        return "OK" if next(call, None) is None else "more answers than requests"

    return one


def around(channel: Channel, chance: random.Random) -> str:
    method, message = chance.choice(
        [
            ("ServerReady", pb.ServerReadyRequest()),
            ("ModelMetadata", pb.ModelMetadataRequest(name="affine")),
            ("ModelStatistics", pb.ModelStatisticsRequest()),
            ("RepositoryIndex", pb.RepositoryIndexRequest()),
        ]
    )
    call: Any = channel.unary_unary(SERVICE + method)
    call(message.SerializeToString(), timeout=60)
    return "OK"


KINDS: dict[str, Kind] = {
    "small": unary(SMALL),
    "oversize": unary(OVERSIZE),
    "large": unary(LARGE),
    "late": late,
    "mistaken": mistaken,
    "streams": stream(leaves=False),
    "streams that are left": stream(leaves=True),
    "calls around": around,
}


class Client(threading.Thread):
    """Does one kind of thing until the end; with `comes_and_goes` over a new connection each time."""

    def __init__(
        self, url: str, name: str, kind: Kind, over: threading.Event, comes_and_goes: bool = False
    ) -> None:
        super().__init__(name=name)
        self._url, self._kind, self._over, self._comes_and_goes = url, kind, over, comes_and_goes
        self.outcomes: Counter[str] = Counter()
        self.unexpected: list[str] = []

    def run(self) -> None:
        chance = random.Random(self.name)
        channel = self._connect()
        while not self._over.is_set():
            if self._comes_and_goes:
                channel.close()
                channel = self._connect()
            try:
                self.outcomes[self._kind(channel, chance)] += 1
            except Exception:
                self.unexpected.append(traceback.format_exc())
        channel.close()

    def _connect(self) -> Channel:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        return grpc.insecure_channel(self._url, options)


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--frontend", choices=FRONTENDS, help="that one alone")
    arguments = parser.parse_args()
    results = Results("soak", arguments.out)
    unexpected: list[str] = []
    for frontend in [arguments.frontend] if arguments.frontend else FRONTENDS:
        unexpected += soak(results, frontend, arguments.seconds)
    results.finish()
    print("\n".join(unexpected[:10]), file=sys.stderr)
    return 1 if unexpected else 0


def soak(results: Results, frontend: str, seconds: float) -> list[str]:
    """Adds the lines of one front end; what was unexpected."""
    with tempfile.TemporaryDirectory() as folder:
        model = affine(Path(folder, "affine.onnx"))
        command = [sys.executable, "-P", "-m", "service", "serve", str(model), "--frontend", frontend]
        with started([*command, "--max-batch-size", "32"]) as server:
            clients = run(server.url, seconds, looks := Looks(children(server.pid)))
            time.sleep(LOOK_S)
            looks.look()
    for client in clients:
        results.add(f"{frontend}: {client.name}", unexpected=len(client.unexpected), **client.outcomes)
    for name, figures in looks.thirds():
        results.add(f"{frontend}: {name}", **figures)
    return [f"{frontend}: {client.name}: {text}" for client in clients for text in client.unexpected]


def run(url: str, seconds: float, looks: Looks) -> list[Client]:
    over = threading.Event()
    clients = [Client(url, name, kind, over) for name, kind in KINDS.items()]
    clients.append(Client(url, "connections", KINDS["small"], over, comes_and_goes=True))
    for client in clients:
        client.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        over.wait(min(LOOK_S, end - time.monotonic()))
        looks.look()
    over.set()
    for client in clients:
        client.join()
    return clients


class Looks:
    """What processes had, whenever somebody looked."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = processes
        self._found: dict[str, list[dict[str, int]]] = {name: [] for name in processes}

    def look(self) -> None:
        for name, pid in self._processes.items():
            folder = Path(f"/proc/{pid}")
            counts = {kind: len(list((folder / kind).iterdir())) for kind in ("fd", "task")}
            self._found[name].append({**memory_mb(pid), **counts})

    def thirds(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Of each process and figure: medians of the first and the last third, the most, the last one."""
        for name, found in self._found.items():
            for kind in found[0]:
                values = [look[kind] for look in found]
                third = max(1, len(values) // 3)
                yield (
                    f"{name}, {kind}",
                    {
                        "first_third": statistics.median(values[:third]),
                        "last_third": statistics.median(values[-third:]),
                        "most": max(values),
                        "alone_again": values[-1],
                    },
                )


if __name__ == "__main__":
    sys.exit(main())
