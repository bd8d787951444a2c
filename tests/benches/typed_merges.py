"""Which message of a key is the last, said once more in Python, and an engine that merges by it, without a JVM."""

import uuid
from contextlib import suppress

from msgspec import structs
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID
from typed_files import write_rows
from typed_world import JOURNAL, row, spec

from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.publishing import WAP_ID, head_of
from gazette_platform.lake.typed.planning.state import Counts, JournalState
from gazette_platform.lake.typed.tables.table import state_properties, write_state
from gazette_platform.lake.typed.tables.upserts import publish_upserts
from gazette_platform.lake.typed.tables.writing import data_file_of
from gazette_platform.message.uuid import Flags, build_uuid, parse_uuid

__all__ = ["PythonMerger", "is_later", "keyed", "last_of", "merged", "said", "upsert"]


def keyed(columns=("n bigint", "k string"), key=("n",), **more):
    return structs.replace(spec(columns, **more), key=key)


def said(n, k, begin, journal=JOURNAL, clock=None):
    """A message of key `n`."""
    told = build_uuid(b"\1abcde", clock or begin, Flags.OUTSIDE_TXN).bytes
    return row(n, journal, _begin=begin, _end=begin + 10, k=k, _uuid=told)


def upsert(
    handle,
    table,
    rows,
    *,
    run="",
    merger=None,
    partition_of=None,
    catalog="iceberg",
    log=lambda _: None,
    changes=None,
):
    """A run from `table`, and the state after it.

    Args:
        partition_of: returns the values of a row; each has a file of its own.
        changes: says which rows delete; they have files of their own.
    """
    parts = {}
    for one in rows:
        values = tuple(partition_of(one)) if partition_of else ()
        parts.setdefault((values, deletes(one, changes)), []).append(one)
    files, deletions = [], []
    for (values, is_deletion), of_part in parts.items():
        file = data_file_of(write_rows(table.metadata, of_part, values), table.metadata)
        files.append(file)
        deletions += [file] * is_deletion
    offset = max([row["_end"] for row in rows], default=1)
    before = table.state.journals.get(JOURNAL, JournalState())
    counts = Counts(messages=len(rows), committed=len(rows), typed=len(rows))
    after = JournalState(offset=offset, counts=before.counts + counts)
    state = table.state.with_journals({JOURNAL: after})
    run = run or uuid.uuid4().hex
    told = state_properties(state, path=write_state(table.location, state, table.io), run=run)
    merger = merger or PythonMerger(handle)
    return publish_upserts(
        handle, table.start, files, run, told, catalog=catalog, merger=merger, log=log,
        changes=changes, deletes=deletions,
    )  # fmt: skip


def truncates(row, changes):
    return changes is not None and changes.is_envelope and row[changes.deleted] == "t"


def deletes(row, changes):
    """Whether a message deletes its key's row, or all of them."""
    if changes is None:
        return False
    value = row[changes.deleted]
    return value in {"d", "t"} if changes.is_envelope else str(value).lower() == "true"


def clock(row):
    return parse_uuid(row["_uuid"]).clock if row["_uuid"] is not None else 0


def is_later(one, other, changes=None):
    """Whether the message of a row is later than that of another row of the same key."""
    at = changes.position if changes is not None else ""
    if at and one[at] != other[at]:
        return one[at] > other[at]
    if one["_journal"] == other["_journal"]:
        return one["_begin"] > other["_begin"]
    return (clock(one), one["_journal"]) > (clock(other), other["_journal"])


def last_of(rows, changes=None):
    """Of rows of one key in a run: of each journal the last, and of these the last."""
    by_journal = {}
    for one in rows:
        known = by_journal.get(one["_journal"])
        if known is None or is_later(one, known, changes):
            by_journal[one["_journal"]] = one
    found, *others = by_journal.values()
    for one in others:
        found = one if is_later(one, found, changes) else found
    return found


def merged(rows, new, key, changes=None, kept_deletes=()):
    """Rows of a table, with those of a run in it, sorted by key.

    Args:
        kept_deletes: deletions of earlier runs.
    """

    def key_of(row):
        return tuple(row[name] for name in key)

    kept = {key_of(row): row for row in rows}
    assert len(kept) == len(rows)
    told = {key_of(row): [] for row in new if not truncates(row, changes)}
    if any(truncates(row, changes) for row in new):
        told |= {value: told.get(value, []) for value in kept}
    for one in (*new, *kept_deletes):
        if truncates(one, changes):
            for value, of_key in told.items():
                of_key.append(one | dict(zip(key, value, strict=True)) | {changes.deleted: "d"})
        elif key_of(one) in told:
            told[key_of(one)].append(one)
    for value, of_key in told.items():
        last = last_of(of_key, changes)
        if value in kept and not is_later(last, kept[value], changes):
            continue
        kept.pop(value, None)
        if not deletes(last, changes):
            kept[value] = last
    return [kept[value] for value in sorted(kept)]


class PythonMerger:
    """Writes the whole table again, and refuses if another one has. Before it stages, and after, it calls what the test passed.

    Args:
        handle: of the table.
        before, behind: what comes between, each time once.
    """

    def __init__(self, handle, *, before=(), behind=()):
        self._handle = handle
        self._before, self._behind = list(before), list(behind)
        self.merges = []

    def merge(self, merge):
        self.merges.append(merge)
        now = self._handle.load()
        rows = self._rows(now, head_of(now.metadata))
        new = self._rows(now, merge.upserts)
        assert len(new) == merge.rows
        if self._before:
            self._before.pop(0)()
        deletes = self._rows(now, merge.deletes)
        self._stage(now, merged(rows, new, merge.key, merge.changes, deletes), merge)
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
            now = self._handle.load()
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
                self._handle.commit(now, required, (AddSnapshotUpdate(snapshot=staged),))
                return
        raise LakeError("changed all the time")
