"""``headrace models`` with servers that list their models in different ways, or not at all."""

from __future__ import annotations

import json

import pytest
from fake_server import FakeServer, Run


def test_what_is_loaded_is_listed_through_statistics(run: Run, server: FakeServer) -> None:
    heading, line = run("models", "--url", server.url).stdout.splitlines()
    assert heading.split() == ["model", "version", "state", "platform", "max", "batch", "inputs", "outputs"]
    assert line.split("  ") != [line]
    for part in ("affine", "READY", "fake_platform", "x FP32 [-1, 4]", "y FP32 [-1, 4]", " 8 "):
        assert part in line


def test_a_repository_index_also_lists_what_is_not_loaded(run: Run, server: FakeServer) -> None:
    server.missing.clear()
    rows = json.loads(run("models", "--url", server.url, "--json").stdout)
    assert [(row["model"], row["version"], row["state"]) for row in rows] == [
        ("affine", "1", "READY"),
        ("asleep", "3", "UNAVAILABLE"),
    ]
    assert "UNAVAILABLE (unloaded)" in run("models", "--url", server.url).stdout


def test_a_model_that_is_not_ready_is_listed_without_details(run: Run, server: FakeServer) -> None:
    server.not_ready.add("affine")
    (row,) = json.loads(run("models", "--url", server.url, "--json").stdout)
    assert row["state"] == "UNAVAILABLE" and row["inputs"] == []


def test_one_model_by_name_needs_no_list(run: Run, server: FakeServer) -> None:
    server.missing |= {"ModelStatistics", "ModelConfig"}
    (row,) = json.loads(run("models", "affine", "--url", server.url, "--json").stdout)
    assert row["inputs"] == ["x FP32 [-1, 4]"] and row["max_batch"] is None


def test_a_server_that_cannot_list_says_what_to_do(run: Run, server: FakeServer) -> None:
    server.missing.add("ModelStatistics")
    result = run("models", "--url", server.url)
    assert result.exit_code == 1 and "name one: headrace models MODEL" in result.stderr


def test_an_unknown_model_is_not_found(run: Run, server: FakeServer) -> None:
    result = run("models", "nothing", "--url", server.url)
    assert result.exit_code == 1 and "NOT_FOUND" in result.stderr


def test_a_model_is_loaded_and_unloaded_with_a_word_on_it(run: Run, server: FakeServer) -> None:
    for word in ("load", "unload"):
        result = run("models", word, "affine", "--url", server.url)
        assert (result.exit_code, result.stdout) == (0, f"{word}ed 'affine'\n")
        assert run("models", word, "affine", "--url", server.url, "--json").stdout == ""
    assert server.controlled == ["load affine"] * 2 + ["unload affine"] * 2


@pytest.mark.parametrize("word", ["load", "unload"])
def test_load_and_unload_without_a_name_say_what_is_missing(run: Run, nobody: str, word: str) -> None:
    result = run("models", word, "--url", nobody)
    assert result.exit_code == 2
    assert f"expected the name of a model after '{word}': headrace models {word} MODEL" in result.stderr
    result = run("models", word, "one", "two", "--url", nobody)
    assert result.exit_code == 2
    assert f"expected MODEL, load MODEL or unload MODEL, got '{word} one two'" in result.stderr
