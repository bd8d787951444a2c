"""A primary's run, of messages that are given: where transactions end, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
from typing import Any

import pytest
from shard_bench import IN, assigned, journal, spec_of

from gazette_platform.consumer.application import Application, DeferToNextTransaction, Shard
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.runtime.run import Run
from gazette_platform.consumer.runtime.status import Readiness, StepFailed
from gazette_platform.errors import GazetteError
from gazette_platform.message import Envelope, Flags, UuidParts
from gazette_platform.ops.clock import ManualClock, SystemClock
from gazette_platform.testing.waiting import block_for, turns

PRODUCER = b"\1\2\3\4\5\6"


def message(number, flags=Flags.OUTSIDE_TXN):
    uuid = UuidParts(PRODUCER, number << 4, int(flags))
    return Envelope(IN, number * 10, number * 10 + 10, uuid, number)


PENDING = frozenset({object()})
SPAN = [*(message(each, Flags.CONTINUE_TXN) for each in (1, 2, 3, 4)), message(5, Flags.ACK_TXN)]


class Store:
    """Commits at once, unless a test asks otherwise."""

    def __init__(self):
        self.checkpoints = []
        self.after = []

    def start_commit(self, checkpoint, after):
        self.checkpoints.append(checkpoint)
        self.after.append(after)
        ended = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(ended.set_result, None)
        return ended


class Appends:
    """`PENDING` stands for an append that is under way."""

    def pending(self):
        return PENDING


class Publisher:
    def __init__(self):
        self.begun = 0

    def begin(self):
        self.begun += 1

    def build_acks(self):
        return []


class Consuming(Application[Any, int]):
    """Notes what it consumes, by transaction; each message takes `seconds`."""

    def __init__(self, *batches, seconds=0.0, replayed=None):
        self.batches = batches
        self.seconds = seconds
        self.replayed = replayed
        self.transactions = []
        self.ended = []
        self.clock = ManualClock()

    def new_store(self, shard, recorder):
        raise AssertionError("the tests never open it")

    async def _give(self, batches):
        for each in batches:
            yield [*each]

    def read(self, shard, store, checkpoint):
        return self._give(self.batches)

    def replay(self, shard, store, wanted):
        return self._give(
            [[e for e in batch if wanted.begin <= e.begin < wanted.end] for batch in self.replayed]
        )

    def begin(self, txn):
        self.transactions.append([])

    def consume(self, txn, envelope):
        self.transactions[-1].append(envelope.message)
        if self.seconds:
            self.clock.advance(self.seconds)

    def finished(self, txn, commit):
        self.ended.append(commit)


def a_run(application, store=None, publisher=None, **spec):
    shard = Shard("shard-000", "f", spec_of(log=False, **spec), assigned(), None, Appends())

    async def between():
        pass

    return Run(
        shard,
        application,
        store or Store(),
        publisher=publisher or Publisher(),
        checkpoint=Checkpoint(),
        readiness=Readiness(shard),
        between=between,
        clock=application.clock,
        batch_size=100,
    )


async def test_what_was_published_is_on_its_way_before_its_commit_is_prepared():
    """It takes a turn to begin, and one to be written."""
    loop, written = asyncio.get_running_loop(), []

    class Publishing(Consuming):
        def consume(self, txn, envelope):
            loop.call_soon(lambda: loop.call_soon(written.append, envelope.message))

    class Noting(Store):
        def start_commit(self, checkpoint, after):
            self.written = [*written]
            return super().start_commit(checkpoint, after)

    store = Noting()
    await a_run(Publishing([message(1, Flags.OUTSIDE_TXN)]), store).run()
    assert store.written == [1]


async def test_ct5_the_longest_time_ends_a_transaction_within_a_sequence():
    application, store, publisher = Consuming(SPAN, seconds=0.6), Store(), Publisher()
    await a_run(application, store, publisher).run()
    assert publisher.begun == 3  # UUIDs are of the time at which each began
    assert application.transactions == [[1, 2], [3, 4], [5]]
    found = [(each.read_through, each.read.producers[0][2:]) for each in store.checkpoints]
    # Up to the ACK, which is to come again: the rest begins at 3, and at 5, and then there is none.
    assert found == [({IN: 50}, (47, 30)), ({IN: 50}, (79, -1)), ({IN: 60}, (80, -1))]
    assert all(commit.done() for commit in application.ended)
    # What was published before has to exist before it is committed.
    assert store.after == 3 * [PENDING]


async def test_ct5_the_longest_time_ends_a_transaction_between_messages_that_are_quick():
    application = Consuming([message(each) for each in range(1, 401)], seconds=0.003)
    await a_run(application).run()
    assert [len(each) for each in application.transactions] == [334, 66]


async def test_others_have_their_turn_between_messages_that_take_long():
    class Slow(Consuming):
        def consume(self, txn, envelope):
            super().consume(txn, envelope)
            block_for(0.004)

    application = Slow([message(each) for each in range(1, 21)])
    application.clock = SystemClock()
    seen = set()

    async def other():
        while True:
            seen.add(sum(map(len, application.transactions)))
            await turns()

    task = asyncio.get_running_loop().create_task(other())
    await a_run(application).run()
    task.cancel()
    assert application.transactions == [[*range(1, 21)]]
    # The timer for the shortest time, of none, is due after the first one.
    assert seen - {0, 1, 20}


async def test_a_replay_that_ends_early_is_an_error():
    lost = [SPAN[:2]]
    application = Consuming(SPAN, replayed=lost)
    with pytest.raises(
        StepFailed, match="replay: in/one: reading a transaction again, from offset 10 "
    ):
        await a_run(application, ring_buffer_size=2).run()
    whole = Consuming(SPAN, replayed=[SPAN[:1], SPAN[1:]])
    await a_run(whole, ring_buffer_size=2).run()
    assert whole.transactions == [[1, 2, 3, 4, 5]]


async def test_producers_that_take_back_what_was_delivered_do_not_fill_the_log(caplog):
    application = Consuming([message(number, Flags.ACK_TXN) for number in range(1000, 0, -1)])
    await a_run(application).run()
    warnings = [each for each in caplog.messages if each.startswith("shard shard-000: ")]
    assert "takes back messages" in warnings[0]
    assert len(warnings) < 20


async def test_ct9_a_begin_that_fails_is_matched_by_no_finish():
    class Failing(Consuming):
        def begin(self, txn):
            raise ValueError("no turn")

    application = Failing([message(1)])
    with pytest.raises(StepFailed, match=r"app\.BeginTxn: ValueError: no turn"):
        await a_run(application).run()
    assert application.ended == []


async def test_a_transaction_that_is_given_up_is_reported_so():
    consuming = asyncio.Event()

    class Waiting(Consuming):
        async def consume(self, txn, envelope):
            consuming.set()
            await asyncio.get_running_loop().create_future()

    application = Waiting([message(1)])
    task = asyncio.get_running_loop().create_task(a_run(application).run())
    await consuming.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [commit] = application.ended
    assert commit.cancelled()


@pytest.mark.parametrize("how", ["failed", "cancelled", "raises"])
async def test_a_commit_that_cannot_be_started_fails_at_once(how):
    class Failing(Store):
        def start_commit(self, checkpoint, after):
            if how == "raises":
                raise OSError("disk")
            ended = asyncio.get_running_loop().create_future()
            if how == "cancelled":
                ended.cancel()
            else:
                ended.set_exception(OSError("disk"))
            return ended

    application = Consuming([message(1)])
    with pytest.raises(GazetteError) as caught:
        await a_run(application, Failing()).run()
    expected = "ApplicationFailed" if how == "cancelled" else "OSError: disk"
    text = str(caught.value)
    assert text.startswith("txnStartCommit: store.StartCommit: ")
    assert expected in text or "the store cancelled its commit" in text
    assert isinstance(application.ended[0].exception(), StepFailed)


async def test_failed_read_of_an_application_ends_the_run_after_what_was_read():
    class Failing(Consuming):
        async def _give(self, batches):
            yield [message(1)]
            raise OSError("line is down")

    application, store = Failing(), Store()
    with pytest.raises(StepFailed, match="readMessage: OSError: line is down"):
        await a_run(application, store).run()
    assert application.transactions == [[1]]


async def test_a_source_that_ends_is_an_error():
    class Pieces:
        journal, offset = IN, 0

        async def __anext__(self):
            raise StopAsyncIteration

        async def aclose(self):
            pass

    class Client:
        async def get(self, name):
            class Listing:
                spec = journal(name)
                created = 7

            return Listing

        def read(self, name, begin, **options):
            assert (name, begin, options["block"]) == (IN, 0, True)
            return Pieces()

    class Reading(Consuming):
        def read(self, shard, store, checkpoint):
            return None

    run = a_run(Reading())
    run._shard.client = Client()
    with pytest.raises(StepFailed, match="readMessage: in/one: the client was closed"):
        await run.run()


async def test_a_commit_that_fails_later_fails_the_run(caplog):
    class Failing(Store):
        def start_commit(self, checkpoint, after):
            ended = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.01, ended.set_exception, OSError("disk"))
            return ended

    class Impatient(Consuming):
        async def _give(self, batches):
            yield [message(1)]
            await committing.wait()
            yield [message(2)]

        def finished(self, txn, commit):
            committing.set()

        def consume(self, txn, envelope):
            super().consume(txn, envelope)
            if envelope.message == 2:
                raise ValueError("two")

    with pytest.raises(StepFailed, match=r"store\.StartCommit: OSError: disk"):
        await a_run(Consuming([message(1)]), Failing()).run()
    # Whoever is gone by then is not missed.
    committing, both = asyncio.Event(), Impatient()
    with pytest.raises(StepFailed, match="ValueError: two"):
        await a_run(both, Failing()).run()
    assert both.transactions == [[1], [2]]

    class Late(Impatient):
        def finished(self, txn, commit):
            self.commit = commit
            committing.set()

        async def consume(self, txn, envelope):
            super(Impatient, self).consume(txn, envelope)
            if envelope.message == 2:
                await asyncio.wait([self.commit])
                raise ValueError("an append behind the commit has failed")

    # If the commit failed first, what failed after it is not the reason.
    committing = asyncio.Event()
    with pytest.raises(StepFailed, match=r"store\.StartCommit: OSError: disk"):
        await a_run(Late(), Failing()).run()
    await turns(20)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_ct9_what_is_deferred_first_is_an_error():
    class Deferring(Consuming):
        def consume(self, txn, envelope):
            raise DeferToNextTransaction

    with pytest.raises(StepFailed, match="deferred the first message of a transaction"):
        await a_run(Deferring([message(1)])).run()


@pytest.mark.parametrize("consumed", [-1, 0, 2, 3])
async def test_ct9_what_is_deferred_of_a_batch_is_a_part_of_it(consumed):
    class Deferring(Consuming):
        consume = Application.consume

        async def consume_batch(self, txn, envelopes):
            assert len(envelopes) == 2
            raise DeferToNextTransaction(consumed)

    with pytest.raises(StepFailed, match=r"deferred (a|the first) message of a") as found:
        await a_run(Deferring([message(1), message(2)])).run()
    assert (f"says that it consumed {consumed} before" in str(found.value)) is (consumed != 0)


async def test_slow_application_bounds_what_is_read():
    """300 messages of 1 MiB before a slow application took all of their memory."""
    mb, given, may_consume = 1 << 20, [], asyncio.Event()

    class Slow(Consuming):
        async def _give(self, batches):
            for number in range(300):
                given.append(number)
                uuid = UuidParts(PRODUCER, (number + 1) << 4, int(Flags.OUTSIDE_TXN))
                yield [Envelope(IN, number * mb, (number + 1) * mb, uuid, number)]

        async def consume(self, txn, envelope):
            await may_consume.wait()
            self.transactions[-1].append(envelope.message)

    application = Slow()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(a_run(application).run())
        await turns(1000)
        assert 60 < len(given) < 80
        may_consume.set()
    assert [*itertools.chain(*application.transactions)] == list(range(300))


async def test_open_transactions_are_bounded_by_bytes():
    """8,192 messages of any size of open transactions were kept."""
    mb = 1 << 20
    span = [
        message(number, Flags.CONTINUE_TXN if number < 201 else Flags.ACK_TXN)._replace(
            begin=number * mb, end=(number + 1) * mb
        )
        for number in range(1, 202)
    ]
    application = Consuming(*([each] for each in span[:-1]), replayed=[span])
    run = a_run(application)
    await run.run()
    held = [each for one in run._sequencer._states.values() for each in one.held]
    assert 60 < len(held) <= 64
    application = Consuming(*([each] for each in span), replayed=[span])
    await a_run(application).run()
    assert [*itertools.chain(*application.transactions)] == list(range(1, 202))


async def test_a_run_that_is_cancelled_as_it_ends_gives_its_bytes_back():
    """What it had read counted for its process for good, so other shards could read less."""
    is_closing = asyncio.Event()

    class Sticky(Consuming):
        async def _give(self, batches):
            try:
                for each in batches:
                    yield [*each]
                await asyncio.get_running_loop().create_future()
            finally:
                is_closing.set()
                await turns(5)

        def consume(self, txn, envelope):
            raise KeyError("word")

    run = a_run(Sticky([message(1), message(2)], [message(3)]))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run.run())
        await is_closing.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, StepFailed):
            await running
    await turns(10)
    assert run._inlet._budget.used == 0
