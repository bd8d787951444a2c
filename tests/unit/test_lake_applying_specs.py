"""Specs on their way into the folder: every objection at once, and files that change as a whole."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from journal_specs import journal_spec

from gazette_platform.lake.raw.applying_specs import (
    SpecFile,
    problems_among,
    problems_with_data,
    problems_with_table,
    put_files,
)
from gazette_platform.lake.raw.planning import problems_with_journals
from gazette_platform.lake.raw.tables import table_definition
from gazette_platform.lake.spec.folder import specs_by_file
from gazette_platform.lake.spec.layout import Layout, StoreRoots, expected_layout, expected_location
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.protocol import CompressionCodec

SPEC = """name: shop.orders
selector: name:prefix=orders/
format: json
columns:
  - {name: order, type: bigint}
"""
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROOTS = StoreRoots({"file:///": "file:///f/"})


def journal(name, *, codec=CompressionCodec.GZIP, stores=("file:///",), template=""):
    return journal_spec(name, codec=codec, stores=stores, refresh_s=60, postfix=template)


def file(name, text=SPEC, folder="/nonexistent"):
    return SpecFile.of(name, text.encode(), Path(folder))


def told(problems):
    return " | ".join(map(str, problems))


def test_errors_name_file_and_key():
    found = file("a.yaml", SPEC.replace("bigint", "bignit").replace("shop.orders", "Shop"))
    assert found.spec is None
    assert len(found.errors) == 2
    assert "a.yaml: name: 'Shop'" in told(found.errors)
    assert "a.yaml: columns[0].type: unknown type 'bignit'" in told(found.errors)


@pytest.mark.parametrize("name", ["a.txt", "spec", ".a.yaml"])
def test_a_file_that_no_sensor_would_read_is_refused(name):
    assert "no sensor would read it" in told(file(name).errors)


def test_a_file_too_large_for_the_sensor_is_refused(tmp_path):
    text = SPEC + "#" * (1 << 20)
    (tmp_path / "a.yaml").write_text(text)
    assert specs_by_file(tmp_path) == {}
    assert f"a.yaml: is {len(text)} bytes; a table spec has at most" in told(
        file("a.yaml", text).errors
    )


def test_specs_are_checked_against_each_other_and_the_folder():
    stays = {
        "old.yaml": parse_table_spec(SPEC.replace("shop.orders", "shop.old")),
        "a.yaml": parse_table_spec(SPEC.replace("shop.orders", "shop.replaced")),
    }
    good = [file("a.yaml"), file("b.yaml", SPEC.replace("orders\n", "others\n", 1))]
    assert problems_among(good, stays) == []
    assert "a.yaml: is given twice" in told(problems_among([*good, file("a.yaml", "x: 1")], stays))
    twice = problems_among([*good, file("c.yaml")], stays)
    assert "c.yaml: name: table shop.orders is defined in a.yaml already" in told(twice)
    moved = problems_among([file("n.yaml", SPEC.replace("shop.orders", "shop.old"))], stays)
    assert "defined in old.yaml already" in told(moved)
    view = problems_among([file("v.yaml", SPEC.replace("shop.orders", "shop.old_exact"))], stays)
    assert "view that table shop.old of old.yaml gets" in told(view)


def test_journals_are_looked_at_before_the_first_fragment():
    spec = parse_table_spec(SPEC + "partitions: [{name: date, type: date}]\n")
    template = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
    assert "matches no journal" in told(problems_with_journals(spec, [], AT))
    good = [journal(f"orders/part={n}", template=template) for n in range(3)]
    assert problems_with_journals(spec, good, AT) == []
    assert str(expected_layout(good, AT)) == "orders/{part}/{date}"
    assert expected_location(good, expected_layout(good, AT), ROOTS) == "file:///f/orders"
    # Without the template nothing makes the partition column that the spec describes.
    bare = problems_with_journals(spec, [journal("orders/part=0")], AT)
    assert "partition key 'date' is in no journal name or path postfix" in told(bare)
    bad = [
        journal("orders/part=0", codec=CompressionCodec.SNAPPY),
        journal("orders/part=1", stores=()),
        journal("orders/other=1"),
    ]
    found = problems_with_journals(spec, bad, AT)
    assert [p.path for p in found] == ["selector"] * 3
    assert "codec SNAPPY" in told(found)
    assert "part=1 has no fragment store" in told(found)
    assert "differ in segment 2" in told(found)
    many = [journal(f"orders/part={n}", stores=()) for n in range(1000)]
    assert len(problems_with_journals(spec, many, AT)) < 10


def test_postfix_that_only_brokers_know_is_named():
    spec = parse_table_spec(SPEC)
    template = '{{ .Spool.Registers.ValueOf "x" }}/{{ index .Spool.Registers.Labels 3 }}'
    found = problems_with_journals(spec, [journal("orders/part=0", template=template)], AT)
    assert "is not known before a fragment is persisted" in told(found)


def test_the_table_that_exists_is_looked_at():
    spec = parse_table_spec(SPEC)
    journals = [journal("orders/part=0")]
    existing = table_definition(spec, Layout.parse("orders/{part}"), "file:///f/orders")
    narrowed = parse_table_spec(SPEC.replace("bigint", "int"))
    look = {"roots": ROOTS, "at": AT}
    assert problems_with_table(narrowed, journals, None, **look) == []
    assert problems_with_table(spec, journals, existing, **look) == []
    (problem,) = problems_with_table(narrowed, journals, existing, **look)
    assert "would narrow from bigint to int" in str(problem)


def test_data_has_to_fit_in_one_journal_at_least():
    spec = parse_table_spec(SPEC)
    good, bad = ("good", b'{"order": 1}\n'), ("bad", b'{"order": "x"}\n')
    assert problems_with_data(spec, []) == []
    assert problems_with_data(spec, [("empty", b"")]) == []
    assert problems_with_data(spec, [bad, good]) == []
    # An empty journal says nothing for the spec.
    (problem,) = problems_with_data(spec, [("empty", b"\n"), bad, ("empty", b"")])
    assert problem.path == "columns"
    assert "column order is bigint, but bad has" in str(problem)


def test_files_are_put_as_a_whole_and_only_if_changed(tmp_path):
    folder = tmp_path / "tables"
    first = [
        file("a.yaml", folder=folder),
        file("b.yaml", SPEC.replace("shop.orders", "shop.b"), folder),
    ]
    assert [f.is_changed for f in first] == [True, True]
    assert first[0].diff().startswith("--- /dev/null\n+++ b/a.yaml\n")
    assert put_files(first, folder) == ["a.yaml", "b.yaml"]
    assert sorted(p.name for p in folder.iterdir()) == ["a.yaml", "b.yaml"]
    assert list(specs_by_file(folder)) == ["a.yaml", "b.yaml"]
    again = [
        file("a.yaml", folder=folder),
        file("b.yaml", SPEC.replace("shop.orders", "shop.c"), folder),
    ]
    assert again[0].diff() == ""
    assert "-name: shop.b\n+name: shop.c\n" in again[1].diff()
    assert put_files(again, folder) == ["b.yaml"]
    assert specs_by_file(folder)["b.yaml"].name == "shop.c"


def test_a_file_that_cannot_be_put_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "tables"
    (folder / "a.yaml").mkdir(parents=True)
    with pytest.raises(OSError, match=r"a\.yaml"):
        put_files([file("a.yaml", folder=tmp_path / "elsewhere")], folder)
    assert [p.name for p in folder.iterdir()] == ["a.yaml"]
