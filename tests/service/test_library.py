"""What a worker says of a model that is not there: which ones are, in a line that somebody can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.config import ServeConfig
from service.errors import StartError
from service.worker.library import Library


def library(folder: Path, names: list[str], wanted: str) -> Library:
    for name in names:
        (folder / name / "1").mkdir(parents=True)
    return Library(ServeConfig((str(folder),), model_control_mode="explicit", load_models=(wanted,)))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], "no model is there"),
        (["a", "b"], "there is a, b"),
        ([f"m{i:02}" for i in range(10)], "there is " + ", ".join(f"m{i:02}" for i in range(10))),
        ([f"m{i:02}" for i in range(13)], "m08, m09 and 3 more"),
        (["x" * 200], "there is " + "x" * 80 + "..."),
    ],
    ids=["none", "two", "ten", "many", "long"],
)
def test_an_unknown_model_is_told_which_ones_there_are(tmp_path: Path, names: list[str], told: str) -> None:
    models = library(tmp_path, names, "other")
    with pytest.raises(StartError) as at_start:
        models.wanted_at_start()
    assert str(at_start.value).startswith("--load-model other: no such model; ")
    with pytest.raises(StartError) as later:
        models.open("other")
    assert "there is no model 'other'; " in str(later.value)
    assert str(at_start.value).endswith(told) and str(later.value).endswith(told)
