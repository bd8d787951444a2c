"""`gazctl journals prune` against a fake broker and real files."""

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gazette_platform.cli.bars import FragmentBar
from gazette_platform.client import AsyncClient, FragmentListing
from gazette_platform.errors import AccessDenied
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import (
    CompressionCodec,
    Fragment,
    FragmentSpec,
    JournalSpec,
    LabelSet,
    SuspendLevel,
    SuspendSpec,
)
from gazette_platform.stores.fs import FileStore


def put(broker, name, retention_s, root):
    """A journal of three fragments in files."""
    spec = JournalSpec(
        name=name,
        replication=1,
        labels=LabelSet(),
        fragment=FragmentSpec(
            length=1 << 20,
            codec=CompressionCodec.NONE,
            refresh_interval_ns=10**10,
            retention_ns=retention_s * 10**9,
            stores=("file:///",),
        ),
    )
    broker.journal(name, b"x" * 25).spec = spec
    (root / name).mkdir(parents=True)
    for begin in (0, 10, 20):
        end = min(begin + 10, 25)
        file = root / name / f"{begin:016x}-{end:016x}-{'01' * 20}.raw"
        file.write_bytes(b"stored")
        os.utime(file, (1000, 1000))  # as the fake broker reports


def test_prune_removes_what_is_older_than_the_retention(gazctl, broker, tmp_path):
    put(broker, "a/short", 60, tmp_path)
    put(broker, "a/long", 10**9 * 9, tmp_path)
    put(broker, "a/ever", 0, tmp_path)
    prune = ["prune", "-l", "name:prefix=a/", "--file-root", tmp_path, "--ignore-savepoints"]
    dry = gazctl(*prune, "--dry-run")
    assert dry.out.count(b"would remove a/short/") == 2
    assert "2 of 6 fragments would be removed: 12 bytes in stores, 20 bytes" in dry.err
    assert len(list((tmp_path / "a/short").iterdir())) == 3
    result = gazctl(*prune)
    assert result.code == 0
    assert [file.name[:16] for file in (tmp_path / "a/short").iterdir()] == [f"{20:016x}"]
    assert len(list((tmp_path / "a/long").iterdir())) == 3
    assert len(list((tmp_path / "a/ever").iterdir())) == 3
    assert "a/ever: keeps everything" in result.err
    assert "2 of 6 fragments removed: 12 bytes in stores, 20 bytes of content" in result.err
    assert "kept: 3 younger than the retention" in result.err
    assert "kept: 1 at the end of the journal" in result.err


def test_dry_run_of_files_needs_no_file_root(gazctl, broker, tmp_path):
    put(broker, "a/short", 60, tmp_path)
    result = gazctl("prune", "a/short", "--ignore-savepoints", "--dry-run")
    assert (result.code, result.out.count(b"would remove a/short/")) == (0, 2), result.err
    assert "file:///: as its brokers list it, without the sizes there" in result.err
    assert "2 of 3 fragments would be removed: 0 bytes in stores, 20 bytes of content" in result.err
    assert not (tmp_path / ".test").exists()  # no store was asked for its time


def test_prune_says_what_it_could_not_remove(gazctl, broker, tmp_path):
    put(broker, "a/short", 60, tmp_path)
    put(broker, "a/wrong", 60, tmp_path)
    result = gazctl("prune", "-l", "name:prefix=a/", "--ignore-savepoints")
    assert result.code == 1
    assert "a/short: fragment store file:/// needs a directory" in result.err
    assert "2 of 2 journals could not be pruned" in result.err
    (tmp_path / "elsewhere").mkdir()
    prune = ["prune", "-l", "name:prefix=a/", "--ignore-savepoints", "--file-root"]
    lost = gazctl(*prune, tmp_path / "elsewhere")
    assert lost.code == 1
    assert "a/short: brokers have 3 fragments in file:///, and none is found there" in lost.err
    # One that fails does not stop the others.
    shutil.rmtree(tmp_path / "a/short")
    mixed = gazctl(*prune, tmp_path)
    assert mixed.code == 1
    assert "1 of 2 journals could not be pruned" in mixed.err
    assert len(list((tmp_path / "a/wrong").iterdir())) == 1
    assert (
        "--file-root: is not a directory"
        in gazctl("prune", "-l", "name=a/short", "--file-root", "no").err
    )


class WrongClock:
    """The clock of a machine that is off by so many seconds."""

    off_s = 0.0

    def now(self):
        return datetime.fromtimestamp(self.unix_s(), UTC)

    def unix_s(self):
        return SystemClock.unix_s() + self.off_s

    def monotonic(self):
        return SystemClock.monotonic()


@pytest.mark.parametrize(
    ("off_s", "told"), [(3 * 3600, "180 min behind that of"), (-3600, "60 min ahead of that of")]
)
def test_ages_are_by_the_clock_of_the_store(gazctl, broker, tmp_path, monkeypatch, off_s, told):
    monkeypatch.setattr(WrongClock, "off_s", off_s)
    monkeypatch.setattr("gazette_platform.cli.gazctl.journals.prune.SystemClock", WrongClock)
    put(broker, "a/short", 1800, tmp_path)
    old, *young = sorted((tmp_path / "a/short").iterdir())
    os.utime(
        old, (SystemClock.unix_s() - 1860,) * 2
    )  # which a clock that is an hour behind takes for young
    for file in young:
        os.utime(file, (SystemClock.unix_s() - 60,) * 2)
    flags = ("--ignore-savepoints", "--file-root", tmp_path)
    result = gazctl("prune", "a/short", *flags)
    assert result.code == 0
    assert sorted((tmp_path / "a/short").iterdir()) == young
    assert f"warning: the clock of file:/// is {told} this machine" in result.err
    assert [*(tmp_path / ".test").iterdir()] == []  # what was written to learn it is gone


def test_a_clock_that_is_right_is_not_spoken_of_and_one_that_is_unknown_is(
    gazctl, broker, tmp_path, monkeypatch
):
    put(broker, "a/short", 60, tmp_path)
    flags = ("--ignore-savepoints", "--file-root", tmp_path, "--dry-run")
    assert "clock" not in gazctl("prune", "a/short", *flags).err

    async def put_nothing(self, path, fd, length, *, content_encoding=""):
        raise AccessDenied(f"{path}: no")

    monkeypatch.setattr(FileStore, "put", put_nothing)
    result = gazctl("prune", "a/short", *flags)
    assert result.code == 0
    assert (
        "file:/// does not report its time: ages of fragments are by the clock of this"
        in result.err
    )
    assert "2 of 3 fragments would be removed" in result.err


def test_prune_leaves_a_copy_of_the_stores_alone(gazctl, broker, tmp_path):
    root, copy = tmp_path / "root", tmp_path / "copy"
    put(broker, "a/short", 60, root)
    shutil.copytree(root, copy)
    next((copy / "a/short").glob(f"{20:016x}-*")).unlink()  # stored since it was copied
    result = gazctl("prune", "a/short", "--ignore-savepoints", "--file-root", copy)
    assert result.code == 1
    assert "the last of them" in result.err
    assert "--broker.file-root of the brokers?" in result.err
    assert len(list((copy / "a/short").iterdir())) == 2


def test_prune_stops_where_a_store_refuses_on_and_on(gazctl, broker, tmp_path):
    put(broker, "a/ok", 60, tmp_path)
    put(broker, "a/refused", 60, tmp_path)
    for begin in range(0, 1000, 10):
        file = tmp_path / "a/refused" / f"{begin:016x}-{begin + 10:016x}-{'01' * 20}.raw"
        file.write_bytes(b"stored")
        os.utime(file, (1000, 1000))
    refusing = tmp_path / "a/refused"
    real = FileStore.remove

    async def remove(self, path):
        if path.startswith("a/refused/"):
            raise AccessDenied(f"{path}: no")
        await real(self, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStore, "remove", remove)
        result = gazctl(
            "prune", "-l", "name:prefix=a/", "--file-root", tmp_path, "--ignore-savepoints"
        )
    assert result.code == 1
    assert len(list(refusing.iterdir())) == 101
    assert result.err.count(": no\n") < 50
    assert "more fragments were not tried" in result.err
    assert result.out.count(b"removed a/ok/") == 2


def test_prune_needs_a_broker_that_knows_savepoints(gazctl, broker, tmp_path):
    """One of Gazette's own has none: but others of the cluster may know some."""
    put(broker, "a/short", 60, tmp_path)
    result = gazctl("prune", "-l", "name:prefix=a/", "--file-root", tmp_path)
    assert result.code == 1
    assert "keeps no savepoints" in result.err
    assert "--ignore-savepoints" in result.err
    assert len(list((tmp_path / "a/short").iterdir())) == 3


@pytest.mark.parametrize(
    ("level", "left"), [(SuspendLevel.PARTIAL, []), (SuspendLevel.NONE, [20]), (None, [20])]
)
def test_the_last_fragment_goes_only_while_the_journal_is_suspended(
    gazctl, broker, tmp_path, level, left
):
    """Where it was resumed, its spec still says where; but appends look at what is stored."""
    put(broker, "a/journal", 60, tmp_path)
    journal = broker.journals["a/journal"]
    if level is not None:
        journal.spec = replace(journal.spec, suspend=SuspendSpec(level, 25))
    result = gazctl("prune", "a/journal", "--ignore-savepoints", "--file-root", tmp_path)
    assert result.code == 0, result.err
    found = [int(file.name[:16], 16) for file in (tmp_path / "a/journal").iterdir()]
    assert found == left


def test_nothing_goes_before_what_only_brokers_hold_as_reads_would_wait_there(
    gazctl, broker, tmp_path, monkeypatch
):
    put(broker, "a/journal", 60, tmp_path)
    original = AsyncClient.fragments

    async def fragments(self, journal, **query):
        local = FragmentListing(Fragment("a/journal", 5, 30))
        return [*await original(self, journal, **query), local]

    monkeypatch.setattr(AsyncClient, "fragments", fragments)
    result = gazctl("prune", "a/journal", "--ignore-savepoints", "--file-root", tmp_path)
    assert result.code == 0, result.err
    assert "keeps 2 fragments in its middle: reads would wait at the gap" in result.err
    assert len([*(tmp_path / "a/journal").iterdir()]) == 3


def test_prune_leaves_recovery_logs_and_folders_that_two_journals_share(gazctl, broker, tmp_path):
    put(broker, "a/log", 60, tmp_path)
    log = broker.journals["a/log"]
    recovery = LabelSet.of(("content-type", "application/x-gazette-recoverylog"))
    log.spec = replace(log.spec, labels=recovery)
    put(broker, "b/outer", 60, tmp_path)
    put(broker, "b/outer/inner", 60, tmp_path)
    prune = ["prune", "--file-root", tmp_path, "--ignore-savepoints", "-l"]
    result = gazctl(*prune, "name=a/log")
    assert result.code == 0
    assert "a/log: keeps everything, it is the recovery log of a shard" in result.err
    result = gazctl(*prune, "name:prefix=b/")
    assert result.code == 1
    assert "b/outer: the fragments of b/outer/inner lie in its folder" in result.err
    assert b"removed b/outer/0" not in result.out
    assert result.out.count(b"removed b/outer/inner/0") == 2


def test_prune_refuses_offsets_that_say_nothing(gazctl, broker, tmp_path):
    put(broker, "a/one", 60, tmp_path)
    put(broker, "a/two", 60, tmp_path)
    prune = ["prune", "--file-root", tmp_path, "--ignore-savepoints", "-l"]
    for args, text in [
        (["name:prefix=a/", "--before-offset", 10], "2 match name:prefix=a/"),
        (["name=a/one", "--from-offset", 10], "--from-offset: needs --before-offset"),
        (["name=a/one", "--from-offset", 10, "--before-offset", 10], "is empty"),
    ]:
        result = gazctl(*prune, *args)
        assert result.code == 1
        assert text in result.err
    assert gazctl(*prune, "name=a/one", "--before-offset", 0).code != 0
    assert gazctl(*prune, "name=a/one", "--before-offset", -5).code != 0
    assert len(list((tmp_path / "a/one").iterdir())) == 3


def test_a_bar_shows_how_far_it_is_and_output_stays_apart(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, that is a terminal
    monkeypatch.setenv("COLUMNS", "100")
    with FragmentBar("pruning", is_shown=True) as bar:
        bar.add("a/[one]", 2)
        bar.advance(1500)
        print("removed a/one/x")
        bar.add("a/two", 3)
        bar.advance(500)
    out, err = capfd.readouterr()
    assert out == "removed a/one/x\n"
    assert "pruning" in err
    assert "2/5" in err
    assert "2.0 kB" in err
    with FragmentBar("pruning", is_shown=False) as bar:
        bar.add("a/one", 1)
    assert capfd.readouterr() == ("", "")
