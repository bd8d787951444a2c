"""Which journal of several a record goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fnv1a32", "modulo", "rendezvous"]

_FNV_OFFSET_BASIS = 2166136261
_FNV_PRIME = 16777619
_UINT32 = 0xFFFFFFFF


def fnv1a32(data: bytes) -> int:
    """The 32-bit FNV-1a hash, which Gazette's mappings agree on.

    >>> fnv1a32(b"a") == 0xE40C292C
    True
    """
    value = _FNV_OFFSET_BASIS
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _UINT32
    return value


def modulo(key: bytes, count: int) -> int:
    """Index of the journal for `key` among `count`, in the order they are listed.

    A change of `count` moves most keys. Raises: ValidationError: there are none.
    """
    if count < 1:
        raise ValidationError("empty ListResponse: no journal to map a record to")
    return fnv1a32(key) % count


def rendezvous(key: bytes, journal_hashes: Sequence[int]) -> int:
    """Index of the journal for `key` by highest random weight, the first one on ties.

    One more journal moves only the keys that go to it.

    Args:
        journal_hashes: `fnv1a32` of each journal's name.

    Raises: ValidationError: there are none.
    """
    if not journal_hashes:
        raise ValidationError("empty ListResponse: no journal to map a record to")
    hashed = fnv1a32(key)
    best, best_weight = 0, 0
    for index, journal_hash in enumerate(journal_hashes):
        weight = hashed ^ journal_hash
        if weight > best_weight:
            best, best_weight = index, weight
    return best
