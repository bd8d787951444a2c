"""The connection of a client: TLS, proxies, large messages, silent and restarted brokers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import grpc
import pytest
from connect_proxy import ConnectProxy
from grpc import aio
from h2_server_bench import Bench

from gazette_platform.client import AsyncClient, Client, ClientConfig
from gazette_platform.errors import CallFailed, SetupError, TransportError, ValidationError
from gazette_platform.serving.auth import TlsMaterial
from gazette_platform.serving.h2.frames import SETTINGS, frame
from gazette_platform.serving.interface import Condition
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.fault_proxy import FaultProxy
from gazette_platform.testing.waiting import eventually, patient
from tests.benches.fake_broker import FakeBroker

JOURNAL = "a/journal"


@pytest.fixture(autouse=True)
async def in_time():
    async with asyncio.timeout(patient(30)):
        yield


@pytest.fixture
async def broker():
    async with FakeBroker() as broker:
        broker.journal(JOURNAL, b"content")
        yield broker


@pytest.fixture
async def between(broker):
    """A network between a client and the broker."""
    async with FaultProxy("127.0.0.1", int(broker.address.rpartition(":")[2])) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def client_of(address, **config):
    given = {"address": address, "route_cache_size": 0, "retry_timeout_s": 0.0} | config
    async with AsyncClient(ClientConfig(**given)) as client:
        yield client


# -------------------------------------------------------------------------------------------- TLS
class GrpcServer:
    """The gRPC library's server, that speaks TLS and knows no call."""

    def __init__(self, tls):
        self.server = aio.server()
        credentials = grpc.ssl_server_credentials(
            [(tls.key, tls.cert)], tls.ca or None, require_client_auth=bool(tls.ca)
        )
        self.port = self.server.add_secure_port("127.0.0.1:0", credentials)

    async def __aenter__(self):
        await self.server.start()
        return self.port

    async def __aexit__(self, *exc_info):
        await self.server.stop(None)


@contextlib.asynccontextmanager
async def our_server(tls):
    async with Bench(tls=tls) as bench:
        yield bench.server.port


@pytest.fixture(params=[our_server, GrpcServer], ids=["ours", "grpc"])
def serve(request):
    return request.param


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def another(tmp_path_factory):
    return CertificateAuthority(tmp_path_factory.mktemp("other"), name="another authority")


def material(authority, *hosts, asks_clients=False):
    issued = authority.issue("server", hosts) if hosts else authority.issue("server")
    ca = authority.ca.read_bytes() if asks_clients else b""
    return TlsMaterial(issued.cert.read_bytes(), issued.key.read_bytes(), ca)


@pytest.fixture(params=["asyncio", "uvloop"])
def said(request):
    """The error of a call, by the event loop of this test, or by that of a synchronous client.

    A server that is reached knows no such call.
    """

    async def said(address, authority=None, shown=None):
        files = {"trusted_ca_file": str(authority.ca)} if authority is not None else {}
        if shown is not None:
            files |= {"cert_file": str(shown.cert), "cert_key_file": str(shown.key)}
        if request.param == "uvloop":
            return await asyncio.to_thread(said_by_thread, address, **files)
        async with client_of(address, **files) as client:
            with pytest.raises(TransportError) as caught:
                await client.list()
        return str(caught.value)

    return said


def said_by_thread(address, **files):
    config = ClientConfig(address=address, retry_timeout_s=0.0, **files)
    with Client(config) as client, pytest.raises(TransportError) as caught:
        client.list()
    return str(caught.value)


REACHED = "a broker of a version that lacks this call"


async def test_tls_errors_say_what_to_do(serve, authority, another, said):
    async with serve(material(authority)) as port:
        address = f"https://127.0.0.1:{port}"
        assert REACHED in await said(address, authority)
        assert "of no authority that is trusted here" in await said(address, another)
        assert "of no authority that is trusted here" in await said(address)
        plain = await said(f"http://127.0.0.1:{port}")
        assert "does it speak TLS? then its address begins with https://" in plain


async def test_certificate_of_another_host_is_reported(serve, authority, said):
    async with serve(material(authority, "broker.example")) as port:
        for host in ("127.0.0.1", "localhost"):
            text = await said(f"https://{host}:{port}", authority)
            assert "its certificate names other hosts: address it by one of them" in text


async def test_server_that_wants_a_certificate_gets_it(serve, authority, another, said):
    async with serve(material(authority, asks_clients=True)) as port:
        address = f"https://127.0.0.1:{port}"
        assert REACHED in await said(address, authority, authority.issue("client"))
        for shown in (None, another.issue("stranger")):
            text = await said(address, authority, shown)
            assert "does it ask for a certificate? give cert-file and cert-key-file" in text


async def test_server_without_tls_is_reported(broker, said):
    text = await said(broker.address.replace("http", "https"))
    assert "it speaks no TLS: its address begins with http://" in text


ANOTHER_PROGRAM = (
    "(another program answers there, or a proxy that passes only HTTP/1: give the address of"
)


@pytest.mark.parametrize(
    ("greeting", "advice"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", f"(it speaks HTTP/1, not HTTP/2) {ANOTHER_PROGRAM}"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", f"(its answer is not HTTP/2) {ANOTHER_PROGRAM}"),
        (b"-", f"(its answer is not HTTP/2) {ANOTHER_PROGRAM}"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "(it speaks TLS) (its address begins with https://)"),
        (b"", "Socket closed (does it speak TLS? then its address begins with https://)"),
    ],
)
async def test_server_of_something_else_is_reported(said, greeting, advice):
    async def serve(reader, writer):
        await reader.read(1 << 16)  # so that the connection does not end by a reset
        writer.write(greeting)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        text = await said(f"http://127.0.0.1:{port}")
        assert "Failed to connect to remote host: Socket closed" in text
        assert advice in text


async def test_server_of_tls_without_http2_is_reported(authority, said):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued = authority.issue("server", ("localhost",))
    context.load_cert_chain(issued.cert, issued.key)

    async def serve(reader, writer):
        await reader.read(1)

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        text = await said(f"https://localhost:{port}", authority)
        assert f"(it speaks TLS, but not HTTP/2) {ANOTHER_PROGRAM}" in text


def test_address_of_a_unix_socket_without_host_is_refused():
    with pytest.raises(ValidationError, match=r"write unix://localhost/run/broker\.sock"):
        ClientConfig(address="unix:///run/broker.sock")


async def test_server_that_is_not_there_is_reported(said):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    text = await said(f"https://127.0.0.1:{port}")
    assert "Connection refused (is it running, and is the address right?)" in text


@pytest.mark.parametrize("name", ["trusted_ca_file", "cert_file"])
@pytest.mark.parametrize("content", [None, "hello"])
async def test_file_that_cannot_be_used_is_named(tmp_path, name, content):
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_text(content)
    files = {name: str(path)} | ({"cert_key_file": str(path)} if name == "cert_file" else {})
    async with client_of("https://127.0.0.1:1", **files) as client:
        with pytest.raises(SetupError, match=f"cannot use the PEM file {path}: "):
            await client.list()


# ---------------------------------------------------------------------------------------- proxies
async def test_far_brokers_are_asked_through_a_proxy(broker, monkeypatch, said):
    port = int(broker.address.rpartition(":")[2])
    for variable in ("no_proxy", "no_grpc_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.delenv(variable, raising=False)
    async with ConnectProxy(port=port) as through:
        monkeypatch.setenv("http_proxy", f"http://{through.address}")
        async with client_of("http://broker.test:8080") as client:
            assert await client.read(JOURNAL).read() == b"content"
        assert through.asked == ["CONNECT broker.test:8080 HTTP/1.1"]
        async with client_of(broker.address) as client:  # which is here
            assert await client.read(JOURNAL).read() == b"content"
        assert len(through.asked) == 1
        monkeypatch.setenv("no_proxy", ".test")
        text = await said("http://broker.test:8080")
        assert "name resolution failed for broker.test" in text


# --------------------------------------------------------------------------------------- messages
async def test_message_that_is_too_large_is_reported(broker):
    broker.journal("a/large", b"x" * 100_000)
    async with client_of(broker.address, message_bytes_max=1000) as client:
        with pytest.raises(CallFailed, match=r"Sent message larger than max \(.* vs\. 1000\)"):
            await client.append(JOURNAL, b"x" * 2000)
        assert broker.journals[JOURNAL].content == b"content"
        with pytest.raises(CallFailed, match=r"Received message larger than max \(.* vs\. 1000\)"):
            await client.read("a/large").read()
        assert await client.read(JOURNAL).read() == b"content"


# ------------------------------------------------------------------------- silence, and restarts
async def test_broker_that_falls_silent_is_given_up(broker, between):
    async with client_of(between.address, keepalive_s=1.0) as client:
        reader = client.read(JOURNAL, block=True)
        assert await anext(reader) == b"content"
        between.black_hole()
        with pytest.raises(TransportError, match="ping timeout"):
            await anext(reader)
        await reader.aclose()


async def test_broker_that_is_silent_after_its_settings_is_reported():
    async def greet(_reader, writer):
        writer.write(frame(SETTINGS, 0, 0))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    try:
        address = "http://{}:{}".format(*server.sockets[0].getsockname())
        async with client_of(address, connect_timeout_s=1.0) as client, asyncio.timeout(patient(5)):
            with pytest.raises(TransportError) as caught:
                await client.list()
    finally:
        server.close()
    assert str(caught.value).startswith(f"list of journals: broker {address} is not reachable: ")
    assert "fell silent (does it hang, or is it overloaded? look at its log" in str(caught.value)


async def test_calls_go_on_once_the_broker_is_back(broker, between):
    async with client_of(between.address, retry_timeout_s=None) as client:
        reader = client.read(JOURNAL, block=True)
        assert await anext(reader) == b"content"
        between.refuse()
        waiting = asyncio.get_running_loop().create_task(anext(reader))
        wire = client._transport.wire()
        await eventually(lambda: wire.channel.condition is Condition.FAILED)
        assert not await wire.connected()
        await between.heal()
        await client.append(JOURNAL, b"more")
        await broker.extend(JOURNAL, b"")
        assert await waiting == b"more"
        assert await wire.connected()
        await reader.aclose()


async def test_closed_client_ends_its_calls(broker):
    client = AsyncClient(ClientConfig(address=broker.address, retry_timeout_s=0.0))
    reader = client.read(JOURNAL, block=True)
    assert await anext(reader) == b"content"
    waiting = asyncio.get_running_loop().create_task(anext(reader))
    await eventually(lambda: reader._call is not None and reader._call._waiter is not None)
    await client.close()
    with pytest.raises(
        TransportError, match=f"read of {JOURNAL}: the client was closed during the call"
    ):
        await waiting
