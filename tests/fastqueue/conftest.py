"""What the layers of fastqueue's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from c_toolchain import build_explorer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "t6: fastqueue with real threads, under the sanitizers")


@pytest.fixture(scope="session")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The explorer, compiled once from the installed headers."""
    return build_explorer(tmp_path_factory.mktemp("explorer") / "explorer")
