"""The state of a typed table as a value and as a file."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet

from gazette_platform.errors import LakeError
from gazette_platform.lake.typed.planning.state import (
    Counts,
    JournalState,
    Producer,
    TypedState,
    pruned,
)
from gazette_platform.message.sequencer import PRUNE_HORIZON
from gazette_platform.protocol import DOUBTED

CLOCK = 0x1E9CC5F83FC2F810

numbers = st.integers(0, 2**63 - 1)
producers = st.dictionaries(
    st.binary(min_size=6, max_size=6),
    st.builds(Producer, st.integers(0, 2**64 - 1), st.integers(-1, 2**63 - 1), numbers),
    max_size=4,
)
counts = st.builds(Counts, **dict.fromkeys(Counts.__dataclass_fields__, numbers))
journals = st.builds(
    JournalState,
    offset=numbers,
    producers=producers,
    counts=counts,
    created=st.sampled_from([0, DOUBTED, 7]),
    shared_to=st.sampled_from([0, 900]),
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
states = st.builds(TypedState, st.dictionaries(names, journals, max_size=4))


@given(states)
def test_state_comes_back_as_it_was(state):
    found = TypedState.decode(state.encode())
    assert found == state
    assert found.digest == state.digest


def some_state():
    known = {b"first!": Producer(CLOCK), b"open!!": Producer(CLOCK + 160, 77, 3)}
    told = Counts(
        messages=20, committed=12, typed=11, quarantined=1, duplicates=2, taken_back=1, acks=2
    )
    return TypedState(
        {
            "lake/a": JournalState(offset=900, producers=known, counts=told),
            "lake/b": JournalState(offset=7),
        }
    )


def test_passing_bytes_that_were_read_is_nothing():
    one = some_state().journals["lake/a"]
    assert one.passing(5) == one.passing(900) == one
    assert (one.passing(905).offset, one.passing(905).counts.lost_bytes) == (905, 5)


def test_digest_does_not_depend_on_order_and_knows_every_field():
    state = some_state()
    turned = TypedState(
        {
            "lake/b": state.journals["lake/b"],
            "lake/a": JournalState(
                offset=900,
                producers=dict(reversed(state.journals["lake/a"].producers.items())),
                counts=state.journals["lake/a"].counts,
            ),
        }
    )
    assert turned.digest == state.digest
    assert turned.encode() == state.encode()
    former = state.journals["lake/a"]
    changed = [
        former.passing(901),
        former.giving_up(78),
        *(
            JournalState(
                offset=900,
                producers=former.producers,
                counts=former.counts + Counts(**{name: 1}),
            )
            for name in Counts.__dataclass_fields__
        ),
        JournalState(offset=900, counts=former.counts),
    ]
    digests = {state.with_journals({"lake/a": one}).digest for one in changed}
    assert len(digests | {state.digest, TypedState().digest}) == len(changed) + 2


def test_accounts_that_contradict_each_other_are_reported():
    state = some_state()
    assert state.unaccounted == {}
    assert state.counts.waiting == 3
    of_a = state.journals["lake/a"]
    lost_row = state.with_journals({"lake/a": of_a.with_rows(-1, 0)})
    assert "12 messages are committed, and 10 are rows, 1 in" in lost_row.unaccounted["lake/a"]
    lost_message = JournalState(
        offset=900, producers=of_a.producers, counts=of_a.counts + Counts(messages=1)
    )
    told = state.with_journals({"lake/a": lost_message}).unaccounted
    assert "4 messages are neither committed nor dropped, and 3 wait" in told["lake/a"]
    counted_twice = JournalState(
        offset=900, producers=of_a.producers, counts=of_a.counts + Counts(duplicates=1)
    )
    told = state.with_journals({"lake/a": counted_twice}).unaccounted
    assert "2 messages are neither committed nor dropped, and 3 wait" in told["lake/a"]


def test_of_open_transactions_the_oldest_counts():
    known = {
        b"first!": Producer(CLOCK, 90, 1),
        b"second": Producer(CLOCK, 40, 1),
        b"none!!": Producer(CLOCK),
    }
    assert JournalState(producers=known).open_begin == 40
    assert JournalState(producers={b"first!": Producer(CLOCK, 0, 1)}).open_begin == 0
    assert JournalState(producers={b"none!!": Producer(CLOCK)}).open_begin is None


def test_journals_that_a_run_did_not_read_keep_their_state():
    state = some_state()
    behind = state.with_journals({"lake/b": JournalState(offset=9), "lake/c": JournalState()})
    assert behind.journals["lake/a"] == state.journals["lake/a"]
    assert [one.offset for one in behind.journals.values()] == [900, 9, 0]


def test_any_engine_can_ask_the_file():
    table = parquet.read_table(io.BytesIO(some_state().encode())).to_pylist()
    assert [(r["journal"], r["producer"], r["begin"], r["typed"]) for r in table] == [
        ("lake/a", None, 900, 11),
        ("lake/b", None, 7, 0),
        ("lake/a", b"first!", -1, None),
        ("lake/a", b"open!!", 77, None),
    ]


# ------------------------------------------------------------------ files that are none


def test_every_truncated_file_is_refused():
    content = some_state().encode()
    for length in range(len(content)):
        with pytest.raises(LakeError, match=r"t/1\.state cannot be read .*roll the table"):
            TypedState.decode(content[:length], where="t/1.state")


@given(st.data())
def test_file_with_a_changed_byte_is_refused_or_says_the_same(data):
    content = bytearray(some_state().encode())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    try:
        found = TypedState.decode(bytes(content))
    except LakeError:
        return
    assert found == some_state()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"offsets: {}", b"PAR1" * 9, bytes(64)])
def test_other_files_are_refused(content):
    with pytest.raises(LakeError, match="cannot be read"):
        TypedState.decode(content)


def test_parquet_file_of_others_is_refused():
    out = io.BytesIO()
    parquet.write_table(pa.table({"journal": ["lake/a"]}), out)
    with pytest.raises(LakeError, match=r"no state of a typed table: does .*gazette\.state"):
        TypedState.decode(out.getvalue())


def test_file_with_a_journal_without_a_name_is_refused():
    table = parquet.read_table(io.BytesIO(some_state().encode()))
    metadata = parquet.ParquetFile(io.BytesIO(some_state().encode())).metadata.metadata
    at = table.schema.get_field_index("journal")
    table = table.slice(0, 1).set_column(at, "journal", pa.array([None], pa.string()))
    out = io.BytesIO()
    with parquet.ParquetWriter(out, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
    with pytest.raises(LakeError, match="cannot be read"):
        TypedState.decode(out.getvalue())


def rewritten(content, *, without=(), **changed):
    """The file with other metadata, and without some columns."""
    file = parquet.ParquetFile(io.BytesIO(content))
    table, out = file.read().replace_schema_metadata(None).drop(list(without)), io.BytesIO()
    with parquet.ParquetWriter(out, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        told = {name.encode(): value for name, value in changed.items()}
        writer.add_key_value_metadata({**file.metadata.metadata, **told})
    return out.getvalue()


def test_state_of_version_1_does_not_know_its_journals():
    state = some_state()
    content = rewritten(
        state.encode(),
        without=("created", "shared_to"),
        **{"gazette.typed-state.version": b"1"},
    )
    assert TypedState.decode(content) == state


def test_state_of_a_newer_release_is_refused():
    content = rewritten(some_state().encode(), **{"gazette.typed-state.version": b"3"})
    with pytest.raises(LakeError, match=r"has version 3, this release knows 2: .* update"):
        TypedState.decode(content)


def test_state_with_the_digest_of_another_is_refused():
    content = rewritten(some_state().encode(), **{"gazette.typed-state.digest": b"0" * 64})
    with pytest.raises(LakeError, match="digest is of something else"):
        TypedState.decode(content)


# ------------------------------------------------------------------ how large it gets


@pytest.mark.parametrize(
    ("journals", "in_each", "bytes_max"),
    [
        pytest.param(1, 10, 6_000, id="10-producers"),
        pytest.param(100, 100, 160_000, id="10k-states"),
    ],
)
def test_state_of_many_producers_is_small(record_property, journals, in_each, bytes_max):
    source = random.Random(7)
    names = [source.randbytes(6) for _ in range(max(in_each, 10_000))]
    day = 24 * 3600 * 1_000_000

    def producer():
        begin = source.randrange(1 << 40) if source.random() < 0.01 else -1
        return Producer(CLOCK + 160 * source.randrange(day), begin, int(begin >= 0))

    state = TypedState(
        {
            f"lake/events/region=eu/part={n:03d}": JournalState(
                offset=source.randrange(1 << 40),
                producers={name: producer() for name in source.sample(names, in_each)},
            )
            for n in range(journals)
        }
    )
    content = state.encode()
    record_property("bytes", len(content))
    assert len(content) < bytes_max
    assert TypedState.decode(content) == state


# ------------------------------------------------------------------ what is forgotten


def test_producers_are_forgotten_a_day_behind_their_journal_unless_a_transaction_is_open():
    newest = CLOCK + PRUNE_HORIZON + 1
    known = {
        b"newest": Producer(newest),
        b"a day!": Producer(newest - PRUNE_HORIZON),
        b"older!": Producer(newest - PRUNE_HORIZON - 1),
        b"silent": Producer(0, 40, 2),
    }
    assert pruned(known) == {name: one for name, one in known.items() if name != b"older!"}
    assert pruned({}) == {}
