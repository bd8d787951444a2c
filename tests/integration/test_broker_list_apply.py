"""List and Apply at a real broker: Gazette's cases LA1, LA2, LA4 and LA5."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from journal_specs import journal_spec

from gazette_platform.protocol import Header, LabelSelector, LabelSet, ProcessId, Route
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, calls_begun
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

A, B, C = "journal/1/A", "journal/2/B", "journal/1/C"


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


def spec(name, **labels):
    return journal_spec(name, length=1024, stores=(), labels=labels)


def changes(*items):
    """A request of (spec or name to delete, expected revision) pairs."""
    request = pb.ApplyRequest()
    for what, revision in items:
        change = request.changes.add(expect_mod_revision=revision)
        if isinstance(what, str):
            change.delete = what
        else:
            change.upsert.CopyFrom(what.to_pb())
    return request


async def apply(stub, *items):
    return await stub.Apply(changes(*items), timeout=20)


async def listed(stub, selector=""):
    """The journals of a List by name, and all of its messages."""
    request = pb.ListRequest(selector=selector_of(selector).to_pb())
    messages = [message async for message in stub.List(request, timeout=20)]
    return {j.spec.name: j for message in messages for j in message.journals}, messages


def selector_of(text):
    return text if isinstance(text, LabelSelector) else LabelSelector.parse(text)


@pytest.fixture
async def three(stub):
    created = await apply(stub, (spec(A, foo=""), 0), (spec(B, bar=""), 0), (spec(C, bar=""), 0))
    assert created.status == pb.OK
    for name in (A, B, C):
        assert (await append(stub, name)).status == pb.OK  # each is assigned by now
    return created.header.etcd.revision


# -------------------------------------------------------------------------------------------- list
async def test_la1_all_journals_by_name(stub, three):
    journals, messages = await listed(stub)
    assert list(journals) == [A, C, B]
    header = messages[0].header
    assert header.process_id.suffix == "broker-0"
    assert header.route == pb.Route(primary=-1)
    assert header.etcd.revision >= three
    for listing in journals.values():
        assert (listing.mod_revision, listing.create_revision) == (three, three)
        assert [member.suffix for member in listing.route.members] == ["broker-0"]
        assert listing.route.primary == 0
        assert listing.route.endpoints[0].startswith("http://127.0.0.1:")
    assert journals[A].spec == spec(A, foo="").to_pb()


async def test_la1_journals_come_25_a_message(stub):
    names = [f"many/{n:03d}" for n in range(60)]
    await apply(stub, *((spec(name), 0) for name in names))
    journals, messages = await listed(stub)
    assert list(journals) == names
    assert [len(message.journals) for message in messages] == [25, 25, 10]
    assert [message.HasField("header") for message in messages] == [True, False, False]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("missing=label", []),
        ("!foo", [C, B]),
        ("foo", [A]),
        (f"name={B}", [B]),
        ("name:prefix=journal/1", [A, C]),
        ("name:prefix=journal/1/, !foo", [C]),
        (LabelSelector(include=LabelSet.of(prefix="journal/1/")), [A, C]),
    ],
)
async def test_la2_selectors(stub, three, selector, expected):
    journals, messages = await listed(stub, selector)
    assert list(journals) == expected
    assert messages[0].status == pb.OK


async def test_la2_a_prefix_needs_its_slash(stub):
    selector = LabelSelector(include=LabelSet.of(prefix="journal/1"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await listed(stub, selector)
    assert caught.value.details() == (
        "Selector.Include.Labels[\"prefix\"]: expected trailing '/' (journal/1)"
    )


class Watch:
    """Snapshots of a watched List."""

    def __init__(self, stub, selector="", **fields):
        selector = selector_of(selector).to_pb()
        self.call = stub.List(pb.ListRequest(watch=True, selector=selector, **fields))

    async def next(self):
        names = []
        async with asyncio.timeout(patient(10)):
            while True:
                message = await self.call.read()
                if not message.ByteSize():
                    return names
                names += [journal.spec.name for journal in message.journals]

    async def is_silent(self):
        try:
            async with asyncio.timeout(0.2):
                await self.next()
        except TimeoutError:
            return True
        return False


async def test_la4_a_watch(stub, three):
    watch = Watch(stub, "name:prefix=journal/1/")
    assert await watch.next() == [A, C]
    await apply(stub, (B, three))
    await apply(stub, (A, three))
    assert await watch.next() == [C], "what does not match is not announced"
    await apply(stub, (C, three))
    assert await watch.next() == []
    await apply(stub, (spec(A), 0))
    assert await watch.next() == [A]
    watch.call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch.call.read()


async def test_la4_a_changed_spec_is_announced(stub, three):
    watch = Watch(stub, "foo")
    assert await watch.next() == [A]
    await apply(stub, (spec(A, foo="1"), three))
    assert await watch.next() == [A]


async def test_la4_a_resumed_watch_waits_for_news(broker, stub, three):
    _, messages = await listed(stub)
    watch = Watch(stub, watch_resume=messages[0].header)
    assert await watch.is_silent()
    begun = calls_begun(broker, "List")
    watch = Watch(stub, watch_resume=messages[0].header)
    await eventually(lambda: calls_begun(broker, "List") > begun)
    await apply(stub, (B, -1))
    assert await watch.next() == [A, C]


async def test_v11_headers_without_a_journal_have_no_route(stub, three):
    """They say who answers, and at which revision; they follow the rules of headers."""
    _, messages = await listed(stub)
    applied = await apply(stub, (spec(A, foo="1"), three))
    health = await stub.FragmentStoreHealth(
        pb.FragmentStoreHealthRequest(fragment_store="file:///"), timeout=20
    )
    for response in (messages[0], applied, health):
        header = Header.from_pb(response.header)
        header.validate()
        assert header.process_id == ProcessId("local", "broker-0")
        assert header.route == Route((), -1)
        assert header.etcd.revision >= three
    assert applied.header.etcd.revision > three


# ------------------------------------------------------------------------------------------- apply
async def test_la5_create_update_delete(stub):
    created = await apply(stub, (spec(A), 0), (spec(B), 0))
    assert created.status == pb.OK
    assert created.header.process_id.suffix == "broker-0"
    first = created.header.etcd.revision
    journals, _ = await listed(stub)
    assert {j.mod_revision for j in journals.values()} == {first}, "applied before the answer"
    updated = await apply(stub, (spec(A, foo="1"), first))
    assert updated.status == pb.OK
    journals, _ = await listed(stub, f"name={A}")
    assert journals[A].create_revision == first
    assert journals[A].mod_revision == updated.header.etcd.revision > first
    deleted = await apply(stub, (B, first))
    assert deleted.status == pb.OK
    assert list((await listed(stub))[0]) == [A]


@pytest.mark.parametrize("what", [spec(A, foo="2"), A])
async def test_la5_a_wrong_revision(stub, what):
    revision = (await apply(stub, (spec(A), 0))).header.etcd.revision
    for wrong in (revision - 1, revision + 1):
        answer = await apply(stub, (spec(B), 0), (what, wrong))
        assert answer.status == pb.ETCD_TRANSACTION_FAILED
    assert list((await listed(stub))[0]) == [A], "all or nothing"
    assert (await apply(stub, (what, -1))).status == pb.OK


async def test_la5_deleting_what_is_not_there(stub):
    assert (await apply(stub, (A, -1))).status == pb.OK
    assert (await apply(stub, (A, 77))).status == pb.ETCD_TRANSACTION_FAILED


async def test_la5_more_changes_than_etcd_takes(stub):
    """Trying again would not help, so the code must not say so."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await apply(stub, *((spec(f"many/{n:03d}"), 0) for n in range(200)))
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert "too many operations" in caught.value.details()


async def test_no_changes_are_fine(stub):
    assert (await apply(stub)).status == pb.OK


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (spec("journal//A"), "Changes[0].Upsert.Name: must be a clean path (journal//A)"),
        (spec("/journal"), "Changes[0].Upsert.Name: cannot begin with '/' (/journal)"),
    ],
)
async def test_la5_an_invalid_change_is_named(stub, broken, text):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await apply(stub, (broken, 0))
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert caught.value.details() == text


@pytest.mark.parametrize(
    ("existing", "added"), [("dir/b", "dir/b/c"), ("dir/b/c", "dir/b"), ("dir/b/c/d", "dir/b")]
)
async def test_a_journal_may_not_be_a_directory_of_another(stub, existing, added):
    await apply(stub, (spec(existing), 0))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await apply(stub, (spec(added), 0))
    assert "would be a directory of journal" in caught.value.details()
    assert (await apply(stub, (existing, -1), (spec(added), 0))).status == pb.OK, "a replacement"
    assert list((await listed(stub))[0]) == [added]


async def test_names_that_share_letters_are_not_directories(stub):
    assert (await apply(stub, (spec("dir/b"), 0), (spec("dir/bc"), 0))).status == pb.OK


async def test_a_deleted_journal_is_gone_for_all(stub, three):
    await apply(stub, (A, three))

    async def is_gone():
        return (await append(stub, A)).status == pb.JOURNAL_NOT_FOUND

    await eventually(is_gone)
