"""What every store of a shard must do, as tests to inherit.

    class MyKind(StoreKind):
        async def open(self, shard: str, recorder: Recorder | None) -> ShardStore: ...
        async def put(self, store: MyStore, key: str, value: str) -> None: ...
        async def get(self, store: MyStore, key: str) -> str | None: ...


    class TestMyStore(ShardStoreConformance):
        @pytest.fixture
        def kind(self) -> StoreKind:
            return MyKind()

pytest finds the inherited tests. They run against a real broker, the fixture `broker` of `plugin` or one that
tests share, and need ``pytest-asyncio`` in auto mode. Owners of a shard come one after the other, as processes would: each with
a client of its own, and files that it has played from the log.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import pytest
import pytest_asyncio

from gazette_platform.client import AppendService, AppendTicket, AsyncClient, Change, ClientConfig
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.recoverylog import CONTENT_TYPE, FsmHints, Player, Recorder
from gazette_platform.errors import Fenced, GazetteError
from gazette_platform.message import AckIntent
from gazette_platform.message.sequencer import ProducerState, SequencerCheckpoint
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gazette_platform.consumer.store import ShardStore
    from gazette_platform.testing.servers import BrokerServer

__all__ = ["Owner", "Owners", "ShardStoreConformance", "StoreKind", "checkpoint_of"]

_numbers = itertools.count(1)  # of shards, for tests may share a broker and a database

_WAIT_S: Final = 60.0
_NOT_YET_S: Final = 0.3  # for what must not happen: long enough that it would


def checkpoint_of(number: int, *, producers: int = 1) -> Checkpoint:
    """A checkpoint like no other number's, of two journals."""
    states = tuple(
        ProducerState("a/journal", (2 * index + 1).to_bytes(6, "big"), number << 4, -1 if index % 2 else index)
        for index in range(producers)
    )  # fmt: skip
    read = SequencerCheckpoint(
        offsets={"a/journal": number, "b/journal;consumer": 2 * number}, producers=states
    )
    return Checkpoint(read, (AckIntent("c/journal", b"ack %d\n" % number),))


class StoreKind(ABC):
    """How stores of a kind are opened, and how texts are kept in them by key."""

    has_log: ClassVar[bool] = True
    """Whether they have a recovery log. Those that have none keep their state elsewhere."""

    @abstractmethod
    async def open(self, shard: str, recorder: Recorder | None) -> ShardStore:
        """The store of an owner, before anything was restored.

        Args:
            shard: which state, if there is no log.
            recorder: of the files; None without a log.
        """

    @abstractmethod
    async def put(self, store: Any, key: str, value: str) -> None:
        """Change the state. It may wait until the former commit is done."""

    @abstractmethod
    async def get(self, store: Any, key: str) -> str | None:
        """Look into the state, with all changes since the last commit."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has the shard."""

    store: ShardStore
    checkpoint: Checkpoint
    """As it was restored."""
    service: AppendService
    """As that of a shard: its appends are what commits come after."""
    recorder: Recorder | None
    directory: Path

    async def commit(self, checkpoint: Checkpoint) -> None:
        """Commit as a shard does, and wait."""
        log = "" if self.recorder is None else self.recorder.log
        async with asyncio.timeout(patient(_WAIT_S)):
            await self.store.start_commit(checkpoint, self.service.pending(but=log))


@final
class Owners:
    """The owners of one shard, one after the other.

    Attributes:
        shard: its name, which no other test has.
        output: a journal to publish to.
    """

    def __init__(
        self, kind: StoreKind, address: str, folder: Path, *, prefix: str = "conformance"
    ) -> None:
        """Begin with a new shard.

        Args:
            address: of a broker.
            folder: for their files.
            prefix: of the names of their journals, without a slash at its end.
        """
        self._kind = kind
        self._address = address
        self._folder = folder
        self.shard = f"shard-{next(_numbers):04d}"
        self.output = f"{prefix}/{self.shard}/output"
        self._log = f"{prefix}/{self.shard}/log"
        self._hints = FsmHints(self._log)
        self._living: dict[int, AsyncExitStack] = {}
        self._count = 0

    async def apply_journals(self) -> None:
        """Make the log and `output`."""
        fragment = FragmentSpec(
            length=1 << 22,
            codec=CompressionCodec.SNAPPY,
            stores=("file:///",),
            refresh_interval_ns=SECOND_NS,
        )
        kinds = {self._log: CONTENT_TYPE, self.output: "application/x-ndjson"}
        async with AsyncClient(ClientConfig(address=self._address)) as client:
            for name, content_type in kinds.items():
                labels = LabelSet.of({"content-type": content_type})
                spec = JournalSpec(name=name, replication=1, labels=labels, fragment=fragment)
                await client.apply([Change(spec)])

    async def next(self, *, restores: bool = True) -> Owner:
        """The next owner, which takes the shard over from whoever has it.

        Args:
            restores: whether it has restored the shard already.
        """
        self._count += 1
        async with AsyncExitStack() as stack, asyncio.timeout(patient(_WAIT_S)):
            config = ClientConfig(address=self._address)
            client = await stack.enter_async_context(AsyncClient(config))
            service = client.append_service()
            directory = self._folder / f"owner-{self._count}"
            recorder = None
            if self._kind.has_log:
                player = Player(client, self._hints, directory)
                player.inject_handoff(self._count)
                played = await player.play()
                recorder = await Recorder.start(client, service, played, self._count)
            store = await self._kind.open(self.shard, recorder)
            stack.push_async_callback(store.destroy)
            checkpoint = await store.restore_checkpoint() if restores else Checkpoint()
            owner = Owner(store, checkpoint, service, recorder, directory)
            self._living[id(owner)] = stack.pop_all()
        return owner

    async def note_hints(self, owner: Owner) -> None:
        """Let later owners play what `owner` has recorded by its hints."""
        if owner.recorder is not None:
            self._hints = await owner.recorder.build_hints()

    async def end(self, owner: Owner) -> None:
        """Destroy the store of an owner. Of what it has not committed nothing is left."""
        async with asyncio.timeout(patient(_WAIT_S)):
            await self._living.pop(id(owner)).aclose()

    async def close(self) -> None:
        """End all that are left."""
        while self._living:
            await self._living.popitem()[1].aclose()


class ShardStoreConformance:
    """The promises of `ShardStore`; subclasses give the fixture ``kind``."""

    served_by: ClassVar[str] = ""
    """What is behind the store, for reports."""

    @pytest.fixture
    def kind(self) -> StoreKind:
        """What is tested. It has no state yet."""
        raise NotImplementedError("subclasses of ShardStoreConformance give the fixture `kind`")

    @pytest.fixture
    def journal_prefix(self) -> str:
        """Begins the names of journals; override it where tests share brokers."""
        return "conformance"

    @pytest_asyncio.fixture
    async def owners(
        self, kind: StoreKind, broker: BrokerServer, journal_prefix: str, tmp_path: Path
    ) -> AsyncIterator[Owners]:
        """Owners of a new shard."""
        owners = Owners(kind, broker.address, tmp_path / "owners", prefix=journal_prefix)
        await owners.apply_journals()
        yield owners
        await owners.close()

    # ------------------------------------------------------------------ what is kept

    async def test_new_shard_begins_empty(self, kind: StoreKind, owners: Owners) -> None:
        """Also one that was restored before, and has not committed."""
        for _ in range(2):
            owner = await owners.next()
            assert owner.checkpoint == Checkpoint()
            assert await kind.get(owner.store, "a") is None
            await owners.end(owner)

    async def test_next_owner_has_what_was_committed(self, kind: StoreKind, owners: Owners) -> None:
        """State and checkpoint, and nothing else."""
        first = await owners.next()
        await kind.put(first.store, "a", "one")
        await kind.put(first.store, "b", "ä\n\u2028😀<&>\"'\\")
        await first.commit(checkpoint_of(1))
        await owners.end(first)
        second = await owners.next()
        assert second.checkpoint == checkpoint_of(1)
        assert await kind.get(second.store, "a") == "one"
        assert await kind.get(second.store, "b") == "ä\n\u2028😀<&>\"'\\"
        assert await kind.get(second.store, "c") is None

    async def test_checkpoint_replaces_the_former_one(
        self, kind: StoreKind, owners: Owners
    ) -> None:
        """Whole, and also if no state has changed; state that has not stays."""
        first = await owners.next()
        await kind.put(first.store, "a", "one")
        await first.commit(checkpoint_of(1, producers=5))
        other = Checkpoint(SequencerCheckpoint(offsets={"z/journal": 7}))
        await first.commit(other)
        await owners.end(first)
        second = await owners.next()
        assert second.checkpoint == other
        assert await kind.get(second.store, "a") == "one"
        await second.commit(Checkpoint())
        await owners.end(second)
        third = await owners.next()
        assert third.checkpoint == Checkpoint()
        assert await kind.get(third.store, "a") == "one"

    async def test_changes_that_were_not_committed_are_dropped(
        self, kind: StoreKind, owners: Owners
    ) -> None:
        """By the next owner, and by the same one if it restores again."""
        first = await owners.next()
        await kind.put(first.store, "a", "one")
        await first.commit(checkpoint_of(1))
        await kind.put(first.store, "a", "two")
        await kind.put(first.store, "b", "two")
        assert await kind.get(first.store, "a") == "two"
        assert await first.store.restore_checkpoint() == checkpoint_of(1)
        assert await kind.get(first.store, "a") == "one"
        assert await kind.get(first.store, "b") is None
        await kind.put(first.store, "a", "three")
        await owners.end(first)
        second = await owners.next()
        assert second.checkpoint == checkpoint_of(1)
        assert await kind.get(second.store, "a") == "one"

    async def test_many_commits_by_many_owners(self, kind: StoreKind, owners: Owners) -> None:
        """Every owner has all that those before it have committed."""
        dice, expected, number = random.Random(7), dict[str, str](), 0  # noqa: S311  of a test
        for _ in range(4):
            owner = await owners.next()
            assert owner.checkpoint == (checkpoint_of(number) if number else Checkpoint())
            found = {key: await kind.get(owner.store, key) for key in map(str, range(20))}
            assert {key: value for key, value in found.items() if value is not None} == expected
            for _ in range(12):
                number += 1
                for _ in range(dice.randrange(4)):
                    key, value = str(dice.randrange(20)), f"{number}" * dice.randrange(1, 200)
                    await kind.put(owner.store, key, value)
                    expected[key] = value
                await owner.commit(checkpoint_of(number))
                if not dice.randrange(8):
                    await owners.note_hints(owner)
            await kind.put(owner.store, "0", "not committed")
            await owners.end(owner)

    async def test_large_state_and_checkpoint(self, kind: StoreKind, owners: Owners) -> None:
        """Of megabytes, and of thousands of producers."""
        large, checkpoint = "large " * 600_000, checkpoint_of(9, producers=5_000)
        first = await owners.next()
        await kind.put(first.store, "a", large)
        await first.commit(checkpoint)
        await owners.note_hints(first)
        await owners.end(first)
        second = await owners.next()
        assert second.checkpoint == checkpoint
        assert await kind.get(second.store, "a") == large

    # ------------------------------------------------------------------ what a commit waits for

    async def test_commit_waits_for_what_it_comes_after(
        self, kind: StoreKind, owners: Owners
    ) -> None:
        """And is durable soon after."""
        owner = await owners.next()
        await kind.put(owner.store, "a", "one")
        needs = [asyncio.get_running_loop().create_future() for _ in range(2)]
        commit = owner.store.start_commit(checkpoint_of(1), needs)
        for need in needs:
            await asyncio.wait([commit], timeout=_NOT_YET_S)
            assert not commit.done()
            need.set_result(None)
        async with asyncio.timeout(patient(_WAIT_S)):
            await commit
        await owners.end(owner)
        second = await owners.next()
        assert second.checkpoint == checkpoint_of(1)
        assert await kind.get(second.store, "a") == "one"

    async def test_commit_comes_after_appends(self, kind: StoreKind, owners: Owners) -> None:
        """Those of the shard, by the service that its log is appended by, too."""
        owner = await owners.next()
        for number in range(1, 6):
            tickets = list[AppendTicket]()
            for _ in range(3):
                tickets += [await owner.service.submit(owners.output, b'{"number":%d}\n' % number)]
            await kind.put(owner.store, "a", str(number))
            await owner.commit(checkpoint_of(number))
            assert all(ticket.is_done for ticket in tickets)
        await owners.end(owner)
        assert (await owners.next()).checkpoint == checkpoint_of(5)

    async def test_commit_fails_with_an_append_that_it_comes_after(
        self, kind: StoreKind, owners: Owners
    ) -> None:
        """The former commit stays."""
        owner = await owners.next()
        await kind.put(owner.store, "a", "one")
        await owner.commit(checkpoint_of(1))
        await kind.put(owner.store, "a", "two")
        _ = await owner.service.submit("conformance/no-such-journal", b"{}\n")
        with pytest.raises(GazetteError, match="no-such-journal"):
            await owner.commit(checkpoint_of(2))
        await self._assert_former(kind, owners, owner)

    @pytest.mark.parametrize("how", ["fails", "has failed", "is cancelled"])
    async def test_commit_fails_with_anything_that_it_comes_after(
        self, kind: StoreKind, owners: Owners, how: str
    ) -> None:
        """With an error that is not a cancellation, since the waiter was not cancelled."""
        owner = await owners.next()
        await kind.put(owner.store, "a", "one")
        await owner.commit(checkpoint_of(1))
        await kind.put(owner.store, "a", "two")
        need = asyncio.get_running_loop().create_future()
        if how == "has failed":
            need.set_exception(GazetteError("of the test"))
        commit = owner.store.start_commit(checkpoint_of(2), [need])
        await asyncio.wait([commit], timeout=_NOT_YET_S)
        if how == "fails":
            need.set_exception(GazetteError("of the test"))
        elif how == "is cancelled":
            need.cancel()
        with pytest.raises(GazetteError):
            async with asyncio.timeout(patient(_WAIT_S)):
                await commit
        await self._assert_former(kind, owners, owner)

    async def test_changes_during_a_commit_are_of_the_next(
        self, kind: StoreKind, owners: Owners
    ) -> None:
        """Whether the store takes them at once, or has them wait."""
        owner = await owners.next()
        await kind.put(owner.store, "a", "one")
        need = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(patient(_WAIT_S)), asyncio.TaskGroup() as tasks:
            commit = owner.store.start_commit(checkpoint_of(1), [need])
            change = tasks.create_task(kind.put(owner.store, "a", "two"))
            await asyncio.wait([change], timeout=_NOT_YET_S)
            need.set_result(None)
            await commit
        assert await kind.get(owner.store, "a") == "two"
        await owners.end(owner)
        second = await owners.next()
        assert second.checkpoint == checkpoint_of(1)
        assert await kind.get(second.store, "a") == "one"
        await kind.put(second.store, "a", "two")
        await second.commit(checkpoint_of(2))
        await owners.end(second)
        assert await kind.get((await owners.next()).store, "a") == "two"

    async def test_changes_right_behind_the_start_of_a_commit_are_of_the_next(
        self, kind: StoreKind, owners: Owners
    ) -> None:
        """The next transaction consumes as soon as `start_commit` has returned, before anything else runs."""
        owner = await owners.next()
        await kind.put(owner.store, "a", "one")
        async with asyncio.timeout(patient(_WAIT_S)):
            commit = owner.store.start_commit(checkpoint_of(1), [])
            await kind.put(owner.store, "a", "two")
            await commit
        await self._assert_former(kind, owners, owner)

    async def _assert_former(self, kind: StoreKind, owners: Owners, owner: Owner) -> None:
        """That the first commit is the last one, for the next owner."""
        await owners.end(owner)
        successor = await owners.next()
        assert successor.checkpoint == checkpoint_of(1)
        assert await kind.get(successor.store, "a") == "one"

    # ------------------------------------------------------------------ who may commit

    async def test_owner_that_was_followed_is_fenced(self, kind: StoreKind, owners: Owners) -> None:
        """It gets an error, and what it does later does not reach the state."""
        zombie = await owners.next()
        await kind.put(zombie.store, "a", "one")
        await zombie.commit(checkpoint_of(1))
        owner = await owners.next()
        assert owner.checkpoint == checkpoint_of(1)
        await kind.put(zombie.store, "a", "lost")
        with pytest.raises(Fenced):
            await zombie.commit(checkpoint_of(2))
        await owners.end(zombie)
        assert await kind.get(owner.store, "a") == "one"
        await kind.put(owner.store, "b", "two")
        await owner.commit(checkpoint_of(3))
        await owners.end(owner)
        third = await owners.next()
        assert third.checkpoint == checkpoint_of(3)
        assert await kind.get(third.store, "a") == "one"
        assert await kind.get(third.store, "b") == "two"

    async def test_commit_that_waits_is_fenced(self, owners: Owners) -> None:
        """As what it waits for takes longer than it takes to be followed."""
        zombie = await owners.next()
        await zombie.commit(checkpoint_of(1))
        need = asyncio.get_running_loop().create_future()
        commit = zombie.store.start_commit(checkpoint_of(2), [need])
        owner = await owners.next()
        need.set_result(None)
        with pytest.raises(Fenced):
            async with asyncio.timeout(patient(_WAIT_S)):
                await commit
        assert owner.checkpoint == checkpoint_of(1)
        await owner.commit(checkpoint_of(3))
        await owners.end(owner)
        assert (await owners.next()).checkpoint == checkpoint_of(3)

    # ------------------------------------------------------------------ the end

    async def test_destroyed_store_leaves_no_files(self, kind: StoreKind, owners: Owners) -> None:
        """Whether it has committed, or changes are left."""
        owner = await owners.next()
        await kind.put(owner.store, "a", "one")
        await owner.commit(checkpoint_of(1))
        await kind.put(owner.store, "a", "two")
        assert owner.directory.exists() is kind.has_log
        await owners.end(owner)
        assert not owner.directory.exists()

    async def test_destroyed_store_ends_its_commit(self, kind: StoreKind, owners: Owners) -> None:
        """Waiters get the error, and the former one stays."""
        owner = await owners.next()
        await kind.put(owner.store, "a", "one")
        await owner.commit(checkpoint_of(1))
        await kind.put(owner.store, "a", "two")
        need = asyncio.get_running_loop().create_future()
        commit = owner.store.start_commit(checkpoint_of(2), [need])
        await asyncio.wait([commit], timeout=_NOT_YET_S)
        await owners.end(owner)
        with pytest.raises(GazetteError):
            async with asyncio.timeout(patient(_WAIT_S)):
                await commit
        assert not owner.directory.exists()
        successor = await owners.next()
        assert successor.checkpoint == checkpoint_of(1)
        assert await kind.get(successor.store, "a") == "one"

    async def test_store_that_was_never_restored_is_destroyed(self, owners: Owners) -> None:
        """As that of a shard which failed in between."""
        owner = await owners.next(restores=False)
        await owners.end(owner)
        assert not owner.directory.exists()
