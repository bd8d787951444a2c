"""Which message of a key is the last, said once more in Python, and an engine that merges by it, without a JVM."""

import uuid
from contextlib import suppress
from itertools import groupby

from msgspec import structs
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID
from typed_files import write_rows
from typed_world import JOURNAL, row, spec

from gazette_platform.errors import LakeError
from gazette_platform.lake.typed.catalog.publishing import WAP_ID, head_of
from gazette_platform.lake.typed.files.written import data_file_of
from gazette_platform.lake.typed.planning.state import Counts, JournalState
from gazette_platform.lake.typed.tables.table import state_properties, write_state
from gazette_platform.lake.typed.tables.upserts import publish_upserts
from gazette_platform.message.uuid import Flags, build_uuid, parse_uuid

__all__ = ["PythonMerger", "is_later", "keyed", "last_of", "merged", "said", "upsert"]


def keyed(columns=("n bigint", "k string"), key=("n",), **more):
    return structs.replace(spec(columns, **more), key=key)


def said(n, k, begin, journal=JOURNAL, clock=None):
    """A message of key `n`."""
    told = build_uuid(b"\1abcde", clock or begin, Flags.OUTSIDE_TXN).bytes
    return row(n, journal, _begin=begin, _end=begin + 10, k=k, _uuid=told)


def upsert(
    door,
    table,
    rows,
    *,
    run="",
    merger=None,
    partition_of=None,
    catalog="iceberg",
    log=lambda _: None,
):
    """A run from `table`, and the state behind it.

    Args:
        partition_of: tells the values of a row; each has a file of its own.
    """
    parts = {}
    for one in rows:
        parts.setdefault(tuple(partition_of(one)) if partition_of else (), []).append(one)
    written = [write_rows(table.metadata, of_part, values) for values, of_part in parts.items()]
    files = [data_file_of(one, table.metadata) for one in written]
    offset = max([row["_end"] for row in rows], default=1)
    before = table.state.journals.get(JOURNAL, JournalState())
    counts = Counts(messages=len(rows), committed=len(rows), typed=len(rows))
    after = JournalState(offset=offset, counts=before.counts + counts)
    state = table.state.with_journals({JOURNAL: after})
    run = run or uuid.uuid4().hex
    told = state_properties(state, path=write_state(table.location, state, table.io), run=run)
    merger = merger or PythonMerger(door)
    return publish_upserts(
        door, table.start, files, run, told, catalog=catalog, merger=merger, log=log
    )


def clock(row):
    return parse_uuid(row["_uuid"]).clock if row["_uuid"] is not None else 0


def is_later(one, other):
    """Whether the message of a row is later than that of another row of the same key."""
    if one["_journal"] == other["_journal"]:
        return one["_begin"] > other["_begin"]
    return (clock(one), one["_journal"]) > (clock(other), other["_journal"])


def last_of(rows):
    """Of rows of one key in a run: of each journal the last, and of these the last."""
    by_journal = {}
    for one in rows:
        known = by_journal.get(one["_journal"])
        if known is None or is_later(one, known):
            by_journal[one["_journal"]] = one
    found, *others = by_journal.values()
    for one in others:
        found = one if is_later(one, found) else found
    return found


def merged(rows, new, key):
    """Rows of a table, with those of a run in it, sorted by key."""

    def key_of(row):
        return tuple(row[name] for name in key)

    kept = {key_of(row): row for row in rows}
    assert len(kept) == len(rows)
    for value, of_key in groupby(sorted(new, key=key_of), key_of):
        last = last_of(list(of_key))
        if value not in kept or is_later(last, kept[value]):
            kept[value] = last
    return [kept[value] for value in sorted(kept)]


class PythonMerger:
    """Writes the whole table anew, and refuses if somebody else has. Before it stages, and behind, it does what it is told to.

    Args:
        door: of the table.
        before, behind: what comes between, each time once.
    """

    def __init__(self, door, *, before=(), behind=()):
        self._door = door
        self._before, self._behind = list(before), list(behind)
        self.merges = []

    def merge(self, merge):
        self.merges.append(merge)
        now = self._door.load()
        rows = self._rows(now, head_of(now.metadata))
        new = self._rows(now, merge.upserts)
        assert len(new) == merge.rows
        if self._before:
            self._before.pop(0)()
        self._stage(now, merged(rows, new, merge.key), merge)
        if self._behind:
            self._behind.pop(0)()

    def _rows(self, now, snapshot_id):
        if snapshot_id is None:
            return []
        return now.table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()

    def _stage(self, seen, rows, merge):
        rows = [{**row, "_uuid": row["_uuid"] and row["_uuid"].bytes} for row in rows]
        said = {**merge.properties, WAP_ID: merge.attempt}
        for _ in range(20):
            now = self._door.load()
            if head_of(now.metadata) != head_of(seen.metadata):
                raise LakeError("conflicting files")
            transaction = now.table.transaction()
            with transaction.update_snapshot(said, branch=None).overwrite() as overwrite:
                for task in now.table.scan().plan_files():
                    overwrite.delete_data_file(task.file)
                file = data_file_of(write_rows(now.metadata, rows), now.metadata)
                overwrite.append_data_file(file)
            staged = transaction.table_metadata.snapshots[-1]
            required = (AssertTableUUID(uuid=now.metadata.table_uuid),)
            with suppress(CommitFailedException):
                self._door.commit(now, required, (AddSnapshotUpdate(snapshot=staged),))
                return
        raise LakeError("changed all the time")
