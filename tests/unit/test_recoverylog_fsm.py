"""The state of a recorded directory: which operations it takes, and which not."""

import pytest

from gazette_platform.consumer.recoverylog import (
    FnodeSegments,
    Fsm,
    FsmHints,
    Property,
    Segment,
    Verdict,
)
from gazette_platform.consumer.recoverylog.fsm import body_of, encode_op
from gazette_platform.errors import ValidationError
from gazette_platform.protocol.pb import recoverylog_pb2 as pb

LOG = "a/log"


class Driver:
    """Applies operations that follow each other by default."""

    def __init__(self, hints=None):
        self.fsm = Fsm(hints or FsmHints(LOG))
        self.at = 100

    def apply(self, *, author=1, seq_no=None, checksum=None, log=LOG, **kind):
        op = pb.RecordedOp(
            seq_no=self.fsm.next_seq_no if seq_no is None else seq_no,
            checksum=self.fsm.next_checksum if checksum is None else checksum,
            author=author,
            **kind,
        )
        frame = encode_op(op)
        begin, self.at = self.at, self.at + len(frame)
        return self.fsm.apply(op, body_of(frame), log=log, first_offset=begin, last_offset=self.at)

    def create(self, path, **fields):
        return self.apply(create=pb.RecordedOp.Create(path=path), **fields)

    def link(self, fnode, path, **fields):
        return self.apply(link=pb.RecordedOp.Link(fnode=fnode, path=path), **fields)

    def unlink(self, fnode, path, **fields):
        return self.apply(unlink=pb.RecordedOp.Link(fnode=fnode, path=path), **fields)

    def write(self, fnode, **fields):
        return self.apply(write=pb.RecordedOp.Write(fnode=fnode, length=0), **fields)

    def set_property(self, path, content, **fields):
        return self.apply(property=pb.Property(path=path, content=content), **fields)

    def state(self):
        fsm = self.fsm
        return fsm.next_seq_no, fsm.next_checksum, fsm.last_log, dict(fsm.links), fsm.properties


def refused(driver, verdict, act):
    """`act` gives `verdict`, and nothing changes."""
    before = driver.state()
    assert act() is verdict
    assert driver.state() == before
    assert not verdict.advances


def test_gf1_a_store_begins_at_sequence_number_1():
    driver = Driver()
    assert driver.state() == (1, 0, LOG, {}, {})
    refused(driver, Verdict.WRONG_SEQ_NO, lambda: driver.create("/a", seq_no=2))
    refused(driver, Verdict.CHECKSUM_MISMATCH, lambda: driver.create("/a", checksum=7))
    assert driver.create("/a") is Verdict.APPLIED
    assert driver.fsm.next_seq_no == 2
    assert driver.fsm.next_checksum != 0
    refused(driver, Verdict.WRONG_SEQ_NO, lambda: driver.create("/a", seq_no=1))


def test_gf3_links_come_and_go_and_the_last_one_ends_a_file():
    driver = Driver()
    driver.create("/a")
    assert driver.link(1, "/b") is Verdict.APPLIED
    assert driver.fsm.links == {"/a": 1, "/b": 1}
    assert driver.unlink(1, "/a") is Verdict.APPLIED
    assert driver.fsm.live[1].links == {"/b"}
    assert driver.unlink(1, "/b") is Verdict.APPLIED
    assert not driver.fsm.live
    assert driver.write(1) is Verdict.NOT_TRACKED
    assert driver.create("/a") is Verdict.APPLIED
    assert driver.fsm.links == {"/a": 6}


def test_gf3_operations_that_do_not_fit_change_nothing():
    driver = Driver()
    driver.create("/a")
    driver.set_property("/p", "x")
    refused(driver, Verdict.LINK_EXISTS, lambda: driver.create("/a"))
    refused(driver, Verdict.PROPERTY_EXISTS, lambda: driver.create("/p"))
    refused(driver, Verdict.LINK_EXISTS, lambda: driver.link(1, "/a"))
    refused(
        driver, Verdict.LINK_EXISTS, lambda: driver.link(9, "/a")
    )  # before the fnode is looked at
    refused(driver, Verdict.PROPERTY_EXISTS, lambda: driver.link(1, "/p"))
    refused(driver, Verdict.NO_SUCH_LINK, lambda: driver.unlink(1, "/b"))
    refused(driver, Verdict.LINK_EXISTS, lambda: driver.set_property("/a", "x"))


@pytest.mark.parametrize("act", ["link", "unlink"])
def test_gf4_operations_of_unknown_files_are_passed(act):
    driver = Driver()
    driver.create("/a")
    assert getattr(driver, act)(9, "/b") is Verdict.NOT_TRACKED
    assert driver.fsm.next_seq_no == 3
    assert driver.create("/b") is Verdict.APPLIED


def test_gf3_properties_are_replaced():
    driver = Driver()
    assert driver.set_property("/p", "x") is Verdict.APPLIED
    assert driver.set_property("/p", "y") is Verdict.APPLIED
    assert driver.fsm.properties == {"/p": "y"}
    assert driver.fsm.build_hints(LOG) == FsmHints(LOG, (), (Property("/p", "y"),))


def test_a_no_op_hands_the_sequence_to_another_author():
    driver = Driver()
    driver.create("/a")
    before = driver.fsm.next_checksum
    assert driver.apply(author=2, log="b/log") is Verdict.APPLIED
    assert (driver.fsm.next_seq_no, driver.fsm.last_log) == (3, "b/log")
    refused(driver, Verdict.WRONG_SEQ_NO, lambda: driver.write(1, seq_no=2, checksum=before))


def test_writes_of_an_author_stretch_a_segment_and_those_of_another_begin_one():
    driver = Driver()
    driver.create("/a")
    driver.create("/b")
    driver.write(1)
    end = driver.at
    checksum, begin = driver.fsm.next_checksum, driver.at
    driver.write(1, author=2)
    assert driver.fsm.build_hints(LOG).live_nodes[0] == FnodeSegments(
        1, (Segment(1, 1, 100, 0, 3, end), Segment(2, 4, begin, checksum, 4, driver.at))
    )
    driver.write(1, author=2, log="b/log")
    hints = driver.fsm.build_hints("b/log")
    assert [each.log for each in hints.live_nodes[0].segments] == [LOG, LOG, ""]
    assert [each.last_seq_no for each in hints.live_nodes[0].segments] == [3, 4, 5]
    hints.validate()


def test_gf9_a_file_that_is_removed_is_in_no_hints():
    driver = Driver()
    driver.create("/a")
    driver.unlink(1, "/a")
    assert driver.fsm.build_hints(LOG) == FsmHints(LOG)


def hinted(*runs, properties=()):
    """Hints of files, and a driver that begins with them. Runs: author, first, last, checksum."""
    nodes = tuple(
        FnodeSegments(each[0][1], tuple(Segment(a, f, 0, c, z) for a, f, z, c in each))
        for each in runs
    )
    return Driver(FsmHints(LOG, nodes, properties))


def test_gf2_gf6_gf7_hints_begin_at_their_first_segment_and_jump_to_the_next():
    driver = hinted([(1, 10, 11, 0xA)], [(2, 20, 20, 0xB)])
    fsm = driver.fsm
    assert (fsm.next_seq_no, fsm.next_checksum) == (10, 0xA)
    refused(driver, Verdict.NOT_HINTED_AUTHOR, lambda: driver.create("/a", author=2))
    refused(driver, Verdict.NOT_HINTED_AUTHOR, lambda: driver.create("/a", author=3, seq_no=7))
    refused(driver, Verdict.WRONG_SEQ_NO, lambda: driver.create("/a", seq_no=1, checksum=0))
    assert driver.create("/a") is Verdict.APPLIED
    assert driver.write(10) is Verdict.APPLIED
    assert (fsm.next_seq_no, fsm.next_checksum) == (20, 0xB)
    assert fsm.has_hints
    refused(driver, Verdict.NOT_HINTED_AUTHOR, lambda: driver.create("/b", author=1))
    assert driver.create("/b", author=2) is Verdict.APPLIED
    assert not fsm.has_hints
    assert fsm.next_seq_no == 21
    assert fsm.next_checksum not in (0, 0xB)
    assert driver.create("/c", author=77) is Verdict.APPLIED


def test_gf5_a_hinted_file_has_to_be_created():
    driver = hinted([(1, 10, 12, 0)], [(1, 11, 12, 5)])
    refused(driver, Verdict.EXPECTED_HINTED_FNODE, driver.apply)
    assert driver.create("/a") is Verdict.APPLIED
    refused(driver, Verdict.EXPECTED_HINTED_FNODE, lambda: driver.write(10))
    refused(driver, Verdict.LINK_EXISTS, lambda: driver.create("/a"))
    assert driver.create("/b") is Verdict.APPLIED


def test_gf4_a_file_that_is_dead_by_the_hints_is_passed():
    driver = hinted([(1, 10, 14, 0)], [(1, 12, 12, 9)])
    driver.create("/a")
    assert driver.create("/dead") is Verdict.NOT_TRACKED
    assert driver.create("/b") is Verdict.APPLIED
    assert driver.write(11) is Verdict.NOT_TRACKED
    assert driver.create("/dead too") is Verdict.NOT_TRACKED
    assert not driver.fsm.has_hints
    assert driver.fsm.links == {"/a": 10, "/b": 12}
    assert driver.create("/c") is Verdict.APPLIED  # no hints know better any more


def test_a_property_of_the_hints_is_newer_than_what_they_name():
    driver = hinted([(1, 1, 3, 0)], properties=(Property("/p", "new"),))
    driver.create("/a")
    assert driver.set_property("/p", "old") is Verdict.APPLIED
    driver.write(1)
    assert driver.fsm.properties == {"/p": "new"}
    driver.set_property("/p", "newer")
    assert driver.fsm.properties == {"/p": "newer"}


def test_hints_that_are_not_valid_are_refused():
    with pytest.raises(ValidationError, match="Log"):
        Fsm(FsmHints())


def test_gf8_hints_reproduce_themselves():
    driver = Driver()
    driver.create("/a")
    driver.create("/dead")
    driver.write(1)
    driver.unlink(2, "/dead")
    driver.write(1, author=2)
    driver.create("/b", author=2)
    hints = driver.fsm.build_hints(LOG)
    again = Driver(hints)
    again.create("/a")
    again.create("/dead")
    again.write(1)
    assert again.fsm.next_seq_no == 5  # the removal is not among what is needed
    again.write(1, author=2)
    again.create("/b", author=2)
    found = [
        [(s.author, s.first_seq_no, s.last_seq_no, s.first_checksum) for s in node.segments]
        for node in again.fsm.build_hints(LOG).live_nodes
    ]
    assert found == [
        [(s.author, s.first_seq_no, s.last_seq_no, s.first_checksum) for s in node.segments]
        for node in hints.live_nodes
    ]
    assert again.fsm.next_checksum == driver.fsm.next_checksum
