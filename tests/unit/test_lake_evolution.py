"""Columns reach the Hive partitions of large tables batch by batch, through crashes and time limits."""

from contextlib import suppress

import pytest
from lake_bench import FragmentFiles, MemoryMetastore
from thrift.transport.TTransport import TTransportException

from gazette_platform.errors import LakeError
from gazette_platform.lake import Registrar, StoreRoots, parse_table_spec

pytestmark = pytest.mark.long

COUNT = 230
SPEC = (
    "{name: s.a, selector: 'name:prefix=a/', format: json, columns: [%s{name: id, type: bigint}]}"
)
NARROW = parse_table_spec(SPEC % "")
WIDE = parse_table_spec(SPEC % "{name: extra, type: double}, ")
WIDER = parse_table_spec(SPEC % "{name: extra, type: double}, {name: more, type: string}, ")


@pytest.fixture
def metastore():
    return MemoryMetastore()


@pytest.fixture
def registrar(tmp_path, metastore):
    files = FragmentFiles(tmp_path / "fragments")
    for n in range(COUNT):
        files.append("a/part=0", b'{"id":1}\n', postfix=f"hour={n:03}")
    made = Registrar(files, metastore, StoreRoots(files.roots))
    made.tick(NARROW, {})
    return made


def columns(metastore):
    names = metastore.thrift.get_partition_names("s", "a", -1)
    found = metastore.thrift.get_partitions_by_names("s", "a", names)
    assert all(p.parameters["numRows"] == "1" for p in found)
    return [[c.name for c in p.sd.cols] for p in found]


def digest(metastore):
    return metastore.thrift.get_table("s", "a").parameters["gazette.spec"]


def test_a_tick_without_time_goes_on_at_the_next_one(registrar, metastore):
    reached = []
    while digest(metastore) != WIDE.digest:
        assert registrar.tick(WIDE, {}, is_over=lambda: True).has_more
        reached.append(columns(metastore).count(["extra", "id"]))
    assert reached == [50, 100, 150, 200, COUNT]
    assert "gazette.evolving" not in metastore.thrift.get_table("s", "a").parameters
    assert [c.name for c in metastore.thrift.get_table("s", "a").sd.cols] == ["extra", "id"]


def test_with_time_it_is_done_at_once(registrar, metastore):
    assert registrar.tick(WIDE, {}).is_changed
    assert columns(metastore) == [["extra", "id"]] * COUNT
    assert not registrar.tick(WIDE, {}).is_changed


def test_another_spec_in_between_restarts(registrar, metastore):
    registrar.tick(WIDE, {}, is_over=lambda: True)
    registrar.tick(WIDER, {}, is_over=lambda: True)
    assert columns(metastore).count(["extra", "more", "id"]) == 50
    registrar.tick(WIDER, {})
    assert columns(metastore) == [["extra", "more", "id"]] * COUNT
    assert digest(metastore) == WIDER.digest


@pytest.mark.parametrize(
    ("call", "at"),
    [
        ("alter_partitions", 1),
        ("alter_partitions", 4),
        ("alter_table_with_environment_context", 1),
        ("alter_table_with_environment_context", 2),
    ],
)
@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_call_that_fails_is_made_again(registrar, metastore, monkeypatch, call, at, takes_effect):
    inner, count = getattr(metastore.thrift, call), 0

    def failing(*arguments):
        nonlocal count
        count += 1
        if count != at or takes_effect:
            inner(*arguments)
        if count == at:
            raise TTransportException(message="broken")

    monkeypatch.setattr(metastore.thrift, call, failing)
    for _ in range(3):
        with suppress(LakeError):
            registrar.tick(WIDE, {})
    assert count >= at
    assert columns(metastore) == [["extra", "id"]] * COUNT
    assert digest(metastore) == WIDE.digest


def test_former_registrar_takes_no_column_away(tmp_path, metastore):
    """One that read the table before it changed, as a flush does, writes accounts after that."""
    files = FragmentFiles(tmp_path / "fragments")
    files.append("a/part=0", b'{"id":1}\n', postfix="hour=001")
    roots = StoreRoots(files.roots)
    cursors = Registrar(files, metastore, roots).tick(NARROW, {}).cursors
    files.append("a/part=0", b'{"id":2}\n', postfix="hour=001")
    files.append("a/part=0", b'{"id":3}\n', postfix="hour=002")

    class Slow(FragmentFiles):
        """Lists while the sensor brings the table up to another spec."""

        def fragments(self, journal, offset, limit):
            found = files.fragments(journal, offset, limit)
            Registrar(files, metastore, roots).tick(WIDE, cursors, is_over=lambda: False)
            files.append("a/part=0", b'{"id":4}\n', postfix="hour=003")
            return [*found, *files.fragments(journal, found[-1].end, limit)]

        def journals(self, selector):
            return files.journals(selector)

    report = Registrar(Slow(files.root), metastore, roots).tick(NARROW, cursors)
    assert report.updates
    names = metastore.thrift.get_partition_names("s", "a", -1)
    assert names[-1] == "part=0/hour=003"
    found = metastore.thrift.get_partitions_by_names("s", "a", names)
    assert [[c.name for c in p.sd.cols] for p in found] == [["extra", "id"]] * 3
    assert digest(metastore) == WIDE.digest


@pytest.mark.parametrize("at", range(1, 7))
def test_two_specs_at_once_end_as_the_one_that_the_table_says(registrar, metastore, at):
    """A flush knows a newer spec than the sensor, which is amid its batches."""
    lock, count = metastore.thrift.lock, 0

    def locking(request):
        nonlocal count
        count += 1
        if count == at:
            registrar.tick(WIDER, {})
        return lock(request)

    metastore.thrift.lock = locking
    with suppress(LakeError):
        registrar.tick(WIDE, {})
    assert digest(metastore) == WIDER.digest
    assert columns(metastore) == [["extra", "more", "id"]] * COUNT
