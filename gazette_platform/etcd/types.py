"""What etcd stores and answers, as small immutable values.

Keys are text: UTF-8 decoded with ``surrogateescape``, so that a key written by another program in
another encoding survives a round trip. Text order equals etcd's byte order for all valid keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from gazette_platform.errors import EtcdError


class EtcdRejected(EtcdError):
    """Etcd understood the call and refused it; the same call will be refused again."""

    retriable: ClassVar[bool] = False


class EtcdFull(EtcdError):
    """Etcd has reached its quota and wrote nothing; it takes writes again once it was repaired."""


class Compacted(EtcdRejected):
    """The revision asked for is no longer kept.

    Attributes:
        compact_revision: the oldest revision that may be asked for; 0 if unknown.
    """

    def __init__(self, message: str, *, compact_revision: int = 0) -> None:
        self.compact_revision = compact_revision
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """Which cluster and member answered, at which revision of the store."""

    cluster_id: int
    member_id: int
    revision: int
    raft_term: int


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key with its value. `lease` is 0 for a key that no lease owns."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Keys in key order; `header.revision` is the revision that they were read at."""

    header: ResponseHeader
    kvs: tuple[KeyValue, ...]
    count: int
    """Keys in the range, which may exceed those returned when a limit was given."""


class CompareTarget(Enum):
    """What of a key a comparison looks at."""

    VERSION = "version"
    CREATE = "create_revision"
    MOD = "mod_revision"
    LEASE = "lease"


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: `target` of `key` equals `value`.

    A key that does not exist has version, create and mod revision 0.

    With `is_below_all`, `target` of all keys that start with `key` is smaller than `value`.
    """

    key: str
    target: CompareTarget
    value: int
    is_below_all: bool = False

    @classmethod
    def mod(cls, key: str, revision: int) -> Compare:
        """The key was last changed at `revision`; 0: it does not exist."""
        return cls(key, CompareTarget.MOD, revision)

    @classmethod
    def none_since(cls, prefix: str, revision: int) -> Compare:
        """No key that starts with `prefix` was written after `revision`."""
        return cls(prefix, CompareTarget.MOD, revision + 1, is_below_all=True)

    @classmethod
    def create(cls, key: str, revision: int) -> Compare:
        """The key was created at `revision`; 0: it does not exist."""
        return cls(key, CompareTarget.CREATE, revision)

    @classmethod
    def version(cls, key: str, version: int) -> Compare:
        """The key was changed `version` times since its creation, which counts."""
        return cls(key, CompareTarget.VERSION, version)

    @classmethod
    def lease_is(cls, key: str, lease: int) -> Compare:
        """The key is owned by this lease."""
        return cls(key, CompareTarget.LEASE, lease)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key. With `ignore_lease` an existing key keeps its lease (and must exist)."""

    key: str
    value: bytes
    lease: int = 0
    ignore_lease: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key, or with `prefix` all that start with it. Removing nothing is not an error."""

    key: str
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key, or with `prefix` all that start with it, inside a transaction."""

    key: str
    prefix: bool = False


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Outcome of a transaction.

    `header.revision` is the transaction's own revision if it wrote anything. `reads` holds the
    result of each `Get` that was executed, in order.
    """

    succeeded: bool
    header: ResponseHeader
    reads: tuple[RangeResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one key. Of a removed key `kv` holds only the key and the mod revision."""

    kv: KeyValue
    is_delete: bool


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Whole revisions of changes, oldest first; no events: all up to the header's is known."""

    header: ResponseHeader
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What a member of the cluster says of itself."""

    header: ResponseHeader
    version: str
    endpoint: str
