"""How a channel gets its connection: through proxies, and to names with several addresses."""

from __future__ import annotations

import asyncio
import base64
import socket

import pytest
from connect_proxy import ConnectProxy
from h2_server_bench import SERVICE, Bench

from gazette_platform.serving.auth import TlsMaterial, http2_client_context
from gazette_platform.serving.h2.channel import Channel, Dialing
from gazette_platform.serving.h2.frames import PEER_LIMITS
from gazette_platform.serving.interface import Code, Kind, RpcFailed
from gazette_platform.serving.sockets import Proxy
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.waiting import patient

FAR = "broker.test:8080"


@pytest.fixture
async def ours():
    async with Bench() as bench, asyncio.timeout(patient(20)):
        yield bench


async def ask(target, tls=None, **settings):
    """Make a call over a channel of its own."""
    dialing = Dialing(limits=PEER_LIMITS, message_bytes_max=1 << 20, **settings)
    channel = Channel(target, dialing, tls)
    try:
        return await channel.call(f"/{SERVICE}/Unary", Kind.UNARY, request=b"abc").answer()
    finally:
        await channel.close()


async def failure(target, **settings):
    with pytest.raises(RpcFailed) as caught:
        await ask(target, **settings)
    assert caught.value.code is Code.UNAVAILABLE
    return caught.value.text


def proxy(through, authorization=""):
    return Proxy("127.0.0.1", through.port, "http_proxy", authorization)


# --------------------------------------------------------------------------------------- proxies
@pytest.mark.parametrize("speaks_first", [False, True])
async def test_call_goes_through_a_proxy(ours, speaks_first):
    """Which may pass on what the server says first together with its own answer."""
    async with ConnectProxy(port=ours.server.port, speaks_first=speaks_first) as through:
        assert await ask(FAR, proxy=proxy(through)) == b"abc"
        assert through.asked == [f"CONNECT {FAR} HTTP/1.1"]


async def test_proxy_gets_its_credentials(ours):
    secret = base64.b64encode(b"me:secret").decode()
    async with ConnectProxy(port=ours.server.port, secret=secret) as through:
        assert await ask(FAR, proxy=proxy(through, f"Basic {secret}")) == b"abc"
        text = await failure(FAR, proxy=proxy(through))
        assert "it refused, with response code 407" in text


async def test_tls_is_spoken_with_the_server_behind_a_proxy(tmp_path):
    authority = CertificateAuthority(tmp_path)
    issued = authority.issue("server", ("broker.test",))
    material = TlsMaterial(issued.cert.read_bytes(), issued.key.read_bytes())
    trusting = http2_client_context(TlsMaterial(ca=authority.ca.read_bytes()))
    async with Bench(tls=material) as bench, ConnectProxy(port=bench.server.port) as through:
        assert await ask(FAR, trusting, proxy=proxy(through)) == b"abc"


async def test_proxy_that_refuses_is_named():
    async with ConnectProxy(answer="403 Forbidden") as through:
        assert await failure(FAR, proxy=proxy(through)) == (
            f"{FAR}: Failed to connect to remote host: it refused, with response code 403 "
            f"(through the HTTP proxy {through.address} of http_proxy)"
        )


async def test_proxy_that_hangs_is_given_up():
    async with ConnectProxy(answer=None) as through:
        text = await failure(FAR, proxy=proxy(through), connect_s=0.2)
        assert f"it took too long (through the HTTP proxy {through.address}" in text


async def test_proxy_that_speaks_no_http_is_given_up(ours):
    text = await failure(FAR, proxy=Proxy("127.0.0.1", ours.server.port, "grpc_proxy"))
    assert "(through the HTTP proxy" in text


# --------------------------------------------------------------------------------------- addresses
def resolve(monkeypatch, *found):
    """Let all names have these addresses."""

    async def getaddrinfo(*args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_next_address_is_tried_if_one_refuses(ours, monkeypatch):
    resolve(monkeypatch, ("127.0.0.1", 1), ("127.0.0.1", ours.server.port))
    assert await ask(FAR) == b"abc"


async def test_next_address_is_tried_if_one_is_silent(ours, monkeypatch):
    with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for client in (first, second):  # more than wait to be accepted
            client.setblocking(False)
            client.connect_ex(silent.getsockname())
        resolve(monkeypatch, silent.getsockname(), ("127.0.0.1", ours.server.port))
        assert await ask(FAR) == b"abc"


async def test_all_addresses_refuse(monkeypatch):
    resolve(monkeypatch, ("127.0.0.1", 1), ("127.0.0.2", 1))
    assert await failure(FAR) == f"{FAR}: Failed to connect to remote host: Connection refused"


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 70])
async def test_name_that_is_not_resolved_is_reported(name):
    text = await failure(f"{name}:80")
    assert f"Failed to connect to remote host: name resolution failed for {name}: " in text
