"""--max-message-bytes: what is larger is refused, and told by which flag."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import affine
from wire import infer_request, rows

MIB = 1 << 20


def sized(mib: int):
    """A request for rows of 1 KiB with `mib` MiB of data."""
    return infer_request("affine", x=rows(mib * 1024, width=256))


def serving(serve, **settings):
    return serve(affine(width=256, max_batch_size=2048), arena_mb=64, output_arena_mb=64, **settings)[1]


def test_five_mb_pass_by_default_both_ways(serve):
    wire = serving(serve)
    request = sized(5)
    response = wire.infer(request)
    want = 2 * rows(5 * 1024, width=256) + 1
    assert np.frombuffer(response.raw_output_contents[0], np.float32).tobytes() == want.tobytes()


@pytest.mark.parametrize("mib", [4, 7])
def test_a_larger_message_is_refused_by_the_name_of_the_flag(serve, mib: int):
    wire = serving(serve, max_message_bytes=4 * MIB)
    code, text = wire.error(sized(mib))
    assert code == "RESOURCE_EXHAUSTED"
    assert "--max-message-bytes" in text and str(4 * MIB) in text
    assert wire.infer(sized(3)).model_name == "affine"


def test_a_larger_message_on_a_stream_is_one_error_in_its_turn(serve):
    wire = serving(serve, max_message_bytes=4 * MIB)
    with_limit = wire.stream().send(sized(1), sized(5), sized(2)).half_close().rest()
    assert [bool(answer.error_message) for answer in with_limit] == [False, True, False]
    assert "--max-message-bytes" in with_limit[1].error_message


def test_a_much_larger_message_is_refused_before_it_is_read(serve):
    wire = serving(serve, max_message_bytes=4 * MIB)
    code, text = wire.error(sized(9))
    assert code == "RESOURCE_EXHAUSTED"
    assert "larger than max" in text
    assert wire.infer(sized(3)).model_name == "affine"
