"""For every test: the installed package is what is tested, and on CI a missing toolchain is a failure.

A test that needs a tool skips itself with a reason that starts with "needs" (``pytest.skip("needs clang")``).
On a developer's machine that is a visible skip; with CI=true it fails, so that a machine without compilers is
never green.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ON_CI = os.environ.get("CI") == "true"


def pytest_configure(config: pytest.Config) -> None:
    """Refuses to run against the source tree, whose folders have the names of the installed packages."""
    for name in ("fastqueue", "service"):
        spec = find_spec(name)
        if spec is None:
            raise pytest.UsageError(f"{name} is not installed; run `make test`")
        for folder in spec.submodule_search_locations or ():
            if Path(folder).resolve().parent == ROOT:
                raise pytest.UsageError(
                    f"{name} comes from the source tree ({folder}), not from an installation; "
                    "run `make test`, or pytest from another folder"
                )


Report = pytest.TestReport | pytest.CollectReport


def refuse_missing_tools(report: Report) -> Report:
    """On CI, turns a skip for want of a tool into a failure; a skip's longrepr is (file, line, reason)."""
    if ON_CI and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith("needs"):
            report.outcome = "failed"
            report.longrepr = f"{report.nodeid} {reason}; on CI (CI=true) that is a failure, not a skip"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Report, Report]:
    return refuse_missing_tools((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Report, Report]:
    return refuse_missing_tools((yield))
