"""Layouts: from paths to partition columns and locations."""

import pytest

from gazette_platform.errors import LakeError, PartitionConflict, ValidationError
from gazette_platform.lake.spec.layout import (
    Layout,
    PartitionColumn,
    StoreRoots,
    partition_columns,
    partition_key,
    require_location,
)
from gazette_platform.lake.spec.table_spec import parse_table_spec


def spec(*, columns="[{name: a, type: int}]", partitions="[]"):
    return parse_table_spec(
        f"{{name: s.t, selector: 'name:prefix=x/', format: json, columns: {columns}, "
        f"partitions: {partitions}}}"
    )


def test_keys_and_base():
    layout = Layout.of_directory("logs/web/origin=JFK/part=000/date=2026-01-02")
    assert str(layout) == "logs/web/{origin}/{part}/{date}"
    assert layout.keys == ("origin", "part", "date")
    assert layout.base == "logs/web"
    assert layout.match("logs/web/origin=EWR/part=1/date=a=b") == ("EWR", "1", "a=b")
    assert Layout.parse(str(layout)) == layout


def test_directory_without_keys():
    layout = Layout.of_directory("logs/web")
    assert layout.keys == ()
    assert layout.base == "logs/web"
    assert layout.match("logs/web") == ()


def test_all_segments_may_be_keys():
    assert Layout.of_directory("a=1/b=2").base == ""


def test_key_that_is_not_an_identifier_is_a_literal():
    assert Layout.of_directory("x-y=1/b=2").keys == ("b",)


def test_varying_literal_is_refused_with_a_name_for_it():
    with pytest.raises(LakeError) as caught:
        Layout.of_journals(["logs/web/part=0", "logs/api/part=0"])
    assert "differ in segment 2 ('web' and 'api'), which is not key=value" in str(caught.value)
    assert "`logs/kind=web/part=0`" in str(caught.value)


@pytest.mark.parametrize(
    ("journals", "message"),
    [
        (["a/x=1", "a/y=1"], "same keys in the same order"),
        (["a/x=1", "a/b"], "same keys in the same order"),
        (["a/x=1", "a/x=1/y=2"], "have 2 and 3 segments"),
        (["a/x=1/X=2"], "occurs twice"),
        (["a/x="], "has no value"),
        (["a/x=__HIVE_DEFAULT_PARTITION__"], "key 'x' has the value that stands for NULL in Hive"),
        ([], "at least one journal"),
    ],
)
def test_layouts_that_do_not_make_one_table(journals, message):
    with pytest.raises(LakeError, match=message):
        Layout.of_journals(journals)


def test_match_refuses_another_postfix():
    with pytest.raises(LakeError, match="path postfix template changed"):
        Layout.parse("a/{x}/{date}").match("a/x=1")


def test_spec_types_and_renames_keys():
    layout = Layout.parse("a/{origin}/{hour}")
    columns = partition_columns(
        spec(
            columns="[{name: hour, type: int}]",
            partitions="[{name: hour, as: fragment_hour, type: int}]",
        ),
        layout,
    )
    assert [(c.key, c.column, c.type) for c in columns] == [
        ("origin", "origin", "string"),
        ("hour", "fragment_hour", "int"),
    ]


def test_silent_clash_with_a_data_column_is_refused():
    with pytest.raises(ValidationError, match="'hour' is also a data column"):
        partition_columns(spec(columns="[{name: Hour, type: int}]"), Layout.parse("a/{hour}"))


def test_described_key_must_exist():
    with pytest.raises(ValidationError, match=r"'day' is in no journal name.*found: hour"):
        partition_columns(spec(partitions="[{name: day}]"), Layout.parse("b/{hour}"))


def test_two_keys_may_not_share_a_column():
    with pytest.raises(ValidationError, match="two partition columns are called 'hour'"):
        partition_columns(spec(partitions="[{name: h, as: hour}]"), Layout.parse("b/{hour}/{h}"))


def test_values_are_canonical_or_refused():
    day = PartitionColumn(key="day", column="day", type="date")
    assert day.value("2026-01-02") == "2026-01-02"
    hour = PartitionColumn(key="hour", column="hour", type="int")
    assert hour.value("05") == "5"
    with pytest.raises(LakeError, match=r"hour=x is not a int: correct the type"):
        hour.value("x")
    with pytest.raises(LakeError, match="day=2026-13-02 is not a date"):
        day.value("2026-13-02")


@pytest.mark.parametrize(
    ("kind", "largest"),
    [("tinyint", 2**7 - 1), ("smallint", 2**15 - 1), ("int", 2**31 - 1), ("bigint", 2**63 - 1)],
)
def test_numbers_that_no_engine_takes_are_refused(kind, largest):
    """Trino fails at all queries of a table if one Hive partition has such a value."""
    column = PartitionColumn(key="n", column="n", type=kind)
    for value in (largest, -largest - 1):
        assert column.value(str(value)) == str(value)
    for value in (largest + 1, -largest - 2):
        with pytest.raises(LakeError, match=f"n={value} is not a {kind}"):
            column.value(str(value))


def test_values_that_no_metastore_takes_are_refused():
    column = PartitionColumn(key="n", column="n", type="string")
    assert column.value("é" * 256) == "é" * 256
    with pytest.raises(LakeError, match="more than 256 characters"):
        column.value("é" * 257)


def test_partition_key_without_columns():
    assert partition_key([], []) == "all"


@pytest.mark.parametrize(
    ("store", "location"),
    [
        ("file:///", "file:///srv/fragments/j/x=1"),
        ("file:///sub/", "file:///srv/fragments/sub/j/x=1"),
        ("file:///special/", "file:///other/j/x=1"),
        ("file:///?find=j&replace=k", "file:///srv/fragments/k/x=1"),
        ("file:///?Find=j/", "file:///srv/fragments/x=1"),
        ("s3://bucket/prefix/", "s3://bucket/prefix/j/x=1"),
        ("s3://mapped/a/", "s3a://elsewhere/a/j/x=1"),
    ],
)
def test_store_roots(store, location):
    roots = StoreRoots(
        {
            "file:///": "file:///srv/fragments/",
            "file:///special/": "file:///other/",
            "s3://mapped/": "s3a://elsewhere/",
        }
    )
    assert roots.location(store, "j/x=1") == location


def test_unmapped_file_store_names_the_setting():
    with pytest.raises(LakeError, match="GAZETTE_LAKE_STORE_ROOTS"):
        StoreRoots({}).location("file:///", "j")


@pytest.mark.parametrize("roots", [{"file:///": "/srv/"}, {"file:///": "file:///srv"}])
def test_malformed_root_is_refused(roots):
    with pytest.raises(ValidationError, match=r"lake\.store_roots: .*not a URL that ends in"):
        StoreRoots(roots)


def test_partition_elsewhere_is_a_conflict():
    require_location("s.t", "x=1", "file:///a/", "file:///a")
    with pytest.raises(PartitionConflict, match=r"x=1 is at file:///a, but fragments lie in"):
        require_location("s.t", "x=1", "file:///a", "file:///b")
