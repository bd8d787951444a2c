"""The file store, beyond what every store does."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gazette_platform.errors import (
    AccessDenied,
    DataError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.protocol import parse_store_url
from gazette_platform.stores import open_store
from gazette_platform.stores.fs import FileStore
from gazette_platform.stores.interface import put_bytes
from gazette_platform.testing.store_conformance import StoreConformance, listing, read_all
from gazette_platform.testing.waiting import turns


@pytest.fixture
def executor():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def open_descriptors():
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.exists()}


def make(tmp_path, executor, url="file:///"):
    return FileStore(parse_store_url(url), file_root=tmp_path, executor=executor)


class TestFileStoreConformance(StoreConformance):
    served_by = "file://, of the file system"

    @pytest.fixture
    def store(self, tmp_path, executor):
        return make(tmp_path, executor)


class TestPrefixedFileStoreConformance(StoreConformance):
    served_by = "file://, of the file system"

    @pytest.fixture
    def store(self, tmp_path, executor):
        return make(tmp_path, executor, "file:///some/prefix/")


async def test_so7_sign_is_the_path_below_the_root(tmp_path, executor):
    store = make(tmp_path, executor)
    assert await store.sign_get("file.txt", 60) == "file:///file.txt"
    assert await store.sign_get("a=b/c%d", 60) == "file:///a=b/c%25d"
    assert await make(tmp_path, executor, "file:///pre/").sign_get("f", 1) == "file:///pre/f"


async def test_so7_prefix_is_concatenated(tmp_path, executor):
    await put_bytes(make(tmp_path, executor, "file:///base/"), "file.txt", b"x")
    assert (tmp_path / "base" / "file.txt").read_bytes() == b"x"
    await put_bytes(make(tmp_path, executor, "file:////base/"), "file.txt", b"y")
    assert (tmp_path / "base" / "file.txt").read_bytes() == b"y"


async def test_so7_missing_base_directory(tmp_path, executor):
    store = make(tmp_path / "missing", executor)
    with pytest.raises(AccessDenied, match=f"invalid file store directory {tmp_path}/missing"):
        await put_bytes(store, "j/f", b"x")
    assert not (tmp_path / "missing").exists()


async def test_missing_root_is_not_taken_for_an_empty_store(tmp_path, executor):
    root = tmp_path / "mount"
    root.mkdir()
    store = make(root, executor)
    await put_bytes(store, "j/f", b"x")
    root.rename(tmp_path / "away")
    with pytest.raises(AccessDenied, match=f"invalid file store directory {root}"):
        await listing(store, "j/")
    (tmp_path / "away").rename(root)
    assert [item.path for item in await listing(store, "j/")] == ["f"]
    assert await listing(store, "other/") == []


async def test_root_that_goes_while_it_is_listed(tmp_path, executor):
    root = tmp_path / "mount"
    store = make(root, executor)
    (root / "j").mkdir(parents=True)
    for number in range(600):  # more than one batch
        (root / "j" / f"{number:03}").touch()
    found = store.list("j/")
    await anext(aiter(found))
    shutil.rmtree(root)
    with pytest.raises(AccessDenied, match="invalid file store directory"):
        async for _ in found:
            pass


async def test_so7_rewrites_the_first_occurrence(tmp_path, executor):
    store = make(tmp_path, executor, "file:///p/?find=foo&Replace=bar")
    await put_bytes(store, "foo/foo/f", b"x")
    assert (tmp_path / "p" / "bar" / "foo" / "f").exists()
    assert [item.path for item in await listing(store, "foo/")] == ["foo/f"]
    assert await store.sign_get("foo/f", 1) == "file:///p/bar/f"
    assert store.local_path("foo/f") == tmp_path / "p" / "bar" / "f"
    # An empty text to find rewrites nothing.
    assert await make(tmp_path, executor, "file:///?replace=x").sign_get("f", 1) == "file:///f"


def test_so7_unknown_arguments_are_refused(tmp_path, executor):
    with pytest.raises(ValidationError, match="unknown query argument 'profile'"):
        make(tmp_path, executor, "file:///?profile=x")
    with pytest.raises(ValidationError, match="twice"):
        make(tmp_path, executor, "file:///?find=x&FIND=y")


async def test_so7_no_temporary_file_is_left_after_an_error(tmp_path, executor):
    store = make(tmp_path, executor)
    with tempfile.TemporaryFile() as empty, pytest.raises(DataError):
        await store.put("j/f", empty.fileno(), 5)
    assert list((tmp_path / "j").iterdir()) == []


async def test_so7_an_open_reader_keeps_the_old_content(tmp_path, executor):
    store = make(tmp_path, executor)
    await put_bytes(store, "f", b"old" * (1 << 20))
    pieces = store.get("f")
    first = await anext(pieces)
    await put_bytes(store, "f", b"new")
    assert first + b"".join([piece async for piece in pieces]) == b"old" * (1 << 20)


async def test_directories_and_files_are_not_for_everybody(tmp_path, executor):
    await put_bytes(make(tmp_path, executor), "a/b/f", b"x")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "a" / "b" / "f").stat().st_mode) == 0o640


async def test_objects_appear_whole_and_hidden_meanwhile(tmp_path, executor):
    """While the content is copied, no listing of a journal finds it, not even one of hidden names.

    Gazette's brokers warn of every name below a journal that is not a fragment's.
    """
    store = make(tmp_path, executor)
    read_fd, write_fd = os.pipe()
    # A pipe cannot be copied with an offset, so the copy fails after the partial file was made.
    seen = []
    sendfile = os.sendfile

    def spy(*args):
        seen.extend(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*name*"))
        return sendfile(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sendfile", spy)
        with pytest.raises(StoreUnavailable):
            await store.put("j/name", read_fd, 5)
    os.close(read_fd)
    os.close(write_fd)
    assert len(seen) == 1
    assert seen[0].startswith(".partial/name.")
    assert [*(tmp_path / ".partial").iterdir()] == []
    assert await listing(store, "j/") == []


async def test_put_works_where_journals_have_their_own_disks(tmp_path, executor, monkeypatch):
    """A name cannot move from one file system to another."""
    store, rename = make(tmp_path, executor), Path.rename

    def refuse(path, target):
        if path.parent.name == ".partial":
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    await put_bytes(store, "j/name", b"content")
    assert (tmp_path / "j/name").read_bytes() == b"content"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "j/name"]


async def test_a_cancelled_put_reads_no_descriptor_of_its_caller(tmp_path):
    """The caller may close its file at once; the object never appears in part."""
    with ThreadPoolExecutor(1) as executor:
        store = make(tmp_path, executor)
        gate = threading.Event()
        blocked = executor.submit(gate.wait, 5)
        fd = os.open(tmp_path / "content", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"x" * 100)
        before = open_descriptors()
        loop = asyncio.get_running_loop()
        put = asyncio.gather(store.put("j/f", fd, 100))
        await turns()
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        gate.set()
        await loop.run_in_executor(None, blocked.result)
        os.close(fd)
        assert open_descriptors() <= before
        assert not await store.exists("j/f")


async def test_a_running_put_stops_when_cancelled(tmp_path, executor):
    store = make(tmp_path, executor)
    entered, gate = threading.Event(), threading.Event()

    def slow(*_args):
        entered.set()
        gate.wait(5)
        return 1

    fd = os.open(os.devnull, os.O_RDONLY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sendfile", slow)
        put = asyncio.gather(store.put("j/f", fd, 100))
        await asyncio.to_thread(entered.wait, 5)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        gate.set()
        os.close(fd)
        executor.shutdown(wait=True)
    assert list((tmp_path / "j").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root is refused nothing")
async def test_so8_permission_errors_are_authorization_errors(tmp_path, executor):
    store = make(tmp_path, executor)
    (tmp_path / "j").mkdir(mode=0o500)
    with pytest.raises(AccessDenied):
        await put_bytes(store, "j/f", b"x")


async def test_so8_errors_of_the_system_are_mapped(tmp_path, executor):
    store = make(tmp_path, executor)
    with pytest.MonkeyPatch.context() as patch:
        for error, kind in [
            (PermissionError(13, "Permission denied", "f"), AccessDenied),
            (OSError(28, "No space left on device"), StoreUnavailable),
            (FileNotFoundError(2, "No such file", "f"), ObjectNotFound),
        ]:

            def fail(*_args, error=error):
                raise error

            patch.setattr(os, "fsync", fail)
            with pytest.raises(kind):
                await put_bytes(store, "j/f", b"x")
    missing = make(tmp_path / "missing", executor)
    with pytest.raises(AccessDenied):
        await put_bytes(missing, "f", b"x")


async def test_other_kinds_of_files_are_not_objects(tmp_path, executor):
    store = make(tmp_path, executor)
    (tmp_path / "j" / "dir").mkdir(parents=True)
    os.mkfifo(tmp_path / "j" / "fifo")
    (tmp_path / "j" / "dangling").symlink_to("nowhere")
    (tmp_path / "j" / "loop").symlink_to(tmp_path / "j")
    (tmp_path / "j" / "f").write_bytes(b"x")
    (tmp_path / "j" / "link").symlink_to(tmp_path / "j" / "f")
    assert [item.path for item in await listing(store, "j/")] == ["f", "link"]
    with pytest.raises(ObjectNotFound):
        await read_all(store, "j/dir")
    assert await listing(store, "j/f/") == []


async def test_long_listings_come_in_batches(tmp_path, executor):
    store = make(tmp_path, executor)
    (tmp_path / "j").mkdir()
    for number in range(1100):
        (tmp_path / "j" / f"{number:05d}").touch()
    found = [item.path for item in await listing(store, "j/")]
    assert found == [f"{number:05d}" for number in range(1100)]


async def test_listing_prefix_must_be_a_directory(tmp_path, executor):
    with pytest.raises(StoreError, match="must end with"):
        await listing(make(tmp_path, executor), "j")


async def test_file_only_maps_every_url_to_the_root(tmp_path):
    store = open_store("s3://bucket/pre/?profile=x", file_root=tmp_path, file_only=True)
    await put_bytes(store, "j/f", b"x")
    assert (tmp_path / "j" / "f").exists()
    assert store.url == "s3://bucket/pre/?profile=x"


def test_file_stores_need_a_root():
    with pytest.raises(StoreError, match=r"--broker\.file-root"):
        open_store("file:///", file_root=None)


def test_bad_urls_are_refused(tmp_path):
    with pytest.raises(ValidationError, match="doesn't end in '/'"):
        open_store("file:///x", file_root=tmp_path)


# ------------------------------------------------------------------------- unnamed files take names
def unnamed(directory, content):
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR)
    os.write(fd, content)
    os.utime(fd, (1, 1))
    return fd


async def test_an_unnamed_file_is_not_copied(tmp_path, executor):
    store = make(tmp_path, executor)
    fd = unnamed(tmp_path, b"whole")
    try:
        await store.put("a/b/c", fd, 5)
        stored = store.local_path("a/b/c").stat()
        assert os.path.samestat(stored, os.fstat(fd))
        assert stat.S_IMODE(stored.st_mode) == 0o640
        assert stored.st_mtime > 1  # an object is as old as its name, not as its content
        assert [path.name for path in (tmp_path / "a/b").iterdir()] == ["c"]
        await store.put("again", fd, 5)  # it has its name already
        assert not os.path.samestat(store.local_path("again").stat(), os.fstat(fd))
    finally:
        os.close(fd)
    assert await read_all(store, "again") == await read_all(store, "a/b/c") == b"whole"


async def test_an_unnamed_file_that_holds_more_is_copied(tmp_path, executor):
    store = make(tmp_path, executor)
    fd = unnamed(tmp_path, b"whole, and what was rolled back")
    try:
        await store.put("c", fd, 5)
        assert not os.path.samestat(store.local_path("c").stat(), os.fstat(fd))
    finally:
        os.close(fd)
    assert await read_all(store, "c") == b"whole"


@pytest.fixture
def elsewhere(tmp_path):
    """A directory on another file system than tmp_path's."""
    shared_memory = Path("/dev/shm")
    if shared_memory.is_dir() and shared_memory.stat().st_dev != tmp_path.stat().st_dev:
        return shared_memory
    pytest.skip("one file system only")


async def test_an_unnamed_file_of_another_file_system_is_copied(tmp_path, executor, elsewhere):
    store = make(tmp_path, executor)
    fd = unnamed(elsewhere, b"whole")
    try:
        await store.put("c", fd, 5)
    finally:
        os.close(fd)
    assert await read_all(store, "c") == b"whole"


@pytest.mark.parametrize("is_unnamed", [True, False], ids=["linked", "copied"])
async def test_what_is_put_is_on_disk_before_it_has_its_name(
    tmp_path, executor, monkeypatch, is_unnamed
):
    """A machine that loses its power has all of it, or nothing: the spool is dropped at once."""
    events = []
    sync, rename = os.fsync, Path.rename

    def fsync(fd):
        sync(fd)
        events.append(("synced", os.fstat(fd).st_ino))

    def renamed(path, target):
        events.append(("renamed", path.stat().st_ino))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", renamed)
    store = make(tmp_path, executor)
    if is_unnamed:
        source = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    else:
        source = os.open(tmp_path / "source", os.O_CREAT | os.O_RDWR)
    try:
        os.write(source, b"content")
        await store.put("j/date=1/f", source, 7)
        is_linked = os.fstat(source).st_ino == (tmp_path / "j/date=1/f").stat().st_ino
        assert is_linked == is_unnamed
    finally:
        os.close(source)
    inodes = {
        (tmp_path / path).stat().st_ino: path or "root"
        for path in ("", "j", "j/date=1", "j/date=1/f")
    }
    assert [(what, inodes[ino]) for what, ino in events] == [
        ("synced", "root"),  # has j
        ("synced", "j"),  # has date=1
        ("synced", "j/date=1/f"),
        ("renamed", "j/date=1/f"),
        ("synced", "j/date=1"),  # has the name
    ]


async def test_a_name_that_cannot_be_given_leaves_nothing_behind(tmp_path, executor):
    store = make(tmp_path, executor)
    (tmp_path / "j" / "f" / "folder").mkdir(parents=True)
    with pytest.raises(StoreError):
        await put_bytes(store, "j/f", b"x")
    assert [path.name for path in (tmp_path / "j").iterdir()] == ["f"]
