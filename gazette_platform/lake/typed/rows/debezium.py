"""Envelopes of Debezium, taken apart into the records of rows that `parsing` reads. Pure.

    {"op":"u","before":…,"after":{"id":1,"name":"x"},"source":{…}}  ──  {"#op":"u","#position":"…","id":1,"name":"x"}

With or without the wrapper ``{"schema":…,"payload":…}``. What becomes of a line:

| line | records |
|---|---|
| `op` is c, u, or r of a snapshot | `after` |
| the same, and `before` has another key | a deletion of that key, and `after` |
| d | a deletion, with the key alone, which is taken from `before` |
| t: the table was truncated | one without a key, which deletes all rows before it |
| m; no `op`: heartbeats, begins and ends of transactions, DDL; tombstones: `null`, no payload, a blank line, `_meta.tombstone` | none |
| anything else | none: the line is a bad record |

A position sorts as text. PostgreSQL: the LSN. MySQL and MariaDB: number of the binlog file, position, row. Other databases: the time
at which they committed. If the source does not say, the position is empty, and sorts before all others.

Blocks of a journal of changes as rows: their envelopes are taken apart, and `parsing` reads what is in them. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from msgspec import structs

from gazette_platform.lake.spec.typed.columns import DELETE, OP_KEY, POSITION_KEY, TRUNCATE
from gazette_platform.lake.typed.rows.parsing import (
    REASON_CHARACTERS_MAX,
    BadRecord,
    BlockParser,
    ParsedBlock,
    acks_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.spec.typed.columns import TypedColumn
    from gazette_platform.lake.typed.rows.parsing import LookedBlock

_NULL: Final = b"null"
_ROW_OPS: Final = frozenset({"c", "u", "r"})
_OPS: Final = "c, u, r, d, t and m"
# What Debezium writes in the place of a value that PostgreSQL did not log, as text and as bytes in base64.
_UNAVAILABLE: Final = (
    b'"__debezium_unavailable_value"',
    b'"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="',
)
_BINLOGS: Final = frozenset({"mysql", "mariadb"})
_DIGITS_MAX: Final = 20
_LARGEST: Final = 10**_DIGITS_MAX


class _Source(msgspec.Struct, gc=False):
    connector: str | None = None
    lsn: int | None = None
    file: str | None = None
    pos: int | None = None
    row: int | None = None
    ts_ms: int | None = None


class _Envelope(msgspec.Struct, gc=False):
    op: str | None = None
    before: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()
    source: _Source | None = None
    payload: msgspec.Raw = msgspec.Raw()
    # By these, and no `op`, it is known that a line is a message about something else.
    status: msgspec.Raw = msgspec.Raw()
    ddl: msgspec.Raw = msgspec.Raw()
    ts_ms: msgspec.Raw = msgspec.Raw()
    meta: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="_meta")


class _Meta(msgspec.Struct, gc=False):
    tombstone: bool = False


class Envelopes(NamedTuple):
    """Lines, taken apart."""

    records: bytes
    """Lines of records, each with its newline."""
    line_of: list[int]
    """Of each record the line that it is of."""
    bad: dict[int, str]
    """Lines that are not envelopes, and why."""


class _NotOneError(Exception):
    """Why a line is not an envelope of the table."""


@final
class EnvelopeReader:
    """Takes envelopes apart.

    Args:
        spec: of the table.
    """

    def __init__(self, spec: TypedSpec) -> None:
        keyed = [column for column in spec.columns if column.name in spec.key and column.key]
        self._names = [msgspec.json.encode(column.key) for column in keyed]
        self._shown = ", ".join(column.key for column in keyed)
        self._no_key = [_nothing_of(column) for column in keyed]
        fields = [(f"f{at}", msgspec.Raw, msgspec.Raw()) for at in range(len(keyed))]
        shape = msgspec.defstruct(
            "Key", fields, rename={f"f{at}": c.key for at, c in enumerate(keyed)}, gc=False
        )
        self._fields = [name for name, _, _ in fields]
        self._keys: msgspec.json.Decoder[Any] = msgspec.json.Decoder(shape)
        self._lines = msgspec.json.Decoder(_Envelope)
        self._metas = msgspec.json.Decoder(_Meta)

    def read(self, lines: list[bytes]) -> Envelopes:
        """Take lines apart.

        Args:
            lines: without their newlines.
        """
        records: list[bytes] = []
        line_of: list[int] = []
        bad: dict[int, str] = {}
        for index, line in enumerate(lines):
            try:
                found = self._records(line.strip())
            except _NotOneError as err:
                bad[index] = str(err)
                continue
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as err:
                bad[index] = f"is not a change: {err}"
                continue
            records += found
            line_of += [index] * len(found)
        return Envelopes(b"".join(b"%b\n" % record for record in records), line_of, bad)

    def _records(self, line: bytes) -> list[bytes]:
        envelope = self._unwrapped(line)
        if envelope is None or _is_about_no_row(envelope):
            return []
        op = envelope.op
        if op is None:
            raise _NotOneError(
                "is not a change: it has no `op`. A record that is the row itself needs `deleted`, not `change_data`"
            )
        head = self._head(op, envelope.source)
        if op in _ROW_OPS:
            return self._row(head, envelope)
        if op not in {DELETE, TRUNCATE}:
            raise _NotOneError(f"is not a change: `op` is {op[:20]!r}, and not one of {_OPS}")
        key = self._no_key if op == TRUNCATE else self._key_of(bytes(envelope.before))
        return [_object(head, self._pairs(key))]

    def _unwrapped(self, line: bytes) -> _Envelope | None:
        """None: it is a tombstone."""
        if not line or line == _NULL:
            return None
        envelope = self._lines.decode(line)
        payload, meta = bytes(envelope.payload), bytes(envelope.meta)
        if envelope.op is not None:
            return envelope
        if meta and self._metas.decode(meta).tombstone:  # a null that came through Kafka
            return None
        if not payload:
            return envelope
        return None if payload == _NULL else self._lines.decode(payload)

    def _row(self, head: bytes, envelope: _Envelope) -> list[bytes]:
        after, before = bytes(envelope.after), bytes(envelope.before)
        if not after.startswith(b"{"):
            raise _NotOneError(f"`op` is {envelope.op}, and `after` has no row")
        if any(mark in after for mark in _UNAVAILABLE):
            raise _NotOneError(
                "a value is __debezium_unavailable_value: PostgreSQL did not log it. Let it, by `ALTER TABLE … REPLICA "
                "IDENTITY FULL`"
            )
        rest = after[1:].lstrip()
        record = _object(head, rest[:-1].rstrip())
        if not before.startswith(b"{"):
            return [record]
        former = [raw for raw in self._raws(before) if raw is not None]
        # By value: a deletion of the very key that the message writes would be as late as its row.
        if len(former) < len(self._names) or _values(former) == _values(self._raws(after)):
            return [record]
        return [_object(self._head(DELETE, envelope.source), self._pairs(former)), record]

    def _key_of(self, before: bytes) -> list[bytes]:
        found = self._raws(before) if before.startswith(b"{") else [None]
        whole = [one for one in found if one is not None]
        if len(whole) < len(found):
            raise _NotOneError(
                f"deletes a row, and `before` does not say its {self._shown}. In PostgreSQL, `ALTER TABLE … REPLICA IDENTITY "
                "DEFAULT` (or FULL) logs it"
            )
        return whole

    def _raws(self, content: bytes) -> list[bytes | None]:
        """Values of the key's columns, as they are written; None: null, or not there."""
        key = self._keys.decode(content)
        found = [bytes(getattr(key, name)) for name in self._fields]
        return [None if raw in {b"", _NULL} else raw for raw in found]

    def _pairs(self, values: list[bytes]) -> bytes:
        pairs = zip(self._names, values, strict=True)
        return b",".join(b"%b:%b" % pair for pair in pairs)

    @staticmethod
    def _head(op: str, source: _Source | None) -> bytes:
        position = _position(source) if source is not None else ""
        return msgspec.json.encode({OP_KEY: op, POSITION_KEY: position})


def _values(raws: Iterable[bytes | None]) -> list[Any]:
    return [None if raw is None else msgspec.json.decode(raw) for raw in raws]


def _object(head: bytes, pairs: bytes) -> bytes:
    """An object with more pairs."""
    return b"%b,%b}" % (head[:-1], pairs) if pairs else head


def _position(source: _Source) -> str:
    if source.connector in _BINLOGS or source.file is not None:
        return _binlog_position(source)
    if source.connector == "postgresql" or source.lsn is not None:
        return "" if source.lsn is None else _digits(source.lsn)
    return "" if source.ts_ms is None else _digits(source.ts_ms)


def _binlog_position(source: _Source) -> str:
    if not source.file or source.pos is None:
        return ""
    # By number: a thousand and first million files later names have more digits.
    number = source.file.rpartition(".")[2]
    # Python refuses to read thousands of digits.
    if not (number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX):
        raise _NotOneError(f"source.file is {source.file[:60]!r}, which does not end with a number")
    return ".".join(_digits(each) for each in (int(number), source.pos, source.row or 0))


def _digits(number: int) -> str:
    if not 0 <= number < _LARGEST:
        raise _NotOneError(f"{number} is not a position in a log")
    return f"{number:0{_DIGITS_MAX}d}"


def _is_about_no_row(envelope: _Envelope) -> bool:
    if envelope.op is not None:
        return envelope.op == "m"
    if bytes(envelope.status) or bytes(envelope.ddl):
        return True
    # A heartbeat has a time, and nothing of a change.
    is_change = bytes(envelope.before) or bytes(envelope.after) or envelope.source is not None
    return bool(bytes(envelope.ts_ms)) and not is_change


_NOTHING: Final = {
    "boolean": b"false",
    "int": b"0",
    "bigint": b"0",
    "decimal": b"0",
    "date": b'"1970-01-01"',
    "timestamp": b'"1970-01-01T00:00:00"',
    "timestamptz": b'"1970-01-01T00:00:00Z"',
    "uuid": b'"00000000-0000-0000-0000-000000000000"',
}


def _nothing_of(column: TypedColumn) -> bytes:
    """Any value of a column, for a record that is about no row."""
    if column.format.startswith("epoch"):
        return b"0"
    if (column.parsed.name, column.format) == ("decimal", "base64"):
        return b'"AA=="'
    return _NOTHING.get(column.parsed.name, b'""')


_CUT = "ends within a record: there is no newline"


def parser_of(spec: TypedSpec) -> BlockParser | ChangeParser:
    """Return what parses a table's blocks. Not for several threads."""
    return ChangeParser(spec) if spec.change_data else BlockParser(spec)


@final
class ChangeParser:
    """Parses blocks of journals of envelopes, as `BlockParser` does those of records. Not for several threads.

    A message is a row, two rows of two keys, or none. If one of its rows is bad, all of it is.
    """

    def __init__(self, spec: TypedSpec) -> None:
        self._envelopes = EnvelopeReader(spec)
        self._messages = BlockParser(structs.replace(spec, columns=(), key=(), change_data=""))
        # Its UUID lies in the envelope, beside what is taken out of that.
        # Deletions have no other columns than the key's.
        columns = tuple(structs.replace(c, required=c.name in spec.key) for c in spec.columns)
        self._records = BlockParser(structs.replace(spec, uuid=(), columns=columns))

    def look(self, begin: int, content: bytes) -> LookedBlock:
        """See `BlockParser.look`."""
        return self._messages.look(begin, content)

    def parse(self, begin: int, content: bytes) -> ParsedBlock:
        """See `BlockParser.parse`."""
        looked = self.look(begin, content)
        *lines, cut = content.split(b"\n")
        read = self._envelopes.read(lines)
        found = self._records.parse(0, read.records)
        line_of = read.line_of
        bad = read.bad | {line_of[one.number]: one.reason for one in reversed(found.bad)}
        if cut:
            bad[len(lines)] = _CUT
        acks = set(pc.indices_nonzero(acks_of(looked.parts)).to_pylist())
        records = range(len(line_of)) if found.good is None else found.good.to_pylist()
        left_out = bad.keys() | acks
        kept = [line_of[at] not in left_out for at in records]
        rows = found.rows if all(kept) else found.rows.filter(pa.array(kept, pa.bool_()))
        good = [line_of[at] for at, is_kept in zip(records, kept, strict=True) if is_kept]
        times = Counter(good)
        rowless = [at for at in range(len(looked.begins)) if at not in left_out and at not in times]
        return ParsedBlock(
            parts=looked.parts,
            begins=looked.begins,
            ends=looked.ends,
            rows=rows,
            good=pa.array(good, pa.int64()),
            bad=tuple(
                BadRecord(at, bad[at][:REASON_CHARACTERS_MAX])
                for at in sorted(bad)
                if at not in acks
            ),
            rowless=pa.array(rowless, pa.int64()),
            doubled=pa.array([at for at, count in times.items() if count > 1], pa.int64()),
        )
