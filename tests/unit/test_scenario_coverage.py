"""Every scenario of Gazette's own tests is a test of that name here, or is said not to apply."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADING = "## Scenarios of Gazette's own tests that do not apply"

# How many scenarios each group has: AA1 to AA18, and so on.
GROUPS = {
    # broker: append, append state machine, flow control, end to end, pipeline, replica, replicate
    "AA": 18,
    "FS": 27,
    "FC": 7,
    "E": 8,
    "P": 3,
    "R": 3,
    "RP": 8,
    # read, resolver, list and apply, fragments, store health, key space
    "RD": 14,
    "RS": 15,
    "LA": 5,
    "FR": 4,
    "FH": 2,
    "KS": 1,
    # fragment: spool, cover set, index, persister, stores
    "S": 8,
    "C": 12,
    "I": 9,
    "PE": 4,
    "ST": 2,
    # stores, HTTP gateway
    "SO": 8,
    "H": 6,
    # client: appender, append service, reader, retrying reader, lists, route cache, store health
    "AP": 6,
    "AS": 12,
    "RE": 5,
    "RR": 4,
    "LI": 5,
    "RC": 1,
    "SH": 1,
    # allocator: key space, state, announcement, batches, items, flow network, scenarios
    "K": 6,
    "A": 5,
    "N": 4,
    "L": 3,
    "T": 12,
    "F": 5,
    "Z": 19,
    # messages: UUIDs, framings, mapping, publisher, readers, sequencer
    "MU": 6,
    "MF": 11,
    "MM": 3,
    "MP": 3,
    "MR": 5,
    "MS": 16,
    # consumers: validation, consistency, hints, shard, resolver, API, transactions, SQL store, local
    # stores, consumertest
    "CV": 6,
    "CC": 1,
    "CH": 3,
    "CS": 4,
    "CR": 6,
    "CA": 7,
    "CT": 9,
    "CQ": 2,
    "CL": 7,
    "CN": 2,
    # recovery logs: segments, state machine, recorder, player, replicas of RocksDB
    "GS": 4,
    "GF": 9,
    "GR": 5,
    "GP": 10,
    "GB": 5,
    # key space; protocol, journal trees, tokens; brokertest, gazctl, Kubernetes
    "Y": 6,
    "V": 11,
    "J": 1,
    "U": 1,
    "B": 5,
    "G": 3,
    "X": 1,
}
SCENARIOS = {
    f"{group}{number}" for group, count in GROUPS.items() for number in range(1, count + 1)
}
TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
ID = re.compile(r"[a-z]{1,2}[1-9][0-9]?")


def ids_of(name: str) -> set[str]:
    """The scenarios that a test function is named after, as `test_rp4_rp5_mismatches` is."""
    found = set()
    for word in name.split("_")[1:]:
        if not ID.fullmatch(word):
            break
        found.add(word.upper())
    return found


@cache
def named_tests() -> dict[str, set[str]]:
    """Tests by scenario."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for match in TEST.finditer(path.read_text(encoding="utf-8")):
            for scenario in ids_of(match[1]):
                found.setdefault(scenario, set()).add(f"{path.name}::{match[1]}")
    return found


def listed(text: str) -> tuple[list[str], list[str]]:
    """Scenarios that do not apply, and those that apply in part: the IDs of two tables."""
    section = text.split(HEADING)[1].split("\n## ", maxsplit=1)[0]
    tables: list[list[str]] = []
    for line in section.splitlines():
        if line.startswith("| ID |"):
            tables.append([])
        elif line.startswith("| "):
            tables[-1] += expanded(line.split("|")[1].strip())
    whole, parts = tables
    return whole, parts


def expanded(cell: str) -> list[str]:
    """The IDs of a cell.

    >>> expanded("A1, F2 to F4")
    ['A1', 'F2', 'F3', 'F4']
    """
    found = []
    for item in cell.split(", "):
        first, _, last = item.partition(" to ")
        group = first.rstrip("0123456789")
        begin, end = int(first.removeprefix(group)), int((last or first).removeprefix(group))
        found += [f"{group}{number}" for number in range(begin, end + 1)]
    return found


def test_every_scenario_is_tested_or_listed():
    whole, parts = listed((ROOT / "docs/compatibility.md").read_text(encoding="utf-8"))
    tested = named_tests()
    missing = SCENARIOS - tested.keys() - set(whole)
    assert not missing, "name a test after each, or say in docs/compatibility.md why not"
    untested = set(parts) - tested.keys()
    assert not untested, "of these only a part does not apply"
    assert not set(whole) & tested.keys(), "listed as not applying, and tested"
    assert not {*whole, *parts} - SCENARIOS, "no such scenarios"
    assert len({*whole, *parts}) == len(whole) + len(parts), "listed twice"


def test_names_without_a_scenario_are_none():
    """A mistyped ID would count for nothing, and look as if it did."""
    unknown = {
        scenario: names for scenario, names in named_tests().items() if scenario not in SCENARIOS
    }
    assert not unknown


def test_ids_are_the_first_words_of_a_name():
    assert ids_of("test_rp4_rp5_mismatches") == {"RP4", "RP5"}
    assert ids_of("test_h5_h6_the_gateway_serves") == {"H5", "H6"}
    assert ids_of("test_a_group_a1_later") == set()
    assert ids_of("test_416_says_where_the_head_is") == set()


def test_missing_scenarios_are_found():
    text = f"# x\n{HEADING}\n\n| ID | why |\n|---|---|\n| A1, F2 to F4 | x |\n\n| ID | y |\n|---|---|\n| B2 | z |\n"
    assert listed(text) == (["A1", "F2", "F3", "F4"], ["B2"])
