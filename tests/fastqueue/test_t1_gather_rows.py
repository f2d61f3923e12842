"""Some rows of a batch, copied: the same bytes as in the whole batch, wherever its requests begin and end."""

from __future__ import annotations

import numpy as np
import pytest
from queue_rig import WIDTH, Rig

from fastqueue import Batch

pytestmark = pytest.mark.t1

ROW = 4 * WIDTH


def batch_of(*sizes: int) -> tuple[Batch, np.ndarray]:
    """The next batch of requests of these sizes, and its rows."""
    rig = Rig(max_batch=8)
    for rows in sizes:
        rig.submit(rows)
    batch = rig.launch()
    assert batch is not None
    return batch, np.concatenate(list(rig.sent.values()))[: batch.rows]


def gathered(batch: Batch, first: int, rows: int) -> np.ndarray:
    x = np.full((rows + 1, WIDTH), np.nan, np.float32)
    batch.gather_rows(0, first, rows, x.ctypes.data, rows * ROW)
    assert np.isnan(x[rows]).all(), "written beyond"
    return x[:rows]


@pytest.mark.parametrize("sizes", [[1], [8], [1] * 8, [3, 1, 4], [2, 0, 5, 0, 1], [20]])
def test_any_rows_of_any_batch(sizes: list[int]) -> None:
    batch, x = batch_of(*sizes)
    for first in range(len(x) + 1):
        for rows in range(len(x) - first + 1):
            assert np.array_equal(gathered(batch, first, rows), x[first : first + rows])


@pytest.mark.parametrize("first, rows", [(0, 4), (3, 1), (1, 3), (4, 0), (2**32 - 1, 1)])
def test_rows_that_the_batch_has_not(first: int, rows: int) -> None:
    batch, _ = batch_of(1, 2)
    with pytest.raises(ValueError, match="expected rows within the batch's 3"):
        gathered(batch, first, rows)


def test_a_buffer_that_is_too_small() -> None:
    batch, _ = batch_of(2, 2)
    x = np.zeros((3, WIDTH), np.float32)
    with pytest.raises(ValueError, match=f"3 rows do not fit into the buffer's {3 * ROW - 1} bytes"):
        batch.gather_rows(0, 1, 3, x.ctypes.data, 3 * ROW - 1)
