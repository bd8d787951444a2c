"""Reads of a store alone while its journal is deleted with its files and made again."""

import asyncio

import pytest

from gazette_platform.client import read_store
from gazette_platform.errors import JournalReplaced, ValidationError
from gazette_platform.testing.local import store_fragment

JOURNAL = "a/journal"


@pytest.fixture
def put(tmp_path):
    return lambda begin, content: (
        tmp_path / store_fragment(tmp_path, JOURNAL, begin, content).content_path
    )


@pytest.fixture
def read(tmp_path):
    def read(offset=0, **options):
        return read_store("file:///", JOURNAL, offset, file_root=tmp_path, **options)

    return read


async def refused(reader):
    async with asyncio.timeout(60):
        for _ in range(2):  # it does not heal
            with pytest.raises(
                JournalReplaced, match=f"{JOURNAL} was deleted and made again: offset 6 "
            ):
                await anext(reader)


@pytest.mark.parametrize("content", [b"new", b"newer bytes"])
async def test_follower_refuses_a_journal_that_was_made_again(put, read, content):
    former = put(0, b"former")
    async with read(block=True) as reader:
        assert await anext(reader) == b"former"
        former.unlink()
        put(0, content)
        await refused(reader)


@pytest.mark.parametrize("content", [b"new", b"newer bytes"])
async def test_reader_that_goes_on_elsewhere_refuses_a_journal_that_was_made_again(
    put, read, content
):
    former = put(0, b"former")
    async with read() as reader:
        assert await reader.read() == b"former"
        kept = reader.fragment.content_path
    former.unlink()
    put(0, content)
    for block in (True, False):
        async with read(6, after=kept, block=block) as reader:
            await refused(reader)


async def test_reader_goes_on_in_the_same_journal_however_it_is_stored(put, read):
    """Another broker may have stored the same bytes in other fragments, and a prune takes what was read."""
    former = put(0, b"former")
    async with read() as reader:
        await reader.read()
        kept = reader.fragment.content_path
    put(6, b"-later")
    async with read(6, after=kept) as reader:
        assert await reader.read() == b"-later"
    former.unlink()
    async with read(6, after=kept) as reader:
        assert await reader.read() == b"-later"
    put(0, b"form")
    put(4, b"er-la")
    async with read(6, after=kept) as reader:
        assert await reader.read() == b"-later"


async def test_a_fragment_that_does_not_hold_what_is_before_is_a_mistake(put, read):
    kept = put(0, b"former")
    with pytest.raises(ValidationError, match=r"after: .*does not hold the byte before offset 7"):
        read(7, after=f"{JOURNAL}/{kept.name}")
    with pytest.raises(ValidationError, match="after: "):
        read(6, after="else/where")
