"""T4: every ordering of the shipped headers is needed, and T3 notices when one is missing.

The mutants come from FQ_LABELS itself: each row that is not relaxed, weakened by each step that is possible.
A new row whose weakening no scenario notices fails here: it is too strong, or a scenario is missing.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from c_toolchain import INCLUDE, Label, build_explorer, labels, run, without_comments

pytestmark = [pytest.mark.t4, pytest.mark.slow]


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
    assert "no scenario fails" in done.stdout


class Step(NamedTuple):
    """A step of a protocol that could be forgotten, or taken too early: the text of a header, changed."""

    header: str
    old: str
    new: str


def swapped(header: str, first: str, second: str) -> Step:
    return Step(header, first + second, second + first)


def forgotten(header: str, step: str) -> Step:
    return Step(header, step, "")


STEPS = {
    "an ordering weakened in the text itself": Step(
        "fq_ring.h",
        "fq_store_sc(&ring->control->tail, ring->own, R1)",
        "fq_store_rel(&ring->control->tail, ring->own, R1)",
    ),
    "an entry is published before it is written": swapped(
        "fq_ring.h",
        "    fq_data_put(fq_ring_entry(ring, ring->own), entry, ring->entry_bytes);\n",
        "    ring->own++;\n    fq_store_sc(&ring->control->tail, ring->own, R1);\n",
    ),
    "an entry is freed before it is read": swapped(
        "fq_ring.h",
        "    fq_data_get(entry, fq_ring_entry(ring, ring->own), ring->entry_bytes);\n",
        "    ring->own++;\n    fq_store_rel(&ring->control->head, ring->own, R4);\n",
    ),
    "the front end looks at its lane before it announces its sleep": Step(
        "fq_lane.h",
        "    fq_bell_arm(&front->lane.header->front, FQ_WANT_COMPLETE);\n"
        "    if (!fq_ring_waiting(&front->lane.completion)) return 1;\n",
        "    int waiting = fq_ring_waiting(&front->lane.completion);\n"
        "    fq_bell_arm(&front->lane.header->front, FQ_WANT_COMPLETE);\n"
        "    if (!waiting) return 1;\n",
    ),
    "the former looks at the lanes before it announces its sleep": swapped(
        "fq_control.h",
        "    fq_bell_arm(&f->page->bell, *wanted);\n",
        "    if (punched || fq_former_waiting(f, *wanted)) next = FQ_TURN_AGAIN;\n",
    ),
    "a cancel is announced before the word is set": swapped(
        "fq_lane.h",
        "    fq_store_rlx(&front->lane.slots[number].cancelled, 1, X1);\n",
        "    fq_store_sc(count, fq_load_rlx(count, X6) + 1, X3);\n",
    ),
    "a claim leaves the cancel word as it was": forgotten(
        "fq_lane.h", "fq_store_rlx(&slot->cancelled, 0, X0);"
    ),
    "an accepted request's cancel word is not looked at": Step(
        "fq_former.h", "if (r->state == FQ_WAITING && fq_lane_cancelled(&lane->end, number))", "if (0)"
    ),
    "a slot is taken again before its last answer's release was looked for": forgotten(
        "fq_former.h", "        if (lane->answers[number].length) fq_former_releases(f, lane);\n"
    ),
    "a release rings for nobody": Step(
        "fq_lane.h", "pushed && fq_bell_take(front->worker, FQ_WANT_RELEASE)", "0 && pushed"
    ),
    "the former does not wait for releases": Step(
        "fq_control.h",
        "(f->memory_waiters || fq_output_spilled(&f->output) ?",
        "(fq_output_spilled(&f->output) ?",
    ),
    "a launcher that waits for memory does not say so": Step(
        "fq_reserve.h", "    fq_bell_kick(&f->page->bell); /* the former", "    /* the former"
    ),
    "a launcher that takes a request leaves the former asleep": Step(
        "fq_control.h",
        "if (until_ns < f->sleep_until_ns || f->output.stale",
        "(void)until_ns; if (f->output.stale",
    ),
    "closing rings for nobody": Step(
        "fq_control.h", "    fq_bell_kick(&f->page->bell);\n}\n\n#endif", "}\n\n#endif"
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_wrong_step_is_noticed(name: str, tmp_path: Path) -> None:
    step = STEPS[name]
    include = tmp_path / "include"
    shutil.copytree(INCLUDE, include)
    header = include / step.header
    assert header.read_text().count(step.old) == 1, f"{step.header} has changed; so must this mutant"
    header.write_text(header.read_text().replace(step.old, step.new))
    done = run([build_explorer(tmp_path / "explorer", include, "-O0"), "--hunt"], timeout=300)
    assert done.returncode == 1, f"nothing fails: {done.stdout}{done.stderr}"
    assert "noticed by" in done.stdout


def test_a_failure_is_explained(explorer: Path, tmp_path: Path) -> None:
    """Whoever breaks an ordering is shown the run that goes wrong, access by access."""
    step = STEPS["an ordering weakened in the text itself"]
    include = tmp_path / "include"
    shutil.copytree(INCLUDE, include)
    (include / step.header).write_text((include / step.header).read_text().replace(step.old, step.new))
    done = run([build_explorer(tmp_path / "explorer", include, "-O0"), "bell"], timeout=300)
    assert done.returncode == 1
    assert 'how it came to "asleep for ever"' in done.stdout
    assert re.search(r"ringer +R1 +store rel", done.stdout) and re.search(r"sleeper +sleeps", done.stdout)
