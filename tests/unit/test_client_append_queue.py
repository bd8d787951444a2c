"""Back-pressure, and which writes become one append."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st

from gazette_platform.client.write.append import AppendOptions
from gazette_platform.client.write.append_queue import NO_NEEDS, BatchChain, ByteBudget
from gazette_platform.errors import GazetteError, ValidationError
from gazette_platform.protocol import LabelSet
from gazette_platform.protocol.content import CONTENT_CHUNK_BYTES, decode_append_content
from gazette_platform.testing.waiting import turns


def started(budget, sizes, order):
    async def take(size):
        await budget.take(size)
        order.append(size)

    create_task = asyncio.get_running_loop().create_task
    return [create_task(take(size)) for size in sizes]


async def test_who_waits_goes_on_in_order_as_room_comes():
    budget, order = ByteBudget(10), []
    tasks = started(budget, [9, 8, 7, 6], order)
    await turns(5)
    assert order == [9, 8], "the one that fills it is taken"
    assert budget.used == 17
    budget.give_back(9)
    await turns(5)
    assert order == [9, 8, 7]
    budget.give_back(8)
    budget.give_back(7)
    await asyncio.gather(*tasks)
    assert (order, budget.used, budget.is_full) == ([9, 8, 7, 6], 6, False)


async def test_a_newcomer_does_not_overtake_who_waits():
    budget, order = ByteBudget(10), []
    first = started(budget, [10, 3], order)
    await turns(5)
    budget.give_back(10)  # the turn of the second, which has not run yet
    late = started(budget, [10, 1], order)
    await asyncio.gather(*first, late[0])
    assert order == [10, 3, 10]
    assert budget.used == 13
    late[1].cancel()


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_cancelled_one_takes_nothing_and_blocks_nothing_else(is_granted):
    budget, order = ByteBudget(10), []
    tasks = started(budget, [10, 5, 4], order)
    await turns(5)
    if is_granted:
        budget.give_back(10)
    tasks[1].cancel()
    if not is_granted:
        await turns(5)
        assert order == [10]
        budget.give_back(10)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [10, 4]
    assert budget.used == 4


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValidationError, match="buffer_bytes_max"):
        ByteBudget(0)


PLAIN = AppendOptions()
FENCED = AppendOptions(union_registers=LabelSet.of(author="me"))


def content(batch):
    return b"".join(bytes(decode_append_content(message)) for message in batch.messages())


def foreign():
    """A batch of another journal."""
    return BatchChain(1 << 20).batch_for(PLAIN)


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [
        ("", "", True),
        ("a", "a", True),
        ("ab", "a", True),
        ("ab", "", True),
        ("", "a", False),
        ("a", "b", False),
        ("a", "ab", False),
    ],
)
def test_as12_a_batch_takes_writes_that_need_nothing_more(first, second, is_shared):
    others = {letter: foreign() for letter in "ab"}
    chain = BatchChain(1 << 20)
    batch = chain.batch_for(PLAIN, frozenset(others[letter] for letter in first))
    again = chain.batch_for(PLAIN, frozenset(others[letter] for letter in second))
    assert (again is batch) == is_shared
    assert again.needs == frozenset(others[letter] for letter in (first if is_shared else second))


def test_batches_are_of_equal_options():
    chain = BatchChain(1 << 20)
    batch = chain.batch_for(FENCED)
    equal = AppendOptions(union_registers=LabelSet.of(author="me"))
    assert chain.batch_for(equal) is batch
    assert chain.batch_for(PLAIN) is not batch
    assert chain.batch_for(FENCED) is not batch, "order is kept"


def test_a_batch_that_is_full_or_under_way_takes_no_more():
    chain = BatchChain(4)
    batch = chain.batch_for(PLAIN)
    assert batch.add(b"123") == 0
    assert chain.batch_for(PLAIN) is batch
    assert batch.add(b"456") == 3
    later = chain.batch_for(PLAIN)
    assert later is not batch
    assert chain.start() is batch
    assert chain.batch_for(PLAIN) is later
    assert chain.start() is later
    assert chain.batch_for(PLAIN) is not later


def test_offsets_of_gathered_appends_are_refused():
    chain = BatchChain(1 << 20)
    with pytest.raises(ValidationError, match="cannot check offsets"):
        chain.batch_for(AppendOptions(offset=7))
    assert chain.last is None
    with pytest.raises(ValidationError, match="batch_bytes_max"):
        BatchChain(0)


def test_a_failure_ends_all_batches_and_lets_go_of_their_content():
    chain = BatchChain(1)
    batches = []
    for _ in range(3):
        batches.append(chain.batch_for(PLAIN, frozenset({foreign()})))
        batches[-1].add(b"x")
    chain.start()
    own, behind = GazetteError("own"), GazetteError("behind")
    assert chain.fail(own, behind) == batches
    assert [batch.error for batch in batches] == [own, behind, behind]
    assert all(b.is_done and b.needs == NO_NEEDS and b.messages() == [] for b in batches)
    assert chain.last is None


sizes = st.one_of(
    st.integers(1, 300),
    st.sampled_from([CONTENT_CHUNK_BYTES - 1, CONTENT_CHUNK_BYTES, 3 * CONTENT_CHUNK_BYTES + 5]),
)
writes = st.one_of(sizes, st.lists(st.integers(1, 300), min_size=1, max_size=20))
steps = st.lists(st.one_of(writes, st.just("start"), st.just("commit")), max_size=30)


@given(steps, st.integers(1, 2 * CONTENT_CHUNK_BYTES))
def test_every_write_is_once_and_whole_where_its_batch_says(taken, batch_bytes_max):
    """Of any writes, alone or many at once, with appends that begin and end at any moment."""
    chain = BatchChain(batch_bytes_max)
    journal, spans, written = bytearray(), [], 0

    def commit():
        batch = chain.current
        begin = len(journal)
        messages = batch.messages()
        assert all(len(message) <= 2 * CONTENT_CHUNK_BYTES + 8 for message in messages)
        journal.extend(content(batch))
        assert len(journal) - begin == batch.size
        chain.committed(begin)

    for step in taken:
        if step == "start":
            if chain.waiting and chain.current is None:
                chain.start()
        elif step == "commit":
            if chain.current is not None:
                commit()
        else:
            batch = chain.batch_for(PLAIN)
            assert batch is not chain.current
            assert batch.size < batch_bytes_max
            pieces = []
            for size in [step] if isinstance(step, int) else step:
                pieces.append(bytes([written % 251]) * size)
                written += 1
            if isinstance(step, int):
                delta = batch.add(pieces[0])
            else:
                delta = batch.add_all(pieces, sum(map(len, pieces)))
            spans.append((batch, delta, b"".join(pieces)))
    while chain.last is not None:
        if chain.current is None:
            chain.start()
        commit()
    assert bytes(journal) == b"".join(data for _, _, data in spans)
    for batch, delta, data in spans:
        begin = batch.begin + delta
        assert bytes(journal[begin : begin + len(data)]) == data
