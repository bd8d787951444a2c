"""What `tools/test_all` runs: each folder of tests, by parts that leave nothing between them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tests_without_a_mark_are_run_from_every_folder():
    """Marks choose among tests of the parts `users`, `spark` and `sql`; all others are in these two."""
    script = (ROOT / "tools/test_all").read_text()
    folders = dict(re.findall(r'^  \[(\w+)\]="(tests/[^"]*)"$', script, re.MULTILINE))
    markers = dict(re.findall(r'^  \[(\w+)\]="((?:not )?\(?\w[^"/]*)"$', script, re.MULTILINE))
    unmarked = [part for part, marker in markers.items() if marker.startswith("not (")]
    assert sorted(unmarked) == ["modules", "servers"]
    visited = [folder for part in unmarked for folder in folders[part].split()]
    assert sorted(visited) == sorted(
        {str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").glob("*/test_*.py")}
    )


def test_each_part_that_is_described_is_run_with_and_without_other_pythons():
    script = (ROOT / "tools/test_all").read_text()
    parts, beside = re.search(r"^parts=\((.*)\) beside=\((.*)\)$", script, re.MULTILINE).groups()
    (added,) = re.findall(r"--pythons\) beside\+=\((.*)\)", script)
    markers = set(re.findall(r'^  \[(\w+)\]="(?!tests/)', script, re.MULTILINE))
    assert sorted(markers) == sorted([*parts.split(), *beside.split()])
    assert added == "pythons"
