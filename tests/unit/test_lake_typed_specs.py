"""Table specs with a section `typed:`: how they are read, from which files, and what two of them may not share."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from gazette_platform.cli.gazctl.arguments import (
    complete_all_tables,
    complete_tables,
    complete_typed_tables,
)
from gazette_platform.lake.raw.applying_specs import (
    SpecFile,
    files_to_put,
    problems_among,
    put_files,
)
from gazette_platform.lake.rollups import read_rollup_folder
from gazette_platform.lake.spec.folder import (
    problems_with_files,
    read_spec_folder,
    specs_by_file,
)
from gazette_platform.lake.spec.table_spec import json_schema_of, parse_table_spec, read_table_spec

RAW = """name: shop.orders
selector: name:prefix=orders/
format: json
columns:
  - {name: order, type: bigint}
  - {name: at, type: string}
"""
TYPED = RAW + "typed: {uuid: none, columns: [{name: at, type: timestamptz}]}\n"
BY_SCHEMA = RAW + "typed: {uuid: none, json_schema: orders.json}\n"
SCHEMA = {"properties": {"order": {"type": "integer"}, "note": {"type": "string"}}}


def told(errors):
    return " | ".join(map(str, errors))


def renamed(text, name, typed=""):
    text = text.replace("shop.orders", name)
    return text.replace("{uuid", f"{{name: {typed}, uuid") if typed else text


def read(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return read_spec_folder(folder)


# ------------------------------------------------------------------ one spec


def test_a_spec_has_its_typed_table():
    spec = parse_table_spec(TYPED)
    assert spec.typed is not None
    assert (spec.typed.name, spec.typed.source) == ("typed.orders", "shop.orders")
    assert spec.typed.quarantine == "typed.orders_quarantine"
    assert [(c.name, c.type) for c in spec.typed.columns] == [
        ("order", "bigint"),
        ("at", "timestamptz"),
    ]
    assert parse_table_spec(RAW).typed is None


def test_raw_tables_do_not_follow_a_section():
    """Their digest is what registration, accounts and audits go by: another one repeats them."""
    raw, typed = parse_table_spec(RAW), parse_table_spec(TYPED)
    assert typed.digest == raw.digest
    other = parse_table_spec(TYPED.replace("uuid: none", "uuid: id"))
    assert other.digest == raw.digest
    assert other.typed.digest != typed.typed.digest


def test_errors_of_the_section_are_reported_with_those_of_the_spec():
    _, errors = read_table_spec(TYPED.replace("timestamptz", "time") + "fresh_within: 1s\n")
    assert "fresh_within: 1s is less than" in told(errors)
    assert "typed.columns[0].type" in told(errors)
    # Of unknown columns, nothing can be said.
    _, errors = read_table_spec(TYPED.replace("timestamptz", "time").replace("bigint", "bignit"))
    assert [error.path for error in errors] == ["columns[0].type"]
    _, errors = read_table_spec(RAW + "typed:\n")
    assert "typed: is not a mapping" in told(errors)


def test_the_file_that_a_section_names():
    assert json_schema_of(BY_SCHEMA) == "orders.json"
    assert json_schema_of(BY_SCHEMA.encode()) == "orders.json"
    for text in (RAW, TYPED, "typed: {json_schema: 1}", "typed: [json_schema]", "[", "x: *a"):
        assert json_schema_of(text) == ""


# ------------------------------------------------------------------ folders


def test_a_json_schema_beside_the_spec_is_read(tmp_path):
    (tmp_path / "orders.json").write_text(json.dumps(SCHEMA))
    folder = read(tmp_path, orders=BY_SCHEMA)
    assert folder.errors == []
    typed = folder.specs["shop.orders"].typed
    assert [(c.name, c.type) for c in typed.columns] == [("order", "bigint"), ("note", "string")]

    more = {"properties": {**SCHEMA["properties"], "late": {"type": "boolean"}}}
    (tmp_path / "orders.json").write_text(json.dumps(more))
    changed = read_spec_folder(tmp_path)
    assert [c.name for c in changed.specs["shop.orders"].typed.columns][-1] == "late"
    assert changed.digest != folder.digest


def test_a_json_schema_that_is_missing_comes_to_be(tmp_path):
    folder = read(tmp_path, orders=BY_SCHEMA)
    assert "orders.yaml: typed.json_schema: there is no file orders.json beside" in told(
        folder.errors
    )
    assert folder.refused["orders.yaml"].table == "shop.orders"
    (tmp_path / "orders.json").write_text(json.dumps(SCHEMA))
    assert read_spec_folder(tmp_path).errors == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 100_000, "is not valid JSON: maximum recursion"),
        (b'{"properties": ', "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"{}", "is not a schema of objects"),
        (b" " * ((1 << 20) + 1), "orders.json is 1048577 bytes; a JSON Schema has at most"),
    ],
)
def test_invalid_json_schema_is_reported(tmp_path, content, why):
    (tmp_path / "orders.json").write_bytes(content)
    folder = read(tmp_path, orders=BY_SCHEMA, good=renamed(RAW, "shop.good"))
    assert list(folder.specs) == ["shop.good"]
    (error,) = folder.errors
    assert str(error).startswith("orders.yaml: typed.json_schema")
    assert why in str(error)


def test_a_pipe_in_place_of_a_json_schema_blocks_nothing_else(tmp_path):
    os.mkfifo(tmp_path / "orders.json")
    folder = read(tmp_path, orders=BY_SCHEMA)
    assert "orders.json cannot be read: it is a pipe or a device" in told(folder.errors)


@pytest.mark.parametrize(
    "name", ["../secret.json", "/etc/secret.json", ".hidden.json", "a/b.json", "x.yaml", "~/a.json"]
)
def test_files_elsewhere_are_not_read(tmp_path, name):
    (tmp_path / "secret.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "tables").mkdir()
    folder = read(tmp_path / "tables", orders=BY_SCHEMA.replace("orders.json", f"'{name}'"))
    assert "is not the name of a file such as `a.json`" in told(folder.errors)


def test_the_digest_of_a_folder_changes_with_a_section(tmp_path):
    digests = [
        read(tmp_path, orders=text).digest
        for text in (RAW, TYPED, TYPED.replace("uuid: none", "uuid: id"))
    ]
    assert len(set(digests)) == 3


# ------------------------------------------------------------------ names

CLASHES = {
    "another typed table": (
        TYPED,
        renamed(TYPED, "more.orders"),
        "b.yaml: typed.name: typed.orders is the typed table of a.yaml",
    ),
    "a raw table": (
        TYPED,
        renamed(RAW, "typed.orders"),
        "a.yaml: typed.name: typed.orders is the raw table of b.yaml",
    ),
    "a view": (
        renamed(TYPED, "shop.orders", "more.orders_exact"),
        renamed(RAW, "more.orders"),
        "a.yaml: typed.name: more.orders_exact is the view of the raw table of b.yaml",
    ),
    "another's quarantine": (
        TYPED,
        renamed(TYPED, "shop.others", "typed.orders_quarantine"),
        "b.yaml: typed.name: typed.orders_quarantine is the quarantine of the typed table of a.yaml",
    ),
    "a quarantine that is a raw table": (
        TYPED,
        renamed(RAW, "typed.orders_quarantine"),
        "a.yaml: typed.name: typed.orders_quarantine, for records that typed.orders rejects, is the raw",
    ),
    "a quarantine that is a typed table": (
        renamed(TYPED, "shop.others", "typed.orders_quarantine"),
        TYPED,
        "b.yaml: typed.name: typed.orders_quarantine, for records that typed.orders rejects, is the typed",
    ),
}


@pytest.mark.parametrize("what", CLASHES)
def test_no_typed_table_is_called_as(tmp_path, what):
    first, second, why = CLASHES[what]
    folder = read(tmp_path, a=first, b=second)
    assert why in told(folder.errors)
    (file,) = folder.refused
    # The other one exists, and nothing of this one.
    assert set(folder.files.values()) == {"a.yaml", "b.yaml"} - {file}
    files = [
        SpecFile.of(name, text.encode(), tmp_path / "none")
        for name, text in (("a.yaml", first), ("b.yaml", second))
    ]
    assert why in told(problems_among(files, {}))
    # Whichever exists already.
    for given, stays in (files, files[::-1]):
        problems = told(problems_among([given], {stays.name: stays.spec}))
        assert "typed.name: " in problems


def test_its_own_quarantine_may_not_be_the_raw_table():
    _, (error,) = read_table_spec(renamed(TYPED, "typed.orders_quarantine", "typed.orders"))
    assert (
        "typed.name: typed.orders_quarantine, where its quarantine goes, is the raw table"
        in str(error)
    )


def test_what_clashes_in_the_folder_already_holds_up_no_other(tmp_path):
    for name, text in (("a", TYPED), ("b", renamed(TYPED, "more.orders"))):
        (tmp_path / f"{name}.yaml").write_text(text)
    file = SpecFile.of("c.yaml", renamed(RAW, "shop.good").encode(), tmp_path)
    assert problems_among([file], specs_by_file(tmp_path)) == []


def test_rollups_and_typed_tables_share_no_names(tmp_path):
    file = SpecFile.of("a.yaml", TYPED.encode(), Path("/nonexistent"))
    found = problems_among([file], {}, {"typed.orders_quarantine"})
    assert "is a rollup: give this typed table another name" in told(found)
    assert read(tmp_path, a=TYPED).tables == {
        "shop.orders",
        "shop.orders_exact",
        "typed.orders",
        "typed.orders_quarantine",
    }


def test_rollups_give_way_to_tables_of_specs(tmp_path):
    (tmp_path / "tables").mkdir()
    tables = read(tmp_path / "tables", a=TYPED).tables
    (tmp_path / "trino").mkdir()
    for number, name in enumerate(sorted(tables)):
        text = f"-- name: {name}\n-- sources: [shop.raw]\n-- slices: [at]\nSELECT at FROM raw GROUP BY at;\n"
        (tmp_path / "trino" / f"r{number}.sql").write_text(text)
    found = read_rollup_folder(str(tmp_path), tables)
    assert not found.specs
    assert all("there is a raw or typed table" in str(found.errors[name]) for name in tables)


# ------------------------------------------------------------------ apply


def test_files_that_specs_name_are_applied_with_them(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "tables"
    source.mkdir()
    (source / "orders.json").write_text(json.dumps(SCHEMA))
    file = SpecFile.of("orders.yaml", BY_SCHEMA.encode(), folder, source=source)
    assert file.errors == ()
    # The schema first: no reader may meet a spec that names a file which does not exist yet.
    assert [each.name for each in files_to_put([file])] == ["orders.json", "orders.yaml"]
    assert put_files(files_to_put([file]), folder) == ["orders.json", "orders.yaml"]
    assert read_spec_folder(folder).errors == []
    again = SpecFile.of("orders.yaml", BY_SCHEMA.encode(), folder, source=source)
    assert put_files(files_to_put([again]), folder) == []
    # From standard input: what it names is in the folder already.
    assert SpecFile.of("orders.yaml", BY_SCHEMA.encode(), folder).errors == ()
    (source / "orders.json").unlink()
    missing = SpecFile.of("orders.yaml", BY_SCHEMA.encode(), folder, source=source)
    assert "orders.yaml: typed.json_schema: there is no file orders.json" in told(missing.errors)


def test_a_schema_that_others_share_may_not_break_them(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "tables"
    for place in (source, folder):
        place.mkdir()
        (place / "orders.json").write_text(json.dumps(SCHEMA))
    by_note = renamed(BY_SCHEMA, "shop.notes").replace("uuid: none", "uuid: none, key: [note]")
    (folder / "notes.yaml").write_text(by_note)
    assert problems_with_files(folder, {"orders.json": json.dumps(SCHEMA).encode()}, but=()) == []
    without = json.dumps({"properties": {"order": {"type": "integer"}}}).encode()
    found = problems_with_files(folder, {"orders.json": without}, but=())
    assert "notes.yaml: typed.key[0]: 'note' is not a column" in told(found)
    assert problems_with_files(folder, {"orders.json": without}, but=("notes.yaml",)) == []


def test_two_schemas_of_one_name_are_refused(tmp_path):
    files = []
    for name, schema in (("a", SCHEMA), ("b", {"properties": {"order": {"type": "number"}}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "orders.json").write_text(json.dumps(schema))
        text = renamed(BY_SCHEMA, f"shop.{name}")
        files.append(
            SpecFile.of(f"{name}.yaml", text.encode(), tmp_path / "tables", source=tmp_path / name)
        )
    assert "b.yaml: typed.json_schema: orders.json is another file than that of a.yaml" in told(
        problems_among(files, {})
    )


def test_a_typed_spec_survives_as_a_part_of_its_table():
    spec = parse_table_spec(TYPED)
    assert msgspec.structs.replace(spec, comment="x").typed == spec.typed


def test_a_shell_completes_names_of_typed_tables(tmp_path):
    read(tmp_path, a=TYPED, b=renamed(RAW, "shop.plain"))
    (tmp_path / "bad.yaml").write_text("name: typed.bad")
    ctx = SimpleNamespace(params={"tables": tmp_path})
    assert complete_typed_tables(ctx, "") == ["typed.orders"]
    assert complete_typed_tables(ctx, "shop.") == []
    assert complete_tables(ctx, "") == ["shop.orders", "shop.plain"]
    assert complete_all_tables(ctx, "") == ["shop.orders", "shop.plain", "typed.orders"]
