"""Journals whose codec changes, and tables over journals of several codecs."""

import msgspec
import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import LakeError
from gazette_platform.lake import (
    Auditor,
    Registrar,
    StoreRoots,
    SweepPoint,
    excluded_files,
    parse_table_spec,
)
from gazette_platform.lake.spec.table_spec import Column
from gazette_platform.protocol import CompressionCodec

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""
ONE, OTHER = "events/part=0", "events/part=1"
UNREADABLE = [CompressionCodec.SNAPPY, CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION]


class Lake:
    """Journals of lines of 9 bytes."""

    def __init__(self, tmp_path):
        self.files = FragmentFiles(tmp_path / "fragments")
        self.metastore = MemoryMetastore()
        roots = StoreRoots(self.files.roots)
        self.registrar = Registrar(self.files, self.metastore, roots)
        self.auditor = Auditor(self.files, roots)
        self.spec = parse_table_spec(SPEC)
        self.cursors = {}

    def append(self, journal, codec, count=2, **options):
        self.files.create(journal, codec=codec)
        content = b'{"id":1}\n' * count
        return self.files.append(journal, content, postfix="hour=05", codec=codec, **options)

    def tick(self):
        report = self.registrar.tick(self.spec, self.cursors, sweep=SweepPoint())
        self.cursors = report.cursors
        return report

    def audit(self, journal):
        with self.metastore.connect() as session:
            table = session.table("s", "events")
            return self.auditor.audit(session, table, journal)


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


@pytest.mark.parametrize("codec", UNREADABLE)
def test_files_that_engines_read_as_garbage_are_reported_and_left_out_of_the_view(lake, codec):
    lake.append(ONE, CompressionCodec.GZIP)
    lake.append(OTHER, CompressionCodec.GZIP)
    lake.tick()
    bad = lake.append(ONE, codec)
    lake.append(OTHER, CompressionCodec.GZIP)
    report = lake.tick()
    assert [u.journal for u in report.updates] == [OTHER]
    assert any(f"codec {codec.name} cannot be mounted" in error for error in report.errors)
    audit = lake.audit(ONE)
    (found,) = [f for f in audit.findings if f.excluded]
    assert (found.kind, found.is_error, found.begin) == ("count", True, bad.begin)
    assert f"codec {codec.name} Trino and Spark take for plain text" in found.text
    assert excluded_files(audit.findings) == {("0", "5"): [bad.content_name]}
    assert lake.audit(OTHER).findings == ()
    # A journal that turns back goes on after them, and still gets them.
    lake.append(ONE, CompressionCodec.GZIP, 5)
    (update,) = lake.tick().updates
    assert (update.journal, update.rows_added) == (ONE, 5)
    assert excluded_files(lake.audit(ONE).findings) == {("0", "5"): [bad.content_name]}


def test_it_is_reported_before_a_fragment_is_stored(lake):
    lake.append(ONE, CompressionCodec.GZIP)
    lake.tick()
    lake.files.create(ONE, codec=CompressionCodec.SNAPPY)
    (error,) = lake.tick().errors
    assert f"{ONE}: fragments with codec SNAPPY cannot be mounted" in error


def test_a_file_in_the_place_of_one_that_engines_cannot_read_stays_in_the_view(lake):
    lake.append(ONE, CompressionCodec.GZIP)
    lake.tick()
    bad = lake.append(ONE, CompressionCodec.SNAPPY)
    lake.tick()
    good = lake.append(ONE, CompressionCodec.GZIP, begin=bad.begin)
    lake.tick()
    assert excluded_files(lake.audit(ONE).findings) == {("0", "5"): [bad.content_name]}
    assert good.content_name != bad.content_name


def test_codecs_that_engines_choose_by_file_name_are_mixed(lake):
    lake.append(ONE, CompressionCodec.GZIP)
    lake.tick()
    lake.append(ONE, CompressionCodec.NONE, 3)
    (update,) = lake.tick().updates
    assert (update.rows_added, update.state.rows) == (3, 5)
    assert lake.audit(ONE).findings == ()


def test_a_turn_to_zstandard_is_reported_once(lake):
    lake.append(ONE, CompressionCodec.GZIP)
    lake.append(OTHER, CompressionCodec.GZIP)
    assert lake.tick().warnings == []
    lake.append(ONE, CompressionCodec.ZSTANDARD)
    (warning,) = lake.tick().warnings
    assert f"{ONE} has turned to ZSTANDARD fragments" in warning
    lake.append(ONE, CompressionCodec.ZSTANDARD)
    assert lake.tick().warnings == []


@pytest.mark.parametrize("codec", UNREADABLE)
def test_one_journal_of_such_a_codec_holds_up_no_evolution(lake, codec):
    lake.append(ONE, CompressionCodec.GZIP)
    lake.append(OTHER, CompressionCodec.GZIP)
    lake.tick()
    lake.append(OTHER, codec)
    lake.append(ONE, CompressionCodec.GZIP, 4)
    lake.spec = msgspec.structs.replace(
        lake.spec, columns=(*lake.spec.columns, Column(name="more", type="string"))
    )
    report = lake.tick()
    assert report.is_changed
    assert [c.name for c in report.definition.columns] == ["id", "more"]
    assert [u.rows_added for u in report.updates] == [4]
    assert any(f"{OTHER}: fragments with codec {codec.name}" in error for error in report.errors)


def test_a_new_table_of_such_a_journal_is_refused_as_a_whole(lake):
    """Its selector is wrong, and nothing waits for it yet."""
    lake.append(ONE, CompressionCodec.GZIP)
    lake.append(OTHER, CompressionCodec.SNAPPY)
    with pytest.raises(LakeError, match=f"{OTHER}: fragments with codec SNAPPY"):
        lake.tick()
