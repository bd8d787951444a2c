"""The append service against a broker that fails on order."""

import asyncio
import gc
import itertools
import threading
from contextlib import asynccontextmanager

import grpc
import pytest

from gazette_platform.client import AppendOptions, AsyncClient, Client, ClientConfig
from gazette_platform.errors import (
    DependencyFailed,
    JournalNotFound,
    RegisterMismatch,
    TransportError,
    ValidationError,
)
from gazette_platform.protocol import LabelSelector, LabelSet
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.waiting import eventually, turns
from tests.benches.fake_broker import FakeBroker, Fault

JOURNALS = ("a/one", "a/two", "a/three")


@asynccontextmanager
async def serving(**bounds):
    async with FakeBroker() as broker:
        for name in JOURNALS:
            broker.journal(name)
        async with AsyncClient(ClientConfig(address=broker.address)) as client:
            yield broker, client.append_service(**bounds)


def start(coro):
    return asyncio.get_running_loop().create_task(coro)


def content(broker, journal="a/one"):
    return bytes(broker.journals[journal].content)


async def test_appends_of_many_tasks_share_rpcs_and_each_gets_its_own_span():
    async with serving() as (broker, service):
        records = [b"%d;" % n * (1 + n % 7) for n in range(2000)]
        spans = await asyncio.gather(*(service.append("a/one", each) for each in records))
        assert broker.calls["Append"] < 10
        assert [content(broker)[begin:end] for begin, end in spans] == records
        assert content(broker) == b"".join(records), "in the order of the calls"
        assert service.buffered_bytes == 0


async def test_appends_leave_while_other_waiters_of_a_batch_go_on():
    async with serving() as (broker, service):

        async def append_twice():
            await service.append("a/one", b"1")
            await service.append("a/one", b"2")

        await asyncio.gather(*(append_twice() for _ in range(1000)))
        first, second, *_ = broker.append_sizes
        assert first == 1000
        assert 0 < second < 1000, "it does not wait for all of them"
        assert content(broker) == b"1" * 1000 + b"2" * 1000


async def test_append_is_refused_after_close_while_a_batch_waits():
    async with serving() as (broker, service):
        broker.fail("Append", Fault(stall=True))
        under_way = start(service.append("a/one", b"x"))
        await eventually(lambda: broker.calls["Append"] == 1)
        waiting = start(service.append("a/one", b"y"))
        await turns(1)
        with pytest.raises(ValidationError, match="nothing to append"):
            await service.append("a/one", b"")
        closing = start(service.close())
        await turns(1)
        assert service.buffered_bytes == 2
        with pytest.raises(ValidationError, match="append service is closed"):
            await service.append("a/one", b"z")
        assert service.buffered_bytes == 2
        for task in (closing, waiting, under_way):
            task.cancel()


async def test_journals_are_appended_to_at_the_same_time_and_forgotten_when_idle():
    async with serving() as (broker, service):
        broker.fail("Append", Fault(stall=True))
        stuck = start(service.append("a/one", b"x"))
        await eventually(lambda: broker.calls["Append"] == 1)
        assert await service.append("a/two", b"12") == (0, 2)
        assert await service.append("a/two", b"34") == (2, 4)
        await eventually(lambda: len(service.pending()) == 1)
        assert not stuck.done()
        stuck.cancel()


async def test_a_cancelled_caller_is_gone_and_its_append_and_those_of_others_are_made():
    async with serving() as (broker, service):
        tasks = [start(service.append("a/one", b"%d" % n)) for n in range(5)]
        await turns()
        tasks[2].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(outcomes.pop(2), asyncio.CancelledError)
        assert outcomes == [(0, 1), (1, 2), (3, 4), (4, 5)]
        assert content(broker) == b"01234"


async def test_a_caller_that_is_cancelled_while_it_waits_for_room_appends_nothing():
    async with serving(buffer_bytes_max=10) as (broker, service):
        broker.fail("Append", Fault(code=grpc.StatusCode.UNAVAILABLE, details="wait; try again"))
        tasks = [start(service.append("a/one", b"%d" % n * 10)) for n in range(4)]
        await turns()
        assert service.buffered_bytes == 10
        tasks[1].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [each for each in outcomes if isinstance(each, tuple)] == [
            (0, 10),
            (10, 20),
            (20, 30),
        ]
        assert content(broker) == b"0" * 10 + b"2" * 10 + b"3" * 10
        assert service.buffered_bytes == 0


async def test_back_pressure_bounds_what_waits():
    async with serving(buffer_bytes_max=100, batch_bytes_max=50) as (broker, service):
        seen = []

        async def produce():
            for _ in range(50):
                await service.append("a/one", b"0123456789")
                seen.append(service.buffered_bytes)

        await asyncio.gather(*(produce() for _ in range(20)))
        assert max(seen) <= 110
        assert max(broker.append_sizes) <= 60
        assert len(content(broker)) == 10_000


async def test_as9_appends_that_depend_on_each_other_in_a_ring_are_made_in_order():
    """Of three journals; the last write joins the first one of its journal that may be appended later."""
    async with serving() as (broker, service):
        done = []

        async def submit(journal, data, *after):
            ticket = await service.submit(journal, data, after=after)
            ticket.add_done_callback(lambda: done.append(data))
            return ticket

        broker.fail("Append", Fault(code=grpc.StatusCode.UNAVAILABLE, details="wait; try again"))
        one = await submit("a/one", b"one")
        two = await submit("a/two", b"two", one)
        three = await submit("a/three", b"three", two)
        one_again = await submit("a/one", b" again", three)
        exclaimed = await submit("a/one", b"!", three)
        plain = await submit("a/one", b"?")
        assert await exclaimed == (9, 10)
        await service.flush()
        assert [await each for each in (one, two, three, one_again, plain)] == [
            *((0, 3), (0, 3), (0, 5)),
            *((3, 9), (10, 11)),
        ]
        assert done == [b"one", b"two", b"three", b" again", b"!", b"?"]
        assert content(broker) == b"one again!?"
        assert broker.append_sizes == [3, 3, 5, 8]


async def test_as10_a_failed_dependency_ends_its_journal_and_shows_in_what_is_pending():
    async with serving() as (broker, service):
        lost = await service.submit("no/journal", b"x")
        dependent = await service.submit("a/one", b"y", after=[lost])
        behind = await service.submit("a/one", b"z")
        for ticket in (dependent, behind):
            with pytest.raises(
                DependencyFailed, match=r"dependency failed: .*JOURNAL_NOT_FOUND"
            ) as told:
                await ticket
            assert not told.value.may_be_applied
            assert ticket.attempts == 0
        with pytest.raises(DependencyFailed):
            await service.append("a/one", b"later")
        with pytest.raises(JournalNotFound):
            await lost
        # Whoever comes after all others gets it, too.
        pending = service.pending(but="a/two")
        assert len(pending) == 2
        with pytest.raises(DependencyFailed):
            await service.append("a/two", b"barrier", after=pending)
        assert content(broker) == content(broker, "a/two") == b""
        assert await service.append("a/three", b"goes on") == (0, 7)
        for wait in (service.flush(), service.close()):
            with pytest.raises((DependencyFailed, JournalNotFound)):
                await wait


async def test_as5_a_cancelled_dependency_fails_what_depends_on_it():
    async with serving() as (broker, service):
        future = asyncio.get_running_loop().create_future()
        ticket = await service.submit("a/one", b"x", after=[future])
        await turns()
        future.cancel()
        with pytest.raises(DependencyFailed, match="CancelledError"):
            await ticket
        assert not broker.calls["Append"]


@pytest.mark.parametrize("end", ["failed", "cancelled"])
async def test_a_future_that_had_failed_before_fails_what_comes_after_it(end):
    async with serving() as (broker, service):
        futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
        futures[0].set_result(None)  # which holds nothing up
        if end == "failed":
            futures[1].set_exception(OSError("no checkpoint"))
        else:
            futures[1].cancel()
        ticket = await service.submit("a/one", b"x", after=futures)
        with pytest.raises(DependencyFailed, match=r"no checkpoint|CancelledError"):
            await ticket
        assert await service.append("a/two", b"y", after=futures[:1]) == (0, 1)
        assert broker.calls["Append"] == 1
        assert content(broker) == b""


async def test_append_waits_for_a_future_and_those_after_it_wait_too():
    async with serving() as (broker, service):
        future = asyncio.get_running_loop().create_future()
        tasks = [
            start(service.append("a/one", b"x", after=[future])),
            start(service.append("a/one", b"y")),
        ]
        assert await service.append("a/two", b"z") == (0, 1)
        assert content(broker) == b""
        future.set_result(None)
        assert await asyncio.gather(*tasks) == [(0, 1), (1, 2)]
        assert broker.append_sizes == [1, 2]


async def test_a_barrier_comes_after_all_other_journals():
    async with serving() as (broker, service):
        for journal in ("a/one", "a/two"):
            await service.submit(journal, b"x")
        pending = service.pending(but="a/three")
        await service.append("a/three", b"barrier", after=pending)
        assert all(ticket.is_done for ticket in pending)
        assert content(broker) == content(broker, "a/two") == b"x"


async def test_as6_after_a_refusal_a_journal_takes_nothing_until_reset():
    async with serving() as (broker, service):
        broker.fail("Append", Fault(status=pb.REGISTER_MISMATCH))
        options = AppendOptions(check_registers=LabelSelector.parse("author=me"))
        with pytest.raises(RegisterMismatch):
            await service.append("a/one", b"x", options=options)
        with pytest.raises(RegisterMismatch):
            await service.append("a/one", b"y")
        assert broker.calls["Append"] == 1
        service.reset("a/one")
        assert await service.append("a/one", b"z") == (0, 1)
        await service.close()


async def test_a_reset_of_a_journal_that_has_not_failed_changes_nothing():
    """Else what comes after it would overtake what is under way."""
    async with serving() as (broker, service):
        broker.fail("Append", Fault(code=grpc.StatusCode.UNAVAILABLE, details="wait; try again"))
        tasks = [start(service.append("a/one", b"first;"))]
        await eventually(lambda: broker.calls["Append"] == 1)
        tasks.append(start(service.append("a/one", b"second;")))
        await turns()
        service.reset("a/one")
        service.reset("a/two")  # which has nothing
        tasks.append(start(service.append("a/one", b"third;")))
        assert await asyncio.gather(*tasks) == [(0, 6), (6, 13), (13, 19)]
        assert content(broker) == b"first;second;third;"
        assert service.buffered_bytes == 0


async def test_only_the_batch_under_way_may_be_applied_when_the_client_closes():
    async with FakeBroker() as broker:
        broker.journal("a/one")
        broker.fail("Append", Fault(stall=True))
        client = AsyncClient(ClientConfig(address=broker.address))
        service = client.append_service()
        first = start(service.append("a/one", b"a"))
        await eventually(lambda: broker.calls["Append"] == 1)
        second = start(service.append("a/one", b"b"))
        await turns()
        await client.close()
        with pytest.raises(TransportError, match="outcome is unknown") as unknown:
            await first
        assert unknown.value.may_be_applied
        with pytest.raises(ValidationError, match="closed before all") as behind:
            await second
        assert not behind.value.may_be_applied
        with pytest.raises(ValidationError, match="client of the append service is closed"):
            await service.append("a/two", b"c")


async def test_after_an_unknown_outcome_later_appends_are_known_not_to_be_made():
    """And who flushes learns that what was written before may exist."""
    config = {"retry_timeout_s": 0.2}
    async with FakeBroker() as broker:
        broker.journal("a/one")
        async with AsyncClient(ClientConfig(address=broker.address, **config)) as client:
            service = client.append_service(batch_bytes_max=1)
            writer = service.writer("a/one")
            await service.append("a/one", b"well;")
            lost = Fault(code=grpc.StatusCode.UNKNOWN, after_commit=True)
            broker.fail("Append", *([lost] * 50))
            writer.write(b"one;")
            await turns()
            writer.write(b"two;")
            for _ in range(2):
                with pytest.raises(TransportError) as unknown:
                    await writer.flush()
                assert unknown.value.may_be_applied
            for wait in (service.append("a/one", b"x"), service.submit("a/one", b"x")):
                with pytest.raises(
                    TransportError, match="not appended, as an append before"
                ) as known:
                    await wait
                assert not known.value.may_be_applied
            assert content(broker).startswith(b"well;one;")
            assert b"two" not in content(broker)
            assert b"x" not in content(broker)


async def test_a_lost_answer_is_reported_by_attempts():
    async with serving() as (broker, service):
        broker.fail("Append", Fault(code=grpc.StatusCode.UNKNOWN, after_commit=True))
        ticket = await service.submit("a/one", b"twice")
        assert await ticket == (5, 10)
        assert ticket.attempts == 2
        assert content(broker) == b"twicetwice"


async def test_an_attempt_that_was_refused_does_not_count():
    async with serving() as (broker, service):
        broker.fail("Append", Fault(status=pb.INSUFFICIENT_JOURNAL_BROKERS))
        ticket = await service.submit("a/one", b"once")
        assert await ticket == (0, 4)
        assert (ticket.attempts, broker.calls["Append"]) == (1, 2)


async def test_an_error_that_another_attempt_does_not_cure_is_reported_at_once():
    async with serving() as (broker, service):
        denied = Fault(code=grpc.StatusCode.PERMISSION_DENIED, details="no")
        broker.fail("Append", *([denied] * 3))
        with pytest.raises(TransportError, match=": no"):
            await service.append("a/one", b"x")
        assert broker.calls["Append"] == 1


async def test_appends_of_other_options_are_rpcs_of_their_own():
    async with serving() as (broker, service):
        mine = AppendOptions(union_registers=LabelSet.of(author="me"))
        spans = await asyncio.gather(
            service.append("a/one", b"a"),
            service.append("a/one", b"b", options=mine),
            service.append("a/one", b"c", options=mine),
            service.append("a/one", b"d"),
        )
        assert spans == [(0, 1), (1, 2), (2, 3), (3, 4)]
        assert broker.append_sizes == [1, 2, 1]


@pytest.mark.parametrize(
    ("journal", "data", "message"),
    [("a/one", b"", "nothing to append"), ("not a name!", b"x", "Journal: ")],
)
async def test_invalid_append_is_refused_and_takes_no_room(journal, data, message):
    async with serving() as (broker, service):
        with pytest.raises(ValidationError, match=message):
            await service.append(journal, data)
        with pytest.raises(ValidationError, match=message):
            await service.submit(journal, data)
        with pytest.raises(ValidationError, match="cannot check offsets"):
            await service.append("a/one", b"x", options=AppendOptions(offset=3))
        assert service.buffered_bytes == 0
        assert await service.append("a/one", b"x") == (0, 1)
        await service.close()
        with pytest.raises(ValidationError, match="append service is closed"):
            await service.append("a/one", b"x")
        assert broker.calls["Append"] == 1


async def test_an_error_that_many_are_reported_does_not_grow_with_them():
    async with serving() as (_, service):
        outcomes = await asyncio.gather(
            *(service.append("no/journal", b"x") for _ in range(200)), return_exceptions=True
        )
        assert {type(outcome) for outcome in outcomes} == {JournalNotFound}
        trace, depth = outcomes[0].__traceback__, 0
        while trace is not None:
            trace, depth = trace.tb_next, depth + 1
        assert depth < 10


# ------------------------------------------------------------------ its writers


async def test_records_go_out_by_themselves_and_keep_their_place_among_appends():
    async with serving() as (broker, service):
        writer, other = service.writer("a/one"), service.writer("a/one")
        writer.write(b"1")
        other.write(b"2")
        assert await service.append("a/one", b"3") == (2, 3)
        other.write(b"4")
        writer.write(b"5")
        await eventually(lambda: content(broker) == b"12345")
        writer.write(b"6")
        await service.flush("a/one")
        assert content(broker) == b"123456"
        writer.write(b"7")
        await service.close()
        assert content(broker) == b"1234567"
        with pytest.raises(ValidationError, match="append service is closed"):
            writer.write(b"8")


async def test_as7_full_buffer_refuses_again_and_loses_nothing_accepted():
    async with serving(buffer_bytes_max=2 << 20) as (broker, service):
        writer = service.writer("a/one")
        accepted = []

        def write_on():
            for number in itertools.count(len(accepted)):
                record = b"%06d" % number * 1_000
                writer.write(record)
                accepted.append(record)

        for round_ in range(3):
            for _ in range(2):  # a refusal changes nothing, nor does a second one
                with pytest.raises(ValidationError, match=r"await writer\.drain"):
                    write_on()
            assert len(accepted) * 6_000 < (round_ + 1) * (4 << 20)
            assert await service.append("a/two", b"%d" % round_) == (round_, round_ + 1)
            await writer.drain()
        writer.write(b"end")
        await writer.flush()
        assert content(broker) == b"".join([*accepted, b"end"])
        assert service.buffered_bytes == 0


async def test_as11_nothing_of_an_append_that_failed_is_in_a_later_one():
    async with serving() as (broker, service):
        kept = []
        for size in (1, 10, 100_000, 1 << 20, 3):
            broker.fail("Append", Fault(status=pb.REGISTER_MISMATCH))
            writer = service.writer("a/one")
            writer.write(b"W" * size)
            lost = await service.submit("a/one", b"L" * size)
            with pytest.raises(RegisterMismatch):
                await lost
            with pytest.raises(RegisterMismatch):
                await writer.flush()
            service.reset("a/one")
            kept.append(b"%d;" % size)
            begin = len(b"".join(kept[:-1]))
            assert await service.append("a/one", kept[-1]) == (begin, begin + len(kept[-1]))
        assert content(broker) == b"".join(kept)
        assert service.buffered_bytes == 0


async def test_a_writers_failure_is_raised_by_all_that_follows():
    async with serving() as (_, service):
        writer = service.writer("no/journal")
        writer.write(b"x")
        with pytest.raises(JournalNotFound):
            await writer.flush()
        with pytest.raises(JournalNotFound):
            writer.write(b"y")
        with pytest.raises(JournalNotFound):
            await writer.drain()
        unaware = service.writer("no/journal")
        unaware.write(b"z")  # taken, and refused as it is handed over
        with pytest.raises(JournalNotFound):
            await unaware.flush()
        with pytest.raises(ValidationError):
            service.writer("not a name!")


async def test_writer_reports_records_that_were_lost_before_a_reset():
    async with serving() as (broker, service):
        writer = service.writer("a/one")
        broker.fail("Append", Fault(status=pb.REGISTER_MISMATCH))
        writer.write(b"lost")
        with pytest.raises(RegisterMismatch):
            await service.flush()
        service.reset("a/one")  # by another task, which knows nothing of the writer
        writer.write(b"kept?")
        with pytest.raises(RegisterMismatch):
            await writer.flush()
        assert service.buffered_bytes == 0
        assert await service.append("a/one", b"z") == (0, 1)
        assert content(broker) == b"z", "nothing came after what was lost"


async def test_tickets_keep_no_batch_of_the_past():
    async with serving() as (_, service):
        ticket = await service.submit("a/one", b"x")
        kind = type(ticket.batch)

        def held():
            gc.collect()
            return sum(type(each) is kind for each in gc.get_objects())

        before = held()
        for n in range(100):
            ticket = await service.submit(JOURNALS[n % 3], b"x", after=[ticket])
        await ticket
        assert held() <= before + 3


# ------------------------------------------------------------------ of threads


async def test_threads_share_a_service():
    async with FakeBroker() as broker:
        broker.journal("a/one")
        broker.journal("a/two")

        def run():
            with (
                Client(ClientConfig(address=broker.address)) as client,
                client.append_service() as service,
            ):
                spans = {}

                def produce(name):
                    for n in range(20):
                        data = b"%d-%02d;" % (name, n)
                        spans[data] = service.append("a/one", data)

                threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                ticket = service.submit("a/one", b"last")
                assert service.append("a/two", b"then", after=[ticket]) == (0, 4)
                assert ticket.is_done
                assert ticket.result() == (400, 404)
                with service.writer("a/two") as writer:
                    for _ in range(1000):
                        writer.write(b"0123456789")
                service.flush()
                assert service.buffered_bytes == 0
                lost = service.submit("no/journal", b"x")
                with pytest.raises(JournalNotFound):
                    lost.result()
                with pytest.raises(DependencyFailed):
                    service.append("a/two", b"x", after=service.pending(but="a/two"))
                service.reset("a/two")
                service.reset("no/journal")
                return spans

        spans = await asyncio.to_thread(run)
        assert len(spans) == 80
        assert all(content(broker)[begin:end] == data for data, (begin, end) in spans.items())
        assert content(broker, "a/two") == b"then" + b"0123456789" * 1000


def test_a_ticket_of_threads_is_waited_for_no_longer_than_asked():
    with Client(ClientConfig(address="http://127.0.0.1:9")) as client:
        ticket = client.append_service().submit("a/one", b"x")
        with pytest.raises(TransportError, match=r"not committed within 0\.05 s"):
            ticket.result(0.05)
        assert not ticket.is_done
