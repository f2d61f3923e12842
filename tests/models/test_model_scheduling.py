"""Priorities, queue policies and the execution time-out in a config.pbtxt, and what is wrong with them."""

from __future__ import annotations

import json

import pytest

from fastqueue import MAX_LEVELS as LEVELS_OF_THE_QUEUE
from service.models.modelconfig import ConfigFault, Defaults, parse, wanted_from
from service.models.scheduling import MAX_LEVELS, MAX_TIMEOUT_US, QueuePolicy, Scheduling
from service.models.spec import ModelSpec, TensorSpec, config

WHOLE = """dynamic_batching {
  priority_levels: 3 default_priority_level: 2
  default_queue_policy { max_queue_size: 9 default_timeout_microseconds: 500 }
  priority_queue_policy [ { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 70
                                           allow_timeout_override: true } },
                          { key: 3 value { max_queue_size: 1 } } ] }
parameters { key: "execution_timeout_s" value { string_value: "2.5" } }"""
ORDINARY = QueuePolicy(timeout_us=500, override=False, max_queue_size=9)


def scheduling(text: str) -> Scheduling:
    return wanted_from(parse(text.encode()), Defaults()).scheduling


def fault(text: str) -> str:
    with pytest.raises(ConfigFault) as raised:
        scheduling(text)
    return str(raised.value)


def test_nothing_said() -> None:
    assert scheduling("max_batch_size: 8") == Scheduling((QueuePolicy(),), 1, 300.0)


def test_everything_said() -> None:
    first = QueuePolicy(timeout_us=70, delay=True, override=True)
    assert scheduling(WHOLE) == Scheduling((first, ORDINARY, QueuePolicy(max_queue_size=1)), 2, 2.5)


def test_a_policy_without_levels_is_for_everybody() -> None:
    said = "dynamic_batching { default_queue_policy { max_queue_size: 9 default_timeout_microseconds: 500 } }"
    assert scheduling(said).levels == (ORDINARY,)


def test_a_request_may_shorten_a_time_out_where_the_policy_allows_it_or_has_none() -> None:
    policy = "dynamic_batching { default_queue_policy { %s } }"
    for said, override in (
        ("max_queue_size: 1", True),
        ("default_timeout_microseconds: 1", False),
        ("default_timeout_microseconds: 1 allow_timeout_override: true", True),
    ):
        assert scheduling(policy % said).levels[0].override == override


def test_a_time_out_of_ages_is_the_longest_that_the_queue_has() -> None:
    policy = (
        "dynamic_batching { default_queue_policy { default_timeout_microseconds: 18446744073709551615 } }"
    )
    assert scheduling(policy).levels[0].timeout_us == MAX_TIMEOUT_US
    assert MAX_TIMEOUT_US * 1000 < 2**63


@pytest.mark.parametrize(
    ("batching", "words"),
    [
        ("priority_levels: 2", "default_priority_level must be between 1 and 2 (priority_levels), got 0"),
        ("priority_levels: 2 default_priority_level: 3", "default_priority_level must be between 1 and 2"),
        ("default_priority_level: 1", "default_priority_level needs priority_levels, which is 0"),
        ("priority_queue_policy { key: 1 value { } }", "priority_queue_policy needs priority_levels"),
        (
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }",
            "priority_queue_policy is for levels from 1 to 2 (priority_levels), got 3",
        ),
        (
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 0 value { } }",
            "priority_queue_policy is for levels from 1 to 2 (priority_levels), got 0",
        ),
        ("priority_levels: 33 default_priority_level: 1", "priority_levels must be between 0 and 32, got 33"),
        (
            "priority_levels: 2 default_priority_level: 1 preserve_ordering: true",
            "preserve_ordering and 2 priority_levels exclude each other",
        ),
    ],
)  # fmt: skip
def test_levels_that_make_no_sense(batching: str, words: str) -> None:
    assert words in fault(f"dynamic_batching {{ {batching} }}")


def test_the_most_levels_are_the_queues() -> None:
    assert MAX_LEVELS == LEVELS_OF_THE_QUEUE
    most = f"dynamic_batching {{ priority_levels: {MAX_LEVELS} default_priority_level: {MAX_LEVELS} }}"
    assert len(scheduling(most).levels) == MAX_LEVELS


@pytest.mark.parametrize("value", ["", "soon", "0", "-1", "nan", "inf", "1e7"])
def test_an_execution_time_out_that_is_none(value: str) -> None:
    said = fault(f'parameters {{ key: "execution_timeout_s" value {{ string_value: "{value}" }} }}')
    assert said == (
        f"parameter execution_timeout_s is '{value}'; expected a number of seconds above 0, at most 1000000"
    )


def test_model_config_says_what_was_said_and_the_spec_crosses_sockets() -> None:
    found = wanted_from(parse(WHOLE.encode()), Defaults())
    assert found.warnings == ()
    tensor = (TensorSpec("x", "FP32", (4,)),)
    spec = ModelSpec(
        "m", "1", "p", "b", 8, tensor, tensor, config_json=found.config_json, scheduling=found.scheduling
    )
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert config(spec)["dynamic_batching"] == json.loads(found.config_json)["dynamic_batching"]
    assert config(spec)["dynamic_batching"]["priority_queue_policy"]["1"]["timeout_action"] == "DELAY"
