"""HTTP's side of reads and appends: queries, headers and statuses. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import Fragment, Header, Status, route_text
from gazette_platform.serving.interface import Code, Denied

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.protocol.pb import protocol_pb2 as pb
    from gazette_platform.serving.interface import RpcFailed

CLOSE_ERROR = "X-Close-Error"
"""Trailer that says why a body ended."""

_OFFSET_MAX = (1 << 63) - 1
_OFFSET_DIGITS_MAX = len(str(_OFFSET_MAX))

# As Go's strconv.ParseBool.
_BOOLEANS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)

# Gazette answers 500 to all but the first three, for appends to unknown journals even.
_STATUS_CODES = {
    Status.JOURNAL_NOT_FOUND: HTTPStatus.NOT_FOUND,
    Status.INSUFFICIENT_JOURNAL_BROKERS: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.OFFSET_NOT_YET_AVAILABLE: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    Status.NO_JOURNAL_PRIMARY_BROKER: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.NOT_JOURNAL_PRIMARY_BROKER: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.NOT_JOURNAL_BROKER: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.FRAGMENT_STORE_UNHEALTHY: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.NOT_ALLOWED: HTTPStatus.FORBIDDEN,
    Status.SUSPENDED: HTTPStatus.CONFLICT,
    Status.INDEX_HAS_GREATER_OFFSET: HTTPStatus.CONFLICT,
    Status.WRONG_APPEND_OFFSET: HTTPStatus.CONFLICT,
    Status.REGISTER_MISMATCH: HTTPStatus.CONFLICT,
}

_CODES = {
    Code.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    Code.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    Code.CANCELLED: HTTPStatus.REQUEST_TIMEOUT,
    Code.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
}


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """The query of a GET or HEAD."""

    offset: int = 0
    """First byte to read; -1 is the write head."""
    block: bool = False
    """Whether to wait for more at the write head."""

    @classmethod
    def parse(cls, pairs: Iterable[tuple[str, str]]) -> ReadQuery:
        """The query of these keys and values, the last of a key counting.

        Raises: ValidationError: a key is unknown, or a value is none of its kind.
        """
        offset, block = 0, False
        for key, value in pairs:
            if key == "offset":
                offset = _offset(value)
            elif key == "block":
                if value and value not in _BOOLEANS:
                    raise ValidationError(
                        'schema: error converting value for "block" (expected true or false)'
                    )
                block = _BOOLEANS.get(value, False)
            else:
                raise ValidationError(f'schema: invalid path "{key}" (known: offset, block)')
        return cls(offset, block)


def _offset(value: str) -> int:
    if not value:
        return 0
    digits = value[1:] if value[0] in "+-" else value
    # Python refuses to read numbers of thousands of digits.
    if digits.isascii() and digits.isdigit() and len(digits.lstrip("0")) <= _OFFSET_DIGITS_MAX:
        offset = int(digits.lstrip("0") or "0")
        if offset <= _OFFSET_MAX:
            return -offset if value[0] == "-" else offset
    raise ValidationError(
        'schema: error converting value for "offset" (expected a number of bytes, or -1 for the '
        "write head)"
    )


def journal_of(raw_path: str) -> str:
    """The journal that a path names. Raises: ValidationError: it is not UTF-8."""
    try:
        return unquote(raw_path.removeprefix("/"), errors="strict")
    except UnicodeDecodeError as err:
        raise ValidationError(f"the path is not UTF-8: {err}") from err


def status_code(status: Status) -> int:
    """The HTTP status of an outcome other than OK."""
    return _STATUS_CODES.get(status, HTTPStatus.INTERNAL_SERVER_ERROR)


def failure_status(err: RpcFailed) -> int:
    """The HTTP status of an RPC without outcome."""
    if isinstance(err, Denied):
        return HTTPStatus.FORBIDDEN
    return _CODES.get(err.code, HTTPStatus.INTERNAL_SERVER_ERROR)


def content_range(offset: int) -> str:
    """Content from `offset` on, to an unknown end."""
    return f"bytes {offset}-{_OFFSET_MAX}/{_OFFSET_MAX}"


def read_headers(response: pb.ReadResponse) -> dict[str, str]:
    """Headers of a read, out of its first response."""
    headers = {"X-Write-Head": str(response.write_head)}
    headers |= _route_headers(response)
    if response.HasField("fragment"):
        fragment = Fragment.from_pb(response.fragment)
        headers["X-Fragment-Name"] = fragment.content_name
        if fragment.mod_time:
            headers["X-Fragment-Last-Modified"] = formatdate(fragment.mod_time, usegmt=True)
        if response.fragment_url:
            headers["X-Fragment-Location"] = response.fragment_url
    return headers


def append_headers(response: pb.AppendResponse) -> dict[str, str]:
    """Headers of an append, of whatever outcome."""
    headers = _route_headers(response)
    if response.HasField("commit"):
        commit = Fragment.from_pb(response.commit)
        headers["X-Commit-Begin"] = str(commit.begin)
        headers["X-Commit-End"] = headers["X-Write-Head"] = str(commit.end)
        headers["X-Commit-SHA1-Sum"] = commit.sum.hex()
    return headers


def _route_headers(response: pb.ReadResponse | pb.AppendResponse) -> dict[str, str]:
    if not response.HasField("header"):
        return {}
    return {"X-Route-Token": route_text(Header.from_pb(response.header).route)}
