"""Stores that answer 200 with something else: a listing of nothing would forget what they hold."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import odd_listings
import pytest
from aiohttp import web
from odd_listings import ERROR, HTML, ODD, TIME, odd_of_s3

from gazette_platform.errors import StoreError, StoreUnavailable
from gazette_platform.stores import open_store
from gazette_platform.testing.store_conformance import listing

BUCKET = "buck"
TOKENS = ("continuation-token", "marker", "pageToken")
BIG = 9 << 20  # bytes that are stored in parts


s3_listing = partial(odd_listings.s3_listing, name=BUCKET, prefix="j/")


def azure_listing(*keys, marker="", prefix="j/", container=BUCKET):
    blobs = "".join(
        f"<Blob><Name>{key}</Name><Properties><Last-Modified>Mon, 01 Jan 2024 00:00:00 GMT"
        "</Last-Modified><Content-Length>1</Content-Length></Properties></Blob>"
        for key in keys
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?>'
        f'<EnumerationResults ServiceEndpoint="http://h/" ContainerName="{container}">'
        f"<Prefix>{prefix}</Prefix><Blobs>{blobs}</Blobs><NextMarker>{marker}</NextMarker>"
        "</EnumerationResults>"
    )


def gs_listing(*keys, more=""):
    items = ",".join(f'{{"name":"{key}","size":"1","updated":"{TIME}"}}' for key in keys)
    return f'{{"kind":"storage#objects"{more},"items":[{items}]}}'


class Scheme(NamedTuple):
    """How a kind of store lists."""

    listing: str
    """An answer with one key, ``j/a``."""
    empty: str
    odd: dict[str, str]
    """Answers that are not listings, or contradict themselves."""


SHARED = ODD | {"half": s3_listing("j/a")[:-20]}
SCHEMES = {
    "s3": Scheme(
        s3_listing("j/a", more="<KeyCount>1</KeyCount><IsTruncated>false</IsTruncated>"),
        s3_listing(more="<KeyCount>0</KeyCount><IsTruncated>false</IsTruncated>"),
        odd_of_s3(BUCKET, "j/")
        | {
            "the same token for ever": s3_listing(
                more="<IsTruncated>true</IsTruncated>"
                "<NextContinuationToken>t</NextContinuationToken>"
            ),
            "other listing": azure_listing(),
        },
    ),
    "azure": Scheme(
        azure_listing("j/a"),
        azure_listing(),
        SHARED
        | {
            "the same marker for ever": azure_listing(marker="m"),
            "of another container": azure_listing(container="other"),
            "of another prefix": azure_listing(prefix="k/"),
            "keys of another prefix": azure_listing("k/a"),
            "no marker": azure_listing().replace("<NextMarker></NextMarker>", ""),
            "other listing": s3_listing(),
        },
    ),
    "gs": Scheme(
        gs_listing("j/a"),
        '{"kind":"storage#objects"}',
        SHARED
        | {
            "no kind": "{}",
            "the same token for ever": gs_listing(more=',"nextPageToken":"t"'),
            "keys of another prefix": gs_listing("k/a"),
            "no size": '{"kind":"storage#objects","items":[{"name":"j/a"}]}',
            "items of another kind": '{"kind":"storage#objects","items":{}}',
        },
    ),
}


class Server:
    """Answers 200 to everything; what, the test says by method."""

    def __init__(self):
        self.bodies = {}
        self.pages = {}  # of a listing, by the token that asks for them
        self.length = 1
        self.missing = set()  # keys that are not there
        self.asked = []

    async def handle(self, request):
        await request.read()
        self.asked.append(request.method)
        is_list = {"list-type", "comp"} & set(request.query) or request.path.endswith("/o")
        if request.method == "GET" and is_list:
            tokens = (request.query.get(name, "") for name in TOKENS)
            body = self.pages.get("".join(tokens), self.bodies.get("LIST"))
            return web.Response(text=body, content_type="text/plain")
        if request.method == "HEAD":
            if request.path.removeprefix(f"/{BUCKET}/") in self.missing:
                return web.Response(status=404)
            headers = {
                "Content-Length": str(self.length),
                "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT",
                "ETag": '"x"',
            }
            return web.Response(headers=headers)
        if "uploads" in request.query:
            return web.Response(
                text="<InitiateMultipartUploadResult><UploadId>u</UploadId>"
                "</InitiateMultipartUploadResult>"
            )
        if "uploadId" in request.query and request.method == "PUT":
            return web.Response(headers={"ETag": '"p"'})
        return web.Response(text=self.bodies.get(request.method, HTML), content_type="text/html")


@pytest.fixture
async def server():
    server = Server()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{rest:.*}", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


@pytest.fixture
def store_of(server, monkeypatch):
    address = f"http://127.0.0.1:{server.port}"
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AZURE_ACCOUNT_NAME": "account",
        "AZURE_ACCOUNT_KEY": "a2V5",
        "GAZETTE_AZURE_ENDPOINT": address,
        "STORAGE_EMULATOR_HOST": address,
    }.items():
        monkeypatch.setenv(name, value)
    args = {"s3": f"?endpoint={address}&region=us-east-1"}

    def store_of(scheme):
        return open_store(f"{scheme}://{BUCKET}/{args.get(scheme, '')}", file_root=None)

    return store_of


@contextmanager
def file_of(tmp_path, length):
    (tmp_path / "content").write_bytes(bytes(length))
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_listing_gives_its_objects(server, store_of, scheme):
    server.bodies["LIST"] = SCHEMES[scheme].listing
    [item] = await listing(store_of(scheme), "j/")
    assert (item.path, item.mod_time, item.size) == ("a", 1704067200, 1)
    server.bodies["LIST"] = SCHEMES[scheme].empty
    assert await listing(store_of(scheme), "j/") == []


@pytest.mark.parametrize(
    ("scheme", "first", "second"),
    [
        (
            "s3",
            s3_listing(
                "j/a",
                more="<IsTruncated>true</IsTruncated>"
                "<NextContinuationToken>t/+&amp;=</NextContinuationToken>",
            ),
            s3_listing("j/b"),
        ),
        ("azure", azure_listing("j/a", marker="t/+&amp;="), azure_listing("j/b")),
        ("gs", gs_listing("j/a", more=',"nextPageToken":"t/+&="'), gs_listing("j/b")),
    ],
)
async def test_a_listing_goes_on_from_page_to_page(server, store_of, scheme, first, second):
    server.pages = {"": first, "t/+&=": second}
    assert [item.path for item in await listing(store_of(scheme), "j/")] == ["a", "b"]


@pytest.mark.parametrize(
    ("scheme", "odd"), [(name, odd) for name, scheme in SCHEMES.items() for odd in scheme.odd]
)
async def test_odd_answer_is_not_a_listing(server, store_of, scheme, odd):
    server.bodies["LIST"] = SCHEMES[scheme].odd[odd]
    with pytest.raises(StoreUnavailable, match=rf"LIST j/ of {scheme}://{BUCKET}/\S*: "):
        await listing(store_of(scheme), "j/")


@pytest.mark.parametrize("answer", [ERROR, HTML, ""])
async def test_a_copy_that_did_not_happen_fails(server, store_of, answer):
    server.bodies["PUT"], server.missing = answer, {"j/b"}
    with pytest.raises(StoreError, match="COPY"):
        await store_of("s3").copy("j/a", "j/b")


@pytest.mark.parametrize("answer", [ERROR, HTML, ""])
async def test_parts_that_are_not_put_together_are_not_stored(server, store_of, answer, tmp_path):
    server.bodies["POST"] = answer
    with file_of(tmp_path, BIG) as fd, pytest.raises(StoreError, match="PUT"):
        await store_of("s3").put("j/a", fd, BIG)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_small_put_that_a_page_answers_is_not_stored(server, store_of, scheme, tmp_path):
    with file_of(tmp_path, 1) as fd, pytest.raises(StoreError, match="PUT"):
        await store_of(scheme).put("j/a", fd, 1)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_delete_that_a_page_answers_did_not_happen(server, store_of, scheme):
    with pytest.raises(StoreError, match="DELETE"):
        await store_of(scheme).remove("j/a")


@pytest.mark.parametrize("scheme", ["s3", "azure"])
async def test_an_object_that_no_listing_has_does_not_exist(server, store_of, scheme):
    # Such as a page that something in front of the store has for every name.
    server.bodies["LIST"] = SCHEMES[scheme].empty.replace("j/", "j/a")
    with pytest.raises(StoreUnavailable, match="HEAD j/a of"):
        await store_of(scheme).exists("j/a")
    server.bodies["LIST"] = SCHEMES[scheme].listing.replace("<Prefix>j/", "<Prefix>j/a")
    assert await store_of(scheme).exists("j/a")
    server.missing = {"j/a"}
    assert not await store_of(scheme).exists("j/a")


@pytest.mark.parametrize("body", ['{"error": {"code": 500}}', HTML, ""])
async def test_odd_answer_about_an_object_is_not_an_object(server, store_of, body):
    server.bodies["GET"] = body
    with pytest.raises(StoreUnavailable, match="HEAD j/a of gs:"):
        await store_of("gs").exists("j/a")
