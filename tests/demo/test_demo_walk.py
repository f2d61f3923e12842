"""Which files are a person's own, and which are left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.demo.walk import files_under


def tree(top: Path, *names: str) -> None:
    for name in names:
        file = top / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)


def names(top: Path, *paths: Path) -> list[str]:
    return [str(file.relative_to(top)) for file in files_under(paths or (top,))]


def test_files_come_once_each_in_a_fixed_order(tmp_path: Path) -> None:
    tree(tmp_path, "b/2", "a/1", "c", ".hidden-file")
    assert names(tmp_path) == [".hidden-file", "c", "a/1", "b/2"]
    assert names(tmp_path, tmp_path, tmp_path / "c", tmp_path / "a") == [".hidden-file", "c", "a/1", "b/2"]


def test_dot_folders_virtual_environments_and_outputs_are_left_out(tmp_path: Path) -> None:
    tree(tmp_path, "keep/x", ".git/x", "my-env/pyvenv.cfg", "my-env/x", "build/x", "a/node_modules/x")
    tree(tmp_path, "a/__pycache__/x", "h.egg-info/x", "dist/x", "keep/builder/x")
    assert names(tmp_path) == ["keep/x", "keep/builder/x"]


@pytest.mark.parametrize("name", [".git", "build", "env"])
def test_a_folder_that_was_named_is_always_entered(tmp_path: Path, name: str) -> None:
    tree(tmp_path, f"{name}/x")
    assert names(tmp_path) == []
    assert names(tmp_path, tmp_path / name) == [f"{name}/x"]


def test_only_regular_files_count_and_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    tree(tmp_path, "real/x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "x")
    assert names(tmp_path) == ["link", "real/x"]


def test_a_path_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no '.*nothing'"):
        list(files_under([tmp_path / "nothing"]))
