"""The append service against real brokers."""

import pytest
from append_records import checked, produced, spec

from gazette_platform.client import AppendOptions, Change
from gazette_platform.errors import DependencyFailed, RegisterMismatch
from gazette_platform.protocol import (
    LabelSelector,
    LabelSet,
)

pytestmark = pytest.mark.etcd


async def test_records_of_many_tasks_and_journals_are_where_each_was_told(client, names):
    journals = [names.journal(f"part-{n}") for n in range(5)]
    await client.apply([Change(spec(name)) for name in journals])
    async with client.append_service() as service:
        taken = await produced(service, journals, tasks=20, goes_on=lambda n: n < 50)
    assert {ticket.attempts for *_, ticket in taken} == {1}
    await checked(client, taken)


async def test_a_fenced_writer_and_what_depends_on_it_append_nothing(client, names):
    log, out = names.journal("log"), names.journal("out")
    await client.apply([Change(spec(log)), Change(spec(out))])
    mine, yours = LabelSet.of(author="me"), LabelSet.of(author="you")
    fence = AppendOptions(check_registers=LabelSelector(include=mine))
    await client.append(log, b"begin;", union_registers=mine)
    service = client.append_service()
    ticket = await service.submit(log, b"mine;", options=fence)
    assert await service.append(out, b"first;", after=[ticket]) == (0, 6)
    await client.append(log, b"fenced;", union_registers=yours)
    ticket = await service.submit(log, b"zombie;", options=fence)
    with pytest.raises(DependencyFailed, match="REGISTER_MISMATCH"):
        await service.append(out, b"second;", after=[ticket])
    with pytest.raises(RegisterMismatch):
        await ticket
    assert await client.read(log).read() == b"begin;mine;fenced;"
    assert await client.read(out).read() == b"first;"
