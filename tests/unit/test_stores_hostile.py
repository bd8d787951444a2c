"""Stores whose URLs, paths and folders mean harm: an error of the store, and of nothing else."""

from __future__ import annotations

import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gazette_platform.errors import StoreError, ValidationError
from gazette_platform.protocol import StoreUrl, parse_store_url
from gazette_platform.stores import delete_probe, health_check
from gazette_platform.stores.fs import FileStore
from gazette_platform.stores.interface import put_bytes
from gazette_platform.testing.store_conformance import listing, read_all

NUL, SURROGATE, NEWLINE, LONG = "x\0y", "x\ud800y", "x\ny", "x" * 300


@pytest.fixture
def executor():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def unchecked(path, **args):
    """A URL as a key space may hold it without validation."""
    return StoreUrl(scheme="file", host="", path=path, args=args, text="file:///hostile/")


def store_at(tmp_path, executor, path="/", **args):
    return FileStore(unchecked(path, **args), file_root=tmp_path, executor=executor)


CALLS = {
    "exists": lambda store, path: store.exists(path),
    "get": read_all,
    "put": lambda store, path: put_bytes(store, path, b"x"),
    "list": lambda store, path: listing(store, path + "/"),
    "remove": lambda store, path: store.remove(path),
    "delete_probe": lambda store, path: delete_probe(store, prefix=path + "/"),
}


# ------------------------------------------------------------------------- paths that the OS refuses
@pytest.mark.parametrize("part", [NUL, SURROGATE, LONG, "/".join(["d" * 250] * 20)])
@pytest.mark.parametrize("call", CALLS)
async def test_a_path_that_no_system_takes_is_an_error_of_the_store(tmp_path, executor, part, call):
    for store, path in (
        (store_at(tmp_path, executor, f"/{part}/"), "j/f"),
        (store_at(tmp_path, executor), f"j/{part}"),
        (store_at(tmp_path, executor, find="j", replace=part), "j/f"),
    ):
        try:
            result = await CALLS[call](store, path)
        except StoreError:
            continue
        assert result in (False, [])  # what cannot be there is not there


@pytest.mark.parametrize("part", [NUL, SURROGATE, LONG])
async def test_a_health_check_of_such_a_store_fails_in_order(tmp_path, executor, part):
    with pytest.raises(StoreError):
        await health_check(store_at(tmp_path, executor, f"/{part}/"))


@pytest.mark.parametrize("part", [NUL, SURROGATE])
async def test_what_cannot_be_in_a_url_is_not_signed(tmp_path, executor, part):
    with pytest.raises(StoreError):
        await store_at(tmp_path, executor, f"/{part}/").sign_get("j/f", 1)


@pytest.mark.parametrize("part", [NUL, SURROGATE, NEWLINE, "\x7f", "\x85", " "])
def test_urls_with_control_characters_are_refused(part):
    encoded = "".join(f"%{byte:02x}" for byte in part.encode("utf-8", "surrogatepass"))
    urls = [f"file:///{part}/", f"file:///?find={part}", f"s3://bucket{part}/"]
    if part not in (SURROGATE, " "):  # which is not UTF-8, and so replaced; which is a fine name
        urls += [f"file:///{encoded}/", f"file:///?find=a&replace={encoded}"]
    for url in urls:
        with pytest.raises(ValidationError):
            parse_store_url(url)


def test_urls_that_no_parser_likes_are_refused():
    for url in (
        "file://[::1/",
        "file:///" + "x" * 5000 + "/",
        "file:///?" + "a=b&" * 5000,
        "s3://[/",
    ):
        with pytest.raises(ValidationError) as caught:
            parse_store_url(url)
        assert len(str(caught.value)) < 1000, "an error is sent in the trailer of a call"


# ------------------------------------------------------------------------------------ deep listings
@pytest.fixture
def deep_path():
    # Not where pytest clears up, which recurses, too: once such a run was killed, every later one failed.
    folder = Path(tempfile.mkdtemp(prefix="gazette-deep-"))
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


async def test_folders_1000_deep_do_not_end_a_listing(deep_path, executor):
    store = store_at(deep_path, executor)
    await put_bytes(store, "j/a/f", b"x")
    await put_bytes(store, "j/z", b"x")
    await put_bytes(store, "j/m/" + "d/" * 1500 + "f", b"x")
    # Below a journal nothing lies deeper than the longest postfix is long.
    assert [item.path for item in await listing(store, "j/")] == ["a/f", "z"]
    assert [item.path for item in await listing(store, "")] == ["j/a/f", "j/z"]


async def test_folders_as_deep_as_the_longest_postfix_are_listed(deep_path, executor):
    store = store_at(deep_path, executor)
    postfix = "d/" * 256
    await put_bytes(store, f"j/{postfix}f", b"x")
    assert [item.path for item in await listing(store, "j/")] == [f"{postfix}f"]
