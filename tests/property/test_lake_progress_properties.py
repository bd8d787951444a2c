"""Which bytes of a journal are awaited: nothing that brokers list stays out, nor holds others up."""

from itertools import pairwise

from hypothesis import given, strategies as st

from gazette_platform.fragment import index
from gazette_platform.lake.raw.listing import nearest_before
from gazette_platform.lake.raw.planning import (
    HOLES_MAX,
    JUMP_AGE_S,
    JournalCursor,
    Page,
    advance,
    bounded,
)
from gazette_platform.protocol import Fragment
from gazette_platform.protocol.offsets import subtract_ranges

NOW = 1_000_000
cuts = st.lists(st.integers(0, 300), min_size=2, max_size=40, unique=True).map(sorted)
ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda r: (r[0], r[0] + r[1])), max_size=9
)


def fragment(begin, end, *, mod_time=NOW, store="file:///"):
    return Fragment("j", begin, end, backing_store=store, mod_time=mod_time if store else 0)


def members(spans):
    return {n for begin, end in spans for n in range(begin, end)}


def test_readers_and_tables_wait_for_the_same_time():
    assert JUMP_AGE_S == index.JUMP_AGE_S


@given(ranges, ranges)
def test_subtract_is_that_of_sets(first, second):
    left = subtract_ranges(first, second)
    assert members(left) == members(first) - members(second)
    assert all(b < e for b, e in left)
    assert all(one[1] < two[0] for one, two in pairwise(left))


@given(cuts, st.integers(1, 6))
def test_bounded_holds_all_in_few(cut, count):
    holes = [(b, b + 1) for b in cut]
    found = bounded(holes, count)
    assert len(found) <= count
    assert members(holes) <= members(found)
    assert (found[0][0], found[-1][1]) == (holes[0][0], holes[-1][1])


@given(cuts, st.data())
def test_fragments_in_any_order_are_all_registered_and_none_waits_for_another(cut, data):
    """Brokers list more and more of a journal, in any order; each tick registers what is wanted."""
    whole = [fragment(b, e) for b, e in pairwise(cut)]
    order = data.draw(st.permutations(whole))
    cursor, listed, done = JournalCursor(), [], set()
    for one in order:
        listed = sorted([*listed, one], key=lambda f: f.begin)
        wanted = [f for f in listed if cursor.wants(f)]
        if len(cursor.holes) < HOLES_MAX:
            assert wanted == [one]
        held = {(f.begin, f.end) for f in wanted}
        cursor = advance(cursor, [Page(0, listed)], held, now_s=NOW + 60)
        done |= held
        assert done == {(f.begin, f.end) for f in listed}
        assert JournalCursor.from_json(cursor.to_json()) == cursor
    assert cursor.offset == cut[-1]
    assert cursor.last == whole[-1].begin
    # What no fragment ever held: the begin of the journal, which is awaited until it is old.
    assert cursor.holes == (((0, cut[0]),) if cut[0] else ())
    aged = advance(cursor, [Page(0, listed)], (), now_s=NOW + JUMP_AGE_S + 1)
    assert aged.holes == ()


@given(cuts, st.data())
def test_what_brokers_list_is_never_given_up(cut, data):
    """A fragment that is refused, or not stored yet, is awaited however old its neighbours are."""
    spans = list(pairwise(cut))
    states = data.draw(
        st.lists(
            st.sampled_from(["done", "refused", "local", "gone"]),
            min_size=len(spans),
            max_size=len(spans),
        )
    )
    listed = [
        fragment(b, e, mod_time=1, store="" if state == "local" else "file:///")
        for (b, e), state in zip(spans, states, strict=True)
        if state != "gone"
    ]
    done = [span for span, state in zip(spans, states, strict=True) if state == "done"]
    cursor = advance(JournalCursor(), [Page(0, listed)], done, now_s=NOW)
    assert cursor.offset == max((e for _, e in done), default=0)
    undone = [s for s, state in zip(spans, states, strict=True) if state in {"refused", "local"}]
    before = [span for span in undone if span[1] <= cursor.offset]
    if len(before) <= HOLES_MAX:
        assert members(before) <= members(cursor.holes)
    # A gap is given up if what follows it is stored; what is not stored yet has no age.
    gone = {s for s, state in zip(spans, states, strict=True) if state == "gone"}
    following = {f.begin: bool(f.backing_store) for f in listed}
    for begin, end in gone:
        if end <= cursor.offset and following.get(end) and len(cursor.holes) < HOLES_MAX:
            assert not members([(begin, end)]) & members(cursor.holes)


def test_a_gap_before_a_young_fragment_is_awaited():
    listed = [fragment(0, 5), fragment(9, 12)]
    cursor = advance(JournalCursor(), [Page(0, listed)], [(0, 5), (9, 12)], now_s=NOW + 3600)
    assert cursor == JournalCursor(12, 9, ((5, 9),), listed[1].mod_time)
    spanning = fragment(3, 9)
    cursor = advance(cursor, [Page(5, listed[1:]), Page(3, [spanning])], [(3, 9)], now_s=NOW)
    assert cursor == JournalCursor(12, 9, (), listed[1].mod_time)


def test_a_gap_before_what_is_not_stored_yet_is_awaited():
    """It has no time, which is not a time long ago."""
    listed = [fragment(0, 5), fragment(9, 12, store=""), fragment(12, 15)]
    cursor = advance(JournalCursor(), [Page(0, listed)], [(0, 5), (12, 15)], now_s=NOW)
    assert cursor == JournalCursor(15, 12, ((5, 12),), listed[2].mod_time)


def test_only_a_journal_that_begins_after_a_hole_was_pruned_there():
    cursor = JournalCursor(20, 15, ((5, 9),))
    for begin, is_first, is_pruned in ((15, True, True), (15, False, False), (9, True, False)):
        page = Page(9, [fragment(begin, 20)], is_first=is_first)
        left = advance(cursor, [page], [(begin, 20)], now_s=NOW).holes
        assert left == (() if is_pruned else ((5, 9),))


def test_what_took_the_place_of_what_is_registered_is_listed_until_it_is_done():
    """It begins before the offset, where a journal that has nothing new is asked no more."""
    cursor, larger = JournalCursor(12, 9), fragment(9, 20)
    assert cursor.wants(larger)
    assert advance(cursor, [Page(9, [larger])], (), now_s=NOW) == cursor
    advanced = advance(cursor, [Page(9, [larger])], [(9, 20)], now_s=NOW)
    assert advanced == JournalCursor(20, 9, (), larger.mod_time)


def test_what_was_looked_for_and_is_listed_no_more_is_not_looked_for_again():
    cursor = JournalCursor(20, 10)
    assert advance(cursor, [Page(10, [])], (), now_s=NOW) == JournalCursor(20, 20)
    assert advance(cursor, [Page(15, [])], (), now_s=NOW) == cursor


def test_a_spanning_fragment_that_is_refused_is_awaited():
    old = fragment(9, 12, mod_time=1)
    cursor = JournalCursor(12, 9, ((5, 9),))
    spanning = fragment(3, 9, mod_time=1)
    assert advance(cursor, [Page(5, [old]), Page(3, [spanning])], (), now_s=NOW).holes == ((5, 9),)
    assert advance(cursor, [Page(5, [old])], (), now_s=NOW).holes == ()


class Listed:
    """A source of one journal that counts how often it is asked."""

    def __init__(self, begins):
        self.all = [fragment(b, b + 1) for b in sorted(begins)]
        self.calls = 0

    def fragments(self, _journal, offset, limit):
        self.calls += 1
        return [f for f in self.all if f.begin >= offset][:limit]


@given(
    st.sets(st.integers(0, 1 << 40), max_size=60)
    | st.integers(1, 400).map(lambda n: set(range(n)))
    | st.integers(1, 400).map(lambda n: {(1 << 40) + i for i in range(n)}),
    st.integers(0, 1 << 41),
)
def test_the_nearest_fragment_before_is_found_in_few_calls(begins, offset):
    source = Listed(begins)
    found = nearest_before(source, "j", offset)
    expected = max((b for b in begins if b < offset), default=None)
    assert (found.begin if found is not None else None) == expected
    assert source.calls <= 60
