"""TLS and mutual TLS of a real broker: clients, peers, etcd; and its Unix socket."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from random import Random

import aiohttp
import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import EtcdError, SetupError, TransportError
from gazette_platform.etcd import EtcdClient, EtcdTls
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalChange,
    JournalSpec,
)
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Kind
from gazette_platform.testing.etcd import CertificateAuthority, EtcdServer
from gazette_platform.testing.local import LocalBrokers
from gazette_platform.testing.waiting import patient

pytestmark = pytest.mark.etcd

JOURNAL = "a/journal"
SPEC = JournalSpec(
    JOURNAL,
    1,
    fragment=FragmentSpec(length=1024, codec=CompressionCodec.NONE, refresh_interval_ns=10**9),
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def another(tmp_path_factory):
    return CertificateAuthority(tmp_path_factory.mktemp("other"), name="another authority")


def serving(authority, name="broker", *, asks_clients=False):
    """Settings of a broker with a certificate."""
    issued = authority.issue(name)
    made = {"server_cert_file": issued.cert, "server_cert_key_file": issued.key}
    return made | ({"server_ca_file": authority.ca} if asks_clients else {})


def client_of(broker, authority, certificate=None, **options):
    shown = {}
    if certificate is not None:
        shown = {"cert_file": str(certificate.cert), "cert_key_file": str(certificate.key)}
    config = ClientConfig(
        address=broker.endpoint,
        trusted_ca_file=str(authority.ca) if authority is not None else "",
        connect_timeout_s=1,
        retry_timeout_s=1,
        **shown,
        **options,
    )
    return AsyncClient(config)


async def check(client):
    """Use every kind of call."""
    await client.apply([JournalChange(SPEC)])
    await client.append(JOURNAL, b"content")
    assert await client.read(JOURNAL).read() == b"content"
    assert len(await client.fragments(JOURNAL)) == 1


async def test_a_broker_with_a_certificate_speaks_tls(cluster, authority):
    broker = await cluster.start(**serving(authority))
    assert broker.endpoint.startswith("https://")
    async with client_of(broker, authority) as client:
        await check(client)


async def test_large_content_comes_whole_over_tls(cluster, authority):
    """Large messages are received where they belong, from records of TLS that end anywhere."""
    brokers = [await cluster.start(**serving(authority), peer_ca_file=authority.ca) for _ in "ab"]
    spec = replace(SPEC, replication=2)
    content = [Random(seed).randbytes(3 << 20) for seed in range(4)]
    async with client_of(brokers[0], authority) as client:
        await client.apply([JournalChange(spec)])
        appended = await asyncio.gather(*[client.append(JOURNAL, one) for one in content])
        got = await client.read(JOURNAL).read()
    for one, commit in zip(content, appended, strict=True):
        assert got[commit.begin : commit.end] == one


async def refusal(client):
    """The error of a client that is refused."""
    async with client:
        with pytest.raises(TransportError, match="is not reachable") as caught:
            await client.list()
    return str(caught.value)


async def test_errors_distinguish_certificates_that_do_not_fit(cluster, authority, another):
    broker = await cluster.start(**serving(authority))
    assert "of no authority that is trusted here" in await refusal(client_of(broker, another))
    plain = ClientConfig(address=broker.endpoint.replace("https", "http"), connect_timeout_s=1)
    assert "its address begins with https://" in await refusal(AsyncClient(plain))

    issued = authority.issue("elsewhere", ("broker.example",))
    moved = await cluster.start(server_cert_file=issued.cert, server_cert_key_file=issued.key)
    assert "its certificate names other hosts" in await refusal(client_of(moved, authority))

    plain = await cluster.start()
    config = ClientConfig(address=plain.endpoint.replace("http", "https"), connect_timeout_s=1)
    assert "its address begins with http://" in await refusal(AsyncClient(config))


async def test_mutual_tls_asks_clients_for_certificates(cluster, authority, another):
    broker = await cluster.start(**serving(authority, asks_clients=True))
    asked = "does it ask for a certificate?"
    assert asked in await refusal(client_of(broker, authority))
    stranger = another.issue("stranger")
    assert asked in await refusal(client_of(broker, authority, stranger))
    async with client_of(broker, authority, authority.issue("client")) as client:
        await check(client)


async def test_the_http_port_speaks_tls_as_well(cluster, authority):
    broker = await cluster.start(**serving(authority, asks_clients=True), debug_port=0)
    url = f"https://127.0.0.1:{broker.http_port}/debug/ready"
    trusting = ssl.create_default_context(cafile=authority.ca)
    showing = ssl.create_default_context(cafile=authority.ca)
    showing.load_cert_chain(*authority.issue("client"))
    async with aiohttp.ClientSession() as http:
        async with http.get(url, ssl=showing) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await http.get(url, ssl=trusting)
        with pytest.raises(aiohttp.ClientError):
            await http.get(url.replace("https", "http"))
        # Probes have no certificates: the port for diagnostics is plain.
        plain = f"http://127.0.0.1:{broker.debug_port}/debug/ready"
        async with http.get(plain) as response:
            assert response.status == 200


async def test_tls_and_tokens_go_together(cluster, authority):
    broker = await cluster.start(**serving(authority), auth_keys="c2VjcmV0")
    async with client_of(broker, authority, auth_keys="c2VjcmV0") as client:
        await check(client)


async def test_peers_show_their_certificates_and_tokens(cluster, authority):
    issued = authority.issue("peer")
    peer = {"peer_cert_file": issued.cert, "peer_cert_key_file": issued.key}
    settings = serving(authority, asks_clients=True) | peer | {"peer_ca_file": authority.ca}
    one = await cluster.start(**settings, auth_keys="c2VjcmV0")
    two = await cluster.start(**settings, auth_keys="b3RoZXI=,c2VjcmV0")
    peers = two._context.peers
    with pytest.raises(Exception, match="signature is invalid"):
        await fragments_of(one, by=peers)
    peers = one._context.peers
    assert (await fragments_of(two, by=peers)).status == pb.JOURNAL_NOT_FOUND
    await peers.drop(two.endpoint)


async def fragments_of(broker, *, by):
    """Call it as its peers do."""
    call = by.channel(broker.endpoint).call(
        "/protocol.Journal/ListFragments",
        Kind.UNARY,
        by.metadata(Capability.READ, JOURNAL),
        pb.FragmentsRequest(journal=JOURNAL).SerializeToString(),
    )
    async with asyncio.timeout(patient(10)):
        return pb.FragmentsResponse.FromString(await call.answer())


# ------------------------------------------------------------------------------------ bad files
@pytest.mark.parametrize("broken", ["missing", "no PEM", "of another"])
async def test_a_bad_certificate_ends_the_start(cluster, authority, tmp_path, broken):
    settings = serving(authority)
    if broken == "missing":
        settings["server_cert_file"] = tmp_path / "missing.pem"
    elif broken == "no PEM":
        settings["server_cert_file"] = tmp_path / "file"
        settings["server_cert_file"].write_text("hello")
    else:
        settings["server_cert_key_file"] = authority.issue("other").key
    with pytest.raises(SetupError, match=r"cannot (read|use) .*--broker\.server-cert-file"):
        await cluster.start(**settings)


async def test_a_bad_authority_of_peers_ends_the_start(cluster, tmp_path):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(SetupError, match=r"cannot use .*--broker\.peer-ca-file"):
        await cluster.start(peer_ca_file=tmp_path / "file")


# ----------------------------------------------------------------------------------------- etcd
async def test_etcd_may_ask_for_certificates(etcd_binary, authority, another, tmp_path):
    issued, ours = authority.issue("etcd"), authority.issue("broker")
    shown = {"etcd_cert_file": ours.cert, "etcd_cert_key_file": ours.key}
    with EtcdServer(etcd_binary, tls=(issued, authority.ca)) as server:
        assert server.endpoint.startswith("https://")
        cluster = LocalBrokers(tmp_path, etcd=server.endpoint, prefix="/tls")
        async with cluster as brokers:
            broker = await brokers.start(**shown, etcd_trusted_ca_file=authority.ca)
            async with client_of(broker, None) as client:
                await check(client)
        stranger = another.issue("stranger")
        for tls in (
            EtcdTls(trusted_ca_file=authority.ca),
            EtcdTls(trusted_ca_file=another.ca, cert_file=ours.cert, cert_key_file=ours.key),
            EtcdTls(
                trusted_ca_file=authority.ca, cert_file=stranger.cert, cert_key_file=stranger.key
            ),
        ):
            client = EtcdClient([server.endpoint], tls=tls, request_timeout_s=0.5)
            with pytest.raises(EtcdError, match="cannot reach etcd"):
                await client.connect()
            await client.close()


# ----------------------------------------------------------------------------------------- unix
async def test_a_broker_may_listen_on_a_unix_socket(cluster, tmp_path):
    broker = await cluster.start(socket=tmp_path / "broker.sock")
    assert broker.endpoint == f"unix://127.0.0.1{tmp_path}/broker.sock"
    async with client_of(broker, None) as client:
        await check(client)
        listed = (await client.list())[0]
        assert listed.route.endpoints == (broker.endpoint,)
