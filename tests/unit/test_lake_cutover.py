"""A journal goes over to another store within an hour: all of the hour is seen, once."""

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.lake import Auditor, Registrar, StoreRoots, parse_table_spec

SPEC = parse_table_spec(
    "{name: s.a, selector: 'name:prefix=a/', format: json, columns: [{name: id, type: bigint}]}"
)
OLD, NEW = "file:///", "file:///second/"
JOURNAL = "a/part=0"


def line(n):
    return b'{"id":%d}\n' % n


@pytest.fixture
def files(tmp_path):
    return FragmentFiles(tmp_path / "fragments")


@pytest.fixture
def metastore():
    return MemoryMetastore()


@pytest.fixture
def registrar(files, metastore):
    return Registrar(files, metastore, StoreRoots(files.roots))


def locations(metastore):
    with metastore.connect() as session:
        found = session.partitions(session.table("s", "a"))
    return {p.values[1]: (p.location.rpartition("/fragments/")[2], p.parameters) for p in found}


@pytest.mark.parametrize("ticks_between", [True, False])
def test_a_cutover_within_an_hour_registers_without_a_person(
    files, metastore, registrar, ticks_between
):
    files.append(JOURNAL, line(1), postfix="hour=05")
    cursors = registrar.tick(SPEC, {}).cursors if ticks_between else {}
    files.create(JOURNAL, stores=(NEW, OLD))
    moved = files.append(JOURNAL, line(2), postfix="hour=05", store=NEW)
    files.append(JOURNAL, line(3), postfix="hour=06", store=NEW)
    report = registrar.tick(SPEC, cursors)
    assert report.errors == []
    found = locations(metastore)
    assert {hour: place for hour, (place, _) in found.items()} == {
        "05": "a/part=0/hour=05",
        "06": "second/a/part=0/hour=06",
    }
    assert [parameters["numRows"] for _, parameters in found.values()] == ["2", "1"]
    copied, original = files.root / moved.content_path, files.root / "second" / moved.content_path
    assert copied.read_bytes() == original.read_bytes()
    assert len(list(copied.parent.iterdir())) == 2
    assert registrar.tick(SPEC, {}).updates == []
    with metastore.connect() as session:
        table = session.table("s", "a")
        audit = Auditor(files, StoreRoots(files.roots)).audit(session, table, JOURNAL)
    assert audit.findings == ()


def test_a_copy_that_is_there_is_not_made_again_and_half_a_one_is(files, metastore, registrar):
    files.append(JOURNAL, line(1), postfix="hour=05")
    cursors = registrar.tick(SPEC, {}).cursors
    files.create(JOURNAL, stores=(NEW, OLD))
    moved = files.append(JOURNAL, line(2), postfix="hour=05", store=NEW)
    copied = files.root / moved.content_path
    copied.write_bytes(b"half")
    registrar.tick(SPEC, cursors)
    written = copied.stat().st_mtime_ns
    assert copied.read_bytes() == (files.root / "second" / moved.content_path).read_bytes()
    registrar.tick(SPEC, cursors)
    assert copied.stat().st_mtime_ns == written
    assert locations(metastore)["05"][1]["numRows"] == "2"


def test_a_store_that_is_no_longer_in_the_spec_is_asked_for(files, metastore, registrar):
    files.append(JOURNAL, line(1), postfix="hour=05")
    cursors = registrar.tick(SPEC, {}).cursors
    files.create(JOURNAL, stores=(NEW,))
    late = files.append(JOURNAL, line(2), postfix="hour=05", store=NEW)
    files.append(JOURNAL, line(3), postfix="hour=06", store=NEW)
    report = registrar.tick(SPEC, cursors)
    (error,) = report.errors
    assert "list the old store behind the new one" in error
    assert sorted(locations(metastore)) == ["05", "06"]
    assert report.offsets == {JOURNAL: late.begin}
    files.create(JOURNAL, stores=(NEW, OLD))
    report = registrar.tick(SPEC, report.cursors)
    assert report.errors == []
    assert locations(metastore)["05"][1]["numRows"] == "2"


class Without:
    """A source that does not list one fragment yet."""

    def __init__(self, files, unlisted):
        self.files, self.unlisted = files, unlisted
        self.journals, self.content, self.created = files.journals, files.content, files.created

    def fragments(self, journal, offset, limit):
        return [f for f in self.files.fragments(journal, offset, limit) if f != self.unlisted]


def test_a_partition_that_another_made_elsewhere_meanwhile_gets_the_files(files, metastore):
    """Fragments count as registered only where engines read them."""
    roots = StoreRoots(files.roots)
    files.append(JOURNAL, line(1), postfix="hour=04")
    cursors = Registrar(files, metastore, roots).tick(SPEC, {}).cursors
    files.create(JOURNAL, stores=(NEW, OLD))
    late = files.append(JOURNAL, line(2), postfix="hour=05")
    moved = files.append(JOURNAL, line(3), postfix="hour=05", store=NEW)
    add = metastore.thrift.add_partitions_req

    def add_after_another(request):
        metastore.thrift.add_partitions_req = add
        Registrar(Without(files, moved), metastore, roots).tick(SPEC, cursors)
        return add(request)

    metastore.thrift.add_partitions_req = add_after_another
    left = Registrar(Without(files, late), metastore, roots).tick(SPEC, cursors).cursors
    assert locations(metastore)["05"][1]["numRows"] == "1"
    Registrar(files, metastore, roots).tick(SPEC, left)
    place, parameters = locations(metastore)["05"]
    assert parameters["numRows"] == "2"
    assert sorted(p.name for p in (files.root / place).iterdir()) == sorted(
        [late.content_name, moved.content_name]
    )
