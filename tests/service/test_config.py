"""A configuration is checked as a whole: all faults at once, each naming flag, bound and what came."""

from __future__ import annotations

import os
from dataclasses import FrozenInstanceError, replace

import pytest

from service.config import ServeConfig, devices_from
from service.errors import ConfigError


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "affine.onnx"
    path.write_bytes(b"model")
    return str(path)


def faults_of(config: ServeConfig) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        config.check()
    return caught.value.faults


def test_the_defaults_with_a_readable_model_are_in_order(model):
    ServeConfig((model,)).check()


def test_it_is_frozen(model):
    with pytest.raises(FrozenInstanceError):
        ServeConfig((model,)).grpc_port = 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grpc_port": 65536}, ["--grpc-port", "65535", "65536"]),
        ({"metrics_port": -1}, ["--metrics-port", "-1"]),
        ({"max_batch_size": -1}, ["--max-batch-size", "-1"]),
        ({"max_batch_wait_us": -5}, ["--max-batch-wait-us", "-5"]),
        ({"instances": 0}, ["--instances", "0"]),
        ({"devices": (0, 64)}, ["--device", "63", "64"]),
        ({"devices": ()}, ["--device", "1 to 16", "''"]),
        ({"devices": (2, 1, 2)}, ["--device", "each once", "'2,1,2'"]),
        ({"drain_timeout_s": -1.0}, ["--drain-timeout", "-1"]),
        ({"drain_timeout_s": float("nan")}, ["--drain-timeout", "nan"]),
        ({"arena_mb": 0}, ["--arena-mb", "0"]),
        ({"output_arena_mb": 0}, ["--output-arena-mb"]),
        ({"slots_per_lane": 0}, ["--slots-per-lane"]),
        ({"grpc_keepalive_time_ms": 0}, ["--grpc-keepalive-time", "2147483647", "0"]),
        ({"grpc_keepalive_timeout_ms": -1}, ["--grpc-keepalive-timeout", "-1"]),
        ({"grpc_http2_max_pings_without_data": -1}, ["--grpc-http2-max-pings-without-data", "-1"]),
        (
            {"grpc_http2_min_recv_ping_interval_without_data_ms": -1},
            ["--grpc-http2-min-recv-ping-interval-without-data", "-1"],
        ),
        ({"grpc_http2_max_ping_strikes": -1}, ["--grpc-http2-max-ping-strikes", "-1"]),
        ({"grpc_max_connection_age_ms": 2**31}, ["--grpc-max-connection-age", str(2**31)]),
        ({"grpc_max_connection_age_grace_ms": -1}, ["--grpc-max-connection-age-grace", "-1"]),
        ({"grpc_port": 7000, "metrics_port": 7000}, ["--grpc-port", "--metrics-port", "7000"]),
        ({"host": ""}, ["--host"]),
        ({"server_name": ""}, ["--server-name"]),
        ({"frontend": "carrier-pigeon"}, ["--frontend", "grpcio", "carrier-pigeon"]),
        ({"ready_fd": 1 << 20}, ["--ready-fd", str(1 << 20)]),
        ({"model_paths": ()}, ["no model"]),
        ({"model_paths": ("/nowhere/x.onnx",)}, ["/nowhere/x.onnx", "No such file"]),
        ({"model_paths": ("bad\0path",)}, ["bad\0path"]),
        ({"model_paths": ("/dev/null",)}, ["/dev/null", "neither a regular file nor a directory"]),
    ],
)
def test_each_fault_says_what_was_expected_and_what_came(model, change, words):
    (fault,) = faults_of(replace(ServeConfig((model,)), **change))
    for word in words:
        assert word in fault


def test_all_faults_come_at_once(model):
    config = ServeConfig(("/nowhere.onnx", model), grpc_port=-1, metrics_port=70000, instances=0, host="")
    assert len(faults_of(config)) == 5


def test_two_models_of_one_name_are_a_fault(tmp_path, model):
    other = tmp_path / "other"
    other.mkdir()
    (other / "affine.onnx").write_bytes(b"")
    (fault,) = faults_of(ServeConfig((model, str(other / "affine.onnx"))))
    assert model in fault
    assert str(other) in fault
    assert "'affine'" in fault


def test_an_unreadable_model_is_a_fault(model, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # to root every file is readable
    (fault,) = faults_of(ServeConfig((model,)))
    assert "Permission denied" in fault


@pytest.mark.parametrize(
    ("text", "devices"), [("0", (0,)), ("3", (3,)), ("0,1", (0, 1)), ("cuda:2, cuda:0", (2, 0))]
)
def test_devices_are_numbers_with_commas(text, devices):
    assert devices_from(text) == devices


@pytest.mark.parametrize("text", ["", "gpu0", "0,", "-1", "cuda:", "0 1", "\u0661", "1" * 5000])
def test_what_names_no_device_is_said(text):
    with pytest.raises(ValueError, match="expected numbers of GPUs"):
        devices_from(text)


def test_two_free_ports_do_not_collide(model):
    ServeConfig((model,), grpc_port=0, metrics_port=0).check()


def test_it_crosses_a_socket_unchanged(model):
    config = ServeConfig((model,), max_batch_size=8, drain_timeout_s=1.5, ready_fd=1)
    assert ServeConfig.from_json(config.to_json()) == config


def test_a_field_of_another_version_is_refused():
    with pytest.raises(TypeError, match="speed"):
        ServeConfig.from_json('{"model_paths": [], "speed": 11}')
