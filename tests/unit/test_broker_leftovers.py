"""Tenures without a replica: who decides on them, one at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from gazette_platform.broker.spool import leftovers as leftovers_module
from gazette_platform.broker.spool.leftovers import Leftovers
from gazette_platform.errors import EtcdError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.faults import Faults
from gazette_platform.testing.waiting import eventually, turns

JOURNAL = "a/journal"


def leftovers_in(spool_dir, faults=None):
    return Leftovers(
        etcd=None,
        space=None,
        others=None,
        prefix="/p",
        persister=None,
        spool_dir=spool_dir,
        executor=None,
        clock=SystemClock(),
        faults=faults or Faults(),
        count=lambda _: None,
    )


class Left(SimpleNamespace):
    """A tenure that was found; each is its own."""

    __hash__ = object.__hash__


def left_of(journal):
    return Left(tenure=SimpleNamespace(journal=journal, id="f00d"))


async def test_unforeseen_one_holds_up_no_other(tmp_path):
    faults = Faults()
    leftovers, settled = leftovers_in(tmp_path, faults), []

    async def settle(journal, **_):
        await turns()
        if journal == JOURNAL:
            raise OverflowError("days=-719163; must have magnitude <= 999999999")
        await turns()
        settled.append(journal)
        del leftovers._found[journal]
        return False

    leftovers._settle = settle
    for name in (JOURNAL, "b/journal", "c/journal"):
        leftovers.add(left_of(name))
    await leftovers.settle_all()
    assert settled == ["b/journal", "c/journal"]
    assert len(leftovers) == 1
    assert isinstance(faults.last, OverflowError)


async def test_while_etcd_is_away_they_stay_and_no_fault_is_reported(tmp_path, monkeypatch, caplog):
    async def read(*_):
        raise EtcdError("cannot reach etcd")

    monkeypatch.setattr(leftovers_module, "journal_holders", read)
    faults = Faults()
    leftovers = leftovers_in(tmp_path, faults)
    for number in range(20):
        leftovers.add(left_of(f"a/journal-{number:02}"))
    looking = asyncio.ensure_future(leftovers.run())  # noqa: TID251
    await eventually(lambda: "stay for now: cannot reach etcd" in caplog.text)
    looking.cancel()
    assert (len(leftovers), faults.last) == (20, None)


async def test_one_at_a_time_decides_on_a_journal(tmp_path):
    """Also one that comes while another is about to have its turn."""
    leftovers = leftovers_in(tmp_path)
    deciding = most = 0

    async def settle(_journal, **_):
        nonlocal deciding, most
        deciding += 1
        most = max(most, deciding)
        await turns(3)
        deciding -= 1
        return False

    leftovers._settle = settle
    leftovers.add(left_of(JOURNAL))
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(leftovers.settle(JOURNAL))
            await turns()
    assert most == 1
    assert not leftovers._locks
