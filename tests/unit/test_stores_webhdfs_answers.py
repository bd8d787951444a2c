"""The hdfs store, where what answers is not a NameNode, or means harm."""

from __future__ import annotations

import json
import socket

import pytest
from aiohttp import web

from gazette_platform.errors import StoreUnavailable
from gazette_platform.stores import open_store
from gazette_platform.stores.interface import HEALTH_CHECK_PATH, health_check, put_bytes
from gazette_platform.testing.store_conformance import listing, read_all

TOKEN = "a-secret-of-this-broker"


@pytest.fixture
async def served():
    """Serves what `answers` has for an operation, and a file that exists."""
    answers = {}

    async def handle(request):
        operation = request.query.get("op", "")
        if operation in answers:
            status, body, headers = answers[operation]
            return web.Response(status=status, body=body, headers=headers)
        if operation == "GETFILESTATUS":
            return web.json_response({"FileStatus": {"type": "FILE", "length": 1}})
        if operation in ("CREATE", "OPEN"):
            return web.Response(
                status=307, headers={"Location": str(request.url.with_path("/data"))}
            )
        return web.Response()

    async def data(_):
        return web.Response(status=201, body=b"x")

    app = web.Application()
    app.router.add_route("*", "/webhdfs/{rest:.*}", handle)
    app.router.add_route("*", "/data", data)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    answers["store"] = open_store(f"hdfs://nn/?webhdfs=http://127.0.0.1:{port}", file_root=None)
    yield answers
    await runner.cleanup()


@pytest.fixture
def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


LOGIN = (302, b"", {"Location": "https://login.example/"})
PAGE = (200, b"<html>please log in</html>", {})
WRONG = (200, b'{"RemoteException":1}', {})
DEEP = (200, b"[" * 100_000, {})
ODD = (200, json.dumps({"DirectoryListing": {"partialListing": []}}).encode(), {})
ENDLESS = (200, b'{"a":"' + b"x" * (9 << 20) + b'"}', {})


@pytest.mark.parametrize("answer", [LOGIN, PAGE, WRONG, DEEP, ENDLESS])
async def test_a_put_whose_rename_something_else_answered_is_not_stored(served, answer):
    await put_bytes(served["store"], "j/f", b"x")
    served["RENAME"] = answer
    with pytest.raises(StoreUnavailable, match="no answer of WebHDFS"):
        await put_bytes(served["store"], "j/f", b"x")


@pytest.mark.parametrize("answer", [LOGIN, PAGE, WRONG, DEEP, ODD, ENDLESS])
async def test_a_listing_that_something_else_answered_is_not_an_empty_one(served, answer):
    served["LISTSTATUS_BATCH"] = answer
    with pytest.raises(StoreUnavailable, match="no answer of WebHDFS"):
        await listing(served["store"], "j/")


@pytest.mark.parametrize("names", [[], ["a"]])
async def test_a_listing_that_lacks_promised_entries_is_refused(served, names):
    files = [
        {"pathSuffix": name, "type": "FILE", "length": 1, "modificationTime": 0} for name in names
    ]
    answer = {"partialListing": {"FileStatuses": {"FileStatus": files}}, "remainingEntries": 3}
    served["LISTSTATUS_BATCH"] = 200, json.dumps({"DirectoryListing": answer}).encode(), {}
    with pytest.raises(StoreUnavailable, match="3 entries follow"):
        await listing(served["store"], "j/")


@pytest.mark.parametrize("answer", [LOGIN, PAGE, WRONG, DEEP, ODD, ENDLESS])
async def test_a_length_that_something_else_answered_is_none(served, answer):
    served["GETFILESTATUS"] = answer
    for call in (served["store"].exists("j/f"), read_all(served["store"], "j/f")):
        with pytest.raises(StoreUnavailable, match="no answer of WebHDFS"):
            await call


@pytest.mark.parametrize("body", [b'{"RemoteException":[]}', b"[" * 60_000, b"x" * (1 << 20)])
async def test_an_error_of_any_form_is_one_of_the_store(served, body):
    served["LISTSTATUS_BATCH"] = (503, body, {})
    with pytest.raises(StoreUnavailable, match="HTTP 503"):
        await listing(served["store"], "j/")


async def test_the_delegation_token_is_in_no_error(served, free_port):
    away = f"http://127.0.0.1:{free_port}/webhdfs/v1/j/f?op=OPEN&delegation={TOKEN}&offset=0"
    served["OPEN"] = served["CREATE"] = (307, b"", {"Location": away})
    for call in (read_all(served["store"], "j/f"), put_bytes(served["store"], "j/f", b"x")):
        with pytest.raises(StoreUnavailable) as caught:
            await call
        assert str(free_port) in str(caught.value)
        assert TOKEN not in str(caught.value)


class EndlessStore:
    """Takes and lists all, and gives content without end."""

    def __init__(self):
        self.given = 0

    async def put(self, path, fd, length):
        pass

    async def get(self, path):
        assert path == HEALTH_CHECK_PATH
        while self.given < 1 << 30:
            self.given += 1 << 16
            yield bytes(1 << 16)


async def test_a_health_check_takes_no_more_than_it_compares():
    store = EndlessStore()
    with pytest.raises(Exception, match="content mismatch"):
        await health_check(store)
    assert store.given <= 1 << 17
