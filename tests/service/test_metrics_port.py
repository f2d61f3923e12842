"""The metrics port: probes that tell the truth, and counters that agree with what happened."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted import affine
from waiting import LIMIT_S, wait_until
from wire import infer_request, rows, status_of

from service.engines.base import EngineError
from service.telemetry.http import MetricsPort
from service.telemetry.metrics import Metrics, Snapshot


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(service) -> dict[str, float]:
    """Every sample of a scrape, as it stands in the text: name{labels}."""
    found = {}
    for family in text_string_to_metric_families(get(f"{service.metrics_url}/metrics")[1]):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_counters_are_those_of_the_requests_that_were_made(serve, capfd):
    engine = affine()
    service, wire = serve(engine)
    for count in (1, 3, 20):
        wire.infer(infer_request("affine", x=rows(count)))
    healthy = engine.compute

    def fail(x):
        raise EngineError("no")

    engine.compute = fail
    wire.error(infer_request("affine", x=rows(1)))
    engine.compute = healthy
    seen = samples(service)
    assert seen["headrace_ready"] == 1
    assert seen["headrace_requests_in_flight"] == 0
    assert seen["headrace_requests_total{model=affine,outcome=success,version=1}"] == 3
    assert seen["headrace_requests_total{model=affine,outcome=failure,version=1}"] == 1
    assert seen["headrace_inference_count_total{model=affine,version=1}"] == 24
    assert seen["headrace_execution_count_total{model=affine,version=1}"] == 5
    batches = [value for name, value in seen.items() if name.startswith("headrace_batches_total{")]
    assert sum(batches) == 5
    for phase in ("queue", "compute_input", "compute_infer", "compute_output", "request"):
        assert seen[f"headrace_{phase}_seconds_total{{model=affine,version=1}}"] > 0


def test_refused_requests_are_counted_by_reason_and_their_names_make_no_series(serve):
    service, wire = serve(affine())
    before = set(samples(service))
    reasons = {name: value for name, value in samples(service).items() if "headrace_rejected_total" in name}
    assert set(reasons.values()) == {0} and "headrace_rejected_total{reason=shutting_down}" in reasons
    for number in range(20):
        wire.error(infer_request(f"model-{number}", x=rows(1)))
    wire.error(infer_request("affine", x=rows(1, width=5)))
    wire.stream().send(infer_request("model-x", x=rows(1))).half_close().rest()
    seen = samples(service)
    assert seen["headrace_rejected_total{reason=not_found}"] == 21
    assert seen["headrace_rejected_total{reason=invalid_argument}"] == 1
    assert set(seen) == before
    assert "model-" not in get(f"{service.metrics_url}/metrics")[1]


def test_cancelled_and_expired_requests_are_outcomes(serve):
    engine = affine()
    service, wire = serve(engine)
    engine.gate.shut()
    first = wire.infer_later(infer_request("affine", x=rows(1)))
    engine.gate.wait_until_held()
    second = wire.infer_later(infer_request("affine", x=rows(1)))
    wait_until(lambda: service.in_flight == 2, "both in flight")
    assert samples(service)["headrace_requests_in_flight"] == 2
    second.cancel()
    wait_until(lambda: service.in_flight == 1, "the second gone")
    engine.gate.open()
    assert status_of(first) == "OK"
    name = "headrace_requests_total{model=affine,outcome=cancelled,version=1}"
    wait_until(lambda: samples(service)[name] == 1, "one cancelled")


def test_probes_follow_readiness(serve):
    service, _ = serve()
    paths = ["/healthz", "/v2/health/live", "/readyz", "/v2/health/ready"]
    assert [get(service.metrics_url + path)[0] for path in paths] == [200, 200, 503, 503]
    service.start_worker([affine()])
    assert [get(service.metrics_url + path)[0] for path in paths] == [200, 200, 200, 200]
    service.cut_link()
    assert [get(service.metrics_url + path)[0] for path in paths] == [200, 200, 503, 503]
    assert samples(service)["headrace_ready"] == 0


def test_an_unknown_path_names_the_known_ones(serve):
    service, _ = serve()
    status, text = get(f"{service.metrics_url}/metric")
    assert status == 404
    assert "/metrics" in text


def test_every_family_says_what_it_counts_and_in_which_unit():
    text = Metrics(lambda: Snapshot(True, 0, (), {})).text().decode()
    families = list(text_string_to_metric_families(text))
    assert len(families) == 18 and len({family.documentation for family in families}) == 18
    for family in families:
        assert family.documentation.endswith("."), family
        assert family.documentation.startswith("Seconds") == family.name.endswith("_seconds"), family


def test_the_series_of_a_model_go_with_it():
    models: list = []
    metrics = Metrics(lambda: Snapshot(True, 0, tuple(models), {}))
    empty = metrics.text()

    class Stats:
        rows = executions = cancelled = expired = slow = pending_rows = padding_rows = 0
        engine = (0, 0, 0, 0)
        reasons = {"full": 1}

        class success:
            count = ns = 0

        fail = queue = input = compute = output = success

    models.append(("a model", "1", Stats))
    assert b'model="a model"' in metrics.text()
    models.clear()
    assert metrics.text() == empty


@pytest.fixture
def port():
    opened = MetricsPort("127.0.0.1", 0, Metrics(lambda: Snapshot(True, 0, (), {})), lambda: True)
    yield opened
    opened.close()


def test_a_client_that_says_nothing_holds_nobody_up(port):
    silent = socket.create_connection(("127.0.0.1", port.port), LIMIT_S)
    assert get(f"http://127.0.0.1:{port.port}/readyz") == (200, "ready\n")
    silent.close()


def test_a_client_that_talks_nonsense_or_hangs_up_is_survived(port, capfd):
    for words in (
        b"\x00\xff\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n",
        b"POST /metrics HTTP/1.1\r\n\r\n",
        b"G" * 100_000,
    ):
        with socket.create_connection(("127.0.0.1", port.port), LIMIT_S) as client:
            client.sendall(words)
    assert get(f"http://127.0.0.1:{port.port}/healthz") == (200, "live\n")
    assert "Traceback" not in capfd.readouterr().err


def test_closing_gives_the_port_back(port):
    number = port.port
    port.close()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", number))
    port.close = lambda: None
