"""Messages as text, field by field as Gazette's tools write them: JSON in two dialects, and prototext.

*jsonpb* is for listings and the HTTP gateways: defaults included, 64-bit integers as text, enums by name, bytes in
base64, durations as ``"300s"``. Go's plain ``encoding/json`` is for fragments and claims: numbers as numbers, zero fields
left out. Functions return values that any JSON encoder takes; `escape_html` makes what it writes the bytes that
Go would write.

*Prototext* has a field a line and messages between ``<`` and ``>``. Any parser reads it; Python's own writer uses braces,
which users of Gazette do not know. Routes have a compact form, which headers of the HTTP gateway carry.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from gazette_platform.ops.text import SECOND_NS, duration_from_pb
from gazette_platform.protocol.pb import protocol_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gazette_platform.protocol.fragments import Fragment
    from gazette_platform.protocol.labels import LabelSelector, LabelSet
    from gazette_platform.protocol.routing import Header, Route

Json: TypeAlias = "dict[str, Any]"

# Messages that Go points to; the protocol itself does not say so.
_POINTERS: Final = frozenset(
    {
        "protocol.JournalSpec.suspend",
        "protocol.ReadResponse.header",
        "protocol.ReadResponse.fragment",
    }
)
_DURATION: Final = "google.protobuf.Duration"
_INT64S: Final = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})

# What Go's encoders escape beside what JSON asks for: HTML, and two line ends of JavaScript.
_ESCAPES: Final = tuple(
    (character.encode(), b"\\u%04x" % ord(character)) for character in "<>&\u2028\u2029"
)


def escape_html(document: bytes) -> bytes:
    r"""The same JSON, in the bytes in which programs in Go write it.

    >>> escape_html(b'{"signed_url":"http://a/?b&c"}').decode()
    '{"signed_url":"http://a/?b\\u0026c"}'
    """
    for plain, escaped in _ESCAPES:
        if plain in document:  # within a text, for nowhere else has JSON these characters
            document = document.replace(plain, escaped)
    return document


def duration_jsonpb(nanoseconds: int) -> str:
    """Seconds, with as many digits as needed of three, six or nine."""
    seconds, nanos = divmod(abs(nanoseconds), SECOND_NS)
    sign = "-" if nanoseconds < 0 else ""
    if not nanos:
        return f"{sign}{seconds}s"
    digits = f"{nanos:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{sign}{seconds}.{digits}s"


def message_jsonpb(message: Message, *, camel_case: bool = False) -> Json:
    """Return a message as jsonpb, its fields in the order of the protocol.

    A message that is absent is null where Go has a pointer to it; elsewhere Go has a value, which is never
    absent. Bytes that are absent are null.

    Args:
        camel_case: whether to name fields as the HTTP gateways do, instead of as the protocol does.
    """
    return {
        field.camelcase_name if camel_case else field.name: _field_jsonpb(
            message, field, camel_case=camel_case
        )
        for field in message.DESCRIPTOR.fields
    }


def _field_jsonpb(message: Message, field: FieldDescriptor, *, camel_case: bool) -> Any:
    value = getattr(message, field.name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        of_value = entry.fields_by_name["value"]
        return {
            str(key): _value_jsonpb(of_value, value[key], camel_case=camel_case)
            for key in sorted(value)
        }
    if field.is_repeated:
        return [_value_jsonpb(field, one, camel_case=camel_case) for one in value]
    if field.full_name in _POINTERS and not message.HasField(field.name):
        return None
    return _value_jsonpb(field, value, camel_case=camel_case)


def _value_jsonpb(field: FieldDescriptor, value: Any, *, camel_case: bool) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if field.message_type.full_name == _DURATION:
            return duration_jsonpb(duration_from_pb(value))
        return message_jsonpb(value, camel_case=camel_case)
    if field.cpp_type in _INT64S:
        return str(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        found = field.enum_type.values_by_number.get(value)
        return found.name if found is not None else value
    if field.type == FieldDescriptor.TYPE_BYTES:
        # Go has no bytes where the wire has none.
        return b64encode(value).decode() if value else None
    return value


def fragment_json(fragment: Fragment, signed_url: str = "") -> Json:
    """One fragment of a listing, as a line of ``gazctl journals fragments -o json``."""
    part1, part2, part3 = (
        int.from_bytes(fragment.sum[:8], "big"),
        int.from_bytes(fragment.sum[8:16], "big"),
        int.from_bytes(fragment.sum[16:], "big"),
    )
    spec: Json = {
        "journal": fragment.journal,
        "begin": fragment.begin,
        "end": fragment.end,
        "sum": _without_zeros({"part1": part1, "part2": part2, "part3": part3}),
        "compression_codec": int(fragment.codec),
        "backing_store": fragment.backing_store,
        "mod_time": fragment.mod_time,
        "path_postfix": fragment.path_postfix,
    }
    # The digest is a struct, which Go writes even if it is zero.
    fields = {key: value for key, value in spec.items() if value or key == "sum"}
    return _without_zeros({"spec": fields, "signed_url": signed_url})


def _without_zeros(fields: Json) -> Json:
    return {key: value for key, value in fields.items() if value}


def selector_json(selector: LabelSelector) -> Json:
    """A selector as the claims of an authorization token hold it: of no labels, ``null``."""
    return {
        "include": {"labels": _labels_json(selector.include)},
        "exclude": {"labels": _labels_json(selector.exclude)},
    }


def _labels_json(labels: LabelSet) -> list[Json] | None:
    if not labels:
        return None
    return [_without_zeros(label._asdict()) for label in labels]


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

    >>> from gazette_platform.protocol.routing import ProcessId
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


_TEXT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def _quote(text: str | bytes) -> str:
    quoted = []
    for byte in text.encode() if isinstance(text, str) else text:
        character = chr(byte)
        if character in _TEXT_ESCAPES:
            quoted.append(_TEXT_ESCAPES[character])
        elif " " <= character <= "~":
            quoted.append(character)
        else:
            quoted.append(f"\\{byte:03o}")
    return '"' + "".join(quoted) + '"'
