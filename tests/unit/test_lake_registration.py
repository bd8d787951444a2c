"""Registration: idempotent, bounded, and honest about what it cannot take.

Long because each case is a few ticks over a handful of files, written out in full.
"""

import json

import msgspec
import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import (
    DataError,
    LakeError,
    SchemaMismatch,
    TransportError,
    ValidationError,
)
from gazette_platform.lake import (
    JournalCursor,
    Limits,
    Registrar,
    RegistrationCursor,
    StoreRoots,
)
from gazette_platform.lake.reading.fragment_content import FragmentContent
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.protocol import CompressionCodec

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}, {name: userName, type: string}]
partitions: [{name: hour, type: int}]
"""
HOUR_5 = "date=2026-01-02/hour=05"
HOUR_6 = "date=2026-01-02/hour=06"


def lines(begin, count):
    return b"".join(b'{"id":%d,"userName":"u"}\n' % n for n in range(begin, begin + count))


@pytest.fixture
def files(tmp_path):
    return FragmentFiles(tmp_path / "fragments")


@pytest.fixture
def metastore():
    return MemoryMetastore()


@pytest.fixture
def registrar(files, metastore):
    return Registrar(files, metastore, StoreRoots(files.roots))


@pytest.fixture
def spec():
    return parse_table_spec(SPEC)


def partitions(metastore, name="events"):
    with metastore.connect() as session:
        table = session.table("s", name)
        return table, {p.values: p for p in session.partitions(table)}


def test_no_journal_is_an_error_and_no_fragment_is_none(registrar, files, metastore, spec):
    report = registrar.tick(spec, {})
    assert (report.updates, report.matched) == ([], frozenset())
    assert "'name:prefix=events/' matches no journal" in report.errors[0]
    files.create("events/part=0")
    report = registrar.tick(msgspec.structs.replace(spec, partitions=()), {})
    assert (report.updates, report.errors, report.definition) == ([], [], None)
    # Its path postfix has no key `hour`.
    assert "partition key 'hour' is in no journal name" in registrar.tick(spec, {}).errors[0]
    with metastore.connect() as session:
        assert session.databases() == []


def test_first_fragments_make_table_and_partitions(registrar, files, metastore, spec):
    files.append("events/part=0", lines(0, 3), postfix=HOUR_5)
    files.append("events/part=0", lines(3, 2), postfix=HOUR_5)
    files.append("events/part=0", lines(5, 1), postfix=HOUR_6)
    files.append("events/part=1", lines(0, 4), postfix=HOUR_5)
    report = registrar.tick(spec, {})
    assert report.errors == []
    assert {u.key: (u.rows_added, u.fragments_added, u.is_new) for u in report.updates} == {
        "part=0/date=2026-01-02/hour=5": (5, 2, True),
        "part=0/date=2026-01-02/hour=6": (1, 1, True),
        "part=1/date=2026-01-02/hour=5": (4, 1, True),
    }
    table, found = partitions(metastore)
    assert table.location == f"file://{files.root}/events"
    assert [(c.name, c.type) for c in table.columns] == [("id", "bigint"), ("username", "string")]
    assert [(c.name, c.type) for c in table.partition_columns] == [
        ("part", "string"),
        ("date", "string"),
        ("hour", "int"),
    ]
    first = found["0", "2026-01-02", "5"]
    assert first.location == f"file://{files.root}/events/part=0/{HOUR_5}"
    assert first.parameters["numRows"] == "5"
    assert first.parameters["numFiles"] == "2"
    assert int(first.parameters["totalSize"]) == sum(
        p.stat().st_size for p in (files.root / "events/part=0" / HOUR_5).iterdir()
    )
    schema = json.loads(table.parameters["spark.sql.sources.schema"])
    assert [(f["name"], f["type"]) for f in schema["fields"]] == [
        ("id", "long"),
        ("userName", "string"),
        ("part", "string"),
        ("date", "string"),
        ("hour", "integer"),
    ]
    assert table.parameters["spark.sql.sources.schema.partCol.2"] == "hour"
    assert table.storage.serde_parameters["path"] == table.location


def test_second_tick_goes_on_from_the_offsets(registrar, files, metastore, spec):
    files.append("events/part=0", lines(0, 3), postfix=HOUR_5)
    first = registrar.tick(spec, {})
    again = registrar.tick(spec, first.cursors)
    assert again.updates == []
    assert again.offsets == first.offsets
    files.append("events/part=0", lines(3, 2), postfix=HOUR_5)
    second = registrar.tick(spec, first.cursors)
    (update,) = second.updates
    assert (update.is_new, update.rows_added, update.state.rows) == (False, 2, 5)
    assert update.state.data_version == f"0-{second.offsets['events/part=0']}"
    assert (metastore.partitions_added, metastore.partitions_altered) == (1, 2)


def test_lost_cursor_repeats_no_row_and_shows_the_accounts(registrar, files, metastore, spec):
    files.append("events/part=0", lines(0, 3), postfix=HOUR_5)
    first = registrar.tick(spec, {})
    altered = metastore.partitions_altered
    again = registrar.tick(spec, {})
    assert again.updates == []
    assert (
        again.accounts == first.accounts
    )  # what is to be reported does not depend on who registered
    assert [a.state for a in again.accounts] == [u.state for u in first.updates]
    assert again.cursors == first.cursors
    assert metastore.partitions_altered == altered


def test_dropped_table_is_made_again_with_all_fragments(registrar, files, metastore, spec):
    files.append("events/part=0", lines(0, 3), postfix=HOUR_5)
    offsets = registrar.tick(spec, {}).cursors
    with metastore.connect() as session:
        session.drop_table("s", "events")
    files.append("events/part=0", lines(3, 1), postfix=HOUR_5)
    (update,) = registrar.tick(spec, offsets).updates
    assert update.state.rows == 4


def test_unpersisted_fragment_holds_the_cursor_and_nothing_else(registrar, files, spec):
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    local = files.append("events/part=0", lines(1, 1), is_persisted=False)
    files.append("events/part=0", lines(2, 1), postfix=HOUR_6)
    report = registrar.tick(spec, {})
    assert [u.key for u in report.updates] == [
        "part=0/date=2026-01-02/hour=5",
        "part=0/date=2026-01-02/hour=6",
    ]
    assert report.offsets == {"events/part=0": local.begin}
    (progress,) = report.journals
    assert progress.registered == progress.write_head
    assert progress.lag_bytes == progress.hole_bytes == local.content_length
    assert registrar.tick(spec, report.cursors).cursors == report.cursors
    files.persist(local, postfix=HOUR_5)
    report = registrar.tick(spec, report.cursors)
    assert [(u.key, u.state.rows) for u in report.updates] == [("part=0/date=2026-01-02/hour=5", 2)]
    assert report.offsets == {"events/part=0": progress.write_head}


def test_late_fragment_reopens_an_old_partition(registrar, files, spec):
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    files.append("events/part=0", lines(1, 1), postfix=HOUR_6)
    offsets = registrar.tick(spec, {}).cursors
    late = files.append("events/part=0", lines(2, 3), postfix=HOUR_5)
    (update,) = registrar.tick(spec, offsets).updates
    assert (update.key, update.state.rows) == ("part=0/date=2026-01-02/hour=5", 4)
    assert len(update.state.ranges) == 2
    assert update.state.data_version.endswith(f"{late.begin}-{late.end}")


def test_the_fragments_that_a_tick_lists_are_bounded_over_all_journals(
    files, metastore, spec, monkeypatch
):
    for part in range(4):
        files.append(f"events/part={part}", lines(0, 2), postfix=HOUR_5)
    listed, fragments = [], files.fragments

    def listing(*arguments):
        listed.append(fragments(*arguments))
        return listed[-1]

    monkeypatch.setattr(files, "fragments", listing)
    registrar = Registrar(files, metastore, StoreRoots(files.roots), Limits(fragments_max=2))
    assert registrar.tick(spec, {}).has_more
    assert [len(found) for found in listed] == [1, 1, 1, 1]  # each gets its turn


@pytest.mark.parametrize(
    "limits",
    [
        Limits(fragments_max=2),
        Limits(partitions_max=1),
        Limits(content_bytes_max=30),
    ],
)
def test_each_tick_is_bounded_and_the_rest_follows(files, metastore, spec, limits):
    registrar = Registrar(files, metastore, StoreRoots(files.roots), limits)
    for part in range(3):
        for hour in (HOUR_5, HOUR_6):
            files.append(f"events/part={part}", lines(0, 2), postfix=hour)
    offsets = {}
    ticks = rows = 0
    has_more = True
    while has_more:
        report = registrar.tick(spec, offsets)
        offsets = report.cursors
        has_more = report.has_more
        rows += sum(u.rows_added for u in report.updates)
        ticks += 1
        assert ticks < 20
    assert rows == 12
    assert ticks > 1
    assert len(partitions(metastore)[1]) == 6


def test_last_line_without_newline_counts(registrar, files, spec):
    files.append("events/part=0", lines(0, 2) + b'{"id":9}', postfix=HOUR_5)
    (update,) = registrar.tick(spec, {}).updates
    assert update.rows_added == 3


@pytest.mark.parametrize("codec", [CompressionCodec.NONE, CompressionCodec.ZSTANDARD])
def test_rows_are_counted_in_each_readable_codec(registrar, files, spec, codec):
    files.append("events/part=0", lines(0, 7), postfix=HOUR_5, codec=codec)
    (update,) = registrar.tick(spec, {}).updates
    assert update.rows_added == 7


@pytest.mark.parametrize(
    "codec", [CompressionCodec.SNAPPY, CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION]
)
def test_unreadable_codec_is_refused_before_anything_is_made(
    registrar, files, metastore, spec, codec
):
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5, codec=codec)
    with pytest.raises(LakeError, match=f"codec {codec.name} cannot be mounted.*GZIP"):
        registrar.tick(spec, {})
    with metastore.connect() as session:
        assert session.databases() == []


def test_one_bad_journal_does_not_hold_up_the_others(registrar, files, metastore, spec):
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    offsets = registrar.tick(spec, {}).cursors
    files.append("events/part=0", lines(1, 1), postfix="other=1")
    files.append("events/part=1", lines(0, 1), postfix=HOUR_5)
    report = registrar.tick(spec, offsets)
    assert [u.key for u in report.updates] == ["part=1/date=2026-01-02/hour=5"]
    assert report.cursors["events/part=0"] == offsets["events/part=0"]
    (error,) = report.errors
    assert "differ in segment 3 ({date} and {other})" in error


def test_damaged_fragment_is_named_and_the_rest_registered(registrar, files, metastore, spec):
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    bad = files.append("events/part=0", lines(1, 100), postfix=HOUR_5)
    path = files.root / bad.content_path
    path.write_bytes(path.read_bytes()[:-9])
    report = registrar.tick(spec, {})
    (update,) = report.updates
    assert (update.rows_added, update.state.rows, update.state.fragments) == (None, None, 2)
    assert report.errors == []
    (found,) = report.misfits
    assert (found.kind, found.begin, found.end) == ("fit", bad.begin, bad.end)
    assert str(path) in found.text
    assert "is damaged" in found.text
    assert "numRows" not in partitions(metastore)[1]["0", "2026-01-02", "5"].parameters


def test_damaged_first_fragment_keeps_no_table_from_being_made(registrar, files, spec):
    bad = files.append("events/part=0", lines(0, 100), postfix=HOUR_5)
    path = files.root / bad.content_path
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="is damaged"):
        registrar.tick(spec, {})
    files.append("events/part=1", lines(0, 2), postfix=HOUR_5)
    report = registrar.tick(spec, {})
    assert sorted((u.journal, u.rows_added) for u in report.updates) == [
        ("events/part=0", None),
        ("events/part=1", 2),
    ]
    assert [f.journal for f in report.misfits] == ["events/part=0"]


def test_later_fragment_of_another_shape_is_reported(registrar, files, spec):
    files.append("events/part=0", lines(0, 2), postfix=HOUR_5)
    report = registrar.tick(spec, {})
    assert report.is_changed
    files.append("events/part=0", b"plain text\n", postfix=HOUR_5)
    report = registrar.tick(spec, report.cursors)
    assert not report.is_changed
    (found,) = report.misfits
    assert "does not hold JSON objects, one a line (it begins 'plain text')" in found.text


def test_missing_file_names_the_store_roots(files, metastore, spec):
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    registrar = Registrar(files, metastore, StoreRoots({"file:///": "file:///nowhere/"}))
    with pytest.raises(LakeError, match=r"no file /nowhere/.*store_roots"):
        registrar.tick(spec, {})
    with metastore.connect() as session:
        assert session.databases() == []


def test_varying_literal_segment_makes_no_table(registrar, files, metastore, spec):
    files.append("events/web", lines(0, 1))
    files.append("events/api", lines(0, 1))
    with pytest.raises(LakeError, match="is not key=value: name it"):
        registrar.tick(spec, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n", "does not hold JSON objects, one a line .it begins 'a,b'"),
        (b"[1]\n[2]\n", "does not hold JSON objects"),
        (b'{"x":1,"ID":2}\n', r"has any of the columns id, userName \(keys found: x, ID; their c"),
        (b'{"id":"12"}\n{"id":"13"}\n', "column id is bigint, but .* has values such as '\"12\"'"),
        (b'{"id":1.0}\n', "column id is bigint"),
    ],
)
def test_data_that_does_not_fit_makes_no_table(registrar, files, metastore, spec, content, message):
    files.append("events/part=0", content, postfix=HOUR_5)
    with pytest.raises(SchemaMismatch, match=message):
        registrar.tick(parse_table_spec(SPEC.replace("hour, type: int", "hour")), {})
    with metastore.connect() as session:
        assert session.databases() == []


def test_all_columns_that_never_have_their_type_are_reported(registrar, files):
    columns = ", ".join(f"{{name: c{n}, type: int}}" for n in range(20))
    spec = parse_table_spec(SPEC.replace("{name: id, type: bigint}", columns))
    record = ",".join(f'"c{n}":"x"' for n in range(1, 20))
    files.append("events/part=0", f'{{"c0":1,{record}}}\n'.encode(), postfix=HOUR_5)
    with pytest.raises(SchemaMismatch) as error:
        registrar.tick(spec, {})
    told = str(error.value)
    assert "column c1 is int, but fragment events/part=0/" in told
    assert "; column c12 is int, but it has values such as '\"x\"'; and 7 more, which" in told
    assert "column c0 " not in told
    assert len(told) < 1500


def test_single_bad_records_do_not_refuse_a_file(registrar, files, spec):
    content = b'not json\n{"id":"x"}\n{"id":1}\n\n'
    files.append("events/part=0", content, postfix=HOUR_5)
    (update,) = registrar.tick(spec, {}).updates
    assert update.rows_added == 4


def test_clash_of_key_and_column_makes_no_table(registrar, files, metastore):
    text = SPEC.replace(
        "{name: id, type: bigint}", "{name: id, type: bigint}, {name: date, type: date}"
    )
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    with pytest.raises(ValidationError, match="'date' is also a data column"):
        registrar.tick(parse_table_spec(text), {})
    with metastore.connect() as session:
        assert session.databases() == []


def test_two_directories_of_one_value_are_refused(registrar, files, spec):
    files.append("events/part=0", lines(0, 1), postfix="date=2026-01-02/hour=5")
    files.append("events/part=0", lines(1, 1), postfix="date=2026-01-02/hour=05")
    report = registrar.tick(spec, {})
    assert len(report.updates) == 1
    assert "belong to the same Hive partition" in report.errors[0]
    files.append("events/part=0", lines(2, 1), postfix=HOUR_6)
    report = registrar.tick(spec, report.cursors)
    assert "but fragments lie in" in report.errors[0]
    assert [u.key for u in report.updates] == ["part=0/date=2026-01-02/hour=6"]


def test_unpartitioned_table(registrar, files, metastore):
    spec = parse_table_spec(
        "{name: s.plain, selector: name=plain/log, format: csv, "
        "columns: [{name: a, type: string}, {name: b, type: string}]}"
    )
    files.append("plain/log", b"1,2\n3,4\n")
    report = registrar.tick(spec, {})
    assert [(u.key, u.rows_added) for u in report.updates] == [("all", 2)]
    files.append("plain/log", b"5,6\n")
    report = registrar.tick(spec, report.cursors)
    assert [(u.key, u.state.rows) for u in report.updates] == [("all", 3)]
    table, found = partitions(metastore, "plain")
    assert found == {}
    assert table.location == f"file://{files.root}/plain/log"
    assert table.parameters["numRows"] == "3"
    assert "spark.sql.sources.provider" not in table.parameters


def test_csv_of_another_width_makes_no_table(registrar, files):
    files.append("wide/log", b"1,2,3\n")
    spec = parse_table_spec(
        "{name: s.wide, selector: name=wide/log, format: csv, "
        "columns: [{name: a, type: string}, {name: b, type: string}]}"
    )
    with pytest.raises(SchemaMismatch, match="have 3 fields, not the 2 columns"):
        registrar.tick(spec, {})


def test_new_columns_reach_table_and_partitions_without_new_fragments(
    registrar, files, metastore, spec
):
    files.append("events/part=0", lines(0, 3), postfix=HOUR_5)
    offsets = registrar.tick(spec, {}).cursors
    wider = parse_table_spec(SPEC.replace("columns: [", "columns: [{name: extra, type: double}, "))
    report = registrar.tick(wider, offsets)
    assert report.updates == []
    table, found = partitions(metastore)
    assert [c.name for c in table.columns] == ["extra", "id", "username"]
    assert found["0", "2026-01-02", "5"].parameters["numRows"] == "3"
    (stored,) = metastore.thrift.get_partitions_by_names(
        "s", "events", ["part=0/date=2026-01-02/hour=5"]
    )
    assert [c.name for c in stored.sd.cols] == ["extra", "id", "username"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("type: bigint", "type: int", "column id would narrow from bigint to int"),
        ("{name: id, type: bigint}, ", "", "column id is gone"),
        (
            "{name: hour, type: int}",
            "{name: hour}",
            "partition columns are .*hour int, not .*hour s",
        ),
    ],
)
def test_table_that_cannot_become_its_spec(registrar, files, metastore, spec, old, new, message):
    files.append("events/part=0", lines(0, 3), postfix=HOUR_5)
    offsets = registrar.tick(spec, {}).cursors
    before = partitions(metastore)
    with pytest.raises(SchemaMismatch, match=message):
        registrar.tick(parse_table_spec(SPEC.replace(old, new)), offsets)
    assert partitions(metastore) == before


def test_foreign_table_of_that_name_is_left_alone(registrar, files, metastore, spec):
    files.append("events/part=0", lines(0, 3), postfix=HOUR_5)
    registrar.tick(spec, {})
    table = metastore.thrift.get_table("s", "events")
    del table.parameters["gazette.table"]
    del table.parameters["gazette.spec"]
    metastore.thrift._tables["s", "events"] = table
    with pytest.raises(SchemaMismatch, match="was not made from a table spec"):
        registrar.tick(spec, {})


def test_long_schema_is_kept_in_parts(registrar, files, metastore):
    names = ", ".join(f"{{name: column_{n}, type: bigint}}" for n in range(150))
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    spec = parse_table_spec(SPEC.replace("columns: [", f"columns: [{names}, "))
    registrar.tick(spec, {})
    parameters = partitions(metastore)[0].parameters
    count = int(parameters["spark.sql.sources.schema.numParts"])
    joined = "".join(parameters[f"spark.sql.sources.schema.part.{n}"] for n in range(count))
    assert len(json.loads(joined)["fields"]) == 155
    assert all(len(value) <= 4000 for value in parameters.values())


def test_cursor_round_trip_and_version():
    cursor = RegistrationCursor(
        {
            "b.t": {"j/2": JournalCursor(9, 4, ((1, 2),), 1700000000, 43), "j/1": JournalCursor()},
            "a.t": {},
        }
    )
    raw = json.loads(json.dumps(cursor.to_json()))
    assert RegistrationCursor.from_json(raw) == cursor
    for raw in (
        "x", [], {"version": 2, "tables": {}}, {"version": 3}, 3,
        {"version": 3, "tables": {"a": {"j": [1]}}},
        {"version": 3, "tables": {"a": {"j": [1, 0, None, 0, [2]]}}},
    ):  # fmt: skip
        with pytest.raises(ValidationError, match="clear it in the Dagster UI"):
            RegistrationCursor.from_json(raw)


def test_zstandard_is_taken_with_one_warning(registrar, files, spec):
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5, codec=CompressionCodec.ZSTANDARD)
    report = registrar.tick(spec, {})
    (warning,) = report.warnings
    assert "events/part=0" in warning
    assert "spark.hadoop.io.compression.codecs" in warning
    assert (report.errors, len(report.updates)) == ([], 1)
    assert registrar.tick(spec, report.cursors).warnings == []


def test_a_journal_with_more_is_reported_though_the_last_one_has_none(files, metastore, spec):
    for _ in range(3):
        files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    files.create("events/part=1")
    registrar = Registrar(files, metastore, StoreRoots(files.roots), Limits(fragments_max=2))
    first = registrar.tick(spec, {})
    assert first.has_more
    assert not registrar.tick(spec, first.cursors).has_more


def test_a_missing_file_makes_no_hive_partition(registrar, files, metastore, spec):
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    offsets = registrar.tick(spec, {}).cursors
    gone = files.append("events/part=0", lines(1, 1), postfix=HOUR_6)
    (files.root / gone.content_path).unlink()
    files.append("events/part=0", lines(2, 1), postfix="date=2026-01-02/hour=07")
    report = registrar.tick(spec, offsets)
    assert "there is no file" in report.errors[0]
    assert report.offsets == {"events/part=0": gone.begin}
    _, found = partitions(metastore)
    assert sorted(found) == [("0", "2026-01-02", "5"), ("0", "2026-01-02", "7")]
    files.persist(gone, postfix=HOUR_6)
    assert registrar.tick(spec, report.cursors).updates[0].state.rows == 1


def test_parameters_that_others_gave_a_partition_stay(registrar, files, metastore, spec):
    files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    offsets = registrar.tick(spec, {}).cursors
    with metastore.connect() as session:
        table = session.table("s", "events")
        (partition,) = session.partitions(table)
        partition.parameters["owner"] = "somebody"
        session.alter_partitions(table, [partition])
    files.append("events/part=0", lines(1, 1), postfix=HOUR_5)
    (update,) = registrar.tick(spec, offsets).updates
    _, found = partitions(metastore)
    assert found[update.values].parameters["owner"] == "somebody"
    assert update.state.rows == 2


def test_two_journals_in_one_hive_partition_are_refused(registrar, files, metastore, spec):
    """As when a journal is deleted, and one made that lies deeper and writes to the same place."""
    first = files.append("events/part=0", lines(0, 2), postfix=HOUR_5)
    registrar.tick(spec, {})
    _, before = partitions(metastore)
    files.remove("events/part=0")
    other = files.append("events/part=0/date=2026-01-02", lines(0, 3), postfix="hour=05")
    assert other.content_path.rpartition("/")[0] == first.content_path.rpartition("/")[0]
    report = registrar.tick(spec, {})
    assert "holds journal events/part=0 already" in report.errors[0]
    assert report.offsets == {"events/part=0/date=2026-01-02": 0}
    assert partitions(metastore)[1] == before


@pytest.mark.parametrize("with_table", [True, False])
def test_a_first_file_that_is_gone_keeps_neither_table_nor_hour_from_queries(
    registrar, files, spec, with_table
):
    cursors = {}
    if with_table:
        files.append("events/part=1", lines(0, 1), postfix=HOUR_5)
        cursors = registrar.tick(spec, {}).cursors
    gone = files.append("events/part=0", lines(0, 1), postfix=HOUR_5)
    files.append("events/part=0", lines(1, 2), postfix=HOUR_5)
    (files.root / gone.content_path).unlink()
    report = registrar.tick(spec, cursors)
    (update,) = report.updates
    assert (update.key[-6:], update.state.rows) == ("hour=5", 2)
    (error,) = report.errors
    assert gone.content_name in error
    assert report.offsets["events/part=0"] == gone.begin


def test_no_table_and_no_hour_is_made_of_files_that_are_all_gone(registrar, files, metastore, spec):
    """A wrong root, most likely."""
    gone = [files.append("events/part=0", lines(n, 1), postfix=HOUR_5) for n in range(3)]
    for one in gone:
        (files.root / one.content_path).unlink()
    with pytest.raises(LakeError, match="there is no file"):
        registrar.tick(spec, {})
    files.append("events/part=1", lines(0, 1), postfix=HOUR_5)
    report = registrar.tick(spec, {})
    assert [u.journal for u in report.updates] == ["events/part=1"]
    assert len(partitions(metastore)[1]) == 1
    assert len(report.errors) == 1


def test_a_fragment_that_brokers_cannot_read_holds_up_no_other(files, metastore, spec):
    """Its store does not answer; of a store that this process does not reach, brokers are asked."""
    for part in range(3):
        files.append(f"events/part={part}", lines(0, 1), postfix=HOUR_5)

    registrar = Registrar(files, metastore, StoreRoots(files.roots))
    count = FragmentContent.count

    def failing(self, fragment, *arguments, **options):
        if fragment.journal == "events/part=1":
            raise TransportError("no answer")
        return count(self, fragment, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FragmentContent, "count", failing)
        report = registrar.tick(spec, {})
    assert sorted(u.journal for u in report.updates) == ["events/part=0", "events/part=2"]
    assert report.errors == ["no answer"]
    assert [u.journal for u in registrar.tick(spec, report.cursors).updates] == ["events/part=1"]
