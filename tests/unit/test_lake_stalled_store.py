"""Stores that accept connections and never answer: what a tick waits for them, and for brokers in their place."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import StoreUnavailable, TransportError
from gazette_platform.lake import Auditor, BrokerSource, Registrar, StoreRoots, parse_table_spec
from gazette_platform.lake.reading import (
    fragment_source as source_module,
    storage,
    storage as copies_module,
)
from gazette_platform.lake.reading.storage import StoreFiles, copy_within, object_files
from gazette_platform.protocol import Fragment
from gazette_platform.stores import open_store

SPEC = """
name: s.events
selector: name:prefix=events/
format: json
columns: [{name: id, type: bigint}]
partitions: [{name: hour, type: int}]
"""
JOURNAL = "events/part=0"
STEP_S = 1.0


@contextmanager
def black_hole():
    """Accepts whatever connects, and says nothing."""
    held = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def accept():
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            for each in held:
                each.close()


@pytest.fixture
def port():
    with black_hole() as port:
        yield port


@pytest.fixture
def store(port, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(storage, "_STEP_TIMEOUT_S", STEP_S)
    return f"s3://bucket/lake/?endpoint=http://127.0.0.1:{port}&region=us-east-1"


def took(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_a_store_that_does_not_answer_is_waited_for_once(store):
    files = object_files(store)
    calls = [
        lambda: files.size("a"),
        lambda: files.exists("a"),
        lambda: files.list("a"),
        lambda: b"".join(files.read("a")),
        lambda: files.remove("a"),
        lambda: files.move("a", "b"),
    ]

    def each_of(these):
        for call in these:
            with pytest.raises(StoreUnavailable, match=r"bucket.*did not answer"):
                call()

    assert took(lambda: each_of(calls[:1])) >= STEP_S / 2
    assert files.is_away
    # They do not wait again: each would for a step.
    assert took(lambda: each_of(calls[1:])) < STEP_S * len(calls[1:])


def test_a_tick_and_an_audit_of_a_store_that_does_not_answer(store, tmp_path, monkeypatch):
    files = FragmentFiles(tmp_path / "fragments")
    fragments = [files.append(JOURNAL, b'{"id":1}\n', postfix=f"hour={n}") for n in range(8)]
    at = files._fragments[JOURNAL]
    for fragment in fragments:
        at[at.index(fragment)] = Fragment(
            JOURNAL,
            fragment.begin,
            fragment.end,
            sum=fragment.sum,
            codec=fragment.codec,
            backing_store=store,
            mod_time=1,
            path_postfix=fragment.path_postfix,
        )
    metastore, roots = MemoryMetastore(), StoreRoots({})
    spec = parse_table_spec(SPEC)

    def tick():
        report = Registrar(files, metastore, roots).tick(spec, {})
        # Brokers, who may reach it, were asked in its place.
        assert [u.rows_added for u in report.updates] == [1] * 8

    assert took(tick) < 3 * STEP_S + 10

    def audit():
        with metastore.connect() as session:
            table = session.table("s", "events")
            auditor = Auditor(files, roots)
            found = auditor.audit(session, table, JOURNAL, lists_objects=True)
        assert {f.is_checked for f in found.findings} == {False}

    assert took(audit) < 3 * STEP_S + 10


def test_brokers_that_do_not_answer_are_not_waited_for_either(port, monkeypatch):
    monkeypatch.setattr(source_module, "_PIECE_TIMEOUT_S", STEP_S)
    fragment = Fragment(JOURNAL, 0, 9, backing_store="s3://bucket/", mod_time=1)
    # It has patience of its own, which is none that a tick has.
    config = ClientConfig(address=f"http://127.0.0.1:{port}", connect_timeout_s=90.0)

    def read():
        with (
            Client(config) as client,
            pytest.raises(TransportError, match="brokers gave nothing of events/part=0"),
        ):
            b"".join(BrokerSource(client).content(fragment))

    assert took(read) < 30


class SlowStore:
    """A store whose copies take until they are let go; over a folder."""

    def __init__(self, folder):
        self._store = open_store("file:///", file_root=folder)
        self.url = "slow://"
        self.puts = 0
        self.may_end = threading.Event()

    def __getattr__(self, name):
        return getattr(self._store, name)

    def local_path(self, _path):
        return None

    async def put(self, path, fd, length, **options):
        self.puts += 1
        await asyncio.get_running_loop().run_in_executor(None, self.may_end.wait, 60)
        await self._store.put(path, fd, length, **options)


def test_a_copy_that_takes_longer_goes_on_and_is_found_done(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_COPY_PATIENCE_S", 0.2)
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "large").write_bytes(b"content")
    slow = SlowStore(tmp_path)
    files = StoreFiles(slow, lambda path: path)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="k/copy is still being copied"):
            files.move("j/large", "k/copy")
    assert slow.puts == 1
    slow.may_end.set()
    monkeypatch.setattr(storage, "_COPY_PATIENCE_S", 60.0)
    files.move("j/large", "k/copy")
    assert slow.puts == 1
    assert (files.exists("j/large"), files.size("k/copy")) == (False, 7)


def test_copies_at_once_are_bounded_and_their_errors_are_reported():
    may_end = threading.Event()
    for n in range(copies_module._COPIES_MAX):
        with pytest.raises(StoreUnavailable, match="which goes on"):
            copy_within(("s", f"f{n}"), lambda: may_end.wait(60) and None, 0.01)
    with pytest.raises(StoreUnavailable, match="4 other files are being copied"):
        copy_within(("s", "more"), lambda: None, 60)
    may_end.set()
    for n in range(copies_module._COPIES_MAX):
        copy_within(("s", f"f{n}"), lambda: None, 60)

    def refused():
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        copy_within(("s", "x"), refused, 60)
    assert copies_module._running == {}
