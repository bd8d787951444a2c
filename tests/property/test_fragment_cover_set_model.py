"""The cover set against a plain model: a list of spans, and sets of bytes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings, strategies as st

from gazette_platform.fragment.cover_set import CoverSet

LIMIT = 24


@dataclass(frozen=True)
class Tagged:
    """A span that remembers when it was added."""

    begin: int
    end: int
    tag: int = 0


spans = st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT)).map(
    lambda pair: (min(pair), max(pair))
)
histories = st.lists(spans, max_size=14)


def model_of(history):
    """What the rules say, without cleverness."""
    kept: list[Tagged] = []
    for tag, (begin, end) in enumerate(history):
        if begin == end:
            continue
        if any(
            one.begin <= begin and end <= one.end and (one.begin, one.end) != (begin, end)
            for one in kept
        ):
            continue
        kept = [one for one in kept if not (begin <= one.begin and one.end <= end)]
        kept.append(Tagged(begin, end, tag))
    return sorted(kept, key=lambda one: one.begin)


def cover_of(history):
    return CoverSet(Tagged(begin, end, tag) for tag, (begin, end) in enumerate(history))


def bytes_of(items):
    return {byte for one in items for byte in range(one.begin, one.end)}


@settings(max_examples=300)
@given(histories)
def test_members_are_those_of_the_model(history):
    cover = cover_of(history)
    assert list(cover) == model_of(history)
    begins, ends = [one.begin for one in cover], [one.end for one in cover]
    assert begins == sorted(set(begins))
    assert ends == sorted(set(ends))
    assert bytes_of(cover) == {byte for begin, end in history for byte in range(begin, end)}


@settings(max_examples=300)
@given(histories, spans)
def test_insert_returns_what_it_displaced(history, added):
    cover = cover_of(history)
    before = list(cover)
    displaced = cover.insert(Tagged(*added, tag=-1))
    if displaced is None:
        assert list(cover) == before
    else:
        assert [one for one in before if one not in displaced] == [
            one for one in cover if one.tag != -1
        ]


@settings(max_examples=300)
@given(histories, st.integers(0, LIMIT + 1))
def test_lookup_gives_most_content(history, offset):
    cover = cover_of(history)
    index, found = cover.lookup(offset)
    covering = [one for one in cover if one.begin <= offset < one.end]
    assert found == bool(covering)
    if found:
        assert cover[index].end == max(one.end for one in covering)
    else:
        behind = [position for position, one in enumerate(cover) if one.begin > offset]
        assert index == (behind[0] if behind else len(cover))


@settings(max_examples=300)
@given(histories, spans)
def test_covers(history, asked):
    cover = cover_of(history)
    assert cover.covers(*asked) == (set(range(*asked)) <= bytes_of(cover))


@settings(max_examples=200)
@given(histories, spans)
def test_ranges_and_removal(history, asked):
    cover = cover_of(history)
    begin, end = asked
    if begin < end:
        assert cover.overlapping(begin, end) == [
            one for one in cover if one.begin < end and one.end > begin
        ]
    members = list(cover)
    expected = [one for one in members if (one.begin, one.end) != asked]
    assert cover.remove(Tagged(begin, end)) == (len(expected) < len(members))
    assert list(cover) == expected
