"""Files of a playback on disk, and the append that takes a log over."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from gazette_platform.consumer.recoverylog import Fsm, FsmHints, Recording
from gazette_platform.consumer.recoverylog.fsm import body_of, encode_op
from gazette_platform.consumer.recoverylog.playback import CreateFile, RemoveFile, WriteFile
from gazette_platform.consumer.recoverylog.player import PlayedFiles, take_over
from gazette_platform.consumer.recoverylog.recording import author_registers, still_of
from gazette_platform.errors import DataError, OutcomeUnknown, RegisterMismatch, ShardStopped
from gazette_platform.protocol import LabelSet
from gazette_platform.protocol.pb import recoverylog_pb2 as pb


@pytest.fixture
def files(tmp_path):
    (tmp_path / "dir" / "old").mkdir(parents=True)
    files = PlayedFiles(tmp_path / "dir")
    files.begin()
    yield files
    files.close()


def fsm_of(*operations):
    fsm = Fsm(FsmHints("a/log"))
    for kind in operations:
        op = pb.RecordedOp(seq_no=fsm.next_seq_no, checksum=fsm.next_checksum, author=1, **kind)
        body = body_of(encode_op(op))
        fsm.apply(op, body, log="a/log", first_offset=0, last_offset=0)
    return fsm


def test_gp2_gp6_files_are_staged_by_fnode_and_placed_by_path(files):
    recording = Recording(Fsm(FsmHints("a/log")), "a/log", 1, "/dir", write_head=0)
    recording.create("/dir/a/b")
    recording.link("/dir/a/b", "/dir/c")
    recording.create("/dir/x")
    recording.rename("/dir/x", "/dir/IDENTITY", content="me\r\n")
    assert [each.name for each in files.directory.iterdir()] == [".fnodes"]
    files.apply([CreateFile(1), WriteFile(1, 2, memoryview(b"hello")), CreateFile(3)])
    assert (files.directory / ".fnodes" / "1").read_bytes() == b"\0\0hello"
    files.apply([WriteFile(1, 0, memoryview(b"ab")), RemoveFile(3)])
    files.make_live(recording.fsm)
    assert sorted(each.name for each in files.directory.iterdir()) == ["IDENTITY", "a", "c"]
    assert (files.directory / "a" / "b").read_bytes() == b"abhello"
    assert (files.directory / "c").samefile(files.directory / "a" / "b")
    assert (files.directory / "c").stat().st_nlink == 2
    assert (files.directory / "IDENTITY").read_bytes() == b"me\r\n"


def test_no_more_than_some_files_are_open(files):
    before = len(list(os.scandir("/proc/self/fd")))
    for fnode in range(1, 201):
        files.apply([CreateFile(fnode)])
    assert len(list(os.scandir("/proc/self/fd"))) <= before + 64
    for fnode in range(1, 201):
        files.apply([WriteFile(fnode, 0, memoryview(b"x"))])
    staged = files.directory / ".fnodes"
    assert {each.read_bytes() for each in staged.iterdir()} == {b"x"}
    files.discard()
    assert not files.directory.exists()
    assert len(list(os.scandir("/proc/self/fd"))) <= before


@pytest.mark.parametrize(
    "path", ["/a\0b", "/../out", "/a/../../out", "out", "//out", "/", "/.fnodes/1", "/a/", ""]
)
def test_a_path_that_leads_elsewhere_is_refused(files, path):
    files.apply([CreateFile(1)])
    with pytest.raises(DataError, match="not a path below the recorded directory"):
        files.make_live(fsm_of({"create": pb.RecordedOp.Create(path=path)}))
    files.apply([RemoveFile(1)])
    with pytest.raises(DataError, match="not a path below the recorded directory"):
        files.make_live(fsm_of({"property": pb.Property(path=path, content="x")}))
    assert not (files.directory.parent / "out").exists()


def test_gp3_a_file_is_created_once_and_an_unknown_one_is_an_error(files):
    files.apply([CreateFile(1)])
    with pytest.raises(FileExistsError):
        files.apply([CreateFile(1)])
    with pytest.raises(FileNotFoundError):
        files.apply([WriteFile(2, 0, memoryview(b"x"))])
    with pytest.raises(FileNotFoundError):
        files.apply([RemoveFile(2)])


LOG, OP = "recovery/one", b"no-op"
FORMER = author_registers(7)


class Client:
    """Notes appends; those of an operation fail as the test says."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.registers = FORMER
        self.done = []

    async def append(self, log, content, **options):
        assert log == LOG
        if not content:
            self.done.append("ask")
            return SimpleNamespace(registers=self.registers, end=90)
        assert content == OP
        self.done.append(("append", options["check_registers"], options["union_registers"]))
        if self.errors:
            raise self.errors.pop(0)
        return SimpleNamespace(end=100)

    async def confirm(self):
        self.done.append("confirm")


ATTEMPT = ["ask", "confirm", ("append", still_of(FORMER), author_registers(8))]


@pytest.mark.parametrize(
    "errors",
    [
        (),
        (RegisterMismatch("another one was first"),),
        # It may have been applied, and then the registers are ours.
        (OutcomeUnknown("an answer was lost"),),
        (OutcomeUnknown("an answer was lost"), RegisterMismatch("another one was first")),
    ],
)
async def test_each_attempt_asks_and_is_confirmed_before_it_appends(errors):
    client = Client(*errors)
    assert await take_over(client, LOG, OP, 8, confirm=client.confirm) == 100
    assert client.done == (1 + len(errors)) * ATTEMPT


async def test_who_is_not_confirmed_appends_nothing():
    async def refused():
        raise ShardStopped("shard-000")

    client = Client()
    with pytest.raises(ShardStopped):
        await take_over(client, LOG, OP, 8, confirm=refused)
    assert client.done == ["ask"]


async def test_the_first_author_of_a_log_is_none_if_there_is_one_by_then():
    client = Client()
    client.registers = LabelSet()
    await take_over(client, LOG, OP, 8)
    assert client.done == ["ask", ("append", still_of(LabelSet()), author_registers(8))]
