"""Reads the descriptor set and makes message classes from it; see the package's docstring for why."""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper


def _read_pool() -> descriptor_pool.DescriptorPool:
    data = resources.files("service._pb").joinpath("messages.binpb")
    if not data.is_file():
        raise ImportError(f"{data} is missing: the messages are made by the build; run `pip install .`")
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _read_pool()


def contents_of(file_name: str) -> dict[str, Any]:
    """What a generated module for this .proto file would define, by name."""
    file = POOL.FindFileByName(file_name)
    found: dict[str, Any] = {"DESCRIPTOR": file}
    for name, message in file.message_types_by_name.items():
        found[name] = message_factory.GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        found[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        found.update({value.name: value.number for value in enum.values})
    return found
