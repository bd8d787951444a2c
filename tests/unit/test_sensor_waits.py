"""Waits and stalls: what is awaited since when, when Dagster gets an event, and when a table is red."""

import json

import pytest
from dagster import AssetObservation
from dagster_instances import new_instance
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.lake import (
    Auditor,
    FitChecker,
    JournalProgress,
    Registrar,
    RegistrationCursor,
    Repairer,
    Shrinker,
    SpecFolder,
    StoreRoots,
    TableReport,
    parse_table_spec,
)
from gazette_platform.protocol import CompressionCodec
from gazette_platform.sensors.audits import TableAudits
from gazette_platform.sensors.cursor import SensorCursor, Wait, follow, pack
from gazette_platform.sensors.events import InstanceTold
from gazette_platform.sensors.fragments import TickPorts, run_tick
from gazette_platform.sensors.prunes import Retention

NOW = 1_000_000


def waiting(journal="j", *, registered=10, head=20, **options):
    options.setdefault("complete_to", registered)
    return JournalProgress(journal, registered, head, **options)


def report(*journals, matched=()):
    names = frozenset([*(p.journal for p in journals), *matched])
    return TableReport(table="s.a", journals=list(journals), matched=names)


def stalls_after(progress, waited_s):
    first = follow({}, report(progress), NOW)
    assert first.stalls == []
    return follow(first.waits, report(progress), NOW + waited_s).stalls


@pytest.mark.parametrize(
    ("progress", "limit_s", "text"),
    [
        (waiting(is_stored=True, flush_interval_s=3600), 300, "though a store has some of them"),
        (
            waiting(flush_interval_s=3600),
            3900,
            "no store has them, though the flush interval is 1h",
        ),
        (waiting(hole_bytes=4, complete_to=2, flush_interval_s=3600), 300, "brokers list none"),
    ],
)
def test_a_wait_is_a_stall_when_it_lasts_longer_than_it_may(progress, limit_s, text):
    assert stalls_after(progress, limit_s - 1) == []
    (stall,) = stalls_after(progress, limit_s)
    assert text in stall
    assert f"j stalls: its bytes from {progress.complete_to} on" in stall
    assert stalls_after(progress, limit_s + 999) == [stall]  # the same text, reported once


def test_what_is_open_without_a_flush_interval_never_stalls():
    assert stalls_after(waiting(), 10**9) == []


def test_a_wait_restarts_with_every_byte_that_is_registered():
    waits = follow({}, report(waiting(is_stored=True)), NOW).waits
    on = waiting(registered=11, is_stored=True)
    waits = follow(waits, report(on), NOW + 299).waits
    assert follow(waits, report(on), NOW + 400).stalls == []
    assert follow(waits, report(on), NOW + 599).stalls != []


def test_bytes_behind_a_refused_one_do_not_hide_it():
    """Others go on; the first of what is awaited stays."""
    waits = follow({}, report(waiting(hole_bytes=4, complete_to=2, is_stored=True)), NOW).waits
    later = waiting(registered=900, head=950, hole_bytes=4, complete_to=2, is_stored=True)
    (stall,) = follow(waits, report(later), NOW + 300).stalls
    assert "its bytes from 2 on" in stall


def test_heads_are_reported_while_nothing_is_registered_but_not_more_often_than_each_minute():
    waits, told = {}, []
    for second in range(0, 300, 3):
        progress = waiting(head=20 + second)
        followed = follow(waits, report(progress), NOW + second)
        waits = followed.waits
        told += [(second, p.write_head) for p in followed.to_tell]
    assert told == [(60, 80), (120, 140), (180, 200), (240, 260)]
    for second in range(300, 600, 3):
        assert follow(waits, report(waiting(head=260)), NOW + second).to_tell == []
    (end,) = follow(waits, report(waiting(registered=260, head=260)), NOW + 700).to_tell
    assert end.lag_bytes == 0


def test_many_waits_are_reported_less_often():
    journals = [f"j{n}" for n in range(100)]
    waits, told = {}, 0
    for second in range(0, 1800, 30):
        found = report(*(waiting(j, head=20 + second) for j in journals))
        followed = follow(waits, found, NOW + second, waiting=len(waits))
        waits, told = followed.waits, told + len(followed.to_tell)
    assert told == 200  # in half an hour, each of them twice


def test_waits_that_end_soon_are_not_reported():
    waits = follow({}, report(waiting()), NOW).waits
    done = follow(waits, report(waiting(registered=20)), NOW + 50)
    assert (done.waits, done.to_tell) == ({}, [])


def test_journals_that_had_no_time_go_on_waiting_and_those_that_are_gone_do_not():
    waits = follow({}, report(waiting("a"), waiting("b")), NOW).waits
    assert follow(waits, report(matched=["a"]), NOW + 3).waits == {"a": Wait(10, NOW, NOW)}


def test_the_number_of_waits_is_bounded_and_the_first_ones_stay():
    first = follow({}, report(*(waiting(f"j{n:03}") for n in range(100, 400))), NOW).waits
    assert len(first) == 200
    more = follow(first, report(*(waiting(f"j{n:03}") for n in range(400))), NOW + 3).waits
    assert more == first


def test_a_cursor_keeps_waits():
    cursor = SensorCursor(waits={"s.a": {"j": Wait(1, 2, 3, 4)}}, folder="f")
    assert SensorCursor.parse(cursor.dump()) == cursor
    for other in ({"s.a": {"j": [1]}}, 3, {"s.a": 3}):
        raw = {**RegistrationCursor().to_json(), "waits": other}
        text = json.dumps({"__class__": pack(raw)})
        assert SensorCursor.parse(text) == SensorCursor()


# --------------------------------------------------------------- with the sensor's tick


class Platform:
    """One table over fragments; `tick` runs the sensor's work at a time of your own."""

    def __init__(self, root, instance):
        self.instance = instance
        self.files = FragmentFiles(root)
        roots, metastore = StoreRoots(self.files.roots), MemoryMetastore()
        spec = parse_table_spec(
            "{name: s.a, selector: 'name:prefix=a/', format: json, "
            "columns: [{name: id, type: bigint}]}"
        )
        self.folder = SpecFolder({"s.a": spec}, {"s.a": "a.yaml"})
        self.cursor = SensorCursor()
        self.now = NOW
        self.ports = TickPorts(
            registrar=Registrar(self.files, metastore, roots),
            audits=TableAudits(
                Auditor(self.files, roots),
                Repairer(self.files, roots),
                FitChecker(self.files, roots),
                metastore,
            ),
            retention=Retention(Shrinker(self.files, roots), metastore),
            told=InstanceTold(instance),
            now_s=lambda: self.now,
        )

    def tick(self, later_s=0):
        self.now += later_s
        outcome = run_tick(self.ports, self.folder, self.cursor)
        for event in outcome.events:
            self.instance.report_runless_asset_event(event)
        for request in outcome.partitions:
            self.instance.add_dynamic_partitions(
                request.partitions_def_name, request.partition_keys
            )
        self.cursor = SensorCursor.parse(outcome.cursor.dump())
        return outcome


@pytest.fixture
def platform(tmp_path):
    with new_instance() as instance:
        yield Platform(tmp_path, instance)


def kept_up(outcome):
    return [e for e in outcome.events if getattr(e, "check_name", "") == "keeps_up"]


def test_a_fragment_that_cannot_be_taken_stalls_its_journal_and_is_over_when_it_can(platform):
    platform.files.append("a/part=0", b'{"id":1}\n')
    platform.tick()
    bad = platform.files.append("a/part=0", b'{"id":2}\n', codec=CompressionCodec.SNAPPY)
    (red,) = kept_up(platform.tick())
    assert "SNAPPY" in red.description
    (red,) = kept_up(platform.tick(later_s=300))
    assert "a/part=0 stalls: its bytes from 9 on" in red.description
    assert kept_up(platform.tick(later_s=3)) == []
    platform.files.forget(bad)
    platform.files.append("a/part=0", b'{"id":2}\n')
    (green,) = kept_up(platform.tick(later_s=3))
    assert green.passed
    assert platform.cursor.waits == {}


def test_what_no_store_takes_is_observed_and_turns_the_table_red(platform):
    platform.files.append("a/part=0", b'{"id":1}\n')
    first = platform.tick()
    assert [e.partition for e in first.events if e.asset_key.path[0] == "journals"] == ["a/part=0"]
    assert platform.cursor.waits == {}
    spec = platform.files.journals(platform.folder.specs["s.a"].label_selector)[0]
    assert spec.fragment.flush_interval_ns == 0
    platform.files.set_flush_interval("a/part=0", 600)
    platform.files.append("a/part=0", b'{"id":2}\n', is_persisted=False)
    assert platform.tick().events == []
    (seen,) = platform.tick(later_s=60).events
    assert isinstance(seen, AssetObservation)
    values = {name: value.value for name, value in seen.metadata.items()}
    assert (values["write_head"], values["registered"], values["lag_bytes"]) == (18, 9, 9)
    assert platform.tick(later_s=800).events == []
    (red,) = platform.tick(later_s=40).events
    assert "no store has them, though the flush interval is 10m" in red.description
