"""Replicas of shards at a real broker: their life, transactions, and hand-offs.

Long because a replica has one life, and each of its ends is played at the same bench.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter

import pytest
from shard_bench import (
    IN,
    IN2,
    LOG,
    NDJSON,
    OUT,
    OUT2,
    Host,
    Numbered,
    NumberedInBatches,
    assigned,
    bench_at,
    journal,
    spec_of,
    through,
)

from gazette_platform.client import AsyncClient, Change
from gazette_platform.consumer.application import DeferToNextTransaction, Shard
from gazette_platform.consumer.protocol import Checkpoint, ShardSource
from gazette_platform.consumer.recoverylog import CONTENT_TYPE, FsmHints
from gazette_platform.consumer.runtime.sources import Inlet, Sources
from gazette_platform.errors import (
    EtcdError,
    Fenced,
    JournalReplaced,
    ShardStopped,
    TransactionFailed,
    ValidationError,
)
from gazette_platform.message import (
    Flags,
    JsonFraming,
    Mapped,
    MessageClock,
    Publisher,
    ReplayRange,
    Sequencer,
    SequencerCheckpoint,
    read_committed,
    read_uncommitted,
)
from gazette_platform.ops.clock import SystemClock
from gazette_platform.testing.waiting import eventually, pass_time, patient, stays

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]


@pytest.fixture
async def bench(local_brokers, tmp_path):
    async with bench_at(await local_brokers.start(), tmp_path / "replicas") as bench:
        yield bench


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("kind", [Numbered, NumberedInBatches])
async def test_ch2_cs1_a_shard_goes_on_where_it_was(bench, kind, log):
    application, spec = kind(), spec_of(log=log)
    first = bench.replica(application, spec)
    store = await through(first, await bench.publish(1, 2, 3))
    assert store.state == {"all": 3, "k": 3}
    assert (await first.host.reached("PRIMARY")).errors == ()
    expected = ["BACKFILL", "STANDBY", "PRIMARY"] if log else ["STANDBY", "PRIMARY"]
    assert sorted(first.host.told) == sorted(expected)
    assert first.shard.recovered_hints == (FsmHints(LOG) if log else None)
    # What was recovered is a backup; the first primary hints come with the first interval.
    assert bench.desk.primary is None
    assert bench.desk.backups == [FsmHints(LOG) if log else None, None]
    # The end of the ACK is where to read its results.
    assert set(first.progress.publish_at) == {OUT}
    assert first.progress.publish_at[OUT] == await bench.client.write_head(OUT)
    assert first.counts.read_messages == 3
    assert ("async", "60-acknowledging") in first.counts.phases_s
    await first.stop()
    assert store.is_destroyed
    assert not log or not store.directory.exists()
    assert first.has_ended
    with pytest.raises(ShardStopped):
        await first.wait_through()

    second = bench.replica(application, spec)
    store = await through(second, await bench.publish(4, 5))
    assert store.state == {"all": 5, "k": 5}
    assert application.seen == [1, 2, 3, 4, 5]
    assert [each["number"] for each in await bench.output()] == [1, 2, 3, 4, 5]
    if log:
        # The hints of what was recovered are a backup now; those of an empty log are one as well.
        newest, oldest = bench.desk.backups
        assert newest.live_nodes
        assert oldest == FsmHints(LOG)


async def restarted(bench, spec):
    """Consume three messages, stop, and start another replica. Returns: what that appends to OUT."""
    application = Numbered()
    first = bench.replica(application, spec)
    await through(first, await bench.publish("Ada", "Bob", "Cyd"))
    await first.stop()
    head = await bench.client.write_head(OUT)
    second = bench.replica(application, spec)
    await second.host.reached("PRIMARY")

    async def appended():
        async with await read_uncommitted(bench.client, OUT, head) as reader:
            return [each async for batch in reader for each in batch]

    async with asyncio.timeout(patient(30)):
        return await eventually(appended)


@pytest.mark.parametrize("log", [True, False])
async def test_restarted_shard_appends_acks_and_no_messages(bench, log):
    appended = await restarted(bench, spec_of(log=log))
    assert [each.uuid.flags for each in appended] == [Flags.ACK_TXN]


async def test_reader_counts_messages_once_after_silence_and_restart(bench):
    """Readers forget a producer that is a day behind: they cannot know its messages again."""
    spec, counts = spec_of(), Counter()

    async def count(checkpoint):
        sequencer = Sequencer(checkpoint=checkpoint)
        async with await read_uncommitted(
            bench.client, OUT, checkpoint.offsets.get(OUT, 0)
        ) as reader:
            async for batch in reader:
                for each in batch:
                    sequencer.queue(each)
                    while (message := sequencer.dequeued) is not None:
                        counts.update([message.message["id"]] if message.uuid.flags != 2 else [])
                        sequencer.step()
        return sequencer.checkpoint()

    first = bench.replica(Numbered(), spec)
    await through(first, await bench.publish("Ada"))
    await first.stop()
    tomorrow = MessageClock()
    tomorrow.update(int((SystemClock().unix_s() + 25 * 3600) * 1e9))
    other = Publisher(
        bench.client.append_service(), lambda _: Mapped(OUT, NDJSON), None, message_clock=tomorrow
    )
    await (await other.publish_committed({"id": "other"}))
    seen = await count(SequencerCheckpoint())
    head = await bench.client.write_head(OUT)
    second = bench.replica(Numbered(), spec)
    await second.host.reached("PRIMARY")

    async def has_appended():
        return await bench.client.write_head(OUT) > head

    await eventually(has_appended)
    await count(seen)
    assert counts == {"Ada": 1, "other": 1}


async def test_cs2_a_transaction_that_began_before_a_restart_is_consumed_whole(bench):
    application = Numbered()
    publisher = bench.publisher()
    first = bench.replica(application)
    await publisher.publish_uncommitted({"id": 1, "key": "a"})
    ticket = await publisher.publish_uncommitted({"id": 2, "key": "a"})
    await ticket
    store = await through(first, await bench.publish(10))
    assert store.state == {"all": 1, "k": 1}
    assert first.progress.read_through[IN] > (await ticket)[1]
    await first.stop()

    second = bench.replica(application)
    await publisher.publish_uncommitted({"id": 3, "key": "a"})
    await publisher.append_acks(publisher.build_acks())
    store = await through(second, await bench.publish(11))
    assert store.state == {"all": 5, "k": 2, "a": 3}
    assert application.seen == [10, 1, 2, 3, 11]


async def test_a_warm_standby_is_promoted(bench):
    application = Numbered()
    first = bench.replica(application)
    await through(first, await bench.publish(1, 2))
    standby = bench.replica(application, slot=1)
    await standby.host.reached("STANDBY")
    assert not standby.is_ready
    await through(first, await bench.publish(3))
    with pytest.raises(ValidationError, match="not a promotion"):
        standby.promote(spec_of(), assigned(1, 99))
    standby.promote(spec_of(), assigned(0, 99))
    assert standby.held.create_revision == 99
    # Whoever of the two comes first consumes it.
    await through(standby, await bench.publish(4))
    store = await through(standby, await bench.publish(5))
    assert store.state == {"all": 5, "k": 5}
    # The former primary learns that it is one no more.
    status = await first.host.reached("FAILED")
    assert isinstance(first.error, Fenced)
    assert status.errors[0].startswith("runTransactions: ")
    assert "another process has taken the log over" in status.errors[0]
    assert [each["number"] for each in await bench.output()] == [1, 2, 3, 4, 5]


async def test_a_standby_may_be_packed_into_a_lower_slot(bench):
    standby = bench.replica(Numbered(), slot=2)
    await standby.host.reached("STANDBY")
    standby.promote(spec_of(), assigned(1, 50))
    assert standby.assignment.slot == 1
    await stays(lambda: standby.host.told == ["BACKFILL", "STANDBY"], for_s=0.1)


async def test_a_zombie_with_a_remote_store_is_fenced(bench, caplog):
    application, spec = Numbered(), spec_of(log=False)
    first = bench.replica(application, spec)
    await through(first, await bench.publish(1))
    second = bench.replica(application, spec)
    store = await through(second, await bench.publish(2))
    await first.host.reached("FAILED")
    assert isinstance(first.error, Fenced)
    # What is foreseen has a line, and no traceback.
    (told,) = [each for each in caplog.records if "its primary failed" in each.getMessage()]
    assert told.exc_info is None
    assert store.state == {"all": 2, "k": 2}
    assert [each["number"] for each in await bench.output()] == [1, 2]


class _Deferring(Numbered):
    """Defers every third message, once."""

    def __init__(self):
        super().__init__()
        self.deferred = set()
        self.transactions = []

    def begin(self, txn):
        self.transactions.append([])

    async def consume(self, txn, envelope):
        number = envelope.message["id"]
        if number % 3 == 0 and number not in self.deferred:
            self.deferred.add(number)
            raise DeferToNextTransaction
        self.transactions[-1].append(number)
        await super().consume(txn, envelope)


class _DeferringBatches(_Deferring):
    async def consume_batch(self, txn, envelopes):
        for index, envelope in enumerate(envelopes):
            try:
                await _Deferring.consume(self, txn, envelope)
            except DeferToNextTransaction as err:
                raise DeferToNextTransaction(index) from err


@pytest.mark.parametrize("kind", [_Deferring, _DeferringBatches])
async def test_ct6_deferred_messages_are_of_the_next_transaction(bench, kind):
    application = kind()
    ends = await bench.publish(*range(1, 9))
    replica = bench.replica(application)
    store = await through(replica, ends)
    assert store.state["all"] == 8
    assert application.transactions == [[1, 2], [3, 4, 5], [6, 7, 8]]
    assert [each["id"] for each in await bench.output()] == [*range(1, 9)]


async def test_ct6_a_restart_behind_a_deferred_message_begins_with_it(bench):
    application = _DeferringBatches()
    ends = await bench.publish(*range(1, 9))
    first = bench.replica(application)
    await eventually(lambda: first.progress.publish_at)
    await first.stop()
    again = Numbered()
    second = bench.replica(again)
    store = await through(second, ends)
    assert store.state["all"] == 8
    assert [each["number"] for each in await bench.output()] == [*range(1, 9)]


async def test_ct7_acks_of_a_restored_checkpoint_are_appended_again(bench, caplog):
    application = Numbered()
    await bench.client.apply([Change(journal("out/gone"))])

    class Publishing(Numbered):
        async def consume(self, txn, envelope):
            await super().consume(txn, envelope)
            await txn.publisher.publish("out/gone", {"id": 0})

    first = bench.replica(Publishing(application.remote), spec_of(log=False))
    await through(first, await bench.publish(1))
    await first.stop()
    head = await bench.client.write_head(OUT)
    await bench.client.apply([Change(None, delete="out/gone", revision=-1)])
    second = bench.replica(application, spec_of(log=False))
    await through(second, {})
    await eventually(lambda: OUT in second.progress.publish_at)
    assert second.progress.publish_at == {OUT: await bench.client.write_head(OUT)}
    assert second.progress.publish_at[OUT] > head
    assert "out/gone: JOURNAL_NOT_FOUND" in caplog.text
    assert [each["number"] for each in await bench.output()] == [1]
    await through(second, await bench.publish(2))
    assert [each["number"] for each in await bench.output()] == [1, 2]


async def test_ct8_hints_are_kept_between_transactions(bench):
    host = Host(bench.desk)
    replica = bench.replica(Numbered(), host=host, settings={"hints_interval_s": 0.0})
    await through(replica, await bench.publish(1))
    await through(replica, await bench.publish(2))
    assert bench.desk.primary.log == LOG
    kept = bench.desk.primary
    host.put_error = EtcdError("etcd does not answer")
    await through(replica, await bench.publish(3))
    await through(replica, await bench.publish(4))
    assert bench.desk.primary is kept
    host.put_error = TransactionFailed("the assignment is gone")
    await bench.publish(5)
    status = await host.reached("FAILED")
    assert status.errors == ("runTransactions: storeRecordedHints: the assignment is gone",)
    await replica.stop()
    # Played from its hints, and from the log after them, the store is as it was.
    again = bench.replica(Numbered())
    store = await through(again, await bench.publish(6))
    assert store.state == {"all": 6, "k": 6}


async def head_after(client, begin):
    """Wait for content from `begin` on. Return the head."""

    async def head():
        found = await client.write_head(IN)
        return found if found > begin else None

    return await eventually(head)


async def test_an_application_may_read_by_itself(bench):
    """When its messages end, the transaction is committed, and reading restarts."""
    begun = []

    class Reading(Numbered):
        async def messages(self, begin):
            reader = await read_to_head(bench.client, begin)
            async for batch in reader:
                yield batch

        def read(self, shard, store, checkpoint):
            begin = checkpoint.read_through.get(IN, 0)
            begun.append(begin)
            return self.messages(begin)

    async def read_to_head(client, begin):
        head = await head_after(client, begin)
        return await read_uncommitted(client, IN, begin, end_offset=head)

    first = await bench.publish(1, 2)
    replica = bench.replica(Reading(), spec_of(log=False))
    await through(replica, first)
    store = await through(replica, await bench.publish(3))
    assert store.state == {"all": 3, "k": 3}
    assert begun[:2] == [0, first[IN]]

    # It would have to give again what the ring has dropped.
    publisher = bench.publisher()
    for each in range(5):
        await publisher.publish_uncommitted({"id": each, "key": "a"})
    replica.update(spec_of(log=False, ring_buffer_size=2), replica.assignment)
    await through(replica, await bench.publish(9))
    await publisher.append_acks(publisher.build_acks())
    status = await replica.host.reached("FAILED")
    assert "override `replay` as well as `read`" in status.errors[0]


async def test_acks_come_no_second_time_behind_messages_of_the_next_transaction(bench, monkeypatch):
    """Who reads by itself restores a checkpoint often, and has one producer all the time.

    An ACK that comes again takes back what its producer has published since.
    """
    published = asyncio.Event()

    class Reading(Numbered):
        async def messages(self, begin):
            head = await head_after(bench.client, begin)
            async for batch in await read_uncommitted(bench.client, IN, begin, end_offset=head):
                yield batch

        def read(self, shard, store, checkpoint):
            return self.messages(checkpoint.read_through.get(IN, 0))

        async def consume(self, txn, envelope):
            await super().consume(txn, envelope)
            if envelope.message["id"] == 2:
                await txn.shard.appends.flush(OUT)
                published.set()
                await pass_time(0.2)

    again = []

    async def append(journal, content, **options):
        if journal == OUT:
            again.append(content)
            await published.wait()
        return await AsyncClient.append(bench.client, journal, content, **options)

    monkeypatch.setattr(bench.client, "append", append)
    replica = bench.replica(Reading(), spec_of(log=False))
    await through(replica, await bench.publish(1))
    await through(replica, await bench.publish(2))
    assert [each["number"] for each in await bench.output()] == [1, 2]
    assert again == []
    # Of a restart they are, for no one knows whether they were appended.
    await replica.stop()
    published.set()
    replica = bench.replica(replica._application, spec_of(log=False))
    await through(replica, await bench.publish(3))
    assert [each["number"] for each in await bench.output()] == [1, 2, 3]
    assert len(again) == 1


def unstored(name):
    """A journal that leaves nothing in a store when it is deleted."""
    spec = journal(name)
    return dataclasses.replace(spec, fragment=dataclasses.replace(spec.fragment, stores=()))


@pytest.fixture
async def unstored_bench(bench):
    listed = await bench.client.get(IN)
    await bench.client.apply([Change(unstored(IN), revision=listed.mod_revision)])
    return bench


async def made_again(client, name):
    """Delete a journal of `unstored`, and make it again."""
    await client.apply([Change(None, delete=name, revision=-1)])

    async def is_gone():
        return not list(await client.list(f"name={name}"))

    await eventually(is_gone)
    await client.apply([Change(unstored(name))])


async def has_failed(replica, text):
    async def has_failed():
        return replica.error is not None and text in str(replica.error)

    await eventually(has_failed)


@pytest.mark.parametrize("is_longer", [False, True])
async def test_a_source_that_was_made_again_is_refused_until_it_is_renamed(
    unstored_bench, is_longer
):
    """However long it is: when it passes the checkpoint, messages before would be lost."""
    bench = unstored_bench
    application, spec = Numbered(), spec_of(log=False)
    replica = bench.replica(application, spec)
    [end] = (await bench.publish(1, 2, 3)).values()
    await through(replica, {IN: end})
    await replica.stop()
    again = bench.replica(application, spec)
    await again.host.reached("PRIMARY")
    await again.stop()
    await made_again(bench.client, IN)
    [head] = (await bench.publish(*range(10, 20 if is_longer else 11))).values()
    assert (head > end) == is_longer
    for _ in range(2):
        refused = bench.replica(application, spec)
        await has_failed(refused, f"{IN} was deleted and made again: offset {end} belongs to")
        await refused.stop()
    renamed = str(refused.error).partition("name the source ")[2].partition(" ")[0]
    assert renamed.startswith(f"{IN};")
    replica = bench.replica(application, spec_of(renamed, log=False))
    await through(replica, {renamed: head})
    assert application.seen == [1, 2, 3, *range(10, 20 if is_longer else 11)]


async def test_a_source_that_is_made_again_while_it_is_read_ends_the_shard(unstored_bench):
    bench = unstored_bench
    application, spec = Numbered(), spec_of(log=False)
    replica = bench.replica(application, spec)
    [end] = (await bench.publish(1, 2, 3)).values()
    await through(replica, {IN: end})
    await made_again(bench.client, IN)
    [head] = (await bench.publish(*range(10, 20))).values()
    assert head > end
    await has_failed(replica, f"{IN} was deleted and made again")
    assert application.seen == [1, 2, 3]


async def test_a_transaction_is_not_read_again_from_a_source_that_was_made_again(unstored_bench):
    """The shard waited for ever, or had bytes of the other journal, in place of its messages."""
    bench = unstored_bench
    [end] = (await bench.publish(1, 2, 3)).values()
    shard = Shard("shard-000", "f", spec_of(log=False), assigned(), bench.client, None)
    sources = Sources(shard, Numbered(), None, Inlet(100, lambda: None))
    first = await sources.replay(ReplayRange(IN, 0, end))
    assert [each.message["id"] async for batch in first for each in batch] == [1, 2, 3]
    created = (await bench.client.get(IN)).created
    committed = await read_committed(bench.client, IN, created=created, framing=JsonFraming())
    await made_again(bench.client, IN)
    wanted = ReplayRange(IN, 0, end)
    for again in (await sources.replay(wanted), committed._replay(wanted)):
        with pytest.raises(JournalReplaced):
            async with asyncio.timeout(patient(5)):
                await anext(again)


async def test_source_that_ends_below_its_offset_is_reported(unstored_bench, caplog):
    """Checkpoints of former releases do not say which journal they are of."""
    bench = unstored_bench
    application, spec = Numbered(), spec_of(log=False)
    replica = bench.replica(application, spec)
    [end] = (await bench.publish(1, 2, 3)).values()
    await through(replica, {IN: end})
    await replica.stop()
    kept = dataclasses.replace(Checkpoint.decode(application.remote.checkpoint), created={})
    application.remote.checkpoint = kept.encode()
    await made_again(bench.client, IN)
    bench.replica(application, spec)
    [head] = (await bench.publish(4)).values()
    assert head < end

    async def is_told():
        return f"{IN} ends at offset {head}, and was read up to {end} before" in caplog.text

    await eventually(is_told)
    assert application.seen == [1, 2, 3]


async def test_sources_that_are_added_are_read_once_the_shard_is_assigned_again(bench, caplog):
    application = Numbered()
    spec = spec_of(log=False)
    replica = bench.replica(application, spec)
    await through(replica, await bench.publish(1))
    for same in (spec, dataclasses.replace(spec, max_txn_duration_ns=1)):
        replica.update(same, replica.assignment)
    assert "its spec has changed" not in caplog.text
    more = spec_of(IN, IN2, log=False, ring_buffer_size=9)
    replica.update(more, replica.assignment)
    assert "its spec has changed in sources and ring_buffer_size, which counts once" in caplog.text
    offsets = await bench.publish(2, to=IN2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await replica.wait_through(offsets)
    await replica.stop()
    await through(bench.replica(application, more), offsets)
    assert application.seen == [1, 2]


async def test_cs1_min_offset_is_where_a_source_begins(bench):
    ends = await bench.publish(1, 2)
    spec = dataclasses.replace(spec_of(log=False), sources=(ShardSource(IN, ends[IN]),))
    application = Numbered()
    replica = bench.replica(application, spec)
    await through(replica, await bench.publish(3))
    assert application.seen == [3]


async def test_batches_and_single_messages_give_the_same(bench):
    publisher, other = bench.publisher(), bench.publisher(IN2)
    for each in range(300):
        await (publisher if each % 3 else other).publish_uncommitted(
            {"id": each, "key": str(each % 7)}
        )
        if each % 11 == 0:
            await publisher.append_acks(publisher.build_acks())
            await other.append_acks(other.build_acks())
    await publisher.append_acks(publisher.build_acks())
    await other.append_acks(other.build_acks())
    ends = {name: await bench.client.write_head(name) for name in (IN, IN2)}
    states = []
    for application in (Numbered(), NumberedInBatches()):
        application.to = OUT if not states else OUT2
        replica = bench.replica(application, spec_of(IN, IN2, log=False))
        states.append((await through(replica, ends)).state)
        await replica.stop()
    assert states[0] == states[1]
    assert states[0]["all"] == 300
    assert max(NumberedInBatches.sizes) > 50

    def by_key(messages):
        found = {}
        for each in messages:
            found.setdefault((each["key"], each["id"] % 3 == 0), []).append(each["id"])
        return found

    assert by_key(await bench.output(OUT)) == by_key(await bench.output(OUT2))


async def test_gb4_a_shard_goes_on_in_another_log_than_its_hints_are_of(bench):
    """As after its spec was changed: what is recorded from now on is in the log of the spec."""
    other = "elsewhere/shard-000"
    await bench.client.apply([Change(journal(other, CONTENT_TYPE))])
    application = Numbered()
    spec = dataclasses.replace(spec_of(), recovery_log_prefix="elsewhere")
    first = bench.replica(application, spec, settings={"hints_interval_s": 0.0})
    await through(first, await bench.publish(1))
    assert bench.desk.primary.log == other
    await first.stop()
    backups = bench.desk.backups

    second = bench.replica(application, settings={"hints_interval_s": 0.0})
    await through(second, await bench.publish(2))
    assert bench.desk.primary.log == other  # nothing of the files was in the new log yet
    store = await through(second, await bench.publish(3))
    await eventually(lambda: bench.desk.primary.log == LOG)
    assert store.state == {"all": 3, "k": 3}
    assert bench.desk.backups == backups  # which are good for the other log alone
    await second.stop()
    third = bench.replica(application)
    store = await through(third, await bench.publish(4))
    assert store.state == {"all": 4, "k": 4}


async def test_who_reads_by_itself_says_what_offsets_mean(bench):
    class Translating(Numbered):
        def read_through(self, shard, store, offsets):
            return {IN: offsets["of-others"] * 2}

    replica = bench.replica(Translating(), spec_of(log=False))
    ends = await bench.publish(1, 2)
    store = await through(replica, {"of-others": ends[IN] // 2})
    assert store.state["all"] == 2


async def test_a_shard_of_a_long_id_has_a_directory(bench):
    spec = dataclasses.replace(spec_of(), id="part/" * 60 + "000")
    await bench.client.apply([Change(journal(spec.recovery_log, CONTENT_TYPE))])
    replica = bench.replica(Numbered(), spec)
    await bench.publish(1)
    await replica.host.reached("PRIMARY")
    [directory] = [each.name for each in bench.directory.iterdir()]
    assert directory.startswith("part_part_")
