"""From blocks of headers to requests, with what was learned from earlier ones.

A client's calls differ in little, so most blocks mean what an equal one meant before. That holds while the
dynamic table of HPACK is unchanged. The deadline differs from call to call and changes the table with each,
so requests are remembered by their other fields, too.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from gazette_platform.serving.h2.hpack import Decoder, Field, HeaderListTooLarge
from gazette_platform.serving.h2.requests import (
    BadTimeout,
    Request,
    is_timeout,
    read_request,
    read_timeout,
)
from gazette_platform.serving.h2.responses import Status

__all__ = ["Blocks", "Refusal", "Requests", "Wanted"]

# So much is remembered: by a connection of blocks, and by a server of requests.
_BLOCKS_MAX: Final = 256
_BLOCK_BYTES_MAX: Final = 1024
_REQUESTS_MAX: Final = 1024
_REQUEST_BYTES_MAX: Final = 2048


class Wanted(NamedTuple):
    """A call that a block asks for."""

    request: Request
    timeout_s: float | None
    """Seconds until its deadline."""


class Refusal(NamedTuple):
    """A call that a block asks for, and that is refused."""

    number: int
    """Of gRPC's code."""
    text: str


@final
class Requests:
    """Requests by their fields; the connections of a server share them."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[Field, ...], Request] = {}

    def of(self, fields: tuple[Field, ...]) -> Request:
        """Read headers, without the deadline. Raises: Malformed."""
        request = self._known.get(fields)
        if request is None:
            request = read_request(fields)
            if sum(len(name) + len(value) for name, value in fields) <= _REQUEST_BYTES_MAX:
                if len(self._known) >= _REQUESTS_MAX:
                    self._known.clear()
                self._known[fields] = request
        return request


@final
class Blocks:
    """The blocks of one connection, in their order."""

    __slots__ = ("_hpack", "_known", "_list_bytes_max", "_requests")

    def __init__(self, list_bytes_max: int, requests: Requests) -> None:
        self._hpack = Decoder(list_bytes_max)
        self._list_bytes_max = list_bytes_max
        self._known: dict[bytes, Wanted] = {}
        self._requests = requests

    def read(self, block: bytes) -> Wanted | Refusal:
        """Read the headers of a request.

        Raises: ConnectionFault: the block cannot be decoded. Malformed: it breaks a rule of HTTP.
        """
        wanted = self._known.get(block)
        if wanted is not None:
            return wanted
        fields = self.decode(block)
        if fields is None:
            text = f"the metadata is larger than {self._list_bytes_max} bytes"
            return Refusal(Status.RESOURCE_EXHAUSTED, text)
        timeouts = [field for field in fields if is_timeout(field)]
        try:
            timeout_s = read_timeout(timeouts[-1][1]) if timeouts else None
        except BadTimeout:
            return Refusal(Status.INTERNAL, "malformed grpc-timeout")
        if timeouts:
            fields = [field for field in fields if not is_timeout(field)]
        wanted = Wanted(self._requests.of(tuple(fields)), timeout_s)
        if not self._hpack.is_changed and len(block) <= _BLOCK_BYTES_MAX:
            if len(self._known) >= _BLOCKS_MAX:
                self._known.clear()
            self._known[block] = wanted
        return wanted

    def decode(self, block: bytes) -> list[Field] | None:
        """Decode a block. Returns: None if its fields are larger than allowed. Raises: ConnectionFault."""
        try:
            return self._hpack.decode(block)
        except HeaderListTooLarge:
            return None
        finally:
            if self._hpack.is_changed:
                self._known.clear()
