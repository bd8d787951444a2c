"""Writes the golden shards: complete recovery logs, with hints in etcd and the state that comes of them.

python tools/golden_shards.py           writes those that are not there
python tools/golden_shards.py --anew    writes all again; existing files must stay readable for ever, so ask why

Each is the same life of a shard, in a store of its kind, over a real broker and a real etcd: three owners, of whom
the second follows the log as a standby, takes it over from the first, who is fenced, and the third recovers by
the hints of the second and commits once more after its own. Authors, producers and clocks are given, so all
bytes are determined but what stores draw or measure themselves (salts of SQLite's log; most of RocksDB's files).

tests/unit/data/golden_shards/<kind>/
    fragments/<name>    of the log, as they were stored, under their names
    hints/<key>         of etcd, behind the prefix
    state.json          of the JSON store alone, as it was restored
    checkpoint          as it was restored, in protobuf
    golden.json         names, offsets and SHA-1s of all that, the files of the store, and what the application finds
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from gazette_platform.client import AppendService, AsyncClient, Change, ClientConfig
from gazette_platform.codecs import decompressor
from gazette_platform.consumer.assignments import ConsumerState, ShardAssignment, encode_shard_spec
from gazette_platform.consumer.etcd_hints import fetch_hints, put_primary_hints, rotate_hints
from gazette_platform.consumer.protocol import Checkpoint, ShardSpec
from gazette_platform.consumer.recoverylog import CONTENT_TYPE, Player, Recorder, pick_hints
from gazette_platform.consumer.store import JSONFileStore, ShardStore
from gazette_platform.consumer.store.rocksdb import RocksDBStore
from gazette_platform.consumer.store.sqlite import SQLiteStore
from gazette_platform.errors import Fenced, RegisterMismatch
from gazette_platform.etcd import Delete, EtcdClient, Put
from gazette_platform.keyspace import KeySpace, assignment_key, item_key
from gazette_platform.message import Mapped, MessageClock, Publisher
from gazette_platform.message.sequencer import ProducerState, SequencerCheckpoint
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    LabelSet,
    ProcessId,
)
from gazette_platform.testing.etcd import EtcdServer, find_etcd
from gazette_platform.testing.servers import BrokerServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROOT: Final = Path(__file__).resolve().parent.parent
DATA: Final = ROOT / "tests/unit/data/golden_shards"

SHARD: Final = "shard-000"
LOG: Final = f"golden/logs/{SHARD}"
_CLICKS, _OUT = "golden/clicks", "golden/counts"
_NDJSON: Final = "application/x-ndjson"
_AUTHORS: Final = (1234, 0xDEADBEEF, 31)
_DEADLINE_S: Final = 60.0


class Kind(ABC):
    """A kind of store, and how numbers are kept in it by word."""

    name: ClassVar[str]
    codec: ClassVar[CompressionCodec] = CompressionCodec.ZSTANDARD

    @abstractmethod
    def open(self, recorder: Recorder) -> ShardStore:
        """A store that was not restored yet."""

    @abstractmethod
    def change(self, store: Any, changes: dict[str, int]) -> None:
        """Set numbers."""

    @abstractmethod
    def all(self, store: Any) -> dict[str, int]:
        """All numbers."""


class OfJson(Kind):
    """Numbers in a dict, which is the state."""

    name = "json"
    codec = CompressionCodec.NONE

    @override
    def open(self, recorder: Recorder) -> ShardStore:
        return JSONFileStore[dict[str, int]](recorder, {})

    @override
    def change(self, store: Any, changes: dict[str, int]) -> None:
        store.state.update(changes)

    @override
    def all(self, store: Any) -> dict[str, int]:
        return dict(store.state)


class OfSqlite(Kind):
    """Numbers in a table."""

    name = "sqlite"

    @override
    def open(self, recorder: Recorder) -> ShardStore:
        schema = "CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, n INT)"
        return SQLiteStore(recorder, schema=schema, span_bytes_min=50_000)

    @override
    def change(self, store: Any, changes: dict[str, int]) -> None:
        store.db.executemany("REPLACE INTO counts VALUES (?, ?)", changes.items())

    @override
    def all(self, store: Any) -> dict[str, int]:
        return dict(store.db.execute("SELECT word, n FROM counts"))


class OfRocksdb(Kind):
    """Numbers in decimal, by key."""

    name = "rocksdb"

    @override
    def open(self, recorder: Recorder) -> ShardStore:
        return RocksDBStore(recorder, log_bytes_max=500)

    @override
    def change(self, store: Any, changes: dict[str, int]) -> None:
        for word, number in changes.items():
            store.put(word.encode(), b"%d" % number)

    @override
    def all(self, store: Any) -> dict[str, int]:
        return {word.decode(): int(number) for word, number in store.scan()}


KINDS: Final[tuple[Kind, ...]] = (OfJson(), OfSqlite(), OfRocksdb())


def changes_of(number: int) -> dict[str, int]:
    """What a transaction sets: a word of its own, one of all, and one that JSON escapes."""
    return {
        f"word {number:03}": number,
        "total": number * (number + 1) // 2,
        "<a&b>\u2028é": number,
    }


def checkpoint_of(number: int, intents: tuple[Any, ...] = ()) -> Checkpoint:
    """Two sources, a producer whose messages count, and one with a transaction that is open."""
    clock = 2205855587517003792 + 160 * number
    producers = (
        ProducerState(_CLICKS, b"\1\2\3\4\5\6", clock, -1),
        ProducerState(_CLICKS, b"\7\2\3\4\5\6", clock - 80, 100 * number - 7),
    )
    read = SequencerCheckpoint(
        offsets={_CLICKS: 100 * number, f"{_CLICKS}/late;golden": number - 1}, producers=producers
    )
    return Checkpoint(read, intents)


def journal(name: str, content_type: str, codec: CompressionCodec) -> JournalSpec:
    """A journal whose fragments are small."""
    fragment = FragmentSpec(
        length=1 << 11, codec=codec, stores=("file:///",), refresh_interval_ns=SECOND_NS
    )
    labels = LabelSet.of({"content-type": content_type})
    return JournalSpec(name=name, replication=1, labels=labels, fragment=fragment)


@dataclass
class Owner:
    """Who has the shard, or has had it."""

    store: ShardStore
    recorder: Recorder
    service: AppendService
    publisher: Publisher[Any]
    assignment: ShardAssignment
    checkpoint: Checkpoint


@dataclass
class Life:
    """One shard.

    Args:
        kind: of its store.
        client: of the broker.
        etcd: has its hints.
        prefix: of keys for this life alone.
        folder: for the files of owners.
    """

    kind: Kind
    client: AsyncClient
    etcd: EtcdClient
    prefix: str
    folder: Path
    owners: list[Owner] = field(default_factory=list)

    @property
    def spec(self) -> ShardSpec:
        """The shard."""
        return ShardSpec(
            SHARD,
            recovery_log_prefix="golden/logs",
            hint_prefix=f"{self.prefix}-hints",
            hint_backups=2,
            max_txn_duration_ns=SECOND_NS,
        )

    async def live(self) -> None:
        """All that happens."""
        codec = self.kind.codec
        specs = journal(LOG, CONTENT_TYPE, codec), journal(_OUT, _NDJSON, codec)
        await self.client.apply([Change(each) for each in specs])
        await self.etcd.put(item_key(self.prefix, SHARD), encode_shard_spec(self.spec))
        first = await self._next_owner()
        for number in (1, 2, 3):
            await self._transact(first, number)
            if number == 2:
                await self._keep_hints(first)
        second = await self._next_owner(meanwhile=lambda: self._transact(first, 4))
        try:
            await self._transact(first, 99)
        except Fenced:
            pass
        else:
            raise AssertionError("the first owner was not fenced")
        for number in (5, 6):
            await self._transact(second, number)
        await self._keep_hints(second)
        third = await self._next_owner()
        await self._transact(third, 7)
        await self._keep_hints(third)
        await self._transact(third, 8)

    async def _next_owner(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> Owner:
        """Who takes the shard over, after what happens while it follows the log."""
        number = len(self.owners)
        who = ProcessId("zone", f"owner-{number}")
        for former in self.owners:
            await self.etcd.txn([], [Delete(former.assignment.key)])
        await self.etcd.txn([], [Put(assignment_key(self.prefix, SHARD, who, 0), b"")])
        space = KeySpace(self.etcd, self.prefix, ConsumerState(self.prefix))
        await space.load()
        assignment = space.state.assignment_of(SHARD, who)
        assert assignment is not None
        stored = await fetch_hints(self.etcd, self.spec)
        hints = pick_hints((stored.primary, *stored.backups), LOG)
        player = Player(self.client, hints, self.folder / who.suffix)
        async with asyncio.timeout(_DEADLINE_S), asyncio.TaskGroup() as tasks:
            playing = tasks.create_task(player.play())
            if meanwhile is not None:
                await player.tailing.wait()
                await meanwhile()
            player.inject_handoff(_AUTHORS[number])
        played = playing.result()
        assert await rotate_hints(self.etcd, self.spec, assignment, played.fsm.build_hints(LOG))
        service = self.client.append_service()
        recorder = await Recorder.start(self.client, service, played, _AUTHORS[number])
        store = self.kind.open(recorder)
        checkpoint = await store.restore_checkpoint()
        producer = bytes((2 * number + 1, 2, 3, 4, 5, 6))
        publisher = Publisher[Any](
            service, None, None, message_clock=MessageClock(), producer=producer
        )
        owner = Owner(store, recorder, service, publisher, assignment, checkpoint)
        self.owners.append(owner)
        return owner

    async def _transact(self, owner: Owner, number: int) -> None:
        """A transaction, as a shard does it."""
        self.kind.change(owner.store, changes_of(number))
        _ticket = await owner.publisher.publish_uncommitted({"n": number}, to=Mapped(_OUT, _NDJSON))
        intents = owner.publisher.build_acks()
        checkpoint = checkpoint_of(number, tuple(intents))
        async with asyncio.timeout(_DEADLINE_S):
            await owner.store.start_commit(checkpoint, owner.service.pending(but=LOG))
            await owner.publisher.append_acks(intents)
        owner.checkpoint = checkpoint

    async def _keep_hints(self, owner: Owner) -> None:
        hints = await owner.recorder.build_hints()
        assert await put_primary_hints(self.etcd, self.spec, owner.assignment, hints)

    async def log(self) -> bytes:
        """All of the log."""
        return b"".join([bytes(piece) async for piece in self.client.read(LOG, 0, block=False)])

    async def hints(self) -> dict[str, bytes]:
        """What etcd has of hints, by key."""
        prefix = f"{self.spec.hint_prefix}/"
        found = await self.etcd.range(prefix)
        return {each.key.removeprefix(prefix): each.value for each in found.kvs}

    async def end(self) -> None:
        """Give back what owners hold."""
        for owner in self.owners:
            await owner.store.destroy()
            with contextlib.suppress(RegisterMismatch):  # of one that was fenced
                await owner.service.close()


def sha1(content: bytes) -> str:
    """In hex."""
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def files_of(directory: Path) -> dict[str, str]:
    """SHA-1s of files, by path."""
    return {
        str(path.relative_to(directory)): sha1(path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def kept_log(kind: Kind) -> bytes:
    """The log that is kept: what its fragments hold, one after the other."""
    paths = sorted((DATA / kind.name / "fragments").iterdir())
    return b"".join(decompressor(kind.codec).decompress(path.read_bytes()) for path in paths)


async def lived(
    kind: Kind, broker: str, etcd: str, prefix: str, folder: Path
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Live the life. Returns: the document on it, and files to keep, except fragments."""
    async with (
        AsyncClient(ClientConfig(address=broker)) as client,
        EtcdClient([etcd]) as etcd_client,
    ):
        life = Life(kind, client, etcd_client, prefix, folder)
        await life.live()
        log, hints = await life.log(), await life.hints()
        stored = await fetch_hints(etcd_client, life.spec)
        hints_to_play = pick_hints((stored.primary, *stored.backups), LOG)
        player = Player(client, hints_to_play, folder / "played")
        player.finish_at_write_head()
        played = await player.play()
        last = life.owners[-1]
        document: dict[str, Any] = {
            "log": LOG,
            "end": len(log),
            "sha1": sha1(log),
            "authors": _AUTHORS,
            "files": files_of(played.directory),
            "state": dict(sorted(kind.all(last.store).items())),
        }
        await life.end()
    return document, {"checkpoint": last.checkpoint.encode()} | {
        f"hints/{key}": value for key, value in hints.items()
    }


def write(kind: Kind, etcd: str, folder: Path, out: Path) -> None:
    """Keep what comes of a life."""
    prefix = f"/golden-{kind.name}"
    with BrokerServer(folder / "broker", etcd=etcd, prefix=prefix) as broker:
        document, files = asyncio.run(lived(kind, broker.address, etcd, f"{prefix}-shards", folder))
        broker.stop()  # which stores all of the log
        shutil.copytree(broker.fragments / LOG, out / "fragments")
    (out / "hints").mkdir()
    for name, content in files.items():
        (out / name).write_bytes(content)
    if (state := folder / "played" / "state.json").exists():
        shutil.copyfile(state, out / "state.json")
    document["kept"] = files_of(out)
    text = json.dumps(document, indent=1)
    (out / "golden.json").write_text(f"{text}\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Exit code: 0 done."""
    binary = find_etcd()
    if binary is None:
        raise SystemExit("golden_shards: no etcd (set GAZETTE_ETCD, or put etcd on PATH)")
    with EtcdServer(binary) as server:
        for kind in KINDS:
            out = DATA / kind.name
            if out.exists() and arguments != ["--anew"]:
                print(f"{out.relative_to(ROOT)} exists")
                continue
            shutil.rmtree(out, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix="gazette-golden-") as folder:
                write(kind, server.endpoint, Path(folder), out)
            print(f"{out.relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
