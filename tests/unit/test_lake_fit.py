"""What fragments hold, and what becomes of tables that hold what does not fit."""

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import LakeError, SchemaMismatch
from gazette_platform.hive import CSV_ESCAPE, HIDDEN, MetastoreSession
from gazette_platform.lake import Registrar, StoreRoots, parse_table_spec
from gazette_platform.lake.fit import FitChecker
from gazette_platform.lake.partition_state import PartitionState
from gazette_platform.lake.tables import DIGEST

COLUMNS = (
    "{name: id, type: bigint}, {name: price, type: 'decimal(10,2)'}, "
    "{name: tags, type: array<int>}, {name: place, type: 'struct<int:double>'}"
)
GOOD = b'{"id":1,"price":1.5,"tags":[1],"place":{"int":0.5}}\n'
HOUR_5, HOUR_6 = "hour=05", "hour=06"


def spec_of(columns=COLUMNS, *, format_="json", extra=""):
    return parse_table_spec(
        f"{{name: s.events, selector: 'name:prefix=events/', format: {format_}, "
        f"columns: [{columns}]{extra}}}"
    )


@pytest.fixture
def files(tmp_path):
    return FragmentFiles(tmp_path / "fragments")


@pytest.fixture
def metastore():
    return MemoryMetastore()


@pytest.fixture
def registrar(files, metastore):
    return Registrar(files, metastore, StoreRoots(files.roots))


def as_read(metastore, *names):
    found = metastore.thrift.get_partitions_by_names("s", "events", list(names))
    return {tuple(p.values): {c.name: c.type for c in p.sd.cols} for p in found}


def hidden(metastore, name):
    (partition,) = metastore.thrift.get_partitions_by_names("s", "events", [name])
    parameters = partition.sd.serdeInfo.parameters
    return {k.removeprefix("mapping.") for k in parameters if k.startswith("mapping.")}


def test_every_value_that_does_not_fit_is_counted_and_shown(files, registrar):
    files.append("events/part=0", GOOD, postfix=HOUR_5)
    report = registrar.tick(spec_of(), {})
    assert report.misfits == []
    bad = files.append(
        "events/part=0",
        GOOD * 5000 + b'{"id":5.0}\n{"id":"x","price":"1"}\nnope\n' + GOOD,
        postfix=HOUR_5,
    )
    (found,) = registrar.tick(spec_of(), report.cursors).misfits
    assert (found.kind, found.begin, found.unfit) == ("fit", bad.begin, 3)
    assert "holds 4 values or lines that do not fit" in found.text
    first = bad.begin + 5000 * len(GOOD)
    second = first + len(b'{"id":5.0}\n')
    assert f"id (bigint): 2, such as '5.0' at offset {first}; " in found.text
    assert f"price (decimal(10,2)): 1, such as '\"1\"' at offset {second}" in found.text
    assert "not JSON: 1, such as 'nope'" in found.text
    assert "Trino would fail" not in found.text


def test_texts_that_engines_write_in_forms_of_their_own_get_advice_that_helps(files, registrar):
    spec = spec_of("{name: note, type: string}")
    files.append("events/part=0", b'{"note":{"a": 1}}\n{"note":1e22}\n', postfix=HOUR_5)
    (found,) = registrar.tick(spec, {}).misfits
    assert "note (string): 2, such as" in found.text
    assert "without blanks, or all of these as JSON texts" in found.text
    assert "Correct the types" not in found.text


def test_a_wrong_type_does_not_hide_the_advice_for_texts(files, registrar):
    spec = spec_of("{name: id, type: bigint}, {name: note, type: string}")
    files.append("events/part=0", b'{"id":"x","note":{"a": 1}}\n' + GOOD, postfix=HOUR_5)
    (found,) = registrar.tick(spec, {}).misfits
    assert "Correct the types in the table spec" in found.text
    assert "without blanks, or all of these as JSON texts" in found.text


def test_lines_that_are_no_records_are_counted(files, registrar):
    files.append("events/part=0", GOOD + b"nope\n\n", postfix=HOUR_5)
    (found,) = registrar.tick(spec_of(), {}).misfits
    assert found.unfit == 2
    at = len(GOOD)
    shown = f"not JSON: 1, such as 'nope' at offset {at}; a blank line: 1, at offset {at + 5}."
    assert shown in found.text
    assert found.text.endswith("No type takes such lines: correct what writes them")


def test_an_audit_counts_the_same(files, registrar):
    fragment = files.append("events/part=0", GOOD + b'{"id":5.0}\n', postfix=HOUR_5)
    (found,) = registrar.tick(spec_of(), {}).misfits
    checker = FitChecker(files, StoreRoots(files.roots))
    assert checker.check(spec_of(), fragment)[0] == found
    assert checker.look_again(spec_of(), found) == found
    assert checker.look_again(spec_of("{name: price, type: string}"), found) is None


def test_many_columns_are_told_in_few_words(files, registrar):
    names = [f"c{n}" for n in range(40)]
    columns = ", ".join(f"{{name: {n}, type: int}}" for n in names)
    bad = "{" + ",".join(f'"{n}":{{}}' for n in names) + "}\n"
    good = "{" + ",".join(f'"{n}":1' for n in names) + "}\n"
    files.append("events/part=0", good.encode() * 99 + bad.encode(), postfix=HOUR_5)
    (found,) = registrar.tick(spec_of(columns), {}).misfits
    assert "28 other columns: 28" in found.text
    assert len(found.text) < 1500


# --------------------------------------------------------------------------- hidden columns


def test_hive_partitions_are_read_as_types_that_take_any_value(files, registrar, metastore):
    files.append("events/part=0", GOOD, postfix=HOUR_5)
    registrar.tick(spec_of(), {})
    assert as_read(metastore, "part=0/hour=05") == {
        ("0", "05"): {
            "id": "string",
            "price": "decimal(10,2)",
            "tags": "array<string>",
            "place": "struct<int:string>",
        }
    }
    with metastore.connect() as session:
        types = {c.name: c.type for c in session.table("s", "events").columns}
    assert types["id"] == "bigint"
    assert types["place"] == "struct<int:double>"


def test_a_column_at_which_trino_fails_is_hidden_where_it_does(files, registrar, metastore):
    files.append("events/part=0", GOOD, postfix=HOUR_5)
    files.append("events/part=0", GOOD + b'{"id":{},"price":{"value":6.1}}\n', postfix=HOUR_6)
    report = registrar.tick(spec_of(), {})
    assert hidden(metastore, "part=0/hour=05") == set()
    assert hidden(metastore, "part=0/hour=06") == {"price"}
    text = "Trino would fail at a list or object in price, or at anything else"
    assert text in report.misfits[0].text
    assert "all of the column in this Hive partition" in report.misfits[0].text

    # It stays hidden, and others join it.
    files.append("events/part=0", GOOD + b'{"place":7}\n', postfix=HOUR_6)
    registrar.tick(spec_of(), report.cursors)
    assert hidden(metastore, "part=0/hour=06") == {"price", "place"}

    # A type that takes any value ends it.
    registrar.tick(spec_of(COLUMNS.replace("'decimal(10,2)'", "string")), report.cursors)
    assert hidden(metastore, "part=0/hour=06") == {"place"}


def test_a_list_at_which_trino_fails_is_noted(files, registrar, metastore):
    files.append("events/part=0", GOOD + b"[{},[2],[],[]]\n", postfix=HOUR_5)
    report = registrar.tick(spec_of(), {})
    (found,) = report.misfits
    assert report.accounts[0].state.unfit[0].is_unreadable
    assert "Trino's queries of price in this Hive partition fail at a line that is a" in found.text
    assert hidden(metastore, "part=0/hour=05") == set()


def test_a_table_without_hive_partitions_hides_columns_by_their_keys(files, registrar, metastore):
    files.append("events/log", GOOD + b'{"id":{},"place":[{}]}\n')
    report = registrar.tick(spec_of(), {})
    with metastore.connect() as session:
        table = session.table("s", "events")
    assert table.parameters[HIDDEN] == "id,place"
    assert table.parameters["mapping.id"] == table.parameters["mapping.place"] != ""
    assert "mapping.price" not in table.parameters

    # A change of the spec keeps what is hidden, unless the type takes any value.
    registrar.tick(spec_of(COLUMNS.replace("bigint", "string")), report.cursors)
    with metastore.connect() as session:
        parameters = session.table("s", "events").parameters
    assert "mapping.id" not in parameters
    assert "mapping.place" in parameters


# --------------------------------------------------------------------------- tables that exist


def test_hive_partitions_follow_a_new_definition(files, registrar, metastore, monkeypatch):
    files.append("events/part=0", GOOD, postfix=HOUR_5)
    report = registrar.tick(spec_of(), {})
    wider = spec_of(f"{{name: first, type: double}}, {COLUMNS}")

    # A crash on the way leaves a table that is not done, and the next tick goes on.
    def broken(*_):
        raise LakeError("the metastore went away")

    with monkeypatch.context() as patched:
        patched.setattr(MetastoreSession, "alter_partitions", broken)
        with pytest.raises(LakeError, match="went away"):
            registrar.tick(wider, report.cursors)
    with metastore.connect() as session:
        assert session.table("s", "events").parameters[DIGEST] != wider.digest
    registrar.tick(wider, report.cursors)
    assert as_read(metastore, "part=0/hour=05")["0", "05"]["first"] == "string"
    with metastore.connect() as session:
        assert session.table("s", "events").parameters[DIGEST] == wider.digest


def test_a_table_of_an_older_release_follows_the_new_definition(files, registrar, metastore):
    spec = spec_of("{name: a, type: string}, {name: b, type: string}", format_="csv")
    files.append("events/part=0", b"1,2\n", postfix=HOUR_5)
    report = registrar.tick(spec, {})
    thrift = metastore.thrift
    table = thrift.get_table("s", "events")
    (partition,) = thrift.get_partitions_by_names("s", "events", ["part=0/hour=05"])
    # As older releases made them.
    table.parameters[DIGEST] = "0123456789abcdef"
    for made in (table, partition):
        made.sd.serdeInfo.parameters["escapeChar"] = "\\"
    thrift._tables["s", "events"] = table
    thrift.alter_partitions("s", "events", [partition])
    files.append("events/part=0", b"1,2,3\n", postfix=HOUR_5)  # not what ends it
    again = registrar.tick(spec, report.cursors)
    assert again.is_changed
    (partition,) = thrift.get_partitions_by_names("s", "events", ["part=0/hour=05"])
    assert partition.sd.serdeInfo.parameters["escapeChar"] == CSV_ESCAPE
    assert thrift.get_table("s", "events").sd.serdeInfo.parameters["escapeChar"] == CSV_ESCAPE
    assert PartitionState.from_parameters(partition.parameters).rows == 2


# --------------------------------------------------------------------------- first samples


def test_bad_first_fragments_refuse_no_table_for_ever(files, registrar):
    for _ in range(9):
        files.append("events/part=0", b'{"id":"many"}\n', postfix=HOUR_5)
    with pytest.raises(SchemaMismatch, match="column id is bigint"):
        registrar.tick(spec_of(), {})
    good = files.append("events/part=0", GOOD, postfix=HOUR_5)
    report = registrar.tick(spec_of(), {})
    assert report.cursors["events/part=0"].offset == good.end
    assert len(report.misfits) == 9


def test_csv_records_of_several_lines_are_refused(files, registrar):
    spec = spec_of("{name: a, type: string}, {name: b, type: string}", format_="csv")
    files.append("events/part=0", b'1,"two\nlines"\n2,x\n', postfix=HOUR_5)
    with pytest.raises(SchemaMismatch, match=r"records of .* are of several lines"):
        registrar.tick(spec, {})


def test_csv_keeps_backslashes_and_quotes(files, registrar):
    spec = spec_of("{name: a, type: string}, {name: b, type: string}", format_="csv")
    files.append("events/part=0", b'C:\\temp,"say ""hi"""\nx,"\\"\n', postfix=HOUR_5)
    assert registrar.tick(spec, {}).misfits == []
    files.append("events/part=0", b"a,b\n1,2\n", postfix=HOUR_5)
    (found,) = registrar.tick(spec, {}).misfits
    assert "a header, which the engines show as a row: 1, such as 'a,b'" in found.text
