"""Names of keys: items, members and assignments under the prefix of a cluster.

``<prefix>/items/<item>``, ``<prefix>/members/<zone>#<suffix>`` and
``<prefix>/assign/<item>#<zone>#<suffix>#<slot>``. No part holds a character at or below ``#``, so
the order of keys is the order of (item, zone, suffix, slot as text).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from functools import lru_cache

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import ProcessId

_SEPARATOR = "#"
_ITEMS = "/items/"
_MEMBERS = "/members/"
_ASSIGN = "/assign/"
# More digits than any number of brokers has. Of some thousand digits Python makes no number.
_SLOT_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class ItemKey:
    """The key of an item, for brokers a journal."""

    item: str


@dataclass(frozen=True, slots=True)
class MemberKey:
    """The key of a member, a process."""

    process_id: ProcessId


@dataclass(frozen=True, slots=True)
class AssignmentKey:
    """The key of an assignment; slot 0 is the primary."""

    item: str
    process_id: ProcessId
    slot: int


Key = ItemKey | MemberKey | AssignmentKey


def validate_prefix(prefix: str) -> None:
    """Check that a prefix is a clean absolute path.

    Raises: ValidationError.
    """
    if not prefix.startswith("/") or prefix == "/" or posixpath.normpath(prefix) != prefix:
        raise ValidationError(
            f"bad etcd prefix {prefix!r}; expected a clean absolute path without a trailing /, "
            "such as /gazette/cluster"
        )


def items_prefix(prefix: str) -> str:
    """What the keys of all items start with, and no others do."""
    return f"{prefix}{_ITEMS}"


def item_key(prefix: str, item: str) -> str:
    """The key of an item."""
    return f"{items_prefix(prefix)}{_part(item)}"


def members_prefix(prefix: str) -> str:
    """What the keys of all members start with, and no others do."""
    return f"{prefix}{_MEMBERS}"


def member_key(prefix: str, process_id: ProcessId) -> str:
    """The key of a member."""
    return f"{prefix}{_MEMBERS}{_part(process_id.zone)}#{_part(process_id.suffix)}"


def assignments_prefix(prefix: str, item: str) -> str:
    """What the keys of all assignments of an item start with, and no others do."""
    return f"{prefix}{_ASSIGN}{_part(item)}#"


def assignment_key(prefix: str, item: str, process_id: ProcessId, slot: int) -> str:
    """The key of an assignment."""
    zone, suffix = _part(process_id.zone), _part(process_id.suffix)
    return f"{assignments_prefix(prefix, item)}{zone}#{suffix}#{slot}"


def parse_key(prefix: str, key: str) -> Key:
    """What a key names.

    >>> parse_key("/p", "/p/assign/a/b#zone#suffix#1")
    AssignmentKey(item='a/b', process_id=ProcessId(zone='zone', suffix='suffix'), slot=1)

    Raises: ValidationError: it is none of the three kinds, or a part is missing.
    """
    assign = f"{prefix}{_ASSIGN}"
    if key.startswith(assign):  # by far the most
        parts = key[len(assign) :].split(_SEPARATOR)
        if len(parts) != 4 or not all(parts):
            raise ValidationError(f"key {key!r} has {len(parts)} parts; expected 4")
        item, zone, suffix, slot = parts
        return AssignmentKey(_part(item), _process_id(zone, suffix), _slot(key, slot))
    if not key.startswith(prefix):
        raise ValidationError(f"unexpected key prefix {key!r}; expected {prefix}/...")
    tail = key[len(prefix) :]
    for kind, count in ((_ITEMS, 1), (_MEMBERS, 2)):
        if tail.startswith(kind):
            parts = tail[len(kind) :].split(_SEPARATOR)
            if len(parts) != count or not all(parts):
                raise ValidationError(f"key {key!r} has {len(parts)} parts; expected {count}")
            if count == 1:
                return ItemKey(_part(parts[0]))
            return MemberKey(_process_id(*parts))
    raise ValidationError(f"unexpected key prefix {key!r}; expected items, members or assign")


@lru_cache(maxsize=1024)
def _process_id(zone: str, suffix: str) -> ProcessId:
    # There are few, and each is named by many keys: all of them share one object.
    for part in (zone, suffix):
        if not part.isascii() or not part.isprintable():
            raise ValidationError(f"{part!r} is not a part of the identity of a process")
    return ProcessId(_part(zone), _part(suffix))


def _slot(key: str, text: str) -> int:
    # isdecimal alone would take digits of other scripts.
    if not (text.isascii() and text.isdecimal()):
        raise ValidationError(f"slot of key {key!r} is not a number")
    if len(text) > _SLOT_DIGITS_MAX:
        raise ValidationError(f"slot of a key has {len(text)} digits; expected at most 9")
    return int(text)


def _part(text: str) -> str:
    if not text or min(text) <= _SEPARATOR:
        raise ValidationError(
            f"{text!r} cannot be part of an etcd key: it is empty, or has a character at or "
            "below '#', which separates parts"
        )
    return text
