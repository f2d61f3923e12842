"""The shipped messages say what clients of other makes rely on, no more and no less.

Two witnesses: ``expected_fields.tsv``, a table of facts, and the descriptors inside tritonclient. Both are
compared as sets in both directions, so an added, lost, renamed or renumbered field fails by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from service._pb import POOL, inference, model_config

TABLE = Path(__file__).with_name("expected_fields.tsv")
FILES = (inference.DESCRIPTOR, model_config.DESCRIPTOR)
SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM")
}


def type_of(field: FieldDescriptor) -> str:
    """The type as a .proto file spells it, with the short names of messages and enums."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return f"map<{type_of(entry['key'])}, {type_of(entry['value'])}>"
    named = field.message_type or field.enum_type
    name = named.name if named is not None else SCALARS[field.type]
    return f"repeated {name}" if field.is_repeated else name


def local_name(described: Descriptor | EnumDescriptor) -> str:
    return str(described.full_name).removeprefix("inference.")


def enum_facts(enum: EnumDescriptor) -> Iterator[tuple[str, ...]]:
    for value in enum.values:
        yield "value", local_name(enum), str(value.number), value.name


def message_facts(message: Descriptor) -> Iterator[tuple[str, ...]]:
    yield "message", message.file.name, local_name(message)
    for field in message.fields:
        oneof = field.containing_oneof.name if field.containing_oneof else "-"
        yield "field", local_name(message), str(field.number), field.name, type_of(field), oneof
    for enum in message.enum_types:
        yield from enum_facts(enum)
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            yield from message_facts(nested)


def rpc_facts(file: FileDescriptor) -> Iterator[tuple[str, ...]]:
    for service in file.services_by_name.values():
        for method in service.methods:
            request = "stream " * method.client_streaming + method.input_type.name
            yield "rpc", method.name, request, "stream " * method.server_streaming + method.output_type.name


def facts_of(file: FileDescriptor) -> Iterator[tuple[str, ...]]:
    yield from rpc_facts(file)
    for message in file.message_types_by_name.values():
        yield from message_facts(message)
    for enum in file.enum_types_by_name.values():
        yield from enum_facts(enum)


def test_messages_are_those_of_the_table() -> None:
    lines = TABLE.read_text().splitlines()
    expected = {tuple(line.split("\t")) for line in lines if not line.startswith("#")}
    ours = {fact for file in FILES for fact in facts_of(file)}
    assert sorted(ours - expected) == [], "we have these and the table has not"
    assert sorted(expected - ours) == [], "the table has these and we have not"
    assert len(expected) == 20 + 59 + 46 + 312 + 39


def test_messages_are_those_of_tritonclient() -> None:
    renamed = {"grpc_service.proto": "inference.proto"}  # a message's file is nobody's business but its own
    theirs = {
        tuple(renamed.get(word, word) for word in fact)
        for module in (service_pb2, model_config_pb2)
        for fact in facts_of(module.DESCRIPTOR)
    }
    ours = {fact for file in FILES for fact in facts_of(file)}
    only_oip = ("field", "ModelMetadataResponse", "6", "properties", "map<string, string>", "-")
    assert sorted(theirs - ours) == []
    assert sorted(ours - theirs) == [only_oip]


def test_service_has_the_name_that_clients_call() -> None:
    assert POOL.FindServiceByName("inference.GRPCInferenceService").full_name == (
        service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
    )
    assert {file.package for file in FILES} == {"inference"}
