"""What calls take and return: plain typed values, free of gRPC and protobuf."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from gazette_platform.protocol import created_by, join_created

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from gazette_platform.protocol import Fragment, Header, JournalSpec, LabelSet, Route


@dataclass(frozen=True, slots=True)
class JournalListing:
    """A journal as etcd holds it, and who serves it."""

    spec: JournalSpec
    mod_revision: int
    """Revision to expect when the spec is changed."""
    create_revision: int
    route: Route
    history: int = 0
    """Of etcd, as of `protocol.offsets.history_bits`; 0: unknown, as brokers of Gazette do not send it."""

    @property
    def name(self) -> str:
        """Name of the journal."""
        return self.spec.name

    @property
    def created(self) -> int:
        """Which journal of its name it is: a number to keep beside its offsets, and to give to `read`."""
        return created_by(self.create_revision, self.history)


@dataclass(frozen=True, slots=True)
class ListSnapshot:
    """All journals matching a selector at one etcd revision, ordered by name."""

    journals: tuple[JournalListing, ...]
    header: Header

    def __iter__(self) -> Iterator[JournalListing]:
        return iter(self.journals)

    def __len__(self) -> int:
        return len(self.journals)


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where one append was committed."""

    begin: int
    """First byte, as an offset of the journal."""
    end: int
    """Offset after the last byte."""
    sha1: bytes
    """SHA-1 of the appended bytes, 20 bytes; zeros for an empty append, and mostly for one without `with_sum`."""
    registers: LabelSet
    """Registers of the journal after the append."""
    header: Header


@dataclass(frozen=True, slots=True)
class FragmentListing:
    """A fragment of a journal, local to brokers or persisted."""

    fragment: Fragment
    signed_url: str = ""
    """URL to GET the stored bytes with; empty unless asked for and persisted."""

    @property
    def is_persisted(self) -> bool:
        """Whether the fragment is in a store; else it is only in the brokers' spools."""
        return bool(self.fragment.backing_store)

    @property
    def is_file(self) -> bool:
        """Whether the URL is of a file on the disk of brokers, which may be none of ours."""
        return self.signed_url.startswith("file:")


class FragmentQuery(TypedDict, total=False):
    """Which fragments of a journal to list, as keyword arguments."""

    begin_mod_time: int
    """Unix seconds, inclusive; 0: no bound."""
    end_mod_time: int
    """Unix seconds, inclusive; 0: no bound. A bound leaves out what is not persisted."""
    next_page_token: int
    """Begin offset to list from."""
    page_limit: int
    """Fragments per request; 0: 1000."""
    ttl_s: float
    """Seconds that signed URLs are good for; 0: no signed URLs."""


@dataclass(frozen=True, slots=True)
class FragmentPage:
    """Some fragments of a journal in offset order, and where the next page begins."""

    fragments: tuple[FragmentListing, ...]
    next_page_token: int
    """Offset to ask the next page from; 0 when this was the last one."""
    header: Header


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """Outcome of a fragment store's health check."""

    store: str
    is_healthy: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class AwaitedBroker:
    """A broker whose spool a journal waits for."""

    name: str
    """Its zone and id, as in ``zone-a#broker-1``."""
    is_running: bool
    """Whether one of this name runs now. It stores what it has, or it came back without its spool."""


@dataclass(frozen=True, slots=True)
class HeadState:
    """Whether a journal takes appends, and where they go on once its head is reset."""

    head: int
    """Byte offset."""
    is_refused: bool
    """Whether appends are refused. Gazette's brokers do not say: then it is False."""
    awaited: tuple[AwaitedBroker, ...] = ()
    """Each of them holds all that was acknowledged, which may be more than is stored. What only they
    hold behind `head` is lost to the journal if its head is reset before one of them is back."""


@dataclass(frozen=True, slots=True)
class Savepoint:
    """Offsets of journals under a name."""

    name: str
    offsets: Mapping[str, int]
    """Byte offsets by journal; empty in lists."""
    created_at: datetime
    """Aware, UTC, to the second."""
    journals: int
    """How many offsets there are."""
    created: Mapping[str, int] = field(default_factory=dict)
    """By journal, `created` of the one that its offset belongs to (`protocol.offsets`)."""

    @property
    def places(self) -> dict[str, int]:
        """Offsets and `created` together, as files of offsets have them and readers of messages take them."""
        return join_created(self.offsets, self.created)
