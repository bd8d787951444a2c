"""What a typed table has come to: offsets, producers and counts of each journal, as a value and as a file. Pure.

A state is published with the rows that it describes. All that a run must know of the past is in it, so that
the rows of any number of runs are those of one uninterrupted read.

The file is Parquet, so that any engine can be asked about it: a row for each journal (`producer` is NULL) with
its offset and counts, and one for each of its producers. It carries a version, and a digest of what it says.
"""

from __future__ import annotations

import hashlib
import io
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, TypeVar, final

from gazette_platform.errors import LakeError
from gazette_platform.message.sequencer import PRUNE_HORIZON
from gazette_platform.message.uuid import PRODUCER_BYTES
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_VERSION: Final = 2
# Files of version 1 do not say which journal an offset belongs to.
_VERSIONS: Final = frozenset({1, _VERSION})
_VERSION_KEY: Final = b"gazette.typed-state.version"
_DIGEST_KEY: Final = b"gazette.typed-state.digest"
# These layouts feed the digest of stored states: changing one makes every existing file look
# damaged.
_PRODUCER = struct.Struct(f">{PRODUCER_BYTES}sQqq")
_JOURNAL = struct.Struct(">I10q")
_IDENTITY = struct.Struct(">8s2q")
# After all producers that a journal may have begun: giving up "before" it gives up all open transactions.
_BEHIND_ALL: Final = 1 << 63


class Producer(NamedTuple):
    """What is known of a producer in a journal."""

    last_ack: int
    """Largest clock that was committed: what is not above it is a duplicate."""
    begin: int = -1
    """Offset of the first message of its open transaction; -1 if there is none."""
    waiting: int = 0
    """Messages of that transaction. One that comes again in a later run than before counts once more: of an open
    transaction no clock is known there."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of all messages of a journal since the table began. Each is counted once."""

    messages: int = 0
    """Read, ACKs and bad records among them."""
    committed: int = 0
    """To be found in the table or in quarantine."""
    typed: int = 0
    """Rows."""
    quarantined: int = 0
    """Committed, and no row could be made of them."""
    duplicates: int = 0
    """There before: their clock was not above those of their producer."""
    taken_back: int = 0
    """Of transactions that were rolled back, or given up by their producer. If one is open over several
    runs, messages of it that come again in a later one wait, too, and count here once it has ended."""
    acks: int = 0
    """ACKs, which are not rows."""
    lost_bytes: int = 0
    """Missing bytes that were passed over on a person's word."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in _COUNTS})

    @property
    def waiting(self) -> int:
        """Messages of transactions that are open: neither committed nor given up."""
        return self.messages - self.committed - self.duplicates - self.taken_back - self.acks


_COUNTS: Final = tuple(Counts.__dataclass_fields__)
_IDENTITIES: Final = ("created", "shared_to")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JournalState:
    """How far a journal was read, and what its next messages are compared with."""

    offset: int = 0
    """All before it was read; the next range begins here."""
    producers: Mapping[bytes, Producer] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    created: int = 0
    """Which journal `offset` belongs to; see `protocol.offsets`."""
    shared_to: int = 0
    """Rows of a former journal of this name have offsets below this one, too. No backfill looks there."""

    @property
    def known(self) -> dict[bytes, int]:
        """By producer, the clock above which its messages are new."""
        return {name: one.last_ack for name, one in self.producers.items()}

    @property
    def open_begin(self) -> int | None:
        """Where the oldest open transaction begins: what is behind must not be pruned. None: there is none."""
        return min((p.begin for p in self.producers.values() if p.begin >= 0), default=None)

    def passing(self, offset: int) -> JournalState:
        """The state after missing bytes, up to `offset`, which a person has given up."""
        # A person may name an offset that a run has passed since; progress never goes back.
        lost = Counts(lost_bytes=max(0, offset - self.offset))
        return replace(self, offset=max(self.offset, offset), counts=self.counts + lost)

    def giving_up(self, before: int) -> JournalState:
        """The state without the transactions that begin before `before`: a part of them is gone."""
        producers = {
            name: Producer(one.last_ack) if 0 <= one.begin < before else one
            for name, one in self.producers.items()
        }
        # Move waiting messages to `taken_back`, or the counts would never balance again.
        gone = sum(one.waiting - producers[name].waiting for name, one in self.producers.items())
        return replace(self, producers=producers, counts=self.counts + Counts(taken_back=gone))

    def beginning_anew(self, offset: int, created: int) -> JournalState:
        """Return the state with which the journal that has the name now is read from `offset` on.

        What is known of producers is kept, so a message of the former journal that is appended again stays one row.
        Open transactions are given up, unless the journal is read on where it was.
        """
        # The journal holds what it held, so its open transactions can still be committed.
        if offset == self.offset:
            return replace(self, created=created)
        return replace(
            self.giving_up(_BEHIND_ALL),
            offset=offset,
            created=created,
            # A journal may be recreated several times; the farthest one decides what backfills must
            # leave alone.
            shared_to=max(self.shared_to, self.offset),
        )

    def with_rows(self, typed: int, quarantined: int) -> JournalState:
        """The state, with what a run made of committed messages."""
        return replace(self, counts=self.counts + Counts(typed=typed, quarantined=quarantined))


class _Known(Protocol):
    """What pruning asks of a producer; as of `Producer`."""

    @property
    def last_ack(self) -> int: ...
    @property
    def begin(self) -> int: ...


_K = TypeVar("_K", bound=_Known)


def pruned(producers: Mapping[bytes, _K]) -> dict[bytes, _K]:
    """Without those that have no open transaction, and are 24 h behind the newest of their journal.

    Not the sequencer's own pruning: a state has no clock of an open transaction, so that one which a producer
    begins after a day of silence would be forgotten.
    """
    # Compare with the journal's newest clock and not with the wall clock: a rerun of the same bytes
    # must give the same state.
    newest = max((one.last_ack for one in producers.values()), default=0)
    return {
        name: one
        for name, one in producers.items()
        if one.begin >= 0 or one.last_ack >= newest - PRUNE_HORIZON
    }


@final
@dataclass(frozen=True, slots=True)
class TypedState:
    """The state of a typed table. A journal that is not named was not read yet."""

    journals: Mapping[str, JournalState] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """16 hex digits that change exactly when the state does."""
        return _digest_of(self)[:16]

    @property
    def counts(self) -> Counts:
        """Of all journals together."""
        return sum((one.counts for one in self.journals.values()), Counts())

    @property
    def unaccounted(self) -> dict[str, str]:
        """By journal, how its counts contradict each other; none of them should.

        All that was read is committed, dropped, an ACK, or waits in a transaction that is known; all that is
        committed is a row or in quarantine.
        """
        found = {}
        for name, one in sorted(self.journals.items()):
            counts, waiting = one.counts, sum(p.waiting for p in one.producers.values())
            if counts.typed + counts.quarantined != counts.committed:
                found[name] = (
                    f"{counts.committed} messages are committed, and {counts.typed} are rows, "
                    f"{counts.quarantined} in quarantine"
                )
            elif counts.waiting != waiting:
                found[name] = (
                    f"{counts.waiting} messages are neither committed nor dropped, and {waiting} "
                    "wait in open transactions"
                )
        return found

    def with_journals(self, changed: Mapping[str, JournalState]) -> TypedState:
        """The state behind a run: journals that it did not read, or that are gone, keep theirs."""
        # A selector may lose a journal and get it back. Forgetting its offset would read it all
        # again.
        return TypedState({**self.journals, **changed})

    def encode(self) -> bytes:
        """As the content of a file; see the module.

        Raises: SetupError: there is no pyarrow.
        """
        pa, parquet = _arrow()
        journals = sorted(self.journals.items())
        rows: list[tuple[Any, ...]] = [
            (name, None, None, one.offset, None) for name, one in journals
        ]
        for name, one in journals:
            known = one.producers
            rows += [(name, producer, *known[producer]) for producer in sorted(known)]
        schema = _schema(pa)
        columns = list(zip(*rows, strict=True))
        columns += zip(
            *((*_values(one.counts), one.created, one.shared_to) for _, one in journals),
            strict=True,
        )
        # Counts are of journals, which come first.
        arrays = [
            pa.concat_arrays([pa.array(c, f.type), pa.nulls(len(rows) - len(c), f.type)])
            for c, f in zip(columns or [()] * len(schema), schema, strict=True)
        ]
        out = io.BytesIO()
        with parquet.ParquetWriter(
            out,
            schema,
            compression="zstd",
            use_dictionary=["journal", "producer"],
            column_encoding={"last_ack": "DELTA_BINARY_PACKED"},
            store_schema=False,
            write_page_checksum=True,
        ) as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            writer.add_key_value_metadata(
                {_VERSION_KEY: str(_VERSION).encode(), _DIGEST_KEY: _digest_of(self).encode()}
            )
        return out.getvalue()

    @classmethod
    def decode(cls, content: bytes, *, where: str = "the state of a typed table") -> Self:
        """The state whose `encode` was `content`.

        Args:
            where: the file's name, for errors.

        Raises: LakeError: it is no such file, is damaged, or of a newer release. SetupError: no pyarrow.
        """
        pa, parquet = _arrow()
        try:
            file = parquet.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
            metadata = file.metadata.metadata or {}
            _check_version(metadata.get(_VERSION_KEY), where)
            table = file.read()
            state = cls(_journals_of(table))
            digest = _digest_of(state)
        except (
            *(pa.ArrowException, OSError, struct.error),
            *(KeyError, ValueError, TypeError, AttributeError),
        ) as err:
            raise _damaged(where, str(err)) from err
        # Page checksums find damaged bytes; the digest finds a file that was written by a faulty
        # release.
        if digest.encode() != metadata.get(_DIGEST_KEY):
            raise _damaged(where, "its digest is of something else")
        return state


def _values(counts: Counts) -> tuple[int, ...]:
    return tuple(getattr(counts, name) for name in _COUNTS)


def _journals_of(table: Any) -> dict[str, JournalState]:
    names = ("journal", "producer", "last_ack", "begin", "waiting")
    rows = list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
    producers: dict[str, dict[bytes, Producer]] = {}
    for journal, producer, last_ack, begin, waiting in rows:
        of_journal = producers.setdefault(journal, {})
        if producer is not None:
            of_journal[producer] = Producer(last_ack, begin, waiting)
    journals = {}
    for index, (journal, producer, _, offset, _) in enumerate(rows):
        if producer is not None:
            break  # those of journals come first
        counts = {name: table.column(name)[index].as_py() for name in _COUNTS}
        identity = {
            name: table.column(name)[index].as_py()
            for name in _IDENTITIES
            if name in table.column_names
        }
        journals[journal] = JournalState(
            offset=offset, producers=producers[journal], counts=Counts(**counts), **identity
        )
    return journals


def _digest_of(state: TypedState) -> str:
    """Of the values themselves: files that different releases of Arrow write differ."""
    digest = hashlib.sha256(b"typed-state")
    for journal, one in sorted(state.journals.items()):
        encoded = journal.encode()
        sizes = len(encoded), one.offset, len(one.producers)
        digest.update(_JOURNAL.pack(*sizes, *_values(one.counts)))
        digest.update(encoded)
        known = one.producers
        digest.update(b"".join([_PRODUCER.pack(name, *known[name]) for name in sorted(known)]))
        if one.created or one.shared_to:  # else it is the digest that version 1 has
            digest.update(_IDENTITY.pack(b"identity", one.created, one.shared_to))
    return digest.hexdigest()


def _check_version(found: bytes | None, where: str) -> None:
    if found is None:
        raise LakeError(
            f"{where} is a Parquet file, and no state of a typed table: does the property "
            "`gazette.state` of the snapshot name the right one?"
        )
    if found not in {str(version).encode() for version in _VERSIONS}:
        raise LakeError(
            f"{where} has version {found.decode(errors='replace')[:20]}, this release knows {_VERSION}: "
            "a newer release has written the table; update the platform"
        )


def _damaged(where: str, why: str) -> LakeError:
    return LakeError(
        f"{where} cannot be read ({why[:200]}): fetch it again, or from a backup. The files of "
        "older snapshots of the table are states, too: roll the table and its tag back to one of these, and "
        "what came after it is read again"
    )


def _schema(pa: Any) -> Any:
    return pa.schema(
        [
            ("journal", pa.string()),
            ("producer", pa.binary(PRODUCER_BYTES)),
            ("last_ack", pa.uint64()),
            ("begin", pa.int64()),
            ("waiting", pa.int64()),
            *((name, pa.int64()) for name in (*_COUNTS, *_IDENTITIES)),
        ]
    )


def _arrow() -> tuple[Any, Any]:
    by = "states of typed tables"
    return required("pyarrow", extra="lake", by=by), required(
        "pyarrow.parquet", extra="lake", by=by
    )
