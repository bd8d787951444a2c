"""Benchmarks: what a run believes that it appended, against the content."""

from __future__ import annotations

import pytest

from benchmarks.acknowledged import in_order
from gazette_platform.errors import DataError


def test_contents_are_put_in_the_order_of_their_spans():
    assert in_order(3, [(5, 8), (3, 5), (8, 9)], [b"cde", b"ab", b"f"]) == [b"ab", b"cde", b"f"]
    assert in_order(3, [], []) == []


@pytest.mark.parametrize(
    ("spans", "contents", "told"),
    [
        ([(3, 6)], [b"ab"], r"2 bytes were acknowledged as \[3, 6\)"),
        ([(4, 6)], [b"ab"], "acknowledged at 4, the journal ended at 3"),
        ([(3, 5), (6, 7)], [b"ab", b"c"], r"\(3, 5\) and \(6, 7\)"),
        ([(3, 5), (4, 6)], [b"ab", b"cd"], r"\(3, 5\) and \(4, 6\)"),
        ([(3, 5), (3, 5)], [b"ab", b"ab"], r"\(3, 5\) and \(3, 5\)"),
    ],
    ids=["length", "begin", "hole", "overlap", "twice"],
)
def test_spans_that_cannot_be_are_named(spans, contents, told):
    with pytest.raises(DataError, match=told):
        in_order(3, spans, contents)
