"""``headrace infer``: what a file becomes, what is printed, and what a failure says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fake_server import FakeServer, Run

ROW = [1.0, 2.0, 3.0, 4.0]
ANSWER = [3.0, 5.0, 7.0, 9.0]


def saved(path: Path, value: object) -> Path:
    if path.suffix == ".npy":
        np.save(path, np.asarray(value))
    else:
        path.write_text(json.dumps(value))
    return path


def answer_of(run: Run, server: FakeServer, file: Path, *flags: object) -> dict[str, object]:
    result = run("infer", "affine", file, "--url", server.url, "--json", *flags)
    assert result.exit_code == 0, result.output
    answer: dict[str, object] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize(
    "value",
    [
        np.array([ROW], np.float32),
        np.array(ROW, np.float32),  # without its batch axis
        np.array([ROW]),  # float64
        np.array([ROW], np.int64),
        np.asfortranarray(np.array([ROW, ROW], np.float32))[:1],
    ],
    ids=["as declared", "no batch axis", "float64", "int64", "not contiguous"],
)
def test_an_array_file_becomes_the_one_input(
    run: Run, server: FakeServer, tmp_path: Path, value: object
) -> None:
    answer = answer_of(run, server, saved(tmp_path / "x.npy", value))
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": ANSWER}]


@pytest.mark.parametrize(
    "value",
    [
        [ROW],
        {"x": [ROW]},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW}]},
        [[1, 2, 3, 4]],
    ],
    ids=["nested list", "by name", "protocol form", "integers"],
)
def test_json_is_taken_in_each_of_its_forms(
    run: Run, server: FakeServer, tmp_path: Path, value: object
) -> None:
    assert answer_of(run, server, saved(tmp_path / "x.json", value))["outputs"][0]["data"] == ANSWER  # type: ignore[index]


def test_npz_gives_inputs_by_name_or_one_without(run: Run, server: FakeServer, tmp_path: Path) -> None:
    for number, arrays in enumerate(({"x": np.float32([ROW])}, {"arr_0": np.float32([ROW])})):
        np.savez(tmp_path / f"{number}.npz", **arrays)
        assert answer_of(run, server, tmp_path / f"{number}.npz")["outputs"][0]["data"] == ANSWER  # type: ignore[index]


def test_any_other_file_is_raw_bytes_of_as_many_rows_as_fit(
    run: Run, server: FakeServer, tmp_path: Path
) -> None:
    file = tmp_path / "x.raw"
    file.write_bytes(np.array([ROW, ROW, ROW], "<f4").tobytes())
    assert answer_of(run, server, file)["outputs"][0]["shape"] == [3, 4]  # type: ignore[index]


def test_a_raw_file_of_the_wrong_size_says_what_would_fit(
    run: Run, server: FakeServer, tmp_path: Path
) -> None:
    file = tmp_path / "x.raw"
    file.write_bytes(b"12345")
    result = run("infer", "affine", file, "--url", server.url)
    assert result.exit_code == 2
    assert (
        "5 bytes" in result.stderr
        and "a multiple of 16 bytes" in result.stderr
        and "'x' FP32[-1, 4]" in result.stderr
    )
    assert not server.seen


@pytest.mark.parametrize("value", [[["a", "b", "c", "d"]], [[1.0, 2.0], [3.0]]], ids=["text", "ragged"])
def test_what_is_no_number_is_refused_before_it_is_sent(
    run: Run, server: FakeServer, tmp_path: Path, value: object
) -> None:
    result = run("infer", "affine", saved(tmp_path / "x.json", value), "--url", server.url)
    assert result.exit_code == 2 and result.stderr.startswith("headrace: ")
    assert not server.seen


def test_text_for_numbers_says_what_is_expected(run: Run, server: FakeServer, tmp_path: Path) -> None:
    file = saved(tmp_path / "x.json", [["a", "b", "c", "d"]])
    assert run("infer", "affine", file, "--url", server.url).stderr == (
        "headrace: input 'x' expects numbers (FP32), the file has text, such as 'a'; write them as numbers, "
        "or convert them first, for example array.astype('float32')\n"
    )


@pytest.mark.parametrize(
    ("array", "note"),
    [
        (np.array([ROW]), ""),
        (np.array([[0.5, 1 + 2.0**-30, np.nan, np.inf]]), "1 of 4 values were rounded, by 9.3e-10 at most"),
        (np.array([[1, 2, 3, 2**24 + 1]]), "1 of 4 values were rounded, by 1 at most"),
        (np.array([[1, 2, 3, 2**24 + 1]], np.uint32), "1 of 4 values were rounded, by 1 at most"),
        (np.array([[1, 2, 3, 2**14 + 1]], np.int16), ""),
    ],
    ids=["exact", "float64", "int64", "uint32", "int16"],
)
def test_rounded_values_are_said(
    run: Run, server: FakeServer, tmp_path: Path, array: np.ndarray, note: str
) -> None:
    result = run("infer", "affine", saved(tmp_path / "x.npy", array), "--url", server.url)
    assert result.exit_code == 0
    told = f"headrace: input 'x' is FP32, the file has {array.dtype}: {note}\n" if note else ""
    assert result.stderr == told
    with np.errstate(invalid="ignore"):
        assert server.seen[0].raw_input_contents[0] == array.astype("<f4").tobytes()


def test_decimals_of_json_are_rounded_without_a_word(run: Run, server: FakeServer, tmp_path: Path) -> None:
    result = run("infer", "affine", saved(tmp_path / "x.json", [[0.1, 0.2, 0.3, 0.4]]), "--url", server.url)
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("name", ["x.npy", "x.json"])
def test_values_beyond_the_models_type_are_refused(
    run: Run, server: FakeServer, tmp_path: Path, name: str
) -> None:
    result = run("infer", "affine", saved(tmp_path / name, [[1.0, 2.0, 1e300, 4.0]]), "--url", server.url)
    assert (result.exit_code, result.stderr) == (
        2,
        "headrace: input 'x' is FP32, the file has float64 that do not fit, such as 1e+300; bring them into "
        "its range first\n",
    )
    assert not server.seen


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_pickled_arrays_are_not_loaded(run: Run, server: FakeServer, tmp_path: Path, name: str) -> None:
    save = np.save if name.endswith("npy") else np.savez
    save(tmp_path / name, np.array([{}], dtype=object), allow_pickle=True)
    result = run("infer", "affine", tmp_path / name, "--url", server.url)
    assert result.exit_code == 2
    assert result.stderr == (
        f"headrace: cannot read inputs from '{tmp_path / name}': it holds pickled Python objects, which "
        "could run any code when they are loaded; save numbers, or strings as array.astype('S')\n"
    )


def test_a_file_that_is_no_array_is_said_so(run: Run, server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"something else")
    result = run("infer", "affine", tmp_path / "x.npy", "--url", server.url)
    assert result.exit_code == 2 and result.stderr.endswith("it is not in numpy's format\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty; expected JSON"),
        ("\n\n", "it is empty; expected JSON"),
        ('{"x": [[1, 2]\n', "it is no JSON: it ends too early, on line 1"),
        ('{\n"x": [[1, 2],\n\n', "it is no JSON: it ends too early, on line 2"),
        ('{"x": "abc\n', "it is no JSON: it ends too early, on line 1"),
        ('{"x": "abc', "it is no JSON: it ends within the string that begins at line 1, column 7"),
        ('{"x": [[1 2]]}\n', "it is no JSON: Expecting ',' delimiter at line 1, column 11"),
    ],
)
def test_json_that_is_none_says_where_it_ends_or_is_wrong(
    run: Run, server: FakeServer, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "x.json").write_text(text)
    result = run("infer", "affine", tmp_path / "x.json", "--url", server.url)
    assert result.exit_code == 2
    assert result.stderr == f"headrace: cannot read inputs from '{tmp_path / 'x.json'}': {words}\n"


def test_lists_within_lists_without_end_are_one_sentence(
    run: Run, server: FakeServer, tmp_path: Path
) -> None:
    (tmp_path / "x.json").write_text("[" * 100_000 + "]" * 100_000)
    result = run("infer", "affine", tmp_path / "x.json", "--url", server.url)
    assert result.exit_code == 2
    assert result.stderr.endswith("its lists are nested too deep; a tensor has at most 8 dimensions\n")


# ---- strings ----

STRINGS = ["größe", "", "a\0", "\udcff\udcfe"]  # the last one is b"\xff\xfe", which is no text


@pytest.mark.parametrize(
    "value",
    [
        [STRINGS],
        {"x": [STRINGS]},
        {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 4], "data": STRINGS}]},
        STRINGS,
    ],
    ids=["nested list", "by name", "protocol form", "no batch axis"],
)
def test_strings_of_json_come_back_byte_for_byte(
    run: Run, server: FakeServer, tmp_path: Path, value: object
) -> None:
    result = run("infer", "same", saved(tmp_path / "x.json", value), "--url", server.url, "--json")
    assert result.exit_code == 0, result.output
    (request,) = server.seen
    assert request.inputs[0].datatype == "BYTES" and list(request.inputs[0].shape) == [1, 4]
    lengths = [6 + 1, 0, 2, 2]
    assert len(request.raw_input_contents[0]) == 4 * 4 + sum(lengths)
    assert request.raw_input_contents[0].endswith(b"\2\0\0\0a\0\2\0\0\0\xff\xfe")
    assert json.loads(result.stdout)["outputs"] == [
        {"name": "y", "datatype": "BYTES", "shape": [1, 4], "data": STRINGS}
    ]


@pytest.mark.parametrize("dtype", ["S", "U"])
def test_numpys_strings_are_sent_and_saved(run: Run, server: FakeServer, tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "x.npy", np.array([["one", ""], ["three", "4"]], dtype))
    target = tmp_path / "answer.npz"
    result = run("infer", "same", tmp_path / "x.npy", "--url", server.url, "-o", target)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == ["y  BYTES  [2, 2]", "[['one' '']", " ['three' '4']]"]
    with np.load(target) as saved_arrays:
        assert saved_arrays["y"].tolist() == [[b"one", b""], [b"three", b"4"]]


def test_any_other_file_is_one_string(run: Run, server: FakeServer, tmp_path: Path) -> None:
    payload = b"\xff\xd8" + bytes(500)
    (tmp_path / "cat.jpg").write_bytes(payload)
    result = run("infer", "same", tmp_path / "cat.jpg", "--url", server.url)
    (request,) = server.seen
    assert list(request.inputs[0].shape) == [1, 1] and request.raw_input_contents[0][4:] == payload
    assert "(502 bytes)" in result.stdout and r"b'\xff\xd8\x00" in result.stdout


def test_strings_that_a_file_would_lose_are_not_saved(run: Run, server: FakeServer, tmp_path: Path) -> None:
    file = saved(tmp_path / "x.json", [["a\0"]])
    result = run("infer", "same", file, "--url", server.url, "-o", tmp_path / "answer.npz")
    assert result.exit_code == 1 and "end in a zero byte" in result.stderr
    assert not (tmp_path / "answer.npz").exists()


def test_a_lone_surrogate_that_stands_for_no_byte_is_refused(
    run: Run, server: FakeServer, tmp_path: Path
) -> None:
    result = run("infer", "same", saved(tmp_path / "x.json", [["\ud800"]]), "--url", server.url)
    assert result.exit_code == 2 and "a string that is no text" in result.stderr


def test_what_is_no_string_is_refused_before_it_is_sent(run: Run, server: FakeServer, tmp_path: Path) -> None:
    for number, value in enumerate(([["a", 1]], [["a"], ["b", "c"]], [[None]])):
        result = run("infer", "same", saved(tmp_path / f"{number}.json", value), "--url", server.url)
        assert result.exit_code == 2 and "expected strings for BYTES, element" in result.stderr
    assert not server.seen


def test_outputs_are_printed_with_name_type_and_shape(run: Run, server: FakeServer, tmp_path: Path) -> None:
    result = run("infer", "affine", saved(tmp_path / "x.json", [ROW]), "--url", server.url)
    assert result.stdout.splitlines() == ["y  FP32  [1, 4]", "[[3. 5. 7. 9.]]"]


def test_outputs_are_saved_by_name(run: Run, server: FakeServer, tmp_path: Path) -> None:
    target = tmp_path / "answer.npz"
    assert (
        run("infer", "affine", saved(tmp_path / "x.json", [ROW]), "--url", server.url, "-o", target).exit_code
        == 0
    )
    with np.load(target) as saved_arrays:
        np.testing.assert_array_equal(saved_arrays["y"], np.float32([ANSWER]))


def test_requested_outputs_and_version_reach_the_server(run: Run, server: FakeServer, tmp_path: Path) -> None:
    answer_of(run, server, saved(tmp_path / "x.json", [ROW]), "--output", "y", "--model-version", "1")
    (request,) = server.seen
    assert [output.name for output in request.outputs] == ["y"] and request.model_version == "1"


def test_the_servers_refusal_is_shown_as_it_is(run: Run, server: FakeServer, tmp_path: Path) -> None:
    server.refuse = lambda request: "unexpected shape for input 'x'"
    result = run("infer", "affine", saved(tmp_path / "x.json", [ROW]), "--url", server.url)
    assert result.exit_code == 1
    assert result.stderr == "headrace: INVALID_ARGUMENT: unexpected shape for input 'x'\n"


def test_an_unknown_model_and_an_unknown_input_are_named(
    run: Run, server: FakeServer, tmp_path: Path
) -> None:
    file = saved(tmp_path / "x.json", [ROW])
    result = run("infer", "nothing", file, "--url", server.url)
    assert (
        result.exit_code == 1
        and "NOT_FOUND: Request for unknown model: 'nothing' is not found" in result.stderr
    )
    result = run("infer", "affine", file, "--url", server.url, "--input", "z")
    assert result.exit_code == 2 and "has no input 'z'; its inputs are 'x'" in result.stderr


@pytest.mark.parametrize("command", ["infer", "models", "bench"])
def test_when_nobody_is_there_a_sentence_says_what_to_do(
    run: Run, nobody: str, tmp_path: Path, command: str
) -> None:
    arguments = {"infer": ["m", saved(tmp_path / "x.json", [ROW])], "models": [], "bench": ["m"]}[command]
    result = run(command, *arguments, "--url", nobody)
    assert result.exit_code == 1
    assert f"nothing answers at {nobody}" in result.stderr
    assert "headrace serve MODEL.onnx" in result.stderr and "--url HOST:PORT" in result.stderr
    assert "Traceback" not in result.output


def test_an_http_address_is_explained(run: Run) -> None:
    result = run("models", "--url", "http://localhost:8001/")
    assert result.exit_code == 1 and "try 'localhost:8001'" in result.stderr
