"""The persister: Gazette's cases, by their numbers, and what ours adds."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from persister_bench import CONTENT, JOURNAL, PersisterBench

from gazette_platform.broker.spool import persister
from gazette_platform.codecs import decompressor
from gazette_platform.errors import AccessDenied, StoreUnavailable
from gazette_platform.fragment.index import FragmentLister
from gazette_platform.protocol import (
    CompressionCodec,
)
from gazette_platform.testing.waiting import eventually, turns


@pytest.fixture
def bench(tmp_path, tasks):
    with ThreadPoolExecutor(2) as pool:
        yield PersisterBench(tmp_path, tasks, pool)


async def test_pe1_replica_spools_queue_empty_ones_do_not(bench):
    replica = bench.spool(is_primary=False)
    empty = bench.spool(content=b"")
    bench.persister.add(replica)
    bench.persister.add(empty)
    assert len(bench.persister) == 1
    assert bench.is_closed(empty)
    # It waits two whole minutes, and is stored in the third.
    for _ in range(2):
        bench.persister.tick()
        await bench.settle()
        assert bench.stored == []
    bench.persister.tick()
    await bench.settle()
    assert bench.stored == [replica.fragment.content_path]
    assert bench.is_closed(replica)
    assert len(bench.persister) == 0


async def test_replica_spools_stay_while_others_may_have_gone_on(bench, tasks):
    bench.is_member = False
    bench.persister.add(bench.spool(is_primary=False))
    tasks.spawn(bench.persister.run(), name="run")
    await eventually(lambda: len(bench.waits) > 10, poll_s=0.001)
    assert bench.stored == []
    bench.is_member = True
    await eventually(lambda: bench.stored, poll_s=0.001)


async def test_pe2_primary_persists_at_once_with_the_current_spec(bench):
    bench.configure("file:///former/", postfix="written=before")
    spool = bench.spool()
    bench.configure(
        "file:///current/",
        postfix='date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour='
        '{{ .Spool.FirstAppendTime.Format "15" }}',
    )
    bench.persister.add(spool)
    await bench.settle()
    name = spool.fragment.content_name
    assert bench.stored == [f"current/a/journal/date=2026-01-02/hour=03/{name}"]
    assert (bench.root / bench.stored[0]).read_bytes() == CONTENT
    (fragment,) = bench.persisted
    assert fragment.backing_store == "file:///current/"
    assert fragment.path_postfix == "date=2026-01-02/hour=03"
    assert fragment.mod_time == int(bench.clock.now().timestamp())
    assert fragment.sum == spool.fragment.sum
    assert bench.is_closed(spool)


async def test_pe3_unwanted_spools_are_dropped(bench):
    spools = []
    for stores in ([], None):
        if stores is None:
            bench.specs.clear()
        else:
            bench.configure(*stores)
        spool = bench.spool()
        bench.persister.add(spool)
        await bench.settle()
        spools.append(spool)
    assert bench.stored == []
    assert bench.persisted == []
    assert all(bench.is_closed(spool) for spool in spools)
    assert len(bench.persister) == 0


async def test_pe4_failures_are_tried_again_with_the_spec_of_the_day(bench, caplog):
    bench.registry.get("file:///").faults = [StoreUnavailable("down")] * 99
    spool = bench.spool(codec=CompressionCodec.GZIP)
    bench.persister.add(spool)
    await bench.settle()
    assert len(bench.persister) == 1
    assert "failed, trying again later: down" in caplog.text
    assert not bench.is_closed(spool)
    for _ in range(3):
        bench.persister.tick()
        await bench.settle()
    assert bench.stored == []
    bench.configure("file:///other/")
    for _ in range(3):
        bench.persister.tick()
        await bench.settle()
    assert bench.stored == [f"other/{spool.fragment.content_path}"]
    assert bench.is_closed(spool)


async def test_pe4_drain_persists_all_queues(bench):
    spools = [
        bench.spool(is_primary=False, begin=begin, content=b"x" * 10) for begin in (0, 10, 20)
    ]
    for spool in spools:
        bench.persister.add(spool)
        bench.persister.tick()
    bench.registry.get("file:///").faults = [StoreUnavailable("down")] * 5
    assert await bench.persister.drain(timeout_s=5) == []
    assert bench.stored == [spool.fragment.content_path for spool in spools]
    assert bench.waits == [0.05, 0.05]
    # What comes while leaving is persisted at once.
    late = bench.spool(is_primary=False, begin=30)
    bench.persister.add(late)
    await bench.settle()
    assert late.fragment.content_path in bench.stored


async def test_flush_persists_what_replicas_hold_on_to_once(bench):
    queued = [bench.spool(is_primary=False, begin=begin) for begin in (0, 100)]
    for spool in queued:
        bench.persister.add(spool)
    async with asyncio.timeout(5):
        await bench.persister.flush("another/journal")
        assert bench.stored == []
        await bench.persister.flush(JOURNAL)
    assert bench.stored == [spool.fragment.content_path for spool in queued]
    assert len(bench.persister) == 0
    assert len(bench.persisted) == 2
    assert not bench.waits, "nothing had to be tried again"
    for _ in range(3):
        bench.persister.tick()
    await bench.settle()
    assert len(bench.persisted) == 2


async def test_a_flush_does_not_wait_for_what_comes_later(bench):
    """A journal that is busy always has something that is being stored."""
    store = bench.registry.get("file:///")
    put, is_busy = store.put, True

    async def put_while_more_comes(*args, **options):
        if is_busy:
            bench.persister.add(bench.spool(begin=len(bench.files) * 10_000_000))
        await put(*args, **options)

    store.put = put_while_more_comes
    bench.persister.add(bench.spool())
    async with asyncio.timeout(5):
        await bench.persister.flush(JOURNAL)
    is_busy = False
    await bench.settle()
    assert len(bench.persister) == 0


async def test_drain_reports_what_it_could_not_persist(bench, caplog):
    gate = bench.registry.get("file:///").gate = asyncio.Event()
    spool = bench.spool()
    bench.persister.add(spool)
    assert await bench.persister.drain(timeout_s=0.01) == [spool.fragment]
    assert f"fragment {spool.fragment.content_path} was not persisted" in caplog.text
    assert not await bench.persister.settle(timeout_s=0.01)
    gate.set()
    await bench.settle()
    assert bench.stored == [spool.fragment.content_path]


async def test_st1_authorization_errors_move_on_only_while_exiting(bench):
    stores = ["file:///one/", "file:///two/", "file:///three/"]
    bench.configure(*stores)
    for url in stores[:2]:
        bench.registry.get(url).faults = [AccessDenied("denied")] * 99
    spool = bench.spool()
    bench.persister.add(spool)
    await bench.settle()
    assert bench.stored == []
    assert len(bench.persister) == 1
    assert await bench.persister.drain(timeout_s=5) == []
    assert bench.stored == [f"three/{spool.fragment.content_path}"]
    assert bench.persisted[0].backing_store == "file:///three/"


async def test_st1_other_errors_do_not_move_on(bench):
    bench.configure("file:///one/", "file:///two/")
    bench.registry.get("file:///one/").faults = [StoreUnavailable("down")] * 3
    spool = bench.spool()
    bench.persister.add(spool)
    await bench.settle()
    assert await bench.persister.drain(timeout_s=5) == []
    assert bench.stored == [f"one/{spool.fragment.content_path}"]
    assert len(bench.waits) == 2


async def test_st2_a_store_that_cannot_be_opened_does_not_move_on(bench):
    bench.configure("file:///one/", "file:///two/")
    bench.registry.broken["file:///one/"] = AccessDenied("cannot open")
    spool = bench.spool()
    bench.persister.add(spool)
    lost = await bench.persister.drain(timeout_s=0.05)
    assert lost == [spool.fragment]
    assert bench.stored == []


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize(
    "codec", [CompressionCodec.GZIP, CompressionCodec.ZSTANDARD, CompressionCodec.SNAPPY]
)
async def test_compressed_files_hold_the_content(bench, codec, pre):
    spool = bench.spool(codec=codec, pre=pre)
    bench.persister.add(spool)
    await bench.settle()
    assert bench.stored == [spool.fragment.content_path]
    reader = decompressor(codec)
    stored = (bench.root / bench.stored[0]).read_bytes()
    assert reader.decompress(stored) == CONTENT
    reader.finish()
    assert spool.compressed.length == len(stored)
    assert bench.is_closed(spool)


async def test_offloaded_gzip_says_so(bench):
    spool = bench.spool(codec=CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION)
    bench.persister.add(spool)
    await bench.settle()
    assert gzip.decompress((bench.root / bench.stored[0]).read_bytes()) == CONTENT
    ((_, _, content_encoding),) = bench.registry.get("file:///").puts
    assert content_encoding == "gzip"


async def test_compression_is_not_repeated(bench):
    store = bench.registry.get("file:///")
    store.faults = [StoreUnavailable("down")]
    spool = bench.spool(codec=CompressionCodec.GZIP)
    bench.persister.add(spool)
    await bench.settle()
    kept = spool.compressed
    assert kept is not None
    assert await bench.persister.drain(timeout_s=5) == []
    assert spool.compressed is kept
    assert len(store.puts) == 1


@pytest.mark.parametrize("kind", ["has no room", "is broken"])
async def test_a_disk_of_spools_without_room_does_not_hold_up_the_store(bench, kind, monkeypatch):
    """Nothing but persisting gives it room again."""
    if kind == "has no room":
        real = os.statvfs

        def statvfs(path):
            found = real(path)
            return SimpleNamespace(f_bavail=bench.scratch != path, f_frsize=found.f_frsize)

        monkeypatch.setattr(os, "statvfs", statvfs)
    spool = bench.spool(codec=CompressionCodec.GZIP)
    if kind == "is broken":
        shutil.rmtree(bench.scratch)
    bench.persister.add(spool)
    await bench.settle()
    assert bench.stored == [spool.fragment.content_path]
    assert gzip.decompress((bench.root / bench.stored[0]).read_bytes()) == CONTENT
    assert bench.is_closed(spool)


async def test_a_store_elsewhere_gets_what_the_disk_of_spools_has_no_room_for(bench):
    """Through memory, one fragment at a time, which is not held while the store is away."""
    store = bench.registry.get("file:///")
    store.local_path, store.faults = lambda _: None, [StoreUnavailable("down")]
    spools = [bench.spool(codec=CompressionCodec.GZIP, begin=begin) for begin in (0, len(CONTENT))]
    shutil.rmtree(bench.scratch)
    put_as_ever, held = store.put, []

    def put(*args, **settings):
        held.append(sum(spool.compressed is not None for spool in spools))
        return put_as_ever(*args, **settings)

    store.put = put
    for spool in spools:
        bench.persister.add(spool)
    await bench.settle()
    assert await bench.persister.drain(timeout_s=5) == []
    assert held == [1, 1, 1]
    assert [gzip.decompress((bench.root / p).read_bytes()) for p in bench.stored] == [CONTENT] * 2


async def test_what_does_not_fit_into_memory_waits_for_room(bench, monkeypatch):
    monkeypatch.setattr(persister, "_MEMORY_BYTES_MAX", 1 << 20)
    bench.registry.get("file:///").local_path = lambda _: None
    spool = bench.spool(codec=CompressionCodec.GZIP, content=os.urandom(2 << 20))
    shutil.rmtree(bench.scratch)
    bench.persister.add(spool)
    await bench.settle()
    assert (bench.stored, spool.compressed) == ([], None)


async def test_what_is_compressed_is_kept_for_a_store_that_is_away(bench):
    """With a disk of spools that is full, too: it is a file without a name in the store."""
    store = bench.registry.get("file:///")
    store.faults = [StoreUnavailable("down")]
    spool = bench.spool(codec=CompressionCodec.GZIP)
    shutil.rmtree(bench.scratch)
    bench.persister.add(spool)
    await bench.settle()
    kept = spool.compressed
    assert kept.is_whole
    assert bench.stored == []
    assert await bench.persister.drain(timeout_s=5) == []
    assert spool.compressed is kept


async def test_an_unforeseen_error_is_one_of_its_fragment(bench, tasks, caplog):
    store = bench.registry.get("file:///")
    store.faults = [RuntimeError("this is unforeseen")]
    first, second = bench.spool(), bench.spool(begin=len(CONTENT))
    bench.persister.add(first)
    await bench.settle()
    bench.persister.add(second)
    await bench.settle()
    assert tasks.failure is None
    assert bench.faults.reported == 1
    assert first.fragment.content_path in caplog.text
    assert bench.stored == [second.fragment.content_path]
    assert await bench.persister.drain(timeout_s=5) == []
    assert len(bench.stored) == 2


async def test_objects_that_exist_are_not_written_again(bench):
    first, second = bench.spool(), bench.spool()
    bench.persister.add(first)
    await bench.settle()
    bench.persister.add(second)
    await bench.settle()
    assert len(bench.registry.get("file:///").puts) == 1
    assert len(bench.persisted) == 2
    assert bench.is_closed(second)


async def test_replicas_skip_what_stands_in_another_partition(bench):
    """Near an hour's edge two brokers may compute different postfixes of one fragment."""
    bench.configure("file:///", postfix="hour=03")
    bench.persister.add(bench.spool())
    await bench.settle()
    bench.configure("file:///", postfix="hour=04")
    replica = bench.spool(is_primary=False)
    bench.persister.add(replica)
    assert await bench.persister.drain(timeout_s=5) == []
    assert len(bench.stored) == 1
    assert bench.is_closed(replica)


@pytest.mark.parametrize("held", [(0, 1000), (1000, 2000)], ids=["begin", "end"])
async def test_replica_with_a_part_in_the_store_is_stored_whole(bench, held):
    begin, end = held
    bench.persister.add(bench.spool(begin=begin, content=CONTENT[begin:end]))
    await bench.settle()
    replica = bench.spool(is_primary=False, content=CONTENT[:2000])
    bench.persister.add(replica)
    assert await bench.persister.drain(timeout_s=5) == []
    assert replica.fragment.content_path in bench.stored


@pytest.mark.parametrize("is_primary", [True, False], ids=["primary", "replica"])
async def test_stores_that_a_journal_must_not_use_are_not_written(
    bench, monkeypatch, caplog, is_primary
):
    def refuse(spec):
        raise StoreUnavailable(f"stores of {spec.name} are not used")

    lister = FragmentLister(bench.registry, check=refuse)
    monkeypatch.setattr(bench.persister, "_lister", lister)
    spool = bench.spool(is_primary=is_primary)
    bench.persister.add(spool)
    lost = await bench.persister.drain(timeout_s=0.05)
    assert lost == [spool.fragment]
    assert bench.stored == []
    assert not bench.is_closed(spool)
    assert f"stores of {JOURNAL} are not used" in caplog.text


async def test_what_waited_for_a_slow_store_is_stored_by_the_spec_of_then(bench):
    gate = bench.registry.get("file:///").gate = asyncio.Event()
    spools = [bench.spool(begin=number * 10, content=b"0123456789") for number in range(33)]
    for spool in spools:
        bench.persister.add(spool)
    await turns(3)  # the last one waits for its turn
    bench.configure("file:///other/")
    gate.set()
    await bench.settle()
    assert len(bench.stored) == 33
    assert [path for path in bench.stored if path.startswith("other/")] == [
        f"other/{spools[-1].fragment.content_path}"
    ]


async def test_a_replica_that_leaves_writes_what_it_cannot_look_for(bench):
    """A store that takes objects and lists none: the copy here may be the last one."""

    def list_nothing(prefix):
        raise StoreUnavailable(f"{prefix} cannot be listed")

    store = bench.registry.get("file:///")
    store.list = list_nothing
    replica = bench.spool(is_primary=False)
    bench.persister.add(replica)
    for _ in range(3):
        bench.persister.tick()
    await bench.settle()
    assert bench.stored == []
    assert not bench.is_closed(replica), "while it stays there is time to look again"
    assert await bench.persister.drain(timeout_s=5) == []
    assert bench.stored == [replica.fragment.content_path]


async def test_a_failed_attempt_has_its_turn_again_each_three_minutes(bench):
    """However its store is tried meanwhile."""
    store = bench.registry.get("file:///")
    store.faults = [StoreUnavailable("down")]
    spool = bench.spool()
    bench.persister.add(spool)
    await bench.settle()
    for _ in range(2):
        bench.persister.tick()
        await bench.settle()
        assert bench.stored == []
    bench.persister.tick()
    await bench.settle()
    assert bench.stored == [spool.fragment.content_path]


@pytest.mark.parametrize(
    "postfix",
    [
        "{{ .Spool.Begin }}/../x",
        "date=1/.hidden",
        "date=1/" + "x" * 256,
        '{{ if .Spool.End }}{{ printf "%c" 55296 }}{{ end }}',
        "{{ if .Spool.End }}{{ index .Spool.Registers.Labels 9 }}{{ end }}",
        "{{ if .Spool.End }}{{ $a := `x` }}" + "{{ $a = print $a $a }}" * 25 + "{{ end }}",
    ],
)
async def test_an_invalid_postfix_waits_for_a_better_spec(bench, caplog, postfix):
    bench.configure("file:///", postfix=postfix)
    spool = bench.spool()
    bench.persister.add(spool)
    await bench.settle()
    assert bench.stored == []
    assert len(bench.persister) == 1
    assert re.search("PathPostfix|template: ", caplog.text)
    # On the way out, the wrong directory is better than none.
    assert await bench.persister.drain(timeout_s=5) == []
    assert bench.stored == [spool.fragment.content_path]


async def test_a_short_spool_file_is_not_stored(bench):
    for codec in (CompressionCodec.NONE, CompressionCodec.GZIP):
        spool = bench.spool(codec=codec)
        os.ftruncate(spool.content.fd, 1000)
        bench.persister.add(spool)
        await bench.settle()
        assert not bench.is_closed(spool)
    assert bench.stored == []
    assert len(bench.persister) == 2


async def test_a_cancelled_attempt_is_kept(bench, tasks):
    bench.registry.get("file:///").gate = asyncio.Event()
    spool = bench.spool(codec=CompressionCodec.GZIP)
    bench.persister.add(spool)
    await turns(5)
    await tasks.close()
    assert len(bench.persister) == 1
    assert not bench.is_closed(spool)


async def test_at_most_32_at_once(bench):
    store = bench.registry.get("file:///")
    all_slots_taken = asyncio.Event()
    running = most = 0
    put = store.put

    async def counting_put(*args, **kwargs):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 32:
            all_slots_taken.set()
        await asyncio.wait_for(all_slots_taken.wait(), 5)
        await put(*args, **kwargs)
        running -= 1

    store.put = counting_put
    for number in range(40):
        bench.persister.add(bench.spool(begin=number * 10, content=b"0123456789"))
    await bench.settle()
    assert len(bench.stored) == 40
    assert most == 32


async def test_a_store_that_hangs_keeps_fragments_from_no_other(bench):
    gate = bench.registry.get("file:///").gate = asyncio.Event()
    for number in range(40):
        bench.persister.add(bench.spool(begin=number * 10, content=b"0123456789"))
    await turns(3)  # all of them have begun
    bench.configure("file:///other/")
    spool = bench.spool(begin=1000, content=b"0123456789")
    bench.persister.add(spool)
    await asyncio.wait_for(bench.was_persisted.wait(), 5)
    assert bench.stored == [f"other/{spool.fragment.content_path}"]
    gate.set()
    await bench.settle()


async def test_run_ticks_each_minute(bench, tasks):
    replica = bench.spool(is_primary=False)
    bench.persister.add(replica)
    task = tasks.spawn(bench.persister.run())
    await asyncio.wait_for(bench.was_persisted.wait(), 5)
    task.cancel()
    assert len(bench.stored) == 1
    assert set(bench.waits) == {60.0}
