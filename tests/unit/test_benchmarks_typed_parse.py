"""Benchmarks of typed tables: each way to find bad records finds the same, and what is committed comes out once."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.typed_data import Plan, write_fragments
from benchmarks.typed_parse import Committed, Stages, typed_tables
from benchmarks.typed_source import fragments_of
from benchmarks.typed_table import typed_schema
from benchmarks.typed_values import ODD, by_arrow
from gazette_platform.errors import ChecksumMismatch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "typed-parsing.md"


def read(root, *, repair="lines", block_bytes=20_000):
    """All rows below `root`, their bad lines, and how many messages were looked at one by one."""
    tables, bad, sequenced = [typed_schema().empty_table()], [], 0
    for fragment in fragments_of(root):
        committed = Committed()
        found = typed_tables(
            root / fragment.content_path,
            fragment,
            Stages(),
            committed,
            repair=repair,
            block_bytes=block_bytes,
        )
        for table, lines in found:
            tables.append(table)
            bad += lines
        sequenced += committed.sequenced
    return pa.concat_tables(tables), bad, sequenced


def sums(table):
    """As `Truth.sums`."""
    added = (pc.sum(table[name]).as_py() for name in ("order_id", "quantity", "amount"))
    order_ids, quantities, amount = added
    return (table.num_rows, order_ids, quantities, int(amount * 100))


@pytest.mark.parametrize("repair", ["bisect", "hint", "lines"])
def test_bad_records_are_reported_with_their_offsets_and_the_others_are_kept(tmp_path, repair):
    truth = write_fragments(
        tmp_path, Plan(content_bytes=200_000, fragment_bytes=100_000, codec="NONE", bad_share=0.1)
    )
    table, bad, _ = read(tmp_path, repair=repair)
    assert sums(table) == truth.sums
    assert len(bad) == truth.bad > 40
    assert table["order_id"].to_pylist() == sorted(table["order_id"].to_pylist())
    content = b"".join(
        (tmp_path / each.content_path).read_bytes() for each in fragments_of(tmp_path)
    )
    for begin, line in bad:
        assert content[begin : begin + len(line)] == line
        assert line.endswith(b"\n")


def test_transactions_and_repeated_messages_come_out_once_and_acks_do_not(tmp_path):
    plan = Plan(content_bytes=800_000, fragment_bytes=800_000, transactions=True)
    truth = write_fragments(tmp_path, plan)
    table, bad, sequenced = read(tmp_path)
    assert truth.records > truth.rows > 1000  # with ACKs and repetitions
    assert sums(table) == truth.sums
    assert sorted(table["order_id"].to_pylist()) == list(range(truth.rows))
    assert (bad, sequenced > 0) == ([], True)


def test_a_fragment_that_is_not_what_its_name_says_is_refused(tmp_path):
    write_fragments(tmp_path, Plan(content_bytes=50_000, fragment_bytes=50_000, codec="NONE"))
    path = tmp_path / fragments_of(tmp_path)[0].content_path
    path.write_bytes(path.read_bytes().replace(b"Lyon", b"Nice", 1))
    with pytest.raises(ChecksumMismatch):
        read(tmp_path)


def told():
    """What the page says that a typed table makes of each odd record."""
    table = PAGE.read_text().partition("## Odd records")[2]
    return dict(re.findall(r"^\| (.+?) \| (.+?) \|", table, re.MULTILINE))


def test_odd_records_are_taken_as_the_page_says():
    page = told()
    assert {odd.what: by_arrow(odd) for odd in ODD} == {odd.what: page[odd.what] for odd in ODD}
