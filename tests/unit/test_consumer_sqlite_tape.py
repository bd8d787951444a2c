"""What becomes of the operations of SQLite's files in a recovery log."""

import pytest
from hypothesis import given, settings, strategies as st

from gazette_platform.consumer.store import sqlite_tape
from gazette_platform.consumer.store.sqlite_tape import RENEWED_SUFFIX, Tape, settle
from tests.benches.kept_log import KeptRecorder

WAL_BEGIN = b"\x37\x7f\x06\x82"


class Disk:
    """A file, and its tape."""

    def __init__(self, tape, path):
        self.tape, self.path = tape, path
        path.touch()
        self.file = tape.open(str(path), is_there=False)

    def read(self, amount, offset):
        return self.path.read_bytes()[offset : offset + amount]

    def write(self, content, offset):
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(content)
        self.tape.write(self.file, content, offset)

    def truncate(self, size):
        with self.path.open("r+b") as file:
            file.truncate(size)
        self.tape.truncate(self.file, size, self.read)

    def renew(self, bytes_max):
        self.tape.renew(bytes_max, self.path.stat().st_size, self.read)


@pytest.fixture
def recorder(tmp_path):
    (tmp_path / "one").mkdir()
    return KeptRecorder(tmp_path / "one")


@pytest.fixture
def tape(recorder, tmp_path):
    return Tape(recorder, str(tmp_path / "one" / "db"))


def played(recorder, directory, operations=None):
    recorder.play(directory, operations=operations)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_adjoining_writes_are_one_operation(recorder, tape, tmp_path):
    disk, other = Disk(tape, tmp_path / "one" / "db"), Disk(tape, tmp_path / "one" / "other")
    tape.flush()
    before = len(recorder.operations)
    for number in range(10):
        disk.write(b"%d" % number, number)
    tape.flush()
    tape.flush()
    assert len(recorder.operations) == before + 1
    disk.write(b"x", 10)
    other.write(b"y", 11)
    disk.write(b"z", 11)
    disk.write(b"0", 13)
    tape.flush()
    assert len(recorder.operations) == before + 5
    assert tape.recorded_bytes == 14
    for _ in range(5):
        other.write(bytes(sqlite_tape.BUFFER_BYTES_MAX // 2), other.path.stat().st_size)
    tape.flush()
    assert len(recorder.operations) == before + 8
    files = played(recorder, tmp_path / "two")
    assert files == {"db": b"0123456789xz\x000", "other": other.path.read_bytes()}


def test_cl7_a_log_that_restarts_is_a_new_file(recorder, tape, tmp_path):
    disk = Disk(tape, tmp_path / "one" / "db-wal")
    disk.write(WAL_BEGIN + b"first" * 100, 0)
    first = disk.file.fnode
    disk.write(b"....", 4)
    assert disk.file.fnode == first
    disk.write(WAL_BEGIN + b"next", 0)
    tape.flush()
    assert disk.file.fnode != first
    assert tape.size_of(str(disk.path)) == 8
    assert played(recorder, tmp_path / "two") == {"db-wal": WAL_BEGIN + b"next"}
    disk.truncate(0)
    disk.write(b"abc", 0)
    tape.flush()
    assert played(recorder, tmp_path / "two") == {"db-wal": b"abc"}
    disk.truncate(2)
    tape.flush()
    assert played(recorder, tmp_path / "two") == {"db-wal": b"ab"}
    tape.remove(str(disk.path))
    assert played(recorder, tmp_path / "two") == {}
    assert tape.size_of(str(disk.path)) == 0


def test_a_database_is_never_shorter_than_sqlite_has_it(recorder, tape, tmp_path):
    disk = Disk(tape, tmp_path / "one" / "db")
    disk.write(b"a" * 100, 0)
    disk.truncate(300)
    tape.flush()
    assert played(recorder, tmp_path / "two") == {"db": disk.path.read_bytes()}
    disk.truncate(50)
    disk.write(b"b", 60)
    tape.flush()
    assert len(played(recorder, tmp_path / "two")["db"]) == 300


def test_what_other_files_get_meanwhile_is_not_of_the_renewed_database(recorder, tape, tmp_path):
    disk, other = Disk(tape, tmp_path / "one" / "db"), Disk(tape, tmp_path / "one" / "db-wal")
    disk.write(b"a" * 100, 0)
    disk.renew(60)
    other.write(b"w" * 20, 10)
    disk.renew(1000)
    assert not tape.is_renewing
    tape.flush()
    files = played(recorder, tmp_path / "two")
    assert files == {"db": disk.path.read_bytes(), "db-wal": other.path.read_bytes()}


def test_a_database_that_was_renewed_is_as_long_as_it_is_on_disk(recorder, tape, tmp_path):
    disk = Disk(tape, tmp_path / "one" / "db")
    disk.write(b"a" * 100, 0)
    disk.truncate(40)
    assert tape.size_of(str(disk.path)) == 100  # of players
    disk.renew(1000)
    assert tape.size_of(str(disk.path)) == 40
    disk.truncate(80)
    tape.flush()
    assert played(recorder, tmp_path / "two") == {"db": disk.path.read_bytes()}


def test_nothing_is_recorded_after_the_end(recorder, tape, tmp_path):
    disk = Disk(tape, tmp_path / "one" / "db")
    disk.write(b"a", 0)
    tape.end()
    before = len(recorder.operations)
    disk.write(b"b", 0)
    tape.flush()
    tape.open(str(tmp_path / "one" / "other"), is_there=False)
    tape.remove(str(disk.path))
    assert len(recorder.operations) == before


CHANGES = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 39), st.integers(1, 8)),
    st.tuples(st.just("truncate"), st.integers(0, 39)),
    st.tuples(st.just("renew"), st.sampled_from([1, 10, 30, 1000])),
    st.tuples(st.just("flush")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES, max_size=30))
def test_a_renewed_database_is_as_the_former_one_at_each_cut(tmp_path_factory, changes):
    home = tmp_path_factory.mktemp("renewed")
    (home / "one").mkdir()
    recorder = KeptRecorder(home / "one")
    disk = Disk(Tape(recorder, str(home / "one" / "db")), home / "one" / "db")
    disk.write(b"0123456789" * 4, 0)
    disk.tape.flush()
    whole = len(recorder.operations)
    for number, (what, *given_) in enumerate(changes):
        size = disk.path.stat().st_size
        # What of a file was never written has no meaning to SQLite, and may be anything.
        if what == "write":
            disk.write(b"%c" % (65 + number) * given_[1], min(given_[0], size))
        elif what == "truncate":
            disk.truncate(min(given_[0], size))
        elif what == "flush":
            disk.tape.flush()
        elif size:
            disk.renew(*given_)
    disk.tape.flush()
    for cut in range(whole, len(recorder.operations) + 1):
        other = recorder.cut(home / "two", cut)
        plain = dict(played(recorder, home / "three", cut))
        settle(other, str(home / "two" / "db"))
        assert [path.name for path in (home / "two").iterdir()] == ["db"]
        assert set(other._recording.fsm.links) == {"/db"}
        renewed = plain.pop("db" + RENEWED_SUFFIX, None)
        assert (home / "two" / "db").read_bytes() == plain.get("db", renewed)
    # SQLite knows from its first page how much of it is to be read.
    content = disk.path.read_bytes()
    assert (home / "two" / "db").read_bytes()[: len(content)] == content
