"""What serving adds to a call: one request in flight on a model that costs next to nothing.

Outside the engine is the client's median latency less the mean time in the engine: client, gRPC, front end,
queue, batch former and copies. It is measured for unary calls and for one stream, in turns, three times.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from models import affine
from results import Results, flags, measure

from service.demo.server import running

ROUNDS = 3


def main() -> None:
    arguments = flags(__doc__).parse_args()
    results = Results("overhead", arguments.out)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(affine(Path(folder, "affine.onnx")), "affine") as server,
    ):
        for number in range(1, ROUNDS + 1):
            for way, streams in (("unary", 0), ("stream", 1)):
                found = measure(
                    server.url,
                    "affine",
                    seconds=arguments.seconds,
                    pid=server.pid,
                    streams=streams,
                    warm_up=500,
                )
                results.add(
                    f"one in flight, {way}, round {number}",
                    requests=found.client.count,
                    failed=found.failures,
                    outside_engine_p50_us=found.outside_us,
                    client_p50_us=found.client.p50,
                    client_p99_us=found.client.p99,
                    queue_mean_us=found.work.phase_us["queue"],
                    compute_mean_us=found.work.phase_us["compute_infer"],
                    server_cpu_us_per_request=found.cpu_s * 1e6 / found.client.count,
                )
    results.finish()


if __name__ == "__main__":
    main()
