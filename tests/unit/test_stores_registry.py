"""The registry of stores, health checks and the delete probe."""

from __future__ import annotations

import asyncio
import errno
import random
import resource
import tempfile
from pathlib import Path

import pytest

from gazette_platform.errors import (
    AccessDenied,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
)
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.faults import Faults
from gazette_platform.stores import (
    ActiveStore,
    StoredObject,
    StoreRegistry,
    clock_probe,
    delete_probe,
    health_check,
    open_store,
)
from gazette_platform.testing.store_conformance import listing
from gazette_platform.testing.waiting import turns


class ScriptedStore:
    """Records its calls; fails or answers as the test says."""

    def __init__(self, url="file:///", **answers):
        self.url = url
        self.calls = []
        self.answers = answers

    def answer(self, name, *args, default=None):
        self.calls.append((name, *args))
        answer = self.answers.get(name, default)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def exists(self, path):
        return self.answer("exists", path, default=True)

    async def get(self, path, *, piece_bytes=0):
        answer = self.answer("get", path, default=[b"health-", b"check\n"])
        for piece in answer:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def put(self, path, fd, length, *, content_encoding=""):
        with open(f"/proc/self/fd/{fd}", "rb") as file:  # noqa: PTH123, ASYNC230
            self.answer("put", path, file.read(), length, content_encoding)

    async def list(self, prefix):
        for item in self.answer("list", prefix, default=[StoredObject("x", 1, 2)]):
            yield item

    async def remove(self, path):
        self.answer("remove", path)

    async def sign_get(self, path, ttl_s):
        return self.answer("sign_get", path, ttl_s, default="file:///x")

    def local_path(self, path):
        return Path("/local") / path


class Checks:
    """Health checks whose results a test hands out one by one."""

    def __init__(self):
        self.results = asyncio.Queue()
        self.waits = []

    async def check(self, store):
        result = await self.results.get()
        if result is not None:
            raise result

    async def pause(self, seconds, asked):
        self.waits.append(seconds)


def make(tasks, opener=ScriptedStore, clock=None, checks=None, rng=None):
    checks = checks or Checks()
    return StoreRegistry(
        opener,
        clock or ManualClock(),
        tasks,
        rng=rng or random.Random(1),
        check=checks.check,
        pause=checks.pause,
    )


async def test_so1_one_store_per_url(tasks):
    registry = make(tasks)
    first = registry.get("file:///a/")
    assert registry.get("file:///a/") is first
    assert registry.get("file:///b/") is not first
    assert len(registry) == len(tasks) == 2


async def test_so1_failures_to_open_are_not_kept(tasks):
    opened = []

    def opener(url):
        opened.append(url)
        if len(opened) < 3:
            return open_store("file:///", file_root=None)
        return ScriptedStore(url)

    registry = make(tasks, opener)
    for _ in range(2):
        with pytest.raises(StoreError, match="needs a directory"):
            registry.get("s3://bucket/")
    assert len(registry) == 0
    assert registry.get("s3://bucket/").url == "s3://bucket/"


async def test_so1_concurrent_gets_share_one(tasks):
    opened = []

    def opener(url):
        opened.append(url)
        return ScriptedStore(url)

    registry = make(tasks, opener)

    async def get():
        return registry.get("file:///")

    stores = await asyncio.gather(*(get() for _ in range(10)))
    assert len(opened) == 1
    assert len({id(store) for store in stores}) == 1


async def test_so2_sweep_drops_what_was_not_used(tasks):
    registry = make(tasks)
    kept, dropped = registry.get("file:///kept/"), registry.get("file:///dropped/")
    registry.sweep()
    assert len(registry) == 2  # both were marked by their first use
    registry.get("file:///kept/")
    registry.sweep()
    assert len(registry) == 1
    assert registry.get("file:///kept/") is kept
    assert str(dropped.health.error) == "health checks have stopped"
    assert dropped.health.checks == 0
    fresh = registry.get("file:///dropped/")
    assert fresh is not dropped
    assert "first health check" in str(fresh.health.error)


async def test_so2_sweeps_are_hourly(tasks):
    clock = ManualClock()
    registry = make(tasks, clock=clock)
    registry.get("file:///unused/")
    for _ in range(2):
        clock.advance(3599)
        registry.get("file:///used/")
        assert len(registry) == 2
        clock.advance(1)
        registry.get("file:///used/")
    assert len(registry) == 1


async def test_so2_a_dropped_stores_loop_ends(tasks):
    registry = make(tasks)
    registry.get("file:///")
    registry.sweep()
    registry.sweep()
    await asyncio.wait_for(tasks.join(), 5)


async def test_so3_unhealthy_before_the_first_check(tasks):
    checks = Checks()
    store = make(tasks, checks=checks).get("file:///")
    first = store.health
    assert str(first.error) == "first health check hasn't completed yet"
    assert first.checks == 0
    waiters = [tasks.spawn(store.wait_health_change(first)) for _ in range(3)]
    await turns()
    checks.results.put_nowait(None)
    healths = await asyncio.wait_for(asyncio.gather(*waiters), 5)
    assert {id(health) for health in healths} == {id(store.health)}
    assert store.health.error is None
    assert store.health.checks == 1
    # A result that came before is given at once.
    assert await store.wait_health_change(first) is store.health


async def test_so3_each_result_wakes_again(tasks):
    checks = Checks()
    store = make(tasks, checks=checks).get("file:///")
    health = store.health
    for result in (StoreUnavailable("down"), StoreUnavailable("down"), None):
        checks.results.put_nowait(result)
        health = await asyncio.wait_for(store.wait_health_change(health), 5)
        assert health.error is result
    assert health.checks == 3


async def test_intervals_of_checks(tasks):
    """Failures in a row wait longer and longer; a success starts again."""
    checks = Checks()

    class Middle(random.Random):
        def uniform(self, a, b):
            assert (a, b) == (0.8, 1.2)
            return 1.0

    store = make(tasks, checks=checks, rng=Middle()).get("file:///")
    for result in [StoreUnavailable("x")] * 8 + [None, None, StoreUnavailable("x")]:
        since = store.health
        checks.results.put_nowait(result)
        await asyncio.wait_for(store.wait_health_change(since), 5)
    await turns()
    assert checks.waits == [0, 0.1, 1, 1, 10, 10, 100, 100, 1800, 1800, 0]


async def test_a_failed_listing_checks_its_store_once_a_minute():
    clock = ManualClock()
    active = ActiveStore(ScriptedStore(list=StoreUnavailable("an odd answer")), clock)
    active.update_health(None)
    for second, is_checked in ((0, True), (1, False), (61, True)):
        clock.advance(second)
        active.check_asked.clear()
        with pytest.raises(StoreUnavailable, match="odd"):
            await listing(active, "j/")
        assert active.check_asked.is_set() is is_checked


async def test_health_says_for_how_long_a_store_fails():
    clock = ManualClock()
    store = ActiveStore(ScriptedStore(), clock)
    error = StoreUnavailable("away")
    begun_s = clock.monotonic()
    found = []
    for result in (None, error, error, error, None):
        clock.advance(1)
        store.update_health(result)
        found.append((store.health.failures, store.health.since_s - begun_s))
    assert found == [(0, 1), (1, 2), (2, 2), (3, 2), (0, 5)]
    store.update_health(error, is_check=False)
    assert (store.health.failures, store.health.checks) == (0, 5)


async def test_so4_active_store_delegates():
    scripted = ScriptedStore("file:///x/", sign_get="file:///signed")
    store = ActiveStore(scripted, ManualClock())
    assert store.url == "file:///x/"
    assert store.store is scripted
    assert await store.exists("p")
    assert [piece async for piece in store.get("p")] == [b"health-", b"check\n"]
    with open("/dev/null", "rb") as file:  # noqa: PTH123, ASYNC230
        await store.put("p", file.fileno(), 0, content_encoding="gzip")
    assert [item async for item in store.list("d/")] == [StoredObject("x", 1, 2)]
    await store.remove("p")
    assert await store.sign_get("p", 9) == "file:///signed"
    assert store.local_path("p") == Path("/local/p")
    assert scripted.calls == [
        ("exists", "p"),
        ("get", "p"),
        ("put", "p", b"", 0, "gzip"),
        ("list", "d/"),
        ("remove", "p"),
        ("sign_get", "p", 9),
    ]


async def test_so4_active_store_passes_errors_on():
    error = ObjectNotFound("gone")
    store = ActiveStore(ScriptedStore(exists=error, remove=error), ManualClock())
    for call in (store.exists, store.remove):
        with pytest.raises(ObjectNotFound, match="gone"):
            await call("p")


async def test_so5_health_check_passes():
    store = ScriptedStore()
    await health_check(store)
    assert store.calls == [
        ("put", ".test/health-check", b"health-check\n", 13, ""),
        ("get", ".test/health-check"),
        ("list", ".test/"),
        ("sign_get", ".test/health-check", 300.0),
    ]


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ({"put": StoreUnavailable("disk full")}, "health check PUT failed: disk full"),
        ({"get": ObjectNotFound("gone")}, "health check GET failed: gone"),
        ({"get": [b"he", StoreUnavailable("reset")]}, "health check GET failed: reset"),
        ({"get": [b"other"]}, "health check GET failed: content mismatch: .* read b'other'"),
        ({"get": []}, "health check GET failed: content mismatch: .* read b''"),
        ({"list": StoreUnavailable("slow")}, "health check LIST failed: slow"),
        ({"sign_get": StoreUnavailable("no key")}, "health check SIGN failed: no key"),
    ],
)
async def test_so5_health_check_names_the_step(answers, text):
    with pytest.raises(StoreError, match=f"^{text}"):
        await health_check(ScriptedStore(**answers))


async def test_so5_signed_urls_are_fetched():
    store = ScriptedStore(sign_get="https://host/x?signature")
    bodies = {"https://host/x?signature": b"health-check\n"}

    async def fetch(url):
        return bodies[url]

    await health_check(store, fetch=fetch)
    bodies["https://host/x?signature"] = b"<Error/>"
    with pytest.raises(StoreError, match="health check signed GET failed: content mismatch"):
        await health_check(store, fetch=fetch)


async def test_so5_fetch_of_an_unreachable_url():
    store = ScriptedStore(sign_get="http://127.0.0.1:1/x")
    with pytest.raises(StoreUnavailable, match="health check signed GET failed: GET of the signed"):
        await health_check(store)


async def test_so5_a_check_that_hangs_fails():
    class Hanging(ScriptedStore):
        async def put(self, *args, **kwargs):
            await asyncio.Event().wait()

    with pytest.raises(StoreUnavailable, match=r"PUT of the health check took over 0\.001 s"):
        await health_check(Hanging(), timeout_s=0.001)
    with pytest.raises(StoreUnavailable, match=r"delete-probe PUT failed: over 0\.001 s"):
        await delete_probe(Hanging(), timeout_s=0.001)
    with pytest.raises(StoreUnavailable, match=r"clock probe PUT failed: over 0\.001 s"):
        await clock_probe(Hanging(), timeout_s=0.001)


async def test_so5_failure_keeps_its_kind():
    with pytest.raises(AccessDenied):
        await health_check(ScriptedStore(put=AccessDenied("denied")))


async def test_a_clock_probe_that_is_not_listed_is_an_error():
    with pytest.raises(StoreUnavailable, match="what was just written is not listed"):
        await clock_probe(ScriptedStore())
    with pytest.raises(AccessDenied, match="clock probe PUT failed: denied"):
        await clock_probe(ScriptedStore(put=AccessDenied("denied")))


async def test_so6_delete_probe():
    store = ScriptedStore()
    await delete_probe(store)
    assert store.calls == [
        ("put", ".gazette-delete-probe", b"gazette-delete-probe\n", 21, ""),
        ("remove", ".gazette-delete-probe"),
    ]
    below = ScriptedStore()
    await delete_probe(below, prefix="a/b/")
    assert [call[:2] for call in below.calls] == [
        ("put", "a/b/.gazette-delete-probe"),
        ("remove", "a/b/.gazette-delete-probe"),
    ]
    denied = ScriptedStore(remove=AccessDenied("denied"))
    with pytest.raises(AccessDenied, match=r"^delete-probe DELETE failed: denied$"):
        await delete_probe(denied)
    full = ScriptedStore(put=StoreUnavailable("full"))
    with pytest.raises(StoreUnavailable, match=r"^delete-probe PUT failed: full$"):
        await delete_probe(full)
    assert [call[0] for call in full.calls] == ["put"]


async def test_so5_over_a_real_directory(tmp_path, tasks):
    """Unhealthy while the directory is missing, healthy as soon as it exists."""
    root = tmp_path / "root"
    registry = StoreRegistry(
        lambda url: open_store(url, file_root=root), ManualClock(), tasks, rng=random.Random(1)
    )
    store = registry.get("file:///pre/")
    health = await asyncio.wait_for(store.wait_health_change(store.health), 5)
    assert isinstance(health.error, AccessDenied)
    assert f"invalid file store directory {root}" in str(health.error)
    root.mkdir()
    while health.error is not None:
        health = await asyncio.wait_for(store.wait_health_change(health), 5)
    assert (root / "pre" / ".test" / "health-check").read_bytes() == b"health-check\n"


# ------------------------------------------------------------------- this process, not the store
async def test_a_health_check_needs_no_room_in_the_folder_of_temporary_files(monkeypatch):
    """Brokers of one machine share it: were it full, all of them would take their stores for bad."""

    def full(*_args, **_settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(tempfile, "mkstemp", full)
    await health_check(ScriptedStore())


async def test_without_file_descriptors_a_store_is_unhealthy_for_now(tasks):
    """Its checks go on, and it is healthy again as soon as there are some."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    pause = asyncio.Event()

    async def until_set(*_):
        await pause.wait()
        pause.clear()

    registry = StoreRegistry(ScriptedStore, ManualClock(), tasks, pause=until_set)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        store = registry.get("file:///")
        health = await store.wait_health_change(store.health)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert isinstance(health.error, StoreUnavailable)
    assert "health check PUT failed: [Errno 24] Too many open files" in str(health.error)
    pause.set()
    assert (await store.wait_health_change(health)).error is None


async def test_check_that_fails_unexpectedly_means_an_unhealthy_store(tasks):
    checks, faults = Checks(), Faults()
    registry = StoreRegistry(
        ScriptedStore,
        ManualClock(),
        tasks,
        check=checks.check,
        pause=checks.pause,
        faults=faults,
    )
    store = registry.get("file:///")
    checks.results.put_nowait(KeyError("unforeseen"))
    health = await store.wait_health_change(store.health)
    assert "health check: unforeseen KeyError: 'unforeseen'" in str(health.error)
    assert faults.reported == 1
    checks.results.put_nowait(None)
    assert (await store.wait_health_change(health)).error is None
