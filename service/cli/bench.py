"""``headrace bench``: load a model, and say what the client saw beside what the server did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.common import (
    DEFAULT_URL,
    Column,
    ModelVersion,
    Ssl,
    SslClientCert,
    SslClientKey,
    SslRootCert,
    Timeout,
    Url,
    console,
    examples,
    fail,
    print_table,
    talks_to_server,
    tls_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from service.bench.report import ServerWork
    from service.bench.run import MakeInputs, Plan, Report
    from service.client import Tls

EPILOG = examples(
    "headrace bench model                                # one in flight: what does a single call cost?",
    "headrace bench model -c 64 --duration 10            # 64 in flight: what is the throughput?",
    "headrace bench model --rate 400                     # 400 arrivals a second: what do callers wait?",
    "headrace bench model -c 64 --stream                 # through ModelStreamInfer, 16 streams",
    "headrace bench model -c 64 --pid $(pgrep -of 'headrace serve')    # and the server's CPU time",
)
_MAX_STREAMS = 16
_BAR = 30


@talks_to_server
def bench(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model of the server; 'headrace models' lists them.")
    ],
    url: Url = DEFAULT_URL,
    ssl: Ssl = False,
    ssl_root_cert: SslRootCert = "",
    ssl_client_cert: SslClientCert = "",
    ssl_client_key: SslClientKey = "",
    model_version: ModelVersion = "",
    concurrency: Annotated[
        int,
        typer.Option(
            "-c", "--concurrency", metavar="N", min=1, help="Closed loop: so many requests in flight always."
        ),
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option(
            "-r", "--rate", min=0.001, metavar="PER_S", help="Open loop: Poisson arrivals a second."
        ),
    ] = None,
    duration: Annotated[
        float, typer.Option("-d", "--duration", min=0.001, metavar="SECONDS", help="How long to send.")
    ] = 5.0,
    requests: Annotated[
        int | None,
        typer.Option(
            "-n", "--requests", metavar="N", min=1, help="Send so many requests, however long it takes."
        ),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Use ModelStreamInfer, not unary calls.")] = False,
    streams: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="With --stream: how many streams. Left out: one a request, at most 16."
        ),
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="Rows in each request.")] = 1,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:D,D", help="Sizes of an input that has dynamic ones, without the batch axis."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="What to send, as for 'headrace infer'. Left out: random values.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    warm_up: Annotated[
        int, typer.Option(metavar="N", min=1, help="Requests sent before anything is counted.")
    ] = 16,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random values and arrival times.")] = 0,
    pid: Annotated[
        int | None,
        typer.Option(
            metavar="PID", help="A server process on this machine: report its and its children's CPU."
        ),
    ] = None,
    timeout: Timeout = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Load a model and report latency, throughput and the batches that were formed.

    A closed loop (--concurrency) asks how much a server can do; an open loop (--rate) asks what callers
    wait when they come at their own pace, and counts a request's latency from the moment it was due.
    "Outside the engine" is the median latency less the mean time in the engine: with one request in flight,
    what serving adds.
    """
    from service.bench.load import Until
    from service.bench.proc import NoSuchProcess
    from service.bench.run import Plan

    if rate is not None and concurrency != 1:
        fail("--rate sends at its own times, --concurrency keeps a number in flight; give one of them", 2)
    tls = tls_of(ssl, ssl_root_cert, ssl_client_cert, ssl_client_key)
    until = Until(requests=requests) if requests is not None else Until(duration_ns=int(duration * 1e9))
    plan = Plan(
        model=model,
        version=model_version,
        concurrency=concurrency,
        rate=rate,
        until=until,
        streams=(streams or min(concurrency if rate is None else _MAX_STREAMS, _MAX_STREAMS))
        if stream
        else 0,
        warm_up=warm_up,
        timeout_s=timeout,
        seed=seed,
        pid=pid,
    )
    try:
        make_inputs = _inputs_maker(data, rows, _shapes(shape or ()), seed)
        report = asyncio.run(_run(url, tls, plan, make_inputs))
    except NoSuchProcess as error:
        fail(str(error), 2)
    if as_json:
        typer.echo(json.dumps(as_dict(plan, report), indent=2))
    else:
        _print(console(), url, plan, report)
    if not report.tally.latencies_ns:
        raise typer.Exit(1)


async def _run(url: str, tls: Tls | None, plan: Plan, make_inputs: MakeInputs) -> Report:
    from service.bench.clock import MonotonicClock
    from service.bench.run import run
    from service.client import AsyncClient

    async with AsyncClient(url, tls=tls) as client:
        return await run(client, plan, make_inputs, MonotonicClock())


def _inputs_maker(data: Path | None, rows: int, shapes: dict[str, tuple[int, ...]], seed: int) -> MakeInputs:
    from service.client.inputs import load_inputs, random_inputs

    if data is not None:
        return lambda model, batched: load_inputs(data, model, batched)
    return lambda model, batched: random_inputs(model, batched, rows, shapes, seed)


def _shapes(flags: Sequence[str]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for flag in flags:
        name, colon, sizes = flag.rpartition(":")
        try:
            shapes[name] = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            colon = ""
        if not colon or min(shapes[name]) < 0:
            fail(f"--shape is NAME:D,D, for example image:3,224,224; got '{flag}'", 2)
    return shapes


def as_dict(plan: Plan, report: Report) -> dict[str, Any]:
    """The report for machines. Times are in microseconds, CPU in seconds."""
    from service.bench.report import latency, outside_engine_us

    client, work = latency(report.tally.latencies_ns), report.work
    late = latency(report.tally.late_ns)
    return {
        "model": report.model.name,
        "mode": {"rate": plan.rate} if plan.rate is not None else {"concurrency": plan.concurrency},
        "streams": plan.streams,
        "rows_per_request": report.rows,
        "seconds": report.tally.seconds,
        "latency_us": asdict(client) if client else None,
        "late_us": asdict(late) if late else None,
        "failures": dict(report.tally.failures),
        "server": asdict(work) | {"mean_batch": work.mean_batch} if work else None,
        "outside_engine_us": outside_engine_us(client, work) if client and work and work.requests else None,
        "server_lost": report.work_lost or None,
        "server_cpu_s": report.cpu_s,
    }


def _print(out: Console, url: str, plan: Plan, report: Report) -> None:
    from service.bench.report import latency

    tally = report.tally
    loop = f"{plan.concurrency} in flight" if plan.rate is None else f"Poisson arrivals, {plan.rate:g}/s"
    way = f"{plan.streams} streams" if plan.streams else "unary calls"
    out.print(f"{report.model.name} at {url}: {loop}, {way}, {report.rows} row(s) a request", markup=False)
    out.print()
    columns = [
        Column("latency, ms"),
        *(Column(n, right=True) for n in ("mean", "p50", "p90", "p95", "p99", "max")),
    ]
    table = [
        [name, *(f"{value / 1e3:.3f}" for value in (d.mean, d.p50, d.p90, d.p95, d.p99, d.max))]
        for name, d in (("client", latency(tally.latencies_ns)), ("sent late by", latency(tally.late_ns)))
        if d is not None
    ]
    print_table(out, columns, table)
    out.print()
    done = len(tally.latencies_ns)
    rate = done / tally.seconds if tally.seconds else 0.0
    out.print(f"throughput           {rate:,.1f} requests/s, {rate * report.rows:,.1f} rows/s")
    out.print(
        f"requests             {done:,} answered, {tally.failures.total():,} failed in {tally.seconds:.2f} s"
    )
    for reason, count in tally.failures.most_common(5):
        out.print(f"  {count:,} x {reason}", markup=False)
    _print_server(out, report)


def _print_server(out: Console, report: Report) -> None:
    from service.bench.report import PHASES, is_mostly_overhead, latency, outside_engine_us

    work, done = report.work, len(report.tally.latencies_ns)
    if report.cpu_s is not None:
        each = f", {report.cpu_s * 1e6 / done:,.0f} us a request" if done else ""
        out.print(f"server CPU           {report.cpu_s:.2f} s{each}")
    if work is None:
        why = report.work_lost or "this server keeps no statistics (ModelStatistics)"
        out.print(f"batches, engine time unknown: {why}", markup=False)
        return
    queue, copy_in, compute, copy_out = (work.phase_us[name] / 1e3 for name in PHASES)
    out.print(
        f"in the server, mean  queue {queue:.3f} ms, copy-in {copy_in:.3f}, compute {compute:.3f}, "
        f"copy-out {copy_out:.3f}"
    )
    client = latency(report.tally.latencies_ns)
    if client and work.requests:
        outside = outside_engine_us(client, work) / 1e3
        out.print(
            f"outside the engine   {outside:.3f} ms (median latency less mean compute, so queueing included)"
        )
        if is_mostly_overhead(client, work):
            out.print(
                f"hint                 the model itself takes {compute:.3f} ms: these figures are the cost "
                "of serving, not of a model; bench one that computes more to see what batching gains"
            )
    if work.requests > done + report.tally.failures.total():
        out.print(f"somebody else        sent {work.requests - done:,} more requests to this model meanwhile")
    _print_batches(out, work)


def _print_batches(out: Console, work: ServerWork) -> None:
    out.print(f"batches              {work.batches:,} of {work.mean_batch:.2f} rows on average")
    if not work.by_size:
        return
    out.print()
    most = max(work.by_size.values())
    rows = [
        [
            str(size),
            f"{count:,}",
            f"{count / sum(work.by_size.values()):.1%}",
            "#" * max(1, count * _BAR // most),
        ]
        for size, count in work.by_size.items()
    ]
    columns = [
        Column("rows", right=True),
        Column("batches", right=True),
        Column("share", right=True),
        Column(""),
    ]
    print_table(out, columns, rows)
