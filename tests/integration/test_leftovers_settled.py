"""What becomes of tenures without an owner: it depends on what etcd says of them, and what the store takes.

Long because all of it is shown at one bench, which has a store that may be away.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from leftovers_bench import (
    ELSEWHERE,
    JOURNAL,
    LATER_BOOT,
    NOW,
    OTHER,
    REGISTERS,
    REVISION,
    US,
    Bench,
)

from gazette_platform.broker import etcd_records
from gazette_platform.broker.epochs import EpochRecord, Holder, Past, Released
from gazette_platform.broker.etcd_records import (
    delete_record,
    foreign_members,
    history_key,
    journal_holders,
    own_member_key,
    own_members_prefix,
    read_own_members,
    read_record,
    write_record,
)
from gazette_platform.broker.spool import disk as disk_module, leftovers as leftovers_module
from gazette_platform.broker.spool.disk import finish_closing
from gazette_platform.broker.spool.recovery import SET_ASIDE
from gazette_platform.broker.spool.verdicts import Todo, Verdict
from gazette_platform.etcd import Delete, Put
from gazette_platform.keyspace import item_key, member_key
from gazette_platform.protocol import (
    LabelSet,
    SuspendLevel,
    SuspendSpec,
)
from gazette_platform.testing.waiting import block_for, eventually, patient

pytestmark = pytest.mark.etcd


@pytest.fixture
async def bench(tmp_path, etcd, etcd_prefix, tasks, monkeypatch):
    with ThreadPoolExecutor(2) as executor:
        found = Bench(tmp_path, etcd, etcd_prefix, tasks, executor, monkeypatch)
        found.journal()
        await etcd.put(history_key(etcd_prefix), NOW.encode())
        yield found
        found.store_comes_back()
        await found.leftovers._persister.drain(timeout_s=5)
        found.close()


# ------------------------------------------------------------------------------- of a holder
@pytest.mark.parametrize("is_leaving", [False, True])
async def test_holder_stays_while_no_broker_waits_for_it(bench, is_leaving):
    """Neither does one let go that leaves, if others hold the same."""
    found = bench.find(b"content")
    record = await bench.say(found, ELSEWHERE)
    await bench.settle(is_leaving=is_leaving)
    assert (await bench.said(), bench.stored) == (record, [])
    assert bench.leftovers.has_content(JOURNAL)


@pytest.mark.parametrize("why", ["it is wanted", "it leaves"])
async def test_a_holder_lets_go_once_all_of_it_is_stored(bench, why):
    found, end = bench.find(b"content ", b"and more"), 16
    await bench.say(found, is_wanted=why == "it is wanted")
    bench.store_goes_away()
    await bench.settle(is_leaving=why == "it leaves")
    record = await bench.said()
    assert [one.tenure for one in record.holders] == [found.tenure.id]
    assert record.released == Released(end, REGISTERS), (
        "no broker goes on below what is stored next"
    )
    assert bench.leftovers.has_content(JOURNAL)
    bench.store_comes_back()
    await bench.settle(is_leaving=why == "it leaves")
    record = await bench.said()
    assert (record.holders, record.released) == ((), Released(end, REGISTERS))
    assert bench.stored == [(0, b"content "), (8, b"and more")]
    assert [one.registers for one in bench.handed] == [LabelSet.of(at=at) for at in ("0", "8")]
    await bench.settle()
    assert (len(bench.leftovers), bench.aside, found.tenure.is_begun) == (0, [], False)


async def test_who_takes_a_tenure_over_waits_until_it_is_decided_on(bench):
    found = bench.find(b"content")
    await bench.say(found, is_wanted=True)
    bench.store_goes_away(patience_s=30.0)
    async with asyncio.timeout(patient(20)), asyncio.TaskGroup() as group:
        settling = group.create_task(bench.settle())
        await eventually(lambda: bench.handed)
        taking = group.create_task(bench.take())
        done, _ = await asyncio.wait({taking}, timeout=0.1)
        assert not done
        bench.store_comes_back()
        await settling
    assert (await bench.said()).holders == ()


async def test_all_that_is_set_aside_of_a_spool_is_reported_in_one_line(bench, caplog):
    bench.find(b"one ", b"two ", b"three")
    await bench.say(ELSEWHERE)
    await bench.settle()
    assert sorted(bench.aside) == [b"one ", b"three", b"two "]
    (told,) = [one for one in caplog.messages if "is set aside" in one]
    assert told.startswith(f"{JOURNAL}: content [0, 13) of a spool of broker zone#us is set aside")
    assert told.endswith(" and 2 more")


async def test_a_tenure_that_is_taken_while_it_is_stored_is_forgotten(bench):
    found = bench.find(b"content")
    await bench.say(found, is_wanted=True)
    bench.store_goes_away()
    await bench.settle()
    assert bench.leftovers.has_content(JOURNAL)
    assert await bench.take() is found
    assert not bench.leftovers._storing
    bench.store_comes_back()


@pytest.mark.parametrize("other", [b"", b"another", None], ids=["no home", "another", "none"])
async def test_a_holder_that_another_broker_has_is_kept(bench, etcd, caplog, other):
    """A copy on another machine, made block by block, looks like its original."""
    found = bench.find(b"content")
    record = await bench.say(Holder(found.tenure.id, OTHER), is_wanted=True)
    ours, theirs = (own_member_key(bench.prefix, each) for each in (US, OTHER))
    await etcd.put(ours, bench.homes[0].folder.name.encode())
    await etcd.put(theirs, f"one\n{bench.homes[0].folder.name}".encode())
    await etcd.put(member_key(bench.prefix, OTHER), b"")
    await bench.settle(is_leaving=True)
    assert await bench.take() is None
    assert (await bench.said(), bench.stored, bench.aside) == (record, [], [])
    assert caplog.text.count("one of the two is a copy") == 1
    assert "zone#other, which is alive" in caplog.text
    if other is None:
        await etcd.txn((), (Delete(theirs), Delete(member_key(bench.prefix, OTHER))))
    else:  # a broker of that name that is alive, and has come back without this folder
        await etcd.put(theirs, other)
    assert await bench.take() is found


async def test_a_holder_of_ours_goes_on_though_another_broker_has_a_copy(bench, etcd):
    found = bench.find(b"content")
    await bench.say(found, is_wanted=True)
    await etcd.put(own_member_key(bench.prefix, OTHER), bench.homes[0].folder.name.encode())
    await etcd.put(member_key(bench.prefix, OTHER), b"")
    assert await bench.take() is found


async def test_former_holder_stores_nothing_as_one(bench, monkeypatch):
    """Others went on since it looked: what it has may contradict them."""

    async def long_ago(*_args, **_options):
        return record, [Verdict(Todo.LET_GO)]

    found = bench.find(b"content")
    record = await bench.say(ELSEWHERE)
    monkeypatch.setattr(bench.leftovers, "_verdicts", long_ago)
    await bench.settle()
    assert (await bench.said(), bench.stored, bench.handed) == (record, [], [])
    assert found.fragments


async def test_files_that_are_closed_late_keep_no_tenure_of_a_broker_that_leaves(bench):
    """It looks once, and then ends: what it does not let go of by then stays on its disk."""
    found = bench.find(b"content")
    await bench.say(found)
    disk_module._closer().submit(block_for, 0.5)
    await bench.leftovers.settle(JOURNAL, is_leaving=True)
    assert (bench.stored, len(bench.leftovers)) == ([(0, b"content")], 0)
    assert list(bench.homes[0].blocks()) == []


async def test_files_with_a_reader_keep_their_tenure(bench):
    found = bench.find(b"content")
    (fragment,) = found.fragments
    fragment.file.hold()
    await bench.say(found, is_wanted=True)
    await bench.settle()
    assert (bench.stored, len(bench.leftovers)) == ([(0, b"content")], 1)
    assert [header.tenure for _, header in bench.homes[0].blocks()] == [found.tenure.id]
    fragment.file.release()
    finish_closing()
    await bench.settle()
    assert (len(bench.leftovers), list(bench.homes[0].blocks())) == (0, [])


@pytest.mark.parametrize(
    ("suspend", "lets_go"),
    [
        (SuspendSpec(SuspendLevel.FULL, 7), True),
        (SuspendSpec(SuspendLevel.FULL, 6), False),
        (SuspendSpec(SuspendLevel.PARTIAL, 7), False),
        (SuspendSpec(SuspendLevel.NONE, 7), False),
    ],
)
async def test_a_holder_lets_go_of_a_suspended_journal(bench, suspend, lets_go):
    """But not if the spec's head is before its end, or a broker still serves the journal."""
    bench.journal(suspend=suspend)
    found = bench.find(b"content")
    await bench.say(found)
    await bench.settle()
    assert ((await bench.said()).holders == ()) == lets_go
    assert bench.stored == ([(0, b"content")] if lets_go else [])


# ------------------------------------------------------------------------ after a power failure
@pytest.mark.parametrize("is_wanted", [False, True])
async def test_leftovers_of_a_power_failure_are_stored_and_end_the_journal(bench, is_wanted):
    """More was acknowledged, perhaps: only an operator may say that this was all."""
    found = bench.find(b"content", boot=LATER_BOOT, synced_to=4)
    record = await bench.say(found, is_wanted=is_wanted)
    path = bench.homes[0].folder / f"{found.tenure.id}.1.content"
    bench.store_goes_away()
    await bench.settle(is_leaving=True)
    assert path.read_bytes() == b"content", "it is in no store yet"
    bench.store_comes_back()
    await bench.settle(is_leaving=True)
    assert (bench.stored, bench.aside) == ([(0, b"cont")], [b"content"])
    assert await bench.said() == record


async def test_what_a_power_failure_left_is_not_stored_while_others_hold_more(bench):
    found = bench.find(b"content", boot=LATER_BOOT, synced_to=4)
    record = await bench.say(found, ELSEWHERE, is_wanted=True)
    await bench.settle(is_leaving=True)
    assert (await bench.said(), bench.stored, bench.aside) == (record, [], [])
    assert found.fragments


# -------------------------------------------------------------------------- of any other tenure
@pytest.mark.parametrize(
    ("valid_to", "stored", "aside"),
    [
        (0, [], [b"later", b"one", b"three"]),
        (2, [(0, b"on")], [b"later", b"one", b"three"]),
        (3, [(0, b"one")], [b"later", b"three"]),
        (5, [(0, b"one"), (3, b"th")], [b"later", b"three"]),
        (8, [(0, b"one"), (3, b"three")], [b"later"]),
        (99, [(0, b"one"), (3, b"three"), (8, b"later")], []),
    ],
)
async def test_what_belongs_to_the_journal_is_stored_and_the_rest_set_aside(
    bench, valid_to, stored, aside
):
    found = bench.find(b"one", b"three", b"later")
    past = Past((Holder(found.tenure.id, US),), valid_to)
    record = await bench.say(ELSEWHERE, past=(past,))
    for _ in range(2):  # its files are closed between
        await bench.settle()
    assert (bench.stored, bench.aside, bench.aside_count) == (stored, aside, len(aside))
    assert (len(bench.leftovers), await bench.said()) == (0, record)
    assert list(bench.homes[0].folder.glob("*.content")) == []


async def test_all_of_a_deleted_journal_is_set_aside_and_has_no_holder(bench):
    found = bench.find(b"content")
    await bench.say(found)
    bench.items.clear()
    await bench.settle()
    assert (bench.stored, bench.aside, await bench.said()) == ([], [b"content"], None)


async def test_spool_older_than_etcd_waits_for_a_spec(bench):
    """A journal without a spec was not deleted: etcd has lost its data."""
    found = bench.find(b"content", history="lost")
    same = bench.find(b"deleted", history=NOW)
    bench.items.clear()
    await bench.settle()
    assert (bench.stored, bench.aside) == ([], [b"deleted"])
    assert bench.leftovers._found[JOURNAL] == [found]
    assert found is not same
    bench.journal(revision=REVISION + 1)
    await bench.settle()
    assert bench.aside == [b"deleted"], "no broker has taken appends yet"
    record = EpochRecord(REVISION + 1, 1, (ELSEWHERE,))
    await write_record(bench.etcd, bench.prefix, JOURNAL, record, 0)
    await bench.settle()
    assert bench.aside == [b"content", b"deleted"]


@pytest.mark.parametrize(
    ("stored_end", "is_taken"), [(0, True), (5, True), (7, True), (8, False), (99, False)]
)
async def test_spool_older_than_etcd_goes_on_where_the_store_ends(bench, stored_end, is_taken):
    found = bench.find(b"content", history="lost")
    bench.journal(revision=3)
    taken = await bench.take(3, stored_end=stored_end)
    assert (taken is found) == is_taken
    if is_taken:
        ((_, header),) = bench.homes[0].blocks()
        assert (header.create_revision, header.history) == (3, "lost"), "etcd does not name it yet"
        taken.tenure.date()
        ((_, header),) = bench.homes[0].blocks()
        assert (header.create_revision, header.history) == (3, NOW)
    assert found.tenure.is_older_than_etcd == (not is_taken)


@pytest.mark.parametrize("how", ["its replica closes", "its process is killed"])
async def test_spool_older_than_etcd_is_kept_until_it_is_claimed(bench, how):
    found = bench.find(b"content", history="lost")
    bench.journal(revision=3)
    assert await bench.take(3) is found
    if how == "its replica closes":
        bench.leftovers.add(found)
    else:
        found = bench.restart()
    await bench.settle()
    assert (bench.aside, bench.stored, len(bench.leftovers)) == ([], [], 1)
    assert await bench.take(3) is found


async def test_tenure_of_a_former_version_belongs_to_the_data_that_names_it(bench):
    """Such a version did not say which data of etcd it belonged to."""
    found = bench.find(b"content", history="")
    await bench.say(found)
    assert await bench.take() is found
    ((_, header),) = bench.homes[0].blocks()
    assert header.history == NOW


async def test_spool_older_than_etcd_gives_way_to_appends(bench):
    found = bench.find(b"content", history="lost")
    bench.journal(revision=3)
    await write_record(bench.etcd, bench.prefix, JOURNAL, EpochRecord(3, 1, (ELSEWHERE,)), 0)
    assert await bench.take(3) is None
    assert found.tenure.is_older_than_etcd


async def test_a_journal_whose_spec_cannot_be_read_is_not_deleted(bench, etcd):
    key = item_key(bench.prefix, JOURNAL)
    found = bench.find(b"content", revision=(await etcd.put(key, b"no spec")).revision)
    bench.items.clear()
    await bench.settle()
    assert (len(found.fragments), bench.aside, len(bench.leftovers)) == (1, [], 1)


async def test_damaged_files_are_set_aside(bench):
    def harm(tenure):
        path = tenure.path(1, "content")
        path.chmod(0o600)
        path.write_bytes(b"con")

    bench.find(b"content", harm=harm)
    await bench.say(ELSEWHERE)
    await bench.settle()
    assert (bench.aside, bench.aside_count, len(bench.leftovers)) == ([b"con"], 1, 0)
    assert list(bench.homes[0].folder.glob("*.content")) == []


@pytest.mark.parametrize("ends", [False, True])
async def test_harmed_spool_waits_for_an_operator_however_often_its_broker_starts(bench, ends):
    """What is stored of it is gone from the spool then, and that it was harmed must still show."""

    def harm(tenure):
        (tenure.folder / f"{tenure.id}.2.sealed").unlink()

    found = bench.find(b"one", b"three", b"later", harm=harm)
    record = await bench.say(found, is_wanted=True)
    for _ in range(3):
        await bench.settle()
        assert (await bench.said(), await bench.take()) == (record, None)
        assert (bench.stored, bench.aside) == ([(0, b"one"), (8, b"later")], [b"three"])
        assert bench.aside_count == 1
        if ends:
            found, bench.aside_count = bench.restart(), 0
        assert not found.is_whole
    await bench.say(ELSEWHERE)
    await bench.settle()
    assert (len(bench.leftovers), list(bench.homes[0].folder.glob("*.content"))) == (0, [])
    assert bench.aside == [b"three"]


def lose_second(tenure):
    """Remove the content of the second fragment."""
    tenure.path(2, "content").unlink()


async def test_registers_of_a_harmed_spool_outlive_the_reset(bench):
    """Without them a stale writer would pass the fence."""
    found = bench.find(b"one", b"three", harm=lose_second)
    record = await bench.say(found, is_wanted=True)
    await bench.settle()
    assert await bench.said() == record, "only an operator gives up what is missing"
    for _ in range(2):
        await bench.settle(is_given_up=True)
        assert await bench.said() == replace(record, saved=Released(8, REGISTERS))
    assert bench.stored == [(0, b"one")]


@pytest.mark.parametrize(
    ("copied", "stored", "aside"),
    [
        (b"first X!", [(0, b"first Y")], [b"first X!"]),
        (b"first X", [(0, b"first Y")], [b"first X"]),
        (b"first Yes", [(0, b"first Y"), (0, b"first Yes")], []),
    ],
    ids=["further", "as far", "no contradiction"],
)
@pytest.mark.parametrize("is_stored_before", [False, True])
async def test_reset_stores_nothing_that_contradicts_the_store(
    bench, copied, stored, aside, is_stored_before
):
    found = bench.find(b"first Y", b"later", harm=lose_second)
    if is_stored_before:
        await bench.say(found, is_wanted=True)
        await bench.settle()
    copy = bench.find_copied(copied)
    await bench.say(found, copy, is_wanted=True)
    await bench.settle(is_given_up=True)
    assert (bench.stored, bench.aside) == (stored, aside)
    assert not bench.leftovers.has_content(JOURNAL)


async def test_reset_waits_for_an_original_before_it_stores_a_copy(bench):
    copy = bench.find_copied(b"first X!")
    found = bench.find(b"first Y", b"later", harm=lose_second)
    await bench.say(found, copy, is_wanted=True)
    bench.store_goes_away()
    await bench.settle(is_given_up=True)
    assert len(bench.handed) == 1
    bench.store_comes_back()
    await bench.settle(is_given_up=True)
    assert (bench.stored, bench.aside) == ([(0, b"first Y")], [b"first X!"])


async def test_what_cannot_be_set_aside_stays(bench):
    (bench.spools / SET_ASIDE).write_text("in the way")
    found = bench.find(b"content")
    await bench.say(ELSEWHERE)
    await bench.settle()
    assert found.fragments
    assert len(bench.leftovers) == 1
    (bench.spools / SET_ASIDE).unlink()
    for _ in range(2):  # its files are closed between
        await bench.settle()
    assert (bench.aside, len(bench.leftovers)) == ([b"content"], 0)


async def test_past_holder_leaves_a_long_record_once_all_of_it_is_stored(bench):
    found = bench.find(b"content")
    mine = Past((Holder(found.tenure.id, US),), 7)
    later = tuple(Past((Holder(f"later-{n}", OTHER),), 7 + n) for n in range(20))
    await bench.say(ELSEWHERE, past=(mine, *later))
    bench.store_goes_away()
    await bench.settle()
    assert (await bench.said()).past[0] == mine, "what it has may be the only copy"
    bench.store_comes_back()
    for _ in range(2):  # its files are closed between
        await bench.settle()
    assert (bench.stored, bench.aside) == ([(0, b"content")], [])
    assert (await bench.said()).past == later


async def test_copy_keeps_its_past_holder_in_the_record(bench):
    copy, original = bench.find_with_copy(b"first ", b"and later", name="00copy")
    mine = Past((Holder(copy.tenure.id, US),), 15)
    later = tuple(Past((Holder(f"later-{n}", OTHER),), 15 + n) for n in range(20))
    await bench.say(ELSEWHERE, past=(mine, *later))
    original.fragments[1].file.hold()  # it has a reader
    for _ in range(2):
        await bench.settle()
    assert len(bench.leftovers) == 1
    assert (await bench.said()).past[0] == mine
    assert (6, b"and later") in bench.stored


async def test_a_copied_home_takes_no_past_holder_out_of_the_record(bench):
    """The original, on a broker that is away, may be the only one that still has its content."""
    copy, original = bench.find_with_copy(b"first ", b"and later", name="00copy")
    bench.leftovers._remove(JOURNAL, original)
    mine = Past((Holder(copy.tenure.id, US),), 15)
    later = tuple(Past((Holder(f"later-{n}", OTHER),), 15 + n) for n in range(20))
    await bench.say(ELSEWHERE, past=(mine, *later))
    for _ in range(2):
        await bench.settle()
    assert (bench.aside, len(bench.leftovers)) == ([b"first "], 0)
    assert (await bench.said()).past[0] == mine
    bench.leftovers.add(original)
    for _ in range(2):
        await bench.settle()
    assert bench.stored == [(0, b"first "), (6, b"and later")]
    assert (await bench.said()).past == later


# ---------------------------------------------------------------------------------- many of them
@pytest.mark.parametrize("is_leaving", [False, True])
async def test_of_many_journals_those_are_looked_at_that_may_need_it(
    bench, monkeypatch, is_leaving
):
    monkeypatch.setattr(leftovers_module, "_ONE_BY_ONE_MAX", 1)
    names = [f"a/{what}" for what in ("held", "wanted", "others", "part")]
    for name in names:
        bench.journal(name)
        options = {"boot": LATER_BOOT, "synced_to": 4} if name == "a/part" else {}
        found = bench.find(name[2:].encode(), journal=name, **options)
        holder = ELSEWHERE if name == "a/others" else found
        await bench.say(holder, journal=name, is_wanted=name == "a/wanted")
    await bench.leftovers.settle_all(is_leaving=is_leaving)
    held = [b"held"] if is_leaving else []
    assert sorted(content for _, content in bench.stored) == [*held, b"part", b"wanted"]
    assert bench.aside == [b"others"]


# ------------------------------------------------------------------------------- who goes on
async def test_furthest_holder_of_the_present_journal_is_taken(bench):
    short, longest, middle = (bench.find(b"x" * n) for n in (1, 3, 2))
    former = bench.find(b"former", revision=REVISION - 1)
    await bench.say(short, middle)
    assert await bench.take(REVISION - 1) is None
    assert await bench.take() is middle
    assert await bench.take() is short
    assert await bench.take() is None
    assert bench.leftovers._found[JOURNAL] == [longest, former]


async def test_heirs_are_whole_holders_in_clusters_without_brokers_of_gazette(bench, etcd):
    part = bench.find(b"content", boot=LATER_BOOT, synced_to=4)
    await bench.say(part)
    assert await bench.take() is None
    whole = bench.find(b"content")
    await bench.say(ELSEWHERE)
    assert await bench.take() is None
    await bench.say(whole, part)
    key = member_key(bench.prefix, OTHER)
    await etcd.txn((), (Put(key, b""),))
    taken = await bench.take()
    assert taken is None, "who was answered by that broker, no one knows"
    await etcd.txn((), (Put(own_member_key(bench.prefix, OTHER), b""),))
    assert await bench.take() is whole


async def test_take_reads_own_members_once(bench, monkeypatch):
    found = bench.find(b"content")
    await bench.say(found)
    read, asked = bench.etcd.range, []

    async def noted(prefix, **options):
        asked.append(prefix)
        return await read(prefix, **options)

    monkeypatch.setattr(bench.etcd, "range", noted)
    assert await bench.take() is found
    assert asked.count(own_members_prefix(bench.prefix)) == 1


# ------------------------------------------------------------------------------------- copies
@pytest.mark.parametrize("name", ["00copy", "zzcopy"], ids=["before", "after"])
async def test_copy_beside_the_original_lets_nothing_go(bench, name):
    """The copy was made when less was acknowledged. Its name sorts before the original's, or after it."""
    found = bench.find_with_copy(b"first ", b"and later", name=name)
    await bench.say(found[0], is_wanted=True)
    for _ in range(3):  # files are closed between
        await bench.settle()
    assert (await bench.said()).released == Released(15, REGISTERS)
    assert (0, b"first ") in bench.stored
    assert (6, b"and later") in bench.stored
    assert (bench.aside, len(bench.leftovers)) == ([b"first "], 0), "nothing of a copy is stored"


async def test_copy_waits_while_a_replica_goes_on_with_the_original(bench):
    copy, original = bench.find_with_copy(b"first ", b"and later", name="00copy")
    record = await bench.say(original)
    assert await bench.take() is original
    assert not bench.leftovers.has_content(JOURNAL)
    await bench.settle(is_leaving=True)
    assert await bench.take() is None
    assert (await bench.said(), bench.stored, len(copy.fragments)) == (record, [], 1)
    bench.leftovers.add(original)  # the replica has closed
    await bench.settle(is_leaving=True)
    assert (await bench.said()).released == Released(15, REGISTERS)


# ------------------------------------------------------------------------------------- records
async def test_a_broker_of_gazette_may_have_the_name_of_a_former_one_of_ours(etcd, etcd_prefix):
    former, present = await etcd.grant_lease(60), await etcd.grant_lease(60)
    key = member_key(etcd_prefix, OTHER)
    await etcd.txn((), (Put(own_member_key(etcd_prefix, OTHER), b"", lease=former.id),))
    await etcd.txn((), (Put(key, b"", lease=present.id),))
    ours = await read_own_members(etcd, etcd_prefix)
    assert await foreign_members(etcd, etcd_prefix, ours)
    await etcd.txn((), (Put(key, b"", lease=former.id),))
    assert await foreign_members(etcd, etcd_prefix, ours), "they are of one moment"
    ours = await read_own_members(etcd, etcd_prefix)
    assert not await foreign_members(etcd, etcd_prefix, ours)


async def test_a_record_that_was_replaced_meanwhile_is_not_written_over(etcd, etcd_prefix):
    first, second = EpochRecord(REVISION, 1, (ELSEWHERE,)), EpochRecord(REVISION, 2, ())
    assert await write_record(etcd, etcd_prefix, JOURNAL, first, 0)
    assert not await write_record(etcd, etcd_prefix, JOURNAL, second, 0)
    record, revision = await read_record(etcd, etcd_prefix, JOURNAL)
    assert record == first
    assert await write_record(etcd, etcd_prefix, JOURNAL, second, revision)
    await delete_record(etcd, etcd_prefix, JOURNAL, REVISION + 1)
    assert (await read_record(etcd, etcd_prefix, JOURNAL))[0] == second
    await delete_record(etcd, etcd_prefix, JOURNAL, REVISION)
    assert await read_record(etcd, etcd_prefix, JOURNAL) == (None, 0)


async def test_a_record_that_was_replaced_meanwhile_is_not_deleted(etcd, etcd_prefix, monkeypatch):
    first, second = EpochRecord(REVISION, 1, ()), EpochRecord(REVISION, 2, (ELSEWHERE,))
    await write_record(etcd, etcd_prefix, JOURNAL, first, 0)

    async def read_before_it_changes(*args):
        found = await read_record(*args)
        await write_record(etcd, etcd_prefix, JOURNAL, second, found[1])
        return found

    monkeypatch.setattr(etcd_records, "read_record", read_before_it_changes)
    await delete_record(etcd, etcd_prefix, JOURNAL, REVISION)
    assert (await read_record(etcd, etcd_prefix, JOURNAL))[0] == second


async def test_journals_that_wait_for_a_holder_are_not_held(etcd, etcd_prefix):
    for name, is_wanted in (("held", False), ("waits", True), ("not asked for", False)):
        record = EpochRecord(REVISION, 1, (ELSEWHERE,), is_wanted=is_wanted)
        assert await write_record(etcd, etcd_prefix, name, record, 0)
    found = await journal_holders(etcd, etcd_prefix, ["held", "waits", "none"])
    assert found == {"held": {ELSEWHERE.tenure}}
