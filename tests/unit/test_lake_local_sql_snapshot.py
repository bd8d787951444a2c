"""What a snapshot is of journals, as brokers tell of them."""

from datetime import UTC, datetime

import pytest

from gazette_platform.client.results import JournalListing
from gazette_platform.errors import ValidationError
from gazette_platform.lake.local_sql.snapshot import take_snapshot
from gazette_platform.lake.table_spec import parse_table_spec
from gazette_platform.protocol import FragmentSpec, JournalSpec, Route, SuspendLevel, SuspendSpec

SPEC = parse_table_spec(
    "{name: a.b, selector: name:prefix=a/, format: json, columns: [{name: v, type: int}], "
    "partitions: [{name: hour, type: int}]}"
)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Brokers:
    """Answers of journals of which nothing is stored."""

    def __init__(self, *journals):
        self.journals = [JournalListing(journal, 1, 1, Route()) for journal in journals]

    async def list(self, _selector):
        return self.journals

    async def write_heads(self, journals):
        return {journal.name: 0 for journal in journals}

    async def fragments(self, _journal, **_query):
        return []


def journal(name, level):
    fragment = FragmentSpec(
        path_postfix_template='hour={{ .Spool.FirstAppendTime.Format "15" }}', stores=("file:///",)
    )
    suspend = SuspendSpec(level=level, offset=100)
    return JournalSpec(name=name, replication=1, fragment=fragment, suspend=suspend)


async def test_a_table_of_suspended_journals_alone_is_empty():
    asleep, awake = (SuspendLevel.FULL, SuspendLevel.PARTIAL)
    found = await take_snapshot(Brokers(journal("a/part=0", asleep)), SPEC, NOW)
    assert [column.column for column in found.columns] == ["part", "hour"]
    assert (found.journals, found.segments) == ((), ())
    both = Brokers(journal("a/part=0", asleep), journal("a/part=1", awake))
    found = await take_snapshot(both, SPEC, NOW)
    assert [each.journal for each in found.journals] == ["a/part=1"]
    with pytest.raises(ValidationError, match="no journal matches the selector 'name:prefix=a/'"):
        await take_snapshot(Brokers(), SPEC, NOW)
