"""`azure-ad://` stores at azurite, over TLS and with tokens, and a broker that persists to one.

Blobs, tokens, user delegation keys and signatures are azurite's to check. The authority that gives the
tokens is the tests' own (`token_authority`): there is none to install.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import uuid

import aiohttp
import pytest
from object_servers import azure_server, need_npm
from object_stores import fetch, opened
from stored_journal import persist_and_restart
from token_authority import token_authority

from gazette_platform.errors import AccessDenied, StoreUnavailable
from gazette_platform.stores import health_check
from gazette_platform.stores.interface import put_bytes
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.store_conformance import StoreConformance, listing, read_all
from gazette_platform.testing.waiting import eventually

# The first test may install the server.
pytestmark = [pytest.mark.azure, pytest.mark.timeout(900)]

PART_BYTES = 8 << 20


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return CertificateAuthority(tmp_path_factory.mktemp("azure-ad-certificates"))


@pytest.fixture(scope="session")
def server(tmp_path_factory, certificates):
    need_npm("GAZETTE_AZURITE")
    with azure_server(tmp_path_factory.mktemp("azure-ad"), certificates) as running:
        yield running


@pytest.fixture
def authority(certificates):
    with token_authority(certificates) as running:
        yield running


@pytest.fixture(autouse=True)
def application(server, authority, monkeypatch):
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_CLIENT_ID", authority.client_id)
    monkeypatch.setenv("AZURE_CLIENT_SECRET", authority.secret)
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", authority.url)
    monkeypatch.setenv("GAZETTE_AZURE_ENDPOINT", server.endpoint)
    # obstore and Python's ssl look there; the packages of azure use requests.
    monkeypatch.setenv("SSL_CERT_FILE", server.ca)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", server.ca)
    # aiohttp, with which signed URLs are fetched, looked there when it was imported.
    context = ssl.create_default_context(cafile=server.ca)
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", context)


@pytest.fixture
def container(server):
    name = f"c{uuid.uuid4().hex}"
    server.make_container(name)
    return name


@pytest.fixture
def root(server, authority):
    """Of the URLs of stores."""
    return f"azure-ad://{authority.tenant}/{server.account}"


class TestAzureAdConformance(StoreConformance):
    served_by = "azure-ad://, of azurite"

    @pytest.fixture
    def store(self, root, container):
        return opened(f"{root}/{container}/")


class TestPrefixedAzureAdConformance(StoreConformance):
    served_by = "azure-ad://, of azurite"

    @pytest.fixture
    def store(self, root, container):
        return opened(f"{root}/{container}/some/prefix=1/")


async def test_so7_keys_are_prefix_and_rewritten_path(root, container):
    store = opened(f"{root}/{container}/p/?find=foo&Replace=bar")
    await put_bytes(store, "foo/foo/f", b"x")
    assert [item.path for item in await listing(store, "foo/")] == ["foo/f"]
    assert await read_all(opened(f"{root}/{container}/"), "p/bar/foo/f") == b"x"


async def test_content_of_several_parts(root, container):
    content, store = os.urandom(3 * PART_BYTES + 5), opened(f"{root}/{container}/")
    await put_bytes(store, "j/large", content)
    assert await read_all(store, "j/large") == content


@pytest.mark.parametrize("path", ["j/f", "j/date=2026-01-02/hour=05/f", "j/a+b=1%20 (ü)/日本語"])
async def test_a_signed_url_is_of_a_delegation_key(root, container, path):
    store = opened(f"{root}/{container}/p/")
    await put_bytes(store, path, b"content")
    url = await store.sign_get(path, 300)
    assert "skoid=" in url  # who the key was given to
    response, body = await fetch(url)
    assert (response.status, body) == (200, b"content")
    for refused in (url.partition("?")[0], url.replace("sig=", "sig=x")):
        response, body = await fetch(refused)
        assert response.status in (403, 404)
        assert body != b"content"


async def test_tokens_and_keys_are_asked_for_once(root, container, authority):
    store = opened(f"{root}/{container}/")
    await put_bytes(store, "j/f", b"x")
    await asyncio.gather(*(read_all(store, "j/f") for _ in range(20)))
    await asyncio.gather(*(store.sign_get("j/f", 60) for _ in range(20)))
    assert authority.given == 1
    authority.status = 400
    assert await read_all(store, "j/f") == b"x"
    assert await store.sign_get("j/f", 60)


async def test_a_token_is_renewed_in_time(root, container, authority):
    authority.life_s = 1
    store = opened(f"{root}/{container}/")
    await put_bytes(store, "j/f", b"x")
    given = authority.given

    async def is_renewed():
        assert await read_all(store, "j/f") == b"x"
        return authority.given > given

    await eventually(is_renewed)


async def test_a_token_that_ends_during_a_large_put_is_renewed(root, container, authority):
    authority.life_s = 0
    content, store = os.urandom(3 * PART_BYTES + 5), opened(f"{root}/{container}/")
    await put_bytes(store, "j/large", content)
    assert await read_all(store, "j/large") == content


async def test_so8_a_container_that_is_missing_refuses_for_good(root):
    store = opened(f"{root}/no-such-container/")
    for operation in (put_bytes(store, "j/f", b"x"), read_all(store, "j/f"), listing(store, "j/")):
        with pytest.raises(AccessDenied, match="ContainerNotFound"):
            await operation
    with pytest.raises(AccessDenied, match="health check PUT failed"):
        await health_check(store)


async def assert_unavailable(store, match):
    """Whoever we are is wrong, or not known: that is the same for every store."""
    for operation in (put_bytes(store, "j/f", b"x"), store.sign_get("j/f", 60)):
        with pytest.raises(StoreUnavailable, match=match) as caught:
            await operation
        assert "a secret" not in str(caught.value)


async def test_so8_a_wrong_secret_is_not_the_store_s(root, container, monkeypatch):
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "wrong")
    await assert_unavailable(opened(f"{root}/{container}/"), "AADSTS7000215.*check AZURE_CLIENT_ID")


async def test_an_authority_that_is_not_there(root, container, monkeypatch, authority):
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", "https://127.0.0.1:1")
    await assert_unavailable(opened(f"{root}/{container}/"), "no token from https://127.0.0.1:1")


async def test_a_token_that_the_account_does_not_take(root, container, authority):
    authority.audience = "https://elsewhere.example.com"
    await assert_unavailable(opened(f"{root}/{container}/"), "AuthenticationFailed")


async def test_an_environment_without_an_application(root, container, monkeypatch):
    monkeypatch.delenv("AZURE_CLIENT_SECRET")
    await assert_unavailable(
        opened(f"{root}/{container}/"), "set AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
    )


@pytest.mark.etcd
async def test_a_journal_persists_and_is_read_back_after_a_restart(cluster, root, container):
    content, bodies = await persist_and_restart(cluster, f"{root}/{container}/p/", fetch)
    assert b"".join(bodies) == content
