"""What the names and sizes of fragments show of a journal."""

from __future__ import annotations

import hashlib

import pytest

from gazette_platform.fragment.cover_set import Kind, StoredFragment, audit_names, missing_of
from gazette_platform.protocol import CompressionCodec, Fragment


def fragment(begin, end, content="", *, codec=CompressionCodec.NONE, store="s3://b/"):
    total = hashlib.sha1(content.encode(), usedforsecurity=False).digest()
    return Fragment("j", begin, end, total, codec, backing_store=store)


def stored(*args, size=None, **fields):
    one = fragment(*args, **fields)
    return StoredFragment(one, one.content_length if size is None else size)


@pytest.mark.parametrize(
    ("listed", "known", "findings"),
    [
        ([], [], []),
        ([stored(0, 10), stored(10, 20)], [], []),
        ([stored(500, 600)], [], []),  # the beginning was pruned
        ([stored(0, 10), stored(15, 20)], [], [(Kind.GAP, 10, 15)]),
        ([stored(0, 10), stored(15, 20)], [fragment(10, 15, store="")], []),  # a broker has it
        ([stored(0, 10)], [fragment(12, 15, store="")], [(Kind.GAP, 10, 12)]),
        # Nothing lies between these: the large one covers it.
        ([stored(0, 30), stored(5, 10), stored(30, 40)], [], [(Kind.OVERLAP, 5, 10)]),
        ([stored(0, 10), stored(8, 20)], [], [(Kind.OVERLAP, 8, 10)]),
        ([stored(0, 10, "a"), stored(0, 10, "b")], [], [(Kind.CONFLICT, 0, 10)]),
        ([stored(0, 10), stored(0, 10, store="file:///")], [], []),  # a copy
        # One that a broker goes on writing has grown since.
        ([stored(0, 10, "a")], [fragment(0, 8, "b", store="")], []),
        ([stored(0, 10, size=11)], [], [(Kind.LENGTH, 0, 10)]),
        ([stored(0, 10, size=3, codec=CompressionCodec.GZIP)], [], []),
    ],
)
def test_names_show_gaps_overlaps_and_lengths(listed, known, findings):
    assert [(each.kind, each.begin, each.end) for each in audit_names(listed, known)] == findings


def test_only_what_brokers_list_as_stored_can_be_missing():
    listed = [stored(0, 10)]
    known = [
        fragment(0, 10),
        fragment(10, 20),
        fragment(0, 10, store="s3://c/"),
        fragment(20, 30, store=""),
    ]
    assert missing_of(listed, known) == known[1:3]
