"""Lists, watches and changes of journals."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

import grpc
import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, Client, ClientConfig
from gazette_platform.client.transport import Patience
from gazette_platform.errors import (
    CallFailed,
    DataError,
    EtcdTransactionFailed,
    JournalNotFound,
    NotAllowed,
    StatusError,
    Suspended,
    TransportError,
    ValidationError,
    WrongRoute,
)
from gazette_platform.protocol import CompressionCodec, JournalChange, is_another
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Condition
from gazette_platform.testing.fault_proxy import FaultProxy
from gazette_platform.testing.waiting import eventually
from tests.benches.fake_broker import FakeBroker, Fault


def spec(name, **labels):
    return journal_spec(name, codec=CompressionCodec.GZIP, refresh_s=10, stores=(), labels=labels)


@asynccontextmanager
async def connected(*names, **config):
    async with FakeBroker() as broker:
        for name in names:
            broker.journal(name)
        async with AsyncClient(ClientConfig(address=broker.address, **config)) as client:
            yield broker, client


async def test_li1_list_selects_by_text_and_learns_routes():
    async with connected("a/one", "a/two", "b/one") as (broker, client):
        found = await client.list("name:prefix=a/")
        assert [journal.name for journal in found] == ["a/one", "a/two"]
        assert found[0].mod_revision == 1
        assert found[0].route.endpoints == (broker.address,)
        with pytest.raises(ValidationError, match="could not match"):
            await client.list("a = = b")
        assert [j.name for j in found] == ["a/one", "a/two"]
        for name, is_known in (("a/one", True), ("a/two", True), ("b/one", False)):
            assert (client._transport.routes.get(name) is not None) is is_known


async def test_li2_get_finds_one_journal():
    async with connected("a/one") as (_, client):
        assert (await client.get("a/one")).name == "a/one"
        assert (await client.get("a/one;with/meta")).name == "a/one"
        with pytest.raises(JournalNotFound, match="a/two"):
            await client.get("a/two")


async def test_li5_apply_creates_updates_and_deletes():
    async with connected() as (broker, client):
        revision = await client.apply([JournalChange(spec("a/one", env="x"), "", 0)])
        assert revision == 2
        found = await client.get("a/one")
        assert found.spec == spec("a/one", env="x")
        with pytest.raises(EtcdTransactionFailed, match=r"applying a/one.*revision is stale"):
            await client.apply([JournalChange(spec("a/one"), "", 0)])
        await client.apply([JournalChange(None, "a/one", found.mod_revision)])
        assert await client.list() == []
        assert broker.calls["Apply"] == 3


async def test_li5_apply_in_batches_keeps_what_came_before_a_failure():
    async with connected() as (broker, client):
        changes = [JournalChange(spec(f"a/{n:04}"), "", 0) for n in range(5)]
        broker.fail("Apply", Fault(), Fault(status=pb.ETCD_TRANSACTION_FAILED))
        with pytest.raises(EtcdTransactionFailed):
            await client.apply(changes, batch_size=2)
        assert [journal.name for journal in await client.list()] == ["a/0000", "a/0001"]
        await client.apply([])
        assert broker.calls["Apply"] == 3


async def test_li5_an_apply_whose_answer_was_lost_is_not_made_again():
    """Though it is the first call: the next attempt would be refused for what this one has done."""
    async with connected() as (broker, client):
        broker.fail("Apply", Fault(code=grpc.StatusCode.UNAVAILABLE, after_commit=True))
        with pytest.raises(TransportError, match="apply of journals"):
            await client.apply([JournalChange(spec("a/one"))])
        assert broker.calls["Apply"] == 1
        assert "a/one" in broker.journals


async def test_li5_an_apply_that_was_never_sent_is_tried_again(monkeypatch):
    failures, wait = [], Patience.wait

    async def noted(self, error):
        failures.append(error)
        await wait(self, error)

    monkeypatch.setattr(Patience, "wait", noted)
    async with FakeBroker() as broker:
        host, _, port = broker.address.removeprefix("http://").partition(":")
        async with (
            FaultProxy(host, int(port)) as proxy,
            AsyncClient(ClientConfig(address=proxy.address)) as client,
        ):
            await client.list()
            proxy.refuse()
            channel = client._transport.wire().channel
            await eventually(lambda: channel.condition is not Condition.READY)
            applying = asyncio.get_running_loop().create_task(
                client.apply([JournalChange(spec("a/one"))])
            )
            await eventually(lambda: failures)
            await proxy.heal()
            await applying
        assert broker.calls["Apply"] == 1


async def test_li5_apply_refuses_bad_changes_before_any_call():
    async with connected() as (broker, client):
        with pytest.raises(ValidationError, match=r"Changes\[0\]\.Upsert\.Name: cannot begin"):
            await client.apply([JournalChange(spec("/a/one"), "", 0)])
        with pytest.raises(ValidationError, match=r"Changes\[0\]: invalid ExpectModRevision \(0"):
            await client.apply([JournalChange(None, "a/one", 0)])
        assert not broker.calls


async def test_li3_watch_reports_changes_and_resumes():
    async with connected("a/one") as (_broker, client):
        watch = client.watch()
        assert [j.name for j in await anext(watch)] == ["a/one"]
        await client.apply([JournalChange(spec("a/two"), "", 0)])
        assert [j.name for j in await anext(watch)] == ["a/one", "a/two"]
        await watch.aclose()


async def test_listings_have_the_history_that_a_broker_sends():
    """Journals of the same create revision are told apart once etcd was set up again."""
    async with connected("a/one") as (broker, client):
        known = (await client.get("a/one")).created
        assert known == 1  # a broker of Gazette sends no history
        found = []
        for broker.history in ("9f3c", "9f3c", "a101"):
            async with aclosing(client.watch()) as watch:
                [watched] = await anext(watch)
            listed = await client.get("a/one")
            assert watched.created == listed.created
            assert listed.create_revision == 1
            found.append(listed.created)
        assert found[0] == found[1]
        assert [is_another(found[0], one) for one in (known, found[1], found[2])] == [0, 0, 1]


async def test_li3_broken_watch_resumes_at_its_revision():
    async with connected("a/one") as (broker, client):
        broker.fail("List", Fault(code=grpc.StatusCode.UNAVAILABLE))
        watch = client.watch()
        await anext(watch)
        assert broker.calls["List"] == 2
        broker.fail("List", Fault(code=grpc.StatusCode.INTERNAL, details="broken"))
        await watch.aclose()
        with pytest.raises(TransportError, match="broken"):
            await anext(client.watch())


async def test_li1_listing_status_is_an_error():
    async with connected() as (broker, client):
        broker.fail("List", Fault(status=1000))
        with pytest.raises(StatusError, match="unknown status 1000"):
            await client.list()


async def test_li4_fragments_joins_pages_and_signs():
    async with connected("a/one") as (broker, client):
        await broker.extend("a/one", b"x" * 45)
        fragments = await client.fragments("a/one", page_limit=2, ttl_s=1.5)
        assert [f.fragment.begin for f in fragments] == [0, 10, 20, 30, 40]
        assert broker.calls["ListFragments"] == 3
        assert broker.requests[-1].signatureTTL.ToMilliseconds() == 1500
        assert fragments[0].is_persisted
        assert fragments[0].signed_url.startswith("file:///a/one/")
        page = await client.fragment_page("a/one", next_page_token=20, page_limit=1)
        assert (page.fragments[0].fragment.begin, page.next_page_token) == (20, 30)


async def test_fragments_are_not_listed_by_unknown_fields():
    async with AsyncClient() as client:
        for ask in (client.fragment_page, client.fragments):
            with pytest.raises(TypeError, match="unexpected keyword argument 'limit'"):
                await ask("a/journal", limit=5)


async def test_li4_fragments_surfaces_and_retries_statuses():
    async with connected("a/one") as (broker, client):
        broker.fail("ListFragments", Fault(status=pb.SUSPENDED))
        with pytest.raises(Suspended):
            await client.fragments("a/one")
        broker.fail(
            "ListFragments",
            Fault(code=grpc.StatusCode.UNAVAILABLE),
            Fault(status=pb.INSUFFICIENT_JOURNAL_BROKERS),
        )
        assert await client.fragments("a/one") == []


async def test_reset_head_appends_nothing_at_the_head():
    async with connected("a/one") as (broker, client):
        await broker.extend("a/one", b"x" * 45)
        assert await client.reset_head("a/one") == 45
        request = broker.requests[-1]
        assert (request.offset, request.suspend) == (45, pb.AppendRequest.SUSPEND_KEEP)
        assert broker.append_sizes == [0]


@pytest.mark.parametrize("status", [pb.WRONG_APPEND_OFFSET, pb.INDEX_HAS_GREATER_OFFSET])
async def test_reset_head_looks_again_if_the_head_moved(status):
    async with connected("a/one") as (broker, client):
        await broker.extend("a/one", b"x" * 45)
        broker.fail("Append", Fault(status=status))
        assert await client.reset_head("a/one") == 45
        assert broker.append_sizes == [0]


async def test_suspend_counts_suspended_as_success():
    async with connected("a/one") as (broker, client):
        assert await client.suspend("a/one") is False
        broker.fail("Append", Fault(status=pb.SUSPENDED))
        assert await client.suspend("a/one", force=True) is True
        assert broker.requests[-1].suspend == pb.AppendRequest.SUSPEND_NOW


async def test_sh1_store_health_is_a_value():
    async with connected() as (broker, client):
        assert (await client.store_health("file:///x/")).is_healthy
        request = broker.requests[-1]
        assert (request.fragment_store, request.check_delete) == ("file:///x/", False)
        broker.fail(
            "FragmentStoreHealth", Fault(status=pb.FRAGMENT_STORE_UNHEALTHY, details="no bucket")
        )
        health = await client.store_health("s3://x/", check_delete_prefix="p/")
        assert (health.store, health.is_healthy, health.error) == ("s3://x/", False, "no bucket")
        request = broker.requests[-1]
        assert (request.check_delete, request.check_delete_prefix) == (True, "p/")


async def test_sh1_an_empty_prefix_probes_the_root_and_none_does_not_probe():
    async with connected() as (broker, client):
        for prefix, expected in ((None, (False, "")), ("", (True, "")), ("p/", (True, "p/"))):
            await client.store_health("file:///x/", check_delete_prefix=prefix)
            request = broker.requests[-1]
            assert (request.check_delete, request.check_delete_prefix) == expected


async def test_sh1_other_statuses_and_failed_calls_are_errors():
    async with connected() as (broker, client):
        broker.fail(
            "FragmentStoreHealth",
            Fault(status=pb.NOT_ALLOWED),
            Fault(code=grpc.StatusCode.UNKNOWN, details="foobar"),
        )
        with pytest.raises(NotAllowed):
            await client.store_health("file:///x/")
        with pytest.raises(CallFailed, match=r"health check of file:///x/: .*foobar"):
            await client.store_health("file:///x/")


INVALID = pb.Header(route=pb.Route(primary=-1))


async def test_li1_an_invalid_response_is_an_error(monkeypatch):
    async with connected("a/one") as (broker, client):
        monkeypatch.setattr(type(broker), "header", lambda _: INVALID)
        with pytest.raises(
            DataError, match=r"validating broker response: Header\.Etcd: invalid Cl"
        ):
            await client.list()


async def test_li1_a_status_has_its_text():
    async with connected(retry_timeout_s=0.0) as (broker, client):
        broker.fail("List", Fault(status=pb.WRONG_ROUTE))
        with pytest.raises(WrongRoute, match="WRONG_ROUTE: list of journals"):
            await client.list()


async def test_li1_a_list_can_be_cancelled():
    async with connected() as (broker, client):
        broker.fail("List", Fault(stall=True))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.list(), 0.05)
        assert await client.list() == []


class Answer:
    """Messages of a List, after which it ends in order."""

    def __init__(self, *messages):
        self.messages = messages

    async def next(self):
        if not self.messages:
            return None
        message, *self.messages = self.messages
        return message.SerializeToString()

    async def greeting(self):
        return {}

    def cancel(self):
        pass


def listing_at(revision, *names):
    header = FakeBroker().header()
    header.etcd.revision = revision
    response = pb.ListResponse(header=header)
    response.journals.extend(listed(name, revision) for name in names)
    return response


def listed(name, revision):
    journal = {"spec": spec(name).to_pb(), "mod_revision": revision, "route": {"primary": -1}}
    return pb.ListResponse.Journal(**journal)


async def test_li3_a_watch_that_ends_is_begun_again(monkeypatch):
    """As when its broker leaves: another goes on after the last snapshot that was whole."""
    end = pb.ListResponse()
    more = pb.ListResponse(journals=[listed("a/three", 7)])
    answers = [
        Answer(listing_at(5, "a/one"), end, listing_at(6, "lost")),
        Answer(),
        Answer(listing_at(7, "a/one"), more, end),
        Answer(listing_at(7, "a/one"), end),
    ]
    requests = []

    class Wire:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        async def connected(self):
            return True

        def list(self, request, metadata):
            requests.append(pb.ListRequest.FromString(request))
            return answers.pop(0)

    async with AsyncClient(ClientConfig(address="http://127.0.0.1:1")) as client:
        monkeypatch.setattr(client._transport, "wire", Wire)
        watch = client.watch()
        assert [j.name for j in await anext(watch)] == ["a/one"]
        assert [j.name for j in await anext(watch)] == ["a/one", "a/three"]
        with pytest.raises(DataError, match="revision 7 is not above the 7"):
            await anext(watch)
    assert [r.watch_resume.etcd.revision for r in requests] == [0, 5, 5, 7]


async def test_li4_failed_calls_and_unknown_statuses_are_errors():
    async with connected("a/one") as (broker, client):
        broker.fail(
            "ListFragments",
            Fault(code=grpc.StatusCode.UNKNOWN, details="foobar"),
            Fault(status=1000),
            Fault(status=pb.JOURNAL_NOT_FOUND),
        )
        with pytest.raises(CallFailed, match="foobar"):
            await client.fragments("a/one")
        with pytest.raises(StatusError, match="unknown status 1000"):
            await client.fragments("a/one")
        with pytest.raises(JournalNotFound):
            await client.fragments("a/one")


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [(3, 0, [3]), (3, 3, [3]), (3, 1, [1, 1, 1]), (3, 2, [2, 1]), (0, 0, [0]), (0, 2, [0])],
)
async def test_li5_changes_come_in_batches(count, size, sizes):
    async with connected() as (broker, client):
        changes = [JournalChange(spec(f"a/{n:04}"), "", 0) for n in range(count)]
        assert await client.apply(changes, batch_size=size) == broker.revision
        assert [len(request.changes) for request in broker.requests] == sizes
        assert len(await client.list()) == count


async def test_li5_failed_calls_and_invalid_responses_are_errors(monkeypatch):
    async with connected() as (broker, client):
        change = JournalChange(spec("a/one"), "", 0)
        broker.fail("Apply", Fault(code=grpc.StatusCode.UNKNOWN, details="foobar"))
        with pytest.raises(CallFailed, match="foobar"):
            await client.apply([change])
        monkeypatch.setattr(type(broker), "header", lambda _: INVALID)
        with pytest.raises(DataError, match=r"Header\.Etcd: invalid ClusterId"):
            await client.apply([change])


async def test_unanswered_calls_end_at_their_deadline():
    async with connected(call_timeout_s=0.05, retry_timeout_s=0.1) as (broker, client):
        broker.fail("List", *[Fault(stall=True)] * 9)
        with pytest.raises(TransportError, match="did not answer in time"):
            await client.list()


async def test_synchronous_client_does_the_same():
    async with FakeBroker() as broker:

        def run():
            with Client(ClientConfig(address=broker.address)) as client:
                client.apply([JournalChange(spec("a/one"), "", 0)])
                assert [j.name for j in client.list()] == ["a/one"]
                assert client.get("a/one").spec == spec("a/one")
                assert client.append("a/one", (p for p in [b"x" * 20])).end == 20
                assert len(client.fragments("a/one")) == 2
                assert sum(len(p.fragments) for p in client.fragment_pages("a/one")) == 2
                assert client.write_head("a/one") == 20
                assert client.reset_head("a/one") == 20
                watch = client.watch()
                assert len(next(watch)) == 1
                watch.close()
                assert client.store_health("file:///x/").is_healthy
                assert client.suspend("a/one") is False
            client.close()
            with pytest.raises(ValidationError, match="client is closed"):
                client.list()

        await asyncio.to_thread(run)


async def test_synchronous_client_refuses_to_wait_for_itself():
    with Client(ClientConfig(address="http://127.0.0.1:1")) as client:

        async def bad():
            client.list()

        with pytest.raises(ValidationError, match="cannot wait for its own event loop"):
            await asyncio.to_thread(client.run, bad())


async def test_li1_continuations_must_hold_journals(monkeypatch):
    async with connected("a/one") as (_, client):
        from gazette_platform.client.journals import _snapshot

        with pytest.raises(DataError, match="empty continuation"):
            _snapshot(
                client._transport,
                [pb.ListResponse(header=FakeBroker().header()), pb.ListResponse()],
                history=0,
            )


async def test_fragments_that_cannot_be_are_not_believed(monkeypatch):
    async with connected("a/one") as (broker, client):
        journal = broker.journals["a/one"]
        journal.content.extend(b"0123456789")
        assert [listed.fragment.end for listed in await client.fragments("a/one")] == [10]
        monkeypatch.setattr(journal, "name", "a/ journal")
        with pytest.raises(DataError, match=r"Fragments\[0\]\.Spec\.Journal: not a valid token"):
            await client.fragments("a/one")
