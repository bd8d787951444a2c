"""Plans of rollups: only what has changed is made again, and nothing shrinks unless it is to."""

import itertools

import pytest
from hypothesis import given, strategies as st

from gazette_platform.errors import LakeError
from gazette_platform.lake.rollups import (
    Covers,
    RollupSpec,
    Seen,
    SliceCover,
    SourceState,
    make_plan,
)
from gazette_platform.lake.rollups.planning import batches, covers_after, with_new_aliases
from gazette_platform.protocol.offsets import merge_ranges

COLUMNS = ("origin", "hour")


def spec(**changes):
    fields = {
        "name": "r.a",
        "engine": "trino",
        "sql": "select * from f",
        "sources": {"f": "t.f"},
        "slices": ("origin",),
    }
    return RollupSpec(**(fields | changes))


def raw(parts, *, columns=COLUMNS, table="t.f"):
    """A raw table with ranges, or a Seen, by "origin/hour"."""
    return SourceState(
        table=table,
        columns=columns,
        parts={
            name: (
                tuple(name.split("/")),
                seen if isinstance(seen, Seen) else Seen(f"j/{name.split('/')[0]}", seen),
            )
            for name, seen in parts.items()
        },
    )


def rollup(notes, *, columns=("origin",)):
    parts = {name: ((name,) if columns else (), Seen(note=note)) for name, note in notes.items()}
    return SourceState(table="r.b", columns=columns, parts=parts, can_shrink=False)


def planned(one, sources, covers=None, **options):
    sources = {"f": sources} if isinstance(sources, SourceState) else sources
    return make_plan(one, sources, with_new_aliases(sources, covers or Covers()), **options)


def done(plan, covers=None, one=None):
    return covers_after(one or spec(), covers or Covers(), plan, plan.make)


FIRST = {"JFK/5": ((0, 10),), "JFK/6": ((10, 30),), "EWR/5": ((0, 7),)}


def test_first_run_makes_all_slices_and_the_second_none():
    plan = planned(spec(), raw(FIRST))
    assert list(plan.make) == [("EWR",), ("JFK",)]
    assert plan.make["JFK",].parts == {
        "f": {"JFK/5": Seen("j/JFK", ((0, 10),)), "JFK/6": Seen("j/JFK", ((10, 30),))}
    }
    assert not plan.is_rebuild
    covers = done(plan)
    assert planned(spec(), raw(FIRST), covers).is_idle
    assert covers.offsets() == {"j/EWR": [(0, 7)], "j/JFK": [(0, 30)]}


@pytest.mark.parametrize(
    ("changes", "made"),
    [
        ({"JFK/6": ((10, 40),)}, ["JFK"]),
        ({"JFK/7": ((30, 40),)}, ["JFK"]),
        ({"LGA/5": ((0, 4),)}, ["LGA"]),
        ({"EWR/5": Seen("j/EWR", ((0, 7),), "twice 3")}, ["EWR"]),
        ({}, []),
    ],
)
def test_only_slices_with_changed_parts_are_made(changes, made):
    covers = done(planned(spec(), raw(FIRST)))
    plan = planned(spec(), raw(FIRST | changes), covers)
    assert [values for (values,) in plan.make] == made
    assert (plan.drop, plan.sealed, plan.is_rebuild) == ((), (), False)


def test_slices_may_be_coarser_or_finer_in_any_order():
    assert list(planned(spec(slices=("hour",)), raw(FIRST)).make) == [("5",), ("6",)]
    assert list(planned(spec(slices=("hour", "origin")), raw(FIRST)).make) == [
        ("5", "EWR"),
        ("5", "JFK"),
        ("6", "JFK"),
    ]
    plan = planned(spec(slices=()), raw(FIRST))
    assert list(plan.make) == [()]
    assert sorted(plan.make[()].parts["f"]) == sorted(FIRST)


def test_nothing_is_made_of_nothing():
    assert planned(spec(), raw({})).is_idle
    assert planned(spec(slices=()), raw({})).is_idle


def test_other_code_makes_everything_at_once():
    covers = done(planned(spec(), raw(FIRST)))
    plan = planned(spec(sql="select 1 from f"), raw(FIRST), covers)
    assert plan.is_rebuild
    assert list(plan.make) == [("EWR",), ("JFK",)]
    assert planned(spec(sql="select 1 from f"), raw(FIRST), done(plan, covers)).is_idle
    # Neither the time when it runs nor what becomes of pruned content is code.
    assert planned(spec(cron="0 0 * * *", retention="follow"), raw(FIRST), covers).is_idle


PRUNED = {"JFK/6": ((20, 30),), "EWR/5": ((0, 7),)}


def test_pruned_content_stays_in_the_rollup():
    covers = done(planned(spec(), raw(FIRST)))
    plan = planned(spec(), raw(PRUNED), covers)
    assert plan.is_idle
    assert [(s.values, s.is_behind) for s in plan.sealed] == [(("JFK",), False)]
    assert plan.behind == []
    gone = planned(spec(), raw({}), covers)
    assert gone.is_idle
    assert len(gone.sealed) == 2


def test_slice_that_would_shrink_waits_and_is_reported():
    covers = done(planned(spec(), raw(FIRST)))
    plan = planned(spec(), raw(PRUNED | {"JFK/7": ((30, 50),), "EWR/6": ((7, 9),)}), covers)
    assert list(plan.make) == [("EWR",)]
    assert [s.values for s in plan.behind] == [("JFK",)]
    rebuild = planned(spec(sql="select 1 from f"), raw(PRUNED), covers)
    assert (list(rebuild.make), rebuild.is_rebuild) == ([("EWR",)], True)
    assert [s.values for s in rebuild.behind] == [("JFK",)]


def test_content_that_another_part_held_too_is_not_gone():
    """A file that one of the hour before covers was moved aside, as after a fail-over."""
    overlap = {"JFK/5": ((0, 30),), "JFK/6": ((20, 50),), "EWR/6": ((0, 7),)}
    covers = done(planned(spec(), raw(overlap)))
    plan = planned(spec(), raw(overlap | {"JFK/6": ((30, 60),)}), covers)
    assert (list(plan.make), plan.sealed) == ([("JFK",)], ())
    # Not if that has it no more, nor for a part that is gone as a whole.
    for later in ({"JFK/5": ((0, 25),), "JFK/6": ((30, 60),)}, {"JFK/6": ()}):
        parts = {name: ranges for name, ranges in (overlap | later).items() if ranges}
        plan = planned(spec(), raw(parts), covers)
        assert ("JFK",) in [sealed.values for sealed in plan.sealed]
        assert plan.drop == ()
    # Nor if the other part is one that came later: of a journal made again, it is other content.
    covers = done(planned(spec(), raw({"JFK/6": ((20, 50),)})))
    plan = planned(spec(), raw({"JFK/7": ((0, 90),), "JFK/6": ((30, 60),)}), covers)
    assert [sealed.values for sealed in plan.behind] == [("JFK",)]


def test_a_source_by_another_alias_counts_as_it_did():
    covers = done(planned(spec(), raw(FIRST)))
    other = spec(sources={"g": "t.f"}, sql="select * from g")
    plan = planned(other, {"g": raw(FIRST)}, covers)
    assert (list(plan.make), plan.sealed) == ([("EWR",), ("JFK",)], ())
    plan = planned(other, {"g": raw(PRUNED)}, covers)
    assert list(plan.make) == [("EWR",)]
    assert [s.values for s in plan.behind] == [("JFK",)]
    # It is known by the new name from then on, when nothing of what it was made of is there any more.
    covers = done(plan, with_new_aliases({"g": raw(PRUNED)}, covers), other)
    later = {"g": raw({"JFK/8": Seen("j/other", ((0, 9),)), "EWR/5": ((0, 7),)})}
    plan = planned(other, later, covers)
    assert (plan.is_idle, plan.drop) == (True, ())
    assert [s.values for s in plan.behind] == [("JFK",)]
    covers = done(planned(spec(), raw(FIRST)))
    assert planned(other, {"g": raw({"EWR/5": ((0, 7),)})}, covers).drop == ()
    # Another table is not another name of the first one.
    another = {"g": raw({"JFK/5": Seen("k", ((0, 5),))})}
    plan = planned(other, another, covers)
    assert (list(plan.make), plan.sealed) == ([("JFK",)], ())
    # Of two sources one may go, whatever the other one has.
    both = spec(sources={"f": "t.f", "h": "t.h"})
    covers = done(planned(both, {"f": raw(FIRST), "h": raw(FIRST, table="t.h")}))
    plan = planned(spec(), {"f": raw(FIRST)}, covers)
    assert (list(plan.make), plan.sealed) == ([("EWR",), ("JFK",)], ())


def test_slice_of_a_journal_that_was_made_again_is_not_made_of_the_other_one():
    """The same offsets, and more of them, are other content."""

    def of(created, end):
        return raw({"JFK/5": Seen("j/JFK", ((0, end),), "", created)})

    covers = done(planned(spec(), of(43, 10)))
    covers = Covers.parse(covers.dump())
    plan = planned(spec(), of(77, 20), covers)
    assert (list(plan.make), [sealed.values for sealed in plan.behind]) == ([], [("JFK",)])
    assert list(planned(spec(), of(43, 20), covers).make) == [("JFK",)]
    # A former release did not note which journal it was.
    former = done(planned(spec(), of(0, 10)))
    assert list(planned(spec(), of(77, 20), former).make) == [("JFK",)]


def test_slice_that_lost_a_part_of_one_part_is_not_made_again():
    """Where the front of a Hive partition was pruned, what is left still overlaps what was read."""
    covers = done(planned(spec(), raw({"JFK/5": ((0, 10),)})))
    for left in (((4, 10),), ((0, 6),), ((0, 4), (6, 10)), ((4, 20),)):
        plan = planned(spec(), raw({"JFK/5": left}), covers)
        assert plan.is_idle
        assert [s.is_behind for s in plan.sealed] == [left[-1][1] > 10]


def test_sealed_slice_is_behind_if_a_rollup_that_it_is_made_of_has_changed():
    one = spec(sources={"f": "t.f", "b": "r.b"})
    covers = done(planned(one, {"f": raw(FIRST), "b": rollup({"JFK": "1", "EWR": "1"})}))
    for note, is_behind in (("1", False), ("2", True)):
        sources = {"f": raw(PRUNED), "b": rollup({"JFK": note, "EWR": "1"})}
        plan = planned(one, sources, covers)
        assert [(s.values, s.is_behind) for s in plan.sealed] == [(("JFK",), is_behind)]
        assert plan.is_idle


def test_journal_of_the_same_name_that_restarts_is_other_content():
    covers = done(planned(spec(), raw({"JFK/5": ((100, 200),)})))
    plan = planned(spec(), raw({"JFK/5": ((0, 300),)}), covers)
    assert list(plan.make) == [("JFK",)]
    other = planned(spec(), raw({"JFK/5": Seen("j/2", ((100, 200),))}), covers)
    assert [s.values for s in other.behind] == [("JFK",)]


def test_rollup_that_follows_loses_what_raw_lost():
    one = spec(retention="follow")
    covers = done(planned(one, raw(FIRST)))
    plan = planned(one, raw({"JFK/6": ((20, 30),)}), covers)
    assert list(plan.make) == [("JFK",)]
    assert plan.drop == (("EWR",),)
    after = done(plan, covers)
    assert list(after.slices) == [("JFK",)]
    assert after.offsets() == {"j/JFK": [(20, 30)]}


def test_other_slices_replace_all_unless_that_loses_rows():
    covers = done(planned(spec(), raw(FIRST)))
    other = spec(slices=("hour",))
    plan = planned(other, raw(FIRST), covers)
    assert (list(plan.make), plan.drop) == ([("5",), ("6",)], (("EWR",), ("JFK",)))
    assert plan.is_rebuild
    after = done(plan, covers, other)
    assert list(after.slices) == [("5",), ("6",)]
    assert planned(other, raw(FIRST), after).is_idle
    with pytest.raises(LakeError, match="cannot be sliced by hour without losing rows"):
        planned(other, raw(PRUNED), covers)
    for gives in ({"is_forced": True}, {"one": spec(slices=("hour",), retention="follow")}):
        given = {"one": other, "sources": raw(PRUNED), "covers": covers} | gives
        assert list(planned(**given).make) == [("5",), ("6",)]


def test_forced_run_makes_all_and_drops_what_is_gone():
    covers = done(planned(spec(), raw(FIRST)))
    plan = planned(spec(), raw(PRUNED | {"LGA/1": ((0, 1),)}), covers, is_forced=True)
    assert list(plan.make) == [("EWR",), ("JFK",), ("LGA",)]
    assert plan.is_rebuild
    gone = planned(spec(), raw({"JFK/6": ((10, 30),)}), covers, is_forced=True)
    assert gone.drop == (("EWR",),)


def test_rollup_of_a_rollup_follows_its_slices():
    covers = done(planned(spec(), rollup({"JFK": "1", "EWR": "1"})))
    plan = planned(spec(), rollup({"JFK": "2", "EWR": "1", "LGA": "1"}), covers)
    assert list(plan.make) == [("JFK",), ("LGA",)]
    whole = spec(slices=())
    covers = done(planned(whole, rollup({"JFK": "1"})), one=whole)
    assert planned(whole, rollup({"JFK": "1"}), covers).is_idle
    assert list(planned(whole, rollup({"JFK": "2"}), covers).make) == [()]


def test_table_without_slices_changes_all_slices():
    one = spec(sources={"f": "t.f", "names": "r.b"})
    names = rollup({"": "1"}, columns=())
    covers = done(planned(one, {"f": raw(FIRST), "names": names}))
    assert planned(one, {"f": raw(FIRST), "names": names}, covers).is_idle
    changed = {"f": raw(FIRST), "names": rollup({"": "2"}, columns=())}
    assert list(planned(one, changed, covers).make) == [("EWR",), ("JFK",)]
    # A source that is no longer read is not a lost content.
    plan = planned(spec(), raw(FIRST), covers)
    assert (list(plan.make), plan.sealed, plan.is_rebuild) == ([("EWR",), ("JFK",)], (), True)


@pytest.mark.parametrize(
    ("one", "sources", "told"),
    [
        (spec(slices=("day",)), {"f": raw(FIRST)}, "t.f is partitioned by origin, hour"),
        (spec(), {"f": raw(FIRST), "g": raw({}, columns=())}, "is partitioned by nothing"),
        (spec(slices=("day",)), {"f": rollup({"JFK": "1"})}, "none of its sources is"),
    ],
)
def test_sources_that_cannot_be_sliced_are_refused(one, sources, told):
    with pytest.raises(LakeError, match=told):
        planned(one, sources)


def test_batches_hold_all_slices_once():
    plan = planned(spec(), raw({f"{n:02}/1": ((0, 1),) for n in range(7)}))
    made = batches(plan, 3)
    assert [len(b) for b in made] == [3, 3, 1]
    assert {k: v for b in made for k, v in b.items()} == plan.make


# ------------------------------------------------------------------ covers as text


def test_covers_are_told_apart_by_their_digest():
    covers = done(planned(spec(), raw(FIRST)))
    assert covers.digest == done(planned(spec(), raw(dict(reversed(FIRST.items()))))).digest
    assert covers.digest != Covers().digest
    other = done(planned(spec(), raw(FIRST | {"EWR/5": ((0, 8),)})))
    assert covers.digest != other.digest
    assert covers.digest != Covers(covers.slices, ("dest",)).digest


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":1}', '{"version":1,"slices":[[1]]}'])
def test_other_texts_are_not_covers(text):
    with pytest.raises(LakeError, match="cannot be read"):
        Covers.parse(text)


def test_covers_of_a_newer_release_are_refused():
    with pytest.raises(LakeError, match="update the platform"):
        Covers.parse('{"version":2,"slices":[]}')


# ------------------------------------------------------------------ properties

RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 5)).map(lambda r: (r[0], r[0] + r[1])), max_size=4
).map(lambda ranges: tuple(merge_ranges(ranges)))
NAMES = st.sampled_from([f"{origin}/{hour}" for origin in "ABC" for hour in range(3)])
SOURCES = st.dictionaries(NAMES, RANGES.filter(bool), max_size=9).map(raw)
SPECS = st.builds(
    spec,
    slices=st.sampled_from([(), ("origin",), ("hour",), ("hour", "origin")]),
    retention=st.sampled_from(["keep", "follow"]),
    sql=st.sampled_from(["select 1 from f", "select 2 from f"]),
)


def offsets(ranges):
    return {n for begin, end in ranges for n in range(begin, end)}


@given(RANGES, RANGES)
def test_merged_ranges_hold_the_same_offsets(one, other):
    merged = merge_ranges([*one, *other])
    assert offsets(merged) == offsets(one) | offsets(other)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(merged))


@given(SPECS, st.lists(SOURCES, min_size=1, max_size=5))
def test_each_run_reaches_its_sources_and_then_rests(one, history):
    """Whatever the sources go through: what is made is of now, and what is kept is not less."""
    covers = Covers()
    for source in history:
        plan = make_plan(one, {"f": source}, covers)
        after = done(plan, covers, one)
        assert make_plan(one, {"f": source}, after).is_idle
        assert Covers.parse(after.dump()) == after
        now = {name: seen for name, (_, seen) in source.parts.items()}
        for values, cover in plan.make.items():
            assert cover.parts["f"].items() <= now.items()
            former = covers.slices.get(values)
            if former is not None and one.retention == "keep":
                # A part may have less if another one, of the same slice, holds the same bytes.
                for seen in former.parts["f"].values():
                    held = [s for s in cover.parts["f"].values() if s.journal == seen.journal]
                    assert offsets(seen.ranges) <= set().union(*(offsets(s.ranges) for s in held))
        if one.retention == "follow":
            told = {
                name: seen for c in after.slices.values() for name, seen in c.parts["f"].items()
            }
            assert told == now
        else:
            assert not plan.drop
            for journal, ranges in covers.offsets().items():
                assert offsets(ranges) <= offsets(after.offsets()[journal])
        covers = after


def test_slice_cover_distinguishes_code_from_code():
    assert SliceCover("1").digest != SliceCover("2").digest
