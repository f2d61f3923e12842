"""T3: the shipped headers in every interleaving and with every stale read that C11 allows, by the explorer.

The scenarios are tables in explorer/*.c. Each line of the output is one of them: executions, the bound on
preemptions, the property. How the explorer works and what it does not cover is told in explorer/explorer.h.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from c_toolchain import run

pytestmark = [pytest.mark.t3, pytest.mark.slow]


@pytest.mark.parametrize("group", ["litmus", "ring", "bell", "cancel", "slot", "former"])
def test_properties_hold(explorer: Path, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = run([explorer, group], timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    with capsys.disabled():
        print("\n" + done.stdout, end="")


def test_every_group_is_run(explorer: Path) -> None:
    """A group that the list above forgets would never be run."""
    known = test_properties_hold.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert run([explorer, "--groups"]).stdout.split() == known
