"""The planner: what it found of a journal, for how long that holds, and what each append of a batch gets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from appender_bench import running_bench, span, spec

from gazette_platform.broker.epochs import GoOn
from gazette_platform.protocol import LabelSelector, LabelSet, Status, SuspendLevel, SuspendSpec
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.waiting import turns


@pytest.fixture
async def bench(tmp_path):
    async with running_bench(tmp_path) as made:
        for content in (b"a", b"b", b"c"):  # from now on it need not look the journal up
            await made.append(content)
        yield made


async def test_what_was_found_of_a_journal_holds_until_etcd_says_more(bench):
    """Appends that follow do not look it up; it may be another broker's by now."""
    bench.journal.revision += 1
    bench.journal.is_local = False
    assert (await bench.append(b"never")).is_remote
    assert bench.read() == b"abc"


async def test_a_store_that_gets_unhealthy_between_appends_is_heeded(bench):
    bench.journal.is_ready = False
    bench.journal.problem = "fragment store file:///x/ unhealthy: too bad"
    bench.journal.gate.set()
    assert (await bench.append(b"never")).status is Status.FRAGMENT_STORE_UNHEALTHY
    assert bench.read() == b"abc"


async def test_a_revision_is_waited_for_by_an_append_right_behind_another(bench):
    waiting = bench.submit(b"d", min_revision=12)
    await turns(2)
    assert bench.journal.log == ["wait 12"]
    bench.journal.gate.set()
    assert span(await waiting) == (Status.OK, 3, 4)


async def test_each_append_of_a_batch_gets_the_registers_that_it_left(bench):
    """The holder of a register would get another's."""
    first = bench.submit(b"x", union_registers=LabelSet.of(owner="1"))
    second = bench.submit(b"y", union_registers=LabelSet.of(owner="2"))
    assert (await first).registers == LabelSet.of(owner="1")
    assert (await second).registers == LabelSet.of(owner="2")
    assert bench.journal.commits[-1] == (1, 5, 2, 2), "one batch"


async def test_no_append_gets_registers_that_did_not_come_about(bench):
    """A caller that gets another owner takes itself for fenced."""
    await bench.append(b"1234", union_registers=LabelSet.of(owner="B"))
    bench.journal.refusal = "the lease of this broker has run out"
    owns = {
        "union_registers": LabelSet.of(owner="A"),
        "subtract_registers": LabelSet.of(owner="B"),
    }
    first = bench.submit(b"A" * 10, offset=7, **owns)
    first.add_done_callback(lambda _: setattr(bench.journal, "refusal", ""))
    again = bench.submit(b"A" * 10, offset=7, check_registers=LabelSelector.parse("owner=B"))
    owner = bench.submit(b"B", check_registers=LabelSelector.parse("owner=B"))
    with pytest.raises(RpcFailed, match="has run out"):
        await first
    assert span(await again) == (Status.OK, 7, 17)
    assert (await owner).status is Status.OK
    assert bench.spool.registers == LabelSet.of(owner="B")


async def test_a_claim_that_is_answered_the_same_again_and_again_is_given_up(bench):
    """A replica at the end that etcd names keeps its registers, and ours are those of etcd."""
    bench.journal.gate.set()
    bench.journal.is_consistent = False
    bench.journal.revision += 1
    bench.journal.goes_on = GoOn(7, LabelSet.of(holder="one"))
    with pytest.raises(RpcFailed, match="has other registers at 7") as refused:
        await bench.append(b"content")
    assert refused.value.code is Code.UNAVAILABLE
    bench.journal.goes_on = None
    assert (await bench.append(b"content")).commit.begin == 7


async def test_a_reset_begins_with_the_registers_of_who_let_go_there(bench):
    """Once replicas exist, they keep what they have."""
    held = LabelSet.of(holder="one")
    bench.journal.gate.set()
    bench.journal.is_consistent = False
    bench.journal.revision += 1
    bench.journal.released = {7: held}
    bench.journal.spec = replace(spec(), suspend=SuspendSpec(SuspendLevel.NONE, 7))
    rolls = []
    roll = bench.spool.roll

    def told(to, **options):
        rolls.append((to, options["registers"]))
        roll(to, **options)

    bench.spool.roll = told
    outcome = await bench.append(resets_head=True)
    assert (outcome.status, outcome.registers, rolls) == (Status.OK, held, [(7, held)])
