"""Closed fragments that wait for the claim of their journal: what lets them go, and what others learn of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from replica_bench import JOURNAL, Bench

from gazette_platform.broker.api.admin import AdminApi
from gazette_platform.broker.api.service import _Session
from gazette_platform.broker.journal import replica as replica_module
from gazette_platform.broker.replicate.fsm import Commit
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol.pb import admin_pb2 as pb
from gazette_platform.serving.interface import RpcFailed
from gazette_platform.testing.waiting import eventually


@pytest.fixture
async def bench(tmp_path):
    tasks = TaskGroup("test")
    with ThreadPoolExecutor(2) as executor:
        made = Bench(tmp_path, tasks, executor)
        yield made
        await made.replica.close()
        assert tasks.failure is None
        await tasks.close()
    for completed in made.persisted:
        completed.close()


async def held_fragment(bench):
    """Close a fragment of a replica that no claim names yet."""
    spool = bench.replica.spool
    draft = spool.draft(with_digest=True)
    await draft.write([b"content"], 7)
    spool.commit(draft, spool.registers)
    spool.roll(7, is_urgent=True)
    return spool


@pytest.mark.parametrize("is_claimed_before", [True, False])
async def test_who_asks_for_all_that_is_held_learns_when_it_is_stored(bench, is_claimed_before):
    """The journal was claimed while others of its fragments were stored: what was held until then was being closed,
    and who had asked took it for stored."""
    spool, stored = await held_fragment(bench), []
    assert spool.is_held
    if is_claimed_before:
        spool.release()

    async def settle(_, *, is_given_up):
        spool.release()

    async def flush(_):
        stored.extend(bench.persisted)

    async def closed(_):
        pass

    bench.context.leftovers.settle, bench.context.persister.flush = settle, flush
    bench.context.leftovers.has_content = lambda _: False
    bench.context.config.etcd_prefix, bench.resolver.closed = "/p", closed
    api = AdminApi(bench.context, bench.resolver)
    request = pb.FlushRequest(journal=JOURNAL)
    if is_claimed_before:
        assert await api._flush_former(JOURNAL, request) == 0
    else:
        with pytest.raises(RpcFailed, match="not stored yet"):
            await api._flush_former(JOURNAL, request)
        await eventually(lambda: bench.persisted)
        assert await api._flush_former(JOURNAL, request) == 0
    assert [one.fragment.end for one in stored] == [7]
    del bench.resolver.replicas[JOURNAL]  # others have it now


async def commit_as_a_primary_asks(bench):
    spool = bench.replica.spool
    session = _Session(None, spool, None, None)
    session._draft = spool.draft(with_digest=True)
    await session._draft.write([b"!"], 1)
    await session._carry_out(Commit(spool.registers))


async def confirm(bench):
    bench.replica.spool.confirm()


async def on_change(bench):
    bench.replica.on_change(is_primary=False)


async def append_as_primary(bench):
    await bench.append(b"!")


@pytest.mark.parametrize(
    ("step", "needs_route"),
    [
        (confirm, True),
        (on_change, True),
        (commit_as_a_primary_asks, False),
        (append_as_primary, False),
    ],
)
async def test_what_is_held_is_handed_over_once_the_journal_is_claimed(bench, step, needs_route):
    spool, is_shown = await held_fragment(bench), bench.state.is_consistent
    if needs_route:
        bench.state.is_consistent = lambda _: False
        await step(bench)
        assert (spool.is_held, bench.persisted) == (True, [])
    bench.state.is_consistent = is_shown
    await step(bench)
    assert not spool.is_held
    await spool.completed()
    assert [one.fragment.end for one in bench.persisted] == [7]
    del bench.resolver.replicas[JOURNAL]


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_broker_that_serves_says_where_it_ends_if_it_may_have_more_than_others(
    bench, monkeypatch, is_held
):
    """The journal is assigned elsewhere before it was claimed, and what was held is stored."""
    spool, said = await held_fragment(bench), []
    if not is_held:
        spool.release()

    async def say_end(*_):
        said.append((spool.end, list(bench.persisted)))

    monkeypatch.setattr(replica_module, "say_end", say_end)
    del bench.resolver.replicas[JOURNAL]
    if not is_held:
        await spool.completed()
    await bench.replica.close()
    assert said == ([(7, [])] if is_held else [])
    assert [one.fragment.end for one in bench.persisted] == [7]


async def test_what_has_no_content_is_not_held(bench):
    """Each append that is refused may close such a fragment, for as long as the journal cannot be claimed."""
    spool = bench.replica.spool
    spool.serve_as_primary()
    for to in (5, 5, 9):
        spool.roll(to)
    assert (spool.is_held, spool._closing.digesters) == (False, ())
