"""Files of a playback on disk."""

import os

import pytest

from gazette_platform.consumer.recoverylog import Fsm, FsmHints, Recording
from gazette_platform.consumer.recoverylog.fsm import body_of, encode_op
from gazette_platform.consumer.recoverylog.playback import CreateFile, RemoveFile, WriteFile
from gazette_platform.consumer.recoverylog.player import PlayedFiles
from gazette_platform.errors import DataError
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
    with pytest.raises(DataError, match="no path below the recorded directory"):
        files.make_live(fsm_of({"create": pb.RecordedOp.Create(path=path)}))
    files.apply([RemoveFile(1)])
    with pytest.raises(DataError, match="no path below the recorded directory"):
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
