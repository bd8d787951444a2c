"""Publishing with rows removed: what goes and what stays, and on top of what others do. On a real catalog."""

from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet
from pyiceberg.manifest import FileFormat, ManifestEntryStatus
from typed_files import delete_rows, write_rows
from typed_world import JOURNAL, Held, World, numbers, publish, row, spec

from gazette_platform.errors import LakeError, TableFenced, TypedRefused
from gazette_platform.lake.iceberg.publishing import (
    head_of,
    insisting,
    progress_of,
    publish_files,
)
from gazette_platform.lake.spec.types import parse_partition
from gazette_platform.lake.typed.iceberg_types import new_schema
from gazette_platform.lake.typed.planning.row_ranges import Overlap, RowRanges
from gazette_platform.lake.typed.planning.state import TypedState
from gazette_platform.lake.typed.tables.table import state_properties, write_state
from gazette_platform.lake.typed.tables.upserts import FileRewriter, publish_replacing
from gazette_platform.lake.typed.tables.writing import data_file_of

pytestmark = pytest.mark.long

OTHER = JOURNAL + "-and-another"


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for catalog in made.catalogs:
        catalog.close()


def ranges(*spans, journal=JOURNAL):
    """Of rows by their numbers."""
    return RowRanges({journal: [(10 * low, 10 * high) for low, high in spans]})


def replace(handle, removed, ns=(), *, start=None, run="anew", **more):
    loaded = handle.load()
    files = []
    if ns:
        written = write_rows(
            loaded.metadata, [row(n, k="new") for n in ns], more.pop("partition", ())
        )
        files = [data_file_of(written, loaded.metadata)]
    start = progress_of(loaded.metadata) if start is None else start
    return publish_replacing(
        handle, start, removed, files, run=run, properties={"told": "yes"}, **more
    )


def filled(world, *files, wanted=None):
    """A table with files of rows, by their numbers or as they are."""
    handle, _ = world.open(wanted)
    for rows in files:
        _, table = world.open(wanted)
        publish(handle, table, [], rows=[row(n) if isinstance(n, int) else n for n in rows])
    return handle


def files_of(handle):
    table = handle.load().token
    found = [task.file for task in table.scan().plan_files()]
    return {file.file_path: file.record_count for file in found}


def content(handle):
    rows = handle.load().token.scan().to_arrow().to_pylist()
    return sorted((r["_journal"] == JOURNAL, r["n"], r["k"]) for r in rows)


def test_rows_of_ranges_go_and_others_come_in_one_snapshot(world):
    handle = filled(world, range(4), range(4, 8), range(8, 12), [row(5, OTHER)])
    before = files_of(handle)
    published = replace(handle, ranges((3, 9)), [4, 5])
    assert content(handle) == [
        (False, 5, "k5"), *((True, n, f"k{n}") for n in range(3)), (True, 4, "new"), (True, 5, "new"),
        *((True, n, f"k{n}") for n in range(9, 12)),
    ]  # fmt: skip
    # Of the files one is out of the ranges, one within, and two are rewritten.
    assert len(before.keys() & files_of(handle).keys()) == 1
    assert sorted(files_of(handle).values()) == [1, 2, 3, 3]
    snapshot = published.metadata.current_snapshot()
    assert head_of(published.metadata) == progress_of(published.metadata) == snapshot.snapshot_id
    told = snapshot.summary.additional_properties
    assert (snapshot.summary.operation.value, told["told"], told["gazette.run"]) == (
        "overwrite",
        "yes",
        "anew",
    )
    assert (told["deleted-data-files"], told["deleted-records"], told["added-records"]) == (
        "3",
        "12",
        "8",
    )
    assert (told["total-data-files"], told["total-records"]) == ("4", "9")
    # Whoever does not know whether it was published asks again, with what was planned then.
    again = replace(handle, ranges((0, 99)), [1], start=1)
    assert again.snapshot_id == published.snapshot_id
    assert len(numbers(handle)) == 9


def test_files_that_stay_were_added_when_they_were(world):
    """Who reads what a snapshot has added does not find them in this one."""
    handle = filled(world, [0])
    metadata = handle.load().metadata
    files = [data_file_of(write_rows(metadata, [row(n)]), metadata) for n in (1, 5)]
    before = publish_files(handle, progress_of(metadata), files, "two", {}).snapshot_id
    after = replace(handle, ranges((5, 6))).snapshot_id
    now = handle.load()
    entries = [
        entry
        for manifest in now.metadata.snapshot_by_id(after).manifests(now.io)
        for entry in manifest.fetch_manifest_entry(now.io, discard_deleted=False)
    ]
    told = {entry.data_file.file_path: (entry.status, entry.snapshot_id) for entry in entries}
    assert [told[file.file_path] for file in files] == [
        (ManifestEntryStatus.EXISTING, before),
        (ManifestEntryStatus.DELETED, after),
    ]


def test_what_was_removed_is_not_removed_or_added_twice(world):
    handle = filled(world, range(10))
    for run in ("one", "two"):
        replace(handle, ranges((2, 5)), [2, 3], run=run)
        assert numbers(handle) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    replace(handle, ranges((0, 99)), run="three")
    assert (numbers(handle), files_of(handle)) == ([], {})
    replace(handle, ranges((0, 99)), [7], run="four")
    assert numbers(handle) == [7]


def test_nothing_to_be_removed_is_an_append(world):
    handle = filled(world, range(3))
    published = replace(handle, RowRanges({}), [7])
    assert published.metadata.current_snapshot().summary.operation.value == "append"
    assert numbers(handle) == [0, 1, 2, 7]


def test_table_that_never_held_anything_is_replaced_too(world):
    handle, _ = world.open()
    replace(handle, ranges((0, 9)), [1])
    assert numbers(handle) == [1]


def test_it_is_fenced_as_any_publication(world):
    handle = filled(world, range(3))
    _, zombie = world.open()
    _, table = world.open()
    publish(handle, table, [], rows=[row(5)])
    with pytest.raises(TableFenced):
        replace(handle, ranges((0, 9)), [1], start=zombie.start)
    assert numbers(handle) == [0, 1, 2, 5]
    held = Held(handle, lambda: publish(world.handle(), world.open()[1], [], rows=[row(6)]))
    with pytest.raises(TableFenced):
        replace(held, ranges((0, 9)), [1])
    assert numbers(handle) == [0, 1, 2, 5, 6]


def test_files_that_are_parted_otherwise_by_now_are_fenced(world):
    handle = filled(world, range(3))
    loaded = handle.load()
    files = [data_file_of(write_rows(loaded.metadata, [row(1)]), loaded.metadata)]
    world.open(spec(partitions=(parse_partition("bucket(4, k)"),)))
    with pytest.raises(TableFenced, match="partitioned by spec 1"):
        publish_replacing(
            handle, progress_of(loaded.metadata), ranges((0, 9)), files, run="x", properties={}
        )
    assert numbers(handle) == [0, 1, 2]


def by_hand(handle, change):
    """Another who changes the table, and knows nothing of us."""
    table = handle.load().token
    rows = table.scan().to_arrow().sort_by("n")
    change(table, rows)


COMPACT = lambda table, rows: table.overwrite(rows)  # noqa: E731
MORE = lambda table, rows: table.append(rows.slice(0, 1))  # noqa: E731


@pytest.mark.parametrize("changes", [[COMPACT], [COMPACT, COMPACT], [MORE], [COMPACT, MORE]])
def test_what_others_commit_meanwhile_is_looked_at_again(world, changes):
    handle = filled(world, [0, 1, 2], [3, 4, 5], [6, 7, 8])
    held = Held(handle, *(lambda change=one: by_hand(world.handle(), change) for one in changes))
    replace(held, ranges((1, 5)), [1, 4])
    more = [0] * changes.count(MORE)
    assert numbers(handle) == [*more, 0, 1, 4, 5, 6, 7, 8]


def test_files_are_rewritten_once_whoever_comes_between(world):
    handle = filled(world, [0, 1, 2], [3, 4, row(4, OTHER)], [6, 9])
    removed = ranges((1, 2), (7, 9))
    rewriter = FileRewriter(removed)
    folder = Path(urlsplit(handle.load().metadata.location).path) / "data"
    before = files_of(handle)
    for attempt in range(3):
        held = Held(handle, lambda: publish(world.handle(), world.open()[1], [], rows=[row(20)]))
        with pytest.raises(TableFenced):
            replace(held, removed, rewriter=rewriter, run=f"late {attempt}")
    replace(handle, removed, rewriter=rewriter)
    assert numbers(handle) == [0, 2, 3, 4, 4, 6, 9, 20, 20, 20]
    # Neither the one that lies beside all of the ranges, nor the one that only reading shows.
    assert len(before.keys() & files_of(handle).keys()) == 2
    assert len(list(folder.iterdir())) == 3 + 3 + 1


# ------------------------------------------------------------------ files that are rewritten


def test_file_keeps_the_schema_that_it_was_written_by(world):
    handle = filled(world, range(6), wanted=spec(("n int", "k string")))
    path = lambda: Path(urlsplit(next(iter(files_of(handle)))).path)  # noqa: E731
    before = parquet.ParquetFile(path()).schema
    world.open(spec(("n bigint", "k string", "more double", "at timestamptz")))
    replace(handle, ranges((2, 4)))
    assert parquet.ParquetFile(path()).schema.equals(before)
    assert numbers(handle) == [0, 1, 4, 5]
    assert handle.load().token.scan(row_filter="n = 4").to_arrow()["more"].to_pylist() == [None]
    (task,) = handle.load().token.scan().plan_files()
    column = handle.load().metadata.schema().find_field("_journal").field_id
    assert bytes(task.file.lower_bounds[column]).decode() == JOURNAL


def test_values_of_all_types_are_copied_as_they_are(world):
    wanted = spec((
        "n bigint", "k string", "price decimal(10,2)", "big decimal(30,2)", "at timestamptz", "local timestamp", "day date",
        "id uuid", "raw binary", "tags array<string>", "extra map<string,bigint>", "place struct<zip:string,lines:array<int>>",
    ))  # fmt: skip
    values = {
        "tags": ["a", None],
        "extra": [("a", 1)],
        "place": {"zip": "1", "lines": [1, 2]},
        "raw": b"\xff",
    }
    handle = filled(world, [row(1, **values), row(2, **values), row(3)], wanted=wanted)
    path = lambda: Path(urlsplit(next(iter(files_of(handle)))).path)  # noqa: E731
    schema, before = parquet.ParquetFile(path()).schema, parquet.read_table(path())
    replace(handle, ranges((2, 3)))
    assert parquet.ParquetFile(path()).schema.equals(schema)
    assert parquet.read_table(path()) == before.filter(pc.not_equal(before["n"], 2))


def test_file_keeps_its_partition_though_new_ones_are_parted_otherwise(world):
    wanted = spec(partitions=(parse_partition("k"),))
    handle, table = world.open(wanted)
    parts = {"a": [1, 2, 3], "b": [4, 5]}
    files = [
        data_file_of(write_rows(table.metadata, [row(n, k=k) for n in ns], [k]), table.metadata)
        for k, ns in parts.items()
    ]
    path = write_state(table.location, TypedState(), table.io)
    publish_files(handle, None, files, "one", state_properties(TypedState(), path=path, run="one"))
    world.open(spec(partitions=(parse_partition("truncate(4, n)"),)))
    replace(handle, ranges((2, 5)), [4], partition=[4])
    assert content(handle) == [(True, 1, "a"), (True, 4, "new"), (True, 5, "b")]
    tasks = list(handle.load().token.scan(row_filter="k = 'b'").plan_files())
    assert sorted((t.file.spec_id, t.file.record_count) for t in tasks) == [(0, 1)]
    found = {(t.file.spec_id, t.file.partition[0]) for t in handle.load().token.scan().plan_files()}
    assert found == {(0, "a"), (0, "b"), (1, 4)}


def test_large_files_are_read_and_written_in_pieces(world, monkeypatch):
    monkeypatch.setattr("gazette_platform.lake.typed.tables.stored_rows._BATCH_ROWS_MAX", 7)
    monkeypatch.setattr("gazette_platform.lake.typed.tables.upserts._GROUP_BYTES", 2000)
    handle = filled(world, range(100))
    replace(handle, ranges((10, 30), (95, 200)))
    assert numbers(handle) == [*range(10), *range(30, 95)]
    (path,) = files_of(handle)
    assert parquet.ParquetFile(Path(urlsplit(path).path)).num_row_groups > 3


def test_rows_that_engines_deleted_stay_deleted(world):
    handle = filled(world, range(6), range(10, 14), range(20, 24))
    tasks = sorted(handle.load().token.scan().plan_files(), key=lambda t: t.file.record_count)
    (long,) = [t.file for t in tasks if t.file.record_count == 6]
    shorts = [t.file for t in tasks if t.file.record_count == 4]
    delete_rows(handle.load().token, long, [0, 3])
    delete_rows(handle.load().token, long, [5])
    for short in shorts:
        delete_rows(handle.load().token, short, [1, 2])
    assert numbers(handle) == [1, 2, 4, 10, 13, 20, 23]
    replace(handle, ranges((2, 4), (10, 13)), [3])
    assert numbers(handle) == [1, 3, 4, 13, 20, 23]
    # One that lies beside the ranges is left as it is, with its deletes.
    (kept,) = files_of(handle).keys() & {one.file_path for one in shorts}
    assert files_of(handle)[kept] == 4
    # A file whose rest was deleted is not written at all.
    replace(handle, ranges((23, 24)), run="rest")
    replace(handle, ranges((20, 21)), run="all")
    assert numbers(handle) == [1, 3, 4, 13]


def test_deletes_by_values_are_refused_where_a_file_is_rewritten(world):
    handle = filled(world, range(4), range(10, 14))
    file = next(t.file for t in handle.load().token.scan().plan_files())
    delete_rows(handle.load().token, file, equal=[1])
    before = handle.load().metadata.current_snapshot_id
    said = []
    with pytest.raises(TypedRefused, match=r"deleted by their values.*delete-file-threshold"):
        insisting(lambda: replace(handle, ranges((1, 2))), said.append)
    assert said == []  # to ask again would change nothing
    assert handle.load().metadata.current_snapshot_id == before
    # Files that go as a whole need no look at them, and later ones are none of theirs.
    replace(handle, ranges((0, 20)), [7, 8, 9])
    replace(handle, ranges((8, 9)), run="later")
    assert len(set(_data_files(handle))) == 1


def _data_files(handle):
    loaded = handle.load()
    for manifest in loaded.metadata.current_snapshot().manifests(loaded.io):
        if manifest.content == 0:
            yield from (
                entry.data_file.file_path for entry in manifest.fetch_manifest_entry(loaded.io)
            )


def test_files_that_cannot_be_rewritten_are_reported(world):
    handle = filled(world, range(4))
    (path,) = files_of(handle)
    loaded = handle.load()
    (task,) = loaded.token.scan().plan_files()
    rewriter = FileRewriter(ranges((1, 2)))
    Path(urlsplit(path).path).write_bytes(b"PAR1")
    with pytest.raises(LakeError, match=f"{path} cannot be read, or rewritten"):
        rewriter.without(loaded, task.file, [])
    task.file[2] = FileFormat.ORC
    with pytest.raises(LakeError, match="is ORC, and only Parquet"):
        rewriter.without(loaded, task.file, [])


def test_foreign_file_without_ids_is_reported(world):
    handle = filled(world, range(4))
    (path,) = files_of(handle)
    where = Path(urlsplit(path).path)
    plain = parquet.read_table(where).replace_schema_metadata(None)
    fields = [field.remove_metadata() for field in plain.schema]
    parquet.write_table(plain.cast(pa.schema(fields)), where)
    with pytest.raises(LakeError, match="no column with the id of _journal"):
        replace(handle, ranges((1, 2)))


# ------------------------------------------------------------------ what bounds say


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4)),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 25)), max_size=20),
)  # fmt: skip
def test_rows_lie_in_ranges_of_their_journal(spans, rows):
    found = RowRanges(spans)
    mask = found.mask(
        pa.array([j for j, _ in rows], pa.string()), pa.array([b for _, b in rows], pa.int64())
    )
    wanted = [
        any(low <= begin < high for low, high in spans.get(journal, ())) for journal, begin in rows
    ]
    assert mask.to_pylist() == wanted
    assert bool(found) == any(low < high for of_it in spans.values() for low, high in of_it)


class File:
    """What manifests say of a file."""

    def __init__(self, journals, begins, is_told=True):
        self.lower_bounds = self.upper_bounds = None
        if is_told and journals:
            low, high = (
                {4: bound(journals).encode(), 5: bound(begins).to_bytes(8, "little")}
                for bound in (min, max)
            )
            self.lower_bounds, self.upper_bounds = low, high


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4)),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 25)), min_size=1, max_size=6),
    st.booleans(),
)  # fmt: skip
def test_bounds_never_claim_too_much(spans, rows, is_told):
    schema = new_schema(spec(("n bigint", "k string", "m string")))
    found = RowRanges(spans)
    file = File([j for j, _ in rows], [b for _, b in rows], is_told)
    inside = Counter(
        any(low <= begin < high for low, high in spans.get(journal, ())) for journal, begin in rows
    )
    overlap = found.overlap(file, schema)
    if overlap is Overlap.NONE:
        assert not inside[True]
    if overlap is Overlap.ALL:
        assert not inside[False]
    of_one = len({journal for journal, _ in rows}) == 1
    if is_told and of_one and len(rows) == 1:
        assert overlap is (Overlap.ALL if inside[True] else Overlap.NONE)


@pytest.mark.parametrize(
    ("journals", "begins", "overlap"),
    [
        ("b", (10, 19), Overlap.ALL),
        ("b", (12, 12), Overlap.ALL),
        ("b", (10, 20), Overlap.SOME),
        ("b", (9, 19), Overlap.SOME),
        ("b", (5, 10), Overlap.SOME),
        ("b", (19, 25), Overlap.SOME),
        ("b", (5, 9), Overlap.NONE),
        ("b", (20, 29), Overlap.NONE),
        ("b", (10, 31), Overlap.SOME),
        ("b", (30, 30), Overlap.ALL),
        ("a", (10, 19), Overlap.NONE),
        ("c", (10, 19), Overlap.NONE),
        ("ab", (10, 19), Overlap.SOME),
        ("bc", (10, 19), Overlap.SOME),
        ("ac", (10, 19), Overlap.SOME),
    ],
)
def test_bounds_are_exact_to_the_offset(journals, begins, overlap):
    """At the seams, which draws seldom hit."""
    schema = new_schema(spec(("n bigint", "k string", "m string")))
    found = RowRanges({"b": [(10, 20), (30, 31)]})
    assert found.overlap(File(journals, begins), schema) is overlap
