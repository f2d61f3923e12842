"""Which batch sizes a plan runs, and which profile takes which shapes: what needs no device."""

from __future__ import annotations

import pytest

from service.engines.tensorrt import Profile, most_rows, sizes_of
from service.models.probe import Declared


def profile(least: int, usual: int, most: int, index: int = 0) -> Profile:
    return Profile(index, ((least, 3),), ((usual, 3),), ((most, 3),))


ONE = (profile(1, 32, 128),)
TWO = (profile(1, 2, 4), profile(5, 12, 16, 1))


@pytest.mark.parametrize(
    ("profiles", "allowed", "most", "sizes"),
    [
        (ONE, (), 128, (1, 2, 4, 8, 16, 32, 64, 128)),
        (ONE, (), 8, (1, 2, 4, 8)),
        (ONE, (), 10, (1, 2, 4, 8, 10)),
        (ONE, (1, 100), 128, (1, 100)),
        (ONE, (1, 8, 64, 128), 10, (1, 8, 64)),
        ((profile(1, 3, 5),), (), 5, (1, 2, 3, 4, 5)),
        ((profile(8, 8, 8),), (), 8, (8,)),
        ((profile(6, 6, 7),), (), 7, (6, 7)),
        (TWO, (), 16, (1, 2, 4, 5, 8, 12, 16)),
    ],
)
def test_sizes(profiles, allowed, most, sizes):
    assert sizes_of(profiles, allowed, most) == sizes


@pytest.mark.parametrize(
    ("shape", "taken_by"),
    [((1, 3), 0), ((4, 3), 0), ((5, 3), 1), ((16, 3), 1), ((17, 3), None), ((4, 2), None)],
)
def test_the_profile_of_a_shape(shape, taken_by):
    taken = [one.index for one in TWO if one.takes([shape])]
    assert taken == ([] if taken_by is None else [taken_by])


def test_a_profile_takes_all_inputs_or_none():
    both = Profile(0, ((1, 3), (1, 1)), ((2, 3), (2, 5)), ((4, 3), (4, 9)))
    assert both.takes([(4, 3), (4, 9)])
    assert not both.takes([(4, 3), (4, 10)])
    assert str(both) == "[1, 3] to [4, 3] and [1, 1] to [4, 9]"


def test_the_largest_batch_is_what_every_input_takes():
    inputs = [Declared("a", "FP32", (None, 3)), Declared("b", "FP32", (None, 1))]
    both = Profile(0, ((1, 3), (1, 1)), ((2, 3), (2, 5)), ((8, 3), (4, 9)))
    assert most_rows([both], inputs) == 4
    assert most_rows([both], [*inputs, Declared("c", "FP32", ())]) == 0
