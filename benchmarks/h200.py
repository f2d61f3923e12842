"""The table of a visit to a GPU: every figure beside the bare loop of the same visit, as a ratio.

usage: h200.py RESULTS      the folder that tests/gpu/run.sh fills

The bare loop is TensorRT without a service: `whole` copies each batch in and its result out, on the batch's
own stream.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IMAGES = "resnet50_u8"  # the model whose rows are images as bytes

Row = tuple[str, str, str, str]


def main() -> None:
    folder = Path(sys.argv[1])
    reports = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if not reports:
        raise SystemExit(f"{folder}: no results there; expected what run.sh writes")
    print("\n".join(lines(reports, bare_loops(folder))))


def lines(reports: dict[str, Any], bare: dict[str, Any]) -> Iterator[str]:
    machine = next(iter(reports.values()))["machine"]
    yield "# On one NVIDIA H200"
    yield ""
    yield (
        f"{datetime.date.today()}, commit {machine['commit']}; {machine['cores']} cores ({machine['cpu']}), "
        "which the load shares with the service. Rates are the growth of the service's own count of rows "
        "over the time."
    )
    for title, rows in (
        ("The worker by itself, fed by native producers", worker_rows(reports, bare)),
        ("Streams, batches and precisions, of the same worker", gain_rows(reports)),
        ("Through gRPC, client included", grpc_rows(reports, bare)),
        ("Three models on one device", sharing_rows(reports)),
    ):
        found = list(rows)
        if found:
            yield from table(title, found)
    yield ""
    yield "Plans: " + "; ".join(sorted(set(plans(reports)))) + "."


def table(title: str, rows: list[Row]) -> Iterator[str]:
    yield from ("", f"## {title}", "", "| what | figure | beside | ratio |", "|---|---|---|---|")
    yield from (f"| {' | '.join(row)} |" for row in rows)


def bare_loops(folder: Path) -> dict[str, Any]:
    """{model.precision: {(batch, streams): items per second, copies included}}"""
    found: dict[str, Any] = {}
    for path in folder.glob("bare_*.txt"):
        model = path.stem.removeprefix("bare_")
        for one in json.loads(path.read_text().splitlines()[-1]):
            found.setdefault(f"{model}.{one['precision']}", {})[one["batch"], one["streams"]] = one["whole"]
    return found


def results(report: Any) -> dict[str, Any]:
    return {one["what"]: one for one in report["results"]}


def setting(what: str) -> tuple[int, int] | None:
    """(batch, streams) of a line of worker.py."""
    found = re.match(r"batch (\d+), streams (\d+)", what)
    return (int(found[1]), int(found[2])) if found else None


def worker_rates(reports: dict[str, Any]) -> dict[str, dict[tuple[int, int], Any]]:
    """{plan: {(batch, streams): result}}"""
    found: dict[str, dict[tuple[int, int], Any]] = {}
    for name, report in reports.items():
        if name.startswith("worker_"):
            plan = report["results"][0]["what"].partition(".plan")[0]
            rates = found.setdefault(plan, {})
            rates.update({at: one for what, one in results(report).items() if (at := setting(what))})
    return found


def worker_rows(reports: dict[str, Any], bare: dict[str, Any]) -> Iterator[Row]:
    for plan, rates in worker_rates(reports).items():
        for at in ((128, 4), (32, 4)):
            if at not in rates:
                continue
            one, bar = rates[at], bare.get(plan, {}).get(at)
            figure = (
                f"{one['rows_per_s']:,.0f}/s, p99 {one['p99_ms']:.1f} ms, "
                f"{one['worker_cpu_us_per_row']:.1f} us of CPU a row, batches of {one['mean_batch']:.0f}, "
                f"busy {one['device_busy_percent']:.0f} %"
            )
            beside = f"bare {bar:,.0f}/s" if bar else ""
            yield f"{plan}, batch {at[0]}, streams {at[1]}", figure, beside, ratio(one["rows_per_s"], bar)


def gain_rows(reports: dict[str, Any]) -> Iterator[Row]:
    rates = worker_rates(reports)

    def gain(
        what: str, upper: tuple[str, tuple[int, int]], lower: tuple[str, tuple[int, int]]
    ) -> Iterator[Row]:
        one, other = (rates.get(plan, {}).get(at) for plan, at in (upper, lower))
        if one and other:
            a, b = one["rows_per_s"], other["rows_per_s"]
            yield what, f"{a:,.0f}/s", f"{b:,.0f}/s", ratio(a, b)

    fp16, fp32, int8 = (f"{IMAGES}.{precision}" for precision in ("fp16", "fp32", "int8"))
    yield from gain("batch 128 over batch 1, one stream", (fp16, (128, 1)), (fp16, (1, 1)))
    yield from gain("4 streams over 1, batch 8", (fp16, (8, 4)), (fp16, (8, 1)))
    yield from gain("FP16 over FP32, batch 128", (fp16, (128, 4)), (fp32, (128, 4)))
    yield from gain("INT8 over FP16, batch 128", (int8, (128, 4)), (fp16, (128, 4)))


def grpc_rows(reports: dict[str, Any], bare: dict[str, Any]) -> Iterator[Row]:
    bar = bare.get(f"{IMAGES}.fp16", {}).get((128, 4))
    for what, one in results(reports["grpc"]).items() if "grpc" in reports else ():
        if "rows_per_s" not in one:
            continue
        figure = (
            f"{one['rows_per_s']:,.0f}/s, p50 {one['p50_ms']:.2f} ms, p99 {one['p99_ms']:.2f} ms, "
            f"CPU a request {one['server_cpu_us_per_request']:.0f} us, of the client "
            f"{one['client_cpu_us_per_request']:.0f} us, batches of {one['mean_batch']:.0f}, "
            f"in the worker {phases_ms(one)} ms, busy {one['device_busy_percent']:.0f} %"
        )
        yield what, figure, f"bare {bar:,.0f}/s" if bar else "", ratio(one["rows_per_s"], bar)


def phases_ms(one: dict[str, float]) -> str:
    names = {
        "queue": "queue",
        "compute_input": "copy in",
        "compute_infer": "compute",
        "compute_output": "answer",
    }
    return ", ".join(f"{name} {one[f'{phase}_us'] / 1000:.2f}" for phase, name in names.items())


def sharing_rows(reports: dict[str, Any]) -> Iterator[Row]:
    for one in reports["sharing"]["results"] if "sharing" in reports else ():
        if "ratio" in one:
            yield one["what"], str(one["figure"]), str(one["beside"]), f"{one['ratio']:.2f}"


def plans(reports: dict[str, Any]) -> Iterator[str]:
    for name, report in reports.items():
        if name.startswith("worker_"):
            yield report["results"][0]["what"]


def ratio(figure: float, beside: float | None) -> str:
    return f"{figure / beside:.2f}" if beside else ""


if __name__ == "__main__":
    main()
