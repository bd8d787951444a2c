"""Hostile specs, cursors, parameters, notes and texts: one victim, in little time, and reported."""

import base64
import json
import os
import threading
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import sqlglot
from dagster import AutomationCondition
from lake_bench import FragmentFiles

from gazette_platform.cli.output import note, print_table
from gazette_platform.errors import LakeError, SchemaMismatch, ValidationError
from gazette_platform.lake import StoreRoots
from gazette_platform.lake.engines.ddl import MountedTable, create_statement
from gazette_platform.lake.engines.spark import parse_properties
from gazette_platform.lake.engines.trino import TrinoSession
from gazette_platform.lake.inference.infer import infer_spec
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.raw.set_aside import SetAside
from gazette_platform.lake.reading.scanners import JsonScanner
from gazette_platform.lake.rollups.spec import parse_rollup, read_rollup_folder
from gazette_platform.lake.spec.folder import read_spec_folder, specs_by_file
from gazette_platform.lake.spec.layout import Layout
from gazette_platform.lake.spec.table_spec import parse_table_spec, read_table_spec
from gazette_platform.ops.clock import SystemClock
from gazette_platform.sensors.cursor import SensorCursor, pack

HEAD = "name: s.events\nselector: name:prefix=events/\nformat: json\n"
GOOD = HEAD + "columns: [{name: id, type: bigint}]\n"
ROLLUP = "-- name: r.events\n-- sources: [s.events]\n"
WIDE = f"struct<{','.join(f'field_{n}:int' for n in range(2000))}>"

# What took minutes, or for ever, takes fractions of a second now, or some seconds on a busy machine.
DEADLINE_S = 60.0


def within_deadline(work):
    """What `work` gives; fails, and leaves it behind, if it takes too long."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert found, "it takes longer than a tick has, or failed"
    return found[0]


def texts_of(errors):
    return [str(error) for error in errors]


# ------------------------------------------------------------------- files of specs


@pytest.fixture
def folder(tmp_path):
    for engine in ("trino", "spark"):
        (tmp_path / "rollups" / engine).mkdir(parents=True)
    (tmp_path / "rollups" / "trino" / "good.sql").write_text(f"{ROLLUP}SELECT * FROM events")
    (tmp_path / "good.yaml").write_text(GOOD)
    return tmp_path


def test_pipe_among_specs_keeps_no_caller_waiting(folder):
    os.mkfifo(folder / "pipe.yaml")
    os.mkfifo(folder / "rollups" / "trino" / "pipe.sql")
    found = within_deadline(lambda: read_spec_folder(folder))
    assert list(found.specs) == ["s.events"]
    assert texts_of(found.errors) == ["pipe.yaml: cannot be read: it is a pipe or a device"]
    rollups = within_deadline(lambda: read_rollup_folder(str(folder / "rollups"), ()))
    assert (list(rollups.specs), list(rollups.errors)) == (["r.events"], ["trino/pipe.sql"])


def test_of_a_file_no_more_is_read_than_a_spec_may_have(folder):
    for path in (folder / "huge.yaml", folder / "rollups" / "trino" / "huge.sql"):
        with path.open("wb") as file:
            file.truncate(1 << 30)
    tracemalloc.start()
    try:
        tables = read_spec_folder(folder)
        rollups = read_rollup_folder(str(folder / "rollups"), ())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
    assert "huge.yaml: is 1073741824 bytes; a table spec has at most" in texts_of(tables.errors)[0]
    assert "is 1073741824 bytes; a rollup has" in str(rollups.errors["trino/huge.sql"])


def test_name_that_is_not_text_is_reported_as_one(folder):
    bad = b"\xff\xfe"
    for path in (os.fsencode(folder), os.fsencode(folder / "rollups" / "spark")):
        for kind in (b".yaml", b".sql"):
            Path(os.fsdecode(path + b"/" + bad + kind)).write_text(
                GOOD.replace("s.events", "s.others")
            )
    tables = read_spec_folder(folder)
    rollups = read_rollup_folder(str(folder / "rollups"), ())
    # All of this goes to Dagster as JSON.
    for found in (*texts_of(tables.errors), *rollups.errors, tables.digest, rollups.digest):
        found.encode()
    assert list(tables.specs) == ["s.events"]
    assert list(specs_by_file(folder)) == ["good.yaml"]
    assert texts_of(tables.errors) == ["\\xff\\xfe.yaml: has a name that is not UTF-8: rename it"]


# ------------------------------------------------------------------- what is in them


@pytest.mark.parametrize(
    "text",
    [
        f"columns: [&c {{name: id, type: '{WIDE}'}}, {','.join(['*c'] * 50_000)}]\n",
        f"columns: [{{name: a, type: int, comment: &t '{'x' * 500_000}'}}, "
        + ", ".join(f"{{name: c{n}, type: int, comment: *t}}" for n in range(1900))
        + "]\n",
        "columns: [{name: id, type: int}]\n" + "".join(f"k{n}: 1\n" for n in range(20_000)),
        f"columns: [{{name: id, type: int}}]\ncomment: 1{':59' * 300_000}\n",
    ],
    ids=["types", "comments", "keys", "base 60"],
)
def test_a_short_file_that_stands_for_much_is_refused_in_no_time(text):
    spec, errors = within_deadline(lambda: read_table_spec(HEAD + text))
    assert spec is None
    assert 1 <= len(errors) <= 101
    assert sum(map(len, texts_of(errors))) < 100_000


def test_invalid_selector_is_not_printed_whole():
    _, errors = read_table_spec(GOOD.replace("name:prefix=events/", f"'{'(' * 500_000}'"))
    assert len(str(errors[0])) < 1000


def test_a_spec_as_large_as_real_ones_is_taken():
    columns = "".join(f"  - {{name: c{n}, type: 'array<int>'}}\n" for n in range(2000))
    assert len(parse_table_spec(f"{HEAD}columns:\n{columns}").columns) == 2000


@pytest.mark.parametrize(
    "header",
    [
        f"-- sources: [{','.join(f's.e{n}' for n in range(50_000))}]\n",
        f"-- sources: [s.events]\n-- cron: '{'1,' * 100_000}1 * * * *'\n",
        f"-- sources: [s.events]\n-- comment: 1{':59' * 300_000}\n",
    ],
    ids=["sources", "cron", "base 60"],
)
def test_a_rollup_of_far_too_much_is_refused_in_no_time(header):
    def refused():
        with pytest.raises(ValidationError) as caught:
            parse_rollup(f"-- name: r.events\n{header}SELECT * FROM events", engine="trino")
        return str(caught.value)

    assert len(within_deadline(refused)) < 100_000


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 2,4 *", "0 0 31 */11,4 *", "5 4 31 6-6 *"])
def test_a_cron_that_never_comes_is_refused_for_dagster_would_fail_at_all_rollups(cron):
    text = f"{ROLLUP}-- cron: '{cron}'\nSELECT * FROM events"
    if "*/11" in cron:  # January and December have that day
        assert parse_rollup(text, engine="trino").cron == cron
        return
    with pytest.raises(ValidationError, match="never comes"):
        parse_rollup(text, engine="trino")


@pytest.mark.parametrize("cron", ["0 0 29 2 *", "0 0 1,31 2 *", "0 0 25/3 2 *", "0 0 */31 4 *"])
def test_a_cron_that_comes_at_times_is_taken_by_dagster_as_well(cron):
    spec = parse_rollup(f"{ROLLUP}-- cron: '{cron}'\nSELECT * FROM events", engine="trino")
    assert AutomationCondition.cron_tick_passed(spec.cron)


# ------------------------------------------------------------------- cursors and parameters


def packed(content):
    text = base64.b85encode(zlib.compress(content, 9)).decode()
    return json.dumps({"__class__": f"z1:{text}"})


@pytest.mark.parametrize(
    "text",
    [
        packed(b'{"tables":[' + b" " * (256 << 20) + b"]}"),
        packed(b"[" * 500_000),
        packed(b"{}")[:-6] + '"}',
        "[" * 500_000,
    ],
    ids=["bomb", "deep inside", "cut", "deep"],
)
def test_a_cursor_that_is_none_says_how_to_reset_it(text):
    tracemalloc.start()
    try:
        with pytest.raises(ValidationError, match="clear it in the Dagster UI"):
            SensorCursor.parse(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 << 20


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epoch", [1]),
        ("epoch", "x"),
        ("rests_from", {}),
        ("epoch", 1e999),
        ("sweep", [1, 2, 1e999]),
    ],
)
def test_a_number_of_a_cursor_that_is_none_is_as_if_it_were_not_there(key, value):
    raw = {**SensorCursor().registered.to_json(), key: value}
    assert SensorCursor.parse(json.dumps({"__class__": pack(raw)})) == SensorCursor()


def test_cursors_are_read_as_they_are_written():
    cursor = SensorCursor(epoch=3, rests_from=1_700_000_000, turn="s.events")
    assert SensorCursor.parse(cursor.dump()) == cursor


STATE = {
    "version": 1,
    "journal": "events/a",
    "ranges": [[0, 5]],
    "fragments": 1,
    "rows": 1,
    "content_bytes": 5,
    "stored_bytes": 5,
}


@pytest.mark.parametrize(
    "changed",
    [
        {"ranges": [["0", 5]]},
        {"ranges": [[None, 5]]},
        {"rows": "5"},
        {"rows": 1.5},
        {"fragments": None},
        {"content_bytes": []},
        {"stored_bytes": "5"},
        {"aside": [["0", 5]]},
        {"uncounted": [["0", 5, "", 0]]},
        {"moving": [5]},
        {"journal": None},
        {"rows": None, "rows_known": "5"},
    ],
    ids=str,
)
def test_an_account_that_others_wrote_is_refused_when_it_is_read(changed):
    """Not amid the work on a table: nothing of its other Hive partitions would be registered either."""
    with pytest.raises(LakeError, match="was changed by others"):
        PartitionState.from_parameters({"gazette.state": json.dumps({**STATE, **changed})})


def test_an_account_deeper_than_calls_may_be_is_refused_too():
    with pytest.raises(LakeError, match="was changed by others"):
        PartitionState.from_parameters({"gazette.state": "[" * 500_000})


def test_accounts_are_read_as_they_are_written():
    state = PartitionState.from_parameters({"gazette.state": json.dumps(STATE)})
    state = state.with_aside(9, 12).adding("events/a", 5, 9, rows=None, stored_bytes=2, stamp="7 8")
    assert PartitionState.from_parameters(state.to_parameters()) == state


# ------------------------------------------------------------------- texts of others


def test_a_note_deeper_than_calls_may_be_hides_no_other(tmp_path):
    files = FragmentFiles(tmp_path)
    spec = parse_table_spec(GOOD)
    for _ in range(2):
        files.append("events/a", b'{"id":1}\n', postfix="_aside")
    first, second = sorted((tmp_path / "events" / "a" / "_aside").iterdir())
    note_of = first.with_name(f".{first.name}.json")
    note_of.write_bytes(b"[" * 60_000)
    second.with_name(f".{second.name}.json").write_text('{"why": "b"}')
    work = SetAside(files, StoreRoots(files.roots), SystemClock())
    whys = [each.why for each in work.files_aside(spec)]
    assert len(whys) == 2
    assert "cannot be read" in whys[0]
    assert whys[1] == "b"


def test_what_people_are_reported_moves_no_cursor_of_their_terminal(capsys):
    print_table(["why"], [["a\x1b]0;owned\x07b"]])
    note("c\x1b[2Jd")
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "a\\x1b]0;owned\\x07b" in told.out
    assert "c\\x1b[2Jd" in told.err


def test_an_address_with_a_password_is_refused_and_not_shown():
    with pytest.raises(ValidationError, match="GAZETTE_TRINO_PASSWORD") as caught:
        TrinoSession("https://me:s3cr3t@trino.example:8443")
    assert "s3cr3t" not in str(caught.value)


def test_a_line_of_properties_that_is_none_is_not_shown():
    with pytest.raises(ValidationError, match=r"spark\.properties:2") as caught:
        parse_properties("spark.a b\n= s3cr3t\n", "spark.properties")
    assert "s3cr3t" not in str(caught.value)


def test_line_of_countless_fields_is_not_csv():
    def refused():
        with pytest.raises(SchemaMismatch, match="at most 2000 columns"):
            infer_spec("s.events", "name=x", [b"," * (1 << 20)], data_format="csv")
        return True

    assert within_deadline(refused)


def test_of_a_bad_line_only_what_it_holds_is_looked_at():
    """Lines may be short, very many, and of a table of 2,000 columns."""
    columns = "".join(f"  - {{name: c{n}, type: int}}\n" for n in range(2000))
    scanner = JsonScanner(parse_table_spec(f"{HEAD}columns:\n{columns}"))
    looks = []

    def counted(is_fit):
        return lambda raw: looks.append(raw) or is_fit(raw)

    types = scanner._types
    scanner._types = replace(types, columns=[(c, k, counted(f)) for c, k, f in types.columns])
    scanner.feed(b'{"c0":"a"}\n{"c1":null,"c1999":[]}\n' * 100)
    found = scanner.report()
    assert {n: unfit.count for n, unfit in found.columns.items()} == {"c0": 100, "c1999": 100}
    assert found.breaking_unpartitioned == {"c1999"}
    assert len(looks) <= 3 * 200


@pytest.mark.parametrize("dialect", ["snowflake", "bigquery", "hive", "spark"])
def test_a_comment_ends_no_text_in_a_dialect_whose_texts_have_escapes(dialect):
    comment = "\\'; DROP TABLE s.events; --\\\nand more"
    spec = msgspec.structs.replace(parse_table_spec(GOOD), comment=comment)
    table = MountedTable(
        spec=spec, layout=Layout(("events",)), partitions=(), location="gs://b/events"
    )
    sql = create_statement(table, dialect)
    trees = [tree for tree in sqlglot.parse(sql, dialect=dialect) if tree is not None]
    assert not any(isinstance(tree, sqlglot.exp.Drop) for tree in trees)
    texts = {literal.this for tree in trees for literal in tree.find_all(sqlglot.exp.Literal)}
    assert comment in texts
    assert dialect != "bigquery" or "\nand more" not in sql
