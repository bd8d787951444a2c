"""HTTP's side of reads and appends: queries, headers and statuses. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import Fragment, Header, route_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.protocol.pb import protocol_pb2 as pb

CLOSE_ERROR = "X-Close-Error"
"""Trailer that says why a body ended."""

_OFFSET_MAX = (1 << 63) - 1
_OFFSET_DIGITS_MAX = len(str(_OFFSET_MAX))

# As Go's strconv.ParseBool.
_BOOLEANS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)


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
