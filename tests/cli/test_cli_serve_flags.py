"""``headrace serve``: every flag reaches the configuration, faults end with exit code 2. It is not run."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_server import Run

import service.supervisor
from service.config import ServeConfig


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServeConfig]:
    """The configurations that would have been served."""
    configs: list[ServeConfig] = []

    def serve(config: ServeConfig) -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr(service.supervisor, "serve", serve)
    return configs


def test_without_flags_the_configuration_is_the_default(run: Run, started: list[ServeConfig]) -> None:
    assert run("serve", "model.onnx").exit_code == 0
    assert started == [ServeConfig(model_paths=("model.onnx",))]


def test_every_flag_reaches_the_configuration(run: Run, started: list[ServeConfig]) -> None:
    flags = {
        "--grpc-port": 1,
        "--metrics-port": 2,
        "--host": "::1",
        "--max-batch-size": 3,
        "--max-batch-wait-us": 4,
        "--instances": 5,
        "--server-name": "six",
        "--frontend": "grpcio",
        "--arena-mb": 7,
        "--output-arena-mb": 8,
        "--spill-mb": 9,
        "--slots-per-lane": 11,
        "--max-message-bytes": 14000,
        "--max-calls": 12,
        "--answer-mb": 13,
        "--status-codes": "triton",
        "--grpc-unix-socket": "h.sock",
        "--grpc-infer-response-compression-level": "medium",
        "--grpc-keepalive-time": 15,
        "--grpc-keepalive-timeout": 16,
        "--grpc-keepalive-permit-without-calls": "false",
        "--grpc-http2-max-pings-without-data": 17,
        "--grpc-http2-min-recv-ping-interval-without-data": 18,
        "--grpc-http2-max-ping-strikes": 19,
        "--grpc-max-connection-age": 20,
        "--grpc-max-connection-age-grace": 21,
        "--device": "22,cuda:7",
        "--streams": 23,
        "--model-control-mode": "explicit",
        "--load-model": "a",
        "--drain-timeout": 9.5,
        "--ready-fd": 10,
    }
    assert run("serve", "a.onnx", "b.onnx", *(part for item in flags.items() for part in item)).exit_code == 0
    (config,) = started
    assert config == ServeConfig(
        model_paths=("a.onnx", "b.onnx"),
        grpc_port=1,
        metrics_port=2,
        host="::1",
        max_batch_size=3,
        max_batch_wait_us=4,
        instances=5,
        server_name="six",
        frontend="grpcio",
        arena_mb=7,
        output_arena_mb=8,
        spill_mb=9,
        slots_per_lane=11,
        max_message_bytes=14000,
        max_calls=12,
        answer_mb=13,
        status_codes="triton",
        grpc_unix_socket="h.sock",
        grpc_infer_response_compression_level="medium",
        grpc_keepalive_time_ms=15,
        grpc_keepalive_timeout_ms=16,
        grpc_keepalive_permit_without_calls=False,
        grpc_http2_max_pings_without_data=17,
        grpc_http2_min_recv_ping_interval_without_data_ms=18,
        grpc_http2_max_ping_strikes=19,
        grpc_max_connection_age_ms=20,
        grpc_max_connection_age_grace_ms=21,
        devices=(22, 7),
        streams=23,
        model_control_mode="explicit",
        load_models=("a",),
        drain_timeout_s=9.5,
        ready_fd=10,
    )


@pytest.mark.parametrize(("word", "value"), [("0", False), ("true", True), ("False", False), ("1", True)])
def test_a_truth_is_read_as_triton_reads_it(
    run: Run, started: list[ServeConfig], word: str, value: bool
) -> None:
    assert run("serve", "model.onnx", f"--grpc-keepalive-permit-without-calls={word}").exit_code == 0
    assert started[0].grpc_keepalive_permit_without_calls is value


def test_what_is_no_truth_is_said(run: Run) -> None:
    result = run("serve", "model.onnx", "--grpc-keepalive-permit-without-calls", "maybe")
    assert result.exit_code == 2
    assert "maybe" in result.stderr


def test_what_names_no_device_is_said(run: Run) -> None:
    result = run("serve", "model.onnx", "--device", "tpu")
    assert result.exit_code == 2
    assert "--device" in result.stderr and "'tpu'" in result.stderr


def test_the_services_exit_code_is_the_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.supervisor, "serve", lambda config: 3)
    assert run("serve", "model.onnx").exit_code == 3


def test_all_faults_are_said_at_once_with_exit_code_2(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing.onnx"
    result = run("serve", missing, "--instances", 0, "--grpc-port", 70000, "--frontend", "carrier-pigeon")
    assert result.exit_code == 2
    for fault in (
        f"cannot read model '{missing}'",
        "--instances must be",
        "--grpc-port must be",
        "carrier-pigeon",
    ):
        assert fault in result.stderr


def test_a_model_is_required(run: Run) -> None:
    result = run("serve")
    assert result.exit_code == 2 and "MODEL.onnx" in result.stderr
