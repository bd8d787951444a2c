"""The enums of the wire, with the meaning of their values.

Numbers are those of the wire. A number that this build does not know is kept (`from_wire`), so that
it survives a round trip, and is refused by `require_known`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from gazette_platform.errors import ValidationError


class WireEnum(IntEnum):
    """An enum whose unknown numbers can be carried."""

    @classmethod
    def from_wire(cls, number: int) -> Self:
        """The member of `number`, or a nameless stand-in of that number if it is unknown."""
        # The enum's own table: calling the class costs five times as much, on every append.
        member = cls._value2member_map_.get(number)
        if member is not None:
            return member  # type: ignore[return-value]
        unknown = int.__new__(cls, number)
        unknown._name_ = str(number)
        unknown._value_ = number
        return unknown

    @property
    def is_known(self) -> bool:
        """Whether this build knows the number."""
        return type(self)._value2member_map_.get(self._value_) is self

    def require_known(self) -> None:
        """Refuse a number that this build does not know."""
        if not self.is_known:
            raise ValidationError(f"invalid value ({self._value_})")


class Status(WireEnum):
    """Outcome of an RPC."""

    OK = 0
    JOURNAL_NOT_FOUND = 1
    NO_JOURNAL_PRIMARY_BROKER = 2
    NOT_JOURNAL_PRIMARY_BROKER = 3
    INSUFFICIENT_JOURNAL_BROKERS = 4
    NOT_JOURNAL_BROKER = 5
    OFFSET_NOT_YET_AVAILABLE = 6
    WRONG_ROUTE = 7
    PROPOSAL_MISMATCH = 8
    ETCD_TRANSACTION_FAILED = 9
    NOT_ALLOWED = 10
    WRONG_APPEND_OFFSET = 11
    INDEX_HAS_GREATER_OFFSET = 12
    REGISTER_MISMATCH = 13
    SUSPENDED = 14
    FRAGMENT_STORE_UNHEALTHY = 15


class CompressionCodec(WireEnum):
    """How the content of a fragment is compressed in its store."""

    INVALID = 0
    NONE = 1
    GZIP = 2
    ZSTANDARD = 3
    SNAPPY = 4
    GZIP_OFFLOAD_DECOMPRESSION = 5

    @property
    def extension(self) -> str:
        """Suffix of the names of new fragments: of `GZIP_OFFLOAD_DECOMPRESSION` it is empty."""
        return _EXTENSIONS[self]

    @classmethod
    def of_extension(cls, extension: str) -> CompressionCodec:
        """The codec of a file name's `extension` (with its dot, any case; "" is offloaded gzip).

        Raises: ValidationError: no codec has it.
        """
        codec = _CODECS_BY_EXTENSION.get(extension.lower())
        if codec is None:
            raise ValidationError(f"unrecognized compression extension: {extension}")
        return codec

    def validate(self) -> None:
        """Refuse INVALID, which is what an absent codec reads as, and unknown numbers."""
        if not CompressionCodec.NONE <= self <= CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
            raise ValidationError(f"invalid value ({self._name_})")


_EXTENSIONS = {
    CompressionCodec.NONE: ".raw",
    CompressionCodec.GZIP: ".gz",
    CompressionCodec.ZSTANDARD: ".zst",
    CompressionCodec.SNAPPY: ".sz",
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: "",
}

# Wider than what is written: other writers spell codecs out, and `.gzod` is reserved for a future
# name of offloaded gzip.
_CODECS_BY_EXTENSION = {
    "": CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
    ".gzod": CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
    ".raw": CompressionCodec.NONE,
    ".gz": CompressionCodec.GZIP,
    ".gzip": CompressionCodec.GZIP,
    ".zst": CompressionCodec.ZSTANDARD,
    ".zstandard": CompressionCodec.ZSTANDARD,
    ".sz": CompressionCodec.SNAPPY,
    ".snappy": CompressionCodec.SNAPPY,
}


class JournalFlag(WireEnum):
    """What may be done with a journal. The wire has a bit field, but no combination is valid."""

    NOT_SPECIFIED = 0
    O_RDONLY = 1
    O_WRONLY = 2
    O_RDWR = 4

    @property
    def may_read(self) -> bool:
        """Whether the journal may be read."""
        return self in (JournalFlag.NOT_SPECIFIED, JournalFlag.O_RDONLY, JournalFlag.O_RDWR)

    @property
    def may_write(self) -> bool:
        """Whether content may be appended."""
        return self in (JournalFlag.NOT_SPECIFIED, JournalFlag.O_WRONLY, JournalFlag.O_RDWR)

    def validate(self) -> None:
        """Refuse combinations and unknown bits."""
        if not self.is_known:
            raise ValidationError(f"invalid Flags combination ({self._value_})")


class SuspendLevel(WireEnum):
    """How far a journal is suspended, and so how many replicas it has."""

    NONE = 0
    PARTIAL = 1
    FULL = 2


class AppendSuspend(WireEnum):
    """What an append does about the suspension of its journal."""

    SUSPEND_RESUME = 0
    SUSPEND_NO_RESUME = 1
    SUSPEND_IF_FLUSHED = 2
    SUSPEND_NOW = 3
    SUSPEND_KEEP = 4
