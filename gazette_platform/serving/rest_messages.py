"""JSON of the REST gateway: requests, and results as grpc-gateway 1 writes them. Pure.

Names are camel case, fields of their default are there, 64-bit integers are text, enums are names,
durations are like ``"10s"``, bytes are base64. A message that is absent is null where Go has a
pointer to it; elsewhere Go has a value, which is never absent.

Source: Gazette's ``/v1/`` routes; departs: a field that the request does not have is refused.
"""

from __future__ import annotations

from base64 import b64encode
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from gazette_platform.errors import ValidationError
from gazette_platform.ops.durations import duration_from_pb
from gazette_platform.protocol.json_form import duration_jsonpb, escape_html
from gazette_platform.serving.interface import Code, Denied

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from gazette_platform.serving.interface import RpcFailed

__all__ = [
    "INVALID_ARGUMENT",
    "error_line",
    "error_of",
    "message_json",
    "message_line",
    "parse_request",
    "result_line",
]

M = TypeVar("M", bound="Message")

_POINTERS: Final = frozenset(
    {
        "protocol.JournalSpec.suspend",
        "protocol.ReadResponse.header",
        "protocol.ReadResponse.fragment",
    }
)
_DURATION: Final = "google.protobuf.Duration"
_INT64S: Final = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)

# Numbers of gRPC's codes, and the statuses that grpc-gateway gives them.
_CODES: Final = {
    Code.CANCELLED: (1, HTTPStatus.REQUEST_TIMEOUT),
    Code.UNKNOWN: (2, HTTPStatus.INTERNAL_SERVER_ERROR),
    Code.DEADLINE_EXCEEDED: (4, HTTPStatus.GATEWAY_TIMEOUT),
    Code.NOT_FOUND: (5, HTTPStatus.NOT_FOUND),
    Code.ALREADY_EXISTS: (6, HTTPStatus.CONFLICT),
    Code.UNIMPLEMENTED: (12, HTTPStatus.NOT_IMPLEMENTED),
    Code.INTERNAL: (13, HTTPStatus.INTERNAL_SERVER_ERROR),
    Code.UNAVAILABLE: (14, HTTPStatus.SERVICE_UNAVAILABLE),
    Code.UNAUTHENTICATED: (16, HTTPStatus.UNAUTHORIZED),
}
INVALID_ARGUMENT: Final = (3, HTTPStatus.BAD_REQUEST)
_PERMISSION_DENIED: Final = (7, HTTPStatus.FORBIDDEN)


def parse_request(kind: type[M], body: bytes) -> M:
    """The request that a body says; an empty one is a request of defaults.

    Raises: ValidationError: no such request.
    """
    request = kind()
    if not body.strip():
        return request
    if not body.lstrip().startswith(b"{"):  # which the library takes for a request without fields
        raise ValidationError(f"the body is no {kind.DESCRIPTOR.name} as JSON: expected an object")
    try:
        return json_format.Parse(body, request)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as err:
        raise ValidationError(f"the body is no {kind.DESCRIPTOR.name} as JSON: {err}") from err


def message_json(message: Message) -> dict[str, Any]:
    """A message, as a value that any JSON encoder takes."""
    return {
        field.camelcase_name: _field_json(message, field) for field in message.DESCRIPTOR.fields
    }


def _field_json(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        of_value = entry.fields_by_name["value"]
        return {str(key): _value_json(of_value, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_value_json(field, one) for one in value]
    if field.full_name in _POINTERS and not message.HasField(field.name):
        return None
    return _value_json(field, value)


def _value_json(field: FieldDescriptor, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if field.message_type.full_name == _DURATION:
            return duration_jsonpb(duration_from_pb(value))
        return message_json(value)
    if field.cpp_type in _INT64S:
        return str(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        found = field.enum_type.values_by_number.get(value)
        return found.name if found is not None else value
    if field.type == FieldDescriptor.TYPE_BYTES:
        # Go has no bytes where the wire has none.
        return b64encode(value).decode() if value else None
    return value


def result_line(message: Message) -> bytes:
    """One result of a stream."""
    return _line({"result": message_json(message)})


def message_line(message: Message) -> bytes:
    """The answer to a call that has one."""
    return _line(message_json(message))


def error_of(err: RpcFailed) -> tuple[int, HTTPStatus]:
    """The number of gRPC's code of an error, and its HTTP status."""
    return _PERMISSION_DENIED if isinstance(err, Denied) else _CODES[err.code]


def error_line(text: str, code: tuple[int, HTTPStatus]) -> bytes:
    """What an answer says in place of results, or behind the last of them."""
    number, status = code
    error = {
        "grpcCode": number,
        "httpCode": int(status),
        "message": text,
        "httpStatus": status.phrase,
        "details": [],
    }
    return _line({"error": error})


def _line(value: dict[str, Any]) -> bytes:
    return escape_html(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
