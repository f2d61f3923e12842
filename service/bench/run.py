"""One load test from start to end: learn the model, build a request, warm up, load, ask the server.

The server's counters are read before and after. They may trail the answers by a moment (whoever counts is
not whoever answers), so the second reading is repeated, a bounded number of times, until it covers what was
answered. A server that ends in the middle costs the report its side of the story, never what the client saw.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from service._pb import inference as pb
from service.bench.clock import Clock
from service.bench.load import Send, Tally, Until, closed_loop, open_loop, poisson_gaps_ns
from service.bench.proc import NoSuchProcess, cpu_seconds
from service.bench.report import ServerWork, server_work
from service.bench.senders import StreamSender, UnarySender
from service.client import AsyncClient, ClientError, ModelInfo, RpcFailed, infer_request
from service.client.inputs import looks_batched
from service.client.tensors import Array

MakeInputs = Callable[[ModelInfo, bool], dict[str, Array]]

_READINGS = 20
_BETWEEN_READINGS_NS = 10_000_000


@dataclass(frozen=True)
class Plan:
    """What to do. ``rate`` (requests a second) makes it an open loop, else ``concurrency`` are in flight.

    ``streams`` 0 sends unary calls; ``pid`` is a server process on this machine whose CPU time to report.
    """

    model: str
    version: str
    concurrency: int
    rate: float | None
    until: Until
    streams: int
    warm_up: int
    timeout_s: float
    seed: int
    pid: int | None


@dataclass(frozen=True)
class Report:
    """What came of it.

    ``work`` is None where the server has no statistics or, with the reason in ``work_lost``, did not live to
    tell; ``cpu_s`` is None without a pid, and where that process is gone.
    """

    model: ModelInfo
    rows: int
    tally: Tally
    work: ServerWork | None
    cpu_s: float | None
    work_lost: str = ""


async def run(client: AsyncClient, plan: Plan, make_inputs: MakeInputs, clock: Clock) -> Report:
    """Runs a plan. Raises ClientError when the server is not there or refuses the very first request."""
    model = await client.model_metadata(plan.model, plan.version)
    batched = await is_batched(client, model, plan.version)
    inputs = make_inputs(model, batched)
    request = infer_request(plan.model, inputs, version=plan.version)
    rows = next(iter(inputs.values())).shape[0] if batched and inputs else 1
    async with AsyncExitStack() as stack:
        send = await _sender(client, plan, request.SerializeToString(), stack)
        await _warm_up(send, plan, clock)
        before = await _statistics(client, plan)
        cpu_before = cpu_seconds(plan.pid) if plan.pid is not None else 0.0
        tally = await _load(send, plan, clock)
        cpu_s = _cpu_since(cpu_before, plan.pid)
        work, lost = await _work_or_why_not(before, client, plan, tally, clock)
    return Report(model, rows, tally, work, cpu_s, lost)


async def is_batched(client: AsyncClient, model: ModelInfo, version: str = "") -> bool:
    """Whether axis 0 of every tensor is the batch axis.

    The configuration says so; a server without one is guessed at.
    """
    try:
        return (await client.model_config(model.name, version)).max_batch_size > 0
    except RpcFailed as error:
        if error.code != "UNIMPLEMENTED":
            raise
    return looks_batched(model)


async def _sender(client: AsyncClient, plan: Plan, request: bytes, stack: AsyncExitStack) -> Send:
    if plan.streams:
        return await stack.enter_async_context(StreamSender(client, request, plan.timeout_s, plan.streams))
    return UnarySender(client, request, plan.timeout_s)


async def _warm_up(send: Send, plan: Plan, clock: Clock) -> None:
    tally = await closed_loop(send, 1, Until(requests=1), clock)
    if tally.failures:
        raise ClientError(f"the first request failed: {next(iter(tally.failures))}")
    if plan.warm_up > 1:
        await closed_loop(send, plan.concurrency, Until(requests=plan.warm_up - 1), clock)


async def _load(send: Send, plan: Plan, clock: Clock) -> Tally:
    if plan.rate is None:
        return await closed_loop(send, plan.concurrency, plan.until, clock)
    return await open_loop(send, poisson_gaps_ns(plan.rate, plan.seed), plan.until, clock)


async def _statistics(client: AsyncClient, plan: Plan) -> pb.ModelStatistics | None:
    try:
        found = await client.model_statistics(plan.model, plan.version)
    except RpcFailed as error:
        if error.code != "UNIMPLEMENTED":
            raise
        return None
    return found[-1] if found else None  # without a version: the newest is last


def _cpu_since(before: float, pid: int | None) -> float | None:
    try:
        return cpu_seconds(pid) - before if pid is not None else None
    except NoSuchProcess:  # it was there before the load
        return None


async def _work_or_why_not(
    before: pb.ModelStatistics | None, client: AsyncClient, plan: Plan, tally: Tally, clock: Clock
) -> tuple[ServerWork | None, str]:
    try:
        work = await _work_since(before, client, plan, tally, clock)
    except ClientError as error:
        return None, f"the server did not answer ModelStatistics after the load: {error}"
    if work is not None and work.requests < 0:
        return (
            None,
            "the server's counters started anew during the load: it, or its worker, was started again",
        )
    return work, ""


async def _work_since(
    before: pb.ModelStatistics | None, client: AsyncClient, plan: Plan, tally: Tally, clock: Clock
) -> ServerWork | None:
    if before is None:
        return None
    for _ in range(_READINGS):
        after = await _statistics(client, plan)
        if after is None:
            return None
        work = server_work(before, after)
        if work.requests >= len(tally.latencies_ns):
            break
        await clock.wait_until(clock.now_ns() + _BETWEEN_READINGS_NS)
    return work
