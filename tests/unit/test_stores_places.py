"""Where journals lie: one text for one folder, whatever the URL says."""

from __future__ import annotations

import pytest

from gazette_platform.broker.store_guard import (
    folders_of,
    journal_place,
    rewritten_name,
    store_place,
)
from gazette_platform.errors import StoreError, ValidationError
from gazette_platform.stores import open_store
from gazette_platform.stores.interface import put_bytes

MINE = "mine/spy"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("file:///", "file:///mine/spy/"),
        ("file:////", "file:///mine/spy/"),
        ("file:///./", "file:///mine/spy/"),
        ("file:///a//b/", "file:///a/b/mine/spy/"),
        ("file:///%61/", "file:///a/mine/spy/"),
        ("file:///?find=mine/spy&replace=secret/pay", "file:///secret/pay/"),
        ("file:///?FIND=mine/&Replace=", "file:///spy/"),
        ("file:///?find=absent&replace=x", "file:///mine/spy/"),
        ("file:///?find=mine/spy/&replace=", "file:///"),
        ("s3://bucket/p/?profile=x", "s3://bucket/p/mine/spy/"),
    ],
)
def test_the_place_of_a_journal(url, place):
    assert journal_place(url, MINE) == place


def test_other_endpoints_are_other_places():
    ours, theirs = (f"s3://b/?endpoint=http://{host}" for host in ("ours", "theirs"))
    assert store_place(ours) != store_place(theirs) != store_place("s3://b/")


def test_every_url_is_the_root_if_only_files_are_served():
    assert (
        journal_place("s3://b/p/?find=mine&replace=x", MINE, file_only=True) == "file:///mine/spy/"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "find=mine/spy/date&replace=secret/pay/date",  # some objects only
        "find=y/d&replace=y/../d",
        "find=spy/&replace=secret",  # below no folder
        "find=mine&replace=..",
        "find=mine&replace=/etc",
        "find=mine&replace=.test",  # where brokers check the store
        "find=mine/spy&replace=.covered/secret/pay",
    ],
)
def test_rewriting_that_keeps_no_folder_is_refused(arguments):
    with pytest.raises(ValidationError, match="fragment store"):
        journal_place(f"file:///?{arguments}", MINE)


@pytest.mark.parametrize(
    ("find", "postfix", "is_refused"),
    [
        # As much of it as follows the journal must exist for it to be found.
        ("/old/", "", False),
        ("/old/", "date={{.Spool.FirstAppendTime}}", False),
        ("/old/", "old={{.Spool.FirstAppendTime}}", False),
        ("/old/", "o{{.Spool.FirstAppendTime}}", True),
        ("/old/", "{{.Spool.FirstAppendTime}}", True),
        ("/old/", "x/../old", True),
        ("spy/d", "date={{.Spool.FirstAppendTime}}", True),
        ("spy/0", "date={{.Spool.FirstAppendTime}}", True),  # of what has no valid postfix
        ("spy/0", "", True),
    ],
)
def test_a_text_to_find_that_no_fragment_has_leaves_the_folder(find, postfix, is_refused):
    url = f"file:///?find={find}&replace=/new/"
    if is_refused:
        with pytest.raises(ValidationError, match="one folder"):
            journal_place(url, MINE, postfix=postfix)
    else:
        assert journal_place(url, MINE, postfix=postfix) == "file:///mine/spy/"


def test_folders_of_brokers_own_are_refused():
    for path in ("/.test/", "/.test/health-check/", "/a/.gazette-delete-probe/", "/.partial-x/"):
        with pytest.raises(ValidationError, match="brokers' own"):
            journal_place(f"file://{path}", MINE)


@pytest.mark.parametrize(
    ("url", "journal"),
    [
        ("file:///", "mine/" + "x" * 256),
        ("file:///", "mine/" + "\u0436" * 128),
        (f"file:///{'x' * 256}/", MINE),
        (f"file:///{'x' * 250}/?find=mine&replace={'y' * 256}", MINE),
        ("file:///" + "\U00010400" * 63 + ("/" + "\U00010400" * 63) * 20 + "/", MINE),
    ],
)
def test_folders_that_no_file_system_has_are_refused(url, journal):
    with pytest.raises(ValidationError, match="file systems"):
        journal_place(url, journal)
    journal_place("s3://bucket/", journal)


def test_folders_of_a_place():
    assert folders_of("file:///a/b/") == ["file:///", "file:///a/"]
    assert folders_of("file:///") == []
    assert rewritten_name("file:///x/?find=mine&replace=ours", MINE) == "ours/spy"


@pytest.mark.parametrize(
    "arguments",
    [
        "find=.test/health-check&replace=secret/pay/0",
        "find=.gazette-delete-probe&replace=0",
        "find=/.gazette-delete-probe&replace=/0",
        "find=-&replace=/../",
    ],
)
async def test_probes_of_a_store_write_no_other_object(tmp_path, arguments):
    store = open_store(f"file:///?{arguments}", file_root=tmp_path)
    for path in (".test/health-check", ".gazette-delete-probe", "secret/pay/.gazette-delete-probe"):
        try:
            await put_bytes(store, path, b"x")
        except StoreError:
            continue
        assert (tmp_path / path).read_bytes() == b"x"
