"""Fragments: spans of journal content, and the names of their files.

A fragment's file is found at ``<journal>/<path postfix>/<begin>-<end>-<sha1><extension>`` below the
prefix of its store. Names alone say which bytes a file holds, so a listing of a store is an index.
"""

from __future__ import annotations

import hashlib
import posixpath
import struct
from dataclasses import dataclass
from typing import Final, final

from gazette_platform.errors import ChecksumMismatch, DataError, ValidationError
from gazette_platform.protocol.enums import CompressionCodec
from gazette_platform.protocol.names import (
    check_field,
    validate_journal_name,
    validate_path_component,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb

# Digest of an empty fragment: not the SHA-1 of "".
ZERO_SUM: Final = bytes(20)

PATH_POSTFIX_LENGTH_MAX = 512

_SUM_PARTS = struct.Struct(">QQI")
_INT64_MAX = (1 << 63) - 1
_NAME_PARTS = 3


# Never changed, and yet not frozen: that would make it five times as slow to make, and an append makes
# two. It is type checkers that refuse to assign to a field.
@dataclass(slots=True, unsafe_hash=True)
class Fragment:
    """Bytes [begin, end) of a journal.

    Equality is plain equality of all fields: brokers compare proposals by it.
    """

    journal: Final[str]
    begin: Final[int]
    end: Final[int]
    sum: Final[bytes] = ZERO_SUM
    """SHA-1 of the uncompressed content; all zero if empty."""
    codec: Final[CompressionCodec] = CompressionCodec.NONE
    backing_store: Final[str] = ""
    """URL of the store, exactly as in the journal's spec; empty while the fragment is local."""
    mod_time: Final[int] = 0
    """Unix seconds at which it was stored; zero while local."""
    path_postfix: Final[str] = ""

    @property
    def content_length(self) -> int:
        """Uncompressed bytes."""
        return self.end - self.begin

    @property
    def content_name(self) -> str:
        """Base name of the fragment's file."""
        return f"{self.begin:016x}-{self.end:016x}-{self.sum.hex()}{self.codec.extension}"

    @property
    def content_path(self) -> str:
        """Path of the fragment's file below the store's prefix."""
        return posixpath.normpath(f"{self.journal}/{self.path_postfix}/{self.content_name}")

    def to_pb(self) -> pb.Fragment:
        """The fragment as a message."""
        message = pb.Fragment()
        self.into_pb(message)
        return message

    def into_pb(self, message: pb.Fragment) -> None:
        """Fill an empty message."""
        message.journal = self.journal
        self.span_into_pb(message)
        message.compression_codec = self.codec.value  # type: ignore[assignment]
        if self.backing_store:
            message.backing_store = self.backing_store
        if self.mod_time:
            message.mod_time = self.mod_time
        if self.path_postfix:
            message.path_postfix = self.path_postfix

    def span_into_pb(self, message: pb.Fragment) -> None:
        """Fill in what identifies a fragment of a journal: offsets and sum."""
        message.begin = self.begin
        message.end = self.end
        digest = message.sum
        digest.SetInParent()
        digest.part1, digest.part2, digest.part3 = _SUM_PARTS.unpack(self.sum)

    @classmethod
    def from_pb(cls, message: pb.Fragment) -> Fragment:
        """The fragment of a message, not validated."""
        return cls(
            message.journal,
            message.begin,
            message.end,
            sum_from_pb(message.sum),
            CompressionCodec.from_wire(message.compression_codec),
            message.backing_store,
            message.mod_time,
            message.path_postfix,
        )

    def validate(self) -> None:
        """Check names, offsets and codec. `backing_store` is not checked.

        Raises: ValidationError.
        """
        check_field("Journal", validate_journal_name, self.journal)
        if self.begin < 0:
            raise ValidationError(f"invalid Begin ({self.begin}; expected >= 0)")
        if self.begin > self.end:
            raise ValidationError(f"expected Begin <= End (have {self.begin}, {self.end})")
        check_field("CompressionCodec", self.codec.validate)
        if self.path_postfix:
            check_field(
                "PathPostfix",
                validate_path_component,
                self.path_postfix,
                0,
                PATH_POSTFIX_LENGTH_MAX,
            )


def sum_from_pb(message: pb.SHA1Sum) -> bytes:
    """The 20 bytes of a digest."""
    return _SUM_PARTS.pack(message.part1, message.part2, message.part3)


def parse_fragment_path(journal: str, relative_path: str) -> Fragment:
    """The fragment of a file's path below the directory of its journal.

    Widths of the hexadecimal numbers are not enforced. The store and time are left unset.

    Raises: ValidationError: the path is not of a fragment; a listing logs and skips such files.
    """
    directory, _, base = relative_path.rpartition("/")
    stem, dot, extension = base.rpartition(".")
    if not dot:
        stem, extension = base, ""
    codec = CompressionCodec.of_extension(dot + extension)
    parts = stem.split("-")
    if len(parts) != _NAME_PARTS:
        raise ValidationError(f"wrong Fragment format: {relative_path}")
    fragment = Fragment(
        journal=journal,
        begin=_parse_hex_int64(parts[0], "Begin"),
        end=_parse_hex_int64(parts[1], "End"),
        sum=_parse_sum(parts[2]),
        codec=codec,
        path_postfix=directory.strip("/"),
    )
    fragment.validate()
    return fragment


def _parse_hex_int64(text: str, field: str) -> int:
    try:
        # int() alone would also take blanks, underscores and a prefix 0x.
        if not text.isalnum() or not text.isascii() or "x" in text.lower():
            raise ValueError(text)  # noqa: TRY301 (one text for both ways to be wrong)
        value = int(text, 16)
    except ValueError:
        raise ValidationError(
            f'strconv.ParseInt: parsing "{text}": invalid syntax', path=field
        ) from None
    if value > _INT64_MAX:
        raise ValidationError(f'strconv.ParseInt: parsing "{text}": value out of range', path=field)
    return value


def _parse_sum(text: str) -> bytes:
    for character in text:
        if character not in "0123456789abcdefABCDEF":
            raise ValidationError(
                f"encoding/hex: invalid byte: U+{ord(character):04X} {character!r}", path="Sum"
            )
    if len(text) % 2:
        raise ValidationError("encoding/hex: odd length hex string", path="Sum")
    digest = bytes.fromhex(text)
    if len(digest) != len(ZERO_SUM):
        raise ValidationError(f"invalid SHA1Sum length: {len(digest)}")
    return digest


@final
class FragmentCheck:
    """Takes the content of a fragment from its beginning, piece by piece.

    Args:
        is_known: whether its SHA-1 is known to be right, so that only its length is checked.
    """

    def __init__(self, fragment: Fragment, *, is_known: bool = False) -> None:
        self.is_known = is_known
        self._fragment = fragment
        self._digest = hashlib.sha1(usedforsecurity=False)
        self._length = 0

    def take(self, content: bytes) -> None:
        """Take the next piece. Raises: DataError: it goes beyond the end that the name gives."""
        self._length += len(content)
        if self._length > self._fragment.content_length:
            raise DataError(
                f"the stored object is longer than its name says ({self._fragment.content_length} bytes "
                "of content)"
            )
        if not self.is_known:
            self._digest.update(content)

    def finish(self) -> None:
        """Claim that the content has ended.

        Raises: DataError: it is too short. ChecksumMismatch: it is other content.
        """
        missing = self._fragment.content_length - self._length
        if missing:
            raise DataError(f"the stored object ends {missing} bytes before its name says")
        if not self.is_known and self._digest.digest() != self._fragment.sum:
            raise ChecksumMismatch(
                f"content has SHA-1 {self._digest.hexdigest()}, expected {self._fragment.sum.hex()}"
            )
