"""Directories that are recorded in a journal of a real broker, and played back from it."""

import asyncio
import os
import random

import pytest
from journal_specs import journal_spec

from gazette_platform.client import Change
from gazette_platform.consumer.recoverylog import (
    CONTENT_TYPE,
    FsmHints,
    Player,
    Recorder,
    encode_op,
    new_author,
)
from gazette_platform.errors import DataError, Fenced, GazetteError, JournalNotFound
from gazette_platform.protocol import CompressionCodec
from gazette_platform.protocol.pb import recoverylog_pb2 as pb
from gazette_platform.testing.waiting import patient, stays, turns

pytestmark = pytest.mark.etcd

LOG, OTHER_LOG = "a/recovery-log", "b/recovery-log"


@pytest.fixture
async def client(client, names, monkeypatch):
    """A client, and two logs of this test's own."""
    for name in ("LOG", "OTHER_LOG"):
        monkeypatch.setitem(globals(), name, names.journal(globals()[name]))
    labels = {"content-type": CONTENT_TYPE}
    for name in (LOG, OTHER_LOG):
        spec = journal_spec(name, length=1 << 16, codec=CompressionCodec.SNAPPY, labels=labels)
        await client.apply([Change(spec)])
    return client


async def taken_over(client, directory, author, *, hints=None, player=None):
    """Files that a new recorder goes on with."""
    player = player or Player(client, hints or FsmHints(LOG), directory)
    player.inject_handoff(author)
    async with asyncio.timeout(patient(30)):
        return await player.play()


async def played(client, directory, hints):
    player = Player(client, hints, directory)
    player.finish_at_write_head()
    async with asyncio.timeout(patient(30)):
        return await player.play()


def tree(directory):
    """Contents by path, and which paths are of one file."""
    paths = sorted(each for each in directory.rglob("*") if each.is_file())
    contents = {str(each.relative_to(directory)): each.read_bytes() for each in paths}
    inodes = {}
    for each in paths:
        inodes.setdefault(each.stat().st_ino, []).append(str(each.relative_to(directory)))
    return contents, sorted(inodes.values())


def change(recorder, directory, dice, times):
    """Do things to files, and record each."""
    for _ in range(times):
        path, other = (directory / f"d{dice.randrange(2)}" / f"{dice.randrange(5)}" for _ in "12")
        path.parent.mkdir(exist_ok=True)
        other.parent.mkdir(exist_ok=True)
        match dice.choice(["create", "write", "write", "write", "remove", "link", "rename"]):
            case "create":
                path.unlink(missing_ok=True)
                path.touch()
                recorder.create(str(path))
            case "write" if path.exists():
                offset, content = dice.randrange(5000), dice.randbytes(dice.randrange(1, 3000))
                with path.open("r+b") as file:
                    os.pwrite(file.fileno(), content, offset)
                recorder.write(recorder.open(str(path)), offset, content)
            case "remove" if path.exists():
                path.unlink()
                recorder.remove(str(path))
            case "link" if path.exists() and not other.exists():
                other.hardlink_to(path)
                recorder.link(str(path), str(other))
            case "rename" if path.exists():
                path.rename(other)
                recorder.rename(str(path), str(other))


async def test_a_directory_is_played_as_it_was_recorded(client, tmp_path):
    dice = random.Random(7)
    service = client.append_service()
    start = await taken_over(client, tmp_path / "one", 1)
    recorder = await Recorder.start(client, service, start, 1)
    known = [FsmHints(LOG)]
    for _ in range(4):
        change(recorder, start.directory, dice, 60)
        known.append(await recorder.build_hints())
    (start.directory / "IDENTITY.tmp").write_text("me")
    recorder.write(recorder.create(str(start.directory / "IDENTITY.tmp")), 0, b"me")
    (start.directory / "IDENTITY.tmp").rename(start.directory / "IDENTITY")
    recorder.rename(
        str(start.directory / "IDENTITY.tmp"), str(start.directory / "IDENTITY"), content="me"
    )
    await recorder.barrier()
    expected = tree(start.directory)
    assert len(expected[0]) > 3
    for number, hints in enumerate(known):
        other = await played(client, tmp_path / f"other-{number}", hints)
        assert tree(other.directory) == expected
        assert other.fsm.next_checksum == recorder._recording.fsm.next_checksum
    exact = other.fsm.build_hints(LOG)
    assert all(each.last_offset for each in exact.segments())
    assert tree((await played(client, tmp_path / "exact", exact)).directory) == expected
    await service.close()


async def test_gr3_gp8_gb2_a_second_recorder_fences_the_first(client, tmp_path):
    service, other_service = client.append_service(), client.append_service()
    first = await taken_over(client, tmp_path / "one", 1)
    recorder = await Recorder.start(client, service, first, 1)
    fnode = recorder.create(str(first.directory / "a"))
    recorder.write(fnode, 0, b"kept")
    await recorder.barrier()
    # A standby follows the log meanwhile.
    standby = Player(client, await recorder.build_hints(), tmp_path / "two")
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(patient(60)):
        playing = tasks.create_task(standby.play())
        await standby.tailing.wait()
        recorder.write(fnode, 4, b" too")
        await recorder.barrier()
        standby.inject_handoff(1337)
        second = await playing
    assert (second.directory / "a").read_bytes() == b"kept too"
    recorder.write(fnode, 0, b"lost")
    for _ in range(2):
        with pytest.raises(Fenced, match="another process has taken the log over"):
            await recorder.barrier()
    with pytest.raises(Fenced):
        await recorder.build_hints()
    recorder.write(fnode, 0, b"lost")  # as the files have it: only barriers report
    successor = await Recorder.start(client, other_service, second, 1337)
    successor.write(fnode, 8, b"!")
    hints = await successor.build_hints()
    third = await played(client, tmp_path / "three", hints)
    assert (third.directory / "a").read_bytes() == b"kept too!"
    await other_service.close()


async def test_a_recorder_that_has_nothing_to_append_learns_that_it_is_fenced(client, tmp_path):
    service = client.append_service()
    first = await taken_over(client, tmp_path / "one", 1)
    recorder = await Recorder.start(client, service, first, 1)
    await recorder.barrier()
    await taken_over(client, tmp_path / "two", 2)
    with pytest.raises(Fenced, match="author=1 in"):
        await recorder.barrier()
    await service.close()


async def test_gr2_operations_go_on_and_barriers_raise_once_appends_have_ended(client, tmp_path):
    service = client.append_service()
    first = await taken_over(client, tmp_path / "one", 1)
    recorder = await Recorder.start(client, service, first, 1)
    fnode = recorder.create(str(first.directory / "a"))
    recorder.write(fnode, 0, b"kept")
    hints = await recorder.build_hints()
    await service.close()
    recorder.write(fnode, 4, b" not")
    recorder.rename(str(first.directory / "a"), str(first.directory / "b"))
    assert recorder.open(str(first.directory / "b")) == fnode
    for _ in range(2):
        with pytest.raises(GazetteError, match="closed") as info:
            await recorder.barrier()
        assert not isinstance(info.value, Fenced)
    recorder.remove(str(first.directory / "b"))
    with pytest.raises(GazetteError, match="closed"):
        await recorder.build_hints()
    again = await played(client, tmp_path / "two", hints)
    assert tree(again.directory) == ({"a": b"kept"}, [["a"]])


async def test_operations_of_threads_keep_their_order(client, tmp_path):
    service = client.append_service()
    first = await taken_over(client, tmp_path / "one", 1)
    recorder = await Recorder.start(client, service, first, 1)

    def record(number):
        fnode = recorder.create(str(first.directory / str(number)))
        for at in range(40):
            recorder.write(fnode, at, b"%d" % number)

    await asyncio.gather(*(asyncio.to_thread(record, number) for number in range(4)))
    other = await played(client, tmp_path / "two", await recorder.build_hints())
    assert tree(other.directory)[0] == {str(n): b"%d" % n * 40 for n in range(4)}
    await service.close()


async def test_barrier_comes_after_what_it_waits_for(client, tmp_path):
    service = client.append_service()
    author = new_author(random.Random(7))
    first = await taken_over(client, tmp_path / "one", author)
    recorder = await Recorder.start(client, service, first, author)
    recorder.create(str(first.directory / "a"))
    await recorder.room()
    commit = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(recorder.barrier(after=[commit]))  # noqa: TID251  awaited below
    await recorder.barrier()  # which waits for nothing else
    assert not waiting.done()
    commit.set_result(None)
    await waiting
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(OSError("disk"))
    with pytest.raises(OSError, match="disk"):
        await recorder.barrier(after=[failed])
    left = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await recorder.barrier(after=[left])
    assert not left.cancelled()  # it is another one's
    await service.close()


async def test_what_is_recorded_behind_a_gate_is_appended_once_that_has_opened(client, tmp_path):
    service = client.append_service()
    played_ = await taken_over(client, tmp_path / "one", 1)
    recorder = await Recorder.start(client, service, played_, 1)
    fnode = recorder.create(str(played_.directory / "a"))
    recorder.write(fnode, 0, b"before")
    await recorder.barrier()
    opened = asyncio.get_running_loop().create_future()
    recorder.write(fnode, 6, b" gate")
    recorder.gate([opened])
    recorder.write(fnode, 11, b" behind")
    hints = asyncio.ensure_future(recorder.build_hints())  # noqa: TID251  awaited below
    await stays(lambda: not hints.done(), for_s=0.3)
    # Who looks at the log now sees what came before the gate alone.
    early = await played(client, tmp_path / "early", FsmHints(LOG))
    assert (early.directory / "a").read_bytes() == b"before gate"
    opened.set_result(None)
    late = await played(client, tmp_path / "late", await hints)
    assert (late.directory / "a").read_bytes() == b"before gate behind"

    # Nothing was recorded after this one yet: barriers wait for it all the same.
    failed = asyncio.get_running_loop().create_future()
    recorder.gate([failed])
    waiting = asyncio.ensure_future(recorder.barrier())  # noqa: TID251  awaited below
    await stays(lambda: not waiting.done(), for_s=0.1)
    recorder.write(fnode, 0, b"LOST")
    failed.set_exception(DataError("it was not to be"))
    with pytest.raises(GazetteError, match="it was not to be"):
        await waiting
    for _ in "12":
        with pytest.raises(GazetteError, match="it was not to be"):
            await recorder.barrier()
    last = await played(client, tmp_path / "last", FsmHints(LOG))
    assert (last.directory / "a").read_bytes() == b"before gate behind"


async def test_gr5_gb4_files_go_on_in_another_log(client, tmp_path):
    service = client.append_service()
    first = await taken_over(client, tmp_path / "one", 1)
    recorder = await Recorder.start(client, service, first, 1)
    fnode = recorder.create(str(first.directory / "a"))
    recorder.write(fnode, 0, b"old ")
    second = await taken_over(client, tmp_path / "two", 2, hints=await recorder.build_hints())
    forked = await Recorder.start(client, service, second, 2, log=OTHER_LOG)
    forked.write(fnode, 4, b"new")
    hints = await forked.build_hints()
    assert hints.logs() == (LOG, OTHER_LOG)
    other = await played(client, tmp_path / "three", hints)
    assert tree(other.directory)[0] == {"a": b"old new"}
    assert other.log == OTHER_LOG
    await service.close()


async def test_what_others_write_into_a_log_fills_no_logs_of_ours(client, tmp_path, caplog):
    recorder = await Recorder.start(
        client,
        client.append_service(),
        await taken_over(client, tmp_path / "one", 7),
        7,
    )
    path = tmp_path / "one" / "file"
    path.touch()
    recorder.create(str(path))
    await recorder.barrier()
    late = encode_op(pb.RecordedOp(seq_no=99, author=5))
    await client.append(LOG, b"".join(b"%d" % n + late for n in range(500)))
    found = await played(client, tmp_path / "two", FsmHints(LOG))
    assert tree(found.directory) == ({"file": b""}, [["file"]])
    warnings = [each for each in caplog.messages if each.startswith(LOG)]
    assert any("more like these" in each for each in warnings)
    assert len(warnings) < 40


async def test_gb5_a_playback_that_fails_or_is_cancelled_leaves_no_directory(client, tmp_path):
    service = client.append_service()
    first = await taken_over(client, tmp_path / "one", 1)
    recorder = await Recorder.start(client, service, first, 1)
    recorder.create(str(first.directory / "a"))
    await recorder.barrier()
    await service.close()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "left over").touch()
    async with asyncio.timeout(patient(30)), asyncio.TaskGroup() as tasks:
        # Before it plays anything: what it has just made, in place of what existed.
        (tmp_path / "four").mkdir()
        (tmp_path / "four" / "left over").touch()
        playing = tasks.create_task(Player(client, FsmHints(LOG), tmp_path / "four").play())
        await turns()
        playing.cancel()
    assert not (tmp_path / "four").exists()
    async with asyncio.timeout(patient(30)), asyncio.TaskGroup() as tasks:
        player = Player(client, FsmHints(LOG), tmp_path / "two")
        playing = tasks.create_task(player.play())
        await player.tailing.wait()
        assert [each.name for each in (tmp_path / "two").iterdir()] == [".fnodes"]
        playing.cancel()
    assert not (tmp_path / "two").exists()
    exact = (await played(client, tmp_path / "three", FsmHints(LOG))).fsm.build_hints(LOG)
    ahead = FsmHints.from_bytes(exact.to_json().replace(b'"last_offset":', b'"last_offset":9'))
    with pytest.raises(DataError, match="possible data loss"):
        await played(client, tmp_path / "two", ahead)
    assert not (tmp_path / "two").exists()
    with pytest.raises(JournalNotFound):
        await played(client, tmp_path / "two", FsmHints("no/such/log"))
    assert not (tmp_path / "two").exists()
