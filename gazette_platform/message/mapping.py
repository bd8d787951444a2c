"""Which journal of several a record goes to.

A mapping is a function of a message. It chooses among `partitions`: a function that gives the journals
of now, in the brokers' order, and the same object until they change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from gazette_platform.client.results import JournalListing, ListSnapshot

__all__ = [
    "Mapped",
    "fnv1a32",
    "modulo",
    "modulo_mapping",
    "random_mapping",
    "rendezvous",
    "rendezvous_mapping",
]

M = TypeVar("M")

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


class Mapped(NamedTuple):
    """Where a message goes."""

    journal: str
    content_type: str
    """Names the journal's framing; empty if its labels do not."""


def modulo_mapping(
    key_of: Callable[[M], bytes], partitions: Callable[[], ListSnapshot]
) -> Callable[[M], Mapped]:
    """Maps by `modulo` of a key; see there.

    Args:
        key_of: the key of a message, as bytes. It must not depend on its UUID, which comes later.

    The mapping raises ValidationError if there are no journals, or the key is anything but bytes.
    """

    def mapping(message: M) -> Mapped:
        journals = partitions().journals
        return _mapped(journals[modulo(_key(key_of, message), len(journals))])

    return mapping


def rendezvous_mapping(
    key_of: Callable[[M], bytes], partitions: Callable[[], ListSnapshot]
) -> Callable[[M], Mapped]:
    """Maps by `rendezvous` of a key; see there, and `modulo_mapping`."""
    known: tuple[ListSnapshot | None, list[int]] = (None, [])

    def mapping(message: M) -> Mapped:
        nonlocal known
        listed, (hashed, hashes) = partitions(), known
        if listed is not hashed:
            hashes = [fnv1a32(one.name.encode()) for one in listed]
            known = listed, hashes
        return _mapped(listed.journals[rendezvous(_key(key_of, message), hashes)])

    return mapping


def random_mapping(
    partitions: Callable[[], ListSnapshot], draw: random.Random
) -> Callable[[object], Mapped]:
    """Maps to any journal, all being equally likely."""

    def mapping(message: object) -> Mapped:  # noqa: ARG001  no matter which
        journals = partitions().journals
        if not journals:
            raise ValidationError("empty ListResponse: no journal to map a record to")
        return _mapped(draw.choice(journals))

    return mapping


def _key(key_of: Callable[[M], bytes], message: M) -> bytes:
    key: object = key_of(message)
    if not isinstance(key, bytes | bytearray | memoryview):
        # Text or numbers are not taken for it: programs that spread one key have to agree on its bytes.
        raise ValidationError(
            f"the key of a message to map must be bytes, and its function gave {key!r:.80} "
            '(encode it, as by str(…).encode(); None by b"", or another key of your choice)'
        )
    return bytes(key)


def _mapped(listing: JournalListing) -> Mapped:
    return Mapped(listing.name, listing.spec.labels.value_of("content-type"))
