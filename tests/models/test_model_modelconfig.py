"""config.pbtxt: every field is served, a hint with a warning, or a refusal by name."""

from __future__ import annotations

import json
from random import Random

import pytest
from google.protobuf import json_format

from service._pb import model_config as pb
from service.models.modelconfig import (
    HINTS,
    LOOKED_INTO,
    SERVED,
    ConfigFault,
    Defaults,
    parse,
    wanted_from,
)
from service.models.spec import ModelSpec, TensorSpec, config
from service.models.wanted import Wanted, WantedTensor


def wanted(text: str, **defaults) -> Wanted:
    return wanted_from(parse(text.encode()), Defaults(**defaults))


def fault(text: str | bytes) -> str:
    with pytest.raises(ConfigFault) as raised:
        wanted_from(parse(text if isinstance(text, bytes) else text.encode()), Defaults())
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("name: 'm'\nmax_batchsize: 8\n", 2, "max_batchsize"),
        ("input {\n  name: 'x'\n  shape: [ 1 ]\n}", 3, "shape"),
        ("max_batch_size: eight", 1, "eight"),
        ("\n\ninput [ { name: 'x' data_type: TYPE_FLOAT } ]", 3, "TYPE_FLOAT"),
        ("max_batch_size: 1\nmax_batch_size: 2", 2, "max_batch_size"),
        ("input {", 1, "}"),
        ("\ninput { data_type: 99999999999999999999 }", 2, "out of range"),
        (b"name: 'a'\nplatform: '\xff'", 2, "UTF-8"),
    ],
)
def test_what_is_not_understood_names_the_line(text: str | bytes, line: int, words: str) -> None:
    said = fault(text)
    assert f"line {line}" in said
    assert words in said


def test_an_absurd_depth_is_a_fault_and_no_crash() -> None:
    deep = "optimization { cuda { graph_spec { input { value {" * 2000
    assert "line 1" in fault(deep) or "deep" in fault(deep)


def test_every_field_of_the_contract_is_accounted_for() -> None:
    """A field that is added to the contract is refused until somebody decides what it is."""
    paths = set()
    for field in pb.ModelConfig.DESCRIPTOR.fields:
        if field.name in LOOKED_INTO:
            paths |= {f"{field.name}.{inner.name}" for inner in field.message_type.fields}
        else:
            paths.add(field.name)
    assert SERVED | HINTS <= paths
    assert not SERVED & HINTS
    assert sorted(paths - SERVED - HINTS) == [
        "batch_input",
        "batch_output",
        "ensemble_scheduling",
        "input.allow_ragged_batch",
        "input.is_non_linear_format_io",
        "input.is_shape_tensor",
        "input.optional",
        "instance_group.passive",
        "model_operations",
        "model_repository_agents",
        "model_transaction_policy",
        "output.is_non_linear_format_io",
        "output.is_shape_tensor",
        "response_cache",
        "sequence_batching",
    ]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("sequence_batching { }", "sequence_batching"),
        ("ensemble_scheduling { step [ { model_name: 'a' } ] }", "ensemble_scheduling"),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled"),
        ("input { name: 'x' allow_ragged_batch: true }", "input.allow_ragged_batch"),
        ("input { name: 'x' is_shape_tensor: true }", "input.is_shape_tensor"),
        ("input { name: 'x' optional: true }", "input.optional"),
        ("batch_input { kind: BATCH_ITEM_SHAPE target_name: 'x' }", "batch_input"),
        ("batch_output { target_name: 'x' }", "batch_output"),
        ("response_cache { enable: true }", "response_cache.enable"),
        ("model_operations { op_library_filename: 'x.so' }", "model_operations"),
        ("instance_group { passive: true }", "instance_group.passive"),
        (
            "model_warmup { inputs { key: 'x' value { input_data_file: 'f' } } }",
            "model_warmup.inputs.input_data_file",
        ),
    ],
)
def test_what_changes_answers_is_refused_by_name(text: str, field: str) -> None:
    assert f"'{field}' is not served yet" in fault(text)


@pytest.mark.parametrize(
    "text",
    [
        "model_transaction_policy { decoupled: false }",
        "response_cache { }",
        "dynamic_batching { priority_levels: 0 default_queue_policy { } }",
        "input { name: 'x' optional: false }",
        "instance_group { kind: KIND_CPU }",
        "backend: 'tensorrt' instance_group { kind: KIND_GPU count: 2 }",
        "platform: 'tensorrt_plan' instance_group { kind: KIND_GPU }",
        "backend: 'tensorrt' instance_group { gpus: [ 0, 1 ] }",
        "optimization { }",
    ],
)
def test_a_default_that_is_spelled_out_says_nothing(text: str) -> None:
    assert wanted(text).warnings == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("optimization { cuda { graphs: true } }", "'optimization' in config.pbtxt is a hint"),
        ("instance_group { kind: KIND_GPU gpus: [ 0 ] }", "'instance_group.gpus'"),
        ("instance_group { kind: KIND_GPU }", "'instance_group.kind'"),
        ("backend: 'tensorrt' instance_group { kind: KIND_CPU }", "'instance_group.kind'"),
        ("instance_group { rate_limiter { priority: 2 } }", "'instance_group.rate_limiter'"),
        ("cc_model_filenames { key: '8.6' value: 'm' }", "'cc_model_filenames'"),
        ("metric_tags { key: 'a' value: 'b' }", "'metric_tags'"),
        ("model_warmup { name: 'w' }", "model_warmup 'w' has batch_size 0 and is left out"),
        ("dynamic_batching { preferred_batch_size: [ 4, 8 ] }", "'dynamic_batching.preferred_batch_size'"),
        ("parameters { key: 'speed' value { string_value: '11' } }", "parameter 'speed'"),
        ("dynamic_batching { max_queue_delay_microseconds: 2000000 }", "which is 2 s"),
    ],
)
def test_hints_and_likely_slips_are_warnings(text: str, words: str) -> None:
    (warning,) = [said for said in wanted(text).warnings if words in said]
    assert warning


def test_what_the_config_says_prevails_over_the_flags() -> None:
    text = """
    max_batch_size: 8   # a comment
    dynamic_batching { max_queue_delay_microseconds: 100 }
    instance_group [ { count: 2 }, { } ]
    input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]
    output [ { name: "y" data_type: TYPE_STRING } ]
    """
    found = wanted(text, max_batch_size=4, max_batch_wait_us=7, instances=5)
    assert (found.max_batch_size, found.firm) == (8, True)
    assert (found.max_batch_wait_us, found.instances) == (100, 3)
    assert found.inputs == (WantedTensor("x", "FP32", (3, -1)),)
    assert found.outputs == (WantedTensor("y", "BYTES", None),)
    assert found.warnings == ()
    assert json.loads(found.config_json)["max_batch_size"] == 8


@pytest.mark.parametrize(
    ("dims", "reshape"),
    [
        ([1], []),
        ([1, 1], []),
        ([6], [2, 3]),
        ([4, -1, 6], [2, 2, -1, 6, 1]),
        ([-1, 2, -1], [1, -1, 2, -1]),
        ([-1, -1], [-1, -1]),
    ],
)
def test_a_reshape_keeps_the_elements_between_dims_of_any_size(dims: list[int], reshape: list[int]) -> None:
    text = "%s { name: 't' data_type: TYPE_FP32 dims: %s reshape { shape: %s } }"
    found = wanted("".join(text % (kind, dims, reshape) for kind in ("input", "output")))
    tensor = WantedTensor("t", "FP32", tuple(dims), tuple(reshape))
    assert (found.inputs, found.outputs) == ((tensor,), (tensor,))
    assert found.warnings == ()


def test_where_the_config_says_nothing_the_flags_hold() -> None:
    found = wanted("name: 'm'", max_batch_size=4, max_batch_wait_us=7, instances=5)
    assert (found.max_batch_size, found.firm) == (4, False)
    assert (found.max_batch_wait_us, found.instances) == (7, 5)


def test_a_max_batch_size_of_0_is_not_an_absent_one() -> None:
    assert (wanted("max_batch_size: 0").max_batch_size, wanted("max_batch_size: 0").firm) == (0, True)
    assert wanted("# max_batch_size: 0\nplatform: 'max_batch_size: 0'", max_batch_size=4).max_batch_size == 4


def test_allowed_batch_sizes() -> None:
    def sizes(text: str) -> str:
        return f"parameters {{ key: 'allowed_batch_sizes' value {{ string_value: '{text}' }} }}"

    assert wanted(sizes("8, 1,4,4")).batch_sizes == (1, 4, 8)
    assert wanted(sizes("4"), max_batch_size=0).max_batch_size is None
    for text in ("", "4,", "0", "-1", "four", "1;2", "4.0", "99999999999"):
        assert f"allowed_batch_sizes is '{text}'; expected numbers from 1" in fault(sizes(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_batch_size: -1", "max_batch_size must be between 0 and 65536, got -1"),
        ("instance_group { count: -1 }", "instance_group.count must be between 0 and 64, got -1"),
        ("instance_group { count: 40 } instance_group { count: 40 }", "the sum of instance_group.count"),
        ("dynamic_batching { max_queue_delay_microseconds: 18446744073709551615 }", "max_queue_delay"),
        ("input { name: 'x' } input { name: 'x' }", "input 'x' comes twice"),
        ("input { name: 'x' } input { dims: [ 1 ] }", "input number 2 has no name"),
        ("input { name: 'x' dims: [ 0 ] }", "input 'x' has dims [0]"),
        ("output { name: 'x' dims: [ -2 ] }", "output 'x' has dims [-2]"),
        ("input { name: 'x' dims: [ 0 ] reshape { } }", "input 'x' has dims [0]; a dim is"),
        ("input { name: 'x' dims: [ 4 ] reshape { shape: [ -2 ] } }", "input 'x' has reshape [-2]; a dim is"),
        ("input { name: 'x' reshape { } }", "input 'x' has reshape [] and no dims; expected dims"),
        (
            "input { name: 'x' dims: [ 2, 3 ] reshape { shape: [ 5 ] } }",
            "input 'x' has dims [2, 3] and reshape [5]; expected as many elements in both, got 6 and 5",
        ),
        (
            "output { name: 'y' dims: [ 2 ] reshape: { } }",
            "output 'y' has dims [2] and reshape []; expected as many elements in both, got 2 and 1",
        ),
        (
            "input { name: 'x' dims: [ 4, -1 ] reshape { shape: [ -1, 4 ] } }",
            "has dims [4, -1] and reshape [-1, 4]; expected as many elements in both between the dims of -1, "
            "got 4 and 1",
        ),
        (
            "input { name: 'x' dims: [ -1 ] reshape { shape: [ -1, -1 ] } }",
            "has dims [-1] and reshape [-1, -1]; expected as many dims of -1 in both, got 1 and 2",
        ),
        ("input { name: 'x' data_type: 99 }", "data_type 99 is unknown"),
    ],
)
def test_values_out_of_bounds(text: str, words: str) -> None:
    assert words in fault(text)


def test_all_faults_of_a_config_come_at_once() -> None:
    said = fault("max_batch_size: -1 sequence_batching { } input { name: 'x' optional: true }")
    assert all(words in said for words in ("max_batch_size", "sequence_batching", "input.optional"))


GOOD = b"""name: "m"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4, -1 ] } ]
output { name: "y" dims: 4 }
version_policy: { specific: { versions: [ 1, 2 ] } }
instance_group [ { count: 2 kind: KIND_CPU gpus: [ 0 ] } ]
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100 }
parameters { key: "allowed_batch_sizes" value { string_value: "1,4,8" } }
metric_tags { key: "a" value: "b" }
"""
SNIPPETS = [
    text.encode("latin-1") for text in "{ } [ ] : \" ' \\ \\377 \\U00110000 -1 1e999 nan 0x # < \xff".split()
]
SNIPPETS += [b"\n", b"\0", b"9" * 20, b"[type.googleapis.com/x]", b"input"]


def damaged(random: Random) -> bytes:
    data = bytearray(GOOD)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(4)
        if kind == 0:
            del data[at : at + random.randint(1, 20)]
        elif kind == 1:
            data[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 2:
            data[at:at] = data[random.randrange(len(data) + 1) :][: random.randint(1, 60)]
        else:
            data[at:at] = random.choice(SNIPPETS)
    return bytes(data)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # protobuf's own, on damaged strings
@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_config_is_a_fault_with_words_or_a_config_that_can_be_told(seed: int) -> None:
    random = Random(seed)
    told = 0
    for _ in range(1000):
        data = damaged(random)
        try:
            found = wanted_from(parse(data), Defaults())
        except ConfigFault as said:
            assert str(said), data
            continue
        x, y = (TensorSpec(name, "FP32", (4,)) for name in "xy")
        spec = ModelSpec("m", "1", "p", "b", 8, (x,), (y,), config_json=found.config_json)
        assert json_format.ParseDict(config(spec), pb.ModelConfig()).max_batch_size == 8
        told += 1
    assert told > 0
