"""Models on a device behind the real front end, on the driver of the tests, which keeps the rules."""

from __future__ import annotations

import ctypes
import json
import threading
from collections import Counter
from dataclasses import replace

import grpc
import numpy as np
import pytest
from device_models import MB, AffineModel, ask_from_threads, device_config
from fake_driver import HostCompute
from waiting import wait_until

from service._pb import inference as pb
from service._pb import model_config
from service.client import Client, RpcFailed
from service.cuda.device import the_device
from service.cuda.memory import NoRoom
from service.errors import StartError
from service.frontend.rpcs import SERVICE
from service.inprocess import running
from service.models.counts import GRAPH_HITS, GRAPH_MISSES, PINNED_FALLBACKS

NO_MEMORY, ILLEGAL_ADDRESS = 2, 700
KIND_GPU = model_config.ModelInstanceGroup.KIND_GPU


def affine(name: str = "affine", **settings) -> AffineModel:
    return AffineModel(HostCompute, name, **settings)


def test_answers_from_eight_threads_are_their_own(fake: ctypes.CDLL) -> None:
    models = [affine("a"), affine("b", sizes=(8,), scratch_bytes=3 * MB), affine("c", capturable=False)]
    with running(models, device_config()) as service:
        fake.fake_serving(1)
        assert ask_from_threads(service.address, ["a", "b", "c"]) == []
        fake.fake_serving(0)
        a, b, c = service._worker._former.stats()
        assert a.engine[GRAPH_HITS] == a.executions and a.engine[GRAPH_MISSES] == 0
        assert b.engine[GRAPH_HITS] == b.executions
        assert c.engine[GRAPH_MISSES] == c.executions and c.engine[GRAPH_HITS] == 0
        assert b.padding_rows == 8 * b.executions - b.rows
        assert a.engine[PINNED_FALLBACKS] == b.engine[PINNED_FALLBACKS] == c.engine[PINNED_FALLBACKS] == 0


@pytest.mark.parametrize("width", [1, 7, 3000])
def test_shapes_that_vary_and_shapes_that_depend_on_data(fake: ctypes.CDLL, width: int) -> None:
    models = [affine("varying", dims=(-1,)), affine("settling", dims=(-1,), settling=True)]
    with running(models, device_config()) as service:
        fake.fake_serving(1)
        found = ask_from_threads(service.address, ["varying", "settling"], requests=40, width=width)
        fake.fake_serving(0)
        assert found == []


def test_a_model_that_does_not_batch(fake: ctypes.CDLL) -> None:
    with (
        running([affine(sizes=(0,), dims=(3, 2))], device_config()) as service,
        Client(service.address) as client,
    ):
        x = np.arange(6, dtype=np.float32).reshape(3, 2)
        assert np.array_equal(client.infer("affine", {"x": x}).outputs["y"], 2 * x + 1)


def test_clients_are_told_where_a_model_runs_and_what_it_has_there(fake: ctypes.CDLL) -> None:
    said = json.dumps({"instance_group": [{"count": 2}, {"kind": "KIND_AUTO", "gpus": [0, 1]}]})
    models = [affine("plain"), affine("said", config_json=said, weights=5 * MB)]
    with running(models, device_config()) as service, grpc.insecure_channel(service.address) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/ModelConfig",
            pb.ModelConfigRequest.SerializeToString,
            pb.ModelConfigResponse.FromString,
        )
        groups = [call(pb.ModelConfigRequest(name=name)).config.instance_group for name in ("plain", "said")]
        assert [[(g.kind, g.count, list(g.gpus)) for g in group] for group in groups] == [
            [(KIND_GPU, 4, [0])],
            [(KIND_GPU, 2, [0]), (KIND_GPU, 1, [0])],
        ]
        usage = memory_usage(channel)
        accounts = {model.spec.name: model.memory for model in models}
        assert usage == {name: [("GPU", 0, account.held_bytes)] for name, account in accounts.items()}
        assert all(account.held_bytes == account.loaded_bytes > 0 for account in accounts.values())
        assert usage["said"][0][2] >= 5 * MB
        assert sum(found[0][2] for found in usage.values()) <= fake.fake_used()
        service.cut_link()
        assert memory_usage(channel) == {"plain": [], "said": []}, "what is gone has nothing"


def memory_usage(channel: grpc.Channel) -> dict[str, list[tuple[str, int, int]]]:
    call = channel.unary_unary(
        f"/{SERVICE}/ModelStatistics",
        pb.ModelStatisticsRequest.SerializeToString,
        pb.ModelStatisticsResponse.FromString,
    )
    stats = call(pb.ModelStatisticsRequest()).model_stats
    return {s.name: [(m.type, m.id, m.byte_size) for m in s.memory_usage] for s in stats}


def test_readiness_names_the_device(fake: ctypes.CDLL) -> None:
    with running([affine()], device_config()) as service:
        assert service._worker.devices.names == ["cuda:0 Fake 0"]


def test_loads_and_unloads_return_to_the_baseline_while_others_serve(fake: ctypes.CDLL) -> None:
    with running([affine("stays")], device_config()) as service:
        wrong: list[str] = []
        asking = threading.Thread(
            target=lambda: wrong.extend(ask_from_threads(service.address, ["stays"], threads=4, requests=300))
        )
        asking.start()
        before = fake.fake_used()
        for _ in range(50):
            model = service._worker._models.add(affine("comes", scratch_bytes=8 * MB, sizes=(1, 64)))
            assert fake.fake_used() > before
            service._worker._models.remove(model)
            assert fake.fake_used() == before
        asking.join()
        assert wrong == []


def test_memory_is_shared_by_models_that_run_by_turns(fake: ctypes.CDLL) -> None:
    with running([affine("a", scratch_bytes=8 * MB, weights=0)], device_config()) as service:
        alone = fake.fake_used()
        added = service._worker._models.add(affine("b", scratch_bytes=8 * MB, weights=0))
        assert fake.fake_used() == alone
        service._worker._models.remove(added)


def test_a_model_beyond_its_cap_is_refused_and_others_go_on(fake: ctypes.CDLL) -> None:
    with running([affine("stays")], device_config()) as service:
        before = fake.fake_used()
        with pytest.raises(NoRoom, match="model 'big' needs 80 MB on device 0; gpu_memory_limit is 50 MB"):
            affine("big", weights=80 * MB, limit=50 * MB)
        big = affine("big", weights=10 * MB, scratch_bytes=40 * MB, limit=50 * MB)
        with pytest.raises(NoRoom, match="gpu_memory_limit is 50 MB, and [0-9]+ MB of the device are free"):
            service._worker._models.add(big)
        assert fake.fake_used() == before
        assert ask_from_threads(service.address, ["stays"], requests=10) == []


def test_a_load_that_the_device_has_no_memory_for_leaves_nothing(fake: ctypes.CDLL) -> None:
    with running([affine("stays")], device_config()) as service:
        before = fake.fake_used()
        with pytest.raises(NoRoom, match="it has no gpu_memory_limit"):
            service._worker._models.add(affine("big", scratch_bytes=600 * MB))
        assert fake.fake_used() == before
        assert ask_from_threads(service.address, ["stays"], requests=10) == []


def test_memory_that_runs_out_fails_that_batch_alone(fake: ctypes.CDLL) -> None:
    model = affine("varying", dims=(-1,), limit=24 * MB, longest=1 << 30)
    with running([model], device_config()) as service, Client(service.address) as client:
        with pytest.raises(RpcFailed) as refused:
            client.infer("varying", {"x": np.ones((1, 3 * MB), np.float32)})
        assert refused.value.code == "RESOURCE_EXHAUSTED"
        assert "has no more memory on its device" in str(refused.value)
        assert ask_from_threads(service.address, ["varying"], requests=20) == []


def test_a_shape_that_no_context_takes_is_the_callers_fault(fake: ctypes.CDLL) -> None:
    with running([affine("varying", dims=(-1,), longest=100)], device_config()) as service:
        with Client(service.address) as client, pytest.raises(RpcFailed) as refused:
            client.infer("varying", {"x": np.ones((1, 101), np.float32)})
        assert refused.value.code == "INVALID_ARGUMENT"
        assert ask_from_threads(service.address, ["varying"], requests=10) == []


@pytest.mark.parametrize("name", ["cuMemcpyDtoHAsync_v2", "cuLaunchHostFunc", "cuMemcpyHtoDAsync_v2"])
def test_a_call_that_fails_fails_its_batch_alone(fake: ctypes.CDLL, name: str) -> None:
    with running([affine(capturable=False)], device_config()) as service, Client(service.address) as client:
        fake.fake_fail_next(name.encode(), 1)
        with pytest.raises(RpcFailed) as refused:
            client.infer("affine", {"x": np.ones((1, 4), np.float32)})
        assert refused.value.code == "INTERNAL"
        assert "CUDA_ERROR_INVALID_VALUE (1)" in str(refused.value)
        assert ask_from_threads(service.address, ["affine"], requests=10) == []


def test_what_an_engine_raises_is_its_batchs_answer(fake: ctypes.CDLL) -> None:
    model = affine(capturable=False)
    with running([model], device_config()) as service, Client(service.address) as client:
        model.fails = "it fell over"
        with pytest.raises(RpcFailed, match="it fell over") as refused:
            client.infer("affine", {"x": np.ones((1, 4), np.float32)})
        assert refused.value.code == "INTERNAL"
        model.fails = ""
        assert ask_from_threads(service.address, ["affine"], requests=10) == []


def test_a_load_whose_warm_up_fails_leaves_nothing(fake: ctypes.CDLL) -> None:
    with running([affine("stays")], device_config()) as service:
        before = fake.fake_used()
        with pytest.raises(
            StartError, match="failed when it was tried on cuda:0 Fake 0: expected at most 16"
        ):
            service._worker._models.add(affine("short", longest=16))
        assert fake.fake_used() == before


def test_inputs_that_are_not_pinned_arrive_all_the_same(fake: ctypes.CDLL, capfd) -> None:
    fake.fake_pageable(1)
    with running([affine("long", dims=(MB,), longest=8 * MB)], device_config(arena_mb=4)) as service:
        with Client(service.address) as client:
            x = np.arange(MB, dtype=np.float32)[None]  # 4 MB: beyond an eighth of the arena, so it spills
            for _ in range(2):
                assert np.array_equal(client.infer("long", {"x": x}).outputs["y"], 2 * x + 1)
        (stats,) = service._worker._former.stats()
        assert stats.engine[PINNED_FALLBACKS] == 2
    (told,) = [line for line in capfd.readouterr().err.splitlines() if "pinned" in line]
    assert "model 'long': a batch of 4,194,304 bytes was not all in pinned memory" in told
    assert told.endswith("raise --arena-mb")


def test_a_front_end_that_leaves_takes_its_pinned_memory_with_it(fake: ctypes.CDLL) -> None:
    with running([affine()], device_config()) as service:
        lanes = service._worker.devices.executor()._lanes
        assert len(lanes) == 1
        service.cut_link()
        wait_until(lambda: not lanes, "the lane to be let go of")


def test_a_device_that_is_lost_ends_the_worker_with_a_sentence(fake: ctypes.CDLL) -> None:
    with running([affine()], device_config()) as service, Client(service.address) as client:
        said: list[str] = []
        ended = threading.Event()
        the_device().on_broken = lambda text: (said.append(text), ended.set())
        fake.fake_sticky(ILLEGAL_ADDRESS)
        with pytest.raises(RpcFailed) as refused:
            client.infer("affine", {"x": np.ones((1, 4), np.float32)})
        assert refused.value.code == "UNAVAILABLE"
        assert ended.wait(60)
        assert said == [
            "cuda:0 Fake 0 is lost to this process: CUDA_ERROR_ILLEGAL_ADDRESS (700); "
            "the worker is ended and started again"
        ]


def test_a_client_whose_load_finds_no_room_is_told_so_with_the_numbers(fake: ctypes.CDLL, tmp_path) -> None:
    (tmp_path / "big/1").mkdir(parents=True)
    (tmp_path / "big/1/model.onnx").touch()
    config = replace(device_config(model_control_mode="explicit"), model_paths=(str(tmp_path),))

    def open_one(found):
        return affine("big", weights=80 * MB, limit=50 * MB)

    with running([], config, open_one) as service, Client(service.address) as client:
        with pytest.raises(RpcFailed, match="needs 80 MB on device 0; gpu_memory_limit is 50 MB") as refused:
            client.load_model("big")
        assert refused.value.code == "RESOURCE_EXHAUSTED"


def test_every_size_runs_in_every_launch_slot_before_anybody_is_told(fake: ctypes.CDLL) -> None:
    model = affine(sizes=(1, 4, 8))
    with running([model], device_config(streams=4)):
        assert Counter(model.ran) == {(size, 4): 2 * 8 for size in (1, 4, 8)}  # run, and captured


def test_a_configs_warm_up_runs_in_every_launch_slot(fake: ctypes.CDLL) -> None:
    said = {"data_type": "TYPE_FP32", "dims": ["4"], "random_data": True}
    entry = {"name": "three", "batch_size": 3, "count": 5, "inputs": {"x": said}}
    model = affine(capturable=False, sizes=(1, 4, 8), config_json=json.dumps({"model_warmup": [entry]}))
    with running([model], device_config()):
        assert Counter(model.ran) == {(1, 4): 8, (4, 4): 8 + 5 * 8, (8, 4): 8}
