"""The page of services and messages: `python -m docs.site.proto_page` prints docs/proto.md.

It is made of the comments in proto/banyan/v1, of which every message, field and call has one.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from google.protobuf import descriptor_pb2 as pb
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
_HEAD = """# Services and messages

The contracts between processes, gRPC calls and events alike, are protobuf of package `banyan.v1`,
in `proto/banyan/v1`. Fields are only ever added. The rules behind them are in [the
protocol](protocol.md); every plain port asks for a secret ([ADR
009](adr/009-ports-ask-for-a-secret.md)).

This page is written from proto/banyan/v1 (`make proto-page`); a test compares the two.
"""
_FILE_MESSAGES, _FILE_ENUMS, _FILE_SERVICES, _BELOW = 4, 5, 6, 2
_Place = tuple[int, ...]
_Comments = Mapping[_Place, str]


def markdown() -> str:
    """Return the page."""
    lines = [_HEAD]
    for file in _files():
        comments = {
            tuple(place.path): " ".join(place.leading_comments.split())
            for place in file.source_code_info.location
        }
        about = " ".join(comments.get((2,), "").split())
        lines += [f"## {Path(file.name).name}", "", *([about, ""] if about else [])]
        for number, service in enumerate(file.service):
            lines += _service(service, (_FILE_SERVICES, number), comments)
        for number, message in enumerate(file.message_type):
            lines += _message(message, (_FILE_MESSAGES, number), comments, "")
        for number, enum in enumerate(file.enum_type):
            lines += _enum(enum, (_FILE_ENUMS, number), comments, "")
    return "\n".join(lines).rstrip() + "\n"


def _files() -> Iterator[pb.FileDescriptorProto]:
    names = sorted(path.name for path in (ROOT / "proto/banyan/v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "all.pb"
        options = [f"-I{ROOT / 'proto'}", "--include_source_info", f"--descriptor_set_out={kept}"]
        status = protoc.main(["protoc", *options, *(f"banyan/v1/{name}" for name in names)])
        if status:
            sys.exit(f"protoc ended with status {status}; its words are above")
        yield from pb.FileDescriptorSet.FromString(kept.read_bytes()).file


def _service(service: pb.ServiceDescriptorProto, place: _Place, comments: _Comments) -> list[str]:
    rows = [
        f"| `{call.name}` | {_flow(call.input_type, call.client_streaming)} "
        f"| {_flow(call.output_type, call.server_streaming)} "
        f"| {_cell(comments.get((*place, _BELOW, number), ''))} |"
        for number, call in enumerate(service.method)
    ]
    head = ["| call | request | response | meaning |", "| --- | --- | --- | --- |"]
    return [f"### {service.name}", "", comments.get(place, ""), "", *head, *rows, ""]


def _flow(name: str, streams: bool) -> str:
    return f"{'stream of ' if streams else ''}{_linked(name)}"


def _message(
    message: pb.DescriptorProto, place: _Place, comments: _Comments, within: str
) -> list[str]:
    name = f"{within}{message.name}"
    lines = [f"### {name}", "", comments.get(place, ""), ""]
    if message.field:
        lines += ["| number | field | type | meaning |", "| --- | --- | --- | --- |"]
        for number, field in enumerate(message.field):
            meaning = _cell(comments.get((*place, _BELOW, number), ""))
            kind = _type(field, message)
            lines.append(f"| {field.number} | `{field.name}` | {kind} | {meaning} |")
        lines.append("")
    for number, below in enumerate(message.nested_type):
        if not below.options.map_entry:
            lines += _message(below, (*place, 3, number), comments, f"{name}.")
    for number, enum in enumerate(message.enum_type):
        lines += _enum(enum, (*place, 4, number), comments, f"{name}.")
    return lines


def _enum(
    enum: pb.EnumDescriptorProto, place: _Place, comments: _Comments, within: str
) -> list[str]:
    rows = [
        f"| {value.number} | `{value.name}` | {_cell(comments.get((*place, _BELOW, number), ''))} |"
        for number, value in enumerate(enum.value)
    ]
    head = ["| number | value | meaning |", "| --- | --- | --- |"]
    return [f"### {within}{enum.name}", "", comments.get(place, ""), "", *head, *rows, ""]


def _type(field: pb.FieldDescriptorProto, message: pb.DescriptorProto) -> str:
    entries = {below.name: below for below in message.nested_type if below.options.map_entry}
    own = field.type_name.rpartition(".")[2]
    if own in entries:
        key, value = entries[own].field
        return f"map of {_type(key, message)} to {_type(value, message)}"
    kind = pb.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    name = _linked(field.type_name) if field.type_name else kind
    many = field.label == pb.FieldDescriptorProto.LABEL_REPEATED
    return f"list of {name}" if many else name


def _linked(name: str) -> str:
    own = name.removeprefix(".banyan.v1.")
    return f"[{own}](#{own.lower().replace('.', '')})" if own != name else name.lstrip(".")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(markdown())
