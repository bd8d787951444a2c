"""Epochs of the sink on a real broker, with drivers that die at each step, race, and come late."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from dataclasses import replace

import pytest
from spark_journals import JSON, journal_spec

from gazette_platform.client import Change
from gazette_platform.errors import (
    DataError,
    OutcomeUnknown,
    ValidationError,
    WriterFenced,
)
from gazette_platform.message import JsonFraming, read_committed
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import LabelSet
from gazette_platform.spark import routing as staging_module, sink as delivery_module
from gazette_platform.spark.progress import Mark, Writer
from gazette_platform.spark.routing import Block, Targets, lay_down
from gazette_platform.spark.sink import Delivery, check_targets

pytestmark = pytest.mark.etcd

ROWS = frozenset(range(12))


class Killed(Exception):
    """What ends a driver."""


class MortalClient:
    """Dies at one of its appends: before it is sent, or before its answer is seen. Or that answer is lost."""

    def __init__(self, client, *, at=-1, is_sent=False, error=Killed):
        self.appends = 0
        self._client = client
        self._at = at
        self._is_sent = is_sent
        self._error = error
        self.read = client.read

    async def append(self, journal, content, **options):
        number, self.appends = self.appends, self.appends + 1
        if number == self._at and not self._is_sent:
            raise self._error(journal)
        result = await self._client.append(journal, content, **options)
        if number == self._at:
            raise self._error(journal)
        return result


class Journals:
    """Some journals that are written to, and a staging journal."""

    numbers = itertools.count()
    prefix = ""
    """Of a test's own."""

    def __init__(self, client):
        self.client = client
        self.clock = ManualClock()
        prefix = f"{self.prefix}/{next(self.numbers)}"
        self.targets = Targets(tuple(f"{prefix}/{name}" for name in "abc"), (JSON,) * 3)
        self.staging = f"{prefix}-staging"
        self.writer = Writer(f"query-{prefix.partition('/')[2]}")

    async def create(self):
        specs = [
            journal_spec(name, kind)
            for name, kind in zip(self.targets.names, self.targets.content_types, strict=True)
        ]
        specs.append(journal_spec(self.staging, ""))
        await self.client.apply([Change(spec) for spec in specs])
        return self

    def delivery(self, client=None, *, writer=None, staging=None):
        return Delivery(
            client or self.client,
            writer or self.writer,
            self.clock,
            staging=self.staging if staging is None else staging,
        )

    async def blocks(self, rows, draw, *, is_carried=None):
        """Rows as two tasks may make blocks of them: shared out at random, carried or laid down."""
        found = []
        for task in (0, 1):
            parts = {name: [] for name in self.targets.names}
            for row in sorted(rows):
                if row % 2 == task:
                    parts[draw.choice(self.targets.names)].append(row)
            blocks = [
                Block(journal=name, length=len(content), content=content)
                for name, part in parts.items()
                if (content := b"".join(b'{"n":%d}\n' % row for row in part))
            ]
            if not (draw.random() < 0.5 if is_carried is None else is_carried):
                laid = await lay_down(self.client, self.staging, blocks)
                blocks = [replace(block, content=None) for block in laid]
            found += blocks
        return found

    async def lines(self):
        return [
            json.loads(line)
            for name in self.targets.names
            for line in (await content(self.client, name)).splitlines()
        ]

    async def rows(self):
        return sorted(line["n"] for line in await self.lines())


@pytest.fixture(autouse=True)
def _prefix(names, monkeypatch):
    monkeypatch.setattr(Journals, "prefix", names.prefix)


async def content(client, journal):
    reader = client.read(journal)
    try:
        return b"".join([bytes(piece) async for piece in reader])
    finally:
        await reader.aclose()


@pytest.fixture
def small_appends(monkeypatch):
    monkeypatch.setattr(delivery_module, "_APPEND_BYTES", 20)


@pytest.mark.parametrize("is_sent", [False, True])
async def test_epoch_exists_once_wherever_its_driver_dies(client, small_appends, is_sent):
    draw = random.Random(7)
    for at in itertools.count():
        journals = await Journals(client).create()
        dying = MortalClient(client, at=at, is_sent=is_sent)
        try:
            await journals.delivery(dying).deliver(5, await journals.blocks(ROWS, draw))
        except Killed:
            has_died = True
        else:
            has_died = False
        # Spark does the epoch again, and its tasks share out the same rows otherwise.
        await journals.delivery().deliver(5, await journals.blocks(ROWS, draw))
        assert await journals.rows() == sorted(ROWS), at
        await journals.delivery().deliver(6, await journals.blocks({100, 101}, draw))
        assert await journals.rows() == [*sorted(ROWS), 100, 101], at
        if not has_died:
            break
    assert at > 10  # so often it was killed


async def test_marks_alone_double_and_lose_rows_that_go_elsewhere_hole(client):
    """Why there is a plan: without one, rows that are shared out otherwise the second time are not there once."""
    journals = await Journals(client).create()
    a, b, _ = journals.targets.names
    first = [Block(journal=a, length=2, content=b"1\n"), Block(journal=b, length=2, content=b"2\n")]
    again = [Block(journal=a, length=2, content=b"2\n"), Block(journal=b, length=2, content=b"1\n")]
    await journals.delivery(staging="").deliver(1, first[:1])  # it dies before the other one
    await journals.delivery(staging="").deliver(1, again)
    assert [await content(client, name) for name in (a, b)] == [b"1\n", b"1\n"]
    with pytest.raises(ValidationError, match="stagingJournal: 3 journals may be written to"):
        check_targets(journals.targets, staging="", is_lasting=True)


async def test_two_drivers_of_one_epoch_append_it_once(client, small_appends):
    draw = random.Random(9)
    for _ in range(5):
        journals = await Journals(client).create()
        shares = [await journals.blocks(ROWS, draw) for _ in range(3)]
        await asyncio.gather(*(journals.delivery().deliver(1, blocks) for blocks in shares))
        assert await journals.rows() == sorted(ROWS)


@pytest.mark.parametrize("has_staging", [False, True])
async def test_append_without_an_answer_is_not_made_twice(client, has_staging):
    failed = []
    for at in range(6 if has_staging else 2):
        journals = await Journals(client).create()
        journals.targets = Targets(journals.targets.names[:1], (JSON,))
        lost = MortalClient(client, at=at, is_sent=True, error=OutcomeUnknown)
        delivery = journals.delivery(lost, staging=None if has_staging else "")
        blocks = await journals.blocks(ROWS, random.Random(1), is_carried=True)
        try:
            await delivery.deliver(1, blocks)
        except OutcomeUnknown:
            failed.append(at)
            await delivery.deliver(1, blocks)
        assert await journals.rows() == sorted(ROWS), at
    # Appends that have no mark: looks at registers, content that is laid down, and the plan.
    assert failed == ([0, 1, 2, 4] if has_staging else [0])


@pytest.mark.parametrize("staging", [None, ""])
async def test_driver_that_comes_late_is_refused(client, staging):
    journals = await Journals(client).create()
    journals.targets = Targets(journals.targets.names[:1], (JSON,))
    for epoch in (1, 2):
        blocks = await journals.blocks({epoch}, random.Random(1), is_carried=True)
        await journals.delivery(staging=staging).deliver(epoch, blocks)
    late = await journals.blocks({7}, random.Random(1), is_carried=True)
    with pytest.raises(WriterFenced, match=r"is at epoch 2, and epoch 1 comes late"):
        await journals.delivery(staging=staging).deliver(1, late)
    await journals.delivery(staging=staging).deliver(2, late)  # it exists
    assert await journals.rows() == [1, 2]
    # Other writers have marks of their own.
    other = journals.delivery(writer=Writer("another"), staging=staging)
    await other.deliver(1, await journals.blocks({9}, random.Random(1), is_carried=True))
    assert await journals.rows() == [1, 2, 9]


async def test_of_an_epoch_that_comes_late_in_one_journal_nothing_is_appended(client, monkeypatch):
    monkeypatch.setattr(delivery_module, "_JOURNALS_AT_A_TIME", 1)
    journals = await Journals(client).create()
    a, b, _ = journals.targets.names
    blocks = [Block(journal=name, length=2, content=b"1\n") for name in (a, b)]
    await journals.delivery(staging="").deliver(2, blocks[1:])
    with pytest.raises(WriterFenced, match=f"{b}: .* is at epoch 2"):
        await journals.delivery().deliver(1, blocks)
    assert await content(client, a) == b""


async def test_messages_are_committed_and_in_the_order_of_one_producer(client, small_appends):
    journals = await Journals(client).create()
    place = b'{"_meta":{"uuid":"00000000-0000-0000-0000-000000000000"},"n":%d}\n'
    [name, *_] = journals.targets.names
    for epoch in range(3):
        lines = [place % (10 * epoch + number) for number in range(3)]
        blocks = [Block(journal=name, length=len(line), content=line, uuid_at=18) for line in lines]
        dying = MortalClient(client, at=4 + epoch, is_sent=True)
        with pytest.raises(Killed):
            await journals.delivery(dying).deliver(epoch, blocks)
        journals.clock.advance(-3600)  # the next driver's clock is wrong
        await journals.delivery().deliver(epoch, blocks)
    framing = JsonFraming(uuid_field="_meta.uuid")
    async with await read_committed(client, name, framing=framing) as reader:
        found = [envelope async for batch in reader for envelope in batch]
    assert [one.message["n"] for one in found] == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert {one.uuid.producer for one in found} == {journals.writer.producer}
    clocks = [one.uuid.clock for one in found]
    assert clocks == sorted(set(clocks))


async def test_marks_of_writers_that_are_silent_are_dropped(client):
    journals = await Journals(client).create()
    name = journals.targets.names[0]
    now = int(journals.clock.unix_s())
    day = 24 * 3600

    async def write(writer, epoch):
        block = Block(journal=name, length=2, content=b"1\n")
        await journals.delivery(writer=writer, staging="").deliver(epoch, [block])
        return (await client.append(name, b"")).registers.names()

    once, query = Writer("a", is_lasting=False), Writer("b")
    foreign = LabelSet.of(("gazette-spark/odd", "none-of-ours"), ("author", "me"))
    await client.append(name, b"0\n", union_registers=foreign)
    kept = ("author", "gazette-spark/odd")
    await write(once, 0)
    assert await write(query, 4) == ("author", "gazette-spark-once/a", "gazette-spark/b", kept[1])
    journals.clock.advance(2 * 3600)
    assert await write(query, 5) == ("author", "gazette-spark/b", kept[1])
    journals.clock.advance(80 * day)
    assert await write(Writer("c"), 0) == (kept[0], "gazette-spark/b", "gazette-spark/c", kept[1])
    journals.clock.advance(11 * day)
    assert await write(Writer("c"), 1) == (kept[0], "gazette-spark/c", kept[1])
    registers = (await client.append(name, b"")).registers
    mark = Mark.parse(registers.value_of("gazette-spark/c"))
    assert mark == Mark(epoch=1, place=(1, 0), at=now + 2 * 3600 + 91 * day)


async def test_what_is_laid_down_may_be_more_than_can_be_carried(client, monkeypatch):
    monkeypatch.setattr(delivery_module, "CARRIED_BYTES_MAX", 20)
    journals = await Journals(client).create()
    once = Writer("once", is_lasting=False)
    blocks = await journals.blocks(ROWS, random.Random(3), is_carried=False)
    with pytest.raises(ValidationError, match="stagingJournal"):
        await journals.delivery(writer=once, staging="").deliver(0, blocks)
    await journals.delivery(writer=once).deliver(0, blocks)
    assert await journals.rows() == sorted(ROWS)


async def test_write_that_is_not_repeated_goes_to_many_journals_without_a_plan(client):
    journals = await Journals(client).create()
    blocks = await journals.blocks(ROWS, random.Random(3), is_carried=True)
    writer = Writer("once", is_lasting=False)
    await journals.delivery(writer=writer, staging="").deliver(0, blocks)
    assert await journals.rows() == sorted(ROWS)
    assert await content(client, journals.staging) == b""


async def test_content_that_is_gone_or_damaged_is_an_error(client, monkeypatch):
    journals = await Journals(client).create()
    [block] = await lay_down(
        client,
        journals.staging,
        [Block(journal=journals.targets.names[0], length=3, content=b"12\n")],
    )
    wrong = Block(journal=block.journal, length=3, begin=block.begin, sha1=bytes(20))
    with pytest.raises(DataError, match="from offset 0 to 3 is not what a task laid down"):
        await journals.delivery().deliver(0, [wrong])
    # A plan that is none, as if the staging journal were another one now.
    mark = Mark(epoch=3, place=(block.begin, block.begin + 3), at=0)
    registers = LabelSet.of((journals.writer.label, mark.text))
    await client.append(journals.staging, b"x\n", union_registers=registers)
    with pytest.raises(DataError, match="what lies at offset 0 is not a plan of an epoch"):
        await journals.delivery().deliver(3, [])
    monkeypatch.setattr(staging_module, "_READ_TIMEOUT_S", 0.2)
    mark = Mark(epoch=3, place=(4, 90_000), at=0)
    registers = LabelSet.of((journals.writer.label, mark.text))
    await client.append(journals.staging, b"y\n", union_registers=registers)
    with pytest.raises(
        DataError, match=r"nothing up to offset 90000 within 0\.2 s, where an epoch is"
    ):
        await journals.delivery().deliver(3, [])


async def test_the_plan_of_another_writer_or_epoch_is_not_carried_out(client):
    journals = await Journals(client).create()
    theirs = journals.delivery(writer=Writer("another"))
    await theirs.deliver(3, await journals.blocks({1}, random.Random(1), is_carried=True))
    registers = (await client.append(journals.staging, b"")).registers
    planned = Mark.parse(registers.value_of("gazette-spark/another"))
    for epoch in (3, 4):
        mark = replace(planned, epoch=epoch)
        label = LabelSet.of((journals.writer.label, mark.text))
        await client.append(journals.staging, b"x\n", union_registers=label)
        with pytest.raises(DataError, match="the plan of epoch 3 of writer 'another', and not of"):
            await journals.delivery().deliver(epoch, [])
    assert await journals.rows() == [1]


async def test_epoch_that_is_half_done_keeps_its_staging_journal(client, small_appends):
    journals = await Journals(client).create()
    blocks = await journals.blocks(ROWS, random.Random(4), is_carried=True)
    dying = MortalClient(client, at=8, is_sent=True)
    with pytest.raises(Killed):
        await journals.delivery(dying).deliver(1, blocks)
    other = f"{journals.staging}-other"
    await client.apply([Change(journal_spec(other, ""))])
    for staging_journal in (other, ""):
        with pytest.raises(ValidationError, match="which was begun with another staging journal"):
            await journals.delivery(staging=staging_journal).deliver(1, blocks)
    await journals.delivery().deliver(1, blocks)
    assert await journals.rows() == sorted(ROWS)


async def test_more_than_the_driver_carries_is_refused(client, monkeypatch):
    monkeypatch.setattr(delivery_module, "CARRIED_BYTES_MAX", 10)
    journals = await Journals(client).create()
    blocks = await journals.blocks(ROWS, random.Random(3), is_carried=True)
    with pytest.raises(ValidationError, match=r"stagingJournal: .* MiB of one write are more"):
        await journals.delivery(staging="").deliver(0, blocks)
    assert await journals.rows() == []
