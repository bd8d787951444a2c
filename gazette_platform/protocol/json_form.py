"""JSON of messages, fragments and claims, field by field as Gazette's tools write it.

Two dialects: *jsonpb* (listings and the HTTP gateways: defaults included, 64-bit integers as text, enums by
name, bytes in base64, durations as ``"300s"``) and Go's plain ``encoding/json`` (fragments, claims: numbers
as numbers, zero fields left out). Functions return values that any JSON encoder takes; `escape_html` makes
what it writes the bytes that Go would write.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor

from gazette_platform.ops.durations import SECOND_NS, duration_from_pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from gazette_platform.protocol.fragments import Fragment
    from gazette_platform.protocol.labels import LabelSet
    from gazette_platform.protocol.selectors import LabelSelector

__all__ = [
    "duration_jsonpb",
    "escape_html",
    "fragment_json",
    "message_jsonpb",
    "selector_json",
]

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
    kept = {key: value for key, value in spec.items() if value or key == "sum"}
    return _without_zeros({"spec": kept, "signed_url": signed_url})


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
