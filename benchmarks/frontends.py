"""The two front ends beside each other: one model that costs next to nothing, the same load on each in turn.

Both services run all the time, and rounds alternate, so that whatever the machine does it does to both.
The steady figure is the CPU that the whole service (supervisor, front end, worker) spends on a request;
the client is Python and slower than either: requests per second say what it asked for, not what they
could do.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from models import affine
from results import Results, flags, measure

from service.demo.server import running

ROUNDS = 3
LOADS = {  # in flight, and over how many streams (0: unary calls)
    "1 in flight, unary": (1, 0),
    "64 in flight, unary": (64, 0),
    "1 in flight, stream": (1, 1),
    "64 in flight, 16 streams": (64, 16),
}


def main() -> None:
    arguments = flags(__doc__).parse_args()
    results = Results("frontends", arguments.out)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model = affine(Path(folder, "affine.onnx"))
        servers = {
            name: stack.enter_context(running(model, "affine", ["--frontend", name]))
            for name in ("grpcio", "native")
        }
        for number in range(1, ROUNDS + 1):
            for what, (concurrency, streams) in LOADS.items():
                for name, server in servers.items():
                    found = measure(
                        server.url,
                        "affine",
                        seconds=arguments.seconds,
                        pid=server.pid,
                        concurrency=concurrency,
                        streams=streams,
                        warm_up=500,
                    )
                    results.add(
                        f"{name}: {what}, round {number}",
                        requests=found.client.count,
                        failed=found.failures,
                        requests_per_s=found.rows_per_s,
                        client_p50_us=found.client.p50,
                        client_p99_us=found.client.p99,
                        server_cpu_us_per_request=found.cpu_s * 1e6 / found.client.count,
                    )
    results.finish()


if __name__ == "__main__":
    main()
