"""Specs, stores and selectors that mean harm, at a real broker: it lives, and serves everybody else."""

from __future__ import annotations

import asyncio
import base64

import grpc
import pytest
from journal_specs import journal_spec, upserts

from gazette_platform.etcd import Put
from gazette_platform.keyspace import item_key
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import LabelSelector
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, read_all, store_fragment
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

GOOD = "tenant/good"
HOSTILE_URLS = [
    "file:///x%00y/",
    "file:///x%0ay/",
    "file:///?find=a&replace=%00",
    "file:///%ed%a0%80/",
]


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


def spec(name, *stores, postfix="", **labels):
    return journal_spec(name, length=1024, stores=stores, postfix=postfix, labels=labels)


async def failure(call):
    """Code and text of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def serves(cluster, stub, name=GOOD):
    """Whether the broker takes appends and gives them back."""
    await cluster.apply(stub, spec(name))
    assert (await append(stub, name, b"content")).status == pb.OK
    return (await read_all(stub, name)).endswith(b"content")


async def test_hostile_specs_in_etcd_do_not_end_brokers(etcd, etcd_prefix, cluster, stub):
    """They may have come before brokers knew better, or by Gazette's own."""
    template = "{{range .JournalSpec.Fragment.Stores}}x{{end}}"
    hostile = [spec(f"tenant/bad-{n}", url) for n, url in enumerate(HOSTILE_URLS)]
    hostile.append(spec("tenant/bad-long", f"file:///{'x' * 300}/"))
    hostile.append(spec("tenant/bad-template", "file:///", postfix=template))
    for each in hostile:
        await etcd.txn(
            [], [Put(item_key(etcd_prefix, each.name), each.to_pb().SerializeToString())]
        )
    assert await serves(cluster, stub)
    again = await cluster.start()  # as at the start that follows
    assert await serves(cluster, cluster.stub(again), "tenant/other")


# ------------------------------------------------------------------------- the folders of others
PAY, SPY = "secret/pay", "mine/spy"
KEY = base64.b64encode(b"ab" * 16).decode()
TAKING_OVER = [
    f"file:///?find={SPY}&replace={PAY}",
    f"file:///?find=mine/&replace={PAY}/",
    f"file:///?find={SPY}&replace=secret",
    f"file:///{PAY}/",
    f"file:////{PAY}//x/",
    f"file:///%73ecret/?find={SPY}/&replace=",
]


def bearer(capability, selector=""):
    # They are made when the tests are collected, which may be long before these run.
    claims = Claims(capability, LabelSelector.parse(selector))
    token = KeyRing(KEY).sign(claims, now=SystemClock().now().timestamp(), lifetime_s=86_400)
    return (("authorization", f"Bearer {token}"),)


MINE = "name:prefix=mine/"
MINE_ALL = bearer(Capability.ALL, MINE)
OPERATOR = bearer(Capability.ALL)


@pytest.fixture
async def guarded(cluster):
    """The stub of a broker that wants tokens, and has a journal of another one's."""
    stub = cluster.stub(await cluster.start(auth_keys=KEY))
    applied = await stub.Apply(upserts(spec(PAY, "file:///", team="red")), metadata=OPERATOR)
    assert applied.status == pb.OK
    return stub


@pytest.mark.parametrize("url", TAKING_OVER)
async def test_no_spec_takes_the_folder_of_another_journal(cluster, broker, stub, url):
    assert (await stub.Apply(upserts(spec(PAY, "file:///")))).status == pb.OK
    code, text = await failure(stub.Apply(upserts(spec(SPY, url))))
    assert code is grpc.StatusCode.UNKNOWN
    assert f"mix with those of journal {PAY}" in text
    # Nor does one that exists already, nor two of one request.
    assert (await stub.Apply(upserts(spec(SPY, "file:///")))).status == pb.OK
    await failure(stub.Apply(upserts(spec(SPY, url))))
    both = upserts(
        spec(f"b/{SPY}", "file:///c/"), spec(SPY, f"file:///c/b/?find={SPY}&replace={SPY}")
    )
    code, text = await failure(stub.Apply(both))
    assert "mix with those of" in text


async def test_a_store_that_rewrites_other_journals_serves_this_one(cluster, stub):
    """Until fragments of it could be meant, too."""
    url = "file:///?find=/old/&replace=/new/"
    for name in ("a/old/journal", "a/journal"):
        await cluster.apply(stub, spec(name, url, postfix="date=1"))
        assert (await append(stub, name, b"content")).status == pb.OK
    code, text = await failure(cluster.apply(stub, spec("a/journal", url, postfix="old/date=1")))
    assert code is grpc.StatusCode.UNKNOWN
    assert "do not keep a/journal in one folder" in text


async def test_folders_that_a_request_frees_can_be_taken(cluster, stub):
    assert (await stub.Apply(upserts(spec(PAY, "file:///")))).status == pb.OK
    moving = upserts(spec(SPY, TAKING_OVER[0]))
    moving.changes.add(expect_mod_revision=-1).delete = PAY
    assert (await stub.Apply(moving)).status == pb.OK


@pytest.mark.parametrize("url", TAKING_OVER)
async def test_a_limited_token_learns_no_name_by_its_stores(guarded, url):
    code, text = await failure(guarded.Apply(upserts(spec(SPY, url)), metadata=MINE_ALL))
    assert code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAUTHENTICATED)
    assert f"journal {PAY}" not in text


async def test_a_limited_token_stores_under_no_name_beyond_it(guarded):
    url = f"file:///?find={SPY}&replace=secret/new"
    code, text = await failure(guarded.Apply(upserts(spec(SPY, url)), metadata=MINE_ALL))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "not authorized to secret/new" in text
    renamed = f"file:///?find={SPY}&replace=mine/new"
    assert (await guarded.Apply(upserts(spec(SPY, renamed)), metadata=MINE_ALL)).status == pb.OK


async def test_a_label_limited_token_takes_no_journal_by_relabelling_it(guarded):
    blue = bearer(Capability.ALL, "team=blue")
    code, text = await failure(guarded.Apply(upserts(spec(PAY, team="blue")), metadata=blue))
    assert (code, text) == (grpc.StatusCode.UNAUTHENTICATED, f"not authorized to {PAY}")


async def test_a_refusal_of_nested_names_comes_after_the_claims(guarded):
    for name in ("secret", f"{PAY}/x"):
        code, text = await failure(guarded.Apply(upserts(spec(name)), metadata=MINE_ALL))
        assert (code, text) == (grpc.StatusCode.UNAUTHENTICATED, f"not authorized to {name}")
    nested = bearer(Capability.ALL, f"name={PAY}/x")
    code, text = await failure(guarded.Apply(upserts(spec(f"{PAY}/x")), metadata=nested))
    assert text.startswith(f"another journal would be a directory of journal {PAY}/x")


async def test_an_upsert_of_any_revision_meets_the_spec_that_was_looked_at(guarded, cluster):
    """Between the look and the transaction others may have taken the name."""
    label_limited = bearer(Capability.ALL, "team=blue")
    (broker,) = cluster._brokers
    etcd = broker._context.etcd
    is_taken = False
    txn = etcd.txn

    async def slow(compares, operations):
        nonlocal is_taken
        if not is_taken and any(op.key.endswith("items/mine/new") for op in operations):
            is_taken = True
            taken = upserts(spec("mine/new", team="red"))
            assert (await guarded.Apply(taken, metadata=OPERATOR)).status == pb.OK
        return await txn(compares, operations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(etcd, "txn", slow)
        ours = upserts(spec("mine/new", team="blue"))
        code, _ = await failure(guarded.Apply(ours, metadata=label_limited))
    assert (code, is_taken) == (grpc.StatusCode.UNAUTHENTICATED, True)


async def test_a_guessed_revision_meets_the_spec_that_was_looked_at(
    etcd, etcd_prefix, guarded, cluster
):
    """A broker whose mirror lags judges by what it knows; the revision must be of just that."""
    label_limited = bearer(Capability.ALL, "team=blue")
    (broker,) = cluster._brokers
    space, txn, held = broker._context.space, broker._context.etcd.txn, []
    with pytest.MonkeyPatch.context() as patch:

        async def late(compares, operations):
            result = await txn(compares, operations)
            if any(op.key.endswith("items/mine/new") for op in operations):  # not one of its own
                patch.undo()
                space.apply_batches(held)
            return result

        patch.setattr(space, "apply_batches", held.extend)
        patch.setattr(broker._context.etcd, "txn", late)
        theirs = spec("mine/new", team="red").to_pb().SerializeToString()
        put = await etcd.txn([], [Put(item_key(etcd_prefix, "mine/new"), theirs)])
        await eventually(lambda: held)
        ours = upserts(spec("mine/new", team="blue"))
        ours.changes[0].expect_mod_revision = put.header.revision
        code, _ = await failure(guarded.Apply(ours, metadata=label_limited))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert space.state.items["mine/new"].spec.labels.values_of("team") == ("red",)


@pytest.mark.parametrize("url", TAKING_OVER)
async def test_overlapping_stores_in_etcd_are_not_served(
    etcd, etcd_prefix, cluster, broker, stub, url
):
    content = b"of those who are paid"
    await cluster.apply(stub, spec(PAY, "file:///"))
    store_fragment(cluster.fragments, PAY, 0, content)
    await eventually(lambda: read_is(stub, PAY, content))
    spy = spec(SPY, url)
    await etcd.txn([], [Put(item_key(etcd_prefix, SPY), spy.to_pb().SerializeToString())])
    refused = await eventually(lambda: answered(stub, SPY))
    assert refused.status == pb.FRAGMENT_STORE_UNHEALTHY
    assert "older journal" in refused.store_health_error
    assert f"journal {PAY}" not in refused.store_health_error
    listed = await stub.ListFragments(pb.FragmentsRequest(journal=PAY), timeout=20)
    assert [each.spec.journal for each in listed.fragments] == [PAY]
    assert (await append(stub, PAY, b"more", offset=len(content))).status == pb.OK
    assert broker.failure is None


async def read_is(stub, journal, content):
    return await read_all(stub, journal) == content


async def answered(stub, journal):
    response = await append(stub, journal, b"x")
    return response if response.status != pb.JOURNAL_NOT_FOUND else None


# ------------------------------------------------------------------------------- allowed stores
async def test_stores_that_the_operator_does_not_allow(etcd, etcd_prefix, cluster):
    allowed = ("file:///tenants/", "s3://bucket/a/")
    broker = await cluster.start(stores_allowed=allowed)
    stub = cluster.stub(broker)
    for url in (
        "file:///",
        "file:///tenants-too/",
        "file:///other/",
        "s3://bucket/b/",
        "s3://other/a/",
    ):
        _, text = await failure(stub.Apply(upserts(spec(SPY, url))))
        assert "--broker.stores-allowed" in text
        refused = await health(stub, url)
        assert "--broker.stores-allowed" in refused.store_health_error
    assert (await stub.Apply(upserts(spec(SPY, "file:///tenants/blue/")))).status == pb.OK
    there = spec("mine/there", "file:///other/")
    await etcd.txn([], [Put(item_key(etcd_prefix, there.name), there.to_pb().SerializeToString())])
    refused = await eventually(lambda: answered(stub, there.name))
    assert "--broker.stores-allowed" in refused.store_health_error
    assert not (cluster.fragments / "other").exists()


# ------------------------------------------------------------------------------- health of stores
async def health(stub, store, metadata=None, **fields):
    request = pb.FragmentStoreHealthRequest(fragment_store=store, **fields)
    return await stub.FragmentStoreHealth(request, timeout=20, metadata=metadata)


async def test_health_is_reported_of_stores_within_the_claims(guarded, cluster):
    reader = bearer(Capability.READ, MINE)
    read_all_of = bearer(Capability.READ)
    for metadata in (reader, MINE_ALL, read_all_of):
        code, text = await failure(health(guarded, "file:///new/", metadata))
        assert (code, "not authorized" in text) == (grpc.StatusCode.UNAUTHENTICATED, True)
    await failure(health(guarded, "file:///", MINE_ALL))  # only others' journals name it
    assert (await health(guarded, "file:///", read_all_of)).status == pb.OK
    await guarded.Apply(upserts(spec(SPY, "file:///mine-store/")), metadata=OPERATOR)
    for metadata in (reader, MINE_ALL, OPERATOR):
        found = await health(guarded, "file:///mine-store/", metadata)
        assert (found.status, found.store_health_error) == (pb.OK, "")


async def test_a_delete_probe_of_others_folders_is_refused(guarded, cluster):
    await guarded.Apply(upserts(spec(SPY, "file:///")), metadata=OPERATOR)
    for prefix in (f"{PAY}/", "x/" * 200, "mine/", f"{SPY}-not/"):
        probe = {"check_delete": True, "check_delete_prefix": prefix}
        code, _ = await failure(health(guarded, "file:///", MINE_ALL, **probe))
        assert code is grpc.StatusCode.UNAUTHENTICATED
    probe = {"check_delete": True, "check_delete_prefix": f"{SPY}/"}
    assert (await health(guarded, "file:///", MINE_ALL, **probe)).status == pb.OK
    assert not (cluster.fragments / "x").exists()


# --------------------------------------------------------------------------------- large requests


async def listed(stub, request):
    return [
        j.spec.name async for message in stub.List(request, timeout=60) for j in message.journals
    ]


async def test_lists_of_large_specs_fit_the_messages_of_clients(cluster, broker, stub):
    for n in range(8):
        labels = {f"label-{i:03}": "v" * 1000 for i in range(200)}
        assert (await stub.Apply(upserts(spec(f"many/{n}", **labels)))).status == pb.OK
    messages = [m async for m in stub.List(pb.ListRequest(), timeout=20)]
    assert sum(len(m.journals) for m in messages) == 8
    assert max(m.ByteSize() for m in messages) < 2 << 20


@pytest.mark.parametrize("character", ["x", "\u0416", "\U0001f600"])
async def test_an_error_of_large_input_is_reported_in_short(cluster, broker, stub, character):
    request = pb.FragmentStoreHealthRequest(
        fragment_store="file:///", check_delete=True, check_delete_prefix=character * 900_000
    )
    code, text = await failure(stub.FragmentStoreHealth(request, timeout=20))
    assert code is grpc.StatusCode.UNKNOWN
    assert text.startswith("CheckDeletePrefix: ")
    assert len(text) < 3100


async def test_pages_of_fragments_with_long_names_fit_the_messages_of_clients(cluster, stub):
    url = "file:///" + "/".join(["x" * 250] * 7) + "/"
    folder = cluster.fragments.joinpath(*url.removeprefix("file:///").split("/"))

    def store_all():
        for n in range(1200):
            store_fragment(folder, GOOD, n, b"x")

    await asyncio.to_thread(store_all)  # the broker has a lease to keep meanwhile
    await cluster.apply(stub, spec(GOOD, url))
    token, begins = 0, []
    for _ in range(10):
        request = pb.FragmentsRequest(journal=GOOD, page_limit=10_000, next_page_token=token)
        request.signatureTTL.seconds = 60
        page = await stub.ListFragments(request, timeout=20)
        assert page.ByteSize() < 3 << 20
        begins += [each.spec.begin for each in page.fragments]
        token = page.next_page_token
        if not token:
            break
    assert begins == list(range(1200))
