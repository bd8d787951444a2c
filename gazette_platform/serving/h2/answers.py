"""What a client sends to begin a call, and what the headers and trailers of the answer say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from gazette_platform.serving.h2.frames import ErrorCode
from gazette_platform.serving.h2.hpack import literal
from gazette_platform.serving.h2.responses import Status
from gazette_platform.serving.interface import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.serving.h2.hpack import Field

__all__ = ["Answer", "code_of", "code_of_reset", "read_answer", "request_block", "timeout_field"]

_CODES: Final = {status.value: Code[status.name] for status in Status if status is not Status.OK}
_CONTENT_TYPE: Final = re.compile(rb"application/grpc(?:[+;].*)?", re.DOTALL)
_PSEUDO_POST: Final = b"\x83"
_SCHEMES: Final = {False: b"\x86", True: b"\x87"}  # http, https
_TIMEOUT_MS_MAX: Final = 10**8 - 1

# By gRPC's rules for answers that are none of gRPC.
_HTTP_CODES: Final = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}
# By gRPC's rules for RST_STREAM; others are INTERNAL. With REFUSED_STREAM, a call was not processed.
_RESET_CODES: Final = {
    ErrorCode.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCode.CANCEL: Code.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Headers or trailers."""

    metadata: Mapping[str, str]
    status: tuple[Code | None, str] | None = None
    """Code and text, if the call has ended; the code of success is None."""
    is_interim: bool = False
    """Whether it says nothing, and another one follows."""


def code_of(number: int) -> Code:
    """Return gRPC's code of a number; UNKNOWN if we have no name for it."""
    return _CODES.get(number, Code.UNKNOWN)


def code_of_reset(error_code: int) -> Code:
    """Return the code of a call whose stream was reset."""
    return _RESET_CODES.get(error_code, Code.INTERNAL)


def request_block(
    path: str, authority: str, *, is_secure: bool, metadata: Sequence[tuple[str, str]]
) -> bytes:
    """Build the headers of a call, without its deadline."""
    fields = (
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "gazette-platform"),
        *metadata,
    )
    return b"".join(
        (
            _PSEUDO_POST,
            _SCHEMES[is_secure],
            *(literal(name.encode(), value.encode()) for name, value in fields),
        )
    )


def timeout_field(timeout_s: float) -> bytes:
    """Build the deadline of a call."""
    ms = min(max(1, int(timeout_s * 1000)), _TIMEOUT_MS_MAX)
    return literal(b"grpc-timeout", b"%dm" % ms)


def read_answer(fields: Iterable[Field], *, is_first: bool, is_last: bool) -> Answer:
    """Read headers or trailers.

    Args:
        is_first: whether they are the headers.
        is_last: whether they end the call.
    """
    found = dict(fields)
    if is_first:
        http = found.pop(b":status", b"")
        if http[:1] == b"1" and not is_last:
            return Answer({}, is_interim=True)
        is_grpc = _CONTENT_TYPE.fullmatch(found.pop(b"content-type", b""))
        if (http != b"200" or not is_grpc) and b"grpc-status" not in found:
            status = int(http) if len(http) == 3 and http.isdigit() else 0
            text = f"the answer is none of gRPC: HTTP status {status}"
            return Answer({}, (_HTTP_CODES.get(status, Code.UNKNOWN), text))
    number = found.pop(b"grpc-status", None)
    text = unquote_to_bytes(found.pop(b"grpc-message", b"")).decode(errors="replace")
    metadata = {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in found.items()
    }
    if not is_last:
        return Answer(metadata)
    if number is None or not number.isdigit() or len(number) > 3:
        return Answer(metadata, (Code.UNKNOWN, "the call ended without a status"))
    return Answer(metadata, (None if number == b"0" else code_of(int(number)), text))
