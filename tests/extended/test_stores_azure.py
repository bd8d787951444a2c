"""`azure://` stores at azurite, the emulator that Microsoft develops, and a broker that persists to one."""

from __future__ import annotations

import base64
import os
import uuid

import pytest
from object_servers import azure_server, need_npm
from object_stores import fetch, opened
from stored_journal import persist_and_restart

from gazette_platform.errors import AccessDenied, StoreUnavailable
from gazette_platform.stores import health_check
from gazette_platform.stores.interface import put_bytes
from gazette_platform.testing.store_conformance import StoreConformance, listing, read_all

# The first test may install the server.
pytestmark = [pytest.mark.azure, pytest.mark.timeout(900)]

PART_BYTES = 8 << 20


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    need_npm("GAZETTE_AZURITE")
    with azure_server(tmp_path_factory.mktemp("azure")) as running:
        yield running


@pytest.fixture(autouse=True)
def account(server, monkeypatch):
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_ACCOUNT_NAME", server.account)
    monkeypatch.setenv("AZURE_ACCOUNT_KEY", server.key)
    monkeypatch.setenv("GAZETTE_AZURE_ENDPOINT", server.endpoint)


@pytest.fixture
def container(server):
    name = f"c{uuid.uuid4().hex}"
    server.make_container(name)
    return name


class TestAzureConformance(StoreConformance):
    served_by = "azure://, of azurite"

    @pytest.fixture
    def store(self, container):
        return opened(f"azure://{container}/")


class TestPrefixedAzureConformance(StoreConformance):
    served_by = "azure://, of azurite"

    @pytest.fixture
    def store(self, container):
        return opened(f"azure://{container}/some/prefix=1/")


async def test_so7_keys_are_prefix_and_rewritten_path(container):
    store = opened(f"azure://{container}/p/?find=foo&Replace=bar")
    await put_bytes(store, "foo/foo/f", b"x")
    assert [item.path for item in await listing(store, "foo/")] == ["foo/f"]
    assert await read_all(opened(f"azure://{container}/"), "p/bar/foo/f") == b"x"


async def test_content_of_several_parts(container):
    content, store = os.urandom(3 * PART_BYTES + 5), opened(f"azure://{container}/")
    await put_bytes(store, "j/large", content)
    assert await read_all(store, "j/large") == content


@pytest.mark.parametrize("path", ["j/f", "j/date=2026-01-02/hour=05/f", "j/a+b=1%20 (ü)/日本語"])
async def test_a_signed_url_needs_no_credentials(container, path):
    store = opened(f"azure://{container}/p/")
    await put_bytes(store, path, b"content")
    url = await store.sign_get(path, 300)
    response, body = await fetch(url)
    assert (response.status, body) == (200, b"content")
    for refused in (url.partition("?")[0], url.replace("sig=", "sig=x")):
        response, body = await fetch(refused)
        assert response.status in (403, 404)
        assert body != b"content"


async def test_key_that_is_not_a_path_fails_the_listing_by_name(server, container):
    """Left out, it would hide that others write to the folders of journals."""
    store = opened(f"azure://{container}/")
    await put_bytes(store, "j/f", b"x")
    server.put_blob(container, "j//g", b"x")
    with pytest.raises(StoreUnavailable, match="j//g"):
        await listing(store, "j/")


async def test_so8_a_container_that_is_missing_refuses_for_good():
    store = opened("azure://no-such-container/")
    for operation in (put_bytes(store, "j/f", b"x"), read_all(store, "j/f"), listing(store, "j/")):
        with pytest.raises(AccessDenied, match="ContainerNotFound"):
            await operation
    with pytest.raises(AccessDenied, match="health check PUT failed"):
        await health_check(store)


async def test_so8_a_wrong_key_is_refused(container, monkeypatch):
    """Azure says so by a 403."""
    monkeypatch.setenv("AZURE_ACCOUNT_KEY", base64.b64encode(b"wrong").decode())
    store = opened(f"azure://{container}/")
    with pytest.raises(AccessDenied, match="AuthorizationFailure"):
        await put_bytes(store, "j/f", b"x")


async def test_no_account(container, monkeypatch):
    monkeypatch.delenv("AZURE_ACCOUNT_KEY")
    store = opened(f"azure://{container}/")
    with pytest.raises(StoreUnavailable, match="set AZURE_ACCOUNT_NAME and AZURE_ACCOUNT_KEY"):
        await put_bytes(store, "j/f", b"x")
    with pytest.raises(StoreUnavailable, match="set AZURE_ACCOUNT_NAME and AZURE_ACCOUNT_KEY"):
        await store.sign_get("j/f", 60)


@pytest.mark.etcd
async def test_a_journal_persists_and_is_read_back_after_a_restart(cluster, container):
    content, bodies = await persist_and_restart(cluster, f"azure://{container}/p/", fetch)
    assert b"".join(bodies) == content
