"""A journal whose store is away for a while, as brokers see it."""

from __future__ import annotations

import asyncio

import pytest
from grpc import StatusCode, aio
from journal_specs import journal_spec

from gazette_platform.errors import StoreUnavailable
from gazette_platform.testing.local import append
from gazette_platform.testing.waiting import eventually, pass_time

JOURNAL = "a/journal"
ZONES = ("zone-a", "zone-b", "zone-c")

_SOON_S = 0.01


def spec(replication=1, *, name=JOURNAL, refresh_s=3600):
    """A journal whose fragments lie in the store as they are.

    Args:
        refresh_s: seconds between listings of its store; an hour, so that only those happen that
            something asks for.
    """
    return journal_spec(name, replication, refresh_s=refresh_s)


def hold_back(broker, journal=None, *, is_retried_soon=False):
    """Let what a broker stores fail, of one journal or of all.

    Args:
        is_retried_soon: a broker that leaves tries again at once, and not after its pauses.

    Returns: an event; once it is set, the store is back.
    """
    persister, back, put = broker._persister, asyncio.Event(), broker._persister._put

    async def put_when_back(store, spool, *args):
        if journal in (None, spool.fragment.journal) and not back.is_set():
            raise StoreUnavailable("the store is away")
        await put(store, spool, *args)

    async def pause(_):
        await pass_time(_SOON_S)

    persister._put = put_when_back
    if is_retried_soon:
        persister._sleep = pause
    return back


async def refused(call):
    """Why a call was refused."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is StatusCode.UNAVAILABLE
    return caught.value.details()


def stored(cluster):
    """What the store holds."""
    return b"".join(path.read_bytes() for path in sorted(cluster.fragments.rglob("*.raw")))


async def handed_over(cluster, tasks):
    """A journal that a leaving broker handed over before it could store its content.

    Returns: the broker that serves it now, what brings the store back, and the drain.
    """
    first = await cluster.start(drain_timeout_s=None)
    back = hold_back(first)
    await cluster.apply(cluster.stub(first), spec())
    for content in (b"before ", b"that is "):
        await append(cluster.stub(first), JOURNAL, content)
    second = await cluster.start(http_port=0, append_wait_s=2.0)
    draining = tasks.spawn(first.drain(), name="drain")
    await eventually(lambda: first._persister._is_exiting)
    state = second._context.space.state
    await eventually(
        lambda: (
            state.route_of(JOURNAL).primary_id == second._context.process_id
            and len(state.assignments_of(JOURNAL)) == 1
        )
    )
    assert stored(cluster) == b""
    return second, back, draining
