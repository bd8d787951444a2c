"""Reads of a store alone while what it holds changes: nothing is passed over that may yet be stored."""

import asyncio

import pytest

from gazette_platform.client import read_store
from gazette_platform.errors import OffsetJump
from gazette_platform.ops.clock import SystemClock
from gazette_platform.testing.local import store_fragment

JOURNAL = "a/journal"
# Of age for what is behind the pruned beginning of a journal, and not for what is behind a hole.
HOUR_S = 3600


@pytest.fixture
def put(tmp_path):
    def put(begin, content, *, age_s=HOUR_S):
        at = SystemClock().unix_s() - age_s
        return (
            tmp_path / store_fragment(tmp_path, JOURNAL, begin, content, stored_at=at).content_path
        )

    return put


@pytest.fixture
def read(tmp_path):
    def read(offset=0, **options):
        return read_store("file:///", JOURNAL, offset, file_root=tmp_path, **options)

    return read


async def whole(reader):
    async with asyncio.timeout(60), reader:
        return await reader.read()


@pytest.mark.parametrize("on_jump", ["raise", "continue"])
async def test_young_hole_after_stored_content_is_not_passed_over(put, read, on_jump):
    """Also where the read begins at it, so that nothing in front of it was read."""
    put(0, b"one")
    put(6, b"three")
    assert await whole(read(3, on_jump=on_jump)) == b""
    put(3, b"two")
    assert await whole(read(3, on_jump=on_jump)) == b"twothree"


async def test_a_hole_is_none_of_the_beginning_when_what_was_read_is_pruned_meanwhile(put, read):
    first = put(0, b"one")
    put(6, b"three")
    async with asyncio.timeout(60), read(block=True, on_jump="continue") as reader:
        assert await anext(reader) == b"one"
        first.unlink()
        listed, original = asyncio.Event(), reader._list

        async def list_():
            plan = await original()
            listed.set()
            return plan

        reader._list = list_
        waiting = asyncio.get_running_loop().create_task(anext(reader))
        await listed.wait()
        await asyncio.wait({waiting}, timeout=0.2)
        assert not waiting.done(), "it went over what may be about to be stored"
        put(3, b"two")
        assert await waiting == b"two"
        assert await anext(reader) == b"three"


async def test_the_beginning_is_pruned_in_time_and_old_holes_are_gone_for_good(put, read):
    put(3, b"two")
    put(9, b"four", age_s=7 * HOUR_S)
    assert await whole(read(on_jump="continue")) == b"twofour"
    async with read() as reader:
        for jump in ((0, 3), (6, 9)):
            with pytest.raises(OffsetJump) as told:
                await reader.read()
            assert (told.value.from_offset, told.value.to_offset) == jump
        assert await reader.read() == b"four"


async def test_a_fragment_that_became_part_of_another_since_it_was_listed_is_read_there(put, read):
    put(0, b"one")
    parts = [put(3, b"two"), put(6, b"three")]
    reader = read()
    original = reader._list
    plans = []

    async def list_():
        plan = await original()
        plans.append(plan)
        if len(plans) == 1:
            for path in parts:
                path.unlink()
            put(3, b"twothree")
        return plan

    reader._list = list_
    assert await whole(reader) == b"onetwothree"
    assert len(plans) > 1
