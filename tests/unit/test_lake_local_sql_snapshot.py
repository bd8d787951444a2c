"""What a snapshot is of journals, as brokers list them."""

from datetime import UTC, datetime

import pytest

from gazette_platform.client.results import FragmentListing, JournalListing
from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake.engines.duckdb.snapshot import take_snapshot
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.protocol import (
    Fragment,
    FragmentSpec,
    JournalSpec,
    Route,
    SuspendLevel,
    SuspendSpec,
)

SPEC = parse_table_spec(
    "{name: a.b, selector: name:prefix=a/, format: json, columns: [{name: v, type: int}], "
    "partitions: [{name: hour, type: int}]}"
)
HOURLY = 'hour={{ .Spool.FirstAppendTime.Format "15" }}'
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Brokers:
    """Answers of journals that have only `fragments` in a store."""

    def __init__(self, *journals, fragments=(), head=0):
        self.journals = [JournalListing(journal, 1, 1, Route()) for journal in journals]
        self.listed = [FragmentListing(fragment) for fragment in fragments]
        self.head = head

    async def list(self, _selector):
        return self.journals

    async def write_heads(self, journals):
        return {journal.name: self.head for journal in journals}

    async def fragments(self, _journal, **_query):
        return self.listed


def journal(name, level=SuspendLevel.NONE, template=HOURLY):
    fragment = FragmentSpec(path_postfix_template=template, stores=("file:///",))
    suspend = SuspendSpec(level=level, offset=100)
    return JournalSpec(name=name, replication=1, fragment=fragment, suspend=suspend)


async def test_a_table_of_suspended_journals_alone_is_empty():
    asleep, awake = (SuspendLevel.FULL, SuspendLevel.PARTIAL)
    found = await take_snapshot(Brokers(journal("a/part=0", asleep)), SPEC, NOW)
    assert [column.column for column in found.columns] == ["part", "hour"]
    assert (found.journals, found.extents) == ((), ())
    both = Brokers(journal("a/part=0", asleep), journal("a/part=1", awake))
    found = await take_snapshot(both, SPEC, NOW)
    assert [each.name for each in found.journals] == ["a/part=1"]
    with pytest.raises(ValidationError, match="no journal matches the selector 'name:prefix=a/'"):
        await take_snapshot(Brokers(), SPEC, NOW)


class Stored(Brokers):
    """Answers of journals with fragments of 10 bytes, by their path postfixes; 5 more are in no store."""

    def __init__(self, *journals, postfixes):
        super().__init__(*journals)
        self.postfixes = postfixes

    async def write_heads(self, journals):
        return {j.name: 10 * len(self.postfixes.get(j.name, ())) + 5 for j in journals}

    async def fragments(self, journal, **_query):
        return [
            FragmentListing(
                Fragment(
                    journal, 10 * n, 10 * n + 10, path_postfix=postfix, backing_store="file:///"
                ),
                "",
            )
            for n, postfix in enumerate(self.postfixes.get(journal, ()))
        ]


def values(found):
    names = [column.column for column in found.columns]
    return [dict(zip(names, extent.values, strict=True)) for extent in found.extents]


async def test_paths_of_several_layouts_give_null_where_they_lack_a_key():
    one, two = (journal(f"a/part={n}", SuspendLevel.NONE) for n in "01")
    postfixes = {"a/part=0": ["day=1", "hour=03"], "a/part=1": ["zone=x/hour=04"]}
    found = await take_snapshot(Stored(one, two, postfixes=postfixes), SPEC, NOW)
    assert [c.column for c in found.columns] == ["part", "day", "hour", "zone"]
    assert values(found) == [
        {"part": "0", "day": "1", "hour": None, "zone": None},
        {"part": "0", "day": None, "hour": "3", "zone": None},
        {"part": "0", "day": None, "hour": "3", "zone": None},  # the live tail
        {"part": "1", "day": None, "hour": "4", "zone": "x"},
        {"part": "1", "day": None, "hour": "3", "zone": None},
    ]
    assert found.layouts == ("a/{part}/{day}", "a/{part}/{hour}", "a/{part}/{zone}/{hour}")
    same = await take_snapshot(Stored(one, postfixes={"a/part=0": ["hour=03"] * 2}), SPEC, NOW)
    assert same.layouts == ("a/{part}/{hour}",)


async def test_a_path_that_makes_no_value_is_reported_with_its_table():
    one = journal("a/part=0", SuspendLevel.NONE)
    for postfix, told in (("hour=x", "hour=x is not a int"), ("hour=1/hour=2", "occurs twice")):
        with pytest.raises(LakeError, match=rf"^a\.b: .*{told}"):
            await take_snapshot(Stored(one, postfixes={"a/part=0": [postfix]}), SPEC, NOW)


async def test_file_set_aside_is_neither_a_row_nor_a_gap():
    one = journal("a/part=0", SuspendLevel.NONE)
    postfixes = {"a/part=0": ["hour=03", "_aside/hour=03", "hour=03"]}
    found = await take_snapshot(Stored(one, postfixes=postfixes), SPEC, NOW)
    assert [(s.begin, s.end) for s in found.extents] == [(0, 10), (20, 30), (30, 35)]
    (told,) = found.journals
    assert (told.aside, told.gaps, told.fragments) == (((10, 20),), [], 2)
    assert found.layouts == ("a/{part}/{hour}",)


async def test_the_newest_file_gives_no_row_after_it_was_set_aside():
    """What follows the last fragment is read from brokers, which would serve the bytes of that file, too."""
    one = journal("a/part=0", SuspendLevel.NONE)
    postfixes = {"a/part=0": ["hour=03", "_aside/hour=03"]}
    found = await take_snapshot(Stored(one, postfixes=postfixes), SPEC, NOW)
    assert [(s.begin, s.end) for s in found.extents] == [(0, 10), (20, 25)]
    (told,) = found.journals
    assert (told.aside, told.gaps, told.fragments) == (((10, 20),), [], 1)


def stored(begin, end, hour):
    postfix = f"hour={hour:02}"
    return Fragment("a/part=0", begin, end, backing_store="file:///", path_postfix=postfix)


async def test_what_is_not_stored_yet_says_nothing_of_the_columns():
    """A fragment gets its path when it is stored, so the first one may be without."""
    fragments = [Fragment("a/part=0", 0, 4), stored(4, 9, 2)]
    brokers = Brokers(journal("a/part=0"), fragments=fragments, head=12)
    found = await take_snapshot(brokers, SPEC, NOW)
    assert [column.column for column in found.columns] == ["part", "hour"]
    extents = [(s.begin, s.end, s.values) for s in found.extents]
    assert extents == [(0, 4, ("0", "3")), (4, 9, ("0", "2")), (9, 12, ("0", "3"))]


async def test_a_journal_that_is_stored_elsewhere_by_now_has_rows_of_no_hour():
    """Its template was taken away. What its name says of the live tail is known all the same."""
    brokers = Brokers(journal("a/part=0", template=""), fragments=[stored(0, 4, 5)], head=9)
    found = await take_snapshot(brokers, SPEC, NOW)
    extents = [(s.begin, s.end, s.values) for s in found.extents]
    assert extents == [(0, 4, ("0", "5")), (4, 9, ("0", None))]
