"""Files of stores that are folders, and of a store that does little by itself, through one interface."""

import asyncio
import threading

import pytest

from gazette_platform.errors import (
    AccessDenied,
    LakeError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
)
from gazette_platform.lake import StoreRoots
from gazette_platform.lake.raw.listing import journal_files
from gazette_platform.lake.reading import storage
from gazette_platform.lake.reading.storage import Storage, StoreFiles
from gazette_platform.stores import StoredObject, open_store

CONTENT = bytes(range(256)) * 12_000


@pytest.fixture
def folder(tmp_path):
    """With one file at journal ``j/one``, below store ``file:///sub/``."""
    (tmp_path / "sub" / "j" / "one").mkdir(parents=True)
    (tmp_path / "sub" / "j" / "one" / "large").write_bytes(CONTENT)
    return tmp_path


class Plain:
    """A store of objects without anything beyond what every one does; over a folder."""

    def __init__(self, folder):
        self._store = open_store("file:///", file_root=folder)
        self.url = "plain://"

    def __getattr__(self, name):
        return getattr(self._store, name)

    def local_path(self, _path):
        return None


@pytest.fixture(params=["folder", "plain"])
def files(request, folder):
    if request.param == "plain":
        return StoreFiles(Plain(folder / "sub"), lambda path: path)
    return Storage(StoreRoots({"file:///": f"file://{folder}/"})).files("file:///sub/")


def test_list_size_and_ranges(files, folder):
    for name in (".hidden", "_hidden", "small"):
        (folder / "sub" / "j" / "one" / name).write_bytes(b"1234")
    (folder / "sub" / "j" / "one" / "below").mkdir()
    (folder / "sub" / "j" / "one" / "below" / "deep").write_bytes(b"1")
    assert [(i.path, i.size) for i in files.list("j/one")] == [("large", 3072000), ("small", 4)]
    assert files.list("j") == files.list("absent") == []
    assert files.size("j/one/large") == len(CONTENT)
    for begin, end in [(0, None), (0, 7), (5, 2_000_000), (2_000_000, None), (3_071_999, 1 << 30)]:
        assert b"".join(files.read("j/one/large", begin, end)) == CONTENT[begin:end]
    assert list(files.read("j/one/large", 4_000_000, 5_000_000)) == []
    # Who stops early leaves nothing open.
    assert next(files.read("j/one/large"))[:3] == CONTENT[:3]


def test_copy_move_and_remove(files, folder):
    files.copy("j/one/large", "k/copy")
    assert (folder / "sub" / "k" / "copy").read_bytes() == CONTENT
    files.move("k/copy", "l/m/moved")
    assert (files.exists("k/copy"), files.exists("l/m/moved")) == (False, True)
    assert files.text("l/m/moved").endswith(("/sub/l/m/moved", "l/m/moved of plain://"))
    files.remove("l/m/moved")
    for call in (
        lambda: files.size("l/m/moved"),
        lambda: list(files.read("l/m/moved")),
        lambda: files.remove("l/m/moved"),
        lambda: files.move("l/m/moved", "x"),
    ):
        with pytest.raises(ObjectNotFound):
            call()


def test_a_copy_of_another_size_removes_nothing(folder, monkeypatch):
    files = StoreFiles(Plain(folder / "sub"), lambda path: path)
    sizes = iter([1, 2])
    monkeypatch.setattr(StoreFiles, "size", lambda *_: next(sizes))
    with pytest.raises(StoreUnavailable, match="another size; both are kept"):
        files.move("j/one/large", "k/copy")
    assert files.exists("j/one/large")
    assert files.exists("k/copy")


@pytest.mark.parametrize("root", ["", "x/"])
def test_paths_follow_roots_find_and_replace(tmp_path, root):
    roots = StoreRoots(
        {"file:///": f"file://{tmp_path}/{root}", "s3://b/p/": f"file://{tmp_path}/"}
    )
    files = Storage(roots).files("file:///sub/?find=one/&replace=two/")
    assert files.local_path("j/one/x") == tmp_path / root / "sub/j/two/x"
    assert Storage(roots).files("s3://b/p/q/").local_path("j/f") == tmp_path / "q/j/f"
    assert Storage(roots).is_local("s3://b/p/q/")
    assert not Storage(roots).is_local("s3://b/other/")
    whole = Storage(StoreRoots({"file:///": "file:///"})).files("file:///")
    assert str(whole.local_path("tmp/j/f")) == "/tmp/j/f"
    with pytest.raises(LakeError, match="only brokers know"):
        Storage(StoreRoots({})).files("file:///")


def test_a_folder_that_is_away_holds_no_files_that_are_known(tmp_path):
    roots = StoreRoots({"file:///": f"file://{tmp_path}/absent/"})
    with pytest.raises(AccessDenied, match="invalid file store directory"):
        Storage(roots).files("file:///").list("j")
    files = journal_files(Storage(roots), "j", [("file:///", "j/a"), ("file:///", "j/b")])
    assert sorted(files.unlisted) == ["j/a", "j/b"]
    assert files.listed == set()


def test_what_cannot_be_moved_is_known_before(folder, monkeypatch):
    monkeypatch.setattr("gazette_platform.lake.reading.storage.os.access", lambda *_: False)
    files = Storage(StoreRoots({"file:///": f"file://{folder}/"})).files("file:///sub/")
    with pytest.raises(AccessDenied, match="one is not writable"):
        files.check_movable("j/one/large")


def test_a_folder_with_too_many_files_is_refused(files, monkeypatch):
    monkeypatch.setattr(storage, "_LISTED_MAX", 0)
    with pytest.raises(StoreError, match="more than 0 files: give the journal a path postfix"):
        files.list("j/one")


def test_a_store_that_does_not_answer_is_not_waited_for(folder, monkeypatch):
    class Slow(Plain):
        async def exists(self, _path):
            await asyncio.Event().wait()

    monkeypatch.setattr(storage, "_STEP_TIMEOUT_S", 0.05)
    files = StoreFiles(Slow(folder), lambda path: path)
    with pytest.raises(StoreUnavailable, match="did not answer"):
        storage._wait(files._driver.exists("x"), 0.05)


def test_threads_and_event_loops_share_the_stores(files):
    """As sensors of Dagster, and notebooks, call it."""
    found = []

    async def within_a_loop():
        found.append(files.size("j/one/large"))
        found.append(files.exists("j/one/large"))

    asyncio.run(within_a_loop())
    threads = [threading.Thread(target=lambda: found.append(files.list("j/one"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found[:2] == [len(CONTENT), True]
    names = [[item.path for item in each] for each in found[2:]]
    assert names == [["large"]] * 4
    assert isinstance(found[2][0], StoredObject)
