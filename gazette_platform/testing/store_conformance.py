"""What every fragment store must do, as tests to inherit.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self) -> FragmentStore: ...

pytest finds the inherited tests. They need an empty store, and ``pytest-asyncio`` in auto mode.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING, ClassVar

import pytest

from gazette_platform.errors import DataError, ObjectNotFound, StoreError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.stores.interface import clock_probe, delete_probe, health_check, put_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gazette_platform.stores import FragmentStore, StoredObject

__all__ = ["StoreConformance", "listing", "read_all"]


async def read_all(store: FragmentStore, path: str) -> bytes:
    """All stored bytes of an object. Raises: as `FragmentStore.get`."""
    return b"".join([piece async for piece in store.get(path)])


async def listing(store: FragmentStore, prefix: str) -> list[StoredObject]:
    """All objects below `prefix`. Raises: as `FragmentStore.list`."""
    return [item async for item in store.list(prefix)]


class StoreConformance:
    """The promises of `FragmentStore`; subclasses give the fixture ``store``."""

    served_by: ClassVar[str] = ""
    """Scheme of the store, and what real server is behind it, for reports."""

    @pytest.fixture
    def store(self) -> FragmentStore | AsyncGenerator[FragmentStore, None]:
        """An empty store."""
        raise NotImplementedError("subclasses of StoreConformance give the fixture `store`")

    async def test_put_then_get_gives_the_same_bytes(self, store: FragmentStore) -> None:
        """Of any size, in more than one piece if large."""
        for length in (1, 1 << 20, (3 << 20) + 1):
            content = os.urandom(length)
            await put_bytes(store, "a/journal/object", content)
            assert await read_all(store, "a/journal/object") == content

    async def test_put_stores_a_prefix_and_leaves_the_position(self, store: FragmentStore) -> None:
        """Only `length` bytes from the beginning, wherever the descriptor stands."""
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(b"0123456789")
            file.seek(7)
            await store.put("a/part", file.fileno(), 4)
            assert file.tell() == 7
        assert await read_all(store, "a/part") == b"0123"

    async def test_put_replaces_the_whole_object(self, store: FragmentStore) -> None:
        """A shorter object leaves nothing of the longer one."""
        await put_bytes(store, "a/object", b"long content")
        await put_bytes(store, "a/object", b"short")
        assert await read_all(store, "a/object") == b"short"

    async def test_put_of_too_little_content_stores_nothing(self, store: FragmentStore) -> None:
        """A spool that is shorter than it claims must not become a fragment."""
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(b"four")
            with pytest.raises(DataError):
                await store.put("a/short", file.fileno(), 5)
        assert not await store.exists("a/short")
        assert await listing(store, "a/") == []

    async def test_exists_distinguishes_objects_from_directories(
        self, store: FragmentStore
    ) -> None:
        """A prefix of objects is not an object."""
        assert not await store.exists("a/journal/object")
        await put_bytes(store, "a/journal/object", b"x")
        assert await store.exists("a/journal/object")
        assert not await store.exists("a/journal")
        assert not await store.exists("a/journal/object/deeper")

    async def test_get_of_a_missing_object_is_refused(self, store: FragmentStore) -> None:
        """With the error that says so."""
        with pytest.raises(ObjectNotFound):
            await read_all(store, "a/missing")

    async def test_an_early_end_of_get_is_clean(self, store: FragmentStore) -> None:
        """Readers may leave after any piece."""
        await put_bytes(store, "a/object", bytes(3 << 20))
        async with contextlib.aclosing(store.get("a/object")) as pieces:
            assert await anext(pieces)
        with pytest.raises(StopAsyncIteration):
            await anext(pieces)

    async def test_list_gives_relative_paths_in_order(self, store: FragmentStore) -> None:
        """Order of whole paths: `a.b` before `a/b`, as in a bucket."""
        for path in ("j/z", "j/a/b", "j/a.b", "j/date=2/hour=1/f", "other/x", "jj/x"):
            await put_bytes(store, path, b"12345")
        found = await listing(store, "j/")
        assert [item.path for item in found] == ["a.b", "a/b", "date=2/hour=1/f", "z"]
        assert {item.size for item in found} == {5}
        assert all(item.mod_time > 1_700_000_000 for item in found)
        assert len(await listing(store, "")) == 6

    async def test_list_of_a_missing_directory_is_empty(self, store: FragmentStore) -> None:
        """A journal without fragments is nothing special."""
        assert await listing(store, "never/made/") == []

    async def test_list_hides_names_with_a_dot(self, store: FragmentStore) -> None:
        """They are brokers' own, unless one lists their directory itself."""
        await put_bytes(store, ".test/object", b"x")
        await put_bytes(store, "j/.hidden", b"x")
        await put_bytes(store, "j/.covered/object", b"x")
        assert await listing(store, "") == []
        assert await listing(store, "j/") == []
        assert [item.path for item in await listing(store, ".test/")] == ["object"]

    async def test_remove_deletes_one_object(self, store: FragmentStore) -> None:
        """Not its siblings."""
        await put_bytes(store, "j/one", b"1")
        await put_bytes(store, "j/two", b"2")
        await store.remove("j/one")
        assert not await store.exists("j/one")
        assert [item.path for item in await listing(store, "j/")] == ["two"]

    async def test_remove_of_a_missing_object_is_refused(self, store: FragmentStore) -> None:
        """With the error that says so."""
        with pytest.raises(ObjectNotFound):
            await store.remove("a/missing")

    @pytest.mark.parametrize("path", ["../x", "/abs", "a/../../x", "a\0b"])
    async def test_paths_stay_below_the_prefix(self, store: FragmentStore, path: str) -> None:
        """No name leads out of the store."""
        with pytest.raises(StoreError):
            await put_bytes(store, path, b"x")

    async def test_names_of_any_valid_characters(self, store: FragmentStore) -> None:
        """Percent signs, equal signs and letters of all scripts."""
        path = "a+b_c-d.e=%/日本語/key=va%20lue/f"
        await put_bytes(store, path, b"x")
        assert await read_all(store, path) == b"x"
        assert [item.path for item in await listing(store, "a+b_c-d.e=%/")] == [
            "日本語/key=va%20lue/f"
        ]
        assert (await store.sign_get(path, 60.0)).isascii()

    async def test_health_check_and_delete_probe_pass(self, store: FragmentStore) -> None:
        """The store is fit for brokers."""
        await health_check(store)
        await delete_probe(store)
        assert await store.exists(".test/health-check")
        assert not await store.exists(".gazette-delete-probe")

    async def test_the_clock_probe_returns_its_time_and_leaves_nothing(
        self, store: FragmentStore
    ) -> None:
        """A store that the tests start has the clock of this machine."""
        before = SystemClock.unix_s()
        written_at = await clock_probe(store)
        assert before - 2 <= written_at <= SystemClock.unix_s() + 2
        assert [item.path async for item in store.list(".test/") if "clock" in item.path] == []
