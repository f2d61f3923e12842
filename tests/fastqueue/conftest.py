"""What the layers of fastqueue's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from c_toolchain import build_explorer


@pytest.fixture(scope="session")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The explorer, compiled once from the installed headers."""
    return build_explorer(tmp_path_factory.mktemp("explorer") / "explorer")
