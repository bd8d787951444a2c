"""Content of former processes that others went on without, compared with what its journal has."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from leftovers_bench import ELSEWHERE, JOURNAL, NOW, US, Bench

from gazette_platform.broker.epochs import Holder, Past
from gazette_platform.broker.etcd_records import history_key
from gazette_platform.ops.clock import ManualClock
from gazette_platform.serving.interface import NotNow
from gazette_platform.testing.waiting import patient

pytestmark = pytest.mark.etcd

PATIENCE_S = 121.0


class Served:
    """What brokers serve of the journal."""

    def __init__(self):
        self.content, self.is_away, self.asked = b"", False, []

    async def compare(self, journal, compared, end, read):
        self.asked.append((journal, compared.at, end))
        if self.is_away:
            raise NotNow("no broker has it")
        theirs = self.content[compared.at : end]
        ours = read(compared.at, compared.at + len(theirs))
        same = next(
            (n for n, pair in enumerate(zip(ours, theirs, strict=True)) if len({*pair}) > 1), None
        )
        compared.is_different = same is not None
        compared.at += len(theirs) if same is None else same


@pytest.fixture
async def bench(tmp_path, etcd, etcd_prefix, tasks, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    with ThreadPoolExecutor(2) as executor:
        found = Bench(tmp_path, etcd, etcd_prefix, tasks, executor, monkeypatch)
        found.clock, found.served = ManualClock(), Served()
        found.leftovers = found._leftovers()
        found.leftovers.compare_with(found.served.compare)
        found.journal()
        await etcd.put(history_key(etcd_prefix), NOW.encode())
        yield found
        await found.leftovers._persister.drain(timeout_s=5)
        found.close()


async def look(bench, after_s=0.0):
    bench.clock.advance(after_s)
    await bench.leftovers.settle_all()


def log_of(caplog):
    return [one for one in caplog.record_tuples if "comparison" in one[0] or "leftovers" in one[0]]


async def test_content_that_the_store_has_goes_with_one_line(bench, caplog):
    bench.find(b"one", b"three")
    bench.store(b"onethree")
    bench.served.content = b"onethree, and more"
    await look(bench)
    assert (bench.aside, bench.aside_count, len(bench.leftovers)) == ([], 0, 0)
    ((_, level, line),) = log_of(caplog)
    assert level == logging.INFO
    assert line.startswith(
        "nothing is lost of 1 journals that others went on with: they have all 8 bytes"
    )
    assert not list(bench.homes[0].folder.glob("*.content"))


async def test_content_waits_for_the_store_and_holds_up_no_flush(bench, caplog):
    bench.find(b"content")
    bench.served.content = b"content"
    await look(bench)
    assert len(bench.leftovers) == 1
    assert not bench.leftovers.has_content(JOURNAL)
    assert [line for _, _, line in log_of(caplog)] == [
        "spools of 1 journals that others went on without are compared with what the journals have"
    ]
    bench.store(b"content")
    await look(bench, 0.5)
    assert len(bench.leftovers) == 1, "it is not due"
    await look(bench, 1.0)
    assert (bench.aside, len(bench.leftovers)) == ([], 0)
    assert {level for _, level, _ in log_of(caplog)} == {logging.INFO}
    assert bench.served.asked == [(JOURNAL, 0, 7)], "it is compared once"


async def test_content_that_no_store_gets_is_kept_without_a_warning(bench, caplog):
    bench.find(b"content")
    bench.served.content = b"content"
    await look(bench)
    await look(bench, PATIENCE_S)
    assert (bench.aside, bench.aside_count, len(bench.leftovers)) == ([b"content"], 0, 0)
    assert {level for _, level, _ in log_of(caplog)} == {logging.INFO}
    assert "1 files that no store has yet are kept in" in log_of(caplog)[-1][2]


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_content_that_differs_is_set_aside_with_a_warning(bench, caplog, is_recorded):
    found = bench.find(b"one", b"three")
    bench.store(b"one")
    bench.served.content = b"onethOTHER"
    if is_recorded:
        await bench.say(ELSEWHERE, past=(Past((Holder(found.tenure.id, US),), 3),))
    await look(bench)
    assert (bench.aside, bench.aside_count, len(bench.leftovers)) == ([b"three"], 1, 0)
    warning, summary = log_of(caplog)
    assert (warning[1], summary[1]) == (logging.WARNING, logging.INFO)
    assert warning[2].startswith(
        f"{JOURNAL}: content [5, 8) of a spool of broker zone#us is set aside"
    )
    assert "1 lack content" in summary[2]


@pytest.mark.parametrize("is_away", [False, True])
async def test_content_that_is_not_found_in_time_is_set_aside_with_a_warning(
    bench, caplog, is_away
):
    bench.find(b"content")
    bench.served.content, bench.served.is_away = b"con", is_away
    await look(bench)
    assert (bench.aside, len(bench.leftovers)) == ([], 1)
    await look(bench, PATIENCE_S)
    assert (bench.aside, bench.aside_count, len(bench.leftovers)) == ([b"content"], 1, 0)
    begin = 0 if is_away else 3
    assert any(
        f"content [{begin}, 7) of a spool" in line
        for _, level, line in log_of(caplog)
        if level > logging.INFO
    )


async def test_content_after_a_recorded_end_is_not_waited_for(bench):
    found = bench.find(b"one", b"three")
    await bench.say(ELSEWHERE, past=(Past((Holder(found.tenure.id, US),), 3),))
    bench.served.content = b"one"
    await look(bench)
    assert (bench.stored, bench.aside, len(bench.leftovers)) == ([(0, b"one")], [b"three"], 0)


async def test_a_deleted_journal_is_compared_with_nothing(bench):
    bench.find(b"content")
    bench.served.content = b"content"
    bench.items.clear()
    await look(bench)
    assert (bench.aside, bench.served.asked) == ([b"content"], [])


async def test_a_replica_does_not_wait_for_a_comparison(bench, tasks):
    """A read may hang: it waits for the replica, whose adoption takes the same lock."""
    bench.find(b"one", b"two")
    is_asked = asyncio.Event()

    async def hang(*_args):
        is_asked.set()
        await asyncio.Event().wait()

    bench.leftovers.compare_with(hang)
    looking = tasks.spawn(bench.leftovers.settle_all(), name="look")
    async with asyncio.timeout(patient(10)):
        await is_asked.wait()
    assert not looking.done()
    async with asyncio.timeout(patient(5)):
        assert await bench.take() is None
    looking.cancel()
    await asyncio.wait([looking])
    assert (bench.aside, len(bench.leftovers)) == ([], 1)


async def test_a_broker_that_leaves_compares_nothing(bench):
    bench.find(b"content")
    await bench.leftovers.settle_all(is_leaving=True)
    assert (bench.served.asked, bench.aside, len(bench.leftovers)) == ([], [], 1)


async def test_an_unforeseen_failure_holds_up_no_other_journal(bench):
    bench.find(b"content")
    bench.find(b"more", journal="b/journal")
    bench.journal("b/journal")
    bench.store(b"content")
    bench.served.content = b"content"
    compare = bench.served.compare

    async def fail(journal, *args):
        if journal != JOURNAL:
            raise RuntimeError("unforeseen")
        await compare(journal, *args)

    bench.leftovers.compare_with(fail)
    await look(bench)
    assert not bench.leftovers.has(JOURNAL)
    assert bench.leftovers.has("b/journal")


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_reset_keeps_what_may_differ_from_the_store(bench, is_away):
    """The store's fragment goes further, so readers take it: these bytes must not be taken for stored."""
    bench.find(b"onetwo", history="lost")
    bench.store(b"oneTWOthree")
    bench.served.content, bench.served.is_away = b"oneTWOthree", is_away
    await bench.settle(is_given_up=True)
    assert bench.aside == [b"onetwo"]
    assert bench.stored == [(0, b"oneTWOthree")]


async def test_what_is_being_stored_counts_for_the_order_of_a_reset(bench):
    """A reset that is tried again must not store a shorter spool first."""
    bench.find(b"content", history="lost")
    bench.store_goes_away()
    await bench.settle(is_given_up=True)
    assert bench.handed
    assert bench.leftovers.end_of(JOURNAL) == 7
    bench.store_comes_back()
