"""The s3 store, where what answers a listing is no S3, or one that tells half of it."""

from __future__ import annotations

import pytest
from aiohttp import web

from gazette_platform.errors import StoreUnavailable
from gazette_platform.stores import open_store
from gazette_platform.testing.stores import listing

PAGE = 1000


class Server:
    """Keys of a bucket, of which a listing shows the first page."""

    def __init__(self):
        self.keys = 0
        self.page = None  # what it answers to everything
        self.knows_start = True

    async def handle(self, request):
        if self.page is not None:
            return web.Response(text=self.page, content_type="text/html")
        if request.method == "HEAD":
            return web.Response(status=404)
        first = 0
        if self.knows_start and (after := request.query.get("start-after")):
            first = int(after[2:]) + 1
        contents = "".join(
            f"<Contents><Key>j/{n:05}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"x"</ETag><Size>1</Size></Contents>'
            for n in range(first, min(self.keys, first + PAGE))
        )
        return web.Response(
            text=f"<ListBucketResult><Name>b</Name>{contents}</ListBucketResult>",
            content_type="application/xml",
        )


@pytest.fixture
async def server():
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


@pytest.fixture
def store(server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    url = f"s3://b/?endpoint=http://127.0.0.1:{server.port}&region=us-east-1"
    return open_store(url, file_root=None)


@pytest.mark.parametrize("keys", [0, 1, PAGE - 1, PAGE])
@pytest.mark.parametrize("knows_start", [True, False])
async def test_what_a_bucket_has_is_listed(server, store, keys, knows_start):
    server.keys, server.knows_start = keys, knows_start
    if keys == PAGE and not knows_start:
        return  # cannot be told from one that has more
    assert len(await listing(store, "j/")) == keys


@pytest.mark.parametrize("knows_start", [True, False])
async def test_a_listing_that_is_cut_is_no_whole_one(server, store, knows_start):
    server.keys, server.knows_start = PAGE + 5, knows_start
    with pytest.raises(StoreUnavailable, match="cuts the listing"):
        await listing(store, "j/")


async def test_a_page_of_something_else_is_no_empty_bucket(server, store):
    server.page = "<html><body>log in</body></html>"
    with pytest.raises(StoreUnavailable, match="object of any name"):
        await listing(store, "j/")
