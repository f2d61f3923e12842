"""For every test: the installed package is what is tested, and on CI a missing toolchain is a failure.

A test that needs a tool skips itself with a reason that starts with "needs" (``pytest.skip("needs clang")``).
On a developer's machine that is a visible skip; with CI=true it fails, so that a machine without compilers is
never green.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ON_CI = os.environ.get("CI") == "true"


def pytest_configure(config: pytest.Config) -> None:
    """Refuses to run against the source tree, whose folders have the names of the installed packages."""
    import fastqueue
    import service

    for package in (fastqueue, service):
        for folder in package.__path__:
            if Path(folder).resolve().parent == ROOT:
                raise pytest.UsageError(
                    f"{package.__name__} comes from the source tree ({folder}), not from an installation; "
                    "run `make test`, or pytest from another folder"
                )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if ON_CI and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith("needs"):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} {reason}; on CI (CI=true) that is a failure, not a skip"
    return report
