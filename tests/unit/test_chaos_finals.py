"""Each replica of a journal is asked by itself, wherever it is by then."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gazette_platform.protocol import ProcessId
from gazette_platform.protocol.pb import protocol_pb2 as pb
from tests.chaos import finals

CONTENT = b"content"


class Broker:
    """Answers reads of a journal that it has, or has not."""

    def __init__(self, content=None):
        self._content = content

    async def Read(self, request, timeout):  # noqa: ASYNC109, N802  as of gRPC
        if self._content is None:
            yield pb.ReadResponse(status=pb.NOT_JOURNAL_BROKER)
            return
        end = len(self._content)
        yield pb.ReadResponse(status=pb.OK, offset=request.offset, write_head=end)
        yield pb.ReadResponse(offset=request.offset, content=self._content[request.offset :])


BROKERS = {
    "has": Broker(CONTENT),
    "too": Broker(CONTENT),
    "other": Broker(b"another"),
    "no": Broker(),
}


class Client:
    """Returns routes, one after another, and the last one for ever."""

    def __init__(self, *routes):
        self._routes = list(routes)

    async def get(self, name):
        suffixes = self._routes.pop(0) if len(self._routes) > 1 else self._routes[0]
        members = tuple(ProcessId("zone", suffix) for suffix in suffixes)
        return SimpleNamespace(route=SimpleNamespace(members=members))


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(finals, "_REPLICAS_S", 0.05)


async def wrong(*routes):
    content = (0, CONTENT)
    return await finals._check_replicas(Client(*routes), BROKERS, "a/journal", content, 2)


async def test_replicas_that_have_all_are_right():
    assert await wrong(["has", "too"]) == []


@pytest.mark.parametrize(
    ("route", "text"),
    [
        (["has", "other"], "other, asked by itself: a/journal differs within [0, 7)"),
        (["has", "no"], "no, asked by itself: a/journal answers NOT_JOURNAL_BROKER"),
        (["has"], "a/journal has 1 replicas of 2 at the end"),
    ],
)
async def test_replica_that_lacks_something_is_wrong(route, text):
    assert await wrong(route) == [text]
    assert await wrong(route, ["has", "too"], route) == [text], "it may move and come back"


async def test_replica_that_moved_meanwhile_is_asked_where_it_is():
    assert await wrong(["has", "no"], ["has", "too"]) == []


async def test_replica_that_moves_on_and_on_is_given_up():
    routes = [["has", "no"], ["no", "too"]] * 5
    assert await wrong(*routes) == ["no, asked by itself: a/journal answers NOT_JOURNAL_BROKER"]
