"""TestService on the native front end, in a process of its own: says its port, ends with its input."""

from __future__ import annotations

import sys

from interop_service import handlers

from service.config import ServeConfig
from service.inprocess import InProcess, running

SETTINGS = {"frontend": "native", "arena_mb": 16, "output_arena_mb": 16, "grpc_port": 0, "metrics_port": 0}


def serve(service: InProcess) -> None:
    service.frontend.server.methods.add(handlers())
    print(service.grpc_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    with running((), ServeConfig((), model_control_mode="explicit", **SETTINGS)) as service:
        serve(service)
