"""What is believed of spools whose process ended, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gazette_platform.broker.spool.disk import write_all
from gazette_platform.broker.spool.head_records import SLOT_BYTES, FragmentState, slot_at
from gazette_platform.broker.spool.home import Owner, SpoolHome, boot_id, free_homes
from gazette_platform.broker.spool.recovery import recover
from gazette_platform.protocol import CompressionCodec, LabelSet

CONTENT = b"told to somebody"
OWNER = Owner("cluster", "zone/broker", boot_id())


def state(end, *, is_durable=False):
    return FragmentState(
        begin=0,
        end=end,
        registers=LabelSet(),
        codec=CompressionCodec.NONE,
        first_append_us=1,
        synced_to=0,
        digested_to=0,
        digest=bytes(20),
        is_durable=is_durable,
    )


def left_by(owner, spool_dir, *ends, is_durable=False):
    """What a process leaves that recorded these ends. Returns: its folder."""
    home = SpoolHome.make(spool_dir, owner)
    tenure = home.tenure("a/journal", 7)
    file = tenure.content_file(0)
    write_all(file.fd, CONTENT, 0)
    for end in ends:
        tenure.record(file.ordinal, state(end, is_durable=is_durable))
    home.close()
    return home.folder


def damage(folder, number, raw=b"\x5a" * SLOT_BYTES):
    with (folder / "heads").open("r+b") as file:
        file.seek(slot_at(number))
        file.write(raw)


def recovered(spool_dir, owner=OWNER):
    (home,) = free_homes(spool_dir, owner)
    (found,) = recover(home)
    return home, found


def test_what_was_recorded_last_is_believed(tmp_path):
    left_by(OWNER, tmp_path, 5, len(CONTENT))
    home, found = recovered(tmp_path)
    assert found.is_whole
    assert found.end == len(CONTENT)
    found.release()
    home.close()


@pytest.mark.parametrize("number", [1, 2])
def test_a_torn_record_may_be_the_last_one(tmp_path, number):
    """No process that ends tears a record, so a caller may have got either of them."""
    damage(left_by(OWNER, tmp_path, 5, len(CONTENT)), number)
    home, found = recovered(tmp_path)
    assert not found.is_whole
    end = len(CONTENT) if number == 1 else 5
    assert found.end == end
    assert [one.state.end for one in found.fragments] == [end], "what it has is the journal's"
    found.release()
    home.close()


def test_record_under_way_at_a_power_failure_reached_no_caller(tmp_path):
    former = replace(OWNER, boot="before")
    damage(left_by(former, tmp_path, 5, len(CONTENT), is_durable=True), 2)
    home, found = recovered(tmp_path)
    assert found.is_whole
    assert found.end == 5
    found.release()
    home.close()


def test_content_is_kept_whose_only_record_is_torn(tmp_path):
    """It looks like a draft, which no caller got."""
    end = len(CONTENT)
    home = SpoolHome.make(tmp_path, OWNER)
    tenure = home.tenure("a/journal", 7)
    first, second = tenure.content_file(0), tenure.content_file(end)
    for file in (first, second):
        write_all(file.fd, CONTENT, 0)
    tenure.record(first.ordinal, state(end))
    tenure.record(second.ordinal, state(2 * end)._replace(begin=end))
    home.close()
    damage(home.folder, 2)
    home, found = recovered(tmp_path)
    assert not found.is_whole
    assert tenure.path(second.ordinal, "content").read_bytes() == CONTENT
    found.release()
    home.close()
