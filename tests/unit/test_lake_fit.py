"""What fragments hold, and what becomes of tables that hold what does not fit."""

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import SchemaMismatch
from gazette_platform.lake import Registrar, StoreRoots, parse_table_spec
from gazette_platform.lake.fit import FitChecker

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
    assert (found.kind, found.begin, found.is_error) == ("fit", bad.begin, True)
    assert "holds 4 values or lines that do not fit" in found.text
    assert "id (bigint): 2, such as '5.0'; price (decimal(10,2)): 1, such as '\"1\"'" in found.text
    assert "not JSON: 1, such as 'nope'" in found.text
    assert "Trino fails" not in found.text


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


# --------------------------------------------------------------------------- first samples


def test_bad_first_fragments_refuse_no_table_for_ever(files, registrar):
    for _ in range(9):
        files.append("events/part=0", b'{"id":"many"}\n', postfix=HOUR_5)
    with pytest.raises(SchemaMismatch, match="column id is bigint"):
        registrar.tick(spec_of(), {})
    good = files.append("events/part=0", GOOD, postfix=HOUR_5)
    report = registrar.tick(spec_of(), {})
    assert report.offsets["events/part=0"] == good.end
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
