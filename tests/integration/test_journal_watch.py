"""The journals that a mapping chooses among, while they change."""

from __future__ import annotations

import pytest
from journal_specs import journal_spec

from gazette_platform.client import Change, JournalWatch
from gazette_platform.errors import TransportError
from gazette_platform.message import modulo_mapping
from gazette_platform.testing.waiting import eventually

pytestmark = pytest.mark.etcd


def journal(name):
    return journal_spec(name, labels={"content-type": "application/x-ndjson"})


async def test_a_mapping_follows_the_journals_that_match(client, names, tasks):
    one, two, other = map(names.journal, ("a/one", "a/two", "b/one"))
    await client.apply([Change(journal(one)), Change(journal(other))])
    journals = JournalWatch(client, f"name:prefix={names.journal('a')}/")
    with pytest.raises(TransportError, match="not known yet"):
        journals()
    await journals.start(tasks)
    mapping = modulo_mapping(str.encode, journals)
    assert {mapping(key).journal for key in "abcdef"} == {one}
    assert journals() is journals()
    await client.apply([Change(journal(two))])

    async def has_two():
        return len(journals()) == 2

    await eventually(has_two)
    assert {mapping(key).journal for key in "abcdef"} == {one, two}
    await tasks.close()  # before the client
