"""Table specs: what is taken, and what each mistake says."""

import time
import tracemalloc

import msgspec
import pytest
from dagster import AssetSpec
from hypothesis import given, strategies as st

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.folder import load_table_specs, read_spec_folder
from gazette_platform.lake.spec.table_spec import parse_table_spec, read_table_spec

GOOD = """
name: flights.flights
selector: name:prefix=flights/
format: json
columns:
  - {name: carrier, type: string, comment: two letters}
  - {name: hour, type: int}
partitions:
  - {name: day, type: date}
  - {name: fragment, as: fragment_hour, type: int}
"""


def test_good_spec():
    spec = parse_table_spec(GOOD)
    assert (spec.schema, spec.table, spec.format) == ("flights", "flights", "json")
    assert [(c.name, c.type, c.comment) for c in spec.columns] == [
        ("carrier", "string", "two letters"),
        ("hour", "int", ""),
    ]
    assert [(p.name, p.column, p.type) for p in spec.partitions] == [
        ("day", "day", "date"),
        ("fragment", "fragment_hour", "int"),
    ]


def test_digest_changes_with_the_spec_only():
    assert parse_table_spec(GOOD).digest == parse_table_spec(GOOD + "\n# a comment\n").digest
    assert parse_table_spec(GOOD).digest != parse_table_spec(GOOD + "comment: x\n").digest


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: flights.flights", "name: [", "not valid YAML"),
        ("name: flights.flights", "name: flights", "name: 'flights' is not schema.table"),
        ("name: flights.flights", "name: F.f", "lower-case letters"),
        ("name: flights.flights", "", "missing required field `name`"),
        (
            "format: json",
            "format: xml",
            r"^format: 'xml' is not a format .*\(use one of json, csv\)",
        ),
        ("format: json", "format: [json]", r"^format: that is not .*\(use one of json, csv\)"),
        ("format: json", "format: json\nfromat: x", "unknown field `fromat`"),
        ("selector: name:prefix=flights/", "selector: ''", "selector: may not be empty"),
        ("selector: name:prefix=flights/", "selector: 'a = = b'", "^selector"),
        (
            "selector: name:prefix=flights/",
            'selector: "name=="',
            r"^selector: 'name==' has no value;",
        ),
        (
            "selector: name:prefix=flights/",
            "selector: name:prefx=a",
            r"^selector: .*`name:prefix=fl",
        ),
        ("format: json", "format: json\nfresh_within: soon", r"^fresh_within: .*such as `90m`"),
        ("format: json", "format: json\nfresh_within: 10", r"^fresh_within: .*such as `90m`"),
        ("format: json", "format: json\nfresh_within: 1d", r"^fresh_within: unknown unit.*`90m`"),
        ("format: json", "format: json\nfresh_within: 5s", "5s is less than 2m"),
        ("  - {name: carrier", "  - carrier\n  - {name: carrier", "table-spec.md has an example"),
        ("type: string, comment", "type: text, comment", r"columns\[0\].type: unknown type 'text'"),
        ("name: carrier", "name: a-b", r"columns\[0\].name: 'a-b' is not a column name"),
        ("name: hour, type: int", "name: Carrier, type: int", "repeats 'carrier'; engines ignore"),
        ("name: day, type: date", "name: day, type: double", "is not a type of partition columns"),
        ("as: fragment_hour", "as: hour", "is also a data column.*as: fragment_fragment"),
        ("as: fragment_hour", "as: day", r"partitions\[1\]: 'fragment' repeats another"),
        ("format: json", "format: csv", "raw CSV tables hold strings"),
    ],
)
def test_mistake_is_named_with_its_place(old, new, message):
    assert old in GOOD
    with pytest.raises(ValidationError, match=message):
        parse_table_spec(GOOD.replace(old, new, 1))


ODD = """
name: shop.orders
selector: name:prefix=orders/
format: json
columns:
  - {name: order_id, from: order id, type: bigint}
  - {name: unit_price, from: unit.price, type: double}
  - {name: place, type: "struct<city:string>"}
"""


def test_column_may_be_called_otherwise_than_its_key():
    spec = parse_table_spec(ODD)
    assert [(c.name, c.key) for c in spec.columns] == [
        ("order_id", "order id"),
        ("unit_price", "unit.price"),
        ("place", "place"),
    ]
    assert spec.data_names == {"order_id", "order id", "unit_price", "unit.price", "place"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("from: order id", 'from: "a\\tb"', r"columns\[0\].from: 'a\\tb' is longer than 256"),
        ("from: order id", "from: 'a\"b'", r"columns\[0\].from: 'a\"b' is longer than 256"),
        ("from: order id", f"from: {'x' * 257}", r"columns\[0\].from: 'xx.*longer than 256"),
        (
            "from: unit.price",
            "from: Order ID",
            r"columns\[1\].from: the key 'Order ID' is that of an",
        ),
        (
            "from: unit.price",
            "from: order id",
            r"columns\[1\].from: the key 'order id' is that of an",
        ),
        ("city", "ORDER_ID", r"columns\[0\].from: a struct has a field 'order_id'"),
        ("columns:", "partitions:\n  - {name: order_id}\ncolumns:", "also a data column"),
        ("name: order_id, from: order id", "name: o, from: date", None),
    ],
)
def test_keys_that_engines_cannot_tell_apart_are_refused(old, new, message):
    assert old in ODD
    text = ODD.replace(old, new, 1)
    if message is None:  # Spark's column has the key's name, so a partition may not
        parse_table_spec(text)
        text += "partitions: [{name: date, type: date}]\n"
        message = r"partitions\[0\]: partition key 'date' is also a data column"
    with pytest.raises(ValidationError, match=message):
        parse_table_spec(text)


def test_keys_are_not_for_csv():
    text = "name: a.b\nselector: a\nformat: csv\ncolumns: [{name: x, from: y z, type: string}]"
    with pytest.raises(ValidationError, match=r"columns\[0\].from: columns of CSV go by position"):
        parse_table_spec(text)


def test_all_that_is_wrong_is_reported_at_once():
    text = GOOD.replace("flights.flights", "F").replace("type: int}", "type: integr}", 1)
    text = text.replace("name:prefix=flights/", "''").replace("type: date", "type: double")
    spec, errors = read_table_spec(text)
    assert spec is None
    assert [e.path for e in errors] == ["name", "selector", "columns[1].type", "partitions[0].type"]
    with pytest.raises(ValidationError) as found:
        parse_table_spec(text)
    assert all(str(error) in str(found.value) for error in errors)


def test_all_that_has_another_shape_is_reported_at_once():
    text = (
        "name: 5\nfromat: x\nformat: xml\ncolumns:\n  - a\n  - {name: b}\n"
        "  - {name: b, type: c, kind: d}\n"
    )
    spec, errors = read_table_spec(text)
    assert spec is None
    told = [str(error) for error in errors]
    for expected in (
        "unknown field `fromat`",
        "at `$.name`",
        "missing required field `selector`",
        "'xml' is not a format",
        "at `$.columns[0]`",
        "missing required field `type` - at `$.columns[1]`",
        "unknown field `kind` - at `$.columns[2]`",
    ):
        assert sum(expected in each for each in told) == 1, told
    assert len(told) == 7


def test_owners_and_tags_are_what_dagster_takes():
    spec = parse_table_spec(GOOD + "owners: [team:flights, a@b.example]\ntags: {a/b: c, d: ''}\n")
    assert spec.owners == ("team:flights", "a@b.example")
    AssetSpec("a", owners=spec.owners, tags=spec.tags)
    _, errors = read_table_spec(
        GOOD + "owners: ['team:', flights, a@b]\ntags: {'a b': c, dagster/x: y, d: é, e/f/g: h}\n"
    )
    assert [error.path for error in errors] == [*(f"owners[{n}]" for n in range(3)), *["tags"] * 4]
    _, errors = read_table_spec(GOOD + "owners: me\ntags: {a: 1}\n")
    assert {e.message.partition(" (")[0] for e in errors} == {
        "Expected `array`, got `str` - at `$.owners`",
        "Expected `str`, got `int` - at `$.tags[...]`",
    }


@given(
    owner=st.one_of(
        st.text("ateam:.@- \n%é", max_size=12),
        st.builds("{}@{}.{}".format, *[st.text("a.%-_", max_size=4)] * 3),
    ),
    tag=st.text("a/.- \nédgser", max_size=12),
)
def test_what_a_spec_takes_dagster_takes(owner, tag):
    """Else all definitions would fail to load."""
    spec, errors = read_table_spec(
        msgspec.yaml.encode({**msgspec.yaml.decode(GOOD), "owners": [owner], "tags": {tag: tag}})
    )
    if spec is not None:
        AssetSpec("a", owners=spec.owners, tags=spec.tags)
    else:
        assert {error.path.partition("[")[0] for error in errors} <= {"owners", "tags"}


def test_digest_changes_with_tags():
    assert parse_table_spec(GOOD + "tags: {a: b}\n").digest != parse_table_spec(GOOD).digest


def test_clash_names_both_ways_out():
    text = GOOD.replace("{name: fragment, as: fragment_hour, type: int}", "{name: hour, type: int}")
    with pytest.raises(ValidationError, match=r"leave the column out .*name: hour, as: fragment_h"):
        parse_table_spec(text)


def test_folder_is_read_again_and_bad_files_hide_no_good_ones(tmp_path):
    assert load_table_specs(tmp_path / "missing") == ({}, {})
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yml").write_text("nonsense: 1")
    (tmp_path / "c.yaml").write_text(GOOD)
    (tmp_path / ".hidden.yaml").write_text("x")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "d.yaml").write_text("# " + "x" * (1 << 20))
    specs, errors = load_table_specs(tmp_path)
    assert list(specs) == ["flights.flights"]
    assert sorted(errors) == ["b.yml", "c.yaml", "d.yaml"]
    assert "is defined in a.yaml already" in str(errors["c.yaml"])
    assert str(errors["b.yml"]).startswith("b.yml: ")
    assert "at most 1048576" in str(errors["d.yaml"])
    (tmp_path / "a.yaml").write_text(GOOD.replace("flights.flights", "other.name"))
    assert list(load_table_specs(tmp_path)[0]) == ["flights.flights", "other.name"]


def test_all_errors_of_a_file_are_reported_each_with_its_name(tmp_path):
    (tmp_path / "a.yaml").write_text(
        GOOD.replace("type: string", "type: strings")
        .replace("{name: hour, type: int}", "{name: hour}\n  - {name: a-b, type: date, typo: 1}")
        .replace("format: json", "format: jsn")
        .replace("type: date}\n  - {name: fragment", "type: dat}\n  - {name: fragment")
        + "fresh_within: soon\n"
    )
    folder = read_spec_folder(tmp_path)
    (bad,) = folder.refused.values()
    assert bad.table == "flights.flights"
    told = [str(error) for error in bad.errors]
    for text in (
        "a.yaml: format: 'jsn' is not a format",
        "a.yaml: Object missing required field `type` - at `$.columns[1]`",
        "a.yaml: Object contains unknown field `typo` - at `$.columns[2]`",
        "a.yaml: columns[0].type: unknown type 'strings'",
        "a.yaml: partitions[0].type: 'dat' is not a type of partition columns",
        "a.yaml: fresh_within: ",
    ):
        assert any(each.startswith(text) for each in told), (text, told)
    assert len(told) == 6
    assert folder.errors == list(bad.errors)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("name: s.a\ncolumns: [", "s.a"),
        ("format: json\nname: 's.a'  # mine\n", "s.a"),
        ("{name: s.a, selector: x}", "s.a"),
        ("name: S.A\n", ""),
        ("columns:\n  - name: s.a\n", ""),
        ("name: a\n", ""),
        ("", ""),
    ],
)
def test_the_table_of_a_refused_file_is_read_of_its_text(tmp_path, text, table):
    (tmp_path / "a.yaml").write_text(text)
    folder = read_spec_folder(tmp_path)
    assert folder.refused["a.yaml"].table == table
    assert not folder.specs


def test_a_refused_file_is_not_of_a_table_that_another_one_makes(tmp_path):
    (tmp_path / "a.yaml").write_text(GOOD + "nonsense: 1\n")
    (tmp_path / "b.yaml").write_text(GOOD)
    folder = read_spec_folder(tmp_path)
    assert (list(folder.specs), folder.files) == (
        ["flights.flights"],
        {"flights.flights": "b.yaml"},
    )
    assert folder.refused["a.yaml"].table == ""


def test_the_digest_of_a_folder_follows_all_that_is_said_of_it(tmp_path):
    digests = [read_spec_folder(tmp_path).digest]
    for text in (GOOD, GOOD + "# more\n", GOOD + "comment: x\n", "name: [", "name: s.a\nx: ["):
        (tmp_path / "a.yaml").write_text(text)
        digests.append(read_spec_folder(tmp_path).digest)
    assert digests[1] == digests[2]
    assert len(set(digests)) == 5


def test_unreadable_file_is_an_error_of_its_own(tmp_path):
    (tmp_path / "a.yaml").mkdir()
    _, errors = load_table_specs(tmp_path)
    assert "cannot be read" in str(errors["a.yaml"])


DIGITS = "9" * 5000
FIELDS = {
    "name": "a.b",
    "selector": "'name:prefix=a/'",
    "format": "json",
    "columns": "[{name: a, type: int}]",
}


def laughs(depth, width):
    """Mappings that merge the one before them several times."""
    lines = ["m0: &m0 {x: 1}"]
    for n in range(1, depth + 1):
        merged = ", ".join([f"*m{n - 1}"] * width)
        lines.append(f"m{n}: &m{n} {{<<: [{merged}]}}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": DIGITS},
        {"name": f"'{DIGITS}'"},
        {"comment": DIGITS},
        {"fresh_within": f"{DIGITS}h"},
        {"fresh_within": DIGITS},
        {"comment": "2001-99-99"},
        {"comment": "!!timestamp x"},
        {"columns": f"[{{name: a, type: 'decimal({DIGITS},1)'}}]"},
        {"columns": f"[{{name: a, type: {'array<' * 100_000}}}]"},
        {"columns": f"[{{name: a, type: {'a ' * 400_000}}}]"},
        {"columns": "[" * 200_000},
        {"columns": "\n" + "\n".join(" " * n + "-" for n in range(1, 700))},
        {"partitions": f"[{{name: a, type: '{DIGITS}'}}]"},
        {"columns": "&a [*a]"},
        {"columns": "&a {<<: *a}"},
        {"more": "{}\n" + laughs(10, 9)},
        {"more": "{}\n" + laughs(5000, 1)},
    ],
    ids=[f"{n}" for n in range(17)],
)
def test_hostile_specs_are_short_errors_in_bounded_time_and_memory(changes):
    text = "\n".join(f"{key}: {value}" for key, value in (FIELDS | changes).items())
    assert len(text) < 1 << 20
    tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises(ValidationError) as error:
            parse_table_spec(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(str(error.value)) < 500
    assert peak < 200 << 20
    assert time.process_time() - begun < 10


def test_a_spec_is_parsed_once_and_again_when_its_file_changes(tmp_path, monkeypatch):
    parsed = []

    def parse(raw, beside):
        parsed.append(raw)
        return read_table_spec(raw, beside)

    monkeypatch.setattr("gazette_platform.lake.spec.folder.read_table_spec", parse)
    file = tmp_path / "a.yaml"
    for comment in ("one of this test", "another", "one of this test"):
        file.write_text(f"{GOOD}comment: {comment}\n")
        for _ in range(3):
            assert read_spec_folder(tmp_path).specs["flights.flights"].comment == comment
    assert len(parsed) == 2
    file.write_text(f"{GOOD}comment: [nothing, of, that, kind]\n")
    told = [list(map(str, read_spec_folder(tmp_path).errors)) for _ in range(3)]
    assert told[0] == told[1] == told[2] != []
    assert len(parsed) == 3
    file.write_text(f"{GOOD}comment: {'x' * 40_000}\n")  # not worth its memory
    for _ in range(2):
        assert len(read_spec_folder(tmp_path).specs) == 1
    assert len(parsed) == 5
