"""Lineage of whatever text is given: known columns of known sources, or a refusal, and nothing else."""

from hypothesis import given, settings, strategies as st

from gazette_platform.errors import LakeError
from gazette_platform.lake.rollups.lineage import column_lineage

SOURCES = {"f": ["a", "b", "s"], "g": ["a", "X"], "h": []}
ORIGINS = {(alias, column) for alias, columns in SOURCES.items() for column in columns}
DIALECTS = st.sampled_from(["trino", "spark"])
# Few words, so that what they make is often a query, or nearly one.
WORDS = [
    "select",
    "select",
    "from",
    "from",
    "f",
    "g",
    "h",
    "c",
    "a",
    "b",
    "s",
    "X",
    "*",
    ",",
    ",",
    "(",
    ")",
    "as",
    "as",
    "where",
    "with",
    "union",
    "all",
    "except",
    "join",
    "on",
    "using",
    "group",
    "by",
    "order",
    "over",
    "partition",
    "lateral",
    "view",
    "explode",
    "unnest",
    "t",
    "x",
    "->",
    "1",
    "'y'",
    "+",
    "=",
    ".",
    "[",
    "]",
    '"',
    "`",
    ";",
    "values",
    "recursive",
]
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join),
    st.lists(st.sampled_from(WORDS), max_size=20).map(lambda w: f"select {' '.join(w)} from f"),
)


@settings(deadline=None)
@given(TEXTS, DIALECTS)
def test_any_text_is_refused_or_gives_origins_that_there_are(sql, dialect):
    try:
        found = column_lineage(sql, dialect, SOURCES)
    except LakeError:
        return
    for name, origins in found.items():
        assert name == name.lower()
        assert origins == sorted(set(origins))
        assert set(origins) <= ORIGINS


@st.composite
def queries(draw):
    """A chain of subqueries, of which each renames or adds the columns of the one before."""
    known = {"a": {("f", "a")}, "b": {("f", "b")}}
    text = "f"
    for level in range(draw(st.integers(1, 5))):
        made, parts = {}, []
        for index in range(draw(st.integers(1, 4))):
            used = draw(st.lists(st.sampled_from(sorted(known)), max_size=3))
            name = f"c{level}_{index}"
            parts.append(f"{' + '.join([*used, '1'])} as {name}")
            made[name] = set().union(*(known[column] for column in used))
        known, text = made, f"(select {', '.join(parts)} from {text}) as t{level}"
    return f"select * from {text}", known


@settings(deadline=None)
@given(queries(), DIALECTS)
def test_origins_are_followed_through_any_number_of_subqueries(query, dialect):
    sql, known = query
    found = column_lineage(sql, dialect, SOURCES)
    assert {name: set(origins) for name, origins in found.items()} == known
