"""Tokens at a real broker: Gazette's cases LA3, LA5, AA13, AA14, RD13 and FR1, and the client's."""

from __future__ import annotations

import asyncio
import base64

import grpc
import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import CallFailed, JournalNotFound
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import JournalChange, LabelSelector
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.protocol.pb import admin_pb2, admin_pb2_grpc, protocol_pb2 as pb
from gazette_platform.testing.local import AppendCall, open_channel
from gazette_platform.testing.waiting import pass_time, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

A, B = "journal/A", "journal/B"
KEY, OTHER = (base64.b64encode(secret * 16).decode() for secret in (b"ab", b"cd"))


def spec(name, **labels):
    return journal_spec(name, length=1024, stores=(), labels=labels)


def token(capability, selector="", *, keys=KEY, lifetime_s=60):
    claims = Claims(capability, LabelSelector.parse(selector))
    now = SystemClock().now().timestamp()
    return KeyRing(keys).sign(claims, now=now, lifetime_s=lifetime_s)


def bearer(capability, selector="", **how):
    return (("authorization", f"Bearer {token(capability, selector, **how)}"),)


async def ended(call):
    """Wait for the end of a call of either kind."""
    if hasattr(call, "read"):
        return [response async for response in call]
    return await call


async def failure(call):
    """Code and text of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ended(call)
    return caught.value.code(), caught.value.details()


UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
async def broker(cluster):
    return await cluster.start(auth_keys=f"{KEY},{OTHER}")


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


@pytest.fixture
async def client(broker):
    async with AsyncClient(ClientConfig(address=broker.endpoint, auth_keys=KEY)) as client:
        await client.apply([JournalChange(spec(A, team="red")), JournalChange(spec(B))])
        yield client


# ----------------------------------------------------------------------------------------- calls
async def test_calls_without_a_token_are_refused(client, stub):
    expected = (UNAUTHENTICATED, "missing or empty Authorization token")
    assert await failure(stub.List(pb.ListRequest())) == expected
    assert await failure(stub.Apply(pb.ApplyRequest())) == expected
    assert await failure(stub.Read(pb.ReadRequest(journal=A))) == expected
    assert await failure(stub.ListFragments(pb.FragmentsRequest(journal=A))) == expected
    health = pb.FragmentStoreHealthRequest(fragment_store="file:///")
    assert await failure(stub.FragmentStoreHealth(health)) == expected
    appending = AppendCall(stub, A)
    await appending.send(b"content")
    assert await failure(appending.commit()) == expected


@pytest.mark.parametrize("value", ["Bearer ", " ", " Bearer x"])
async def test_authorization_with_blanks_around_is_refused_in_words(client, stub, value):
    """HTTP/2 forbids such blanks. All gRPC servers take them, and clients send them with an empty token."""
    code, text = await failure(stub.List(pb.ListRequest(), metadata=(("authorization", value),)))
    assert code is UNAUTHENTICATED
    assert "Authorization" in text


async def test_brokers_and_their_vitals_are_for_operators(broker):
    """What a broker does and holds reveals something of all journals."""
    async with open_channel(broker.endpoint.partition("//")[2]) as channel:
        admin = admin_pb2_grpc.AdminStub(channel)
        others = Capability.ALL & ~Capability.APPLY
        for call, request in (
            (admin.ListBrokers, admin_pb2.ListBrokersRequest()),
            (admin.GetVitals, admin_pb2.GetVitalsRequest()),
        ):
            lacks = "authorization is missing required APPLY capability"
            assert await failure(call(request, metadata=bearer(others))) == (UNAUTHENTICATED, lacks)
            assert (await failure(call(request)))[0] == UNAUTHENTICATED
            assert (await call(request, metadata=bearer(Capability.APPLY))).ByteSize() > 0


async def test_u1_a_token_of_a_key_that_is_not_ours_is_refused(client, stub):
    metadata = bearer(Capability.LIST, keys=base64.b64encode(b"another").decode())
    assert await failure(stub.List(pb.ListRequest(), metadata=metadata)) == (
        UNAUTHENTICATED,
        "verifying Authorization: token signature is invalid: signature is invalid",
    )


async def test_u1_the_second_key_of_a_broker_verifies_too(client, stub):
    found = stub.List(pb.ListRequest(), metadata=bearer(Capability.LIST, keys=OTHER))
    assert [len(response.journals) async for response in found] == [2]


async def test_u1_the_roll_out_key_lets_calls_without_a_token_pass(cluster):
    broker = await cluster.start(auth_keys=f"{KEY} AA==")
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await client.apply([JournalChange(spec(A))])
        await client.append(A, b"content")
        assert await client.read(A).read() == b"content"


# ------------------------------------------------------------------------------------ List, Apply
async def test_la3_list_needs_its_capability_and_shows_what_claims_select(client, stub):
    async def names(selector):
        found = stub.List(pb.ListRequest(), metadata=bearer(Capability.LIST, selector))
        return [j.spec.name async for response in found for j in response.journals]

    assert await failure(stub.List(pb.ListRequest(), metadata=bearer(Capability.READ))) == (
        UNAUTHENTICATED,
        "authorization is missing required LIST capability",
    )
    assert await names("") == [A, B]
    assert await names("team=red") == [A]
    assert await names("name:prefix=journal/,!team") == [B]
    assert await names("prefix=journal/") == [A, B]
    assert await names("name=another") == []


async def test_la4_a_watch_shows_what_claims_select(client, stub):
    watching = stub.List(pb.ListRequest(watch=True), metadata=bearer(Capability.LIST, f"name={B}"))
    first = await watching.read()
    assert [j.spec.name for j in first.journals] == [B]
    assert await watching.read() == pb.ListResponse()
    await client.apply([JournalChange(spec("journal/C"))])
    revision = (await client.get(B)).mod_revision
    await client.apply([JournalChange(spec(B, team="blue"), revision=revision)])
    second = await watching.read()
    assert [j.spec.labels.labels[0].value for j in second.journals] == ["blue"]
    watching.cancel()


async def test_la5_apply_needs_claims_for_each_change(client, stub):
    def request(*changes):
        message = pb.ApplyRequest()
        for what in changes:
            change = message.changes.add(expect_mod_revision=-1)
            if isinstance(what, str):
                change.delete = what
            else:
                change.upsert.CopyFrom(what.to_pb())
        return message

    async def refused(message, selector):
        return await failure(stub.Apply(message, metadata=bearer(Capability.APPLY, selector)))

    metadata = bearer(Capability.READ)
    assert await failure(stub.Apply(request(spec(A)), metadata=metadata)) == (
        UNAUTHENTICATED,
        "authorization is missing required APPLY capability",
    )
    both = request(spec(A, team="red"), B)
    assert await refused(both, f"name={B}") == (UNAUTHENTICATED, f"not authorized to {A}")
    assert await refused(both, f"name={A}") == (UNAUTHENTICATED, f"not authorized to {B}")
    # The labels of the new spec decide, and those that the journal has now.
    changed = request(spec(A, team="blue"))
    for team in ("red", "blue"):
        assert await refused(changed, f"name={A},team={team}") == (
            UNAUTHENTICATED,
            f"not authorized to {A}",
        )
    matching = bearer(Capability.APPLY, f"name={A},team in (blue,red)")
    assert (await stub.Apply(changed, metadata=matching)).status == pb.OK
    excluding = f"name={A},team!=blue"
    assert await refused(request(A), excluding) == (UNAUTHENTICATED, f"not authorized to {A}")
    # Of a deletion only the name is known.
    assert await refused(request(A), "team=blue") == (UNAUTHENTICATED, f"not authorized to {A}")
    by_name = bearer(Capability.APPLY, f"name={A}")
    assert (await stub.Apply(request(A), metadata=by_name)).status == pb.OK


async def test_la5_one_refused_change_applies_none(client, stub):
    message = pb.ApplyRequest()
    message.changes.add(expect_mod_revision=-1).delete = A
    message.changes.add(expect_mod_revision=-1).delete = B
    await failure(stub.Apply(message, metadata=bearer(Capability.APPLY, f"name={A}")))
    assert [found.name for found in await client.list()] == [A, B]


# --------------------------------------------------------------------------- Append, Read, Fragments
async def test_aa13_append_needs_its_capability(client, stub):
    call = AppendCall(stub, A)
    call.call = stub.Append(timeout=20, metadata=bearer(Capability.READ))
    await call.send(b"content")
    assert await failure(call.commit()) == (
        UNAUTHENTICATED,
        "authorization is missing required APPEND capability",
    )


async def test_aa14_append_to_a_journal_beyond_the_claims_finds_none(client, stub):
    await client.append(A, b"")
    call = AppendCall(stub, A)
    call.call = stub.Append(timeout=20, metadata=bearer(Capability.APPEND, "name=something/else"))
    await call.send(b"content")
    response = await call.commit()
    assert response.status == pb.JOURNAL_NOT_FOUND
    assert not response.header.route.members
    assert not response.header.route.endpoints
    assert response.header.route.primary == -1


async def test_rd13_read_needs_capability_and_selector(client, stub):
    await client.append(A, b"content")
    request = pb.ReadRequest(journal=A)
    assert await failure(stub.Read(request, metadata=bearer(Capability.APPEND))) == (
        UNAUTHENTICATED,
        "authorization is missing required READ capability",
    )
    metadata = bearer(Capability.READ, "name=something/else")
    responses = [r async for r in stub.Read(request, metadata=metadata)]
    assert [r.status for r in responses] == [pb.JOURNAL_NOT_FOUND]
    assert not responses[0].header.route.members
    by_label = stub.Read(request, metadata=bearer(Capability.READ, "team=red"))
    assert b"".join([r.content async for r in by_label]) == b"content"


async def test_fr1_list_fragments_needs_capability_and_selector(client, stub):
    await client.append(A, b"content")
    request = pb.FragmentsRequest(journal=A)
    assert await failure(stub.ListFragments(request, metadata=bearer(Capability.LIST))) == (
        UNAUTHENTICATED,
        "authorization is missing required READ capability",
    )
    metadata = bearer(Capability.READ, "name=something/else")
    response = await stub.ListFragments(request, metadata=metadata)
    assert response.status == pb.JOURNAL_NOT_FOUND
    assert not response.header.route.members
    response = await stub.ListFragments(request, metadata=bearer(Capability.READ, f"name={A}"))
    assert response.status == pb.OK


# ------------------------------------------------------------------------------------ expiry
async def test_a_read_ends_in_order_when_its_token_expires(client, stub, monkeypatch):
    monkeypatch.setattr("gazette_platform.serving.auth.LEEWAY_S", 0.2)
    await client.append(A, b"content")
    metadata = bearer(Capability.READ, lifetime_s=1)
    async with asyncio.timeout(patient(10)):
        request = pb.ReadRequest(journal=A, block=True)
        responses = [r async for r in stub.Read(request, metadata=metadata)]
    assert b"".join(r.content for r in responses) == b"content"


async def test_a_response_on_its_way_when_a_token_expires_is_sent_whole(
    client, broker, monkeypatch
):
    monkeypatch.setattr("gazette_platform.serving.auth.LEEWAY_S", 0.0)
    await client.append(A, b"content")
    metadata = dict(bearer(Capability.READ, lifetime_s=1))
    expired, sent = asyncio.Event(), []

    async def send(raw):
        if not sent:
            asyncio.get_running_loop().call_later(1.5, expired.set)
            await expired.wait()
        sent.append(raw)

    request = pb.ReadRequest(journal=A, block=True)
    async with asyncio.timeout(patient(10)):
        await broker.service.read(request.SerializeToString(), send, metadata)
    assert sent, "and the read ended in order"


async def test_watch_ends_with_a_reason_when_its_token_expires(client, stub, monkeypatch):
    monkeypatch.setattr("gazette_platform.serving.auth.LEEWAY_S", 0.2)
    metadata = bearer(Capability.LIST, lifetime_s=1)
    async with asyncio.timeout(patient(10)):
        watching = stub.List(pb.ListRequest(watch=True), metadata=metadata)
        assert (await failure(watching))[0] is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_tail_of_our_client_outlives_its_tokens(client, broker, monkeypatch):
    monkeypatch.setattr("gazette_platform.serving.auth.LEEWAY_S", 0.0)
    monkeypatch.setattr("gazette_platform.client.wire._LIFETIME_DEFAULT_S", 1)
    config = ClientConfig(address=broker.endpoint, auth_keys=KEY)
    async with AsyncClient(config) as short, short.tail(A, 0) as tail, asyncio.timeout(patient(20)):
        for piece in (b"one", b"two", b"three"):
            await client.append(A, piece)
            assert bytes(await anext(tail)) == piece
            await pass_time(1.2)  # longer than a token lives


# ------------------------------------------------------------------------------------ our client
async def test_client_without_a_token_learns_what_to_check(broker):
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        with pytest.raises(
            CallFailed, match=r"missing or empty Authorization token.*auth"
        ) as caught:
            await client.list()
    assert caught.value.code == "UNAUTHENTICATED"


async def test_a_client_may_be_given_a_token(broker, client):
    given = token(Capability.READ | Capability.APPEND, f"name={A}")
    config = ClientConfig(address=broker.endpoint, auth_token=given, retry_timeout_s=1)
    async with AsyncClient(config) as limited:
        await limited.append(A, b"content")
        assert await limited.read(A).read() == b"content"
        with pytest.raises(CallFailed, match="missing required LIST capability"):
            await limited.list()
        with pytest.raises(JournalNotFound):
            await limited.append(B, b"content")


async def test_peers_tokens_are_good(broker, stub):
    metadata = broker._context.peers.metadata(Capability.READ, A)
    response = await stub.ListFragments(pb.FragmentsRequest(journal=A), metadata=metadata)
    assert response.status == pb.JOURNAL_NOT_FOUND


# ------------------------------------------------------------------------------------- ResetHead
async def test_a_writer_may_not_give_up_acknowledged_content(cluster, client, broker):
    request = admin_pb2.ResetHeadRequest(journal=A, give_up=True)
    async with grpc.aio.insecure_channel(broker.endpoint.partition("//")[2]) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)
        writer = bearer(Capability.APPEND | Capability.READ | Capability.LIST, f"name={A}")
        assert await failure(stub.ResetHead(request, metadata=writer)) == (
            UNAUTHENTICATED,
            "authorization is missing required APPLY capability",
        )
        elsewhere = await stub.ResetHead(request, metadata=bearer(Capability.APPLY, f"name={B}"))
        assert elsewhere.status == pb.JOURNAL_NOT_FOUND
        operator = await stub.ResetHead(request, metadata=bearer(Capability.APPLY, f"name={A}"))
        assert operator.status == pb.OK
    assert await client.reset_head(A, give_up=True) == 0


async def test_reset_head_is_forwarded_with_what_it_needs(cluster, client, broker):
    other = await cluster.start(id="other", zone="other", auth_keys=KEY)
    async with AsyncClient(ClientConfig(address=other.endpoint, auth_keys=KEY)) as asking:
        primary = (await asking.get(A)).route.primary
        assert primary is not None
        for one in (broker, other):
            stub_at = ClientConfig(address=one.endpoint, auth_keys=KEY)
            async with AsyncClient(stub_at) as any_broker:
                assert (await any_broker.check_head(A)).head == 0
