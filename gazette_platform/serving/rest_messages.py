"""JSON of the REST gateway: requests, results and errors as grpc-gateway 1 writes them. Pure.

Source: Gazette's ``/v1/`` routes; departs: a field that the request does not have is refused.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from google.protobuf import json_format

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.forms import escape_html, message_jsonpb
from gazette_platform.serving.interface import Code, Denied

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from gazette_platform.serving.interface import RpcFailed

M = TypeVar("M", bound="Message")

# Numbers of gRPC's codes, and the statuses that grpc-gateway gives them.
_CODES: Final = {
    Code.CANCELLED: (1, HTTPStatus.REQUEST_TIMEOUT),
    Code.UNKNOWN: (2, HTTPStatus.INTERNAL_SERVER_ERROR),
    Code.INVALID_ARGUMENT: (3, HTTPStatus.BAD_REQUEST),
    Code.DEADLINE_EXCEEDED: (4, HTTPStatus.GATEWAY_TIMEOUT),
    Code.NOT_FOUND: (5, HTTPStatus.NOT_FOUND),
    Code.ALREADY_EXISTS: (6, HTTPStatus.CONFLICT),
    Code.PERMISSION_DENIED: (7, HTTPStatus.FORBIDDEN),
    Code.RESOURCE_EXHAUSTED: (8, HTTPStatus.TOO_MANY_REQUESTS),
    Code.FAILED_PRECONDITION: (9, HTTPStatus.BAD_REQUEST),
    Code.ABORTED: (10, HTTPStatus.CONFLICT),
    Code.OUT_OF_RANGE: (11, HTTPStatus.BAD_REQUEST),
    Code.UNIMPLEMENTED: (12, HTTPStatus.NOT_IMPLEMENTED),
    Code.INTERNAL: (13, HTTPStatus.INTERNAL_SERVER_ERROR),
    Code.UNAVAILABLE: (14, HTTPStatus.SERVICE_UNAVAILABLE),
    Code.DATA_LOSS: (15, HTTPStatus.INTERNAL_SERVER_ERROR),
    Code.UNAUTHENTICATED: (16, HTTPStatus.UNAUTHORIZED),
}
INVALID_ARGUMENT: Final = _CODES[Code.INVALID_ARGUMENT]


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


def result_line(message: Message) -> bytes:
    """One result of a stream."""
    return _line({"result": message_jsonpb(message, camel_case=True)})


def message_line(message: Message) -> bytes:
    """The answer to a call that has one."""
    return _line(message_jsonpb(message, camel_case=True))


def error_of(err: RpcFailed) -> tuple[int, HTTPStatus]:
    """The number of gRPC's code of an error, and its HTTP status."""
    return _CODES[Code.PERMISSION_DENIED if isinstance(err, Denied) else err.code]


def error_line(text: str, code: tuple[int, HTTPStatus]) -> bytes:
    """Return what a stream says in place of results, or after the last of them."""
    number, status = code
    error = {
        "grpcCode": number,
        "httpCode": int(status),
        "message": text,
        "httpStatus": status.phrase,
        "details": [],
    }
    return _line({"error": error})


def call_error_line(text: str, code: tuple[int, HTTPStatus]) -> bytes:
    """Return the answer to a call that has no stream, or whose stream does not begin."""
    return _line({"error": text, "code": code[0], "message": text, "details": []})


def _line(value: dict[str, Any]) -> bytes:
    return escape_html(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
