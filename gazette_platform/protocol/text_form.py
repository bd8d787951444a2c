"""Prototext as Gazette's tools write it: messages between ``<`` and ``>``, a field a line.

Any parser of prototext reads it; Python's own writer uses braces, which would differ from what
users of Gazette know. Routes have a compact form, which headers of the HTTP gateway carry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from gazette_platform.protocol.pb import protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.descriptor import FieldDescriptor

    from gazette_platform.protocol.fragments import Fragment
    from gazette_platform.protocol.routing import Header, Route

__all__ = ["fragments_text", "message_text", "route_text"]


def fragments_text(
    fragments: Iterable[tuple[Fragment, str]], *, header: Header | None = None
) -> str:
    """The text of a list of fragments with their signed URLs, which may be empty.

    A list that comes in pieces has its header with the first one; their texts follow each other.
    """
    response = pb.FragmentsResponse(header=None if header is None else header.to_pb())
    for fragment, signed_url in fragments:
        response.fragments.add(spec=fragment.to_pb(), signed_url=signed_url)
    return message_text(response)


def message_text(message: Message, *, indent: str = "") -> str:
    """The text of a message, each line ended and begun with `indent`.

    Fields are in the order of their numbers, and zero ones are left out. Messages are written if
    they are present, though they be empty; durations if they are not zero.

    >>> from gazette_platform.protocol.routing import Route
    >>> print(message_text(Route().to_pb()), end="")
    primary: -1
    """
    return "".join(_lines(message, indent))


def _lines(message: Message, indent: str) -> Iterator[str]:
    for field, value in message.ListFields():
        for each in _values(value):
            if not isinstance(each, Message):
                yield f"{indent}{field.name}: {_scalar(field, each)}\n"
            elif not isinstance(each, Duration) or each.seconds or each.nanos:
                yield f"{indent}{field.name}: <\n"
                yield from _lines(each, indent + "  ")
                yield f"{indent}>\n"


def _values(value: Any) -> list[Any]:
    """The values of a field: one, or those of a repeated one."""
    return [value] if isinstance(value, Message | str | bytes | int | float) else list(value)


def _scalar(field: FieldDescriptor, value: Any) -> str:
    if isinstance(value, str | bytes):
        return _quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else str(known.name)
    return str(value)


def route_text(route: Route) -> str:
    """The text of a route on one line, with its trailing blank.

    >>> from gazette_platform.protocol.processes import ProcessId
    >>> from gazette_platform.protocol.routing import Route
    >>> route_text(Route((ProcessId("a", "broker"),), 0, ("http://b/",)))
    'members:<zone:"a" suffix:"broker" > endpoints:"http://b/" '
    """
    members = [
        f"members:<zone:{_quote(zone)} suffix:{_quote(suffix)} > " for zone, suffix in route.members
    ]
    primary = f"primary:{route.primary} " if route.primary else ""
    endpoints = [f"endpoints:{_quote(endpoint)} " for endpoint in route.endpoints]
    return "".join([*members, primary, *endpoints])


_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def _quote(text: str | bytes) -> str:
    quoted = []
    for byte in text.encode() if isinstance(text, str) else text:
        character = chr(byte)
        if character in _ESCAPES:
            quoted.append(_ESCAPES[character])
        elif " " <= character <= "~":
            quoted.append(character)
        else:
            quoted.append(f"\\{byte:03o}")
    return '"' + "".join(quoted) + '"'
