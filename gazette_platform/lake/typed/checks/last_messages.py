"""Which message of a key is the last, message by message; `last_rows` says the same in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, final
from uuid import UUID

from gazette_platform.lake.typed.files.change_files import are_deletions
from gazette_platform.lake.typed_spec.changes import TRUNCATE
from gazette_platform.message.uuid import parse_uuid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

    from gazette_platform.lake.typed_spec.changes import ChangeOrder

__all__ = ["Key", "LastMessages", "Message", "keys_of"]

Key = tuple[Any, ...]


@final
class Message(NamedTuple):
    """What of a message decides."""

    position: str
    journal: str
    begin: int
    clock: int
    deletes: bool

    def is_later(self, other: Message) -> bool:
        """Whether it is later than another one of the same key; see `last_rows`."""
        if self.position != other.position:
            return self.position > other.position
        if self.journal == other.journal:
            return self.begin > other.begin
        return (self.clock, self.journal) > (other.clock, other.journal)


@final
class LastMessages:
    """The last message of each key, of those that were added. Memory: all keys.

    Args:
        key: columns.
        changes: which messages delete, and what orders them; None: none does.
    """

    def __init__(self, key: Sequence[str], changes: ChangeOrder | None) -> None:
        self._key = list(key)
        self._changes = changes
        self._by_key: dict[Key, dict[str, Message]] = {}
        self._truncations: dict[str, Message] = {}
        # By journal, of changes that have a position.
        self._newest: dict[str, Message] = {}
        self._latest: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, rows: pa.Table) -> None:
        """Take messages, in the columns of the table, in any order."""
        changes = self._changes
        count = rows.num_rows
        positions = [""] * count
        deletes: list[bool] = [False] * count
        truncates = deletes
        if changes is not None:
            deletes = are_deletions(rows, changes).to_pylist()
            if changes.position:
                positions = rows.column(changes.position).to_pylist()
            if changes.is_envelope:
                truncates = [op == TRUNCATE for op in rows.column(changes.deleted).to_pylist()]
        keys = keys_of(rows, self._key)
        places = zip(*(rows.column(n).to_pylist() for n in ("_journal", "_begin")), strict=True)
        clocks = map(_clock_of, rows.column("_uuid").to_pylist())
        told = zip(keys, positions, places, clocks, deletes, truncates, strict=True)
        for key, position, (journal, begin), clock, is_deletion, is_truncation in told:
            message = Message(position, journal, begin, clock, is_deletion)
            _keep(self._truncations if is_truncation else self._by_key.setdefault(key, {}), message)
            if position:
                newest = self._newest.setdefault(journal, message)
                if begin > newest.begin:
                    self._newest[journal] = message
                self._latest[journal] = max(position, self._latest.get(journal, position))

    def falling(self) -> list[str]:
        """Return the journals whose newest change has a lower position than an earlier one."""
        return sorted(j for j, one in self._newest.items() if one.position < self._latest[j])

    def rows(self) -> Iterator[tuple[Key, Message]]:
        """Keys that have a row, and the message that it is."""
        for key, by_journal in self._by_key.items():
            for truncation in self._truncations.values():
                _keep(by_journal, truncation)
            last, *others = by_journal.values()
            for one in others:
                last = one if one.is_later(last) else last
            if not last.deletes:
                yield key, last


def keys_of(rows: pa.Table, key: Sequence[str]) -> Iterator[Key]:
    """Return the key of each row, as plain values: UUIDs as bytes."""
    columns = (rows.column(name).to_pylist() for name in key)
    for values in zip(*columns, strict=True):
        yield tuple(value.bytes if isinstance(value, UUID) else value for value in values)


def _keep(by_journal: dict[str, Message], message: Message) -> None:
    known = by_journal.get(message.journal)
    if known is None or message.is_later(known):
        by_journal[message.journal] = message


def _clock_of(told: Any) -> int:
    return parse_uuid(told).clock if told is not None else 0
