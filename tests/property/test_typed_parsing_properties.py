"""A record is kept alone if and only if it is kept among others, wherever blocks are cut."""

import json

from hypothesis import given, strategies as st

from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.typed.rows.parsing import BlockParser

COLUMNS = {
    "a": "bigint", "b": "string", "c": "decimal(5,2)", "d": "timestamptz", "e": "array<struct<x:int>>", "f": "date",
}  # fmt: skip
BY_LINES = {**COLUMNS, "g": "json", "h": "map<string,double>"}


def parser(kinds, unknown):
    columns = tuple(
        TypedColumn(name=name, type=kind, key=name, format="iso" if kind == "timestamptz" else "")
        for name, kind in kinds.items()
    )
    wanted = TypedSpec(
        name="typed.t", source="raw.t", uuid=("_meta", "uuid"), columns=columns, unknown=unknown
    )
    return BlockParser(wanted)


PARSERS = {
    (len(kinds), unknown): parser(kinds, unknown)
    for kinds in (COLUMNS, BY_LINES)
    for unknown in ("ignore", "quarantine")
}

values = st.sampled_from(
    [
        *[None, 1, 2**63 - 1, 2**63, -1, 1.5, 0.001, 1e400, float("nan"), True],
        *["", "x", "12", "1.25", "2026-01-02", "2026-02-30", "2026-01-02T03:04:05Z"],
        *["0000-01-01", "\ud800", "\0"],
        *[[], [{}], [{"x": 1}], [{"x": "1"}], [1], {}, {"x": 1}, {"k": 2.5}],
    ]
)
keys = st.sampled_from([*BY_LINES, "other", "_meta"])
uuids = st.sampled_from(
    [None, "", "none", "0a1b2c3d-4e5f-11ec-8001-010305070901", "0a1b2c3d-4e5f-11ec-8405-010305070901"]
)  # fmt: skip
records = st.builds(
    lambda found, uuid: json.dumps({"_meta": {"uuid": uuid}, **found}).encode(),
    st.dictionaries(keys, values, max_size=4),
    uuids,
)
odd = st.sampled_from(
    [b"", b"  ", b"null", b"[]", b"{}", b" {} ", b"{}{}", b"{} x", b'{"b":"\xff"}', b'{"a":01}', b"{", b"}", b'{"a":1,"a":2}']
)  # fmt: skip
lines = st.lists(st.one_of(records, records, odd), max_size=12)


def outcomes(parsed):
    """Of each message: its place, its UUID's parts, and its row or why it is none."""
    good = range(len(parsed.parts)) if parsed.good is None else parsed.good.to_pylist()
    made = dict(zip(good, parsed.rows.to_pylist(), strict=True))
    made |= {one.number: one.reason for one in parsed.bad}
    places = zip(parsed.begins.to_pylist(), parsed.ends.to_pylist(), strict=True)
    parts = parsed.parts.to_pylist()
    # An ACK is neither.
    return [(place, parts[index], made.get(index)) for index, place in enumerate(places)]


@given(lines, st.sampled_from(sorted(PARSERS)), st.sets(st.integers(1, 11)))
def test_what_becomes_of_a_record_depends_on_nothing_but_itself(found, which, cuts):
    whole = outcomes(PARSERS[which].parse(7, b"".join(line + b"\n" for line in found)))
    assert len(whole) == len(found)
    begin, first, pieces = 7, 0, []
    for cut in [*sorted(cut for cut in cuts if cut < len(found)), len(found)]:
        block = b"".join(line + b"\n" for line in found[first:cut])
        pieces += outcomes(PARSERS[which].parse(begin, block))
        begin, first = begin + len(block), cut
    assert repr(pieces) == repr(whole)


@given(records, st.sampled_from(sorted(PARSERS)))
def test_blanks_around_a_record_change_nothing_but_its_place(record, which):
    (plain,) = outcomes(PARSERS[which].parse(0, record + b"\n"))
    (padded,) = outcomes(PARSERS[which].parse(0, b" \t" + record + b" \r\n"))
    assert repr(plain[1:]) == repr(padded[1:])


@given(lines, st.sampled_from(sorted(PARSERS)), st.sampled_from([b"\n", b""]))
def test_a_look_sees_the_messages_that_are_parsed(found, which, end):
    """Wherever it does not look at lines one by one, too: those that no JSON has are left out of the second."""
    for some in (found, [line for line in found if line.startswith(b"{") and len(line) > 20]):
        content = b"\n".join(some) + end if some else b""
        looked = PARSERS[which].look(7, content)
        parsed = PARSERS[which].parse(7, content)
        for name in ("parts", "begins", "ends"):
            assert getattr(looked, name).equals(getattr(parsed, name)), name
