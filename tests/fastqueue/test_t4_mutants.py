"""T4: every ordering of the shipped headers is needed, and T3 notices when one is missing.

The mutants come from FQ_LABELS itself: each row that is not relaxed, weakened by each step that is possible.
A new row whose weakening no scenario notices fails here: it is too strong, or a scenario is missing.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from c_toolchain import INCLUDE, Label, build_explorer, labels, run, without_comments

pytestmark = pytest.mark.t4


def is_store(label: Label) -> bool:
    text = "".join(without_comments(path.read_text()) for path in sorted(INCLUDE.glob("*.h")))
    return bool(re.search(rf"\bfq_store_{label.order}\([^;]*\b{label.name}\)", text))


def weaker(label: Label) -> list[str]:
    """The orders below the row's, strongest first."""
    if label.order == "sc":
        return ["rel" if is_store(label) else "acq", "rlx"]
    return [] if label.order == "rlx" else ["rlx"]


MUTANTS = [f"{label.name}:{order}" for label in labels() for order in weaker(label)]


def test_there_are_mutants() -> None:
    assert len(MUTANTS) >= 16, f"FQ_LABELS was not understood: {MUTANTS}"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_weakened_ordering_is_noticed(explorer: Path, mutant: str) -> None:
    done = run([explorer, "--weaken", mutant], timeout=300)
    assert done.returncode == 1, f"nothing fails with {mutant}: {done.stdout}{done.stderr}"
    assert "noticed by" in done.stdout


def test_a_weakening_that_changes_nothing_is_not_noticed(explorer: Path) -> None:
    """The command's other answer, so that `noticed` above means something."""
    done = run([explorer, "--weaken", "R0:rlx", "ring", "cancel"], timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no scenario notices" in done.stdout


def test_the_same_is_true_of_the_text(tmp_path: Path) -> None:
    """Weakening at run time is weakening the header: once, the header's text is changed and compiled."""
    include = tmp_path / "include"
    shutil.copytree(INCLUDE, include)
    ring = include / "fq_ring.h"
    before = "fq_store_sc(&ring->control->tail, ring->own, R1)"
    assert before in ring.read_text()
    ring.write_text(ring.read_text().replace(before, before.replace("_sc", "_rel")))
    done = run([build_explorer(tmp_path / "explorer", include), "bell"], timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "asleep for ever" in done.stdout and "how it came to" in done.stdout
