"""Protobuf message classes, made from a .proto file at run time. The repository has no generated code.

The reader knows only the syntax that reassert's own .proto files use: proto3, no nested messages, one field a line, no
enums (an int32 has the same encoding).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_SCALARS = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
}
_MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}$", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"^  (repeated )?(map<string, string>|\w+) (\w+) = (\d+);$", re.MULTILINE)


def load(path: Path) -> dict[str, Any]:
    """The message classes of a .proto file, by name, as `protoc` would generate them. Raises OSError."""
    file = describe(path.read_text("ascii"), path.name)
    pool = DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}")) for name in names}


def describe(text: str, name: str) -> FileDescriptorProto:
    """The descriptor of a .proto file. Raises ValueError for a field in any other syntax."""
    package = re.findall(r"^package ([\w.]+);$", text, re.MULTILINE)[0]
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    for kind, body in _MESSAGE.findall(text):
        message = file.message_type.add(name=kind)
        for repeated, type_name, field, number in _FIELD.findall(body):
            _add_field(
                message, package=f".{package}", repeated=bool(repeated), kind=type_name, name=field, number=int(number)
            )
        if len(message.field) != body.count(";"):
            raise ValueError(f"{name}: message {kind} has a field that is not understood")
    return file


def _add_field(message: DescriptorProto, *, package: str, repeated: bool, kind: str, name: str, number: int) -> None:
    many = repeated or kind.startswith("map")
    label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = FieldDescriptorProto.TYPE_MESSAGE
    if not kind.startswith("map"):
        field.type_name = f"{package}.{kind}"
        return
    entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
    entry.options.map_entry = True
    _add_field(entry, package=package, repeated=False, kind="string", name="key", number=1)
    _add_field(entry, package=package, repeated=False, kind="string", name="value", number=2)
    field.type_name = f"{package}.{message.name}.{entry.name}"
