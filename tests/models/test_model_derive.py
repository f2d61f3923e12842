"""Which models batch, and what the others say, with functions of numpy in the place of an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from service.models.derive import DEFAULT_MAX_BATCH_SIZE, Derived, axis_fault, derive
from service.models.probe import Array, Declared, RunFailed, distance, spread_of
from service.models.spec import DATATYPES, TensorSpec

X = Declared("x", "FP32", ("N", 4))
Y = Declared("y", "FP32", ("N", 4))


def one(function: Callable[[Array], Any]) -> Callable[[Sequence[Array]], list[Array]]:
    """An engine's way to run a model of one input and one output."""
    return lambda arrays: [np.asarray(function(arrays[0]))]


def derived(function: Callable[[Array], Any], asked: int | None = None, y: Declared = Y) -> Derived:
    return derive([X], [y], one(function), asked)


def softmax(x: Array) -> Array:
    powers = np.exp(x)
    return np.asarray(powers / powers.sum(axis=0))


def fails(x: Array) -> Array:
    raise RunFailed("no such operator")


def fails_on_more_rows(x: Array) -> Array:
    if len(x) > 1:
        raise RunFailed("cannot reshape")
    return x


def test_independent_rows_batch() -> None:
    found = derived(lambda x: 2 * x + 1)
    assert found.max_batch_size == DEFAULT_MAX_BATCH_SIZE == 32
    assert found.inputs == (TensorSpec("x", "FP32", (4,)),)
    assert found.outputs == (TensorSpec("y", "FP32", (4,)),)
    assert (found.why_unbatched, found.warnings, found.shapes_confirmed) == ("", (), True)


def test_the_users_size_is_used() -> None:
    assert derived(lambda x: x + 1, asked=7).max_batch_size == 7


def test_zero_turns_batching_off() -> None:
    found = derived(lambda x: x + 1, asked=0)
    assert found.max_batch_size == 0
    assert "turned off" in found.why_unbatched
    assert found.inputs == (TensorSpec("x", "FP32", (-1, 4)),)


@pytest.mark.parametrize("asked", [None, 8])
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (softmax, "a row of output 'y' changes"),
        (lambda x: x - x.mean(axis=0), "a row of output 'y' changes"),
        (lambda x: np.cumsum(x, axis=0), "a row of output 'y' differs by"),
        (lambda x: x[::-1], "a row of output 'y' differs by"),
        (lambda x: np.concatenate([x, x]), "output 'y' has size 2 on axis 0 for 1 rows"),
        (lambda x: x[:1], "output 'y' has size 1 on axis 0 for 2 rows"),
        (lambda x: x.sum(), "output 'y' is a scalar"),
        (lambda x: x @ x.T, "the shape of a row of output 'y' depends on its batch"),
        (fails_on_more_rows, "it runs 1 row but not 2 (cannot reshape)"),
    ],
)
def test_dependent_rows_never_batch(function: Callable[[Array], Any], why: str, asked: int | None) -> None:
    found = derived(function, asked, y=Declared("y", "FP32", ("M", None)))
    assert found.max_batch_size == 0
    assert why in found.why_unbatched


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (fails, "no test input could be run to compare rows (no such operator)"),
        (lambda x: np.full_like(x, 0.001), "its outputs are the same for every test input"),
        (lambda x: x * np.nan, "its outputs are the same for every test input"),
        (lambda x: x + 0.02 * x.max(), "a row of output 'y' differs by"),
    ],
)
def test_doubt_is_the_users_to_decide(function: Callable[[Array], Any], why: str) -> None:
    by_itself = derived(function)
    assert by_itself.max_batch_size == 0
    assert why in by_itself.why_unbatched
    assert "--max-batch-size N batches it" in by_itself.why_unbatched
    asked = derived(function, asked=8)
    assert asked.max_batch_size == 8
    assert len(asked.warnings) == 1 and why in asked.warnings[0]


def test_rounding_is_no_dependence() -> None:
    assert derived(lambda x: x * (1 + 6e-4 * (len(x) > 1))).max_batch_size == 32


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        ([("x", "N", 4), ("sr",)], [("y", "N")], "input 'sr' is a scalar"),
        ([("x", 10, 4)], [("y", 9, 2)], "axis 0 of input 'x' is fixed at 10"),
        ([("x", 10, 4), ("z", 9, 4)], [("y", 10, 2)], "axis 0 of input 'x' is fixed at 10"),
        ([("x", "N", 4)], [("y", 1, 2)], "axis 0 of output 'y' is fixed at 1"),
        ([("x", "b", 4), ("h", 2, "b", 128)], [("y", "b")], "the batch axis 'b' is axis 1 of input 'h'"),
        ([("x", "batch", 4)], [("y", 20, "batch", 37)], "the batch axis 'batch' is axis 1 of output 'y'"),
        ([("a", "m", 4), ("b", "n", 4)], [("y", "m", "n")], "the batch axis 'n' is axis 1 of output 'y'"),
    ],
)
def test_what_the_declarations_rule_out(inputs: list[Any], outputs: list[Any], why: str) -> None:
    def declare(tensors: list[Any]) -> list[Declared]:
        return [Declared(name, "FP32", tuple(shape)) for name, *shape in tensors]

    assert axis_fault(declare(inputs), declare(outputs)) == why
    found = derive(declare(inputs), declare(outputs), lambda arrays: [np.zeros(3)], 8)
    assert (found.max_batch_size, found.why_unbatched) == (0, why)


@pytest.mark.parametrize("symbol", ["N", "unk__12", None, -1])
def test_the_axis_may_have_any_name_when_it_behaves(symbol: Any) -> None:
    assert derived(lambda x: x * 2, y=Declared("y", "FP32", (symbol, 4))).max_batch_size == 32


def test_an_undeclared_output_shape_is_found_by_running() -> None:
    found = derived(lambda x: x * 2, y=Declared("y", "FP32", ()))
    assert found.max_batch_size == 32
    assert found.outputs == (TensorSpec("y", "FP32", (-1,)),)
    assert not found.shapes_confirmed


@pytest.mark.parametrize(
    ("declared", "dims"),
    [(("N", 5), (-1,)), (("N", 4, 1), (-1,)), (("N",), (-1,))],
)
def test_a_declared_output_shape_that_is_not_the_real_one_becomes_dynamic(
    declared: tuple[Any, ...], dims: tuple[int, ...]
) -> None:
    found = derived(lambda x: x * 2, y=Declared("y", "FP32", declared))
    assert found.outputs == (TensorSpec("y", "FP32", dims),)
    assert not found.shapes_confirmed
    assert "came out as [1, 4]" in found.warnings[0]


def test_shapes_that_nothing_could_confirm_are_not_confirmed() -> None:
    assert not derived(fails).shapes_confirmed
    assert derived(fails).sample == ()


def test_sizes_and_ranges_are_tried_until_one_runs() -> None:
    seen: list[tuple[int, int]] = []

    def picky(arrays: Sequence[Array]) -> list[Array]:
        ids = arrays[0]
        seen.append((ids.shape[1], int(ids.max(initial=0))))
        if ids.shape[1] > 16 or ids.max(initial=0) > 1:
            raise RunFailed("out of range")
        return [ids * 3]

    shape = ("b", "s")
    found = derive([Declared("ids", "INT64", shape)], [Declared("y", "INT64", shape)], picky, None)
    assert found.max_batch_size == 32
    assert seen[0][0] == 64 and seen[-1][0] == 16


def test_a_symbol_has_one_size_everywhere() -> None:
    def run(arrays: Sequence[Array]) -> list[Array]:
        return [arrays[0] + arrays[1]]

    ids = [Declared(name, "FP32", ("b", "seq")) for name in ("ids", "mask")]
    assert derive(ids, [Declared("y", "FP32", ("b", "seq"))], run, None).max_batch_size == 32


def test_a_scale_taken_over_the_whole_batch_shows_in_wide_rows_too() -> None:
    """With a thousand numbers in it, every row has nearly the same maximum unless magnitudes differ."""
    wide = ("N", 1000)
    run = one(lambda x: x / np.abs(x).max())
    found = derive([Declared("x", "FP32", wide)], [Declared("y", "FP32", wide)], run, None)
    assert "a row of output 'y' differs by" in found.why_unbatched


def test_the_batch_symbol_counts_one_row_on_any_axis() -> None:
    inputs = [Declared("x", "FP32", ("b", 4)), Declared("h", "FP32", (2, "b", "width"))]
    found = derive(inputs, [Y], lambda arrays: [arrays[0]], None)
    assert [array.shape for array in found.sample] == [(1, 4), (2, 1, 64)]


def test_other_sizes_are_not_tried_once_a_size_runs() -> None:
    sizes: list[int] = []

    def run(arrays: Sequence[Array]) -> list[Array]:
        sizes.append(arrays[0].shape[1])
        return [np.zeros((len(arrays[0]), 2), np.int64)]

    found = derive([Declared("x", "FP32", ("b", "s"))], [Declared("y", "INT64", ("b", 2))], run, None)
    assert "could not be compared" in found.why_unbatched
    assert set(sizes) == {64}


def test_a_rows_numbers_do_not_depend_on_its_batch() -> None:
    batches: list[Array] = []

    def record(x: Array) -> Array:
        batches.append(x)
        return x

    derived(record)
    alone, pair, triple = batches[:3], batches[3], batches[4]
    assert np.array_equal(np.concatenate(alone[:2]), pair)
    assert np.array_equal(np.concatenate(alone), triple)


@pytest.mark.parametrize(
    "datatype",
    [name for name, row in DATATYPES.items() if row.numpy and row.element_bytes],
)
def test_every_datatype_can_be_tried(datatype: str) -> None:
    shape = ("N", 8)
    found = derive([Declared("x", datatype, shape)], [Declared("y", datatype, shape)], lambda a: [a[0]], None)
    assert found.max_batch_size == 32


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e6])
def test_rows_that_differ_little_beside_a_large_constant_are_compared_all_the_same(size: float) -> None:
    """What counts is how much the rows differ: a mixture of nearly equal rows moves them by little."""
    assert derived(lambda x: 1000 * size + size * x).max_batch_size == 32
    mixed = derived(lambda x: 1000 * size + size * x - size * x.mean(axis=0))
    assert "a row of output 'y' changes" in mixed.why_unbatched


def test_rows_that_rounding_makes_alike_are_not_compared() -> None:
    found = derived(lambda x: (1 + 1e-6 * x) * np.float32(1 + 2e-7 * len(x)))
    assert "too much alike to be compared" in found.why_unbatched


@pytest.mark.parametrize(
    ("expected", "got", "far"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [2.0, -4.0], 1.0),
        ([np.nan, 1.0, np.inf], [np.nan, 1.0, np.inf], 0.0),
        ([np.nan, 1.0], [0.0, 1.0], np.inf),
        ([np.inf], [-np.inf], np.inf),
        ([], [], 0.0),
    ],
)
def test_distance(expected: list[float], got: list[float], far: float) -> None:
    assert distance(np.array(expected), np.array(got)) == far


def test_of_integers_the_share_that_differs_counts() -> None:
    assert distance(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])) == 0.25


def test_the_spread_is_that_of_finite_numbers() -> None:
    rows = [np.array([[1.0, np.nan, 5.0]]), np.array([[1.5, 2.0, np.inf]]), np.array([[0.0, 3.0, 5.5]])]
    assert spread_of(rows) == 1.5
