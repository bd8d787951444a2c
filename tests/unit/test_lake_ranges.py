"""Hive partitions with more holes than one parameter of a metastore has room for."""

import time

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.client.read.extents import snapshot_of
from gazette_platform.client.results import FragmentListing
from gazette_platform.errors import LakeError
from gazette_platform.lake import Registrar, StoreRoots, SweepPoint, parse_table_spec
from gazette_platform.lake.raw import partition_updates as counting_module
from gazette_platform.lake.raw.audits.registration_status import (
    JournalStanding,
    PartitionStanding,
    TableStanding,
    overdue,
)
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.protocol import Fragment

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""
JOURNAL = "events/part=0"
COUNT = 300


@pytest.fixture
def files(tmp_path):
    return FragmentFiles(tmp_path / "fragments")


@pytest.fixture
def metastore():
    return MemoryMetastore()


def found(metastore):
    with metastore.connect() as session:
        (partition,) = session.partitions(session.table("s", "events"))
    return partition.parameters, PartitionState.from_parameters(partition.parameters)


def test_every_hole_is_known_and_counted_when_it_is_filled(files, metastore):
    spec = parse_table_spec(SPEC)
    registrar = Registrar(files, metastore, StoreRoots(files.roots))
    made = [files.append(JOURNAL, b'{"id":1}\n', postfix="hour=05") for _ in range(COUNT)]
    late = made[1::2]
    for fragment in late:
        files.forget(fragment)
    cursors = registrar.tick(spec, {}).cursors
    parameters, state = found(metastore)
    assert (len(state.ranges), state.rows) == (COUNT // 2, COUNT // 2)
    assert max(len(text) for text in parameters.values()) < 4000
    assert not any(state.covers(f.begin, f.end) for f in late)
    for fragment in late:
        files._fragments[JOURNAL].append(fragment)
    files._fragments[JOURNAL].sort(key=lambda f: f.begin)
    sweep = SweepPoint()
    while sweep is not None:
        report = registrar.tick(spec, cursors, sweep=sweep)
        cursors, sweep = report.cursors, report.swept
    parameters, state = found(metastore)
    assert (state.ranges, state.rows) == (((0, 9 * COUNT),), COUNT)
    assert [name for name in parameters if name.startswith("gazette.state")] == ["gazette.state"]


def test_content_beyond_the_room_is_reported(files, metastore, monkeypatch):
    monkeypatch.setattr(counting_module, "RANGES_MAX", 2)
    spec = parse_table_spec(SPEC)
    registrar = Registrar(files, metastore, StoreRoots(files.roots))
    begins = [0, 20, 40]
    cursors = {}
    for begin in begins:
        files.append(JOURNAL, b'{"id":1}\n', postfix="hour=05", begin=begin)
        report = registrar.tick(spec, cursors)
        cursors = report.cursors
    (error,) = report.errors
    assert "has 2 holes, and its accounts have no room for more" in error
    assert found(metastore)[1].rows == 2


def test_a_state_in_parts_that_lacks_one_is_refused():
    state = PartitionState()
    for n in range(COUNT):
        state = state.adding(JOURNAL, 20 * n, 20 * n + 9, rows=1, stored_bytes=9)
    parameters = state.within({"gazette.state.9": "former", "mine": "1"})
    assert PartitionState.from_parameters(parameters) == state
    assert (parameters["mine"], "gazette.state.9" in parameters) == ("1", False)
    del parameters["gazette.state.2"]
    with pytest.raises(LakeError, match="was changed by others"):
        PartitionState.from_parameters(parameters)


def test_many_fragments_are_planned_and_checked_in_the_time_of_few():
    """Fragments that are stored and in spools by turns, and as many Hive partitions as fragments."""
    count = 20_000
    listed = [
        FragmentListing(
            Fragment(
                JOURNAL,
                10 * n,
                10 * n + 10,
                backing_store="file:///" if n % 2 else "",
                mod_time=1,
                path_postfix=f"hour={n}",
            )
        )
        for n in range(count)
    ]
    began = time.thread_time()
    plan = snapshot_of(JOURNAL, listed, 10 * count)
    # It took 20 s.
    assert time.thread_time() - began < 5
    assert [(s.begin, s.listing is None) for s in plan.extents] == [
        (10 * n, n % 2 == 0) for n in range(count)
    ]

    fragments = [each.fragment for each in listed]

    class Source:
        def fragments(self, _journal, offset, limit):
            return (
                fragments[offset // 10 :][:limit]
                if offset % 10 == 0
                else fragments[offset // 10 + 1 :][:limit]
            )

    standing = TableStanding(
        spec=parse_table_spec(SPEC),
        journals=[JournalStanding(JOURNAL, 10 * count, 10 * count)],
        partitions=[
            PartitionStanding(
                str(n),
                "",
                PartitionState().adding(JOURNAL, 10 * n, 10 * n + 10, rows=1, stored_bytes=1),
            )
            for n in range(count)
            if n != count - 1
        ],
    )
    began = time.thread_time()
    (text,) = overdue(Source(), standing, 1000.0, from_begin=True)
    assert time.thread_time() - began < 5
    assert f"its bytes from {10 * (count - 1)} on" in text
