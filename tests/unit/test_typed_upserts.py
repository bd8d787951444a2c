"""Upserts, merged by an engine in Python, published to a real catalog: PyIceberg's of SQL, on SQLite."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from msgspec import structs
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetPropertiesUpdate
from typed_merges import PythonMerger, is_later, keyed, last_of, said, upsert
from typed_world import JOURNAL, Held, World

from gazette_platform.errors import LakeError, SchemaMismatch, TableFenced, TypedRolledBack
from gazette_platform.lake.iceberg.publishing import RUN, head_of, progress_of, publish_staged
from gazette_platform.lake.spec.typed.columns import ChangeOrder
from gazette_platform.lake.typed.planning.state import JournalState
from gazette_platform.lake.typed.status import check_counts
from gazette_platform.lake.typed.tables import upserts
from gazette_platform.lake.typed.tables.table import open_table
from gazette_platform.lake.typed.tables.upserts import DELETES, deletes_of

pytestmark = pytest.mark.long

OTHER = "raw/flights/part=001"


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.spec = keyed()
    yield made
    for catalog in made.catalogs:
        catalog.close()


def values(handle):
    return {(r["n"], r["k"]) for r in handle.load().token.scan().to_arrow().to_pylist()}


def by_hand(handle, n=9):
    handle.load().token.append(handle.load().token.scan().to_arrow().slice(0, 0))


def data_files(table):
    return set(Path(urlsplit(table.location).path, "data").iterdir())


# ------------------------------------------------------------------ which is the last


def test_last_of_a_journal_is_the_one_behind_and_of_two_the_one_with_the_larger_clock():
    early, late = said(1, "a", 10, clock=500), said(1, "b", 20, clock=100)
    other = said(1, "c", 0, OTHER, clock=300)
    assert is_later(late, early)
    assert not is_later(early, early)
    # No order of all: each is later than the next.
    assert is_later(other, late)
    assert is_later(early, other)
    # So those of a journal are compared first, and then it is the same in whatever order they come.
    assert last_of([early, late, other]) == last_of([other, early, late]) == other


def test_larger_name_of_the_journal_wins_where_clocks_are_equal_or_none():
    one, other = (said(1, "a", at, journal, clock=7) for at, journal in ((5, "a"), (1, "b")))
    assert is_later(other, one)
    assert not is_later(one, other)
    one, other = ({**each, "_uuid": None} for each in (one, other))
    assert is_later(other, one)
    assert is_later(said(1, "x", 0, "A", clock=1), other)


# ------------------------------------------------------------------ published


def test_last_message_of_each_key_is_its_row(world):
    handle, table = world.open(world.spec)
    assert table.key == ("n",)
    assert table.metadata.properties["write.merge.mode"] == "merge-on-read"
    first = upsert(handle, table, [said(1, "b", 20), said(1, "a", 10), said(2, "c", 30)], run="one")
    assert values(handle) == {(1, "b"), (2, "c")}
    _, table = world.open(world.spec)
    assert (table.start, table.run) == (first.snapshot_id, "one")
    second = upsert(handle, table, [said(2, "d", 50), said(1, "old", 15), said(3, "e", 60)])
    assert values(handle) == {(1, "b"), (2, "d"), (3, "e")}
    _, table = world.open(world.spec)
    assert table.state.journals[JOURNAL].offset == 70
    assert table.state.counts.typed == 6
    assert progress_of(second.metadata) == head_of(second.metadata) == second.snapshot_id


def test_what_the_run_wrote_is_gone_once_it_is_merged(world):
    handle, table = world.open(world.spec)
    upsert(handle, table, [said(1, "a", 10), said(2, "b", 20)])
    assert len(data_files(table)) == 1
    # A first one of nothing, and what is seen.
    assert len(handle.load().metadata.snapshots) == 2


def test_second_caller_learns_what_became_of_the_first_call(world):
    handle, table = world.open(world.spec)
    first = upsert(handle, table, [said(1, "a", 10)], run="one")
    _, later = world.open(world.spec)
    upsert(handle, later, [said(1, "b", 20)], run="two")
    merger = PythonMerger(handle)
    again = upsert(handle, table, [said(1, "a", 10)], run="one", merger=merger)
    assert again.snapshot_id == first.snapshot_id
    assert merger.merges == []
    assert values(handle) == {(1, "b")}


def test_run_without_rows_or_without_newer_ones_publishes_what_it_read(world):
    handle, table = world.open(world.spec)
    upsert(handle, table, [said(1, "b", 20)])
    _, table = world.open(world.spec)
    upsert(handle, table, [], run="nothing")
    _, table = world.open(world.spec)
    assert table.run == "nothing"
    upsert(handle, table, [said(1, "a", 10)], run="older")
    _, table = world.open(world.spec)
    _, table = world.open(world.spec)
    assert (table.run, table.state.counts.typed) == ("older", 2)
    assert values(handle) == {(1, "b")}


# ------------------------------------------------------------------ who comes late


def test_of_runs_from_one_start_one_is_published(world):
    runs = [world.open(world.spec) for _ in range(3)]

    def run(number):
        handle, table = runs[number]
        try:
            return upsert(handle, table, [said(1, str(number), 10 + number)], run=str(number))
        except TableFenced:
            return None

    with ThreadPoolExecutor(len(runs)) as pool:
        outcomes = list(pool.map(run, range(len(runs))))
    (winner,) = [number for number, one in enumerate(outcomes) if one is not None]
    assert values(world.handle()) == {(1, str(winner))}


def test_zombie_whose_merge_is_staged_late_is_fenced(world):
    handle, table = world.open(world.spec)
    other = lambda: upsert(world.handle(), table, [said(1, "new", 20)])  # noqa: E731
    merger = PythonMerger(handle, behind=[other])
    with pytest.raises(TableFenced):
        upsert(handle, table, [said(1, "old", 10)], run="zombie", merger=merger)
    assert values(handle) == {(1, "new")}
    # What it has staged is never published, nor is it taken for what the zombie has published.
    staged = [s for s in handle.load().metadata.snapshots if s.summary[RUN] == "zombie"]
    with pytest.raises(TableFenced):
        publish_staged(handle, None, staged[0].snapshot_id, "zombie")


def test_behind_maintenance_it_is_merged_again(world):
    handle, table = world.open(world.spec)
    upsert(handle, table, [said(1, "a", 10)])
    _, table = world.open(world.spec)
    # An engine refuses what comes between its looking and its staging; after that, we do.
    between = lambda: by_hand(world.handle())  # noqa: E731
    merger = PythonMerger(handle, before=[between], behind=[between])
    told = []
    upsert(handle, table, [said(1, "b", 20)], run="one", merger=merger, log=told.append)
    assert len(merger.merges) == len({merge.attempt for merge in merger.merges}) == 3
    assert len({merge.upserts for merge in merger.merges}) == 1
    assert [line for line in told if "merged again" in line] == told[:2] == told
    assert values(handle) == {(1, "b")}
    _, table = world.open(world.spec)
    assert (table.run, table.state.journals[JOURNAL].offset) == ("one", 30)


def test_table_that_others_change_all_the_time_is_reported(world):
    handle, table = world.open(world.spec)
    upsert(handle, table, [said(1, "a", 10)])
    _, table = world.open(world.spec)
    merger = PythonMerger(handle, behind=[lambda: by_hand(world.handle())] * 10)
    with pytest.raises(LakeError, match=r"changed by others 10 times while run .* was merged"):
        upsert(handle, table, [said(1, "b", 20)], merger=merger)
    assert values(handle) == {(1, "a")}


def remove_snapshots(handle, ids):
    handle.commit(
        handle.load(), (), (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(ids)}),)
    )


def test_snapshot_that_expires_before_publication_is_merged_again_or_reported(world):
    handle, table = world.open(world.spec)

    def expire(kinds):
        """The snapshot with the new rows has no name of a run; the staged one has. What is seen stays."""
        metadata = handle.load().metadata
        found = [
            s.snapshot_id
            for s in metadata.snapshots
            if bool(s.summary.additional_properties.get(RUN)) in kinds
        ]
        remove_snapshots(handle, {*found} - {head_of(metadata)})

    for kinds in ({True}, {True, False}):
        merger = PythonMerger(handle, behind=[lambda kinds=kinds: expire(kinds)])
        with pytest.raises(LakeError, match=r"expired, so nothing was changed: let its snapshots"):
            upsert(handle, table, [said(1, "a", 10)], merger=merger)
    assert (values(handle), progress_of(handle.load().metadata)) == (set(), None)
    # The next run goes on, also if that happens once it was looked for.
    merger = PythonMerger(handle)
    upsert(
        Held(handle, lambda: None, lambda: expire({True})), table, [said(1, "a", 10)], merger=merger
    )
    assert (values(handle), len(merger.merges)) == ({(1, "a")}, 2)


def test_engine_that_fails_changes_nothing_and_one_whose_answer_is_lost_has_merged(world):
    handle, table = world.open(world.spec)

    def fail():
        raise LakeError("out of memory")

    with pytest.raises(LakeError, match="out of memory"):
        upsert(handle, table, [said(1, "a", 10)], merger=PythonMerger(handle, before=[fail]))
    assert (values(handle), progress_of(handle.load().metadata)) == (set(), None)
    merger = PythonMerger(handle, behind=[fail])
    upsert(handle, table, [said(1, "a", 10)], merger=merger)
    assert values(handle) == {(1, "a")}
    assert len(merger.merges) == 1


def test_lost_answer_of_the_catalog_is_found_out_by_asking_again(world):
    handle, table = world.open(world.spec)

    class Cut(Held):
        """The last change is carried out, and its answer is lost."""

        changes = 0

        def commit(self, *arguments):
            super().commit(*arguments)
            self.changes += 1
            if self.changes == 3:
                raise LakeError("broke off")

    cut = Cut(handle)
    upsert(cut, table, [said(1, "a", 10)], run="one", merger=PythonMerger(handle))
    assert (cut.changes, values(handle)) == (3, {(1, "a")})
    assert world.open(world.spec)[1].run == "one"


def test_held_up_before_it_publishes_it_is_fenced(world):
    handle, table = world.open(world.spec)
    other = lambda: upsert(world.handle(), table, [said(1, "new", 20)])  # noqa: E731
    held = Held(handle, lambda: None, lambda: None, other)
    with pytest.raises(TableFenced):
        upsert(held, table, [said(1, "old", 10)], merger=PythonMerger(handle))
    assert values(handle) == {(1, "new")}


class Killed(BaseException):
    """The end of a process."""


class Dying:
    """A handle whose user is killed at one of its calls, or after it."""

    def __init__(self, handle, at, *, is_behind):
        self._handle = handle
        self._at, self._is_behind = at, is_behind
        self.calls = 0
        self.name = handle.name

    def load(self):
        return self._call(self._handle.load)

    def commit(self, *arguments):
        self._call(lambda: self._handle.commit(*arguments))

    def _call(self, call):
        self.calls += 1
        if self.calls == self._at and not self._is_behind:
            raise Killed
        result = call()
        if self.calls == self._at:
            raise Killed
        return result


@pytest.mark.timeout(600)  # half a minute on an idle machine
def test_run_that_is_killed_at_any_call_loses_and_doubles_nothing(world):
    """What a run that follows makes of it, whether or not the one that was killed had published."""
    handle, table = world.open(world.spec)
    expected, published = {}, 0
    for at in range(1, 100):
        for is_behind in (False, True):
            _, table = world.open(world.spec)
            offset = table.state.journals.get(JOURNAL, JournalState()).offset
            dying = Dying(handle, at, is_behind=is_behind)
            one = said(offset % 3, f"{at} {is_behind}", offset)
            try:
                upsert(dying, table, [one], merger=PythonMerger(dying))
            except Killed:
                pass
            else:
                assert at > 10
                assert published > 1
                return
            _, table = world.open(world.spec)
            read_on = table.state.journals.get(JOURNAL, JournalState()).offset
            assert read_on in (offset, offset + 10)
            published += read_on > offset
            if read_on == offset:
                upsert(handle, table, [one])
            expected[one["n"]] = one["k"]
            assert values(handle) == set(expected.items())
    pytest.fail("never came to its end")


def test_staging_of_another_run_meanwhile_hinders_no_one(world):
    """Numbers of snapshots are counted by all that are staged, too, which is no matter of main or the tag."""
    handle, table = world.open(world.spec)
    upsert(handle, table, [said(1, "a", 10)])
    _, table = world.open(world.spec)

    def fail():
        raise LakeError("out of memory")

    def other():
        with pytest.raises(LakeError, match="out of memory"):
            upsert(
                world.handle(),
                table,
                [said(2, "b", 20)],
                merger=PythonMerger(world.handle(), before=[fail]),
            )

    upsert(Held(handle, other), table, [], run="mine")
    assert world.open(world.spec)[1].run == "mine"
    assert values(handle) == {(1, "a")}


# ------------------------------------------------------------------ what a person did


def test_table_that_would_show_a_merge_at_once_is_reported(world):
    handle, table = world.open(world.spec)
    handle.commit(handle.load(), (), (SetPropertiesUpdate(updates={"write.wap.enabled": "false"}),))
    with pytest.raises(LakeError, match=r"no property `write\.wap\.enabled=true`"):
        upsert(handle, table, [said(1, "a", 10)])


def test_table_that_was_rolled_back_takes_no_more(world):
    handle, table = world.open(world.spec)
    first = upsert(handle, table, [said(1, "a", 10)]).snapshot_id
    upsert(handle, open_table(handle, world.spec, ""), [said(1, "b", 20)])
    _, table = world.open(world.spec)
    handle.load().token.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(TypedRolledBack):
        upsert(handle, table, [said(1, "c", 30)])
    assert values(handle) == {(1, "a")}


def test_new_column_is_null_in_existing_rows_and_keys_may_widen(world):
    narrow = keyed(("n int", "k string"))
    handle, table = world.open(narrow)
    upsert(handle, table, [said(1, "a", 10), said(2, "b", 20)])
    _, table = world.open(keyed(("n bigint", "k string", "more double")))
    upsert(handle, table, [{**said(2, "c", 30), "more": 0.5}, said(2**40, "d", 40)])
    found = handle.load().token.scan().to_arrow().sort_by("n").to_pylist()
    assert [(r["n"], r["k"], r["more"]) for r in found] == [
        (1, "a", None), (2, "c", 0.5), (2**40, "d", None),
    ]  # fmt: skip


# ------------------------------------------------------------------ whether it is complete


def test_key_that_is_duplicated_is_reported(world):
    spec = keyed(("n bigint", "k string", "id uuid"), ("n", "id"))
    handle, table = world.open(spec)
    one, other = ({**said(n, "a", 10 * n), "id": bytes([n] * 16)} for n in (1, 2))
    upsert(handle, table, [one, other])
    assert check_counts(handle, None, is_upserted=True).is_complete
    token = handle.load().token
    token.append(token.scan(row_filter="n = 2").to_arrow())
    found = check_counts(handle, None, is_upserted=True)
    assert (found.rows, found.doubled) == (3, 1)
    _, finding = found.findings
    told = f"has 1 row of keys that have another one, such as {{'n': 2, 'id': '{UUID(bytes=other['id'])}'}}"
    assert told in finding.text
    assert "SELECT n, id FROM typed.flights GROUP BY n, id HAVING count(*) > 1" in finding.text


def test_too_many_keys_are_not_looked_at_and_a_query_is_reported(world, monkeypatch):
    handle, table = world.open(world.spec)
    upsert(handle, table, [said(1, "a", 10), said(2, "b", 20)])
    monkeypatch.setattr("gazette_platform.lake.typed.status._KEYS_MAX", 1)
    _, told = check_counts(handle, None, is_upserted=True).notes
    assert "above 1 rows: see `SELECT n FROM typed.flights GROUP BY n" in told


# ------------------------------------------------------------------ deletions


CHANGES = ChangeOrder(deleted="gone")


def gone(n, begin, **more):
    return said(n, None, begin, **more) | {"gone": True}


def alive(n, k, begin, **more):
    return said(n, k, begin, **more) | {"gone": False}


@pytest.fixture
def changed(world):
    world.spec = structs.replace(keyed(("n bigint", "k string", "gone boolean")), deleted="gone")
    assert world.spec.changes == CHANGES
    return world


def merge_changes(world, *rows, **more):
    handle, table = world.open(world.spec)
    return upsert(handle, table, list(rows), changes=CHANGES, **more), handle


def test_deletions_delete_and_are_kept_for_messages_that_come_late(changed):
    _, handle = merge_changes(changed, alive(1, "a", 10), alive(2, "b", 20))
    assert DELETES not in handle.load().metadata.refs
    merge_changes(changed, gone(1, 30), gone(3, 40))
    assert values(handle) == {(2, "b")}
    # Of another journal, whose clocks are those from before.
    late = [alive(n, "late", 5, journal=OTHER, clock=25) for n in (1, 3)]
    merge_changes(changed, *late)
    assert values(handle) == {(2, "b")}
    merge_changes(changed, alive(1, "again", 7, journal=OTHER, clock=90))
    assert values(handle) == {(1, "again"), (2, "b")}
    metadata = handle.load().metadata
    kept = handle.load().token.scan(snapshot_id=deletes_of(metadata)).to_arrow()
    assert sorted(kept["n"].to_pylist()) == [1, 3]
    assert progress_of(metadata) == head_of(metadata)


def test_deletions_of_all_runs_are_kept_when_snapshots_expire(changed):
    for n in range(5):
        _, handle = merge_changes(changed, alive(n, "a", 10 * n + 10), gone(n + 100, 10 * n + 15))
    loaded = handle.load()
    named = {ref.snapshot_id for ref in loaded.metadata.refs.values()}
    old = [one.snapshot_id for one in loaded.metadata.snapshots if one.snapshot_id not in named]
    gone_now = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old})
    handle.commit(loaded, (), (gone_now,))
    kept = handle.load().token.scan(snapshot_id=deletes_of(handle.load().metadata)).to_arrow()
    assert sorted(kept["n"].to_pylist()) == [100, 101, 102, 103, 104]
    late = alive(100, "late", 5, journal=OTHER, clock=12)
    merge_changes(changed, late)
    assert (100, "late") not in values(handle)


def test_small_files_of_deletions_are_put_together(changed, monkeypatch):
    monkeypatch.setattr(upserts, "_SMALL_MAX", 4)
    counts = []
    for n in range(10):
        _, handle = merge_changes(changed, alive(n, "a", 10 * n + 10), gone(n + 100, 10 * n + 15))
        scan = handle.load().token.scan(snapshot_id=deletes_of(handle.load().metadata))
        counts.append(len(list(scan.plan_files())))
        assert sorted(scan.to_arrow()["n"].to_pylist()) == list(range(100, 101 + n))
    assert counts == [1, 2, 3, 4, 2, 3, 4, 2, 3, 4]
    merge_changes(changed, alive(100, "late", 5, journal=OTHER, clock=12))
    assert values(handle) == {(n, "a") for n in range(10)}


def test_run_that_is_fenced_keeps_none_of_its_deletions(changed):
    _, handle = merge_changes(changed, alive(1, "a", 10))
    _, table = changed.open(changed.spec)
    merge_changes(changed, alive(2, "b", 20), run="other")
    with pytest.raises(TableFenced):
        upsert(handle, table, [gone(1, 30)], changes=CHANGES)
    assert deletes_of(handle.load().metadata) is None
    assert values(handle) == {(1, "a"), (2, "b")}


def test_deletions_are_kept_once_if_maintenance_comes_between(changed):
    _, handle = merge_changes(changed, alive(1, "a", 10), gone(7, 15))
    merger = PythonMerger(handle, behind=[lambda: by_hand(handle)])
    merge_changes(changed, gone(1, 30), merger=merger)
    assert len(merger.merges) == 2
    assert values(handle) == set()
    kept = handle.load().token.scan(snapshot_id=deletes_of(handle.load().metadata)).to_arrow()
    assert sorted(kept["n"].to_pylist()) == [1, 7]


def test_deletions_that_expired_before_they_were_published_are_reported(changed):
    _, handle = merge_changes(changed, alive(1, "a", 10))

    def expire():
        loaded = handle.load()
        heads = {ref.snapshot_id for ref in loaded.metadata.refs.values()}
        staged = loaded.metadata.snapshots[-1].snapshot_id
        old = [
            one.snapshot_id
            for one in loaded.metadata.snapshots
            if one.snapshot_id not in {*heads, staged}
        ]
        update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old})
        handle.commit(loaded, (), (update,))

    merger = PythonMerger(handle, behind=[expire])
    with pytest.raises(LakeError, match="has expired, so nothing was changed"):
        merge_changes(changed, gone(1, 30), merger=merger)
    assert values(handle) == {(1, "a")}


def test_table_of_changes_is_counted_by_its_messages(changed):
    _, handle = merge_changes(changed, alive(1, "a", 10), alive(2, "b", 20), gone(1, 30))
    found = check_counts(handle, None, is_upserted=True)
    assert (found.rows, found.counts.typed, found.findings) == (1, 3, ())


def test_table_keeps_what_it_was_made_with_as_what_deletes(changed):
    merge_changes(changed, alive(1, "a", 10))
    with pytest.raises(SchemaMismatch, match=r"was made with `deleted gone`.*its spec says `none`"):
        changed.open(structs.replace(changed.spec, deleted=""))
