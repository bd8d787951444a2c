"""What a recorder writes for operations of files."""

from random import Random

import pytest
from typing_extensions import override

from gazette_platform.consumer.recoverylog import (
    FnodeSegments,
    Fsm,
    FsmHints,
    Property,
    Recording,
    author_registers,
    new_author,
)
from gazette_platform.consumer.recoverylog.fsm import body_of
from gazette_platform.consumer.recoverylog.hints import Segment
from gazette_platform.consumer.recoverylog.recording import still_of
from gazette_platform.errors import ValidationError
from gazette_platform.message.framing import split_fixed
from gazette_platform.protocol import LabelSet
from gazette_platform.protocol.pb import recoverylog_pb2 as pb

LOG = "a/log"
Op = pb.RecordedOp


def recording(*, write_head=0, log=LOG, fsm=None):
    return Recording(fsm or Fsm(FsmHints(LOG)), log, 1234, "/dir/", write_head=write_head)


def told(frames):
    """The operations of frames, without what every operation has."""
    bodies, rest = split_fixed(frames)
    assert rest == b""
    ops = [Op.FromString(body) for body in bodies]
    for op in ops:
        assert op.author == 1234
        assert op.checksum or op.seq_no == 1
        op.ClearField("author")
        op.ClearField("checksum")
    return ops


def test_gr1_a_new_file_is_created_and_an_old_one_is_replaced():
    files = recording()
    fnode, frames = files.create("/dir//a")
    assert (fnode, told(frames)) == (1, [Op(seq_no=1, create=Op.Create(path="/a"))])
    fnode, frames = files.create("/dir/a")
    assert (fnode, told(frames)) == (
        3,
        [
            Op(seq_no=2, unlink=Op.Link(fnode=1, path="/a")),
            Op(seq_no=3, create=Op.Create(path="/a")),
        ],
    )
    assert files.open("/dir/a") == 3
    with pytest.raises(ValidationError, match="/a exists"):
        files.create("/dir/a", exclusive=True)


def test_gr1_a_write_is_followed_by_its_content():
    files = recording()
    fnode, _ = files.create("/dir/a")
    assert told(files.write(fnode, 7, 3)) == [
        Op(seq_no=2, write=Op.Write(fnode=1, offset=7, length=3))
    ]
    assert told(files.write(fnode, 0, 0)) == [Op(seq_no=3, write=Op.Write(fnode=1))]


def test_gr1_links_are_made_and_removed():
    files = recording()
    files.create("/dir/a")
    assert told(files.link("/dir/a", "/dir/b/c")) == [
        Op(seq_no=2, link=Op.Link(fnode=1, path="/b/c"))
    ]
    assert told(files.remove("/dir/a")) == [Op(seq_no=3, unlink=Op.Link(fnode=1, path="/a"))]
    files.remove("/dir/b/c")
    assert files.build_hints() == FsmHints(LOG)


def test_gr1_rename_replaces_an_existing_file():
    files = recording()
    files.create("/dir/a")
    files.create("/dir/b")
    assert told(files.rename("/dir/a", "/dir//c")) == [
        Op(seq_no=3, link=Op.Link(fnode=1, path="/c")),
        Op(seq_no=4, unlink=Op.Link(fnode=1, path="/a")),
    ]
    assert told(files.rename("/dir/c", "/dir/b")) == [
        Op(seq_no=5, unlink=Op.Link(fnode=2, path="/b")),
        Op(seq_no=6, link=Op.Link(fnode=1, path="/b")),
        Op(seq_no=7, unlink=Op.Link(fnode=1, path="/c")),
    ]
    assert files.fsm.links == {"/b": 1}


def test_a_rename_between_links_of_one_file_is_none():
    files = recording()
    files.create("/dir/a")
    files.link("/dir/a", "/dir/b")
    assert files.rename("/dir/a", "/dir/b") == b""
    assert files.rename("/dir/a", "/dir/a") == b""
    assert files.fsm.links == {"/a": 1, "/b": 1}


def test_gr1_the_identity_is_recorded_as_a_property():
    files = recording()
    files.create("/dir/IDENTITY.dbtmp")
    with pytest.raises(ValidationError, match="expected the content of the property /IDENTITY"):
        files.rename("/dir/IDENTITY.dbtmp", "/dir/IDENTITY")
    assert told(files.rename("/dir/IDENTITY.dbtmp", "/dir/IDENTITY", content="id")) == [
        Op(seq_no=2, property=pb.Property(path="/IDENTITY", content="id")),
        Op(seq_no=3, unlink=Op.Link(fnode=1, path="/IDENTITY.dbtmp")),
    ]
    assert files.build_hints() == FsmHints(LOG, (), (Property("/IDENTITY", "id"),))
    for act in (
        lambda: files.create("/dir/IDENTITY"),
        lambda: files.open("/dir/IDENTITY"),
        lambda: files.remove("/dir/IDENTITY"),
        lambda: files.link("/dir/IDENTITY", "/dir/x"),
    ):
        with pytest.raises(ValidationError, match="/IDENTITY is a property"):
            act()


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("open", ["/dir/x"], "/x does not exist"),
        ("remove", ["/dir/x"], "/x does not exist"),
        ("link", ["/dir/x", "/dir/y"], "/x does not exist"),
        ("link", ["/dir/a", "/dir/a"], "/a exists"),
        ("rename", ["/dir/x", "/dir/a"], "/x does not exist"),
        ("write", [9, 0, 1], "fnode 9 is not live"),
        ("write", [1, -1, 1], "no negative"),
        ("write", [1, 0, -1], "no negative offset 0 or length -1"),
        ("create", ["/other/a"], "/other/a is not below the recorded directory /dir"),
        ("create", ["/directory/a"], "/directory/a is not below the recorded directory /dir"),
        ("create", ["/dir/../a"], "/dir/../a is not below the recorded directory /dir"),
        ("create", ["/dir/"], "/dir/ is not below the recorded directory /dir"),
    ],
    ids=str,
)
def test_impossible_operation_is_reported_and_records_nothing(name, args, error):
    files = recording()
    files.create("/dir/a")
    before = files.fsm.next_seq_no
    with pytest.raises(ValidationError, match=error):
        getattr(files, name)(*args)
    assert files.fsm.next_seq_no == before


def test_gr1_hints_move_up_with_what_was_committed():
    files = recording(write_head=100)
    fnode, _ = files.create("/dir/a")
    files.committed(130)
    files.create("/dir/b")
    files.committed(90)  # an answer that came late
    files.create("/dir/c")
    files.write(fnode, 0, 0)
    hints = files.build_hints()
    hints.validate()
    assert [node.segments[0].first_offset for node in hints.live_nodes] == [100, 130, 130]
    assert [node.segments[0].last_offset for node in hints.live_nodes] == [0, 0, 0]
    assert hints.live_nodes[0] == FnodeSegments(1, (Segment(1234, 1, 100, 0, 4),))


def test_a_file_needs_the_log_from_where_it_was_made():
    files = recording(write_head=100)
    fnode, _ = files.create("/dir/a")
    assert files.span_bytes("/dir/a") == 0
    files.committed(130)
    files.create("/dir/b")
    files.committed(200)
    files.write(fnode, 0, 0)
    assert (files.span_bytes("/dir/a"), files.span_bytes("/dir/b")) == (100, 70)
    files.create("/dir/a")
    assert files.span_bytes("/dir/a") == 0
    with pytest.raises(ValidationError, match="does not exist"):
        files.span_bytes("/dir/c")


def test_only_one_author_may_append():
    selector = recording().check_registers
    assert str(selector) == "author=16i"


def test_a_log_is_taken_over_from_the_author_that_was_found():
    theirs, ours = author_registers(7), author_registers(8)
    assert still_of(theirs).matches(theirs.with_value("other", "x"))
    assert not still_of(theirs).matches(ours)
    assert not still_of(theirs).matches(LabelSet.of(other="x"))
    assert still_of(LabelSet()).matches(LabelSet.of(other="x"))
    assert not still_of(LabelSet()).matches(ours)


def test_gr5_a_recording_that_goes_on_in_its_log_begins_with_nothing():
    assert recording().begin() == b""


def test_gr5_a_recording_in_another_log_begins_with_a_no_op():
    frame = recording().create("/dir/a")[1]
    played, op = Fsm(FsmHints(LOG)), Op.FromString(body_of(frame))
    played.apply(op, body_of(frame), log=LOG, first_offset=0, last_offset=len(frame))
    forked = recording(fsm=played, log="b/log")
    assert told(forked.begin()) == [Op(seq_no=2)]
    assert forked.begin() == b""
    assert forked.span_bytes("/dir/a") == len(frame)
    forked.write(1, 0, 0)
    forked.committed(50)
    assert forked.span_bytes("/dir/a") == len(frame) + 50
    hints = forked.build_hints()
    hints.validate()
    assert [each.log for each in hints.live_nodes[0].segments] == [LOG, ""]


@pytest.mark.parametrize("author", [0, -1, 1 << 32])
def test_gr4_an_author_has_32_bits_and_is_not_zero(author):
    with pytest.raises(ValidationError, match="author"):
        Recording(Fsm(FsmHints(LOG)), LOG, author, "/dir", write_head=0)


def test_gr4_the_least_author_that_is_drawn_is_1():
    class Lowest(Random):
        @override
        def getrandbits(self, k):
            return 0

        @override
        def random(self):
            return 0.0

    assert new_author(Lowest()) == 1
    drawn = {new_author(Random(seed)) for seed in range(100)}
    assert len(drawn) == 100
    assert max(drawn) < 1 << 32


def test_a_recording_needs_an_absolute_directory_and_no_hints_left():
    with pytest.raises(ValidationError, match="absolute"):
        Recording(Fsm(FsmHints(LOG)), LOG, 1, "dir", write_head=0)
    unread = Fsm(FsmHints(LOG, (FnodeSegments(1, (Segment(1, 1, last_seq_no=1),)),)))
    with pytest.raises(ValidationError, match="hints are left"):
        Recording(unread, LOG, 1, "/dir", write_head=0)
