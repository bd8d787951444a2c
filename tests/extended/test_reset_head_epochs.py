"""Heads are reset while the brokers that hold a journal are away, and may come back."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shutil
import subprocess
import sys

import pytest
from journal_calls import JOURNAL, client_of, read_all, spec

from gazette_platform.broker.journal.replica import Replica
from gazette_platform.broker.spool.leftovers import Leftovers
from gazette_platform.client import AwaitedBroker, Change
from gazette_platform.errors import GazetteError, SpoolsAwaited
from gazette_platform.protocol import AppendSuspend
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd

REFUSED = r"only spools of .*reset-head"


def gazctl(server, *args, stdin=subprocess.DEVNULL):
    command = [sys.executable, "-m", "gazette_platform.cli.gazctl", "journals", *args]
    return subprocess.run(
        [*command, f"--broker.address={server.address}"],
        capture_output=True,
        text=True,
        timeout=90,
        stdin=stdin,
        check=False,
    )


async def reset(server, *options, **keywords):
    args = ("reset-head", "-l", f"name={JOURNAL}", *options)
    return await asyncio.to_thread(gazctl, server, *args, **keywords)


async def reset_at_terminal(server, answer):
    terminal, stdin = pty.openpty()
    try:
        os.write(terminal, answer)
        return await reset(server, stdin=stdin)
    finally:
        os.close(terminal)
        os.close(stdin)


@pytest.fixture
def servers(start_servers):
    found = start_servers("za", "zb", flags=["--broker.append-wait=1s"])
    return {f"{server.zone}#{server.id}": server for server in found}


async def route(client):
    members = (await client.get(JOURNAL)).route.members
    return [f"{member.zone}#{member.suffix}" for member in members]


async def killed(servers, *, stored=b""):
    """Append content to a new journal, and kill the broker that holds it.

    Returns: the names of that broker and of the other one, which took the journal over.
    """
    async with client_of(next(iter(servers.values()))) as client:
        await client.apply([Change(spec())])
        await client.append(JOURNAL, b"")
        (name,) = await route(client)
        (other,) = set(servers) - {name}
        if stored:
            await client.append(JOURNAL, stored)
            await client.flush(f"name={JOURNAL}")
        await client.append(JOURNAL, b"held")
    servers[name].kill()
    async with client_of(servers[other]) as client:

        async def is_taken_over():
            return await route(client) == [other]

        await eventually(is_taken_over, timeout_s=60)
    return name, other


async def check_refused(server, name):
    async with client_of(server, retry_timeout_s=1) as client:
        with pytest.raises(GazetteError, match=name) as caught:
            await client.append(JOURNAL, b"refused")
        assert "reset-head" in str(caught.value)


async def test_a_holder_that_comes_back_needs_no_reset(servers):
    name, other = await killed(servers, stored=b"stored ")
    await check_refused(servers[other], name)
    done = await reset(servers[other], "--dry-run")
    assert (done.returncode, done.stdout) == (0, f"{JOURNAL}: head would be 7\n")
    what = f"content from 7 on that only the spools of {name} hold would be given up"
    assert done.stderr == f"{JOURNAL}: {what}\n"
    done = await reset(servers[other])
    assert (done.returncode, done.stdout) == (1, "")
    assert what in done.stderr
    assert "--yes" in done.stderr
    async with client_of(servers[other], retry_timeout_s=1) as client:
        state = await client.check_head(JOURNAL)
        assert (state.head, state.is_refused) == (7, True)
        assert state.awaited == (AwaitedBroker(name, is_running=False),)
        with pytest.raises(SpoolsAwaited, match="would be given up"):
            await client.reset_head(JOURNAL)
        with pytest.raises(GazetteError, match=REFUSED):
            # As Gazette's reset-head begins.
            await client.write_head(JOURNAL)
        with pytest.raises(GazetteError, match=REFUSED):
            await client.append(JOURNAL, b"", offset=7, suspend=AppendSuspend.SUSPEND_KEEP)
    await check_refused(servers[other], name)
    await asyncio.to_thread(servers[name].start)
    async with client_of(servers[other]) as client:
        assert (await client.append(JOURNAL, b" and more")).begin == 11
        assert await read_all(client) == b"stored held and more"
    for server in servers.values():
        async with client_of(server) as client:
            assert await client.reset_head(JOURNAL) == 20
            assert not (await client.check_head(JOURNAL)).is_refused


async def test_who_never_comes_back_is_given_up(servers):
    name, other = await killed(servers, stored=b"stored ")
    shutil.rmtree(servers[name].spool)
    done = await reset_at_terminal(servers[other], b"n\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"only the spools of {name} hold would be given up" in done.stderr
    await check_refused(servers[other], name)
    done = await reset_at_terminal(servers[other], b"y\n")
    assert (done.returncode, done.stdout) == (0, f"{JOURNAL}: head is 7\n")
    done = await reset(servers[other], "--yes")  # nothing is refused any more
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{JOURNAL}: head is 7\n", "")
    async with client_of(servers[other]) as client:
        assert (await client.append(JOURNAL, b"new")).begin == 7
        assert await read_all(client) == b"stored new"
    log = servers[other].log.read_text()
    assert f"it goes on at 7; what only spools of {name} hold after that is given up" in log
    await asyncio.to_thread(servers[name].start)
    async with client_of(servers[name]) as client:
        assert (await client.append(JOURNAL, b"er")).begin == 10
        assert await read_all(client) == b"stored newer"


@pytest.mark.parametrize("stored", [b"", b"stored "], ids=["nothing stored", "some stored"])
async def test_what_was_given_up_is_set_aside_when_it_comes_back(servers, stored):
    name, other = await killed(servers, stored=stored)
    end = len(stored)
    async with client_of(servers[other]) as client:
        assert (await client.check_head(JOURNAL)).head == end
        assert await client.reset_head(JOURNAL, give_up=True) == end
        assert (await client.append(JOURNAL, b"new content")).begin == end
    await asyncio.to_thread(servers[name].start)
    aside = f"content [{end}, {end + 4}) of a spool of broker {name} is set aside"
    await eventually(lambda: aside in servers[name].log.read_text(), timeout_s=60)
    folder = servers[name].spool / "set-aside"
    (path,) = folder.glob("*.json")
    said = json.loads(path.read_text())
    assert (said["journal"], said["begin"], said["end"]) == (JOURNAL, end, end + 4)
    assert [one.read_bytes() for one in folder.iterdir() if one != path] == [b"held"]
    for server in servers.values():
        async with client_of(server) as client:
            assert await read_all(client) == stored + b"new content"
    async with client_of(servers[name]) as client:
        await client.flush(f"name={JOURNAL}")
    found = {path.read_bytes() for path in servers[name].fragments.rglob("*.raw")}
    assert found == {one for one in (stored, b"new content") if one}


async def test_reset_continues_after_what_a_holder_is_about_to_store(cluster, monkeypatch):
    """It came back at that moment: content below its end would contradict what it stores."""
    store, is_there, may_go_on = Leftovers._store, asyncio.Event(), asyncio.Event()

    async def store_later(self, found, valid_to):
        is_there.set()
        await may_go_on.wait()
        return await store(self, found, valid_to)

    async def others_were_asked(_, **__):
        return True  # before it came

    monkeypatch.setattr(Leftovers, "_store", store_later)
    monkeypatch.setattr(Replica, "settle_others", others_were_asked)
    former = await cluster.start(zone="za")
    await cluster.apply(cluster.stub(former), spec())
    async with client_of(former) as client:
        await client.append(JOURNAL, b"held")
    other = await cluster.start(zone="zb", append_wait_s=0.5)
    await former._server.stop(grace_s=0.0)
    await former._lease.revoke()
    await former.abandon()
    await eventually(lambda: JOURNAL in other._resolver.replicas)
    await cluster.start(zone="za")
    async with asyncio.timeout(patient(30)):
        await is_there.wait()
    async with client_of(other) as client:
        assert await client.reset_head(JOURNAL, give_up=True) == 4
        assert (await client.append(JOURNAL, b"new")).begin == 4
        may_go_on.set()
        assert await read_all(client) == b"heldnew"
    assert {path.read_bytes() for path in cluster.fragments.rglob("*.raw")} == {b"held"}


@pytest.mark.parametrize(
    ("what", "answer", "told"),
    [
        ("settle_others", False, "may still store content"),
        ("wait_ready", "the store is away", "the store is away"),
    ],
)
async def test_nothing_is_given_up_before_all_that_is_stored_is_known(
    cluster, monkeypatch, what, answer, told
):
    """Whoever stores content behind the new head later would contradict it."""
    former = await cluster.start(zone="za", append_wait_s=0.2)
    await cluster.apply(cluster.stub(former), spec())
    async with client_of(former) as client:
        await client.append(JOURNAL, b"held")
    other = await cluster.start(zone="zb", append_wait_s=0.2)
    await former._server.stop(grace_s=0.0)
    await former._lease.revoke()
    await former.abandon()
    await eventually(lambda: JOURNAL in other._resolver.replicas)

    async def problem(_, **__):
        return answer

    async with client_of(other, retry_timeout_s=1) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Replica, what, problem)
            with pytest.raises(GazetteError, match=told):
                await client.reset_head(JOURNAL, give_up=True)
        assert (await client.check_head(JOURNAL)).is_refused
        await client.reset_head(JOURNAL, give_up=True)
        assert not (await client.check_head(JOURNAL)).is_refused
