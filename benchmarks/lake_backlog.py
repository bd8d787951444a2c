"""A backlog of many small fragments: stored as a broker would have, registered tick by tick, queried.

The query reads one hour of it. That no other file is read is shown twice: by the ``$path`` of each row,
and by spoiling all other files, whereupon the query answers as before, and one of all rows fails.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, final

from benchmarks.lake_platform import lake_journal
from gazette_platform.assets.raw import table_partitions
from gazette_platform.client import Change
from gazette_platform.errors import LakeError
from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.local import store_fragment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.figures import Figures
    from benchmarks.lake_sensor import Ticks
    from gazette_platform.client import Client
    from gazette_platform.lake.engines.trino import TrinoSession
    from gazette_platform.ops.clock import Clock

__all__ = ["Backlog", "count_pruned", "register_backlog"]

_TABLE: Final = "bench.backlog"
_SPEC: Final = f"""\
name: {_TABLE}
selector: name:prefix=backlog/
format: json
columns:
  - {{name: id, type: bigint}}
  - {{name: name, type: string}}
  - {{name: value, type: double}}
  - {{name: at, type: string}}
"""
_FIRST_HOUR: Final = datetime(2026, 1, 1, tzinfo=UTC)
_FLUSH_INTERVAL_S: Final = 3600
_LISTED_TIMEOUT_S: Final = 120.0
_REGISTERED_TIMEOUT_S: Final = 600.0
_QUERIES: Final = 5
_SPOILED: Final = b"\x1f\x8b\x08\x00 not gzip at all"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Fragments of some journals over some hours: a Hive partition for each journal and hour."""

    journals: int = 10
    hours: int = 100
    fragments: int = 10
    """Of a journal, in an hour."""
    rows: int = 100
    """Of a fragment."""

    @property
    def partitions(self) -> int:
        """Hive partitions that it makes."""
        return self.journals * self.hours

    @property
    def files(self) -> int:
        """Fragments in all."""
        return self.partitions * self.fragments

    @property
    def records(self) -> int:
        """Rows in all; their ids count from 0."""
        return self.files * self.rows

    def journal(self, number: int) -> str:
        """Name of a journal."""
        return f"backlog/part={number:03}"

    def hour(self, number: int) -> tuple[str, str]:
        """Values of the columns append_date and append_hour."""
        at = _FIRST_HOUR + timedelta(hours=number)
        return f"{at:%Y-%m-%d}", f"{at:%H}"

    def folder(self, hour: int) -> str:
        """Of an hour, below the folder of a journal."""
        return "append_date={}/append_hour={}".format(*self.hour(hour))

    def ids(self, hour: int) -> list[range]:
        """Ids of an hour's rows: a range for each journal."""
        of_one = self.fragments * self.rows
        firsts = ((part * self.hours + hour) * of_one for part in range(self.journals))
        return [range(first, first + of_one) for first in firsts]

    def contents(self) -> Iterator[tuple[str, str, bytes]]:
        """Of all fragments in the order of offsets: journal, folder below it, and records."""
        for part in range(self.journals):
            for hour in range(self.hours):
                for begin in self.ids(hour)[part][:: self.rows]:
                    records = map(_line, range(begin, begin + self.rows))
                    yield self.journal(part), self.folder(hour), b"".join(records)

    def store(self, root: Path) -> dict[str, int]:
        """Write all files below the root of a ``file:///`` store. Returns: the end of each journal."""
        ends: dict[str, int] = {}
        for journal, folder, content in self.contents():
            begin = ends.get(journal, 0)
            fragment = store_fragment(
                root, journal, begin, content, codec=CompressionCodec.GZIP, postfix=folder
            )
            ends[journal] = fragment.end
        return ends

    def publish(self, client: Client, clock: Clock) -> None:
        """Create the journals of files that are stored, and wait until brokers list all of them.

        Raises: LakeError: they do not in time.
        """
        names = [self.journal(part) for part in range(self.journals)]
        specs = [lake_journal(name, flush_interval_s=_FLUSH_INTERVAL_S) for name in names]
        client.apply([Change(spec) for spec in specs])
        each = self.hours * self.fragments
        deadline = clock.monotonic() + _LISTED_TIMEOUT_S
        for name in names:
            while (listed := len(client.fragments(name))) != each:
                if clock.monotonic() > deadline:
                    raise LakeError(f"{name}: brokers list {listed} fragments, expected {each}")


def _line(number: int) -> bytes:
    """A record of some 80 bytes."""
    record = {
        "id": number,
        "name": f"n{number % 977}",
        "value": number * 0.5,
        "at": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z",
    }
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def register_backlog(
    backlog: Backlog, ends: dict[str, int], ticks: Ticks, tables: Path, clock: Clock
) -> Figures:
    """Have the sensor register it, tick after tick, until Dagster knows of all Hive partitions.

    Args:
        backlog: what brokers list.
        ends: of its journals.
        ticks: over them.
        tables: folder of table specs; its own is written there.
        clock: gives the time.

    Raises: LakeError: it is not registered in time.
    """
    (tables / "backlog.yaml").write_text(_SPEC)
    begun = clock.monotonic()
    found = []
    while not _is_registered(backlog, ends, ticks):
        if clock.monotonic() - begun > _REGISTERED_TIMEOUT_S:
            raise LakeError(f"the backlog is not registered within {_REGISTERED_TIMEOUT_S:g} s")
        found.append(ticks.tick())
    return {
        "lake_backlog_10k_fragments_s": clock.monotonic() - begun,
        "lake_backlog_tick_s_max": max(tick.elapsed_s for tick in found),
        "lake_backlog_ticks": float(len(found)),
    }


def _is_registered(backlog: Backlog, ends: dict[str, int], ticks: Ticks) -> bool:
    reached = {journal: c.complete_to for journal, c in ticks.registered(_TABLE).items()}
    if reached != ends:
        return False
    name = str(table_partitions(_TABLE).name)
    # Of the Hive partitions of all journals in an hour Dagster has one.
    return len(ticks.instance.get_dynamic_partitions(name)) == backlog.hours


def count_pruned(backlog: Backlog, trino: TrinoSession, root: Path, clock: Clock) -> Figures:
    """Count all rows, then those of one hour: the slowest of some queries. Spoils all other files.

    Args:
        backlog: what is registered.
        trino: has the table.
        root: of the ``file:///`` store.
        clock: gives the time.

    Raises: LakeError: Trino gives other rows, or reads other files, than it should.
    """
    everything = f"SELECT count(*), sum(id) FROM hive.{_TABLE}"
    _expect(trino, everything, [range(backlog.records)])
    hour = backlog.hours // 2
    date, name = backlog.hour(hour)
    where = f"WHERE append_date = '{date}' AND append_hour = '{name}'"

    def count() -> float:
        begun = clock.monotonic()
        _expect(trino, f"{everything} {where}", backlog.ids(hour))
        return clock.monotonic() - begun

    slowest_s = max(count() for _ in range(_QUERIES))
    own = {path for path in _files(root) if path.match(f"*/{backlog.folder(hour)}/*")}
    read = trino.query(f'SELECT DISTINCT "$path" FROM hive.{_TABLE} {where}')
    names = {str(path).rpartition("/backlog/")[2] for (path,) in read}
    if names != {str(path).rpartition("/backlog/")[2] for path in own}:
        raise LakeError(f"rows of one hour are of {len(names)} files, which has {len(own)}")
    for path in _files(root):
        if path not in own:
            path.write_bytes(_SPOILED)
    _expect_failure(lambda: trino.query(everything))
    count()
    return {"lake_backlog_pruned_count_s": slowest_s, "lake_backlog_pruned_files": float(len(own))}


def _files(root: Path) -> Iterator[Path]:
    return (path for path in (root / "backlog").rglob("*.gz") if path.is_file())


def _expect(trino: TrinoSession, query: str, ids: Sequence[range]) -> None:
    wanted = (sum(map(len, ids)), sum(map(sum, ids)))
    found = trino.query(query)
    if found != [wanted]:
        raise LakeError(f"{query}: {found}, expected {wanted}")


def _expect_failure(query: Callable[[], object]) -> None:
    try:
        query()
    except LakeError:
        return
    raise LakeError("a query of all rows does not see that files are spoiled")
