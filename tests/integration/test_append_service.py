"""The append service against real brokers."""

import pytest
from append_records import checked, produced, spec

from gazette_platform.client import Change

pytestmark = pytest.mark.etcd


async def test_records_of_many_tasks_and_journals_are_where_each_was_acknowledged(client, names):
    journals = [names.journal(f"part-{n}") for n in range(5)]
    await client.apply([Change(spec(name)) for name in journals])
    async with client.append_service() as service:
        taken = await produced(service, journals, tasks=20, goes_on=lambda n: n < 50)
    assert {ticket.attempts for *_, ticket in taken} == {1}
    await checked(client, taken)
