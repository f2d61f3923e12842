"""One front-end thread: requests through a real queue, on a fake clock."""

from __future__ import annotations

import os

import numpy as np
import pytest
from dispatch_rig import MIB, SECOND, Rig, arrays, model, refused, request, response, row

from fastqueue.errors import ForkedHandle, LayoutMismatch
from service._pb import inference
from service.frontend._dispatch import Dispatcher, RequestError, request_names, stream_error

INVALID, NOT_FOUND, EXHAUSTED, INTERNAL, UNAVAILABLE = 3, 5, 8, 13, 14
M = model()


# ---- answers ----


def test_a_request_is_answered_with_its_names_and_every_output() -> None:
    rig = Rig()
    rig.worker(M)
    token, _ = rig.submit(request(M, row(1, 2), id="größe 7"))
    code, payload = rig.run()[token]
    message = response(payload)
    assert code == 0
    assert (message.model_name, message.model_version, message.id) == ("m", "1", "größe 7")
    assert [o.name for o in message.outputs] == ["Y", "Z"]
    assert [o.datatype for o in message.outputs] == ["FP32", "FP32"]
    np.testing.assert_array_equal(arrays(message)["Z"], row(2, 4))
    assert not message.parameters
    assert rig.at_rest()


def test_requests_batch_and_each_gets_its_own_rows() -> None:
    rig = Rig()
    lane = rig.worker(M)
    sent = {rig.submit(request(M, row(i, -i), id=str(i)))[0]: i for i in range(4)}
    assert rig.workers[lane].run() == 1
    answers = rig.drain()
    assert set(answers) == set(sent)
    for token, i in sent.items():
        message = response(answers[token][1])
        assert message.id == str(i)
        np.testing.assert_array_equal(arrays(message)["Y"], row(i, -i))
    assert rig.at_rest()


def test_more_rows_than_a_batch_come_back_as_one_answer() -> None:
    rig = Rig()
    rig.worker(M)
    rows = np.arange(20, dtype="<f4").reshape(10, 2)
    token, _ = rig.submit(request(M, rows))
    np.testing.assert_array_equal(arrays(response(rig.run()[token][1]))["Y"], rows)
    assert rig.at_rest()


def test_only_the_outputs_that_were_asked_for_in_that_order() -> None:
    spec = model(outputs=("A", "B", "C"))
    rig = Rig()
    rig.worker(spec)
    token, _ = rig.submit(request(spec, row(1), outputs=["C", "A"]))
    found = arrays(response(rig.run()[token][1]))
    assert {name: float(array[0, 0]) for name, array in found.items()} == {"C": 3, "A": 1}
    assert list(found) == ["C", "A"]


def test_inputs_are_bound_by_name() -> None:
    spec = model(inputs=("P", "Q"), max_batch_size=0)
    rig = Rig()
    rig.worker(spec)
    message = inference.ModelInferRequest.FromString(
        request(spec, np.array([1, 2], "<f4"), np.array([30, 40], "<f4"))
    )
    first = message.inputs[0]
    message.inputs.append(first)
    del message.inputs[0]
    message.raw_input_contents[:] = list(message.raw_input_contents)[::-1]
    token, _ = rig.submit(message.SerializeToString())
    np.testing.assert_array_equal(arrays(response(rig.run()[token][1]))["Y"], [31, 42])


def test_an_empty_tensor_comes_back_empty() -> None:
    rig = Rig()
    rig.worker(M)
    token, _ = rig.submit(request(M, np.empty((2, 0), "<f4")))
    message = response(rig.run()[token][1])
    assert list(message.raw_output_contents) == [b"", b""]
    assert list(message.outputs[0].shape) == [2, 0]
    assert rig.at_rest()


@pytest.mark.parametrize("size", [1, 1000, 65_536, 300_000])
def test_large_tensors_arrive_whole(size: int) -> None:
    rig = Rig(arena_mb=8)
    rig.worker(M, output_mb=8)
    values = np.random.default_rng(size).random((1, size), "<f4")
    token, _ = rig.submit(request(M, values, outputs=["Y"]))
    assert arrays(response(rig.run()[token][1]))["Y"].tobytes() == values.tobytes()
    assert rig.at_rest()


def test_an_id_of_any_length_up_to_64_kb_is_echoed() -> None:
    rig = Rig()
    rig.worker(M)
    for length in (0, 63, 64, 65, 65_536):
        token, _ = rig.submit(request(M, row(1), id="x" * length))
        assert response(rig.run()[token][1]).id == "x" * length
    assert rig.at_rest()


def test_an_answer_on_a_stream_is_wrapped_and_final() -> None:
    rig = Rig()
    rig.worker(M)
    token, _ = rig.submit(request(M, row(1), id="7"), stream=True)
    code, payload = rig.run()[token]
    message = inference.ModelStreamInferResponse.FromString(payload)
    assert code == 0 and message.error_message == ""
    assert message.infer_response.id == "7"
    assert message.infer_response.parameters["triton_final_response"].bool_param is True


def test_a_failed_batch_tells_everybody_why() -> None:
    rig = Rig()
    lane = rig.worker(M)
    tokens = [rig.submit(request(M, row(i)), stream=bool(i))[0] for i in range(2)]
    batch = rig.workers[lane].take(1)
    assert batch is not None and batch.check()
    batch.fail(INTERNAL, "the model broke: größer")
    assert rig.drain() == {token: (INTERNAL, "the model broke: größer".encode()) for token in tokens}
    assert rig.at_rest()


def test_words_that_were_cut_within_a_character_stay_readable() -> None:
    rig = Rig()
    lane = rig.worker(M)
    token, _ = rig.submit(request(M, row(1)))
    batch = rig.workers[lane].take(1)
    assert batch is not None and batch.check()
    batch.fail(INTERNAL, "x" + "€" * 400)
    text = rig.drain()[token][1].decode()
    assert text.startswith("x€€€") and len(text.encode()) > 500


def test_an_error_of_a_stream_carries_the_id() -> None:
    message = inference.ModelStreamInferResponse.FromString(
        stream_error(request(M, row(1), id="7"), "no größe")
    )
    assert message.error_message == "no größe"
    answer = message.infer_response
    assert (answer.id, answer.model_name, answer.model_version) == ("7", "m", "1")
    broken = inference.ModelStreamInferResponse.FromString(stream_error(b"\xff", "no"))
    assert (broken.error_message, broken.infer_response.id) == ("no", "")


def test_the_names_of_a_request_say_as_much_in_an_error_as_the_request() -> None:
    wire = request(M, row(1), id="größe 7")
    names = request_names(wire)
    assert len(names) < 40
    assert stream_error(names, "no") == stream_error(wire, "no")
    message = inference.ModelInferRequest.FromString(names)
    assert (message.model_name, message.id, len(message.inputs)) == ("m", "größe 7", 0)
    assert request_names(b"\xff") == b""


# ---- refusals ----


def test_what_is_no_request_or_does_not_fit_is_refused_and_holds_nothing() -> None:
    rig = Rig()
    rig.worker(M)
    assert refused(rig, b"\x0a").code == INVALID
    assert "for model 'm'" in refused(rig, request(model(inputs=("Q",)), row(1))).message
    unknown = refused(rig, request(model("other"), row(1)))
    assert unknown.code == NOT_FOUND
    assert unknown.message == "Request for unknown model: 'other' is not found; served: 'm'"
    assert refused(rig, request(model(version="2"), row(1))).code == NOT_FOUND
    assert rig.at_rest()


def test_no_models_at_all() -> None:
    refusal = refused(Rig(), request(M, row(1)))
    assert refusal.code == NOT_FOUND
    assert refusal.message == "Request for unknown model: 'm' is not found; no model is served"


def test_what_is_known_and_not_served_is_told_as_it_is_now() -> None:
    rig = Rig()
    rig.dispatcher.set_models([], [("m", "1", "it is being unloaded")])
    assert refused(rig, request(model(version="1"), row(1))).code == UNAVAILABLE
    rig.dispatcher.set_models([], [("m", "1", "unloaded")])
    gone = refused(rig, request(model(version=""), row(1)))
    words = "Request for unknown model: 'm' has no available versions: unloaded; no model is served"
    assert (gone.code, gone.message) == (NOT_FOUND, words)
    rig.dispatcher.set_models([])
    assert "is not found" in refused(rig, request(M, row(1))).message


def test_slots_are_bounded() -> None:
    rig = Rig(slots=4)
    rig.worker(M)
    tokens = [rig.submit(request(M, row(i)))[0] for i in range(4)]
    error = refused(rig, request(M, row(9)))
    assert error.code == EXHAUSTED
    assert "all 4 slots" in error.message and "--slots-per-lane" in error.message
    assert set(rig.run()) == set(tokens)
    rig.submit(request(M, row(9)))


def test_slots_are_rounded_up_to_a_power_of_two() -> None:
    rig = Rig(slots=5)
    rig.worker(M)
    for i in range(8):
        rig.submit(request(M, row(i)))
    assert "all 8 slots" in refused(rig, request(M, row(9))).message


def test_the_arena_is_bounded_for_now() -> None:
    rig = Rig(arena_mb=1)
    rig.worker(M, output_mb=8)
    large = np.zeros((1, 60_000), "<f4")
    tokens = [rig.submit(request(M, large))[0] for _ in range(4)]
    error = refused(rig, request(M, large))
    assert error.code == EXHAUSTED
    assert (
        "has no room for 2401" in error.message and "--arena-mb" in error.message and "1 MB" in error.message
    )
    assert rig.dispatcher.outstanding == 4
    assert set(rig.run()) == set(tokens)
    assert rig.at_rest()


def test_a_request_larger_than_the_arena_is_told_so() -> None:
    rig = Rig(arena_mb=1)
    rig.worker(M)
    error = refused(rig, request(M, np.zeros((1, 300_000), "<f4")))
    assert error.code == EXHAUSTED
    assert "never fits into the input arena of 1 MB" in error.message and "--arena-mb" in error.message
    assert rig.at_rest()


# ---- workers ----


def test_a_worker_that_has_not_come_yet() -> None:
    rig = Rig()
    lane, _ = rig.dispatcher.open_lane()
    rig.dispatcher.set_models([(1, lane, M)])
    error = refused(rig, request(M, row(1)))
    assert error.code == UNAVAILABLE
    assert error.message.startswith("Request for unknown model: 'm' version 1 is not at ready state")


def test_a_dead_worker_gives_all_its_tokens_back_and_a_new_one_serves_on() -> None:
    rig = Rig()
    lane = rig.worker(M)
    tokens = [rig.submit(request(M, row(i), id="x" * 99), deadline_ns=rig.now + SECOND)[0] for i in range(5)]
    _, cancelled = rig.submit(request(M, row(9)))
    rig.dispatcher.cancel(cancelled)
    batch = rig.workers[lane].take(1)  # some are running, some wait
    assert batch is not None
    assert sorted(rig.dispatcher.close_lane(lane)) == tokens
    assert rig.dispatcher.close_lane(lane) == []
    rig.dispatcher.free_lane(lane)
    assert rig.dispatcher.outstanding == rig.dispatcher.arena_used == 0
    assert rig.dispatcher.next_deadline() is None and rig.dispatcher.check() == 0
    assert refused(rig, request(M, row(1))).code == UNAVAILABLE

    batch.check()  # its former lives to the end of the test; nothing of it is heard
    del rig.workers[lane]
    rig.table.clear()
    assert rig.worker(M) == lane
    token, _ = rig.submit(request(M, row(1)))
    assert list(rig.run()) == [token]
    assert rig.at_rest()


def test_what_a_dead_workers_device_may_still_read_stays_as_it_was_until_its_process_has_ended() -> None:
    rig = Rig(arena_mb=1)
    lane = rig.worker(M)
    held = [row(*range(number, number + 1000)) for number in range(8)]
    for values in held:
        rig.submit(request(M, values))
    batches = [rig.workers[lane].take(1)]  # and what waits behind it may be launched by a worker that lives
    assert len(rig.dispatcher.close_lane(lane)) == 8
    used = rig.dispatcher.arena_used
    assert used >= 8 * 4000 and rig.dispatcher.outstanding == 0 and rig.dispatcher.check() == 0

    first = rig.workers.pop(lane)
    rig.table.clear()
    other = rig.worker(M)
    assert other != lane, "the number is the dead worker's as long as its memory is"
    for number in range(200):
        rig.submit(request(M, row(*[-1.0] * 1000)))
        if number % 8 == 7:
            rig.run()
    batches += [batch for _ in range(8) if (batch := first.take(1)) is not None]
    seen = [first.input(batch, 0) for batch in batches if batch is not None and batch.check()]
    np.testing.assert_array_equal(np.concatenate(seen), np.concatenate(held)[: sum(map(len, seen))])
    assert rig.dispatcher.arena_used == used and len(seen) > 0

    rig.dispatcher.free_lane(lane)
    assert rig.at_rest()
    rig.dispatcher.free_lane(lane)
    assert rig.at_rest()
    assert rig.worker(model("n")) == lane


def test_two_workers_die_alone() -> None:
    a, b = model("a"), model("b")
    rig = Rig()
    first, second = rig.worker(a), rig.worker(b)
    dead, _ = rig.submit(request(a, row(1)))
    alive, _ = rig.submit(request(b, row(2)))
    assert rig.dispatcher.close_lane(first) == [dead]
    rig.dispatcher.free_lane(first)
    del rig.workers[first]
    answers = rig.run()
    np.testing.assert_array_equal(arrays(response(answers[alive][1]))["Y"], row(2))
    assert second in rig.workers and rig.at_rest()


def test_models_are_swapped_and_requests_in_flight_keep_theirs() -> None:
    rig = Rig()
    lane = rig.worker(M)
    token, _ = rig.submit(request(M, row(1)))
    rig.dispatcher.set_models([])
    assert refused(rig, request(M, row(1))).code == NOT_FOUND
    assert [o.name for o in response(rig.run()[token][1]).outputs] == ["Y", "Z"]
    newer = model(version="2")
    rig.workers[lane].add(7, newer)
    rig.dispatcher.set_models([(1, lane, M), (7, lane, newer)])
    message = inference.ModelInferRequest.FromString(request(M, row(1)))
    message.model_version = ""
    token, _ = rig.submit(message.SerializeToString())
    assert response(rig.run()[token][1]).model_version == "2"


def test_a_table_with_a_fault_changes_nothing() -> None:
    rig = Rig()
    lane = rig.worker(M)
    with pytest.raises(RequestError, match="got two"):
        rig.dispatcher.set_models([(1, lane, M), (2, lane, M)])
    rig.submit(request(M, row(1)))


def test_descriptors_that_are_something_else() -> None:
    rig = Rig()
    lane, fds = rig.dispatcher.open_lane()
    with pytest.raises(LayoutMismatch, match="page"):
        rig.dispatcher.attach_worker(lane, fds[0], fds[1])
    read, write = os.pipe()
    with pytest.raises(LayoutMismatch, match="sealed memfd"):
        rig.dispatcher.attach_worker(lane, read, write)
    os.close(read)
    os.close(write)
    with pytest.raises(LayoutMismatch, match="expected a lane that waits"):
        rig.dispatcher.attach_worker(63, fds[0], fds[1])


@pytest.mark.parametrize(("arena", "slots"), [(0, 1), (MIB, 0), (MIB, 65537)])
def test_sizes_that_make_no_sense(arena: int, slots: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1 MB"):
        Dispatcher(arena, slots)


# ---- spill ----


def taken_mb(fd: int) -> int:
    """What a memfd takes of the system's memory."""
    return os.fstat(fd).st_blocks * 512 >> 20


def test_a_large_requests_memory_goes_back_when_it_is_answered() -> None:
    rig = Rig(spill_mb=32)
    lane = rig.worker(model(max_batch_size=0), output_mb=64)
    arena = rig.dispatcher.open_lane()[1][1]
    rig.submit(request(rig.table[0][2], np.ones(5 << 20, np.float32)))
    assert rig.dispatcher.spill_used == rig.dispatcher.arena_used > 20 * MIB
    assert taken_mb(arena) >= 20
    rig.workers[lane].run()
    ((code, _),) = rig.drain().values()
    assert code == 0
    assert (rig.dispatcher.arena_used, rig.dispatcher.check()) == (0, 0)
    assert taken_mb(arena) <= 4 + 1, "as much as the head has is kept"


def test_a_large_requests_memory_goes_back_when_its_worker_dies() -> None:
    rig = Rig(spill_mb=32)
    lane = rig.worker(model(max_batch_size=0))
    arena = rig.dispatcher.open_lane()[1][1]
    token, _ = rig.submit(request(rig.table[0][2], np.ones(5 << 20, np.float32)))
    assert rig.dispatcher.close_lane(lane) == [token]
    assert taken_mb(arena) >= 20
    rig.dispatcher.free_lane(lane)
    assert (rig.dispatcher.arena_used, rig.dispatcher.check()) == (0, 0)
    assert taken_mb(arena) <= 4 + 1


# ---- sleeping ----


def test_sleeps_only_when_nothing_came_and_is_rung_once() -> None:
    rig = Rig()
    lane = rig.worker(M)
    assert rig.dispatcher.arm() is True
    token, _ = rig.submit(request(M, row(1)))
    assert not rig.rung()
    rig.workers[lane].run()
    assert rig.rung()
    assert list(rig.drain()) == [token]
    rig.submit(request(M, row(1)))
    rig.workers[lane].run()
    assert not rig.rung(), "nobody rings for a thread that is awake"
    assert rig.dispatcher.arm() is False
    assert len(rig.drain()) == 1
    assert rig.dispatcher.arm() is True


def test_draining_reads_the_eventfd() -> None:
    rig = Rig()
    lane = rig.worker(M)
    rig.dispatcher.arm()
    rig.submit(request(M, row(1)))
    rig.workers[lane].run()
    rig.drain()
    assert not rig.rung()


def test_a_worker_that_comes_while_the_thread_sleeps_rings_too() -> None:
    rig = Rig()
    assert rig.dispatcher.arm() is True
    lane = rig.worker(M)
    rig.submit(request(M, row(1)))
    rig.workers[lane].run()
    assert rig.rung()


# ---- a child ----


def test_a_forked_child_may_not_use_it() -> None:
    rig = Rig()
    rig.worker(M)
    child = os.fork()
    if child == 0:
        try:
            rig.submit(request(M, row(1)))
        except ForkedHandle:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    token, _ = rig.submit(request(M, row(1)))
    assert list(rig.run()) == [token]
