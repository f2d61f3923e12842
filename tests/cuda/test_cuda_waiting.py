"""What waits for a launch slot of a device: who leaves meanwhile is not run, and costs no row."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import grpc
import numpy as np
import pytest
from device_models import AffineModel, device_config
from fake_driver import HostCompute
from waiting import wait_until

from service._pb import inference as pb
from service.cuda.device import choose
from service.frontend.rpcs import SERVICE
from service.inprocess import InProcess, running
from service.models.counts import GRAPH_HITS, GRAPH_MISSES


@dataclass
class Busy:
    """A service whose one stream does nothing until `go_on`, with a batch in each of its launch slots."""

    service: InProcess
    model: AffineModel
    channel: grpc.Channel
    fake: ctypes.CDLL
    first: list[grpc.Future]

    @property
    def stats(self):
        return self.service._worker._former.stats()[0]

    @property
    def stream(self) -> int:
        return self.service._worker.devices.executor()._streams[0]._stream

    def ask(self, timeout_s: float = 60.0) -> grpc.Future:
        request = pb.ModelInferRequest(model_name="affine", raw_input_contents=[bytes(16)])
        request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        call = self.channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        return call.future(request, timeout=timeout_s)

    def fill(self) -> None:
        self.ask().result()  # how long a batch takes is known then: the next one goes behind it
        self.begun = self.stats
        self.fake.fake_hold(self.stream, 1)
        before = len(self.model.ran)
        for expected in (before + 1, before + 2):
            self.first.append(self.ask())
            wait_until(partial(self.has_run, expected), "a batch to be launched")

    def has_run(self, count: int) -> bool:
        return len(self.model.ran) == count

    def ran_since(self) -> tuple[int, int]:
        """Batches and rows since the stream was stopped."""
        return self.stats.executions - self.begun.executions, self.stats.rows - self.begun.rows

    @property
    def dropped(self) -> int:
        """Those that were not run; a client whose deadline passes hangs up too, and either may come first."""
        return self.stats.expired + self.stats.cancelled

    def go_on(self) -> None:
        self.fake.fake_hold(self.stream, 0)


@pytest.fixture(autouse=True)
def one_stream() -> Iterator[None]:
    """Of the device that a model makes."""
    choose(stream_count=1)
    yield
    choose()


@pytest.fixture
def busy(fake: ctypes.CDLL) -> Iterator[Busy]:
    model = AffineModel(HostCompute, capturable=False)
    with running([model], device_config(streams=1)) as service:
        with grpc.insecure_channel(service.address) as channel:
            found = Busy(service, model, channel, fake, [])
            try:
                found.fill()
                yield found
            finally:
                found.go_on()


def test_who_cancels_while_a_batch_waits_for_a_slot_is_not_run(busy: Busy) -> None:
    waiting = [busy.ask() for _ in range(8)]
    wait_until(lambda: busy.stats.pending_rows == 8, "eight to wait")
    for call in waiting[:7]:
        call.cancel()
    wait_until(lambda: busy.stats.cancelled == 7, "seven to be dropped")
    busy.go_on()
    assert waiting[7].result().raw_output_contents[0] == np.ones(4, np.float32).tobytes()
    assert [call.result().raw_output_contents[0][:4] for call in busy.first] == [b"\0\0\x80?"] * 2
    assert busy.ran_since() == (3, 3)
    assert {one.rows: one.executions for one in busy.stats.sizes} == {1: 4}


def test_whose_deadline_passes_while_it_waits_for_a_slot_is_not_run(busy: Busy) -> None:
    late = busy.ask(timeout_s=0.1)
    with pytest.raises(grpc.RpcError) as refused:
        late.result()
    assert refused.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: busy.dropped == 1, "it to be dropped")
    last = busy.ask()
    busy.go_on()
    last.result()
    assert busy.ran_since() == (3, 3)


def test_three_rows_run_in_the_graph_of_four(fake: ctypes.CDLL) -> None:
    model = AffineModel(HostCompute, sizes=(1, 4, 8))
    with running([model], device_config(streams=1)) as service:
        with grpc.insecure_channel(service.address) as channel:
            one = Busy(service, model, channel, fake, [])
            before = one.stats
            request = pb.ModelInferRequest(model_name="affine", raw_input_contents=[bytes(48)])
            request.inputs.add(name="x", datatype="FP32", shape=[3, 4])
            channel.unary_unary(f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString)(request)
            after = one.stats
        assert after.engine[GRAPH_HITS] - before.engine[GRAPH_HITS] == 1
        assert after.engine[GRAPH_MISSES] == before.engine[GRAPH_MISSES] == 0
        assert after.padding_rows - before.padding_rows == 1
        assert (after.executions, after.rows) == (1, 3)
        text = metrics(service)
        for name, count in (("graph_hits", 1), ("graph_misses", 0), ("padding_rows", 1)):
            assert f'headrace_{name}_total{{model="affine",version="1"}} {count}.0' in text, text


def metrics(service: InProcess) -> str:
    from urllib.request import urlopen

    with urlopen(f"{service.metrics_url}/metrics", timeout=30) as response:
        return response.read().decode()
