"""The conformance suite's ground: a service in this process, on the front end under test, and a bare client.

Every test that asks for `serve` runs on each front end there is: a new front end is a new word in FRONTENDS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest
from http2 import Http2
from scripted import ScriptedEngine, affine
from wire import Wire

from service.config import FRONTENDS, ServeConfig
from service.inprocess import InProcess, running
from service.worker.__main__ import open_engines


@pytest.fixture(params=FRONTENDS)
def frontend(request: pytest.FixtureRequest) -> str:
    """The front end under test."""
    if request.param == "native" and find_spec("service.frontend.native._native") is None:
        pytest.skip("needs the native front end: libnghttp2-dev, libssl-dev, zlib1g-dev at installation")
    return request.param


@pytest.fixture
def serve_paths(frontend: str) -> Iterator[Callable[..., Wire]]:
    """serve_paths(*paths): a client of a running service on these repositories and files, as they are now."""
    with ExitStack() as stack:

        def start(*paths: object) -> Wire:
            sizes = {"arena_mb": 16, "output_arena_mb": 16, "grpc_port": 0, "metrics_port": 0}
            config = ServeConfig(tuple(map(str, paths)), frontend=frontend, **sizes)
            wire = Wire(stack.enter_context(running(open_engines(config), config)).address)
            stack.callback(wire.close)
            return wire

        yield start


@pytest.fixture
def serve(frontend: str) -> Iterator[Callable[..., tuple[InProcess, Wire]]]:
    """serve(*engines, **settings): a running service with these engines, and a client of it."""
    with ExitStack() as stack:

        def start(*engines: ScriptedEngine, **settings) -> tuple[InProcess, Wire]:
            settings = {"arena_mb": 16, "output_arena_mb": 16, "grpc_port": 0, "metrics_port": 0, **settings}
            service = stack.enter_context(running(engines, ServeConfig((), frontend=frontend, **settings)))
            wire = Wire(service.address)
            stack.callback(wire.close)
            for engine in engines:
                stack.callback(engine.gate.open)  # a shut gate would hold the end of the test
            return service, wire

        yield start


@pytest.fixture
def bare(serve) -> Iterator[Http2]:
    """A bare HTTP/2 connection to a service that has the model affine."""
    service, _ = serve(affine())
    client = Http2(service.grpc_port)
    yield client
    client.close()
