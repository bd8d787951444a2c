"""What fragments hold, and what becomes of tables that hold what does not fit."""

import base64
import json

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import LakeError, SchemaMismatch
from gazette_platform.hive import CSV_ESCAPE, MetastoreSession
from gazette_platform.lake import Registrar, StoreRoots, ensure_views, parse_table_spec
from gazette_platform.lake.raw.audits.fit import FitChecker
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.tables import (
    DIGEST,
    evolved_table,
    is_current,
    table_definition,
    text_columns,
    with_text_columns,
)
from gazette_platform.lake.raw.views import exact_view
from gazette_platform.lake.spec.layout import Layout

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


def table_of(metastore):
    with metastore.connect() as session:
        return session.table("s", "events")


def types(metastore):
    """Types of the table's columns in Trino."""
    return {c.name: c.type for c in table_of(metastore).columns}


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
    assert "Trino's JSON reader" not in found.text


def test_any_json_value_fits_a_text(files, registrar):
    spec = spec_of("{name: note, type: string}")
    files.append(
        "events/part=0", b'{"note":{"a": 1}}\n{"note":1e22}\n{"note":"x"}\n', postfix=HOUR_5
    )
    assert registrar.tick(spec, {}).misfits == []


def test_invalid_lines_are_counted(files, registrar):
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


def test_many_columns_are_reported_in_few_words(files, registrar):
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


BAD = GOOD.replace(b"1.5", b'{"value":1.5}')


def test_column_that_trino_fails_at_becomes_text_everywhere(files, registrar, metastore):
    files.append("events/part=0", GOOD, postfix=HOUR_5)
    report = registrar.tick(spec_of(), {})
    declared = types(metastore)
    files.append("events/part=0", BAD, postfix=HOUR_6)
    report = registrar.tick(spec_of(), report.cursors)
    (found,) = report.misfits
    assert (
        "Trino shows price of s.events as JSON text. s.events_exact has the declared" in found.text
    )
    assert report.has_more
    assert not is_current(spec_of(), table_of(metastore))

    report = registrar.tick(spec_of(), report.cursors)
    assert (report.has_more, is_current(spec_of(), table_of(metastore))) == (False, True)
    assert types(metastore) == {**declared, "price": "string"}
    read = as_read(metastore, "part=0/hour=05", "part=0/hour=06")
    assert {columns["price"] for columns in read.values()} == {"string"}

    # It stays text, and others join it.
    files.append("events/part=0", GOOD + b'{"place":7}\n', postfix=HOUR_6)
    report = registrar.tick(spec_of(), report.cursors)
    registrar.tick(spec_of(), report.cursors)
    assert text_columns(spec_of(), table_of(metastore)) == {"price", "place"}


def test_text_column_is_marked_before_its_fragment_is_registered(
    files, registrar, metastore, monkeypatch
):
    """A crash between both must not lose the mark: nothing counts the fragment again."""
    files.append("events/part=0", GOOD, postfix=HOUR_5)
    report = registrar.tick(spec_of(), {})
    files.append("events/part=0", BAD, postfix=HOUR_5)

    def broken(*_):
        raise LakeError("the metastore went away")

    with monkeypatch.context() as patched:
        patched.setattr(MetastoreSession, "alter_partitions", broken)
        with pytest.raises(LakeError, match="went away"):
            registrar.tick(spec_of(), report.cursors)
    assert text_columns(spec_of(), table_of(metastore)) == {"price"}


def test_list_line_makes_the_columns_it_breaks_text(files, registrar, metastore):
    files.append("events/part=0", GOOD + b"[{},[2],[],[]]\n", postfix=HOUR_5)
    report = registrar.tick(spec_of(), {})
    assert report.misfits[0].unfit == 1
    assert text_columns(spec_of(), table_of(metastore)) == {"price"}


def test_table_without_hive_partitions_reads_numbers_as_text_too(files, registrar, metastore):
    files.append("events/log", GOOD + b'{"id":{},"place":7}\n')
    report = registrar.tick(spec_of(), {})
    rows = PartitionState.from_parameters(table_of(metastore).parameters).rows
    report = registrar.tick(spec_of(), report.cursors)
    assert not report.has_more
    assert types(metastore) == {
        "id": "string",
        "price": "decimal(10,2)",
        "tags": "array<int>",
        "place": "string",
    }
    assert PartitionState.from_parameters(table_of(metastore).parameters).rows == rows == 2


def test_column_that_trino_reads_as_text_may_become_a_string(files, registrar, metastore):
    files.append("events/part=0", GOOD + b'{"place":7}\n', postfix=HOUR_5)
    cursors = registrar.tick(spec_of(), {}).cursors
    cursors = registrar.tick(spec_of(), cursors).cursors
    as_string = spec_of(COLUMNS.replace("'struct<int:double>'", "string"))
    report = registrar.tick(as_string, cursors)
    assert report.is_changed
    assert is_current(as_string, table_of(metastore))
    assert text_columns(as_string, table_of(metastore)) == set()


def test_mark_that_comes_while_a_table_evolves_is_kept(files, registrar, metastore, monkeypatch):
    files.append("events/part=0", GOOD, postfix=HOUR_5)
    cursors = registrar.tick(spec_of(), {}).cursors
    wider = spec_of(f"{COLUMNS}, {{name: more, type: int}}")
    real = MetastoreSession.partitions_named

    def meanwhile(session, table, names):
        monkeypatch.setattr(MetastoreSession, "partitions_named", real)
        found = real(session, table, names)
        with metastore.connect() as its:
            marked = with_text_columns(wider, its.table("s", "events"), ["price"])
            its.alter_table(marked, is_cascading=False)
        return found

    monkeypatch.setattr(MetastoreSession, "partitions_named", meanwhile)
    registrar.tick(wider, cursors)
    assert text_columns(wider, table_of(metastore)) == {"price"}


def test_evolution_keeps_marks_that_are_newer_than_its_plan():
    spec, layout = spec_of(), Layout.parse("events/{part}")
    old = table_definition(spec, layout, "file:///f/events")
    marked = with_text_columns(spec, old, ["price"])
    wider = spec_of(f"{COLUMNS}, {{name: more, type: int}}")
    evolved = evolved_table(marked, table_definition(wider, layout, old.location))
    assert text_columns(wider, evolved) == {"price"}
    assert not is_current(wider, evolved)


def test_very_many_text_columns_are_marked_as_all_of_them():
    names = [f"column_{n}_{'x' * 60}" for n in range(80)]
    listed = ", ".join(f"{{name: {n}, type: 'map<string,int>'}}" for n in names)
    spec = spec_of(f"{listed}, {{name: id, type: bigint}}, {{name: s, type: string}}")
    table = table_definition(spec, Layout.parse("events/{part}"), "file:///f/events")
    marked = with_text_columns(spec, table, names)
    assert text_columns(spec, marked) == {*names, "id"}
    assert all(len(value) <= 4000 for value in marked.parameters.values())


def test_exact_view_gives_text_columns_their_types(files, registrar, metastore):
    files.append("events/part=0", BAD + GOOD, postfix=HOUR_5)
    cursors = registrar.tick(spec_of(), {}).cursors
    files.append("events/part=0", BAD, postfix=HOUR_6)
    registrar.tick(spec_of(), cursors)
    with metastore.connect() as session:
        ensure_views(session, spec_of(), session.table("s", "events"), {})
        view = session.table("s", "events_exact")
    definition = json.loads(base64.b64decode(view.view_original.split(" ")[3]))
    assert 'TRY_CAST("price" AS decimal(10,2)) AS "price"' in definition["originalSql"]
    assert {"name": "price", "type": "decimal(10,2)"} in definition["columns"]
    assert [c.type for c in view.columns][:2] == ["bigint", "decimal(10,2)"]
    assert "TRY_CAST" not in view.view_expanded


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


def test_exact_view_reads_a_marked_column_as_it_is_until_it_is_text():
    """A reader of text, over a column that is a number still, fails in Trino."""
    table = table_definition(spec_of(), Layout.parse("events/{part}"), "file:///f/events")
    marked = with_text_columns(spec_of(), table, ["price"])
    view = exact_view(spec_of(), marked, {})
    definition = json.loads(base64.b64decode(view.view_original.split(" ")[3]))
    assert "TRY_CAST" not in definition["originalSql"]
