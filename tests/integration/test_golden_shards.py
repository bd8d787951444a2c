"""The golden shards: what was once written is played as it was, and what is written today is the same."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.recoverylog import (
    CONTENT_TYPE,
    FsmHints,
    Player,
    Recorder,
    ShardHints,
    judge_fragment,
    needs_of,
)
from gazette_platform.etcd import EtcdClient
from gazette_platform.message.framing import FIXED_HEADER
from gazette_platform.protocol import parse_fragment_path
from gazette_platform.protocol.pb import recoverylog_pb2 as pb
from gazette_platform.testing.waiting import patient
from tools.golden_shards import DATA, KINDS, LOG, Life, files_of, journal, kept_log

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers, pytest.mark.timeout(120)]

HINTS = ("shard-000.primary", "shard-000.backup.0", "shard-000.backup.1")


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


def hints_of(kind):
    """What etcd had, in the order of its slots."""
    folder = DATA / kind.name / "hints"
    assert sorted(each.name for each in folder.iterdir()) == sorted(HINTS)
    return [FsmHints.from_bytes((folder / name).read_bytes()) for name in HINTS]


def needed(kind):
    """The names of fragments that a prune would keep."""
    (segments,) = needs_of([ShardHints(LOG, tuple(hints_of(kind)))]).segments.values()
    names = sorted(each.name for each in (DATA / kind.name / "fragments").iterdir())
    return [
        name
        for name in names
        if judge_fragment(
            segments,
            begin=parse_fragment_path(LOG, name).begin,
            end=parse_fragment_path(LOG, name).end,
            is_persisted=True,
        )
        == "keep"
    ]


@pytest.mark.parametrize("pruned", [False, True], ids=["whole", "pruned"])
async def test_a_golden_log_gives_its_files_its_state_and_its_checkpoint(
    kind, pruned, local_brokers, tmp_path
):
    """By each of its hints; and by none, from its begin, if that exists."""
    golden = json.loads((DATA / kind.name / "golden.json").read_text())
    checkpoint = (DATA / kind.name / "checkpoint").read_bytes()
    names = [each.name for each in (DATA / kind.name / "fragments").iterdir()]
    kept = needed(kind) if pruned else names
    assert pruned == (len(kept) < len(names))
    fragments, broker = local_brokers.fragments, await local_brokers.start()
    (fragments / LOG).mkdir(parents=True)
    for name in kept:
        shutil.copyfile(DATA / kind.name / "fragments" / name, fragments / LOG / name)
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await client.apply([Change(journal(LOG, CONTENT_TYPE, kind.codec))])
        # Brokers that had more of it may be somewhere: the reset says that none does.
        assert (await client.append(LOG, b"", offset=golden["end"])).end == golden["end"]
        for number, hints in enumerate([*hints_of(kind), *([] if pruned else [FsmHints(LOG)])]):
            player = Player(client, hints, tmp_path / f"{number}")
            player.finish_at_write_head()
            async with asyncio.timeout(patient(30)):
                played = await player.play()
            assert files_of(played.directory) == golden["files"]
            if kind.name == "json":
                expected = (DATA / "json" / "state.json").read_bytes()
                assert (played.directory / "state.json").read_bytes() == expected
            recorder = await Recorder.start(client, client.append_service(), played, 99)
            store = kind.open(recorder)
            restored = await store.restore_checkpoint()
            assert restored == Checkpoint.decode(checkpoint)
            assert restored.encode() == checkpoint
            assert kind.all(store) == golden["state"]
            await store.destroy()


def operations_of(log):
    """Frames of operations, and the contents of writes."""
    frames, contents, at = [], [], 0
    while at < len(log):
        _, length = FIXED_HEADER.unpack_from(log, at)
        end = at + FIXED_HEADER.size + length
        op = pb.RecordedOp.FromString(log[at + FIXED_HEADER.size : end])
        frames.append((log[at:end].hex(), str(op)))
        at = end + op.write.length
        contents.append(log[end:at])
    return frames, contents


@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.name)
async def test_the_same_life_gives_the_same_log_and_hints(
    kind, local_brokers, etcd_server, etcd_prefix, tmp_path
):
    """All bytes; of SQLite but the contents of its files, where salts and its version are.

    Files of RocksDB are not the same twice.
    """
    broker = await local_brokers.start()
    async with (
        AsyncClient(ClientConfig(address=broker.endpoint)) as client,
        EtcdClient([etcd_server.endpoint]) as etcd,
    ):
        life = Life(kind, client, etcd, f"{etcd_prefix}-shards", tmp_path)
        await life.live()
        log, hints = await life.log(), await life.hints()
        await life.end()
        await etcd.delete(f"{etcd_prefix}-shards", prefix=True)
    golden = kept_log(kind)
    assert operations_of(log)[0] == operations_of(golden)[0]
    if kind.name == "json":
        assert log == golden
    assert hints == {name: (DATA / kind.name / "hints" / name).read_bytes() for name in HINTS}
    checkpoint = (DATA / kind.name / "checkpoint").read_bytes()
    assert life.owners[-1].checkpoint.encode() == checkpoint
